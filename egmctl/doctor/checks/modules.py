"""Checks of the driver's kernel modules against the GPUs that they are to drive."""

from __future__ import annotations

from egmctl.doctor.check import Scope, Verdicts, check, known, skip
from egmctl.doctor.findings import fact, failed, passed, unknown
from egmctl.doctor.situation import NO_NVIDIA_GPU
from egmctl.model.finding import Guard
from egmctl.model.host import Driver
from egmctl.model.machine import Machine
from egmctl.model.remedy import Need, as_root
from egmctl.topology.generation import OPEN, PROPRIETARY, only_flavour

_LOOK = "modinfo -F license nvidia"
_INSTALL = {
    OPEN: as_root(
        "Install the open kernel modules of the same driver version (packages nvidia-open, or with -open in their "
        "name) and load them.",
        Need.DRIVER_RELOAD,
        look=_LOOK,
    ),
    PROPRIETARY: as_root(
        "Install the proprietary kernel modules, of the newest driver branch that still has this GPU, and load them.",
        Need.DRIVER_RELOAD,
        look=_LOOK,
    ),
}
_CAUSE = {
    OPEN: "GPUs from Blackwell on, and those with NVLink-C2C, work with the driver's open kernel modules only",
    PROPRIETARY: "the open kernel modules need the GPU System Processor (GSP), which came with Turing",
}


@check("drv.flavour", *Guard, sections=("gpus", "driver"))
def _flavour(machine: Machine, _scope: Scope) -> Verdicts:
    driver, gpus = machine.driver or Driver(), machine.gpus or skip(NO_NVIDIA_GPU)
    if driver.module_flavour is None and driver.modules is not None and "nvidia" not in driver.modules:
        skip("the NVIDIA kernel module is not loaded")
    unread = driver.unread.get("module_flavour")
    flavour = known(driver.module_flavour, "whether the kernel modules are the open ones was not read", unread)
    yield fact("/proc/driver/nvidia/version", f"{flavour} kernel modules")
    for gpu in gpus:
        needed = only_flavour(machine, gpu)
        if needed is None:
            yield unknown("the generation of these GPUs was not read, so that their kernel modules are unknown", gpu)
        elif needed in ("", flavour):
            yield passed(f"the {flavour} kernel modules support these GPUs", gpu)
        else:
            summary = f"the {flavour} kernel modules are loaded, and they do not support this GPU"
            yield failed(summary, _INSTALL[needed], gpu, cause=_CAUSE[needed])
