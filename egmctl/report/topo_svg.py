"""The drawing of a topology as a picture."""

from __future__ import annotations

from egmctl.report.drawing import drawing
from egmctl.report.origin import origin_banner
from egmctl.report.svg import stack
from egmctl.topology.topology import Topology


def topo_svg(topology: Topology) -> str:
    """Return the document."""
    banner = origin_banner(topology.machine.origin)
    return stack(f"Topology: {topology.platform.line}", [banner] if banner else [], [drawing(topology)])
