"""The text of ``egmctl topo`` where the GPUs cannot be asked: what was found anyway, what is missing, what to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.text import Text

from egmctl.model.machine import Machine, PciFunction
from egmctl.report.origin import modelled_banner
from egmctl.report.table import DIM, HEADING, WARN, trimmed, wrap
from egmctl.report.topo_detail import numa_lines
from egmctl.topology.missing import Missing
from egmctl.units import printable


def missing_text(machine: Machine, what: Missing) -> Text:
    """Render what is missing on a machine."""
    text = Text.assemble(modelled_banner(machine), (f"{what.sentence}\n", WARN))
    found = list(_found(machine))
    width = max((len(label) for label, _ in found), default=0)
    if found:
        text.append("\nFound\n", HEADING)
    for label, value in found:
        text.append(f"  {label.ljust(width)}  ", DIM).append(f"{printable(value)}\n")
    _section(text, "Missing", what.missing)
    _section(text, "What to do", what.advice)
    return trimmed(text)


def _section(text: Text, title: str, lines: Iterable[str]) -> None:
    body = "".join(wrap(printable(line)) for line in lines)
    if body:
        text.append(f"\n{title}\n", HEADING).append(body)


def _found(machine: Machine) -> Iterator[tuple[str, str]]:
    yield from numa_lines(machine)
    for gpu in machine.gpus or ():
        yield f"GPU{gpu.index}", _pci(gpu.bus_id, gpu.pci)
    for number, switch in enumerate(machine.switches or ()):
        yield f"NVSwitch{number}", _pci(switch.pci.bus_id, switch.pci)
    for number, nic in enumerate(machine.nics or ()):
        yield f"NIC{number}", nic.name if nic.pci is None else f"{nic.name}, {_pci(nic.pci.bus_id, nic.pci)}"


def _pci(bus_id: str, pci: PciFunction | None) -> str:
    parts = [bus_id]
    if pci is not None and pci.vendor_id is not None and pci.device_id is not None:
        parts.append(f"{pci.vendor_id:04x}:{pci.device_id:04x}")
    if pci is not None and pci.numa_node is not None and pci.numa_node >= 0:
        parts.append(f"NUMA {pci.numa_node}")
    if pci is not None and pci.driver is not None:
        parts.append(f"driver {pci.driver or 'none'}")
    return ", ".join(parts)
