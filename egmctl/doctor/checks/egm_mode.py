"""The check of EGM's mode: whether the firmware gives EGM memory to this system or to virtual machines."""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.doctor import situation
from egmctl.doctor.check import Scope, Verdicts, check, skip
from egmctl.doctor.findings import fact, noted, passed, unknown, warned
from egmctl.facts.egm import EGM_CLASS, EGM_MODULE
from egmctl.model.finding import Evidence, Guard
from egmctl.model.host import Driver, Host, System
from egmctl.model.machine import Machine
from egmctl.model.remedy import Need, as_root
from egmctl.topology.egm_mode import EgmMode, all_handed_over, egm_mode
from egmctl.units import format_size

_NO_CARVE_OUT = as_root(
    "If no virtual machines are to run here, leave EGM on in the firmware setup and set 'EGM Hypervisor reserved "
    "memory per socket' to 0 (Redfish: EGMHypervisorReservedMemory in /Bios/Attributes; your vendor may name them "
    "otherwise).",
    Need.REBOOT,
)


@check("egm.mode", Guard.EGM, sections=("driver", "system", "host"))
def _mode(machine: Machine, _scope: Scope) -> Verdicts:
    verdict = egm_mode(machine)
    yield from _evidence(machine)
    if verdict.mode is EgmMode.CARVED_OUT:
        size = "EGM memory" if verdict.egm_bytes is None else f"{format_size(verdict.egm_bytes)} of EGM memory"
        carved_out = f"the firmware carves out {size} for virtual machines"
        if all_handed_over(machine):
            yield noted(carved_out, remedy=situation.IN_A_GUEST, blocks=(Guard.EGM,))
            return
        left = "" if verdict.host_bytes is None else f" of {format_size(verdict.host_bytes)}"
        yield warned(f"{carved_out}: none of this system's memory{left} is EGM", _NO_CARVE_OUT, blocks=(Guard.EGM,))
        return
    situation.need_c2c(machine, situation.NOT_EGM)
    if verdict.mode is EgmMode.OFF:
        skip("the firmware has EGM off or has none: egm.capability judges that")
    elif verdict.mode is None:
        yield unknown(f"whether EGM memory is this system's or carved out for virtual machines: {verdict.reason}")
    elif situation.virtual(machine):
        note = "whether the host takes that memory from its own EGM is unknown here"
        yield passed("this virtual machine was given EGM memory", note=note)
    else:
        yield passed("EGM memory is this system's")


def _evidence(machine: Machine) -> Iterator[Evidence]:
    system, nodes = machine.system or System(), (machine.host or Host()).numa_nodes or ()
    if system.firmware_egm is None:
        yield fact("nvidia,egm-pxm, nvidia,egm-size (DSDT, SSDT*)", None)
    for area in system.firmware_egm or ():
        size = "unknown size" if area.size_bytes is None else format_size(area.size_bytes)
        yield fact("nvidia,egm-pxm, nvidia,egm-size (DSDT, SSDT*)", f"{area.proximity_domain}, {size}")
    sizes = system.egm_region_bytes or {}
    regions = (f"{name} ({format_size(sizes[name])})" if name in sizes else name for name in system.egm_regions or ())
    yield fact(EGM_CLASS, None if system.egm_regions is None else " ".join(regions) or "empty")
    modules = (machine.driver or Driver()).modules
    yield fact(f"/sys/module/{EGM_MODULE}", None if modules is None else EGM_MODULE in modules)
    for node in nodes:
        if node.cpus and node.memory_total_bytes is not None:
            yield fact(f"MemTotal of NUMA {node.id}", format_size(node.memory_total_bytes))
