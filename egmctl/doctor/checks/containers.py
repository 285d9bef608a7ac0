"""The check that this host can give its GPUs to containers."""

from __future__ import annotations

from collections.abc import Sequence

from egmctl.doctor.check import Scope, Verdicts, check, known, skip
from egmctl.doctor.findings import fact, noted, passed, unknown, warned
from egmctl.doctor.situation import NO_NVIDIA_GPU, in_container
from egmctl.model.finding import Guard
from egmctl.model.host import CdiSpecification, ContainerEngine, Driver, System
from egmctl.model.machine import Machine
from egmctl.model.remedy import Remedy, as_root

_GENERATE = "Write it anew after each update of the driver, and start the containers again."
_REFRESH = "Restart nvidia-cdi-refresh, which writes this file, and start the containers again."
_WRITER = (
    "Restart what wrote it (NVIDIA's GPU Operator, device plugin or DRA driver), and start the containers again: "
    "another program's file would destroy it."
)
_BY_TOOLKIT = tuple(f"{folder}/nvidia.{kind}" for folder in ("/etc/cdi", "/var/run/cdi") for kind in ("yaml", "json"))
"""The files that ``nvidia-ctk cdi generate`` may write."""
_BY_REFRESH = "/var/run/cdi/nvidia.yaml"
"""The file that nvidia-cdi-refresh.service writes."""
_CONFIGURE = (
    "Where containers are to have GPUs, configure the engine and restart it (nvidia-ctk runtime configure "
    "--runtime={}), or generate a CDI specification. A restart of the engine may end containers."
)


@check("ns.gpu-containers", Guard.IPC, sections=("gpus", "driver", "system"), wants=("process",))
def _gpu_containers(machine: Machine, _scope: Scope) -> Verdicts:
    if not machine.gpus:
        skip(NO_NVIDIA_GPU)
    if in_container(machine):
        skip("this is a container: what gives it GPUs is on its host")
    containers = (machine.system or System()).containers
    if containers is None:
        skip("recorded without what gives containers GPUs")
    driver, toolkit = machine.driver or Driver(), known(containers.toolkit, "whether nvidia-ctk is installed")
    specifications = known(containers.specifications, "the CDI specifications were not read")
    engines = known(containers.engines, "the running container engines were not read")
    yield fact("nvidia-ctk", "installed" if toolkit else "not installed")
    for specification in specifications:
        yield fact(specification.path, ", ".join(specification.driver_versions or ()) or "not read")
    for engine in engines:
        words = {True: "NVIDIA's runtime", False: "no NVIDIA runtime", None: "not read"}[engine.nvidia_runtime]
        yield fact(engine.name, words)
    stale = _stale(driver, specifications)
    for specification in stale:
        versions = ", ".join(specification.driver_versions or ())
        summary = f"{specification.path} is of driver {versions}, and {driver.module_version} is loaded"
        cause = (
            "containers get GPUs and no libraries, or do not start: the specification names files that an update of "
            "the driver removed (https://github.com/podman-container-tools/podman/issues/26233)"
        )
        yield warned(summary, _renewal(specification.path, refresh=containers.cdi_refresh is True), cause=cause)
    if not stale:
        yield from _ways(driver, specifications, engines, has_toolkit=toolkit)


def _stale(driver: Driver, specifications: Sequence[CdiSpecification]) -> list[CdiSpecification]:
    """Return the specifications of another driver than the loaded one.

    After an update of the driver its old module stays loaded, and a new specification is of the new files.
    """
    if driver.module_version is None:
        return []
    installed = {driver.module_version, driver.driver_version}
    return [each for each in specifications if each.driver_versions and installed.isdisjoint(each.driver_versions)]


def _ways(
    driver: Driver, specifications: Sequence[CdiSpecification], engines: Sequence[ContainerEngine], *, has_toolkit: bool
) -> Verdicts:
    """Yield the finding on how containers get GPUs, if no specification is stale: the first condition that holds."""
    without = [engine.name for engine in engines if engine.nvidia_runtime is False]
    by_runtime = any(engine.nvidia_runtime for engine in engines)
    if any(specification.driver_versions is None for specification in specifications):
        yield unknown("a CDI specification was not read")
    elif specifications and driver.module_version is None:
        yield unknown("whether the CDI specifications are of the loaded driver: its version was not read")
    elif specifications or (has_toolkit and by_runtime):
        yield passed("containers can be given the GPUs")
    elif not has_toolkit:
        skip("the NVIDIA Container Toolkit is not installed")
    elif not engines:
        skip("no container engine runs here, and no CDI specification names a libcuda")
    elif len(without) == len(engines):
        cause = "the toolkit is installed; the engine has neither its runtime nor a CDI specification"
        remedy = as_root(_CONFIGURE.format(without[0]), look="nvidia-ctk cdi list")
        yield noted(f"{' and '.join(without)} cannot give containers GPUs", remedy=remedy, cause=cause)
    else:
        yield unknown("the configuration of a container engine was not read")


def _renewal(path: str, *, refresh: bool) -> Remedy:
    """Return the remedy for a stale specification, with a command only for a file that the command's program writes."""
    look = "nvidia-ctk cdi list"
    if refresh and path == _BY_REFRESH:
        return as_root(_REFRESH, look=look, run="systemctl restart nvidia-cdi-refresh")
    if path in _BY_TOOLKIT:
        return as_root(_GENERATE, look=look, run=f"nvidia-ctk cdi generate --output={path}")
    return as_root(_WRITER, look=look)
