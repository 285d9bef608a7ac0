"""The path classes of a run: measured and expected values, and the paths that are slower than their peers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cache
from statistics import median

from egmctl.bench.case import AT_ONCE, HANDLES, End
from egmctl.bench.engine import ENGINES
from egmctl.bench.nccl.collectives import COLLECTIVES, PREFIX
from egmctl.bench.path_class import ceiling, class_of
from egmctl.bench.suites import CASES, SUITES
from egmctl.dataclass import dataclass
from egmctl.model.measurement import Measurement, RunReport
from egmctl.model.route import HOST_MEMORY, HOST_NAMES, Carrier, Egm, LinkKind, MemoryKind, PublishedRate, Route
from egmctl.model.task import USUAL, Axis, Endpoint, Engine, Pattern, Point, Quantity, named
from egmctl.model.verdict import BAD_GRADES, ClassVerdict, Culprit, Direction, Grade, RunVerdict
from egmctl.report import document as doc
from egmctl.report.document import Body, Level, Tone, Words
from egmctl.report.views.bench_matrix import EXCUSED, GRADE_MARKS, Frame, PathMark, latency_method, mark_of_grade
from egmctl.units import grouped, listed, several, shortened

_SCREEN = 14
"""The number of path classes shown without ``-v``. With the answer and the notes they fill about 40 lines."""
_NOTE = (
    "median and worst of n paths; expected by the profile; link: the median's share of its nominal rate; "
    "! fails, ~ warns"
)
_EXCUSED_NOTE = f"; {EXCUSED.sign} is slow only while others used the GPUs or the host"
_MOST = 6
"""The number of classes that answer the main questions."""

_BY = {
    Engine.COPY_ENGINE: "copy engine",
    Engine.SM_COPY: "kernel",
    Engine.BULK: "TMA",
    Engine.SM_READ: "kernel that only reads",
    Engine.SM_WRITE: "kernel that only writes",
    Engine.ATOMIC: "atomic additions",
    Engine.CPU: "CPU threads",
    Engine.CPU_TRIAD: "STREAM triad",
}
_LINKS = {LinkKind.NVLINK: "NVLink", LinkKind.C2C: "NVLink-C2C", LinkKind.PCIE: "PCIe", LinkKind.SMP: "CPU to CPU"}


def ends_words(measurement: Measurement) -> str:
    """Return the ends of a measurement's paths in plain words: ``GPU -> GPU``, ``own CPU's EGM -> GPU``."""
    flow = measurement.flows[0]
    if measurement.pattern is Pattern.LOCAL or flow.source.label == flow.destination.label:
        return "inside one GPU"
    arrow = "<->" if measurement.pattern is Pattern.BOTH_DIRECTIONS else "->"
    return f" {arrow} ".join(_end_words(end, flow.route) for end in (flow.source, flow.destination))


def _end_words(end: Endpoint, route: Route) -> str:
    if end.memory not in HOST_MEMORY:
        return "GPU" if end.bus_id is not None or end.memory is not MemoryKind.REGISTERS else "CPU"
    links = {hop.link for hop in route.hops}
    other = LinkKind.SMP in links or {LinkKind.NVLINK, LinkKind.C2C} <= links
    if route.across_nodes:
        owner = "other node's "
    elif other:
        owner = "other CPU's "
    else:
        owner = "own CPU's " if LinkKind.C2C in links else ""
    kind = HOST_NAMES[end.memory].removeprefix("HOST_NUMA").strip()
    memory = "memory" if owner else "CPU memory"
    if route.egm is Egm.YES:
        memory = "EGM"
    return " ".join(filter(None, (owner.strip(), kind, memory)))


def plain_name(measurement: Measurement, *, short: bool = False) -> str:
    """Return what a measurement measures in plain words: ``GPU -> GPU, push, copy engine``.

    Parameters
    ----------
    short
        Whether to leave out the point and the method of a latency, as in a series of points.
    """
    first = measurement.flows[0]
    name = ends_words(measurement)
    if measurement.quantity is not Quantity.BANDWIDTH:
        return f"{name} latency" if short else f"{name} latency, {latency_method(measurement)}"
    pair = first.source.bus_id and first.destination.bus_id and measurement.pattern is not Pattern.LOCAL
    way = "push" if first.pushed else "pull"
    parts = (
        "without peer access" if first.route.staged else "",
        way if pair else "",
        AT_ONCE.get(measurement.pattern, "").removeprefix(", "),
        _BY.get(measurement.engine, ENGINES[measurement.engine].caption),
        HANDLES[handle] if (handle := first.source.handle or first.destination.handle) else "",
        "" if short else str(measurement.point),
    )
    return ", ".join((name, *filter(None, parts)))


@cache
def plain_case(name: str) -> str:
    """Return what a case measures in plain words, without what depends on the machine; an unknown case's own name."""
    case = next((case for case in CASES if case.name == name), None)
    if case is None:
        is_of_nccl = name.startswith(PREFIX) and name.removeprefix(PREFIX) in COLLECTIVES
        return f"NCCL {name.removeprefix(PREFIX)}, bus bandwidth" if is_of_nccl else name
    arrow = "<->" if case.pattern is Pattern.BOTH_DIRECTIONS else "->"
    reader = "CPU" if case.engine in (Engine.CPU, Engine.CPU_TRIAD) else "GPU"
    ends = f" {arrow} ".join(_memory_words(memory, reader) for memory in (case.source, case.destination))
    ends = "inside one GPU" if case.pattern is Pattern.LOCAL else ends
    if case.quantity is not Quantity.BANDWIDTH:
        return f"{ends} {'latency' if case.quantity is Quantity.LATENCY else 'handle life cycle'}"
    pair = case.pattern is not Pattern.LOCAL and not {case.source, case.destination} & {*HOST_MEMORY}
    way = "push" if case.initiator is End.SOURCE else "pull"
    parts = (
        "without peer access" if case.staged else "",
        way if pair else "",
        AT_ONCE.get(case.pattern, "").removeprefix(", "),
        _BY.get(case.engine, ENGINES[case.engine].caption),
        HANDLES[case.handle] if case.handle else "",
    )
    return ", ".join((ends, *filter(None, parts)))


def _memory_words(memory: MemoryKind, reader: str) -> str:
    if memory not in HOST_MEMORY:
        return "GPU" if memory is not MemoryKind.REGISTERS else reader
    return f"{HOST_NAMES[memory].removeprefix('HOST_NUMA').strip()} CPU memory".strip()


@dataclass(frozen=True, slots=True, eq=False)
class _Class:
    """A path class with its measurements and verdict."""

    case: str
    point: Point
    link: str
    measurements: Sequence[Measurement]
    verdict: ClassVerdict | None = None

    excused: bool = False
    """Whether all its paths that fail are excused (:attr:`egmctl.model.answer.Answer.excused`)."""

    @property
    def mark(self) -> PathMark:
        """How it is marked."""
        return mark_of_grade(self.grade, excused=self.excused)

    def titled(self, name: str) -> str:
        """Return a name of the class with the kinds of its GPUs, if the run has several kinds."""
        return f"{name}, {self.verdict.gpus}" if self.verdict is not None and self.verdict.gpus else name

    @property
    def grade(self) -> Grade:
        return Grade.NO_REFERENCE if self.verdict is None else self.verdict.grade

    @property
    def first(self) -> Measurement:
        """A measurement that stands for all."""
        return self.measurements[0]


MAIN = (
    ("device_to_device_memcpy_write_ce", "device_to_device_memcpy_read_ce", "fabric_device_write_ce"),
    ("host_numa_to_device_memcpy_ce", "host_to_device_memcpy_ce", "fabric_host_numa_read_ce"),
    ("device_to_host_numa_memcpy_ce", "device_to_host_memcpy_ce", "fabric_host_numa_write_ce"),
    ("device_to_device_latency_sm", "device_to_device_latency_uncached", "fabric_device_latency"),
    ("device_to_device_bidirectional_memcpy_write_ce", "fabric_device_bidirectional_write_ce"),
    ("host_numa_to_device_latency_uncached", "host_to_device_latency_uncached", "fabric_host_numa_latency"),
)
"""The main questions, the most important first: the cases that answer each, of which the first measured one counts."""


def main_measurements(report: RunReport) -> list[list[Measurement]]:
    """Return the measurements that answer each of the main questions."""
    cases = grouped((m.case, m) for m in report.measurements if m.point == USUAL and m.headline is not None)
    return [next((cases[case] for case in question if case in cases), []) for question in MAIN]


def main_rates(report: RunReport) -> doc.Bars:
    """Return the answers to the main questions, :data:`_MOST` at most: one for each kind of link, latencies last."""
    chosen = {id(m) for answers in main_measurements(report) for m in answers}
    order = [case for question in MAIN for case in question]
    classes = [entry for entry in _classes(report) if id(entry.first) in chosen]
    classes = sorted(classes, key=lambda entry: order.index(entry.case))[:_MOST]
    classes.sort(key=lambda entry: entry.first.quantity is Quantity.LATENCY)
    frame = Frame.of(report)
    bars = tuple(_bar(entry, entry.titled(_short_name(entry.first)), frame) for entry in classes)
    return doc.Bars(caption="Measured and expected (GB/s; latencies in ns)", groups=(("", bars),))


def _short_name(m: Measurement) -> str:
    ends = ends_words(m)
    if m.quantity is Quantity.LATENCY:
        return f"{ends} latency"
    link = m.flows[0].route.first_link if "CPU memory" in ends else None
    return f"{ends}, {_LINKS.get(link, '')}" if link in _LINKS else ends


def _bar(entry: _Class, name: str, frame: Frame, case: str = "") -> doc.Bar:
    latency = entry.first.quantity is Quantity.LATENCY
    tones = {mark.tone: mark.few for mark in (*GRADE_MARKS.values(), EXCUSED)}
    dots = []
    for m in entry.measurements:
        if m.headline is not None:
            tone, _ = frame.brands.get(id(m), (Tone.PLAIN, ""))
            shown = tone if tone in tones else Tone.PLAIN
            dots.append(doc.Dot(label=m.path, value=m.headline.median, tone=shown, doubted=id(m) in frame.doubted))
    worst = (max if latency else min)(dots, key=lambda dot: dot.value)
    tone, (limit, limit_of) = entry.mark.tone, _limit(entry.first)
    if tone in tones:
        slow = sum(dot.tone is tone for dot in dots)
        state = doc.Span(f"{slow or len(dots)} of {len(dots)} {tones[tone]}", tone)
    else:
        passed = entry.grade is Grade.PASS
        state = doc.Span(f"{len(dots)} ok", Tone.GOOD) if passed else doc.Span(several(len(dots), "path"), Tone.DIM)
    return doc.Bar(
        name=name,
        case=case,
        unit=entry.first.quantity.unit,
        median=median(dot.value for dot in dots),
        worst=replace(worst, tone=tone),
        expected=entry.verdict.expected if entry.verdict is not None else None,
        limit=limit,
        limit_of=limit_of,
        fail=entry.verdict.fail if entry.verdict is not None and latency else None,
        less=latency,
        state=state,
        mark=entry.mark.sign,
        dots=tuple(dots),
    )


def _limit(m: Measurement) -> tuple[float | None, str]:
    """Return the ceiling of a path and what it is of; of both directions of a link at most twice its rate."""
    limit, link = ceiling(m), m.flows[0].route.slowest
    if limit is not None:
        return limit.gb_s, limit.name if isinstance(limit.limit, PublishedRate) else "link"
    both = m.quantity is Quantity.BANDWIDTH and m.pattern is Pattern.BOTH_DIRECTIONS and link is not None
    return 2 * (link.nominal_gb_s or 0) if both and link is not None else None, "link"


def class_tables(report: RunReport, apart: Collection[Axis] = ()) -> Iterator[doc.DocumentBlock]:
    """Yield the table of the path classes that fit on a screen, and that of the others.

    If not all fit, failed and warned classes have priority, then those of the quick suite.

    Parameters
    ----------
    apart
        The axes whose points are left out, because their series have their own section.
    """
    classes = [entry for entry in _classes(report) if all(entry.point.at(axis) is None for axis in apart)]
    quick = {case.name for case in CASES if SUITES["quick"].has(case)}
    bad = [entry for grade in BAD_GRADES for entry in classes if entry.grade is grade]
    chosen = [*bad, *(entry for entry in classes if entry.case in quick), *classes]
    first, frame = set(list(dict.fromkeys(chosen))[:_SCREEN]), Frame.of(report)
    if first:
        yield _table([entry for entry in classes if entry in first], frame)
    if further := [entry for entry in classes if entry not in first]:
        well = ", all as fast as expected" if all(entry.grade is Grade.PASS for entry in further) else ""
        note = f"{len(further)}{well}"
        yield doc.Section(
            "Further path classes", (_table(further, frame),), folded=True, note=note, level=Level.VERBOSE
        )
        yield doc.Hint(f"and {len(further)} more path classes{well} (-v)", more=True)


def path_classes(measurements: Sequence[Measurement]) -> doc.Bars:
    """Return the table of the path classes with results, without a verdict."""
    return _table(_unjudged(measurements), Frame())


def _classes(report: RunReport) -> list[_Class]:
    if report.verdict is None:
        return _unjudged(report.measurements)
    failing = {
        entry.measurement for entry in report.verdict.judged if any(j.grade is Grade.FAIL for j in entry.judgements)
    }
    excused = report.answer.excused

    def is_excused(numbers: Collection[int]) -> bool:
        slow = failing.intersection(numbers)
        return bool(slow) and slow <= excused

    return [
        _Class(entry.case, entry.point, entry.link, measured, entry, excused=is_excused(entry.measurements))
        for entry in report.verdict.classes
        if (measured := [m for n in entry.measurements if (m := report.measurements[n]).headline is not None])
    ]


def _unjudged(measurements: Sequence[Measurement]) -> list[_Class]:
    members = grouped((class_of(m), m) for m in measurements if m.headline is not None and m.point.sms is None)
    return [_Class(key.case, key.point, key.link, alike) for key, alike in members.items()]


def _table(classes: Sequence[_Class], frame: Frame) -> doc.Bars:
    """Return a table with one row per class; classes over the same links are grouped under a heading."""
    groups = grouped((entry.link, entry) for entry in classes)
    limits = (limit.limit for entry in classes if (limit := ceiling(entry.first)) is not None)
    memories = dict.fromkeys(f"{rate.name} {rate.gb_s:g} GB/s" for rate in limits if isinstance(rate, PublishedRate))
    note = _EXCUSED_NOTE if any(entry.mark is EXCUSED for entry in classes) else ""
    note += f"; # of the memory's, reads and writes together: {', '.join(memories)}" if memories else ""
    return doc.Bars(
        caption="Path classes (GB/s; latencies in ns)",
        notes=(_NOTE + note,),
        groups=tuple(
            (
                _heading(link, alike[0].first),
                tuple(
                    _bar(entry, entry.titled(plain_name(entry.first)), frame, named(entry.case, entry.point))
                    for entry in alike
                ),
            )
            for link, alike in groups.items()
        ),
    )


def _heading(link: str, first: Measurement) -> str:
    """Return the links of a class in words, with their rate: ``PCIe, 63 GB/s each way``."""
    route = first.flows[0].route
    words = list(dict.fromkeys(_LINKS.get(hop.link, "?") for hop in route.hops))
    rate = f", {route.slowest.nominal_gb_s:.0f} GB/s each way" if route.slowest else ""
    if link != route.symbol or route.carrier is not Carrier.LINKS or not words:
        return link
    return f"{link}{'' if words == [link] else f': {listed(words)}'}{rate}"


_SIDES = {Direction.EGRESS: " egress", Direction.INGRESS: " ingress", None: ""}
_SHOWN = 3


def judged_sections(report: RunReport, verdict: RunVerdict) -> Iterator[tuple[str, Body]]:
    """Yield the sections on outliers, and on the sources of references."""
    excused = {entry.verdict.path_class for entry in _classes(report) if entry.verdict is not None and entry.excused}
    yield "Outliers", lambda: [doc.Bullets(tuple(_culprits(verdict.culprits, excused)))]
    yield "References", lambda: [doc.Bullets(tuple(_references(verdict)))]


def _culprits(culprits: Sequence[Culprit], excused: Collection[str]) -> Iterator[Words]:
    """Yield a line for each outlying GPU or pair, with the classes that show it.

    Parameters
    ----------
    excused
        The names of the classes whose failing paths are all excused.
    """
    merged = grouped(((culprit.label, culprit.direction), culprit) for culprit in culprits)
    for (label, direction), alike in sorted(merged.items(), key=lambda item: len(item[1][0].gpus)):
        first = alike[0]
        cases = shortened([culprit.path_class for culprit in alike], _SHOWN)
        mark = mark_of_grade(first.grade, excused=all(culprit.path_class in excused for culprit in alike))
        yield (
            doc.Span(mark.word or first.grade.value, mark.tone),
            f" {label}{_SIDES[direction]}: {first.reason}, in {cases}",
        )


def _references(verdict: RunVerdict) -> Iterator[str]:
    """Yield the sources of the expected values, and the reasons for missing ones."""
    yield f"{f'profile {verdict.profile}' if verdict.profile else 'none'}: {verdict.profile_reason}"
    sources = grouped((entry.source, entry.path_class) for entry in verdict.classes if entry.source is not None)
    unknown = [entry for entry in verdict.classes if verdict.profile and entry.by_profile is Grade.NO_REFERENCE]
    lacking = grouped((entry.reason, entry.path_class) for entry in unknown)
    for source, classes in sources.items():
        yield source if len(sources) == 1 else f"{source} ({shortened(classes, _SHOWN)})"
    for reason, classes in lacking.items():
        yield f"no reference for {shortened(classes, _SHOWN)}: {reason}"
