"""Checks that all GPUs are present, bound to the driver and listed by the libraries."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from egmctl.doctor.check import Scope, Verdicts, check, findings_on, skip
from egmctl.doctor.findings import fact, failed, noted, passed, unknown, warned
from egmctl.doctor.situation import IN_A_GUEST, NO_NVIDIA_GPU, lost, requested
from egmctl.model.finding import Confidence, Evidence, Finding, Guard, Place, PlaceKind, on_gpus
from egmctl.model.gpu import Gpu
from egmctl.model.host import Driver
from egmctl.model.machine import Machine
from egmctl.model.record import Reason
from egmctl.model.remedy import GPUS, Need, Remedy, as_root, todo
from egmctl.topology.access import Block, Obstacle, Step, classify, elsewhere, nvml_failure
from egmctl.topology.egm_mode import EgmMode, all_handed_over, egm_mode, handed_over
from egmctl.topology.generation import installed_branch, last_branch
from egmctl.units import several

_WORDS = {
    Step.PCI: "on PCI",
    Step.DRIVER: "driver",
    Step.NODE: "device node",
    Step.ACCESS: "accessible",
    Step.NVML: "NVML",
    Step.CUDA: "CUDA",
}
_ABSENT = as_root("Power-cycle the node; replace a GPU that stays away from PCI.", Need.REBOOT, look="lspci -d 10de:")
_RESET = as_root(
    "End what uses this GPU and reset it; if NVML still says so, replace it.",
    Need.GPU_RESET,
    run=f"nvidia-smi --gpu-reset -i {GPUS}",
)
_POWER = as_root("Power-cycle the drained node; if the GPU stays away, replace it.", Need.REBOOT)
_KERNEL_LOG = as_root(
    "Look for Xid and RmInitAdapter in the kernel log: what they say decides.", look="dmesg | grep -iE 'NVRM|Xid'"
)

_CALLED_LOST = "the driver still lists it and answers some calls from memory; the kernel log often has Xid 79"
_OWN_CHECK = {
    Block.OFF_THE_BUS: "dev.fell-off-bus",
    Block.NOT_BOUND: "dev.driver-binding",
    Block.EXCLUDED: "dev.excluded",
    Block.DEVICE_CGROUP: "dev.cgroup-restricted",
    Block.NVML_FAILED: "drv.libraries",
    Block.CUDA_FAILED: "drv.libraries",
    **dict.fromkeys((Block.NOT_IN_CONTAINER, Block.NO_DEVICE_NODE, Block.MASKED), "dev.nodes-missing"),
    **dict.fromkeys((Block.NOT_A_DEVICE, Block.STALE_NODE, Block.NO_PERMISSION, Block.NODEV), "dev.permissions"),
}
"""The check that reports each reason why a GPU is lost. ``dev.count-consistency`` fails for all other reasons."""


@check("dev.count-consistency", *Guard)
def _count(machine: Machine, scope: Scope) -> Verdicts:
    gpus = machine.gpus or ()
    counts = _funnel(machine, gpus)
    line = " > ".join(f"{'not asked' if number is None else number} {_WORDS[step]}" for step, number in counts.items())
    yield fact("PCI > driver > device node > accessible > NVML > CUDA", line)
    lost = {gpu.bus_id: obstacle for gpu in gpus if (obstacle := classify(machine, gpu)) is not None}
    lost_gpus = [gpu for gpu in gpus if gpu.bus_id in lost]
    usable = len(gpus) - len(lost)
    unclear = elsewhere(machine) and any(obstacle.block is Block.UNKNOWN for obstacle in lost.values())
    faults = [*_unexplained(machine, scope, lost), *_listed_by_cuda_only(machine, lost)]
    expected = scope.expectation.gpus or 0
    if usable < expected:
        pci_count = counts[Step.PCI]
        absent = pci_count is not None and pci_count < expected
        remedy = _ABSENT if absent else todo("The other dev.* checks say where each was lost and what to do.")
        faults.append(failed(f"{usable} of the {expected} expected GPUs can be used from here", remedy, cause=line))
    yield from faults
    if faults:
        return
    if not gpus:
        skip(NO_NVIDIA_GPU)
    elif not lost:
        yield passed(f"{'all ' if len(gpus) > 1 else ''}{several(len(gpus), 'GPU')} can be used from here")
    elif all_handed_over(machine) and not any(requested(machine, scope, gpu) for gpu in gpus):
        yield noted("no GPU can be used from here: this node gives them to virtual machines", gpus, remedy=IN_A_GUEST)
    elif not usable and not unclear:
        causes = dict.fromkeys(obstacle.cause for obstacle in lost.values())
        remedy = todo(f"See {_checks_of(lost.values())}.")
        yield failed("no GPU can be used from here", remedy, gpus, cause="; ".join(causes))
    else:
        yield (unknown if unclear else noted)(
            f"{usable} of {len(gpus)} GPUs can be used from here",
            lost_gpus,
            note=f"{on_gpus(lost_gpus).label}: see {_checks_of(lost.values())}",
        )


def _funnel(machine: Machine, gpus: Iterable[Gpu]) -> dict[Step, int | None]:
    """Return the number of GPUs that pass each step; ``None`` for a library that was not queried or did not respond."""
    obstacles = [classify(machine, gpu) for gpu in gpus]
    reached = [Step.WHOLE if obstacle is None else obstacle.block.step for obstacle in obstacles]
    counts: dict[Step, int | None] = {
        step: sum(step_lost > step or step is Step.PCI for step_lost in reached)
        for step in (Step.PCI, Step.DRIVER, Step.NODE, Step.ACCESS)
    }
    for step, library in ((Step.NVML, "nvml"), (Step.CUDA, "cuda")):
        listed = sum(getattr(gpu, library) is not None and not _is_called_lost(gpu) for gpu in gpus)
        # A library that was queried and does not list a GPU leaves NOT_PRESENT as the reason.
        queried = listed or any(gpu.reason_of(library) is Reason.NOT_PRESENT for gpu in gpus)
        counts[step] = listed if queried and not elsewhere(machine) else None
    return counts


def _is_called_lost(gpu: Gpu) -> bool:
    """Return whether NVML lists a GPU and calls it lost."""
    return gpu.nvml is not None and bool(gpu.nvml.lost_calls)


def _checks_of(obstacles: Iterable[Obstacle]) -> str:
    names = {**_OWN_CHECK, Block.NOT_SEEN_BY_CUDA: "gpu.mig"}
    return ", ".join(dict.fromkeys(names.get(obstacle.block, "dev.cgroup-restricted") for obstacle in obstacles))


def _unexplained(machine: Machine, scope: Scope, lost: Mapping[str, Obstacle]) -> Iterator[Finding]:
    """Yield a failure for each reason, not reported by another check, why GPUs are lost."""
    groups: dict[Block, list[Gpu]] = {}
    for gpu in machine.gpus or ():
        obstacle = lost.get(gpu.bus_id)
        if obstacle is None or obstacle.block in _OWN_CHECK:
            continue
        # CUDA gives a process one MIG instance, of one GPU (MIG user guide).
        hidden_by_mig = obstacle.block is Block.NOT_SEEN_BY_CUDA and gpu.nvml is not None and gpu.nvml.mig_mode
        # dev.cgroup-restricted reports GPUs whose access by another process is unknown.
        is_hidden = obstacle.block is Block.UNKNOWN and elsewhere(machine)
        if not is_hidden and (not hidden_by_mig or requested(machine, scope, gpu)):
            groups.setdefault(obstacle.block, []).append(gpu)
    for block, gpus in groups.items():
        yield _lost(block, gpus, lost[gpus[0].bus_id])


def _listed_by_cuda_only(machine: Machine, lost: Mapping[str, Obstacle]) -> Iterator[Finding]:
    """Yield a failure for GPUs that CUDA lists but a working NVML does not, so that their state is unknown."""
    gpus = [gpu for gpu in machine.gpus or () if gpu.cuda is not None and gpu.nvml is None]
    gpus = [gpu for gpu in gpus if gpu.bus_id not in lost]
    gpus = [gpu for gpu in gpus if gpu.reason_of("nvml") not in (None, Reason.NOT_ASKED, Reason.NOT_STATED)]
    if gpus and nvml_failure(machine) is None and not elsewhere(machine):
        yield failed("CUDA lists it but NVML does not", _KERNEL_LOG, gpus, evidence=_reasons(gpus, "nvml"))


def _lost(block: Block, gpus: list[Gpu], stopped: Obstacle) -> Finding:
    summary, remedy, library = f"cannot be used from here: {stopped.cause}", _KERNEL_LOG, "nvml"
    match block:
        case Block.NOT_LISTED:
            summary = "NVML does not list it, though the driver has it and its device node is accessible"
        case Block.GPU_LOST:
            summary, remedy = "NVML counts it and cannot open it", _POWER
        case Block.CALLED_LOST:
            return failed("NVML calls it lost", _POWER, gpus, evidence=_lost_calls(gpus), cause=_CALLED_LOST)
        case Block.RESET_REQUIRED:
            return failed("NVML says that it needs a reset", _RESET, gpus, evidence=_lost_calls(gpus))
        case Block.NOT_SEEN_BY_CUDA:
            summary, library = "NVML lists it but CUDA does not", "cuda"
            remedy = _hidden_from_cuda(gpus)
    return failed(summary, remedy, gpus, evidence=_reasons(gpus, library), confidence=Confidence.LOW)


def _lost_calls(gpus: list[Gpu]) -> tuple[Evidence, ...]:
    """Return as evidence the calls about GPUs that ended because they are lost, up to four of each."""
    return tuple(
        fact(f"{call} (GPU{gpu.index})", error)
        for gpu in gpus
        for call, error in list(((gpu.nvml and gpu.nvml.lost_calls) or {}).items())[:4]
    )


def _hidden_from_cuda(gpus: list[Gpu]) -> Remedy:
    """Return where to look for why CUDA does not list GPUs: at the modes that hide one, if it is in one."""
    listed = [gpu.nvml for gpu in gpus if gpu.nvml is not None]
    checks = {
        "gpu.mig": any(nvml.mig_mode for nvml in listed),
        "gpu.compute-mode": any(nvml.compute_mode == "prohibited" for nvml in listed),
        "fabric.state": any(nvml.fabric and nvml.fabric.state in ("not-started", "in-progress") for nvml in listed),
    }
    names = [name for name, applies in checks.items() if applies]
    return todo(f"See {' and '.join(names)}.") if names else _KERNEL_LOG


def _reasons(gpus: list[Gpu], library: str) -> tuple[Evidence, ...]:
    reasons = {gpu.bus_id: gpu.unread[library] for gpu in gpus if library in gpu.unread}
    return tuple(fact(library.upper(), f"{bus_id}: {unread.detail}") for bus_id, unread in reasons.items())


@check("dev.fell-off-bus", *Guard)
def _off_the_bus(machine: Machine, scope: Scope) -> Verdicts:
    gpus, silent = machine.gpus or (), lost(machine, Block.OFF_THE_BUS)
    reference = scope.expectation.reference
    present = {gpu.bus_id for gpu in gpus}
    missing = tuple(gpu.bus_id for gpu in (reference.gpus if reference else None) or () if gpu.bus_id not in present)
    for gpu in gpus:
        if gpu in silent:
            yield failed(
                "fell off the PCI bus: its configuration space reads all ones",
                _POWER,
                gpu,
                cause="the link is down; the kernel log has Xid 79, or errors of its PCIe port (AER)",
            )
        elif gpu.pci is None or not gpu.pci.responds:
            yield unknown("whether they answer on the PCI bus: sysfs was not read", gpu)
        elif not silent and not missing:
            yield passed("the GPUs answer on the PCI bus", gpu)
    if missing:
        sentence = f"not on the PCI bus, and the expected machine has it: {', '.join(missing)}"
        cause = "it was removed, or its link did not come up at boot"
        yield failed(sentence, _POWER, Place(kind=PlaceKind.GPU, ids=missing), cause=cause)
    elif not gpus:
        skip(NO_NVIDIA_GPU)


_WHY_REFUSED = "Look in the kernel log for why the driver refused it."
_REFUSED = {
    "proprietary": "GPUs from Blackwell on need the open kernel modules (nvidia-open), and these are the others. ",
    "open": "GPUs before Turing need the proprietary kernel modules, and these are the open ones. ",
}
"""By the flavour of the loaded modules, the generations that they refuse: of a GPU that no driver has, sysfs has its id
only."""


@check("dev.driver-binding", *Guard)
def _binding(machine: Machine, scope: Scope) -> Verdicts:
    bound = [gpu for gpu in machine.gpus or () if gpu.pci is not None and gpu.pci.driver is not None]
    unbound = lost(machine, Block.NOT_BOUND)
    for gpu in unbound:
        yield from findings_on(gpu, _not_bound(machine, scope, gpu))
    if not unbound:
        yield passed("every GPU is bound to the driver nvidia", bound or skip(NO_NVIDIA_GPU))


def _not_bound(machine: Machine, scope: Scope, gpu: Gpu) -> Verdicts:
    driver = (gpu.pci and gpu.pci.driver) or ""
    text = f"bound to {driver}, not to nvidia" if driver else "no kernel driver is bound"
    if driver == "nvidia":
        # Only a partial copy of a node's files has the link without the module.
        text = "the NVIDIA kernel module, to which it is bound, is not loaded"
    yield fact(f"/sys/bus/pci/devices/{gpu.bus_id}/driver", driver or "none")
    if handed_over(gpu):
        remedy = as_root(f"Once no virtual machine has it, unbind it from {driver} and bind it to nvidia.")
        cause = "it is reserved for a virtual machine"
        if all_handed_over(machine):
            has_egm = egm_mode(machine).mode is EgmMode.CARVED_OUT
            cause = f"this node gives its GPUs {'and EGM ' if has_egm else ''}to virtual machines"
        if not requested(machine, scope, gpu):
            if all_handed_over(machine):
                yield noted(cause, remedy=IN_A_GUEST, cause=text, blocks=tuple(Guard))
            else:
                yield noted(text, remedy=remedy, cause=cause)
            return
        text += ", but it is required (--gpus, --expect)"
    elif driver not in ("", "nvidia"):
        remedy = as_root(f"Keep {driver} from loading (modprobe.blacklist={driver}), and reboot.", Need.REBOOT)
        cause = "another driver took it first"
    elif (last := _dropped(machine, gpu)) is not None:
        branch = f"Install driver {last}, with its proprietary kernel modules, and load it."
        remedy = as_root(branch, look="dmesg | grep -i NVRM")
        cause = f"driver {installed_branch(machine)} does not support this GPU: {last} is the last branch that does"
    elif "nvidia" in ((machine.driver or Driver()).modules or ()):
        flavour = (machine.driver or Driver()).module_flavour
        remedy = as_root(f"{_REFUSED.get(flavour or '', '')}{_WHY_REFUSED}", look="dmesg | grep -i NVRM")
        cause = "the module is loaded but did not bind to it"
    else:
        remedy = as_root("Load the driver's kernel module, or install it.", run="modprobe nvidia")
        cause = "/proc/driver/nvidia is not there" if driver else "the NVIDIA kernel module is not loaded"
        if (machine.driver or Driver()).modules is None:
            cause = "whether the NVIDIA kernel module is loaded was not read"
    yield failed(text, remedy, cause=cause)


def _dropped(machine: Machine, gpu: Gpu) -> int | None:
    """Return the last driver branch with this GPU if a newer one is installed; else ``None``."""
    last, installed = last_branch(gpu), installed_branch(machine)
    return last if last is not None and installed is not None and installed > last else None


@check("dev.excluded", Guard.P2P, Guard.EGM)
def _excluded(machine: Machine, scope: Scope) -> Verdicts:
    gpus = machine.gpus or ()
    parameters = (machine.driver or Driver()).module_parameters or {}
    excluded = [gpu for gpu in gpus if gpu.proc is not None and gpu.proc.excluded]
    for name in ("ExcludedGpus", "GpuBlacklist"):
        if parameters.get(name):
            yield fact(f"NVreg_{name}", parameters[name])
    if excluded:
        required = [gpu for gpu in excluded if requested(machine, scope, gpu)]
        text = "the administrator excluded it: other GPUs can use it neither as a peer nor as an EGM route"
        if required:
            text = f"the administrator excluded it, but {on_gpus(required).label} is required (--gpus, --expect)"
        for gpu in excluded:
            yield fact(f"/proc/driver/nvidia/gpus/{gpu.bus_id}/information", "GPU Excluded: Yes")
        option = "If it is healthy, take it out of NVreg_ExcludedGpus in /etc/modprobe.d, and reload the driver."
        yield (failed if required else warned)(text, as_root(option, Need.DRIVER_RELOAD), excluded)
        return
    read = [gpu for gpu in gpus if gpu.proc is not None and gpu.proc.excluded is not None]
    # A GPU that the driver does not have is not excluded.
    absent = (None, Reason.NOT_PRESENT)
    unread = [gpu for gpu in gpus if gpu not in read and (gpu.proc or gpu.reason_of("proc") not in absent)]
    if unread:
        yield unknown("whether the driver excludes them: /proc/driver/nvidia/gpus was not read", unread)
    if read:
        yield passed("no GPU is excluded", read)
    elif not unread:
        skip(NO_NVIDIA_GPU)
