"""The tables of each family of cases: matrices and series, kinds of host memory, processes, UCX, and many ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median

from egmctl.bench.engine import ENGINES
from egmctl.model.measurement import Engine, Measurement, MemoryKind, Pattern, Quantity, RunReport, Status
from egmctl.model.route import HOST_NAMES, NUMA_MEMORY, Egm
from egmctl.model.task import UCX_ENGINES
from egmctl.model.ucx import UcxStaging
from egmctl.report.document import EMPTY, Better, Body, Cell, Chart, Matrix, columns_of
from egmctl.report.route_words import routes_words
from egmctl.report.views.bench_classes import Frame, tone_of
from egmctl.report.views.bench_matrix import ends, matrices
from egmctl.report.views.bench_series import axis_of, series, swept, table_of
from egmctl.units import format_size, printable

_FAMILIES = {
    "egm": "Memory of NUMA nodes",
    "host": "Other host memory",
    "p2p": "Between GPUs",
    "ipc": "Between processes",
    "latency": "Latency",
    "rdma": "RDMA",
}
FOLDED_ABOVE = 16
"""Ranks: a matrix of so many is as wide as a wide terminal."""
_WORST = 5
"""Paths, and GPUs, that are named."""
_USUAL_DIFFERENCE = 0.01
"""Between the GPUs of one machine that is in order: 0.1 % was seen on H200."""
_FEW_US = 10.0
"""Fewer microseconds than this are shown with a decimal."""
_STAGED = {None: "", UcxStaging.HOST: ", host-staged", UcxStaging.GPU: ", GPU-staged"}
_Tables = Iterator[Matrix | Chart]


def families(report: RunReport) -> Iterator[tuple[str, Body]]:
    """Yield the tables of each family under its title, in the order of measuring; none of waived ones."""
    if len(report.ranks) > FOLDED_ABOVE:
        yield "By case", partial(_folded, report)
        return
    for family in dict.fromkeys(m.family for m in report.measurements):
        yield _FAMILIES.get(family, family), partial(_family, report, family)


def _family(report: RunReport, family: str) -> _Tables:
    frame = Frame.of(report)
    groups: dict[object, list[Measurement]] = {}
    apart = tuple(swept(report))
    for m in report.measurements:
        # These series have sections of their own; UCX and life cycles have tables of their own.
        own = axis_of(m) in apart or m.engine in UCX_ENGINES or m.quantity is Quantity.DURATION
        if m.family == family and not own:
            groups.setdefault(_table_of(m), []).append(m)
    for members in sorted(groups.values(), key=lambda those: those[0].quantity is Quantity.LATENCY):
        axis = axis_of(members[0])
        if axis is None or len({m.point for m in members}) == 1:
            yield from matrices(members, frame)
        else:
            yield from series(axis, members, frame)
    if family == "host":
        yield from side_by_side(report.measurements, frame)
    if family == "ipc":
        yield from life_cycles(report.measurements)
        yield from beside(report)
    yield from messages([m for m in report.measurements if m.family == family and m.engine in UCX_ENGINES])


def _table_of(measurement: Measurement) -> object:
    """Return what measurements have in common that share a table."""
    flow = measurement.flows[0]
    if axis_of(measurement) is not None:
        return table_of(measurement)
    if measurement.quantity is Quantity.BANDWIDTH:
        return measurement.case
    if ENGINES[measurement.engine].round_trip:
        return measurement.case, flow.destination if flow.destination.bus_id is None else None
    # A GPU's own memory is the diagonal of the matrix of its peers'.
    return measurement.engine, flow.source.memory, flow.source.handle, measurement.chase


def side_by_side(measurements: Sequence[Measurement], frame: Frame) -> Iterator[Matrix]:
    """Yield a table for each direction and engine that were measured with several kinds of host memory."""
    tables: dict[tuple[bool, Engine], dict[MemoryKind, dict[tuple[str, str], Measurement]]] = {}
    for m in measurements:
        host, gpu = ends(m.flows[0])
        plain = m.pattern is Pattern.PAIR and not m.point.one_path and not m.ranks
        plain = plain and m.quantity is Quantity.BANDWIDTH and m.status is not Status.WAIVED
        between = gpu.bus_id is not None and host.memory in HOST_NAMES and host.allocated_by is None
        if plain and between and m.engine in (Engine.COPY_ENGINE, Engine.SM_COPY):
            kinds = tables.setdefault((m.flows[0].source != host, m.engine), {})
            kinds.setdefault(host.memory, {})[host.label, gpu.label] = m
    for (to_host, engine), kinds in sorted(tables.items(), key=lambda item: (item[0][1] is Engine.SM_COPY, item[0][0])):
        if len(kinds) < 2 or len({m.size_bytes for paths in kinds.values() for m in paths.values()}) > 1:
            continue
        cells: dict[tuple[str, tuple[str, ...]], Cell] = {
            (HOST_NAMES[kind], path): frame.bandwidth(m, 0)
            for kind in HOST_NAMES
            for path, m in kinds.get(kind, {}).items()
        }
        rows, groups = frame.square(cells)
        arrow = "<-" if to_host else "->"
        yield Matrix(
            caption=f"{ENGINES[engine].caption} host memory(row) {arrow} GPU(column) by kind of memory (GB/s)",
            notes=tuple(_which_is_egm(kinds)),
            rows=rows,
            groups=groups,
            better=Better.HIGH,
        )


def _which_is_egm(kinds: Mapping[MemoryKind, Mapping[tuple[str, str], Measurement]]) -> Iterator[str]:
    egm = {m.flows[0].route.egm for kind in NUMA_MEMORY & kinds.keys() for m in kinds[kind].values()}
    if egm == {Egm.YES}:
        yield "HOST_NUMA memory is EGM; the others are not"
    elif egm:
        yield f"HOST_NUMA memory is {'not EGM' if egm == {Egm.NO} else 'EGM where the matrices say so'}"


def beside(report: RunReport) -> Iterator[Matrix]:
    """Yield what the paths of cases by several processes give, beside what the same paths give within one process."""
    cases: dict[str, list[tuple[float, float]]] = {}
    latencies = {m.case for m in report.measurements if m.quantity is Quantity.LATENCY}
    for m in report.measurements:
        if m.in_process and m.timed is not None:
            cases.setdefault(m.case, []).append((m.timed.median, m.in_process))
    ratios = {case: [value / within for value, within in pairs] for case, pairs in cases.items()}
    digits = {case: 1 if case in latencies else 2 for case in cases}
    columns = {
        "paths": [str(len(pairs)) for pairs in cases.values()],
        "unit": ["ns" if case in latencies else "GB/s" for case in cases],
        "ipc": [f"{median(value for value, _ in pairs):.{digits[case]}f}" for case, pairs in cases.items()],
        "within": [f"{median(within for _, within in pairs):.{digits[case]}f}" for case, pairs in cases.items()],
        "ratio": [f"{median(values):.3f}" for values in ratios.values()],
        "min": [f"{min(values):.3f}" for values in ratios.values()],
        "max": [f"{max(values):.3f}" for values in ratios.values()],
    }
    yield Matrix(
        caption="Between processes, beside the same path within one process",
        notes=("median over the paths; the ratio is path by path: median, min and max",),
        rows=tuple(cases),
        groups=columns_of(columns),
    )


def life_cycles(measurements: Sequence[Measurement]) -> Iterator[Matrix]:
    """Yield what the stages of the life of shared memory cost: the median over the pairs of each kind."""
    cases: dict[str, list[Measurement]] = {}
    for m in measurements:
        if m.quantity is Quantity.DURATION and m.status is not Status.WAIVED:
            cases.setdefault(m.case, []).append(m)
    if not cases:
        return
    members = list(cases.values())
    # The longest list has all stages, and gives their order.
    names = sorted(([stage.name for stage in m.stages] for of_case in members for m in of_case), key=len, reverse=True)
    stages = list(dict.fromkeys(name for stage_names in names for name in stage_names))
    yield Matrix(
        caption=f"Life of {format_size(members[0][0].size_bytes)} of shared memory, stage by stage (us)",
        notes=(
            f"Median over up to {max(map(len, members))} ordered pairs, by the host's clock; a dash where a kind has "
            "no such stage.",
        ),
        rows=tuple(_shared(of_case[0]) for of_case in members),
        groups=columns_of({name: [_stage(of_case, name) for of_case in members] for name in stages or ["status"]}),
        better=Better.LOW if stages else None,
    )


def _shared(measurement: Measurement) -> str:
    """Say which memory is shared, and how it is opened."""
    end = measurement.flows[0].source
    return _memory(end.memory) if end.handle is None else f"{_memory(end.memory)}, {end.handle}"


def _stage(measurements: Sequence[Measurement], name: str) -> Cell:
    medians = [stage.ms.median for m in measurements for stage in m.stages if stage.name == name]
    if not medians:
        bad = next((m for m in measurements if m.status is not Status.OK), None)
        return EMPTY if bad is None else Cell(text=bad.status.value, tone=tone_of(bad))
    us = 1e3 * median(medians)
    return Cell(text=f"{us:.1f}" if us < _FEW_US else f"{us:.0f}")


def messages(measurements: Sequence[Measurement]) -> Iterator[Matrix]:
    """Yield the tables of what UCX moved: put and got one-sided, sent, and round trips; none of waived ones."""
    there = [m for m in measurements if m.status is not Status.WAIVED]
    size: dict[str, Callable[[Measurement], str]] = {"size": lambda m: format_size(m.size_bytes)}
    for engine, word in ((Engine.UCX_PUT, "put"), (Engine.UCX_GET, "got")):
        one_sided = [m for m in there if m.engine is engine]
        columns = {**size, "GB/s": _gb_s, "register us": _register_us}
        yield _grid(f"Memory {word} one-sided by UCX (GB/s)", one_sided, columns)
    sent = [m for m in there if m.engine is Engine.UCX and m.quantity is Quantity.BANDWIDTH]
    sizes = {m.size_bytes for m in sent}
    same = f" of {format_size(min(sizes))}" if len(sizes) == 1 else ""
    yield _grid(f"Messages{same} by UCX (GB/s)", sent, {**({} if same else size), "GB/s": _gb_s})
    yield _devices(sent)
    trips = [m for m in there if m.quantity is Quantity.LATENCY]
    stride = next((m.chase.stride_bytes for m in trips if m.chase), 0)
    yield _grid(f"Round trips of {stride} bytes by UCX (us)", trips, {"median": _us, "p99": _p99})


def _grid(
    caption: str, measurements: Sequence[Measurement], columns: Mapping[str, Callable[[Measurement], str]]
) -> Matrix:
    shown: dict[str, Callable[[Measurement], str]] = {
        "from": lambda m: _memory(m.flows[0].source.memory),
        "to": lambda m: _memory(m.flows[0].destination.memory),
        **columns,
        "way": _way,
    }
    return Matrix(
        caption=caption,
        notes=tuple(_verdicts(measurements)),
        rows=_ranks(measurements),
        groups=columns_of(
            {name: [Cell(text=text(m), tone=tone_of(m)) for m in measurements] for name, text in shown.items()}
        ),
    )


def _devices(measurements: Sequence[Measurement]) -> Matrix:
    """Return what each network device of a sender reaches alone: the nearest NIC and what farther ones cost."""
    alone = [(m, device) for m in measurements if m.ucx is not None for device in m.ucx.devices]
    columns = {
        "memory": [_memory(m.flows[0].source.memory) for m, _ in alone],
        "by": [device.name for _, device in alone],
        "distance": [device.distance or "-" for _, device in alone],
        "GB/s": ["-" if d.bandwidth_gb_s is None else f"{d.bandwidth_gb_s:.2f}" for _, d in alone],
    }
    return Matrix(
        caption="Messages by one network device of the sender, one sample (GB/s)",
        rows=_ranks([m for m, _ in alone]),
        groups=columns_of(columns),
    )


def _memory(kind: MemoryKind) -> str:
    return HOST_NAMES.get(kind, "device")


def _ranks(measurements: Sequence[Measurement]) -> tuple[str, ...]:
    """Name each path by its ranks; where the receiver sends nothing, it is named by its memory."""
    flows = [m.flows[0] for m in measurements]
    known = {flow.initiator_rank: flow.initiator_label for flow in flows}
    return tuple(
        " -> ".join(known.get(end.rank, end.label) for end in (flow.source, flow.destination)) for flow in flows
    )


def _verdicts(measurements: Sequence[Measurement]) -> Iterator[str]:
    """Yield each verdict once, with the way that it is about as the table has it."""
    ways = {m.ucx.verdict: _way(m) for m in measurements if m.ucx is not None}
    for verdict, way in ways.items():
        yield printable(f"{way}: {verdict}" if len(ways) > 1 else verdict)


def _way(measurement: Measurement) -> str:
    ucx = measurement.ucx
    return "-" if ucx is None else f"{ucx.route}{_STAGED[ucx.staging]}"


def _gb_s(measurement: Measurement) -> str:
    summary = measurement.bandwidth_gb_s
    return _marked(measurement, None if summary is None else f"{summary.median:.2f}")


def _register_us(measurement: Measurement) -> str:
    """Return the dearer side's: the cheaper one's memory may have been registered before."""
    most = [stage.ms.max for stage in measurement.stages if stage.name == "register"]
    return f"{1e3 * most[0]:.0f}" if most else "-"


def _us(measurement: Measurement) -> str:
    summary = measurement.latency_ns
    return _marked(measurement, None if summary is None else f"{summary.median / 1e3:.1f}")


def _p99(measurement: Measurement) -> str:
    tails = [sample.p99_ns for sample in measurement.samples if sample.p99_ns is not None]
    return f"{max(tails) / 1e3:.1f}" if tails else "-"


def _marked(measurement: Measurement, number: str | None) -> str:
    if number is None or not measurement.measured:
        return measurement.status.value
    return f"{number}{'*' * (measurement.status is Status.UNSTABLE)}"


def _folded(report: RunReport) -> Iterator[Matrix]:
    """Yield for each case a table of its routes, with the paths and the GPUs that are farthest behind."""
    cases: dict[str, list[Measurement]] = {}
    for m in report.measurements:
        if m.headline is not None:
            cases.setdefault(m.case, []).append(m)
    for case, measurements in cases.items():
        first = measurements[0]
        latency = first.quantity is Quantity.LATENCY
        unit, digits = ("ns", 1) if latency else ("GB/s", 2)
        by_route: dict[str, list[float]] = {}
        for m in measurements:
            by_route.setdefault(routes_words(flow.route for flow in m.flows), []).append(_value(m))
        columns = {"paths": [str(len(values)) for values in by_route.values()]}
        for name, pick in (("median", median), ("min", min), ("max", max)):
            columns[name] = [f"{pick(values):.{digits}f}" for values in by_route.values()]
        yield Matrix(
            caption=f"{first.pattern.value}, {first.engine.value}, {first.quantity.value} ({unit})",
            names=case,
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
            gpu_shares = ", ".join(f"{label} {100 * behind[label]:.1f} %" for label in gpus[:_WORST])
            yield f"by the GPU that issues the work, against the median of the link: {gpu_shares}"


def _is_odd(share: float) -> bool:
    return abs(share - 1) > _USUAL_DIFFERENCE


def _value(measurement: Measurement) -> float:
    summary = measurement.headline
    return 0.0 if summary is None else summary.median
