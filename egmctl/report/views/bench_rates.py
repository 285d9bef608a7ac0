"""What a run measured over each link, for the drawing of the topology."""

from __future__ import annotations

from egmctl.model.measurement import Engine, Measurement, MemoryKind, Pattern, Quantity, RunReport

_HOST = (MemoryKind.HOST_NUMA, MemoryKind.HOST_NUMA_POOL, MemoryKind.PINNED, MemoryKind.REGISTERED)
"""The first of these that was measured stands for its link."""


def rates(report: RunReport) -> tuple[dict[tuple[str, str], float], tuple[str, ...]]:
    """Return the GB/s of single copies by copy engines, by the labels of source and destination, and the cases.

    Of several cases with the same ends, such as pushed and pulled copies, the first one counts.
    """
    found: dict[tuple[str, str], float] = {}
    cases: dict[str, None] = {}
    for m in sorted(filter(_plain, report.measurements), key=_rank):
        flow = m.flows[0]
        ends = flow.source.label, flow.destination.label
        if ends not in found and m.bandwidth_gb_s is not None:
            found[ends] = m.bandwidth_gb_s.median
            cases[m.case] = None
    return found, tuple(cases)


def _plain(m: Measurement) -> bool:
    alone = m.pattern is Pattern.PAIR and len(m.flows) == 1 and m.streams == 1
    own = not m.flows[0].through_gpu and all(
        end.handle is None and end.allocated_by is None for flow in m.flows for end in (flow.source, flow.destination)
    )
    measured = m.quantity is Quantity.BANDWIDTH and m.measured
    direct = not any(flow.route.staged for flow in m.flows)
    return alone and own and direct and measured and m.engine is Engine.COPY_ENGINE


def _rank(m: Measurement) -> tuple[int, int]:
    """Order by kind of host memory, and sizes from the largest."""
    flow = m.flows[0]
    kind = next((end.memory for end in (flow.source, flow.destination) if end.bus_id is None), MemoryKind.HOST_NUMA)
    return (_HOST.index(kind) if kind in _HOST else len(_HOST)), -m.size_bytes
