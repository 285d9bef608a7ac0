"""GPUs that never came as far as a device node: off the bus, not bound to the driver, or excluded by it."""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.doctor.access import lost, requested
from egmctl.doctor.check import Check, failed, noted, passed, skipped, unknown, warned
from egmctl.doctor.scope import Scope
from egmctl.model.finding import Evidence, Finding, Guard, Place, PlaceKind, Remedy, on_gpus
from egmctl.model.machine import Driver, Gpu, Machine, Reason
from egmctl.topology.access import Block
from egmctl.wording import several

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
        yield skipped("there is no NVIDIA GPU")


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
        yield skipped("there is no NVIDIA GPU")


def _may_be_excluded(gpu: Gpu) -> bool:
    """Say whether a GPU of which this was not read may be excluded: one that the driver does not have is not."""
    why = gpu.unread.get("proc")
    return gpu.proc is not None or (why is not None and why.reason is not Reason.NOT_PRESENT)


CHECKS = (
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
        title="every GPU is bound to the nvidia driver",
        guards=tuple(Guard),
        sections=("gpus",),
        judge=_binding,
        why="CUDA and NVML see only GPUs bound to the kernel module nvidia. vfio-pci gives a GPU to a virtual "
        "machine, nouveau and others take it for the display.",
        read="The link driver in /sys/bus/pci/devices/<bus id>.",
        fix="Load the module; keep nouveau from loading; unbind from vfio-pci what is to be used here.",
    ),
    Check(
        id="dev.excluded",
        title="the driver excludes no GPU",
        guards=(Guard.P2P, Guard.EGM),
        sections=("gpus",),
        judge=_excluded,
        why="The driver does not start an excluded GPU: it is no peer, and no EGM traffic goes through it.",
        read="GPU Excluded in /proc/driver/nvidia/gpus/*/information, and ExcludedGpus in /proc/driver/nvidia/params.",
        fix="Change NVreg_ExcludedGpus in /etc/modprobe.d and reload the driver.",
    ),
)
