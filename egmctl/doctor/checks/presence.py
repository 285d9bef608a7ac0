"""Are all GPUs there, and do they belong to the driver?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from egmctl.doctor.check import Check, Scope, failed, noted, passed, skipped, unknown, warned
from egmctl.doctor.situation import NO_NVIDIA_GPU, funnel, lost, requested
from egmctl.model.finding import Confidence, Evidence, Finding, Guard, Place, PlaceKind, Remedy, on_gpus
from egmctl.model.machine import Driver, Gpu, Machine, Reason
from egmctl.topology.access import Block, Obstacle, Step, classify, elsewhere, nvml_failure
from egmctl.units import several

_WORDS = {
    Step.PCI: "on PCI",
    Step.DRIVER: "driver",
    Step.NODE: "device node",
    Step.ACCESS: "accessible",
    Step.NVML: "NVML",
    Step.CUDA: "CUDA",
}
_ABSENT = Remedy(
    text="A GPU missing on PCI was removed, has no power, did not come up at boot, or was not passed to this virtual "
    "machine. Power-cycle the node, and replace a GPU that stays away.",
    command="lspci -d 10de:",
    needs_root=True,
    needs_reboot=True,
)


_TOLD_ELSEWHERE: Mapping[Block, str] = {
    Block.OFF_THE_BUS: "dev.fell-off-bus",
    Block.NOT_BOUND: "dev.driver-binding",
    Block.EXCLUDED: "dev.excluded",
    Block.DEVICE_CGROUP: "dev.cgroup-restricted",
    Block.NOT_IN_CONTAINER: "dev.nodes-missing",
    Block.NO_DEVICE_NODE: "dev.nodes-missing",
    Block.MASKED: "dev.nodes-missing",
    Block.NOT_A_DEVICE: "dev.permissions",
    Block.STALE_NODE: "dev.permissions",
    Block.NO_PERMISSION: "dev.permissions",
    Block.NODEV: "dev.permissions",
    Block.NVML_FAILED: "drv.libraries",
    Block.CUDA_FAILED: "drv.libraries",
}
"""The check that judges each way to lose a GPU. Every other way, one that nobody has thought of too, fails here."""
_KERNEL_LOG = Remedy(
    text="Look for Xid and RmInitAdapter in the kernel log; reset the GPU or reboot.",
    command="dmesg | grep -iE 'NVRM|Xid'",
    needs_root=True,
)


def _count(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus = machine.gpus or ()
    counts = funnel(machine, gpus)
    line = " > ".join(f"{'not asked' if number is None else number} {_WORDS[step]}" for step, number in counts.items())
    evidence = (Evidence(source="PCI > driver > device node > accessible > NVML > CUDA", value=line),)
    if not gpus:
        few = _too_few(counts, 0, scope, line, evidence)
        yield from few or (skipped(NO_NVIDIA_GPU, evidence=evidence),)
        return
    gone = {gpu.bus_id: stopped for gpu in gpus if (stopped := classify(machine, gpu)) is not None}
    usable = len(gpus) - len(gone)
    found = [*_unexplained(machine, scope, gone, evidence), *_by_cuda_alone(machine, evidence)]
    found += _too_few(counts, usable, scope, line, evidence)
    untold = elsewhere(machine) and any(stopped.block is Block.UNKNOWN for stopped in gone.values())
    if not usable and not untold and not found:
        yield failed(
            "no GPU can be used from here",
            Remedy(text=f"See {_checks_of(gone.values())}."),
            place=on_gpus(gpus),
            evidence=evidence,
            cause="; ".join(dict.fromkeys(stopped.cause for stopped in gone.values())),
        )
        return
    yield from found
    if found:
        return
    if not gone:
        yield passed(f"{'all ' * (len(gpus) > 1)}{several(len(gpus), 'GPU')} can be used from here", evidence=evidence)
        return
    missed = [gpu for gpu in gpus if gpu.bus_id in gone]
    yield (unknown if untold else noted)(
        f"{usable} of {len(gpus)} GPUs can be used from here",
        place=on_gpus(missed),
        evidence=evidence,
        note=f"{on_gpus(missed).label}: see {_checks_of(gone.values())}",
    )


def _checks_of(stopped: Iterable[Obstacle]) -> str:
    names = {**_TOLD_ELSEWHERE, Block.NOT_SEEN_BY_CUDA: "gpu.mig"}
    return ", ".join(dict.fromkeys(names.get(one.block, "dev.cgroup-restricted") for one in stopped))


def _is_mig(gpu: Gpu) -> bool:
    """Say whether CUDA need not list it: a process gets one MIG instance, of one GPU (MIG user guide)."""
    return gpu.nvml is not None and bool(gpu.nvml.mig_mode)


def _unexplained(
    machine: Machine, scope: Scope, gone: Mapping[str, Obstacle], evidence: tuple[Evidence, ...]
) -> Iterator[Finding]:
    """Judge the GPUs that are lost in a way which no other check judges, each way once."""
    groups: dict[Block, list[Gpu]] = {}
    for gpu in machine.gpus or ():
        stopped = gone.get(gpu.bus_id)
        if stopped is None or stopped.block in _TOLD_ELSEWHERE:
            continue
        if stopped.block is Block.UNKNOWN and elsewhere(machine):
            # What nobody could look at in another process' place is told by dev.cgroup-restricted.
            continue
        if stopped.block is Block.NOT_SEEN_BY_CUDA and _is_mig(gpu) and not requested(machine, scope, gpu):
            continue
        groups.setdefault(stopped.block, []).append(gpu)
    for block, gpus in groups.items():
        yield _lost(block, gpus, gone[gpus[0].bus_id], evidence)


def _by_cuda_alone(machine: Machine, evidence: tuple[Evidence, ...]) -> Iterator[Finding]:
    """Judge the GPUs that CUDA lists and NVML, which works, does not: nothing is known of their state."""
    gpus = [gpu for gpu in machine.gpus or () if gpu.cuda is not None and gpu.nvml is None and "nvml" in gpu.unread]
    gpus = [gpu for gpu in gpus if gpu.unread["nvml"].reason not in (Reason.NOT_ASKED, Reason.NOT_STATED)]
    if gpus and nvml_failure(machine) is None and not elsewhere(machine):
        yield failed(
            f"CUDA lists {'it' if len(gpus) == 1 else 'them'} but NVML does not",
            _KERNEL_LOG,
            place=on_gpus(gpus),
            evidence=(*evidence, *_why(gpus, "nvml")),
            confidence=Confidence.LOW,
        )


def _lost(block: Block, gpus: list[Gpu], stopped: Obstacle, evidence: tuple[Evidence, ...]) -> Finding:
    place, of_nvml = on_gpus(gpus), (*evidence, *_why(gpus, "nvml"))
    them = "it" if len(gpus) == 1 else "them"
    match block:
        case Block.NOT_LISTED:
            return failed(
                "NVML does not list it, though the driver has it and its device node is accessible"
                if len(gpus) == 1
                else "NVML does not list them, though the driver has them and their device nodes are accessible",
                _KERNEL_LOG,
                place=place,
                evidence=of_nvml,
                cause="the driver could not start them",
                confidence=Confidence.MEDIUM,
            )
        case Block.GPU_LOST:
            return failed(
                f"NVML counts {them} and cannot open {them}",
                Remedy(
                    text="Look for Xid 79 (fallen off the bus) and other Xids in the kernel log; drain the node, reset "
                    "the GPU or power-cycle the node.",
                    command="dmesg | grep -iE 'NVRM|Xid'",
                    needs_root=True,
                    needs_reboot=True,
                ),
                place=place,
                evidence=of_nvml,
                cause="the GPU no longer answers, or the driver gave it up",
                confidence=Confidence.MEDIUM,
            )
        case Block.NOT_SEEN_BY_CUDA:
            return failed(
                f"NVML lists {them} but CUDA does not",
                Remedy(text="See gpu.mig, gpu.compute-mode, fabric.state and drv.versions: each of them can do this."),
                place=place,
                evidence=(*evidence, *_why(gpus, "cuda")),
                confidence=Confidence.LOW,
            )
        case _:
            return failed(
                f"{'it' if len(gpus) == 1 else 'they'} cannot be used from here: {stopped.cause}",
                _KERNEL_LOG,
                place=place,
                evidence=of_nvml,
                confidence=Confidence.LOW,
            )


def _too_few(
    counts: Mapping[Step, int | None], usable: int, scope: Scope, line: str, evidence: tuple[Evidence, ...]
) -> tuple[Finding, ...]:
    """Judge the number of GPUs against ``--expect``."""
    wanted = scope.expectation.gpus if scope.expectation else None
    if wanted is None or usable >= wanted:
        return ()
    on_pci = counts[Step.PCI]
    return (
        failed(
            f"{usable} of the {wanted} expected GPUs can be used from here",
            _ABSENT
            if on_pci is not None and on_pci < wanted
            else Remedy(text="The other dev.* checks say where each was lost and what to do."),
            evidence=evidence,
            cause=line,
        ),
    )


def _why(gpus: list[Gpu], library: str) -> tuple[Evidence, ...]:
    reasons = {gpu.bus_id: gpu.unread[library] for gpu in gpus if library in gpu.unread}
    return tuple(Evidence(source=library.upper(), value=f"{bus_id}: {why.detail}") for bus_id, why in reasons.items())


_POWER = Remedy(
    text="Drain the node and power-cycle it; if the GPU stays away, replace it.",
    needs_root=True,
    needs_reboot=True,
)


def _off_the_bus(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus = machine.gpus or ()
    silent = lost(machine, Block.OFF_THE_BUS)
    if silent:
        yield failed(
            "fell off the PCI bus: its configuration space reads all ones",
            _POWER,
            place=on_gpus(silent),
            evidence=tuple(
                Evidence(source=f"/sys/bus/pci/devices/{gpu.bus_id}/config", value="ff ff ff ff") for gpu in silent
            ),
            cause="the link is down; the kernel log has Xid 79, or errors of its PCIe port (AER)",
        )
    reference = scope.expectation.reference if scope.expectation else None
    here = {gpu.bus_id for gpu in gpus}
    gone = [gpu for gpu in (reference.gpus if reference else None) or () if gpu.bus_id not in here]
    if gone:
        yield failed(
            f"not on the PCI bus, and the expected machine has it: {', '.join(gpu.bus_id for gpu in gone)}",
            _POWER,
            place=Place(kind=PlaceKind.GPU, ids=tuple(gpu.bus_id for gpu in gone), label=""),
            evidence=(Evidence(source="/sys/bus/pci/devices", value=several(len(here), "GPU")),),
            cause="it was removed, or its link did not come up at boot",
        )
    answering = [gpu for gpu in gpus if gpu.pci is not None and gpu.pci.responds]
    if unread := [gpu for gpu in gpus if gpu not in silent and gpu not in answering]:
        yield unknown("whether they answer on the PCI bus: sysfs was not read", place=on_gpus(unread))
    if not silent and not gone and answering:
        yield passed("every GPU answers on the PCI bus", place=on_gpus(answering))
    elif not gpus and not gone:
        yield skipped(NO_NVIDIA_GPU)


def _binding(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus = [gpu for gpu in machine.gpus or () if gpu.pci is not None and gpu.pci.driver is not None]
    unbound = lost(machine, Block.NOT_BOUND)
    for driver in dict.fromkeys(gpu.pci.driver for gpu in unbound if gpu.pci):
        group = [gpu for gpu in unbound if gpu.pci and gpu.pci.driver == driver]
        yield _not_bound(machine, scope, driver or "", group)
    if not unbound:
        yield (
            passed("every GPU is bound to the driver nvidia", place=on_gpus(gpus)) if gpus else skipped(NO_NVIDIA_GPU)
        )


def _not_bound(machine: Machine, scope: Scope, driver: str, gpus: list[Gpu]) -> Finding:
    modules = (machine.driver or Driver()).modules or ()
    words = f"bound to {driver}, not to nvidia" if driver else "no kernel driver is bound"
    more = {
        "place": on_gpus(gpus),
        "evidence": tuple(
            Evidence(source=f"/sys/bus/pci/devices/{gpu.bus_id}/driver", value=driver or "none") for gpu in gpus
        ),
    }
    if driver.startswith("vfio"):
        give_back = Remedy(
            text="Take it back from the virtual machine: unbind it from vfio-pci and bind it to nvidia.",
            needs_root=True,
        )
        if any(requested(machine, scope, gpu) for gpu in gpus):
            return failed(
                f"{words}, but it is required (--gpus, --expect)",
                give_back,
                cause="it is reserved for a virtual machine",
                **more,
            )
        return noted(words, remedy=give_back, cause="it is reserved for a virtual machine", **more)
    if driver:
        return failed(
            words,
            Remedy(
                text=f"Keep {driver} from loading (modprobe.blacklist={driver}), and reboot.",
                needs_root=True,
                needs_reboot=True,
            ),
            cause="another driver took it first",
            **more,
        )
    if "nvidia" in modules:
        remedy = Remedy(
            text="Look in the kernel log for why the driver refused it.",
            command="dmesg | grep -i NVRM",
            needs_root=True,
        )
        return failed(words, remedy, cause="the module is loaded but did not bind to it", **more)
    remedy = Remedy(text="Load the driver's kernel module, or install it.", command="modprobe nvidia", needs_root=True)
    return failed(words, remedy, cause="the NVIDIA kernel module is not loaded", **more)


def _excluded(machine: Machine, scope: Scope) -> Iterator[Finding]:
    excluded = [gpu for gpu in machine.gpus or () if gpu.proc is not None and gpu.proc.excluded]
    parameters = (machine.driver or Driver()).module_parameters or {}
    listed = {name: parameters[name] for name in ("ExcludedGpus", "GpuBlacklist") if parameters.get(name)}
    evidence = tuple(Evidence(source=f"/proc/driver/nvidia/params {name}", value=text) for name, text in listed.items())
    remedy = Remedy(
        text="If that is not intended, remove it from NVreg_ExcludedGpus in /etc/modprobe.d and reload the driver.",
        needs_root=True,
    )
    if excluded:
        evidence += tuple(
            Evidence(source=f"/proc/driver/nvidia/gpus/{gpu.bus_id}/information", value="GPU Excluded: Yes")
            for gpu in excluded
        )
        asked = [gpu for gpu in excluded if requested(machine, scope, gpu)]
        more = {"place": on_gpus(excluded), "evidence": evidence, "cause": "the administrator excluded it"}
        if asked:
            yield failed(
                f"excluded by the driver's configuration, but {on_gpus(asked).label} is required (--gpus, --expect)",
                remedy,
                **more,
            )
        else:
            yield warned(
                "excluded by the driver's configuration: other GPUs can use it neither as a peer nor as an EGM route",
                remedy,
                **more,
            )
        return
    read = [gpu for gpu in machine.gpus or () if gpu.proc is not None and gpu.proc.excluded is not None]
    unread = [gpu for gpu in machine.gpus or () if gpu not in read and _may_be_excluded(gpu)]
    if unread:
        yield unknown("whether the driver excludes them: /proc/driver/nvidia/gpus was not read", place=on_gpus(unread))
    if read:
        yield passed("no GPU is excluded", place=on_gpus(read), evidence=evidence)
    elif not unread:
        yield skipped(NO_NVIDIA_GPU)


def _may_be_excluded(gpu: Gpu) -> bool:
    """Say whether a GPU of which this was not read may be excluded: one that the driver does not have is not."""
    why = gpu.unread.get("proc")
    return gpu.proc is not None or (why is not None and why.reason is not Reason.NOT_PRESENT)


CHECKS = (
    Check("dev.count-consistency", _count, guards=tuple(Guard), sections=("gpus",)),
    Check("dev.fell-off-bus", _off_the_bus, guards=tuple(Guard), sections=("gpus",)),
    Check("dev.driver-binding", _binding, guards=tuple(Guard), sections=("gpus",)),
    Check("dev.excluded", _excluded, guards=(Guard.P2P, Guard.EGM), sections=("gpus",)),
)
