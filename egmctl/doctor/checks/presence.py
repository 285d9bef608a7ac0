"""GPUs that should be here: the funnel from PCI to CUDA, and those that never came as far as a device node."""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.doctor.access import funnel, loss, lost, requested
from egmctl.doctor.check import Check, failed, passed, skipped, warned
from egmctl.doctor.scope import Scope
from egmctl.model.finding import Confidence, Evidence, Finding, Guard, Place, PlaceKind, Remedy, on_gpus
from egmctl.model.machine import Driver, Gpu, Machine
from egmctl.topology.access import Block, Step

_WORDS = {
    Step.PCI: "on PCI",
    Step.DRIVER: "driver",
    Step.NODE: "device node",
    Step.ACCESS: "accessible",
    Step.NVML: "NVML",
    Step.CUDA: "CUDA",
}
_POWER = Remedy(
    text="Drain the node and power-cycle it; if the GPU stays away, have it replaced.",
    needs_root=True,
    needs_reboot=True,
)
_ABSENT = Remedy(
    text="What is missing on PCI was removed, has no power, did not come up at boot, or was not given to this virtual "
    "machine. Power-cycle the node, and have replaced what stays away.",
    command="lspci -d 10de:",
    needs_root=True,
    needs_reboot=True,
)


def _count(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus = machine.gpus or ()
    counts = funnel(machine, gpus)
    line = " > ".join(f"{'not asked' if number is None else number} {_WORDS[step]}" for step, number in counts.items())
    evidence = (Evidence(source="PCI > driver > device node > accessible > NVML > CUDA", value=line),)
    wanted = scope.expectation.gpus if scope.expectation else None
    usable = sum(loss(machine, gpu) is None for gpu in gpus)
    faults = False
    if gone := lost(machine, Block.NOT_LISTED):
        faults = True
        yield failed(
            "the driver has them and their device nodes are open to this process, yet NVML does not list them",
            Remedy(
                text="Look for Xid and RmInitAdapter in the kernel log; reset the GPU or reboot.",
                command="dmesg | grep -iE 'NVRM|Xid'",
                needs_root=True,
            ),
            place=on_gpus(gone),
            evidence=(*evidence, *_why(gone, "nvml")),
            cause="the driver could not start them",
            confidence=Confidence.MEDIUM,
        )
    if gone := lost(machine, Block.NOT_SEEN_BY_CUDA):
        faults = True
        yield failed(
            "NVML lists them and CUDA does not",
            Remedy(text="See gpu.mig, gpu.compute-mode, fabric.state and drv.versions: each of them can do this."),
            place=on_gpus(gone),
            evidence=(*evidence, *_why(gone, "cuda")),
            confidence=Confidence.LOW,
        )
    if wanted is not None and usable < wanted:
        on_pci = counts[Step.PCI]
        yield failed(
            f"{usable} of the {wanted} GPUs that were expected can be used from here",
            _ABSENT
            if on_pci is not None and on_pci < wanted
            else Remedy(text="The other checks of device access say where each was lost and what to do."),
            evidence=evidence,
            cause=line,
        )
    elif not gpus:
        yield skipped("there is no NVIDIA GPU", evidence=evidence)
    elif not faults:
        gone = [gpu for gpu in gpus if loss(machine, gpu) is not None]
        said = (
            f"all {len(gpus)} GPUs can be used from here"
            if not gone
            else f"{usable} of {len(gpus)} GPUs can be used from here"
        )
        yield passed(
            said,
            evidence=evidence,
            note=f"{on_gpus(gone).label}: see the other checks of device access" if gone else "",
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
            evidence=(Evidence(source="/sys/bus/pci/devices", value=f"{len(here)} GPUs"),),
            cause="it was removed, or its link did not come up at boot",
        )
    if not silent and not gone:
        answering = [gpu for gpu in gpus if gpu.pci is not None and gpu.pci.responds]
        yield (
            passed("every GPU answers on the PCI bus", place=on_gpus(answering))
            if answering
            else skipped("there is no NVIDIA GPU")
        )


def _binding(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus = [gpu for gpu in machine.gpus or () if gpu.pci is not None and gpu.pci.driver is not None]
    unbound = lost(machine, Block.NOT_BOUND)
    for driver in dict.fromkeys(gpu.pci.driver for gpu in unbound if gpu.pci):
        group = [gpu for gpu in unbound if gpu.pci and gpu.pci.driver == driver]
        yield _not_bound(machine, scope, driver or "", group)
    if not unbound:
        yield (
            passed("every GPU is bound to the driver nvidia", place=on_gpus(gpus))
            if gpus
            else skipped("there is no NVIDIA GPU")
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
                f"{words}, and it was asked for", give_back, cause="it is set aside for a virtual machine", **more
            )
        return passed(words, note="it is set aside for a virtual machine", **more)
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
            text="Look for why the driver refused it in the kernel log.",
            command="dmesg | grep -i NVRM",
            needs_root=True,
        )
        return failed(words, remedy, cause="the module is loaded and did not take it", **more)
    remedy = Remedy(text="Load the driver's kernel module, or install it.", command="modprobe nvidia", needs_root=True)
    return failed(words, remedy, cause="the NVIDIA kernel module is not loaded", **more)


def _excluded(machine: Machine, scope: Scope) -> Iterator[Finding]:
    excluded = [gpu for gpu in machine.gpus or () if gpu.proc is not None and gpu.proc.excluded]
    parameters = (machine.driver or Driver()).module_parameters or {}
    listed = {name: parameters[name] for name in ("ExcludedGpus", "GpuBlacklist") if parameters.get(name)}
    evidence = tuple(Evidence(source=f"/proc/driver/nvidia/params {name}", value=text) for name, text in listed.items())
    remedy = Remedy(
        text="If it is not to be so, take it out of NVreg_ExcludedGpus in /etc/modprobe.d and reload the driver.",
        needs_root=True,
    )
    if excluded:
        evidence += tuple(
            Evidence(source=f"/proc/driver/nvidia/gpus/{gpu.bus_id}/information", value="GPU Excluded: Yes")
            for gpu in excluded
        )
        asked = [gpu for gpu in excluded if requested(machine, scope, gpu)]
        more = {"place": on_gpus(excluded), "evidence": evidence, "cause": "the administrator took it out of use"}
        if asked:
            yield failed(
                f"excluded by the driver's configuration, and {on_gpus(asked).label} was asked for", remedy, **more
            )
        else:
            yield warned(
                "excluded by the driver's configuration: neither a peer nor a route of EGM for the others",
                remedy,
                **more,
            )
    elif not any(gpu.proc for gpu in machine.gpus or ()):
        yield skipped("there is no NVIDIA GPU")
    else:
        yield passed("no GPU is excluded", evidence=evidence)


def _why(gpus: list[Gpu], library: str) -> tuple[Evidence, ...]:
    reasons = {gpu.bus_id: gpu.unread[library] for gpu in gpus if library in gpu.unread}
    return tuple(Evidence(source=library.upper(), value=f"{bus_id}: {why.detail}") for bus_id, why in reasons.items())


CHECKS = (
    Check(
        id="dev.count-consistency",
        title="no GPU is lost between PCI and CUDA unexplained",
        guards=tuple(Guard),
        sections=("gpus",),
        judge=_count,
        why="A GPU that a program cannot see is lost at one of five steps, and each has causes of its own.",
        read="How many GPUs are on PCI, bound to the driver, have a device node, are accessible to this process, are "
        "listed by NVML and by CUDA (which only --active asks). NVML ignores CUDA_VISIBLE_DEVICES and honours "
        "the device cgroup.",
        fix="The finding names the step. What the other checks of device access explain is no fault here, unless "
        "--expect says how many there should be.",
    ),
    Check(
        id="dev.fell-off-bus",
        title="every GPU answers on PCI",
        guards=tuple(Guard),
        sections=("gpus",),
        judge=_off_the_bus,
        why="A GPU whose link went down takes its NVLinks and its EGM routes with it, and only a power cycle brings "
        "it back.",
        read="The first bytes of its PCI configuration space: all ones mean that nothing answers (Xid 79). A GPU "
        "that is gone from the bus altogether is missed only where --expect names a recorded machine or a "
        "count.",
        fix="Drain the node and power-cycle it. If it happens again, the GPU, its riser or its power is broken.",
    ),
    Check(
        id="dev.driver-binding",
        title="every GPU is bound to the driver nvidia",
        guards=tuple(Guard),
        sections=("gpus",),
        judge=_binding,
        why="CUDA and NVML see only GPUs that the kernel module nvidia has. vfio-pci gives a GPU to a virtual "
        "machine, nouveau and others take it for the display.",
        read="The link driver in /sys/bus/pci/devices/<bus id>.",
        fix="Load the module; keep nouveau from loading; unbind from vfio-pci what is to be used here.",
    ),
    Check(
        id="dev.excluded",
        title="no GPU is excluded by configuration",
        guards=(Guard.P2P, Guard.EGM),
        sections=("gpus",),
        judge=_excluded,
        why="The driver does not start an excluded GPU: it is no peer, and no EGM traffic goes through it.",
        read="GPU Excluded in /proc/driver/nvidia/gpus/*/information, and ExcludedGpus in /proc/driver/nvidia/params.",
        fix="Change NVreg_ExcludedGpus in /etc/modprobe.d and reload the driver.",
    ),
)
