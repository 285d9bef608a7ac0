"""Do the driver's libraries work, and do variables of the environment hide GPUs or turn paths off?"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from egmctl.doctor.check import Check, Scope, failed, passed, skipped, unknown, warned
from egmctl.doctor.situation import in_container, loss
from egmctl.driver.signatures import cause_of
from egmctl.model.finding import Confidence, Evidence, Finding, Guard, Remedy, on_gpus
from egmctl.model.machine import Confinement, Driver, Gpu, LibraryFailure, Machine, Process, Reason
from egmctl.topology.access import Block, cuda_failure, nvml_failure
from egmctl.units import format_size, several

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


VISIBLE = "CUDA_VISIBLE_DEVICES"
_SHOWN = (
    VISIBLE,
    "CUDA_DEVICE_ORDER",
    "GPU_DEVICE_ORDINAL",
    "NVIDIA_VISIBLE_DEVICES",
    "SLURM_JOB_GPUS",
    "SLURM_STEP_GPUS",
    "SLURM_GPU_BIND",
    "SLURM_GPUS_PER_TASK",
)

_HARMFUL = {
    "CUDA_LAUNCH_BLOCKING": ("1", "every launch waits for the one before, so nothing overlaps"),
    "CUDA_INJECTION64_PATH": (None, "a tool is loaded into every CUDA process"),
    "NCCL_P2P_DISABLE": ("1", "NCCL uses neither NVLink nor PCIe between GPUs"),
    "NCCL_SHM_DISABLE": ("1", "NCCL goes over the network within a node where it has no P2P"),
    "NCCL_CUMEM_ENABLE": ("0", "NCCL allocates without cuMem: no fabric handles, no multi-node NVLink"),
    "NCCL_CUMEM_HOST_ENABLE": ("0", "NCCL's host buffers are not HOST_NUMA memory"),
    "NCCL_MNNVL_ENABLE": ("0", "NCCL does not use NVLink between nodes"),
}
"""Variable: the value that does harm (``None``: any) and the harm. CUDA C++ Programming Guide, "CUDA Environment
Variables"; NCCL user guide, "Environment Variables"."""


def _visible_devices(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    process = machine.process or Process()
    if process.environment is None:
        yield unknown("the environment of that process could not be read")
        return
    environment = process.environment
    evidence = tuple(
        Evidence(source="environment", value=f"{name}={environment[name]}") for name in _SHOWN if name in environment
    )
    text = environment.get(VISIBLE)
    if text is None:
        yield passed(f"{VISIBLE} is not set: CUDA shows every accessible GPU", evidence=evidence)
        return
    usable = [gpu for gpu in machine.gpus or () if loss(machine, gpu) in (None, Block.UNKNOWN)]
    wrong = _first_wrong(text, usable)
    if wrong is not None and usable:
        position, entry, why = wrong
        yield warned(
            f"{VISIBLE}: entry {position} {why}; CUDA ignores it and everything after it",
            Remedy(
                text="Name GPUs by UUIDs, or by numbers from 0 among those that this process may open.",
                command=f"unset {VISIBLE}",
            ),
            evidence=evidence,
            cause=f"{several(len(usable), 'GPU')} can be used from here"
            + ("; numbers count those only, not the node's" if len(usable) < len(machine.gpus or ()) else ""),
            confidence=Confidence.HIGH if entry else Confidence.MEDIUM,
        )
        return
    yield passed(
        f"{VISIBLE} chooses {len([part for part in text.split(',') if part.strip()])} of {len(usable)} usable GPUs",
        evidence=evidence,
        note="use this to choose GPUs where EGM matters: hidden GPUs stay accessible, so their memory can be imported "
        "and EGM routed through them (measured on H200: every kind of import works with the owner hidden)",
    )


def _first_wrong(text: str, usable: list[Gpu]) -> tuple[int, str, str] | None:
    """Return the first entry that names no usable GPU, with its position from 1 and why; ``None`` if there is none."""
    seen: set[str] = set()
    for position, part in enumerate((part.strip() for part in text.split(",")), start=1):
        if re.fullmatch("[0-9]{1,9}", part, re.ASCII):
            if int(part) >= len(usable):
                return position, part, f"is {int(part)}, the last GPU is {len(usable) - 1}"
        elif part.startswith("GPU-"):
            known = [gpu.uuid for gpu in usable]
            if None not in known and sum(uuid.startswith(part) for uuid in known if uuid) != 1:
                return position, part, "is the UUID of none, or the start of several"
        elif part.startswith("MIG-"):
            continue
        elif text.strip() not in ("", "-1", "NoDevFiles"):
            return position, part, "is neither a number nor a UUID"
        if part in seen:
            return position, part, "is listed twice, so CUDA shows no GPU"
        seen.add(part)
    return None


def _bad_environment(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    process = machine.process or Process()
    if process.environment is None:
        yield unknown("the environment of that process could not be read")
        return
    harmful = {
        name: harm
        for name, (value, harm) in _HARMFUL.items()
        if name in process.environment and value in (None, process.environment[name])
    }
    for name, harm in harmful.items():
        # The path of a tool stays out of the output.
        value = process.environment[name] if _HARMFUL[name][0] is not None else "(set)"
        yield warned(
            f"{name} is set: {harm}",
            Remedy(text="Unset it, unless it is intended.", command=f"unset {name}"),
            evidence=(Evidence(source="environment", value=f"{name}={value}"),),
        )
    if not harmful:
        yield passed("no environment variable slows down or disables CUDA or NCCL")


_LIMITS = {
    "nofile": ("open files are limited to {}", "-n", "--ulimit nofile=65536", "LimitNOFILE=", 64, 32),
    "nproc": ("processes of this user are limited to {}", "-u", "--ulimit nproc=65536", "LimitNPROC=", 64, 16),
    "pids": ("the cgroup allows {} more processes and threads", "", "--pids-limit=-1", "TasksMax=", 16, 4),
}
"""By limit: what it limits, its letter of ulimit, how docker and systemd set it, and how many CUDA needs: at least, and
for each GPU more. Chosen: on two H200 48 descriptors were too few and 32 processes enough."""


def _limits(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    confinement = machine.confinement or Confinement()
    if confinement.limits is None:
        yield unknown("the limits were not read")
        return
    values = {**confinement.limits, "pids": confinement.pids_left}
    # Root's processes are not counted (setrlimit(2), RLIMIT_NPROC).
    exempt = {"nproc"} if confinement.capable("SYS_ADMIN") or confinement.capable("SYS_RESOURCE") else set[str]()
    evidence = tuple(
        Evidence(source=source, value="not read" if value is None else "unlimited" if value < 0 else str(value))
        for source, value in (
            ("RLIMIT_NOFILE", values.get("nofile")),
            ("RLIMIT_NPROC", values.get("nproc")),
            ("pids.max - pids.current", values.get("pids")),
            ("RLIMIT_AS", values.get("as")),
        )
    )
    low = False
    for name, (words, letter, docker, unit, least, each) in _LIMITS.items():
        value, needed = values.get(name), least + each * len(machine.gpus or ())
        if value is not None and 0 <= value < needed and name not in exempt:
            low = True
            by = f"ulimit {letter}, docker run {docker}" if letter else f"pids.max, docker run {docker}"
            yield warned(
                f"{words.format(value)}, too few for CUDA on {several(len(machine.gpus or ()), 'GPU')}",
                Remedy(
                    text=f"Raise the limit to {needed} or more ({by}, or {unit} of the systemd unit).",
                    command=f"ulimit {letter} {max(needed, 1024)}" if letter else None,
                ),
                evidence=evidence,
            )
    space = values.get("as")
    memory = sum((gpu.nvml and gpu.nvml.memory_total_bytes) or 0 for gpu in machine.gpus or ())
    if space is not None and 0 <= space < memory:
        low = True
        yield warned(
            f"the address space is limited to {format_size(space)}, less than the memory of the GPUs",
            Remedy(text="Lift the limit: CUDA reserves addresses for all memory.", command="ulimit -v unlimited"),
            evidence=evidence,
        )
    if not low:
        if any(values.get(name) is None for name in (*_LIMITS, "as")):
            yield unknown("a limit of descriptors, processes or address space was not read", evidence=evidence)
        else:
            yield passed("descriptors, processes and address space are enough for CUDA", evidence=evidence)


def _container(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    process, confinement = machine.process or Process(), machine.confinement or Confinement()
    signs = process.container_signs or ()
    words = []
    if confinement.uid_map is not None and confinement.uid_map != ((0, 0, 2**32 - 1),):
        words.append("user namespace")
    if confinement.seccomp == "filter":
        words.append("a system call filter")
    privileged = bool(signs) and confinement.seccomp == "none" and confinement.capable("SYS_ADMIN")
    evidence = (
        *(Evidence(source="signs of a container", value=sign) for sign in signs),
        *(
            Evidence(source=name, value=value)
            for name, value in (
                ("/proc/self/status Seccomp", confinement.seccomp),
                (
                    "/proc/self/status CapEff",
                    None if confinement.capabilities is None else f"{confinement.capabilities:#x}",
                ),
            )
            if value is not None
        ),
    )
    if not signs and not words:
        yield passed("this process is not in a container", evidence=evidence)
        return
    kind = "a privileged container" if privileged else "a container" if signs else "no container"
    yield passed(f"this process is in {kind}" + (f", with {' and '.join(words)}" if words else ""), evidence=evidence)


CHECKS = (
    Check("drv.libraries", _answer, guards=tuple(Guard), sections=("gpus", "driver")),
    Check("env.visible-devices", _visible_devices, guards=(Guard.EGM, Guard.P2P, Guard.IPC), sections=("process",)),
    Check("env.bad-cuda-env", _bad_environment, guards=(Guard.PERF, Guard.P2P, Guard.FABRIC), sections=("process",)),
    Check("env.limits", _limits, guards=tuple(Guard), sections=("confinement", "gpus")),
    Check("ns.container", _container, guards=(Guard.IPC,), sections=("process",)),
)
