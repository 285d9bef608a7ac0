"""Measurements as tables: kinds of host memory, processes and UCX, and matrices that fold alike rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median

from egmctl.bench.engines import engine_for
from egmctl.model.measurement import Engine, Measurement, MemoryKind, Pattern, Quantity, RunReport, Status, Summary
from egmctl.model.route import HOST_NAMES, NUMA_MEMORY, Egm
from egmctl.model.task import UCX_ENGINES
from egmctl.model.ucx import UcxStaging
from egmctl.report.document import EMPTY, Better, Body, Cell, Chart, Matrix, Series
from egmctl.report.route_words import routes_words
from egmctl.report.views.bench_classes import Frame, columns_of, tone_of
from egmctl.report.views.bench_latency import latencies
from egmctl.report.views.bench_matrix import ends, matrices
from egmctl.units import format_size, printable

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


_FEW_US = 10.0
"""Fewer microseconds than this are shown with a decimal."""


def beside(report: RunReport) -> Iterator[Matrix]:
    """Yield what the paths of cases by several processes give, beside what the same paths give within one process."""
    found: dict[str, list[tuple[float, float]]] = {}
    latencies = set()
    for m in report.measurements:
        if m.in_process and m.timed is not None:
            found.setdefault(m.case, []).append((m.timed.median, m.in_process))
            if m.quantity is Quantity.LATENCY:
                latencies.add(m.case)
    if not found:
        return
    ratios = {case: [value / within for value, within in pairs] for case, pairs in found.items()}
    digits = {case: 1 if case in latencies else 2 for case in found}
    columns = {
        "paths": [str(len(pairs)) for pairs in found.values()],
        "unit": ["ns" if case in latencies else "GB/s" for case in found],
        "ipc": [f"{median(value for value, _ in pairs):.{digits[case]}f}" for case, pairs in found.items()],
        "within": [f"{median(one for _, one in pairs):.{digits[case]}f}" for case, pairs in found.items()],
        "ratio": [f"{median(those):.3f}" for those in ratios.values()],
        "min": [f"{min(those):.3f}" for those in ratios.values()],
        "max": [f"{max(those):.3f}" for those in ratios.values()],
    }
    yield Matrix(
        caption="Between processes, beside the same path within one process",
        notes=("median over the paths; the ratio is path by path: median, min and max",),
        rows=tuple(found),
        groups=columns_of(columns),
    )


def life_cycles(measurements: Sequence[Measurement]) -> Iterator[Matrix]:
    """Yield what the stages of the life of shared memory cost: the median over the pairs of each kind."""
    lives = [m for m in measurements if m.quantity is Quantity.DURATION]
    cases: dict[str, list[Measurement]] = {}
    for m in lives:
        cases.setdefault(m.case, []).append(m)
    cases = {case: those for case, those in cases.items() if any(m.status is not Status.WAIVED for m in those)}
    if not cases:
        return
    first = next(iter(cases.values()))[0]
    # One that has all stages gives their order.
    told = sorted(([stage.name for stage in m.stages] for those in cases.values() for m in those), key=len)
    stages = list(dict.fromkeys(name for names in reversed(told) for name in names))
    count = max(len(those) for those in cases.values())
    yield Matrix(
        caption=f"Life of {format_size(first.size_bytes)} of shared memory, stage by stage (us)",
        notes=(
            f"Median over up to {count} ordered pairs, by the host's clock; a dash where a kind has no such stage.",
        ),
        rows=tuple(_shared(those[0]) for those in cases.values()),
        groups=tuple(
            (Series(header=(stage,), cells=tuple(_stage(those, stage) for those in cases.values())),)
            for stage in stages or ["status"]
        ),
        better=Better.LOW if stages else None,
    )


def _shared(measurement: Measurement) -> str:
    """Say which memory is shared, and how it is opened."""
    end = measurement.flows[0].source
    memory = HOST_NAMES.get(end.memory, "device")
    return memory if end.handle is None else f"{memory}, {end.handle}"


def _stage(measurements: Sequence[Measurement], name: str) -> Cell:
    found: list[Summary] = [stage.ms for m in measurements for stage in m.stages if stage.name == name]
    if not found:
        bad = next((m for m in measurements if m.status is not Status.OK), None)
        return EMPTY if bad is None else Cell(text=bad.status.value, tone=tone_of(bad))
    us = 1e3 * median(summary.median for summary in found)
    return Cell(text=f"{us:.1f}" if us < _FEW_US else f"{us:.0f}")


_MEMORY = {MemoryKind.DEVICE: "device", MemoryKind.HOST_NUMA: "HOST_NUMA", MemoryKind.PINNED: "pinned"}

_STAGED = {None: "", UcxStaging.HOST: ", host-staged", UcxStaging.GPU: ", GPU-staged"}


def messages(measurements: Sequence[Measurement]) -> Iterator[Matrix]:
    """Yield one table of bandwidths and one of round trips; neither holds what was waived."""
    there = [m for m in measurements if m.status is not Status.WAIVED]
    columns: dict[str, Callable[[Measurement], str]]
    for engine in (Engine.UCX_PUT, Engine.UCX_GET):
        if one_sided := [m for m in there if m.engine is engine]:
            word = "put" if engine is Engine.UCX_PUT else "got"
            columns = {"size": lambda m: format_size(m.size_bytes), "GB/s": _gb_s, "register us": _register_us}
            yield _grid(f"Memory {word} one-sided by UCX (GB/s)", one_sided, columns)
    if bandwidths := [m for m in there if m.quantity is Quantity.BANDWIDTH and m.engine is Engine.UCX]:
        sizes = {m.size_bytes for m in bandwidths}
        columns = {"GB/s": _gb_s}
        if len(sizes) > 1:
            columns = {"size": lambda m: format_size(m.size_bytes)} | columns
        of = "" if len(sizes) > 1 else f" of {format_size(bandwidths[0].size_bytes)}"
        yield _grid(f"Messages{of} by UCX (GB/s)", bandwidths, columns)
        if by_device := [m for m in bandwidths if m.ucx is not None and m.ucx.devices]:
            yield _devices(by_device)
    if latencies := [m for m in there if m.quantity is Quantity.LATENCY]:
        size = latencies[0].chase.stride_bytes if latencies[0].chase else 0
        yield _grid(f"Round trips of {size} bytes by UCX (us)", latencies, {"median": _us, "p99": _p99})


def _grid(caption: str, those: Sequence[Measurement], columns: Mapping[str, Callable[[Measurement], str]]) -> Matrix:
    shown: dict[str, Callable[[Measurement], str]] = {
        "from": lambda m: _MEMORY[m.flows[0].source.memory],
        "to": lambda m: _MEMORY[m.flows[0].destination.memory],
        **columns,
        "way": _way,
    }
    return Matrix(
        caption=caption,
        notes=tuple(_verdicts(those)),
        rows=_bench_rdma_paths(those),
        groups=tuple(
            (Series(header=(name,), cells=tuple(Cell(text=text(m), tone=tone_of(m)) for m in those)),)
            for name, text in shown.items()
        ),
    )


def _devices(those: Sequence[Measurement]) -> Matrix:
    """Return what each network device of a sender reaches alone: the nearest NIC and what farther ones cost."""
    found = [(m, device) for m in those if m.ucx is not None for device in m.ucx.devices]
    columns = {
        "memory": [_MEMORY[m.flows[0].source.memory] for m, _ in found],
        "by": [device.name for _, device in found],
        "distance": [device.distance or "-" for _, device in found],
        "GB/s": ["-" if d.bandwidth_gb_s is None else f"{d.bandwidth_gb_s:.2f}" for _, d in found],
    }
    return Matrix(
        caption="Messages by one network device of the sender, one sample (GB/s)",
        rows=_bench_rdma_paths([m for m, _ in found]),
        groups=columns_of(columns),
    )


def _bench_rdma_paths(those: Sequence[Measurement]) -> tuple[str, ...]:
    """Name each by its ranks; where the receiver sends nothing, it is named by its memory."""
    flows = [m.flows[0] for m in those]
    known = {flow.initiator_rank: flow.initiator_label for flow in flows}
    return tuple(
        " -> ".join(known.get(end.rank, end.label) for end in (flow.source, flow.destination)) for flow in flows
    )


def _verdicts(those: Sequence[Measurement]) -> Iterator[str]:
    """Yield each verdict once, with the way that it is about as the table has it."""
    about = {m.ucx.verdict: _way(m) for m in those if m.ucx is not None}
    for verdict, way in about.items():
        yield printable(f"{way}: {verdict}" if len(about) > 1 else verdict)


def _way(measurement: Measurement) -> str:
    found = measurement.ucx
    return "-" if found is None else f"{found.route}{_STAGED[found.staging]}"


def _gb_s(measurement: Measurement) -> str:
    found = measurement.bandwidth_gb_s
    return _marked(measurement, None if found is None else f"{found.median:.2f}")


def _register_us(measurement: Measurement) -> str:
    """Return the dearer side's: the cheaper one's memory may have been registered before."""
    found = [stage.ms.max for stage in measurement.stages if stage.name == "register"]
    return f"{1e3 * found[0]:.0f}" if found else "-"


def _us(measurement: Measurement) -> str:
    found = measurement.latency_ns
    return _marked(measurement, None if found is None else f"{found.median / 1e3:.1f}")


def _p99(measurement: Measurement) -> str:
    found = [sample.p99_ns for sample in measurement.samples if sample.p99_ns is not None]
    return f"{max(found) / 1e3:.1f}" if found else "-"


def _marked(measurement: Measurement, number: str | None) -> str:
    if number is None or not measurement.measured:
        return measurement.status.value
    return f"{number}{'*' * (measurement.status is Status.UNSTABLE)}"


FOLDED_ABOVE = 16
"""Ranks: a matrix of so many is as wide as a wide terminal."""

_WORST = 5
"""Paths, and GPUs, that are named."""

_USUAL_DIFFERENCE = 0.01
"""Between the GPUs of one machine that is in order: 0.1 % was seen on H200."""


def folded(report: RunReport) -> Iterator[Matrix]:
    """Yield for each case a table of its routes; below it the paths and the GPUs that are farthest behind."""
    for case in dict.fromkeys(m.case for m in report.measurements):
        found = [m for m in report.measurements if m.case == case and m.headline is not None]
        if found:
            yield _folded(found)


def _folded(measurements: Sequence[Measurement]) -> Matrix:
    first = measurements[0]
    latency = first.quantity is Quantity.LATENCY
    unit, digits = ("ns", 1) if latency else ("GB/s", 2)
    by_route: dict[str, list[float]] = {}
    for m in measurements:
        by_route.setdefault(routes_words(flow.route for flow in m.flows), []).append(_value(m))
    columns = {"paths": [str(len(values)) for values in by_route.values()]}
    for name, pick in (("median", median), ("min", min), ("max", max)):
        columns[name] = [f"{pick(values):.{digits}f}" for values in by_route.values()]
    return Matrix(
        caption=f"{first.pattern.value}, {first.engine.value}, {first.quantity.value} ({unit})",
        names=first.case,
        notes=tuple(_behind(measurements, digits, latency=latency)),
        rows=tuple(by_route),
        groups=columns_of(columns),
    )


def _behind(measurements: Sequence[Measurement], digits: int, *, latency: bool) -> Iterator[str]:
    """Say which paths, and the paths of which GPUs, are farthest behind the others over the same links."""
    usual: dict[str, list[float]] = {}
    for m in measurements:
        usual.setdefault(m.flows[0].route.symbol, []).append(_value(m))
    medians = {link: median(values) for link, values in usual.items()}
    sign = -1 if latency else 1
    share = {id(m): _value(m) / medians[m.flows[0].route.symbol] for m in measurements}
    paths = sorted(measurements, key=lambda m: sign * share[id(m)])[:_WORST]
    yield "farthest behind: " + ", ".join(
        f"{m.path if len(m.flows) == 1 else m.flows[0].path + ' and others'} {_value(m):.{digits}f}" for m in paths
    )
    by_gpu: dict[str, list[float]] = {}
    for m in measurements:
        for flow in m.flows[:1]:
            by_gpu.setdefault(flow.initiator_label, []).append(share[id(m)])
    if len(by_gpu) > 1:
        behind = {label: median(shares) for label, shares in by_gpu.items()}
        gpus = [label for label in sorted(behind, key=lambda label: sign * behind[label]) if _is_odd(behind[label])]
        if gpus:
            told = ", ".join(f"{label} {100 * behind[label]:.1f} %" for label in gpus[:_WORST])
            yield f"by the GPU that issues the work, against the median of the link: {told}"


def _is_odd(share: float) -> bool:
    return abs(share - 1) > _USUAL_DIFFERENCE


def _value(measurement: Measurement) -> float:
    summary = measurement.headline
    return 0.0 if summary is None else summary.median


_FAMILIES = {
    "egm": "Memory of NUMA nodes",
    "host": "Other host memory",
    "p2p": "Between GPUs",
    "ipc": "Between processes",
    "latency": "Latency",
    "rdma": "RDMA",
    "": "By case",
}


def families(report: RunReport) -> Iterator[tuple[str, Body]]:
    """Yield the tables of each family under its title, in the order of measuring; none of waived ones."""
    if len(report.ranks) > FOLDED_ABOVE:
        yield _FAMILIES[""], partial(folded, report)
        return
    for family in dict.fromkeys(m.family for m in report.measurements):
        yield _FAMILIES.get(family, family), partial(_family, report, family)


def _family(report: RunReport, family: str) -> Iterator[Matrix | Chart]:
    frame = Frame.of(report)
    # A series by the number of SMs has a section of its own (egmctl.report.views.bench_latency).
    yield from tables([m for m in report.measurements if m.family == family and m.blocks is None], frame)
    if family == "host":
        yield from side_by_side(_bandwidths(report), frame)
    if family == "ipc":
        yield from life_cycles(report.measurements)
        yield from beside(report)


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
