"""Do the driver's libraries work, and do variables of the environment hide GPUs or turn paths off?"""

from __future__ import annotations

import re
from collections.abc import Mapping

from egmctl.doctor.check import Scope, Verdicts, check, known, skip
from egmctl.doctor.findings import as_root, fact, failed, passed, todo, unknown, warned
from egmctl.doctor.situation import NO_NVIDIA_GPU, in_container, loss
from egmctl.driver.signatures import cause_of
from egmctl.model.finding import Confidence, Finding, Guard, Remedy
from egmctl.model.machine import Confinement, Driver, Gpu, LibraryFailure, Machine, Process, Reason
from egmctl.topology.access import Block, cuda_failure, nvml_failure
from egmctl.units import format_size, several

_LOG = "dmesg | grep -iE 'NVRM|Xid'"
_SICK = as_root("Look for Xids in the kernel log; stop what uses the GPUs, then reset them or reboot.", _LOG)
_FREE = todo("Free memory, processes or descriptors, or raise their limits (ulimit -a, pids.max, memory.max).")
_BY_NAME: Mapping[str, Remedy] = {
    "NVML_ERROR_DRIVER_NOT_LOADED": as_root("Load the driver's kernel module, or install it.", "modprobe nvidia"),
    "NVML_ERROR_NO_PERMISSION": as_root("Run as root, or see dev.permissions and dev.control-nodes."),
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": as_root("Reload the kernel module of the installed driver, or reboot."),
    "NVML_ERROR_GPU_IS_LOST": as_root("Drain the node and power-cycle it.", _LOG, reboot=True),
    "NVML_ERROR_MEMORY": _FREE,
    "NVML_ERROR_INSUFFICIENT_RESOURCES": _FREE,
}
"""Remedies for NVML's errors that name their cause (nvml.h, nvmlReturn_t)."""


@check("drv.libraries", *Guard, sections=("gpus", "driver"))
def _answer(machine: Machine, _scope: Scope) -> Verdicts:
    ours = [gpu for gpu in machine.gpus or () if gpu.pci is None or gpu.pci.driver in (None, "", "nvidia")]
    if not ours:
        skip("the NVIDIA driver has no GPU here" if machine.gpus else NO_NVIDIA_GPU)
    failures = {"NVML": nvml_failure(machine), "CUDA": cuda_failure(machine)}
    yield from (_failed(machine, library, failure, ours) for library, failure in failures.items() if failure)
    fields = {"NVML": "nvml", "CUDA": "cuda"}
    answering = [
        library
        for library, field in fields.items()
        if failures[library] is None and any(getattr(gpu, field) is not None for gpu in ours)
    ]
    if answering:
        version = (machine.driver or Driver()).driver_version
        evidence = (fact("nvmlSystemGetDriverVersion", version),) if version else ()
        yield passed(f"{' and '.join(answering)} work{'s' if len(answering) == 1 else ''}", evidence=evidence)
    if "NVML" in answering or failures["NVML"]:
        return
    if not _lists_no_gpu(ours):
        yield unknown("whether NVML works is unknown: it was not queried")
    elif not answering and failures["CUDA"] is None:
        yield passed("NVML works but lists no GPU", note="dev.count-consistency judges that")


def _lists_no_gpu(gpus: list[Gpu]) -> bool:
    """Say whether NVML was asked and answered without any of these GPUs."""
    reasons = [gpu.unread["nvml"].reason for gpu in gpus if "nvml" in gpu.unread]
    return bool(reasons) and Reason.NOT_ASKED not in reasons and Reason.NOT_STATED not in reasons


def _failed(machine: Machine, library: str, failure: LibraryFailure, gpus: list[Gpu]) -> Finding:
    named = [gpu for gpu in machine.gpus or () if gpu.bus_id == failure.gpu]
    version = machine.driver.module_version if machine.driver else None
    call = failure.call or f"the child process that queries {library}"
    signature = cause_of(failure.call, failure.number) if library == "CUDA" else None
    cause = signature.cause if signature else ""
    remedy = todo(signature.remedy) if signature else _BY_NAME.get(failure.name or "", _SICK)
    match failure.how:
        case "missing" if in_container(machine):
            remedy = todo("Start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility.")
        case "missing":
            remedy = todo(f"Install the libraries of driver {version}." if version else "Install the driver.")
        case "too-old":
            remedy = todo("Install the extra of egmctl that fits the driver (cu12 or cu13), or a newer driver.")
        case "not-started":
            remedy = _FREE
        case "crashed":
            cause = cause or f"the state of a GPU or of the driver crashes {library}; nvidia-smi will crash as well"
        case "timed-out":
            cause = cause or "the driver does not return from that call: a GPU hangs or is being reset"
    return failed(
        f"{library} {failure.words}: what only it reports is unknown",
        remedy,
        named or gpus,
        evidence=(fact(call, failure.detail or failure.name or failure.how),),
        cause=cause,
    )


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


NO_ENVIRONMENT = "the environment of that process could not be read"


@check("env.visible-devices", Guard.EGM, Guard.P2P, Guard.IPC, sections=("process",))
def _visible_devices(machine: Machine, _scope: Scope) -> Verdicts:
    environment = known((machine.process or Process()).environment, NO_ENVIRONMENT)
    yield from (fact("environment", f"{name}={environment[name]}") for name in _SHOWN if name in environment)
    text, gpus = environment.get(VISIBLE), machine.gpus or ()
    if text is None:
        yield passed(f"{VISIBLE} is not set: CUDA shows every accessible GPU")
        return
    usable = [gpu for gpu in gpus if loss(machine, gpu) in (None, Block.UNKNOWN)]
    wrong = _first_wrong(text, usable) if usable else None
    if wrong is not None:
        position, entry, reason = wrong
        others = "; numbers count those only, not the node's" if len(usable) < len(gpus) else ""
        yield warned(
            f"{VISIBLE}: entry {position} {reason}; CUDA ignores it and everything after it",
            todo("Name GPUs by UUIDs, or by numbers from 0 among those that can be opened.", f"unset {VISIBLE}"),
            cause=f"{several(len(usable), 'GPU')} can be used from here{others}",
            confidence=Confidence.HIGH if entry else Confidence.MEDIUM,
        )
    else:
        chosen = [part for part in text.split(",") if part.strip()]
        yield passed(
            f"{VISIBLE} chooses {len(chosen)} of {len(usable)} usable GPUs",
            note="use this to choose GPUs where EGM matters: hidden GPUs stay accessible, so their memory can be "
            "imported and EGM routed through them (measured on H200: every kind of import works with the owner hidden)",
        )


def _first_wrong(text: str, usable: list[Gpu]) -> tuple[int, str, str] | None:
    """Return the first entry that names no usable GPU, with its position from 1 and why; ``None`` if there is none."""
    earlier: set[str] = set()
    for position, part in enumerate((part.strip() for part in text.split(",")), start=1):
        if re.fullmatch("[0-9]{1,9}", part, re.ASCII):
            if int(part) >= len(usable):
                return position, part, f"is {int(part)}, the last GPU is {len(usable) - 1}"
        elif part.startswith("GPU-"):
            uuids = [gpu.uuid for gpu in usable]
            if None not in uuids and sum(uuid.startswith(part) for uuid in uuids if uuid) != 1:
                return position, part, "is the UUID of none, or the start of several"
        elif part.startswith("MIG-"):
            continue
        elif text.strip() not in ("", "-1", "NoDevFiles"):
            return position, part, "is neither a number nor a UUID"
        if part in earlier:
            return position, part, "is listed twice, so CUDA shows no GPU"
        earlier.add(part)
    return None


@check("env.bad-cuda-env", Guard.PERF, Guard.P2P, Guard.FABRIC, sections=("process",))
def _bad_environment(machine: Machine, _scope: Scope) -> Verdicts:
    environment = known((machine.process or Process()).environment, NO_ENVIRONMENT)
    harmful = [name for name, (bad, _) in _HARMFUL.items() if name in environment and bad in (None, environment[name])]
    for name in harmful:
        bad, harm = _HARMFUL[name]
        yield warned(
            f"{name} is set: {harm}",
            todo("Unset it, unless it is intended.", f"unset {name}"),
            # The path of a tool stays out of the output.
            evidence=(fact("environment", f"{name}={bad or '(set)'}"),),
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


@check("env.limits", *Guard, sections=("confinement", "gpus"))
def _limits(machine: Machine, _scope: Scope) -> Verdicts:
    confinement, gpus = machine.confinement or Confinement(), machine.gpus or ()
    limits = {**known(confinement.limits, "the limits were not read"), "pids": confinement.pids_left}
    # Root's processes are not counted (setrlimit(2), RLIMIT_NPROC).
    root = confinement.capable("SYS_ADMIN") or confinement.capable("SYS_RESOURCE")
    sources = {"nofile": "RLIMIT_NOFILE", "nproc": "RLIMIT_NPROC", "pids": "pids.max - pids.current", "as": "RLIMIT_AS"}
    for name, source in sources.items():
        value = limits.get(name)
        yield fact(source, "unlimited" if value is not None and value < 0 else value)
    low = False
    for name, (words, letter, docker, unit, least, each) in _LIMITS.items():
        value, needed = limits.get(name), least + each * len(gpus)
        if value is not None and 0 <= value < needed and not (name == "nproc" and root):
            low = True
            by = f"{f'ulimit {letter}' if letter else 'pids.max'}, docker run {docker}"
            yield warned(
                f"{words.format(value)}, too few for CUDA on {several(len(gpus), 'GPU')}",
                todo(
                    f"Raise the limit to {needed} or more ({by}, or {unit} of the systemd unit).",
                    f"ulimit {letter} {max(needed, 1024)}" if letter else None,
                ),
            )
    space, memory = limits.get("as"), sum((gpu.nvml and gpu.nvml.memory_total_bytes) or 0 for gpu in gpus)
    if space is not None and 0 <= space < memory:
        low = True
        yield warned(
            f"the address space is limited to {format_size(space)}, less than the memory of the GPUs",
            todo("Lift the limit: CUDA reserves addresses for all memory.", "ulimit -v unlimited"),
        )
    if not low and any(limits.get(name) is None for name in sources):
        yield unknown("a limit of descriptors, processes or address space was not read")
    elif not low:
        yield passed("descriptors, processes and address space are enough for CUDA")


@check("ns.container", Guard.IPC, sections=("process",))
def _container(machine: Machine, _scope: Scope) -> Verdicts:
    process, confinement = machine.process or Process(), machine.confinement or Confinement()
    signs, capabilities = process.container_signs or (), confinement.capabilities
    yield from (fact("signs of a container", sign) for sign in signs)
    yield fact("/proc/self/status Seccomp", confinement.seccomp)
    yield fact("/proc/self/status CapEff", None if capabilities is None else f"{capabilities:#x}")
    limits = []
    if confinement.uid_map is not None and confinement.uid_map != ((0, 0, 2**32 - 1),):
        limits.append("user namespace")
    if confinement.seccomp == "filter":
        limits.append("a system call filter")
    if not signs and not limits:
        yield passed("this process is not in a container")
    else:
        privileged = signs and confinement.seccomp == "none" and confinement.capable("SYS_ADMIN")
        kind = "a privileged container" if privileged else "a container" if signs else "no container"
        yield passed(f"this process is in {kind}" + (f", with {' and '.join(limits)}" if limits else ""))
