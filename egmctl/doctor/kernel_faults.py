"""Faults that the kernel log tells of: what Xids, SXids and PCIe errors mean, whose fault they are, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from egmctl.compat import StrEnum, assert_never
from egmctl.doctor.situation import by_value
from egmctl.model.finding import NODE, Place, Remedy, Status, on_gpus
from egmctl.model.kernel_log import DriverMessage as M
from egmctl.model.kernel_log import EventKind, KernelEvent
from egmctl.model.machine import Machine
from egmctl.units import several


class Blame(StrEnum):
    """Whose fault an error is."""

    APPLICATION = "application"
    DRIVER = "driver or firmware"
    HARDWARE = "hardware"
    LINK = "NVLink: this GPU, the other end, or the cable"
    SWITCH = "NVSwitch, or the GPU at that link"
    PCIE = "PCIe: the card, its riser or cable"
    NOBODY = "information, no fault"
    UNKNOWN = "not in the catalogue"


class Action(StrEnum):
    """What to do about an Xid."""

    NONE = "none"
    APPLICATION = "application"
    RESTART = "restart"
    """The application did nothing wrong."""
    RESET = "reset"
    RESET_IF_IT_RETURNS = "reset-if-it-returns"
    REBOOT = "reboot"
    LINKS = "links"
    REPORTED = "reported"
    """The Xid itself says what (154)."""


@dataclass(frozen=True, slots=True)
class Xid:
    """One number's meaning."""

    name: str
    blame: Blame
    status: Status
    """``pass`` for what needs no attention of an operator."""
    action: Action


_A, _D, _H, _L, _N = Blame.APPLICATION, Blame.DRIVER, Blame.HARDWARE, Blame.LINK, Blame.NOBODY
_PASS, _WARN, _FAIL = Status.PASS, Status.WARN, Status.FAIL

XIDS: dict[int, Xid] = {
    13: Xid("graphics engine exception", _A, _PASS, Action.APPLICATION),
    31: Xid("GPU memory page fault", _A, _PASS, Action.APPLICATION),
    32: Xid("invalid or corrupted push buffer", _D, _WARN, Action.APPLICATION),
    43: Xid("channel reset after an application's fault", _A, _PASS, Action.NONE),
    44: Xid("fault during a context switch", _D, _WARN, Action.RESET_IF_IT_RETURNS),
    45: Xid("channel removed, after another fault or a kill", _A, _PASS, Action.NONE),
    46: Xid("GPU stopped processing", _D, _FAIL, Action.RESET),
    48: Xid("uncorrectable ECC error", _H, _FAIL, Action.RESET),
    62: Xid("internal micro-controller halt", _H, _FAIL, Action.RESET),
    63: Xid("row remapping recorded, pending until a reset", _H, _WARN, Action.RESET),
    64: Xid("row remapping failed", _H, _FAIL, Action.RESET),
    69: Xid("graphics engine class error", _D, _WARN, Action.RESET_IF_IT_RETURNS),
    74: Xid("NVLink error", _L, _FAIL, Action.LINKS),
    78: Xid("vGPU start error", _D, _WARN, Action.NONE),
    79: Xid("GPU fell off the bus", _H, _FAIL, Action.REBOOT),
    92: Xid("high rate of corrected ECC errors", _H, _WARN, Action.RESET_IF_IT_RETURNS),
    93: Xid("InfoROM erase limit", _N, _PASS, Action.NONE),
    94: Xid("contained ECC error: only the application ended", _H, _WARN, Action.RESTART),
    95: Xid("uncontained ECC error", _H, _FAIL, Action.RESET),
    108: Xid("NVLink remote translation error", _A, _PASS, Action.APPLICATION),
    109: Xid("context switch timeout", _D, _WARN, Action.RESET_IF_IT_RETURNS),
    110: Xid("security fault", _H, _FAIL, Action.RESET),
    119: Xid("GSP firmware does not answer", _D, _FAIL, Action.RESET),
    120: Xid("GSP firmware error", _D, _FAIL, Action.RESET),
    121: Xid("corrected C2C link error", _H, _PASS, Action.NONE),
    136: Xid("NVLink training failed", _L, _FAIL, Action.LINKS),
    137: Xid("NVLink access without permission", _A, _PASS, Action.APPLICATION),
    140: Xid("unrecovered ECC error", _H, _FAIL, Action.RESET),
    141: Xid("fast path error", _N, _PASS, Action.NONE),
    143: Xid("GPU initialization error", _H, _FAIL, Action.RESET),
    144: Xid("NVLink SAW error", _L, _WARN, Action.LINKS),
    145: Xid("NVLink RLW error", _L, _WARN, Action.LINKS),
    146: Xid("NVLink TLW error", _L, _WARN, Action.LINKS),
    147: Xid("NVLink TREX error", _L, _WARN, Action.LINKS),
    148: Xid("NVLink NVLPW error", _L, _WARN, Action.LINKS),
    149: Xid("NVLink NETIR error", _L, _WARN, Action.LINKS),
    150: Xid("NVLink MSE error", _L, _WARN, Action.LINKS),
    151: Xid("key rotation error", _D, _WARN, Action.NONE),
    154: Xid("GPU recovery action changed", _N, _WARN, Action.REPORTED),
    155: Xid("NVLink software-defined error", _L, _WARN, Action.RESET),
    156: Xid("resource retired", _H, _WARN, Action.RESET),
    157: Xid("resource retirement failed", _H, _WARN, Action.RESET_IF_IT_RETURNS),
    158: Xid("GPU fatal timeout", _H, _FAIL, Action.RESET),
    159: Xid("CHI error on the coherent interface", _H, _WARN, Action.RESET_IF_IT_RETURNS),
    160: Xid("memory channel retired", _H, _WARN, Action.RESET_IF_IT_RETURNS),
    161: Xid("memory channel retirement failed", _H, _WARN, Action.RESET_IF_IT_RETURNS),
    167: Xid("PCIe fatal timeout", Blame.PCIE, _FAIL, Action.RESET),
    168: Xid("less GPU memory after errors", _H, _WARN, Action.RESET_IF_IT_RETURNS),
    169: Xid("SEC2 halt", _H, _WARN, Action.RESET),
    171: Xid("uncorrectable DRAM error", _H, _FAIL, Action.RESET),
    172: Xid("uncorrectable SRAM error", _H, _FAIL, Action.RESET),
    173: Xid("C2C link failed", _H, _FAIL, Action.REBOOT),
    176: Xid("PCIe correctable errors", Blame.PCIE, _WARN, Action.RESET_IF_IT_RETURNS),
}
"""One line is all that a number needs: everything else that is said or concluded of it follows from it."""

RECOVERY_CHANGED = 154
"""What the driver logs when it asks for a recovery of a GPU, after the Xid that is why."""
C2C_XIDS = frozenset({121, 159, 173})
"""Those of the link between a GPU and its CPU, and of the coherent interface behind it."""

_UNKNOWN = Xid("not in egmctl's catalogue", Blame.UNKNOWN, _WARN, Action.NONE)


def meaning(event: KernelEvent) -> Xid:
    """Return what an Xid means; NVLink 5's own word (Fatal, Nonfatal) outranks the catalogue."""
    found = XIDS.get(event.number or -1, _UNKNOWN)
    if event.caused_by is not None and event.number == 45:
        return XIDS[45]
    if found.blame is Blame.LINK and event.fatal is not None:
        return Xid(found.name, found.blame, _FAIL if event.fatal else _WARN, found.action)
    if event.number == 154 and "to 0x0 " in event.text:
        return Xid(found.name, found.blame, _PASS, Action.NONE)
    return found


def remedy(meaning_: Xid) -> Remedy:
    """Return what to do about an Xid."""
    match meaning_.action:
        case Action.RESET:
            return Remedy(
                text="Drain the node, end every process on the GPU, and reset it; reboot where a reset is refused.",
                command="nvidia-smi --gpu-reset",
                needs_root=True,
            )
        case Action.RESET_IF_IT_RETURNS:
            return Remedy(
                text="Drain and reset the GPU if it happens again; report it to NVIDIA if a reset does not help."
            )
        case Action.REBOOT:
            return Remedy(
                text="Drain and power-cycle the node; inspect or replace the GPU or its board if it happens again.",
                needs_root=True,
                needs_reboot=True,
            )
        case Action.LINKS:
            return Remedy(
                text="Compare the link's state and error counters at both ends; reset the GPU, then inspect or replace "
                "the cable, the switch port or the GPU.",
                command="nvidia-smi nvlink --errorcounters",
            )
        case Action.APPLICATION:
            return Remedy(text="Restart the application, and look for its out-of-bounds access with compute-sanitizer.")
        case Action.RESTART:
            return Remedy(
                text="Restart the application, whose fault it is not; reset the GPU once it is idle, so that the row "
                "of its memory is remapped.",
                command="nvidia-smi -q -d ROW_REMAPPER",
            )
        case Action.REPORTED:
            return Remedy(text="Do what the line requires; nvidia-smi -q shows the pending recovery action.")
        case Action.NONE:
            return Remedy(text="Look the number up in NVIDIA's Xid catalogue.")


@dataclass(frozen=True, slots=True)
class Meaning:
    """One message's meaning."""

    status: Status
    meaning: str
    remedy: Remedy


_FIRMWARE = Remedy(text="Update the node's firmware (SBIOS), then report the line to its vendor.", needs_reboot=True)
_EGM_FABRIC = Remedy(
    text="Make EGM equal on all trays (firmware) and in Fabric Manager, then restart Fabric Manager.", needs_root=True
)
_FABRIC = Remedy(
    text="Check Fabric Manager (nvlsm, nvidia-fabricmanager) and its log, then reset the GPU.", needs_root=True
)
_RESET = Remedy(
    text="Drain and reset the GPU; inspect the NVLink cable or board if it returns.",
    command="nvidia-smi --gpu-reset",
    needs_root=True,
)
_IMEX = Remedy(
    text="Restart the IMEX service on every node of the domain.",
    command="systemctl restart nvidia-imex",
    needs_root=True,
)
_REGKEY = Remedy(
    text="Remove the registry key from the driver's NVreg_RegistryDwords and reload the driver.", needs_root=True
)
_ONLINE = Remedy(text="Boot with memhp_default_state=online_movable.", needs_root=True, needs_reboot=True)
_POWER = Remedy(text="Drain and power-cycle the node; inspect or replace the GPU if it returns.", needs_reboot=True)
_CGROUP = Remedy(text="Give the job every GPU of the node: its device cgroup lacks the GPU that owns the memory.")

_MESSAGES_FAIL, _MESSAGES_WARN = Status.FAIL, Status.WARN

MESSAGES: dict[M, Meaning] = {
    M.EGM_ADDRESS: Meaning(_MESSAGES_FAIL, "the firmware's EGM address is incorrect", _FIRMWARE),
    M.EGM_HSHUB: Meaning(_MESSAGES_FAIL, "EGM could not be set up in the GPU's hub", _FIRMWARE),
    M.EGM_PEER_IN_USE: Meaning(_MESSAGES_FAIL, "the peer id of local EGM is taken", _REGKEY),
    M.EGM_NO_FABRIC_ADDRESS: Meaning(
        _MESSAGES_FAIL, "a GPU with EGM has no EGM fabric address, which turns its whole NVLink P2P off", _EGM_FABRIC
    ),
    M.EGM_UNEXPECTED_FABRIC_ADDRESS: Meaning(
        _MESSAGES_FAIL, "a GPU without NVSwitch has an EGM fabric address", _EGM_FABRIC
    ),
    M.EGM_NOT_ENABLED: Meaning(_MESSAGES_FAIL, "Fabric Manager requires EGM, but the GPU has it off", _EGM_FABRIC),
    M.EGM_FABRIC_BASE: Meaning(_MESSAGES_FAIL, "two GPUs were given one EGM fabric address", _EGM_FABRIC),
    M.EGM_INVALID_FABRIC_ADDRESS: Meaning(_MESSAGES_FAIL, "an invalid EGM fabric address", _EGM_FABRIC),
    M.EGM_PEER_MISSING: Meaning(_MESSAGES_FAIL, "a GPU has no EGM route to the owner of host memory", _CGROUP),
    M.NO_P2P_FOR_SYSTEM_MEMORY: Meaning(
        _MESSAGES_WARN,
        "a GPU tried to map another GPU's host memory that is not EGM",
        Remedy(text="Turn EGM on in the firmware, or allocate host memory at a HOST_NUMA node.", needs_reboot=True),
    ),
    M.NO_FABRIC_ADDRESS: Meaning(_MESSAGES_FAIL, "a GPU has no fabric address", _FABRIC),
    M.P2P_DISABLED: Meaning(_MESSAGES_FAIL, "P2P is disabled", _REGKEY),
    M.C2C_P2P: Meaning(_MESSAGES_FAIL, "a P2P mapping over C2C failed", _RESET),
    M.C2C_SELF_TEST: Meaning(_MESSAGES_FAIL, "the C2C link failed its self test", _POWER),
    M.SWITCH_TRAINING: Meaning(_MESSAGES_FAIL, "links to an NVSwitch did not train", _RESET),
    M.SYSMEM_LINK_TRAINING: Meaning(_MESSAGES_FAIL, "links to the CPU did not train", _POWER),
    M.NVLINK_ACTIVATION: Meaning(_MESSAGES_FAIL, "an NVLink could not be activated", _RESET),
    M.NVLINK_ALI: Meaning(_MESSAGES_FAIL, "an NVLink did not train (ALI)", _RESET),
    M.NVLINK_RECEIVER_DETECT: Meaning(_MESSAGES_WARN, "the receivers of NVLinks were not detected", _RESET),
    M.NVLINK_UNCONTAINED: Meaning(_MESSAGES_FAIL, "an uncontained NVLink error", _RESET),
    M.NVLINK_DEGRADED: Meaning(_MESSAGES_FAIL, "a GPU was marked degraded after an NVLink error", _RESET),
    M.COHERENT_MAPPINGS_OFF: Meaning(_MESSAGES_WARN, "a registry key turns mappings over NVLink-C2C off", _REGKEY),
    M.FABRIC_PROBE: Meaning(_MESSAGES_FAIL, "the fabric refused the GPU, or did not answer", _FABRIC),
    M.FABRIC_INBAND: Meaning(_MESSAGES_FAIL, "the fabric's manager cannot be reached", _FABRIC),
    M.CLIQUE_MISMATCH: Meaning(
        _MESSAGES_FAIL,
        "memory of a GPU in another clique was imported",
        Remedy(text="Run the job within one clique (partition) of the NVLink domain."),
    ),
    M.BANDWIDTH_MODE_MISMATCH: Meaning(
        _MESSAGES_FAIL,
        "memory of a GPU in another NVLink bandwidth mode was imported",
        Remedy(text="Set one NVLink bandwidth mode on all GPUs.", needs_root=True),
    ),
    M.OWNER_NOT_ACCESSIBLE: Meaning(
        _MESSAGES_FAIL, "memory was imported without access to the GPU that owns it", _CGROUP
    ),
    M.IMEX_SHUTDOWN: Meaning(_MESSAGES_FAIL, "the IMEX daemon ended and fabric allocations are disabled", _IMEX),
    M.IMEX_RECOVERY: Meaning(_MESSAGES_WARN, "a daemon's end made the driver end the jobs that shared memory", _IMEX),
    M.MEMORY_NOT_MOVABLE: Meaning(
        _MESSAGES_FAIL, "the GPU's memory could not go online: the zone is not movable", _ONLINE
    ),
    M.MEMORY_ADD: Meaning(_MESSAGES_FAIL, "the GPU's memory could not be added to the system", _ONLINE),
    M.SMMU_SVA: Meaning(
        _MESSAGES_FAIL,
        "the SMMU's shared virtual addressing could not be enabled, so that the GPU has no ATS",
        Remedy(text="Boot a kernel with CONFIG_ARM_SMMU_V3_SVA and CONFIG_IOMMU_SVA.", needs_reboot=True),
    ),
    M.FELL_OFF_BUS: Meaning(_MESSAGES_FAIL, "a GPU fell off the bus", _POWER),
    M.INIT_FAILED: Meaning(_MESSAGES_FAIL, "a GPU could not be initialized", _POWER),
}


_MANY_CORRECTED = 100
"""Corrected PCIe errors of one device from which on a link is called noisy. Chosen: a healthy link logs none; a link
that repairs some a day works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFault:
    """Events that say the same of the same device."""

    status: Status
    """``pass`` for what needs no operator."""
    place: Place
    where: str
    """``GPU2``, else the device's bus id, with what it is where that is known."""
    name: str
    """``Xid 79, GPU fell off the bus``."""
    title: str
    """Device and name in one line."""
    blame: Blame
    remedy: Remedy
    events: tuple[KernelEvent, ...]

    @property
    def times(self) -> str:
        """How often, where that is not in the title: ``, 3 times``."""
        many = len(self.events) > 1 and self.events[0].kind is not EventKind.AER
        return f", {len(self.events)} times" if many else ""


def kernel_faults(machine: Machine, events: Iterable[KernelEvent]) -> Iterator[KernelFault]:
    """Yield what events mean, those of one kind together: Xids, SXids, PCIe errors, messages of the driver.

    PCIe errors count of the node's GPUs, NVSwitches and NICs, and of the bridges above them.
    """
    by_kind: dict[EventKind, list[KernelEvent]] = {kind: [] for kind in EventKind}
    for event in events:
        by_kind[event.kind].append(event)
    for kind, those in by_kind.items():
        match kind:
            case EventKind.XID:
                yield from _xids(machine, those)
            case EventKind.SXID:
                yield from _sxids(those)
            case EventKind.AER:
                yield from _pcie(machine, those)
            case EventKind.DRIVER:
                yield from _messages(machine, those)
            case _:
                assert_never(kind)


def _xids(machine: Machine, events: Sequence[KernelEvent]) -> Iterator[KernelFault]:
    for (number, bus_id, status), group in by_value(events, lambda e: (e.number, e.bus_id, meaning(e).status)):
        one, place = meaning(group[0]), _place(machine, bus_id)
        where = place.label or str(bus_id)
        yield KernelFault(
            status=status,
            place=place,
            where=where,
            name=f"Xid {number}, {one.name}",
            title=f"{where}: Xid {number}, {one.name}",
            blame=one.blame,
            remedy=remedy(one),
            events=tuple(group),
        )


def _sxids(events: Sequence[KernelEvent]) -> Iterator[KernelFault]:
    for (number, bus_id, fatal), group in by_value(events, lambda e: (e.number, e.bus_id, e.fatal)):
        link = "" if group[0].link is None else f" on link {group[0].link}"
        where = f"NVSwitch {bus_id}"
        # Unless the line says Non-fatal it is taken for fatal, as NVIDIA's own monitors do.
        name = f"SXid {number}{link}, {'non-fatal' if fatal is False else 'fatal'}"
        yield KernelFault(
            status=Status.WARN if fatal is False else Status.FAIL,
            place=NODE,
            where=where,
            name=name,
            title=f"{where}: {name}",
            blame=Blame.SWITCH,
            remedy=Remedy(
                text="Look up the number in the Fabric Manager guide; reset all GPUs and NVSwitches of the node "
                "together, then inspect or replace the switch or the GPU at that link.",
                needs_root=True,
            ),
            events=tuple(group),
        )


def _pcie(machine: Machine, events: Sequence[KernelEvent]) -> Iterator[KernelFault]:
    known = _devices(machine)
    those = [event for event in events if event.bus_id in known]
    for (bus_id, corrected, fatal), group in by_value(those, lambda e: (e.bus_id, e.corrected, e.fatal)):
        what = "corrected" if corrected else "fatal" if fatal else "non-fatal"
        few = corrected and len(group) < _MANY_CORRECTED
        where, name = known[bus_id or ""], several(len(group), f"{what} PCIe error")
        yield KernelFault(
            status=Status.PASS if few else Status.FAIL if fatal else Status.WARN,
            place=_below(machine, bus_id),
            where=where,
            name=name,
            title=f"{where}: {name}",
            blame=Blame.PCIE,
            remedy=Remedy(
                text="Reseat or replace the card, its riser or cable; compare the link's width and speed (lspci -vv)."
            ),
            events=tuple(group),
        )


def _messages(machine: Machine, events: Sequence[KernelEvent]) -> Iterator[KernelFault]:
    for message, group in by_value(events, lambda e: e.message):
        if message is None:
            continue
        known = MESSAGES[message]
        place = _place(machine, group[0].bus_id) if len({e.bus_id for e in group}) == 1 else NODE
        name = f"the driver logged: {known.meaning}"
        yield KernelFault(
            status=Status.FAIL if known.status is Status.FAIL else Status.WARN,
            place=place,
            where=place.label,
            name=name,
            title=name,
            blame=Blame.UNKNOWN,
            remedy=known.remedy,
            events=tuple(group),
        )


def _place(machine: Machine, bus_id: str | None) -> Place:
    gpus = [gpu for gpu in machine.gpus or () if gpu.bus_id == bus_id]
    return on_gpus(gpus) if gpus else NODE


def _below(machine: Machine, bus_id: str | None) -> Place:
    """Return the place of a GPU, or of those below a bridge: all that they send crosses it."""
    below = [gpu for gpu in machine.gpus or () if gpu.pci is not None and bus_id in (gpu.pci.path or ())]
    return on_gpus(below) if below else _place(machine, bus_id)


def _devices(machine: Machine) -> dict[str, str]:
    """Return the PCIe devices whose errors matter here, and what to call them."""
    bridges = (machine.system.bridges if machine.system else None) or ()
    return {
        **{bridge.bus_id: f"PCIe bridge {bridge.bus_id}" for bridge in bridges},
        **{nic.pci.bus_id: nic.name for nic in machine.nics or () if nic.pci is not None},
        **{switch.pci.bus_id: f"NVSwitch {switch.pci.bus_id}" for switch in machine.switches or () if switch.pci},
        **{gpu.bus_id: f"GPU{gpu.index}" for gpu in machine.gpus or ()},
    }
