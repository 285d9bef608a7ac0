"""What leaves the site: no document of any command, in any format, holds a name, an identifier or path of the node."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest

from egmctl.model.gpu import GpuProcess
from egmctl.model.host import Cgroup, Process
from egmctl.model.machine import Machine
from egmctl.report.kinds import BENCH, DOCTOR, SUFFIXES, TOPO, Format, Kind
from tests.bench.four import OPTIONS
from tests.conftest import RunEgmctl
from tests.doctor.machines import patched
from tests.fake.node import FakeNode, load
from tests.fake.plugin import MakeFakeNode

SECRET = "s3cret"  # noqa: S105
CLUSTER = "aaaabbbb-cccc-dddd-eeee-ffff00001111"
BENCH_RUN = ("bench", "--numa", "1", "--gpus", "0-1", "--size", "1M", "--samples", "2", "--copies", "2", "-q", *OPTIONS)


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


@pytest.fixture
def node(fake_node: MakeFakeNode) -> FakeNode:
    return fake_node(planted())


def check(text: str, *, what: str) -> None:
    for leak in re.finditer(SECRET, text):
        raise AssertionError(f"{what}: ...{text[max(0, leak.start() - 200) : leak.end() + 100]}...")
    for uuid in (CLUSTER, *(uuid_of(index).removeprefix("GPU-") for index in range(4))):
        assert uuid not in text, what


def environment(node: FakeNode) -> dict[str, str | None]:
    """The node's own, without the private path that the libraries of the test lie in."""
    known = node.environment()
    return {**known, "LD_LIBRARY_PATH": f"{known['LD_LIBRARY_PATH']}:/home/{SECRET}/lib"}


def test_the_secrets_are_there_to_be_found(egmctl: RunEgmctl, node: FakeNode) -> None:
    whole = egmctl("snapshot", "--full", env=environment(node)).out
    for part in (
        f"node-{SECRET}",
        f"6.8.0-{SECRET}-acme",
        f"{SECRET}.service",
        f"/srv/{SECRET}/lib.so",
        f"--token={SECRET}",
        f"/srv/{SECRET},realloc",
        f"x=/home/{SECRET}/y",
        f"/boot/config-6.8.0-{SECRET}-acme: ENOENT",
        uuid_of(0),
        CLUSTER,
    ):
        assert part in whole, part
    assert "TemporaryFilePath" not in whole
    assert "RmMsg" not in whole


@pytest.mark.long
@pytest.mark.parametrize("kind", [TOPO, DOCTOR, BENCH], ids=lambda kind: kind.name)
def test_no_form_of_a_document_holds_one(egmctl: RunEgmctl, node: FakeNode, tmp_path: Path, kind: Kind) -> None:
    command = BENCH_RUN if kind is BENCH else (kind.name,)
    files = {format: tmp_path / f"result{suffix}" for suffix, format in SUFFIXES.items() if format in kind.formats}
    written = [word for file in files.values() for word in ("-o", file)]
    ended = egmctl(*command, *written, "-o", "-", env=environment(node))
    assert ended.code in (0, 1, 3), ended.err
    for format, file in files.items():
        check(file.read_text(), what=format)
    check(ended.out, what="text on standard output")
    check(ended.err, what="standard error")
    document = json.loads(files[Format.JSON].read_text())
    assert document["result"]["machines"][0]["origin"]["redacted"] is True
    if kind is BENCH:
        assert "GPU1: in use by process 4711," in ended.out
    if Format.NAGIOS in kind.formats:
        check(egmctl(*command, "--format", "nagios", env=environment(node)).out, what="nagios")


def test_a_snapshot_holds_none(egmctl: RunEgmctl, node: FakeNode) -> None:
    whole = egmctl("snapshot", env=environment(node)).out
    check(whole, what="snapshot")
    document = json.loads(whole)
    assert document["host"]["kernel"] == "6.8.0"
    assert document["host"]["kernel_command_line"] == {"iommu": "pt", "pci": "kernel_command_line-1"}


@pytest.mark.long
def test_uuids_of_two_documents_of_one_node_still_join(egmctl: RunEgmctl, node: FakeNode) -> None:
    topo = json.loads(egmctl("topo", "--json", env=environment(node)).out)
    doctor = json.loads(egmctl("doctor", "--json", env=environment(node)).out)
    uuids = [gpu["nvml"]["uuid"] for gpu in topo["result"]["machines"][0]["gpus"]]
    assert uuids == [gpu["nvml"]["uuid"] for gpu in doctor["result"]["machines"][0]["gpus"]]
    assert len(set(uuids)) == 4
