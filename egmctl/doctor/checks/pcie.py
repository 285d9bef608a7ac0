"""PCIe: the links of GPUs and NICs, and what is between two of them that sends their traffic another way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from egmctl.doctor.check import Check, Scope, failed, passed, skipped, unknown, warned
from egmctl.doctor.situation import coherent, judged, usable, virtual
from egmctl.model.finding import Evidence, Finding, Guard, Remedy, on_gpus, on_nics
from egmctl.model.machine import Bridge, Gpu, Machine, Nic, PcieLink, PciFunction, Reason, System
from egmctl.topology.acs import REDIRECT, Acs, AcsKind, UnrecognisedError, corrected, required_acs


def _link(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus, nics = scope.gpus_of(machine), machine.nics or ()
    if not gpus and not nics:
        yield skipped("no GPU or NIC was read on PCIe")
    yield from judged(gpus, lambda gpu: _gpu_link(machine, gpu), on_gpus)
    yield from judged(nics, lambda nic: _nic_link(machine, nic), lambda group: on_nics(nic.name for nic in group))


def _gpu_link(machine: Machine, gpu: Gpu) -> Finding:
    pci = gpu.pci or PciFunction(bus_id=gpu.bus_id)
    link = PcieLink() if gpu.pci is None else _known(pci.link, gpu.nvml.link if gpu.nvml else None)
    width, speed = _expected(machine, pci, link, "max_width"), _expected(machine, pci, link, "max_speed_gt_s")
    if link.width is None or width is None:
        return unknown("the width of the PCIe link was not read")
    if link.width < width:
        return failed(f"PCIe x{link.width} of x{width:g}", RESEAT, evidence=_link_evidence(pci, link))
    if _busy(gpu) and link.speed_gt_s is not None and speed is not None and link.speed_gt_s < speed:
        return warned(
            f"PCIe runs at {link.speed_gt_s:g} of {speed:g} GT/s, though the GPU is busy",
            RESEAT,
            evidence=_link_evidence(pci, link),
        )
    return passed("the GPUs' PCIe links run at full width")


def _nic_link(machine: Machine, nic: Nic) -> Finding:
    pci = nic.pci or PciFunction(bus_id="")
    link = pci.link or PcieLink()
    width, speed = _expected(machine, pci, link, "max_width"), _expected(machine, pci, link, "max_speed_gt_s")
    if link.width is not None and width is not None and link.width < width:
        return warned(f"PCIe x{link.width} of x{width:g}", RESEAT, evidence=_link_evidence(pci, link))
    if link.speed_gt_s is not None and speed is not None and link.speed_gt_s < speed:
        slow = f"PCIe runs at {link.speed_gt_s:g} of {speed:g} GT/s"
        return warned(slow, RESEAT, evidence=_link_evidence(pci, link))
    if None in (link.width, width, link.speed_gt_s, speed):
        return unknown("the width or speed of the PCIe link was not read")
    return passed("the NICs' PCIe links run at full width and speed")


RESEAT = Remedy(
    text="Look for PCIe errors in the system event log, then reseat the card, riser or cable.",
    command="dmesg | grep -iE 'pcieport|AER'",
    needs_root=True,
)


def _known(sysfs: PcieLink | None, nvml: PcieLink | None) -> PcieLink:
    """Return sysfs' link, or NVML's where sysfs has none (a virtual machine may hide it)."""
    return sysfs if sysfs is not None and sysfs.width is not None else nvml or PcieLink()


def _expected(machine: Machine, function: PciFunction, link: PcieLink, name: str) -> float | None:
    """Return the most that both ends of a function's link can do: a card may be wider or faster than its slot."""
    own = getattr(link, name)
    above = (function.path or ("",))[-1]
    bridges = (machine.system or System()).bridges or ()
    slot = next((getattr(bridge.link, name) for bridge in bridges if bridge.bus_id == above and bridge.link), None)
    known = [value for value in (own, slot) if value is not None]
    return min(known) if own is not None else None


def _busy(gpu: Gpu) -> bool:
    """Say whether the link has no reason to be slowed down: GPUs do so while idle."""
    nvml = gpu.nvml
    if nvml is None or nvml.throttle_reasons is None:
        return False
    return nvml.performance_state == 0 and "idle" not in nvml.throttle_reasons


def _link_evidence(pci: PciFunction, link: PcieLink) -> tuple[Evidence, ...]:
    words = f"x{link.width}, {link.speed_gt_s} GT/s; at most x{link.max_width}, {link.max_speed_gt_s} GT/s"
    return (
        Evidence(
            source=f"/sys/bus/pci/devices/{pci.bus_id}/current_link_*, max_link_*", value=words.replace("None", "?")
        ),
    )


def _over_pcie(machine: Machine, scope: Scope) -> str:
    """Say what goes from device to device over PCIe here; empty where nothing does."""
    gpus = usable(machine, scope.gpus_of(machine))
    pairs = [machine.pair(one.bus_id, other.bus_id) for one in gpus for other in gpus if one is not other]
    parts = []
    if any(pair is not None and not pair.nvlink_count and pair.p2p_status.get("read") == "OK" for pair in pairs):
        parts.append("P2P between GPUs")
    if machine.nics:
        parts.append("GPUDirect RDMA")
    return " and ".join(parts)


def _acs(machine: Machine, scope: Scope) -> Iterator[Finding]:
    traffic = _over_pcie(machine, scope)
    bridges = (machine.system or System()).bridges
    if bridges is None:
        yield unknown("the PCIe bridges were not read")
    elif not traffic:
        yield skipped("no traffic goes from device to device over PCIe here")
    elif virtual(machine):
        yield skipped("in a virtual machine the host controls Access Control Services")
    elif any(_hidden(bridge) for bridge in bridges):
        yield unknown("whether bridges redirect P2P traffic is unknown: only root may read it")
    else:
        try:
            acs = required_acs(machine)
        except UnrecognisedError as error:
            yield unknown(f"which ACS settings are right here is unknown: {error}")
        else:
            yield _plain_acs(bridges, traffic) if acs.kind is AcsKind.PLAIN else _class_acs(machine, acs, traffic)


def _hidden(bridge: Bridge) -> bool:
    unread = bridge.unread.get("acs_control")
    return unread is not None and unread.reason is Reason.NO_PERMISSION


def _plain_acs(bridges: Iterable[Bridge], traffic: str) -> Finding:
    controls = {bridge.bus_id: bridge.acs_control for bridge in bridges if bridge.acs_control is not None}
    redirecting = {bus_id: control for bus_id, control in controls.items() if control & REDIRECT}
    unread = [bridge.bus_id for bridge in bridges if bridge.acs_control is None and not _without_acs(bridge)]
    if redirecting:
        return warned(
            f"{len(redirecting)} PCIe bridges send {traffic} up to the root complex",
            Remedy(
                text="Turn ACS off in the firmware setup where no virtual machines are run, or for each bridge with "
                "setpci -s BRIDGE ECAP_ACS+0x6.w=0000 after each boot.",
                needs_root=True,
                needs_reboot=True,
            ),
            evidence=tuple(
                Evidence(source=f"ACS control of {bus_id}", value=f"{control:#06x}")
                for bus_id, control in redirecting.items()
            ),
            cause="redirection is on; NCCL's user guide (troubleshooting of PCIe) names it as a cause of slow or "
            "hanging GPUDirect",
        )
    if unread:
        return unknown(f"whether bridges redirect P2P traffic is unknown: ACS of {unread[0]} was not read")
    if not controls:
        return skipped("no bridge above these devices has Access Control Services")
    return passed(
        "no PCIe bridge redirects P2P traffic",
        evidence=(Evidence(source="bridges read", value=str(len(controls))),),
    )


def _without_acs(bridge: Bridge) -> bool:
    unread = bridge.unread.get("acs_control")
    return unread is not None and unread.reason is Reason.NOT_SUPPORTED


def _class_acs(machine: Machine, acs: Acs, traffic: str) -> Finding:
    """Judge the ports of a topology that needs bits of its own."""
    bridges = {bridge.bus_id: bridge for bridge in (machine.system or System()).bridges or ()}
    controls = {bus_id: bridges[bus_id].acs_control for bus_id in acs.ports}
    unread = [bus_id for bus_id, control in controls.items() if control is None]
    wrong = {
        bus_id: (control, corrected(bits, control))
        for bus_id, bits in acs.ports.items()
        if (control := controls[bus_id]) is not None and corrected(bits, control) != control
    }
    if wrong:
        return warned(
            f"{len(wrong)} PCIe ports have other ACS settings than {traffic} needs here",
            _acs_remedy(acs),
            evidence=(
                Evidence(source="topology", value=acs.kind),
                *(
                    Evidence(
                        source=f"ACS control of {bus_id}", value=f"{now:#04x}, needs {acs.ports[bus_id]} ({then:#04x})"
                    )
                    for bus_id, (now, then) in wrong.items()
                ),
            ),
            cause="rdma_topo (rdma-core) requires these bits; with others GPUDirect RDMA is slower, refused (ENOTSUPP) "
            "or faults",
        )
    if unread:
        return unknown(f"whether ACS is right here is unknown: that of {unread[0]} was not read")
    return passed(
        "each PCIe port has the ACS settings that its place needs",
        evidence=(
            Evidence(source="topology", value=acs.kind),
            Evidence(source="ports read", value=str(len(controls))),
        ),
    )


_LONGEST = 400
"""Characters of a kernel parameter that a person would copy."""


def _acs_remedy(acs: Acs) -> Remedy:
    if len(acs.parameter) > _LONGEST:
        text = (
            "Boot with the pci=config_acs= that 'rdma_topo write-grub-acs' writes (rdma-core; Linux 6.11 or newer), or "
            "change ACS in the firmware setup."
        )
    elif acs.parameter:
        text = f"Boot with {acs.parameter} (Linux 6.11 or newer); 'rdma_topo write-grub-acs' writes it."
    else:
        text = (
            "Leave ACS as Linux sets it: take pci=config_acs=, disable_acs_redir= and scripts that run setpci out, and "
            "boot again. 'rdma_topo check' verifies it."
        )
    return Remedy(text=text, needs_root=True, needs_reboot=True)


def _iommu(machine: Machine, scope: Scope) -> Iterator[Finding]:
    domains = (machine.system or System()).iommu_domains
    what = _over_pcie(machine, scope)
    if domains is None:
        yield unknown("the IOMMU groups were not read")
        return
    translating = {bus_id: kind for bus_id, kind in domains.items() if kind in ("DMA", "DMA-FQ")}
    evidence = tuple(
        Evidence(source=f"/sys/bus/pci/devices/{bus_id}/iommu_group/type", value=kind)
        for bus_id, kind in domains.items()
    )
    if coherent(machine):
        yield skipped("on Grace the SMMU translates by design: GPUs use ATS")
    elif not what:
        yield skipped("no traffic goes from device to device over PCIe here")
    elif translating and not virtual(machine):
        yield warned(
            f"an IOMMU translates the addresses that {what} uses",
            Remedy(
                text="Boot with iommu=pt, or turn the IOMMU off in the firmware setup; verify with 'egmctl doctor "
                "--active'.",
                needs_root=True,
                needs_reboot=True,
            ),
            evidence=evidence,
            cause="peer writes through a translating IOMMU can be dropped while CUDA reports success, and all of it "
            "goes up to the root complex",
        )
    elif translating:
        yield passed(
            "the virtual machine has an IOMMU", evidence=evidence, note="the host decides whether it translates"
        )
    else:
        yield passed("no IOMMU translates these devices' addresses", evidence=evidence)


CHECKS = (
    Check("pcie.link", _link, guards=(Guard.PERF, Guard.RDMA), sections=("gpus", "nics", "system")),
    Check(
        "pcie.acs",
        _acs,
        guards=(Guard.P2P, Guard.RDMA, Guard.PERF),
        sections=("gpus", "pairs", "nics", "system", "host"),
    ),
    Check("pcie.iommu", _iommu, guards=(Guard.P2P, Guard.RDMA), sections=("gpus", "pairs", "nics", "system")),
)
