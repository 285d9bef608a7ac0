"""Kinds of host memory side by side: what each path reaches with each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from egmctl.bench.engines import engine_for
from egmctl.model.measurement import Engine, Measurement, MemoryKind, Pattern
from egmctl.model.memory import NUMA_MEMORY
from egmctl.model.route import Egm
from egmctl.report.document import EMPTY, Better, Cell, Matrix, Series
from egmctl.report.views.bench_cells import Frame
from egmctl.report.views.bench_matrix import ends

_KINDS = {
    MemoryKind.HOST_NUMA: "VMM",
    MemoryKind.HOST_NUMA_POOL: "pool",
    MemoryKind.HOST_NUMA_DEFAULT_POOL: "default pool",
    MemoryKind.HOST_DEFAULT_POOL: "host pool",
    MemoryKind.PINNED: "pinned",
    MemoryKind.REGISTERED: "registered",
    MemoryKind.HUGETLB: "hugetlb",
    MemoryKind.THP: "THP",
    MemoryKind.MANAGED: "managed",
    MemoryKind.SYSTEM: "system",
}


def side_by_side(measurements: Sequence[Measurement], frame: Frame) -> Iterator[Matrix]:
    """Yield a table for each direction and engine that were measured with several kinds of host memory."""
    for engine in (Engine.COPY_ENGINE, Engine.SM_COPY):
        for to_gpu in (True, False):
            cells: dict[MemoryKind, dict[tuple[str, str], Measurement]] = {}
            for m in measurements:
                host, gpu = ends(m.flows[0])
                alike = (
                    m.engine is engine
                    and m.pattern is Pattern.PAIR
                    and m.streams == 1
                    and m.blocks is None
                    and gpu.bus_id is not None
                    and not m.ranks
                    and host.allocated_by is None
                )
                if alike and host.memory in _KINDS and (m.flows[0].source == host) is to_gpu:
                    cells.setdefault(host.memory, {})[host.label, gpu.label] = m
            if len(cells) < 2 or len({m.size_bytes for those in cells.values() for m in those.values()}) > 1:
                continue
            arrow = "->" if to_gpu else "<-"
            kinds = [kind for kind in _KINDS if kind in cells]
            yield Matrix(
                caption=f"{engine_for(engine).caption} host memory(row) {arrow} GPU(column) by kind of memory (GB/s)",
                notes=(_what_is_host_numa(cells),) if NUMA_MEMORY & set(cells) else (),
                rows=tuple(_KINDS[kind] for kind in kinds),
                groups=tuple(
                    (Series(header=path, cells=tuple(_cell(cells[kind].get(path), frame) for kind in kinds)),)
                    for path in _paths(cells, frame.order)
                ),
                better=Better.HIGH,
            )


def _paths(
    cells: Mapping[MemoryKind, Mapping[tuple[str, str], Measurement]], order: Sequence[str]
) -> list[tuple[str, str]]:
    places = {label: place for place, label in enumerate(order)}
    return sorted({path for those in cells.values() for path in those}, key=lambda path: [places[p] for p in path])


def _cell(measurement: Measurement | None, frame: Frame) -> Cell:
    return EMPTY if measurement is None else frame.bandwidth(measurement, 0)


def _what_is_host_numa(cells: dict[MemoryKind, dict[tuple[str, str], Measurement]]) -> str:
    egm = {m.flows[0].route.egm for kind, those in cells.items() if kind in NUMA_MEMORY for m in those.values()}
    if egm == {Egm.YES}:
        return "VMM and pool are EGM; the others are not"
    return "VMM and pool are HOST_NUMA memory, " + ("not EGM" if egm == {Egm.NO} else "EGM where the matrices say so")
