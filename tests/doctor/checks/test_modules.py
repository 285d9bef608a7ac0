"""Kernel modules of a flavour that a GPU's generation does not work with."""

from __future__ import annotations

from typing import Any

import pytest

from egmctl.facts.kernel_log import event
from egmctl.model.finding import Status
from egmctl.model.kernel_log import DriverMessage
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from tests.doctor.faults import Fault, changed, healthy
from tests.doctor.machines import patched, run_one, shipped

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
    ],
)
def test_the_driver_says_so_over_several_lines_of_one_record(lines: str, message: DriverMessage) -> None:
    text = f"NVRM: The NVIDIA GPU 0000:1b:00.0 (PCI ID: 10de:2901)\\x0aNVRM: installed in this system {lines}"
    for record in (text, text.replace("\\x0a", "\n")):
        logged = event(12.0, record)
        assert logged is not None
        assert (logged.message, logged.bus_id) == (message, "0000:1b:00.0")


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
