"""Kernel modules of a flavour that a GPU's generation does not work with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from egmctl.doctor.check import EVERYTHING
from egmctl.doctor.runner import CHECKS
from egmctl.facts.gpus import loaded
from egmctl.facts.kernel_log import event
from egmctl.facts.root import Root
from egmctl.model.finding import TOLD, Status
from egmctl.model.host import DeviceNode, LibraryFailure
from egmctl.model.kernel_log import DriverMessage, KernelLog
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from tests.answers import diagnose
from tests.doctor.faults import Fault, changed, healthy
from tests.doctor.machines import patched, run_one, shipped
from tests.fake.sysroot import Tree

FAULTS: dict[str, Fault] = {"drv.flavour": changed("driver", module_flavour="proprietary")}


def one_generation(flavour: str, **generation: Any) -> Machine:
    """An x86 server with GPUs that NVML does not list, of which sysfs has the id; or NVML has the capability."""
    machine = patched(shipped("hgx-h200x4"), "driver", module_flavour=flavour)
    if "compute_capability" in generation:
        return patched(machine, "gpus[*].nvml", **generation)
    unread = {"nvml": Unread(reason=Reason.NOT_PRESENT, detail="")}
    machine = patched(machine, "gpus[*]", nvml=None, cuda=None, unread=unread)
    return patched(machine, "gpus[*].pci", **generation)


@pytest.mark.parametrize(
    ("flavour", "generation", "status"),
    [
        ("open", {"compute_capability": (7, 0)}, Status.FAIL),  # V100
        ("open", {"compute_capability": (7, 5)}, Status.PASS),  # T4
        ("proprietary", {"compute_capability": (9, 0)}, Status.PASS),  # H100
        ("proprietary", {"compute_capability": (10, 0)}, Status.FAIL),  # B200
        ("open", {"compute_capability": (12, 1)}, Status.PASS),  # GB10
        ("open", {"device_id": 0x1DB6}, Status.FAIL),  # V100
        ("open", {"device_id": 0x1EB8}, Status.PASS),  # T4
        ("proprietary", {"device_id": 0x28E1}, Status.PASS),  # RTX 4050 Laptop
        ("proprietary", {"device_id": 0x2901}, Status.FAIL),  # B200
        ("open", {"device_id": None}, Status.UNKNOWN),
    ],
)
def test_each_generation_has_the_modules_that_work_with_it(
    flavour: str, generation: dict[str, Any], status: Status
) -> None:
    assert run_one("drv.flavour", one_generation(flavour, **generation)).status is status


def test_a_flavour_that_was_not_read_is_unknown_and_a_module_that_is_not_loaded_is_none() -> None:
    machine = patched(healthy(), "driver", module_flavour=None)
    assert run_one("drv.flavour", machine).status is Status.UNKNOWN
    assert run_one("drv.flavour", patched(machine, "driver", modules=())).status is Status.SKIP


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("requires use of the NVIDIA open kernel modules.", DriverMessage.NEEDS_OPEN_MODULES),
        ("is not supported by open\\x0aNVRM: nvidia.ko because", DriverMessage.NEEDS_PROPRIETARY_MODULES),
        ("is not supported by the\\x0aNVRM: NVIDIA 550.90.07 driver release.", DriverMessage.NOT_IN_RELEASE),
    ],
)
def test_the_driver_says_so_over_several_lines_of_one_record(lines: str, message: DriverMessage) -> None:
    text = f"NVRM: The NVIDIA GPU 0000:1b:00.0 (PCI ID: 10de:2901)\\x0aNVRM: installed in this system {lines}"
    for record in (text, text.replace("\\x0a", "\n")):
        logged = event(12.0, record)
        assert logged is not None
        assert (logged.message, logged.bus_id) == (message, "0000:1b:00.0")


LEGACY = (
    "NVRM: The NVIDIA NVIDIA GeForce GTX 1050 GPU installed in this system is\\x0aNVRM:  supported through the NVIDIA "
    "580.xx Legacy drivers. Please\\x0aNVRM:  visit http://www.nvidia.com/object/unix.html for more"
)


def test_a_legacy_gpu_in_the_log_is_the_effect_of_the_driver_that_dropped_it() -> None:
    """Alone it is the cause, and names what to install."""
    for record in (LEGACY, LEGACY.replace("\\x0a", "\n"), LEGACY.split("\\x0a")[1]):
        logged = event(12.0, record)
        assert logged is not None
        assert (logged.message, logged.bus_id) == (DriverMessage.LEGACY_DRIVER, None)
    assert logged is not None
    log = KernelLog(source="/dev/kmsg", now_s=100.0, first_s=0.0, events=(logged,))
    machine = patched(one_generation("proprietary", device_id=0x1C81), "", kernel_log=log)
    alone = run_one("kernel.driver-messages", machine)
    assert alone.remedy is not None
    assert "580.xx" in alone.remedy.text
    absent = patched(patched(machine, "gpus[*].pci", driver=""), "gpus[*]", nvml=None, cuda=None)
    absent = patched(absent, "driver", modules=(), module_version=None, nvml_version="13.595.71.05")
    findings = diagnose(absent, EVERYTHING, CHECKS).findings
    assert [finding.explained_by for finding in findings if finding.check == "kernel.driver-messages"] == [
        ("dev.driver-binding",)
    ]


@pytest.mark.parametrize(
    ("device_id", "libraries", "cause"),
    [
        (0x1C81, "13.595.71.05", "driver 595 does not support this GPU: 580 is the last branch that does"),  # GTX 1050
        (0x1DB6, "13.595.71.05", "driver 595 does not support this GPU: 580 is the last branch that does"),  # V100
        (0x102D, "12.535.54.03", "driver 535 does not support this GPU: 470 is the last branch that does"),  # K80
        (0x1C81, "13.580.95.05", "the NVIDIA kernel module is not loaded"),
        (0x1EB8, "13.595.71.05", "the NVIDIA kernel module is not loaded"),  # T4
        (None, "13.595.71.05", "the NVIDIA kernel module is not loaded"),
        (0x1C81, None, "the NVIDIA kernel module is not loaded"),
    ],
)
def test_a_driver_that_has_dropped_a_generation_is_the_cause(
    device_id: int | None, libraries: str | None, cause: str
) -> None:
    versions = {"module_version": None, "driver_version": None, "libcuda_version": None, "nvml_version": libraries}
    machine = patched(one_generation("proprietary", device_id=device_id), "driver", modules=(), **versions)
    finding = run_one("dev.driver-binding", patched(machine, "gpus[*].pci", driver=""))
    assert (finding.status, finding.cause) == (Status.FAIL, cause)


@pytest.mark.parametrize(("link", "modules"), [("", ()), ("nvidia", ()), ("", None)])
def test_a_module_that_is_not_loaded_is_the_one_cause(link: str, modules: tuple[str, ...] | None) -> None:
    """As in the copied files of a POWER9 node, where sysfs has the driver's link and nothing has the driver."""
    findings = diagnose(without_the_driver(link, modules), EVERYTHING, CHECKS).findings
    causes = [finding for finding in findings if finding.status in TOLD and not finding.explained_by]
    assert [finding.check for finding in causes if finding.status is Status.FAIL] == ["dev.driver-binding"]
    assert {"dev.control-nodes", "dev.count-consistency", "drv.libraries"} <= set(causes[0].explains)
    assert causes[0].remedy is not None
    assert "modprobe nvidia" in causes[0].remedy.text
    not_read = causes[0].cause == "whether the NVIDIA kernel module is loaded was not read"
    assert not_read is (modules is None)


def test_a_gpu_bound_to_nvidia_has_its_module_where_the_list_of_modules_was_not_read() -> None:
    assert run_one("dev.driver-binding", without_the_driver("nvidia", None)).status is not Status.FAIL


def test_a_copy_without_sysfs_lists_its_modules_in_proc(tmp_path: Path) -> None:
    Tree(tmp_path).write("/proc/modules", "nvidia_uvm 1 0 - Live 0x0\nxfs 1 0 - Live 0x0\n")
    assert loaded(Root(str(tmp_path)), ("nvidia", "nvidia_uvm")) == ("nvidia_uvm",)


def without_the_driver(link: str, modules: tuple[str, ...] | None) -> Machine:
    absent = Unread(reason=Reason.NOT_PRESENT, detail="/proc/driver/nvidia/version: ENOENT")
    library = LibraryFailure(how="missing", detail="libnvidia-ml.so.1: cannot open shared object file")
    machine = patched(one_generation("proprietary", device_id=0x1DB5), "gpus[*]", node=None, proc=None)
    machine = patched(patched(machine, "gpus[*].pci", driver=link), "host", cpu_model=None, architecture="ppc64le")
    nodes = tuple(
        DeviceNode(path=f"/dev/{name}", exists=False, access="ENOENT") for name in ("nvidiactl", "nvidia-uvm")
    )
    gone = dict.fromkeys(("module_version", "module_flavour", "driver_version", "nvml_version", "libcuda_version"))
    machine = patched(machine, "driver", **gone, modules=modules, nodes=nodes, nvml_failure=library)
    return patched(machine, "driver", unread={"module_version": absent})
