"""Access Control Services (ACS): the bits that each PCIe port needs for direct access between GPUs and NICs.

The required bits depend on the topology. A port of a plain switch must not redirect. Grace and Vera root ports need the
defaults of Linux. Around a Data Direct function of a ConnectX, the bits differ between ports. The classes and their
bits are those of NVIDIA's ``rdma_topo`` (rdma-core, ``kernel-boot``); they were taken from its source and not tested.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.model.host import Bridge, PciFunction, System
from egmctl.model.machine import Machine
from egmctl.model.record import Reason

REDIRECT = 0b01100
"""The bits for request redirect and completion redirect. Source validation, bit 0, redirects nothing."""

_OFF = "xx000x0"
_GRACE_DEFAULT, _VERA_DEFAULT = "xx111x1", "xx101x1"
"""The defaults of Linux with an IOMMU: upstream forwarding, redirects and source validation. On Vera, completion
redirect is fixed at 0."""

_NVIDIA, _MELLANOX = 0x10DE, 0x15B3
_GRACE = frozenset((_NVIDIA, device) for device in (0x22B1, 0x22B2, 0x22B8))
_VERA = frozenset((_NVIDIA, device) for device in (0x2F95, 0x2F96))
_CONNECTX_SWITCH = frozenset((_MELLANOX, device) for device in (0x1979, 0x197C))
_BLUEFIELD_SWITCH = frozenset({(_MELLANOX, 0x197B)})
_CONNECTX = frozenset((_MELLANOX, device) for device in (0x1021, 0x1023, 0x1025))
"""The ids of ConnectX-7, -8 and -9."""


class AcsKind(StrEnum):
    """The topology classes of GPUs and NICs for ACS."""

    DATA_DIRECT = "Data Direct functions beside GPUs, below Grace root ports"
    ROOT_PORTS = "GPUs directly below Grace or Vera root ports"
    NIC_SWITCH = "GPUs and NICs below the NICs' own switches"
    PLAIN = "plain PCIe switches"


@dataclass(frozen=True, slots=True)
class Acs:
    """The ACS bits that the ports of a machine need."""

    kind: AcsKind
    ports: Mapping[str, str]
    """The bits of each port by bus id, bit 6 to bit 0 in the format of ``config_acs=``; ``x`` is a bit without
    influence. Empty for plain switches, where only :data:`REDIRECT` counts."""
    defaults: Mapping[str, str]
    """The defaults of Linux for each of the ports."""

    @property
    def parameter(self) -> str:
        """The kernel parameter that sets the bits at boot; empty if the defaults are right."""
        others = [f"{bits}@{port}" for port, bits in sorted(self.ports.items()) if bits != self.defaults.get(port)]
        return f'pci=config_acs="{";".join(others)}"' if others else ""


class UnrecognisedError(Exception):
    """The topology is of no known class or was not read. The message has the reason."""


def corrected(bits: str, control: int) -> int:
    """Return a control register with the bits that a port needs; bits marked ``x`` do not change."""
    for position, bit in enumerate(reversed(bits)):
        if bit != "x":
            control = control & ~(1 << position) | int(bit) << position
    return control


def required_acs(machine: Machine) -> Acs:
    """Return the ACS bits for the ports above GPUs and NICs.

    Raises
    ------
    UnrecognisedError
        The topology is unknown, so the right bits are unknown too.
    """
    system = machine.system or System()
    if system.bridges is None or machine.gpus is None:
        raise UnrecognisedError("the PCIe bridges were not read")
    # Data Direct functions are those of NICs.
    if system.data_direct is None and machine.nics != ():
        raise UnrecognisedError("whether a NIC has a Data Direct function was not read")
    tree = _Tree(machine)
    if system.data_direct:
        return Acs(AcsKind.DATA_DIRECT, tree.around(system.data_direct), tree.defaults())
    if any(path and tree.are(_GRACE | _VERA, path[-1]) for path in tree.gpu_paths):
        return Acs(AcsKind.ROOT_PORTS, tree.defaults(), tree.defaults())
    if any(tree.are(_CONNECTX_SWITCH | _BLUEFIELD_SWITCH, port) for path in tree.gpu_paths for port in path):
        return Acs(AcsKind.NIC_SWITCH, tree.below_nic_switches(), tree.defaults())
    if (machine.host.architecture if machine.host else None) != "x86_64":
        raise UnrecognisedError("GPUs are neither below a Grace or Vera root port nor on an x86-64 machine")
    return Acs(AcsKind.PLAIN, {}, {})


class _Tree:
    """The ports above a machine's GPUs and NICs."""

    def __init__(self, machine: Machine) -> None:
        system = machine.system or System()
        self._machine = machine
        self._system = system
        self._ports: dict[str, Bridge] = {bridge.bus_id: bridge for bridge in system.bridges or ()}
        self.gpu_paths = [self._path(gpu.pci, f"GPU{gpu.index}") for gpu in machine.gpus or ()]

    def _path(self, function: PciFunction | None, name: str) -> tuple[str, ...]:
        """Return the ports above a function, starting at the root port."""
        if function is None or function.path is None:
            raise UnrecognisedError(f"where {name} is on PCIe was not read")
        path = function.path[1:]
        if any(port not in self._ports or None in _id(self._ports[port]) for port in path):
            raise UnrecognisedError(f"which bridges are above {name} was not read")
        return path

    def are(self, ids: frozenset[tuple[int, int]], *ports: str) -> bool:
        """Return whether all of these ports have one of the PCI ids."""
        return all(port in self._ports and _id(self._ports[port]) in ids for port in ports)

    def defaults(self) -> dict[str, str]:
        """Return the defaults of Linux by port, for ports with ACS of a known part."""
        return {port: _VERA_DEFAULT if self.are(_VERA, port) else _GRACE_DEFAULT for port in self._with_acs()}

    def _with_acs(self) -> Iterator[str]:
        for port, bridge in self._ports.items():
            has_none = bridge.reason_of("acs_control") is Reason.NOT_SUPPORTED
            if not has_none and self.are(_GRACE | _VERA | _CONNECTX_SWITCH | _BLUEFIELD_SWITCH, port):
                yield port

    def around(self, functions: tuple[PciFunction, ...]) -> dict[str, str]:
        """Return the bits for Data Direct functions, each of which shares a ConnectX switch with one GPU.

        The GPU is below a further switch of its own: root port, switch, switch, GPU.
        """
        ports = self.defaults()
        for function in functions:
            path = self._path(function, f"the Data Direct function {function.bus_id}")
            beside = [gpu for gpu in self.gpu_paths if path and gpu[:1] == path[:1]]
            known = (
                len(path) == 3
                and self.are(_GRACE, path[0])
                and len(beside) == 1
                and len(beside[0]) == 5
                and beside[0][1] == path[1]
                and beside[0][2] != path[2]
                and self.are(_CONNECTX_SWITCH, *path[1:], *beside[0][2:])
            )
            if not known:
                raise UnrecognisedError(f"the Data Direct function {function.bus_id} is in no known place beside a GPU")
            # Without source validation at the root port, the kernel puts the whole tree into one IOMMU group.
            ports |= {path[0]: "xx111x0", path[2]: "xx110x1", beside[0][2]: "xx101x1"}
        return ports

    def below_nic_switches(self) -> dict[str, str]:
        """Return the bits for GPUs that are each below the switch of one ConnectX.

        A NIC with ATS is configured for virtual machines. Then only the NIC's own port passes translated requests
        directly.
        """
        nics = [nic for nic in self._machine.nics or () if _id(nic.pci) in _CONNECTX]
        ats = {nic.name: (self._system.ats or {}).get(nic.pci.bus_id if nic.pci else "") for nic in nics}
        if not nics or None in ats.values() or len(set(ats.values())) > 1:
            raise UnrecognisedError("whether all NICs, or none, have address translation (ATS) was not read")
        usual, nic_side = (_GRACE_DEFAULT, "1x111x1") if all(ats.values()) else (_OFF, _OFF)
        ports = dict.fromkeys(self._with_acs(), usual)
        nic_paths = [self._path(nic.pci, nic.name) for nic in nics]
        for gpu in self.gpu_paths:
            if len(gpu) < 5 or not self.are(_CONNECTX_SWITCH, *gpu[-4:]):
                raise UnrecognisedError(f"the GPU below {gpu[-1] if gpu else 'no bridge'} is not below a NIC's switch")
            shared = gpu[-4]
            beside = {path[path.index(shared) + 1] for path in nic_paths if shared in path[:-1]}
            sharing = {path[path.index(shared) + 1] for path in self.gpu_paths if shared in path[:-1]}
            if len(beside) != 1 or len(sharing) != 1 or beside == sharing:
                raise UnrecognisedError(f"the switch {shared} is not shared by one GPU and one NIC")
            ports |= {gpu[0]: usual, beside.pop(): nic_side}
        return ports


def _id(function: PciFunction | Bridge | None) -> tuple[int | None, int | None]:
    return (None, None) if function is None else (function.vendor_id, function.device_id)
