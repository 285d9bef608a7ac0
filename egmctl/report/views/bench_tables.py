"""The matrices and tables of a run, by family; of so many GPUs that no matrix can be read, a table for each case."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from egmctl.model.measurement import Measurement, Quantity, RunReport, Status
from egmctl.model.task import UCX_ENGINES
from egmctl.report.document import Chart, Matrix
from egmctl.report.views.bench_cells import Frame
from egmctl.report.views.bench_fold import FOLDED_ABOVE, folded
from egmctl.report.views.bench_host_kinds import side_by_side
from egmctl.report.views.bench_ipc import beside, life_cycles
from egmctl.report.views.bench_latency import latencies
from egmctl.report.views.bench_matrix import matrices
from egmctl.report.views.bench_rdma import messages

_FAMILIES = {
    "egm": "Memory of NUMA nodes",
    "host": "Other host memory",
    "p2p": "Between GPUs",
    "ipc": "Between processes",
    "latency": "Latency",
    "rdma": "RDMA",
    "": "By case",
}


def families(report: RunReport) -> Iterator[tuple[str, tuple[Matrix | Chart, ...]]]:
    """Yield the tables of each family under its title, in the order of measuring; none of waived ones."""
    if len(report.ranks) > FOLDED_ABOVE:
        yield _FAMILIES[""], tuple(folded(report))
        return
    frame = Frame.of(report)
    # A series by the number of SMs has a section of its own (egmctl.report.views.bench_sms).
    single = [m for m in report.measurements if m.blocks is None]
    for family in dict.fromkeys(m.family for m in single):
        found = list(tables([m for m in single if m.family == family], frame))
        if family == "host":
            found += side_by_side(_bandwidths(report), frame)
        if family == "ipc":
            found += [*life_cycles(report.measurements), *beside(report)]
        if found:
            yield _FAMILIES.get(family, family), tuple(found)


def tables(measurements: Sequence[Measurement], frame: Frame) -> Iterator[Matrix | Chart]:
    """Yield the tables of some measurements: bandwidths by case, latencies, messages."""
    by_ucx = [m for m in measurements if m.engine in UCX_ENGINES]
    others = [m for m in measurements if m.engine not in UCX_ENGINES]
    bandwidths = [m for m in others if m.quantity is Quantity.BANDWIDTH]
    for case in dict.fromkeys(measurement.case for measurement in bandwidths):
        yield from matrices([m for m in bandwidths if m.case == case], frame)
    yield from latencies([m for m in others if m.quantity is Quantity.LATENCY], frame)
    yield from messages(by_ucx)


def _bandwidths(report: RunReport) -> list[Measurement]:
    return [m for m in report.measurements if m.quantity is Quantity.BANDWIDTH and m.status is not Status.WAIVED]
