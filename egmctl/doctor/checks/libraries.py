"""Do NVML and CUDA answer at all? Without them nothing is known of any GPU, whatever the files say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from egmctl.doctor.check import Check, failed, passed, skipped, unknown
from egmctl.doctor.scope import Scope
from egmctl.doctor.situation import in_container
from egmctl.driver.signatures import cause_of
from egmctl.model.finding import Evidence, Finding, Guard, Remedy, on_gpus
from egmctl.model.machine import Driver, Gpu, LibraryFailure, Machine, Reason
from egmctl.topology.access import cuda_failure, nvml_failure

_LOG = "dmesg | grep -iE 'NVRM|Xid'"
_SICK = Remedy(
    text="Look for Xids and driver messages in the kernel log; stop what uses the GPUs, then reset them or reboot.",
    command=_LOG,
    needs_root=True,
)
_BY_NAME: Mapping[str, Remedy] = {
    "NVML_ERROR_DRIVER_NOT_LOADED": Remedy(
        text="Load the driver's kernel module, or install it.", command="modprobe nvidia", needs_root=True
    ),
    "NVML_ERROR_NO_PERMISSION": Remedy(
        text="Let this user use the device nodes (dev.permissions, dev.control-nodes), or run as root.", needs_root=True
    ),
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": Remedy(
        text="Reload the kernel module of the installed driver, or reboot.", needs_root=True
    ),
    "NVML_ERROR_GPU_IS_LOST": Remedy(
        text="A GPU has fallen off the bus: drain the node and power-cycle it.",
        command=_LOG,
        needs_root=True,
        needs_reboot=True,
    ),
    "NVML_ERROR_MEMORY": Remedy(text="Free memory, or raise the memory limit of this cgroup (memory.max)."),
    "NVML_ERROR_INSUFFICIENT_RESOURCES": Remedy(
        text="Free memory, processes or descriptors, or raise their limits (ulimit -a, pids.max, memory.max)."
    ),
}
"""What to do for NVML's errors that say so themselves (nvml.h, nvmlReturn_t)."""


def _answer(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    ours = [gpu for gpu in machine.gpus or () if gpu.pci is None or gpu.pci.driver in (None, "", "nvidia")]
    if not ours:
        yield skipped("the NVIDIA driver has no GPU here" if machine.gpus else "there is no NVIDIA GPU")
        return
    driver = machine.driver or Driver()
    answering = []
    for library, failure, field in (
        ("NVML", nvml_failure(machine), "nvml"),
        ("CUDA", cuda_failure(machine), "cuda"),
    ):
        if failure is not None:
            yield _failed(machine, library, failure, ours)
        elif any(getattr(gpu, field) is not None for gpu in ours):
            answering.append(library)
        elif library == "NVML" and not _lists_none(ours, field):
            yield unknown("whether NVML works is unknown: it was not queried")
    if answering:
        version = driver.driver_version
        seen = (Evidence(source="nvmlSystemGetDriverVersion", value=version),) if version else ()
        yield passed(f"{' and '.join(answering)} work{'s' * (len(answering) == 1)}", evidence=seen)
    elif nvml_failure(machine) is None and cuda_failure(machine) is None and _lists_none(ours, "nvml"):
        yield passed("NVML works but lists no GPU", note="dev.count-consistency judges that")


def _lists_none(gpus: list[Gpu], field: str) -> bool:
    """Say whether the library was asked and answered without any of these GPUs."""
    reasons = [gpu.unread[field].reason for gpu in gpus if field in gpu.unread]
    return bool(reasons) and Reason.NOT_ASKED not in reasons and Reason.NOT_STATED not in reasons


def _failed(machine: Machine, library: str, failure: LibraryFailure, gpus: list[Gpu]) -> Finding:
    about = [gpu for gpu in machine.gpus or () if gpu.bus_id == failure.gpu]
    call = failure.call or f"the child process that queries {library}"
    answer = failure.detail or failure.name or failure.how
    return failed(
        f"{library} {failure.words}: what only it reports is unknown",
        _remedy(machine, library, failure),
        place=on_gpus(about or gpus),
        evidence=(Evidence(source=call, value=answer),),
        cause=_cause(library, failure),
    )


def _cause(library: str, failure: LibraryFailure) -> str:
    if library == "CUDA" and (known := cause_of(failure.call, failure.number)) is not None:
        return known.cause
    match failure.how:
        case "crashed":
            return f"a GPU or the driver is in a state that crashes {library}; nvidia-smi will crash as well"
        case "timed-out":
            return "the driver does not return from that call: a GPU hangs or is being reset"
        case _:
            return ""


def _remedy(machine: Machine, library: str, failure: LibraryFailure) -> Remedy:
    match failure.how:
        case "missing" if in_container(machine):
            return Remedy(text="Start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility.")
        case "missing":
            version = machine.driver.module_version if machine.driver else None
            return Remedy(text=f"Install the libraries of driver {version}." if version else "Install the driver.")
        case "too-old":
            return Remedy(text="Install the extra of egmctl that fits the driver (cu12 or cu13), or a newer driver.")
        case "not-started":
            return Remedy(
                text="Free processes, memory or descriptors for this user and cgroup, or raise their limits "
                "(ulimit -a, pids.max, memory.max)."
            )
    if library == "CUDA" and (known := cause_of(failure.call, failure.number)) is not None:
        return Remedy(text=known.remedy)
    return _BY_NAME.get(failure.name or "", _SICK)


CHECKS = (
    Check(
        id="drv.libraries",
        title="NVML and CUDA work",
        guards=tuple(Guard),
        sections=("gpus", "driver"),
        judge=_answer,
        why="Most facts about a GPU come from NVML, and every CUDA program starts with cuInit. If one of them fails, "
        "crashes, hangs or is missing, other checks have nothing to judge, which is no sign of health.",
        read="nvmlInit and all later NVML calls, in a child process that may crash or hang; even then the failing "
        "call and its GPU are known. CUDA is queried with --active only.",
        fix="The finding names the call. A denied device node (dev.control-nodes), libraries of another version "
        "(drv.versions) and a driver that is not loaded (dev.driver-binding) are reported there; otherwise read the "
        "kernel log.",
    ),
)
