"""Through which wire of a GPU the bytes of a flow go: pure."""

from __future__ import annotations

from egmctl.model.evidence import Wire
from egmctl.model.task import Flow, MemoryKind


def wire_of(flow: Flow) -> Wire | None:
    """Return the wire that a flow is expected to use at the GPU that issues it.

    ``None`` if it leaves no GPU, or UCX chooses the way.
    """
    if flow.wire.startswith("UCX"):
        return None
    if flow.initiator is None or flow.stays:
        return None
    first = symbol(flow).partition(">")[0]
    return Wire.NVLINK if first.startswith("NV") else Wire.C2C if first == "C2C" else Wire.PCIE


def symbol(flow: Flow) -> str:
    """Return the way of a flow without the kind of memory: ``NV18>C2C`` of ``EGM over NV18>C2C``.

    The names are those of :mod:`egmctl.bench.paths`: ``NV18``, ``HOST_NUMA over PCIe, not EGM``, ``PHB``.
    """
    return flow.wire.partition(" over ")[2].partition(",")[0] or flow.wire


def sends(flow: Flow) -> bool:
    """Say whether the GPU that issues a flow sends the bytes; a GPU that only reads or only writes is no end itself."""
    if flow.source.memory is MemoryKind.REGISTERS:
        return True
    if flow.destination.memory is MemoryKind.REGISTERS:
        return False
    return flow.pushed
