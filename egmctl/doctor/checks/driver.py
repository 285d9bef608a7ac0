"""The driver's parts: do they fit together, and does nothing else hold the GPUs?"""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.doctor.check import Check, failed, passed, skipped, unknown
from egmctl.doctor.scope import Scope
from egmctl.model.finding import Evidence, Finding, Guard, Remedy
from egmctl.model.machine import Driver, Machine


def _versions(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    driver = machine.driver or Driver()
    module, library = driver.module_version, driver.driver_version
    evidence = (
        Evidence(source="/proc/driver/nvidia/version", value=module or "not read"),
        Evidence(source="nvmlSystemGetDriverVersion", value=library or driver.nvml_error or "not read"),
    )
    if driver.nvml_error == "NVML_ERROR_LIB_RM_VERSION_MISMATCH" or (module and library and module != library):
        yield failed(
            f"the kernel module is {module or 'of another version'}, the libraries are {library or 'of another one'}",
            Remedy(text="Reload the kernel module of the installed driver, or reboot.", needs_root=True),
            evidence=evidence,
            cause="the driver was updated while its old kernel module stayed loaded, or a container brings its own "
            "libraries",
        )
    elif module and library:
        yield passed(f"kernel module and libraries are both {module}", evidence=evidence)
    elif module is None and driver.modules is not None and "nvidia" not in driver.modules:
        yield skipped("the NVIDIA kernel module is not loaded", evidence=evidence)
    else:
        yield unknown("not both versions could be read", evidence=evidence)


CHECKS = (
    Check(
        id="drv.versions",
        title="kernel module and libraries of one version",
        guards=tuple(Guard),
        sections=("driver",),
        judge=_versions,
        why="NVML and CUDA refuse to start where the loaded kernel module is of another version than they are "
        "(NVML_ERROR_LIB_RM_VERSION_MISMATCH, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH): nothing works on any GPU.",
        read="/proc/driver/nvidia/version against nvmlSystemGetDriverVersion.",
        fix="Stop what uses the GPUs and reload the module (modprobe -r, modprobe), or reboot. In a container, "
        "use the host's libraries as the NVIDIA Container Toolkit mounts them.",
    ),
)
