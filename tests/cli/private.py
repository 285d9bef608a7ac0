"""Files of egmctl that nobody else may read, and where others may have planted one."""

from __future__ import annotations

import dataclasses
import re

from egmctl.model.gpu import GpuProcess
from egmctl.model.host import Cgroup, Process
from egmctl.model.machine import Machine
from tests.doctor.machines import patched
from tests.fake.node import load

SECRET = "s3cret"  # noqa: S105
CLUSTER = "aaaabbbb-cccc-dddd-eeee-ffff00001111"


def uuid_of(index: int) -> str:
    return f"GPU-1234567{index}-89ab-cdef-0123-456789abcde{index}"


def planted() -> Machine:
    """Return a machine that has a secret wherever a real one could have one."""
    machine = load("gb200-nvl72")
    for index in range(4):
        uuid = uuid_of(index)
        machine = patched(machine, f"gpus[{index}].nvml", uuid=uuid, serial=f"{SECRET}{index}")
        machine = patched(machine, f"gpus[{index}].proc", uuid=uuid)
        machine = patched(machine, f"gpus[{index}].cuda", uuid=uuid)
    used_by = GpuProcess(pid=4711, name=f"/home/{SECRET}/train.py --token={SECRET}", used_memory_bytes=1 << 30)
    machine = patched(machine, "gpus[1].nvml", processes=(used_by,))
    machine = patched(machine, "gpus[*].nvml.fabric", cluster_uuid=CLUSTER)
    command_line = {"iommu": "pt", "pci": f"/srv/{SECRET},realloc"}
    command_line |= {"nvidia.NVreg_TemporaryFilePath": f"/home/{SECRET}", "nvidia.NVreg_RmMsg": f"@{SECRET}"}
    kernel = f"6.8.0-{SECRET}-acme"
    machine = patched(machine, "host", hostname=f"node-{SECRET}", kernel=kernel, kernel_command_line=command_line)
    parameters = {"TemporaryFilePath": f"/home/{SECRET}", "RegistryDwords": f"x=/home/{SECRET}/y"}
    assert machine.driver is not None
    machine = patched(machine, "driver", module_parameters={**(machine.driver.module_parameters or {}), **parameters})
    environment = {
        "LD_LIBRARY_PATH": f"/home/{SECRET}/lib",
        "CUDA_INJECTION64_PATH": f"/srv/{SECRET}/lib.so",
        "CUDA_MPS_PIPE_DIRECTORY": f"/run/{SECRET}",
        "NCCL_IB_HCA": f"{SECRET}_0",
    }
    cgroups = (Cgroup(version=2, path=f"/system.slice/{SECRET}.service"),)
    process = dataclasses.replace(machine.process or Process(), cgroups=cgroups, environment=environment)
    return dataclasses.replace(machine, process=process)


def check(text: str, *, what: str) -> None:
    for leak in re.finditer(SECRET, text):
        raise AssertionError(f"{what}: ...{text[max(0, leak.start() - 200) : leak.end() + 100]}...")
    for uuid in (CLUSTER, *(uuid_of(index).removeprefix("GPU-") for index in range(4))):
        assert uuid not in text, what
