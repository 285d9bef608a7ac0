"""Checks of traffic between devices: P2P status, PCIe links, and ACS and IOMMU settings that redirect traffic."""

from __future__ import annotations

from collections.abc import Iterable

from egmctl.dataclass import dataclass
from egmctl.doctor.check import Scope, Verdicts, check, end, findings_on, known, skip
from egmctl.doctor.findings import fact, failed, noted, passed, skipped, unknown, warned
from egmctl.doctor.situation import coherent, fabric, mode_without_peers, usable, virtual
from egmctl.model.finding import Confidence, Evidence, Finding, Guard, Place, Status, on_gpus, on_nics, on_pairs
from egmctl.model.gpu import Gpu, GpuPair
from egmctl.model.host import Bridge, Driver, PcieLink, PciFunction, Process, System
from egmctl.model.kernel_log import DriverMessage
from egmctl.model.machine import Machine
from egmctl.model.record import Reason
from egmctl.model.remedy import Need, Remedy, as_root, remove_option, todo
from egmctl.topology.acs import REDIRECT, Acs, AcsKind, UnrecognisedError, corrected, required_acs
from egmctl.topology.platform import egm

P2P_STATUS = "nvmlDeviceGetP2PStatus"
MEANINGS = {
    "CNS": "the chipset does not support it",
    "GNS": "the GPU does not support it",
    "TNS": "their PCIe positions do not allow it",
    "DR": "a registry key of the driver turns it off",
    "NS": "not supported",
    "U": "the driver does not know",
}
"""The meanings of NVML_P2P_STATUS_*, by the abbreviations of nvidia-smi."""

CUDA_ASKS = 13050
"""The driver's CUDA version from which cuDeviceCanAccessPeer also checks IOMMU and ACS on the way, over PCIe only
(https://docs.nvidia.com/cuda/cuda-features-archive/)."""
OVERRIDE = "CUDA_DISABLE_IOMMU_ACS_P2P_CAPABILITY_CHECK"
"""The variable that turns that check off (the same page)."""

_NOT_TRIED = "(open-gpu-kernel-modules, kernel_nvlink.c)"
_EGM_ADDRESS = as_root(
    "Turn EGM on in the fabric manager (NMX-C) of the NVLink domain, or off in the firmware of this node, then "
    "reset the GPUs.",
    Need.GPU_RESET,
    Need.NO_DOMAIN_JOBS,
    look="dmesg | grep 'EGM fabric address'",
)
_JOINED = "these GPUs are joined by NVLink"
_ONE_GPU = todo("Use a node with several GPUs.")
_WITHOUT_P2P = todo("Use GPUs below one PCIe switch or with NVLink, or let the library copy through host memory.")
_Wrong = tuple[tuple[str, str], ...]
"""The kinds of P2P that are not OK, each with its status."""
_CUDA_ONLY: _Wrong = (("cuda", "0"),)
"""The value if NVML allows P2P but CUDA refuses it."""
_SILENT_CUDA: _Wrong = (("cuda", "?"),)
"""The value if NVML allows P2P but the query of CUDA failed."""


@check("p2p.status", Guard.P2P, Guard.IPC, Guard.EGM, sections=("gpus", "pairs"))
def _status(machine: Machine, scope: Scope) -> Verdicts:
    gpus = usable(machine, scope.gpus_of(machine))
    if len(machine.gpus or ()) == 1:
        end(skipped("this node has one GPU, and no peer for it", remedy=_ONE_GPU, blocks=(Guard.P2P,)))
    if len(gpus) < 2:
        skip("fewer than two GPUs can be used from here")
    answers: dict[tuple[_Wrong, _Refusal | None, bool], list[tuple[Gpu, Gpu, GpuPair]]] = {}
    for source in gpus:
        for target in gpus:
            pair = machine.pair(source.bus_id, target.bus_id)
            if pair is not None and source is not target:
                wrong = _wrong(pair)
                reason = _refusal(machine, source, target, pair) if wrong else None
                key = wrong, reason, bool(wrong) and pair.nvlink_count is None
                answers.setdefault(key, []).append((source, target, pair))
    if not answers:
        yield unknown("no pair of these GPUs was read")
    for (wrong, reason, _links_unread), pairs in answers.items():
        yield _verdict(machine, wrong, reason, pairs)


def _wrong(pair: GpuPair) -> _Wrong:
    names = ("read", "write", "nvlink") if pair.nvlink_count else ("read", "write")
    codes = {name: pair.p2p_status.get(name) or "?" for name in names}
    wrong = tuple((name, code) for name, code in codes.items() if code != "OK")
    if wrong or pair.can_access_peer is True:
        return wrong
    if pair.can_access_peer is False:
        return _CUDA_ONLY
    not_asked = (None, Reason.NOT_ASKED, Reason.NOT_STATED, Reason.NOT_PRESENT)
    return () if pair.reason_of("can_access_peer") in not_asked else _SILENT_CUDA


@dataclass(frozen=True, slots=True)
class _LikePairs:
    """Pairs of GPUs with the same answers of the driver, and what decides how they are judged."""

    place: Place
    wrong: _Wrong
    refused: _Refusal | None
    nvlinks: tuple[int | None, ...]
    """The number of NVLinks of each pair; ``None`` if it was not read."""
    cuda_asks: bool
    """Whether CUDA refuses P2P over PCIe for settings of IOMMU or ACS."""

    @property
    def has_nvlink(self) -> bool:
        """Whether NVLink joins the GPUs of a pair."""
        return any(self.nvlinks)

    @property
    def links_unread(self) -> bool:
        """Whether it was not read of a pair if NVLink joins its GPUs."""
        return None in self.nvlinks

    @property
    def codes(self) -> tuple[tuple[str, str], ...]:
        """The statuses that were reported. One that was not does not hide the others."""
        return tuple((name, code) for name, code in self.wrong if code != "?")

    @property
    def reasons(self) -> str:
        """The meanings of the reported statuses."""
        return "; ".join(dict.fromkeys(MEANINGS.get(code, code) for _, code in self.codes))

    @property
    def statuses(self) -> tuple[Evidence, ...]:
        """All statuses as evidence."""
        if self.wrong == _CUDA_ONLY:
            return fact(f"{P2P_STATUS}(read, write)", "OK"), fact("cuDeviceCanAccessPeer", "0")
        return tuple(
            fact(f"{P2P_STATUS}({name})", f"{code}: {MEANINGS.get(code, 'not read')}") for name, code in self.wrong
        )

    @property
    def summary(self) -> str:
        """What is refused, and why by the driver's statuses."""
        if self.wrong == _CUDA_ONLY:
            return "CUDA refuses P2P that NVML allows: copies are staged in host memory"
        return f"no P2P {' and '.join(name for name, _ in self.codes)}: {self.reasons}"


def _verdict(
    machine: Machine, wrong: _Wrong, refused: _Refusal | None, pairs: list[tuple[Gpu, Gpu, GpuPair]]
) -> Finding:
    """Return the finding of the first condition that holds for pairs with the same answers."""
    ends = [(source, target) for source, target, _ in pairs]
    gpus = {gpu.bus_id: gpu for pair in ends for gpu in pair}
    all_pairs = len(ends) == len(gpus) * (len(gpus) - 1)
    place = on_gpus(gpus.values()) if all_pairs else on_pairs(ends)
    cuda_asks = ((machine.driver or Driver()).cuda_driver_version or 0) >= CUDA_ASKS
    like = _LikePairs(place, wrong, refused, tuple(pair.nvlink_count for *_, pair in pairs), cuda_asks)
    if not wrong:
        return _allowed(machine, like)
    if wrong == _SILENT_CUDA:
        return unknown("NVML allows P2P, and cuDeviceCanAccessPeer did not answer", place)
    if not like.codes:
        return unknown("NVML did not report the state of P2P", place, evidence=like.statuses)
    if any(code == "DR" for _, code in like.codes):
        return _no_p2p(
            like, Status.FAIL, remove_option("RMDisableP2P or PeerMappingOverride (in NVreg_RegistryDwords)")
        )
    if like.has_nvlink and refused is not None:
        # A deliberately set mode is no fault of the node.
        status = Status.NOTE if refused.chosen else Status.FAIL
        return _no_p2p(like, status, refused.remedy, cause=f"{_JOINED}; {refused.cause}", by=refused)
    if like.has_nvlink or wrong == _CUDA_ONLY:
        return _unexplained(like)
    if like.links_unread:
        summary = f"no P2P ({like.reasons}); whether NVLink joins these GPUs was not read"
        return _no_p2p(like, Status.UNKNOWN, _WITHOUT_P2P, summary)
    return _no_p2p(like, Status.SKIP, _WITHOUT_P2P, f"these GPUs have no P2P over PCIe: {like.reasons}")


def _allowed(machine: Machine, like: _LikePairs) -> Finding:
    """Return the finding on pairs that have P2P."""
    override = ((machine.process or Process()).environment or {}).get(OVERRIDE)
    if all(like.nvlinks):
        return passed("the driver allows P2P, read and write, over NVLink", like.place)
    if like.cuda_asks and override == "1":
        sentence = "P2P is allowed, but CUDA was told not to check IOMMU and ACS: bytes may be lost over PCIe"
        return noted(sentence, like.place, evidence=(fact(OVERRIDE, override),))
    return passed("the driver allows P2P, read and write, over PCIe or NVLink", like.place)


def _unexplained(like: _LikePairs) -> Finding:
    """Return the finding on pairs that lack P2P which they should have, and no other fact says why."""
    status = Status.FAIL if like.has_nvlink else Status.WARN
    over_pcie = like.cuda_asks and not like.has_nvlink
    cause = _JOINED if like.has_nvlink else ""
    if over_pcie:
        cause = "since CUDA 13.5, CUDA also refuses P2P over PCIe for settings of IOMMU or ACS"
    if like.cuda_asks and like.links_unread:
        remedy = todo("See whether NVLink joins them; if not, pcie.iommu and pcie.acs.", look="nvidia-smi topo -m")
        cause = f"possibly: {cause}; whether NVLink joins these GPUs was not read"
        return _no_p2p(like, status, remedy, cause=cause, confidence=Confidence.LOW)
    if over_pcie:
        remedy = todo(f"See pcie.iommu and pcie.acs. {OVERRIDE}=1 lifts the refusal: only where p2p.verify passes.")
        return _no_p2p(like, status, remedy, cause=cause)
    remedy = todo("See nvlink.links, gpu.mig, gpu.vgpu, gpu.cc-mode and the kernel log.", look="nvidia-smi topo -p2p r")
    return _no_p2p(like, status, remedy, cause=cause)


def _no_p2p(
    like: _LikePairs,
    status: Status,
    remedy: Remedy,
    summary: str | None = None,
    *,
    cause: str | None = None,
    confidence: Confidence = Confidence.HIGH,
    by: _Refusal | None = None,
) -> Finding:
    """Return a finding on pairs without P2P; its evidence and confidence are also those of the reason that matches."""
    if cause is None:
        cause = _JOINED if like.has_nvlink else ""
    return Finding(
        status=status,
        summary=like.summary if summary is None else summary,
        remedy=remedy,
        place=like.place,
        evidence=like.statuses if by is None else (*like.statuses, *by.evidence),
        cause=cause,
        confidence=confidence if by is None else by.confidence,
        blocks=(Guard.P2P,),
    )


@dataclass(frozen=True, slots=True)
class _Refusal:
    """The reason that matches the facts."""

    cause: str
    remedy: Remedy
    confidence: Confidence = Confidence.HIGH
    evidence: tuple[Evidence, ...] = ()
    chosen: bool = False
    """Whether a deliberately set mode is the reason, which is no fault of the node."""


def _refusal(machine: Machine, gpu: Gpu, other: Gpu, pair: GpuPair) -> _Refusal | None:
    """Return why P2P between two GPUs with NVLink is refused; ``None`` if the facts do not explain it."""
    if pair.nvlink_count == 0:
        return None
    gpus = gpu, other
    if (mode := mode_without_peers(machine, gpus)) is not None:
        return _Refusal(mode, todo("See gpu.mig, gpu.cc-mode and gpu.vgpu."), chosen=True)
    system = (machine.driver or Driver()).nvlink_bandwidth_mode
    modes = {(gpu.nvml.nvlink_bandwidth_mode if gpu.nvml else None) or system for gpu in gpus}
    remedy = todo("See nvlink.bw-mode: all GPUs need one mode that is not OFF.")
    if "off" in modes:
        return _Refusal(f"NVLink's bandwidth mode is OFF {_NOT_TRIED}", remedy)
    if None not in modes and len(modes) == 2:
        cause = f"their NVLinks are in different bandwidth modes ({' and '.join(sorted(map(str, modes)))})"
        return _Refusal(cause, remedy, Confidence.MEDIUM)
    fabrics = [info for gpu in gpus if (info := fabric(gpu)) is not None]
    remedy = todo("See fabric.state and fabric.domain.")
    if any(info.state in ("not-started", "in-progress") for info in fabrics):
        return _Refusal("the fabric has not registered them yet", remedy)
    if any(info.health_summary == "unhealthy" for info in fabrics):
        return _Refusal(f"the fabric calls one of them unhealthy {_NOT_TRIED}", remedy)
    if len({(info.cluster_uuid, info.clique_id) for info in fabrics}) == 2:
        return _Refusal(f"they are in different cliques {_NOT_TRIED}", remedy)
    return _egm_address(machine, gpus, pair)


def _egm_address(machine: Machine, gpus: tuple[Gpu, Gpu], pair: GpuPair) -> _Refusal | None:
    """Return the refusal if a GPU may lack the EGM fabric address, which P2P over NVSwitches needs if EGM is on.

    The GPU gets it only if EGM is on in the fabric manager too (gpu_fabric_probe.c). Neither NVML nor CUDA reports it:
    the kernel log shows its lack, as does HOST_NUMA memory that CUDA cannot share across the domain.
    """
    if pair.nvlink_through != "switch" or not any(egm(machine, gpu).able for gpu in gpus):
        return None
    events = () if machine.kernel_log is None else machine.kernel_log.events
    cause = "a GPU on NVSwitches with EGM on and without an EGM fabric address has no P2P at all " + _NOT_TRIED
    if any(event.message is DriverMessage.EGM_NO_FABRIC_ADDRESS for event in events):
        evidence = fact("kernel log", DriverMessage.EGM_NO_FABRIC_ADDRESS.value)
        return _Refusal(cause, _EGM_ADDRESS, evidence=(evidence,))
    names = ("HANDLE_TYPE_FABRIC_SUPPORTED", "HOST_NUMA_MULTINODE_IPC_SUPPORTED")
    bits = [tuple(gpu.cuda.attributes.get(name) for name in names) for gpu in gpus if gpu.cuda]
    if (1, 0) in bits:
        evidence = fact("cuDeviceGetAttribute", f"{names[0]} 1, {names[1]} 0")
        return _Refusal(cause, _EGM_ADDRESS, Confidence.MEDIUM, (evidence,))
    if (1, 1) in bits:
        return None
    return _Refusal(f"possibly: {cause}; whether these GPUs have one was not read", _EGM_ADDRESS, Confidence.LOW)


RESEAT = as_root(
    "Look for PCIe errors, then reseat the card, riser or cable of the drained node.",
    Need.REBOOT,
    look="dmesg | grep -iE 'pcieport|AER'",
)


@check("pcie.link", Guard.PERF, Guard.RDMA, sections=("gpus", "nics", "system"))
def _link(machine: Machine, scope: Scope) -> Verdicts:
    gpus, nics = scope.gpus_of(machine), machine.nics or ()
    if not gpus and not nics:
        skip("no GPU or NIC was read on PCIe")
    for gpu in gpus:
        pci = gpu.pci or PciFunction(bus_id=gpu.bus_id)
        by_nvml = gpu.nvml.link if gpu.nvml else None
        link = PcieLink() if gpu.pci is None else _known(pci.link, by_nvml)
        yield from findings_on(gpu, _judge(machine, pci, link, gpu))
    for nic in nics:
        pci = nic.pci or PciFunction(bus_id="")
        yield from findings_on(on_nics([nic.name]), _judge(machine, pci, pci.link or PcieLink()))


def _judge(machine: Machine, pci: PciFunction, link: PcieLink, gpu: Gpu | None = None) -> Verdicts:
    """Yield the finding on the link of a GPU, whose speed counts only while it is busy, or of a NIC."""
    width, speed = _expected(machine, pci, link, "max_width"), _expected(machine, pci, link, "max_speed_gt_s")
    text = f"x{link.width}, {link.speed_gt_s} GT/s; at most x{link.max_width}, {link.max_speed_gt_s} GT/s"
    read = fact(f"/sys/bus/pci/devices/{pci.bus_id}/current_link_*, max_link_*", text.replace("None", "?"))
    judges_speed = gpu is None or _busy(gpu)
    narrow = link.width is not None and width is not None and link.width < width
    if narrow and link.sheds_lanes and (gpu is None or not _busy(gpu)):
        yield read
        yield noted(f"PCIe x{link.width} of x{width:g}: at 64 GT/s an idle link sheds lanes (L0p); see it under load")
    elif narrow:
        yield read
        yield (failed if gpu else warned)(f"PCIe x{link.width} of x{width:g}", RESEAT)
    elif judges_speed and link.speed_gt_s is not None and speed is not None and link.speed_gt_s < speed:
        busy = ", though the GPU is busy" if gpu else ""
        yield read
        yield warned(f"PCIe runs at {link.speed_gt_s:g} of {speed:g} GT/s{busy}", RESEAT)
    elif None in (link.width, width) or (gpu is None and None in (link.speed_gt_s, speed)):
        yield unknown("the width or speed of the PCIe link was not read")
    else:
        yield passed(f"PCIe links run at full width{'' if gpu else ' and speed'}")


def _known(sysfs: PcieLink | None, nvml: PcieLink | None) -> PcieLink:
    """Return the link from sysfs, or from NVML if sysfs lacks it, as in some virtual machines."""
    return sysfs if sysfs is not None and sysfs.width is not None else nvml or PcieLink()


def _expected(machine: Machine, function: PciFunction, link: PcieLink, name: str) -> float | None:
    """Return the maximum that both ends of a function's link support: a card may be wider or faster than its slot."""
    own = getattr(link, name)
    above = (function.path or ("",))[-1]
    bridges = (machine.system or System()).bridges or ()
    slot = next((getattr(bridge.link, name) for bridge in bridges if bridge.bus_id == above and bridge.link), None)
    known = [value for value in (own, slot) if value is not None]
    return min(known) if own is not None else None


def _busy(gpu: Gpu) -> bool:
    """Return whether a GPU is busy (P0, not idle); idle GPUs reduce the speed of their links."""
    nvml = gpu.nvml
    if nvml is None or nvml.throttle_reasons is None:
        return False
    return nvml.performance_state == 0 and "idle" not in nvml.throttle_reasons


def _over_pcie(machine: Machine, scope: Scope) -> str:
    """Return the kinds of traffic between devices over PCIe; empty if there is none."""
    gpus = usable(machine, scope.gpus_of(machine))
    pairs = [machine.pair(source.bus_id, target.bus_id) for source in gpus for target in gpus if source is not target]
    parts = []
    if any(pair is not None and not pair.nvlink_count and pair.p2p_status.get("read") == "OK" for pair in pairs):
        parts.append("P2P between GPUs")
    if machine.nics:
        parts.append("GPUDirect RDMA")
    return " and ".join(parts)


NO_TRAFFIC = "no traffic goes from device to device over PCIe here"


@check("pcie.acs", Guard.P2P, Guard.RDMA, Guard.PERF, sections=("gpus", "pairs", "nics", "system", "host"))
def _acs(machine: Machine, scope: Scope) -> Verdicts:
    bridges = known((machine.system or System()).bridges, "the PCIe bridges were not read")
    traffic = _over_pcie(machine, scope) or skip(NO_TRAFFIC)
    if virtual(machine):
        skip("in a virtual machine the host controls Access Control Services")
    if any(bridge.reason_of("acs_control") is Reason.NO_PERMISSION for bridge in bridges):
        yield unknown("whether bridges redirect P2P traffic is unknown: only root may read it")
        return
    try:
        acs = required_acs(machine)
    except UnrecognisedError as error:
        yield unknown(f"which ACS settings are right here is unknown: {error}")
    else:
        yield from _plain_acs(bridges, traffic) if acs.kind is AcsKind.PLAIN else _class_acs(bridges, acs, traffic)


def _plain_acs(bridges: Iterable[Bridge], traffic: str) -> Verdicts:
    controls = {bridge.bus_id: bridge.acs_control for bridge in bridges if bridge.acs_control is not None}
    redirecting = {bus_id: control for bus_id, control in controls.items() if control & REDIRECT}
    without_acs = {bridge.bus_id for bridge in bridges if bridge.reason_of("acs_control") is Reason.NOT_SUPPORTED}
    unread = [bridge.bus_id for bridge in bridges if bridge.bus_id not in {*controls, *without_acs}]
    yield from (fact(f"ACS control of {bus_id}", f"{control:#06x}") for bus_id, control in redirecting.items())
    if redirecting:
        remedy = as_root(
            "Where no virtual machines are run, turn ACS off: in the firmware setup, or for each of these bridges with "
            "setpci -s BRIDGE ECAP_ACS+0x6.w=0000 after each boot.",
            Need.REBOOT,
        )
        cause = "redirection makes GPUDirect slow or hang (NCCL user guide, troubleshooting of PCIe)"
        yield warned(f"{len(redirecting)} PCIe bridges send {traffic} up to the root complex", remedy, cause=cause)
    elif unread:
        yield unknown(f"whether bridges redirect P2P traffic is unknown: ACS of {unread[0]} was not read")
    elif not controls:
        skip("no bridge above these devices has Access Control Services")
    else:
        yield fact("bridges read", len(controls))
        yield passed("no PCIe bridge redirects P2P traffic")


def _class_acs(bridges: Iterable[Bridge], acs: Acs, traffic: str) -> Verdicts:
    """Yield the finding on ports of a topology that needs specific ACS bits."""
    controls = {bridge.bus_id: bridge.acs_control for bridge in bridges if bridge.bus_id in acs.ports}
    unread = [bus_id for bus_id, control in controls.items() if control is None]
    wrong = 0
    yield fact("topology", acs.kind)
    for bus_id, bits in acs.ports.items():
        current = controls[bus_id]
        if current is not None and (needed := corrected(bits, current)) != current:
            wrong += 1
            yield fact(f"ACS control of {bus_id}", f"{current:#04x}, needs {bits} ({needed:#04x})")
    if wrong:
        cause = "rdma_topo (rdma-core) requires these bits; with others GPUDirect RDMA is slower, refused or faults"
        text = f"{wrong} PCIe ports have other ACS settings than {traffic} needs here"
        yield warned(text, _acs_remedy(acs), cause=cause)
    elif unread:
        yield unknown(f"whether ACS is right here is unknown: that of {unread[0]} was not read")
    else:
        yield fact("ports read", len(controls))
        yield passed("each PCIe port has the ACS settings that its place needs")


_LONGEST = 400
"""The maximum length of a kernel parameter in a remedy, in characters."""


def _acs_remedy(acs: Acs) -> Remedy:
    text = "Leave ACS as Linux sets it: remove pci=config_acs=, disable_acs_redir= and setpci scripts, and reboot."
    if acs.parameter:
        parameter = acs.parameter if len(acs.parameter) <= _LONGEST else "the pci=config_acs= of 'rdma_topo'"
        text = f"Boot with {parameter} (Linux 6.11 or newer); 'rdma_topo write-grub-acs' (rdma-core) writes it."
    return as_root(text, Need.REBOOT)


@check("pcie.iommu", Guard.P2P, Guard.RDMA, sections=("gpus", "pairs", "nics", "system"))
def _iommu(machine: Machine, scope: Scope) -> Verdicts:
    domains = known((machine.system or System()).iommu_domains, "the IOMMU groups were not read")
    if coherent(machine):
        skip("on Grace the SMMU translates by design: GPUs use ATS")
    traffic = _over_pcie(machine, scope) or skip(NO_TRAFFIC)
    yield from (fact(f"/sys/bus/pci/devices/{bus_id}/iommu_group/type", kind) for bus_id, kind in domains.items())
    if not {"DMA", "DMA-FQ"}.intersection(domains.values()):
        yield passed("no IOMMU translates these devices' addresses")
    elif virtual(machine):
        yield passed("the virtual machine has an IOMMU", note="the host decides whether it translates")
    else:
        yield warned(
            f"an IOMMU translates the addresses that {traffic} uses",
            as_root(
                "Boot with iommu=pt: the IOMMU stays on, for virtual machines and interrupts, and passes the host's "
                "own traffic through.",
                Need.REBOOT,
            ),
            cause="peer writes through a translating IOMMU can be dropped while CUDA reports success",
        )
