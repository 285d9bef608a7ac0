"""The view of ``egmctl bench``: the answer with its causes, the path classes, and the details behind the answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, islice

from egmctl.bench.path_class import ceiling, unit_of
from egmctl.model.answer import Cause
from egmctl.model.gpu import FAKE, are_fake
from egmctl.model.kernel_log import LoggedFault
from egmctl.model.measurement import Measurement, MeasurementStatus, RunReport
from egmctl.model.route import PublishedRate, node_names
from egmctl.model.task import Quantity
from egmctl.model.verdict import BAD_GRADES, Grade, MemoryOwner, OwnerUnknown, Yardstick
from egmctl.report import document as doc
from egmctl.report.document import Level, Tone, number
from egmctl.report.views import bench_answer
from egmctl.report.views.bench_classes import class_tables, judged_sections, main_measurements, main_rates
from egmctl.report.views.bench_details import LOOKS, all_series, families, family_notes, overlay, swept
from egmctl.report.views.bench_matrix import STATUS_TONES, Frame, mark_of_grade, matrices
from egmctl.report.views.causes import PATHS, cause_entries, doubts_section
from egmctl.report.views.findings import TONES, commands_of, verdict
from egmctl.report.views.machine import banners, confidential_banner, machine_section, node_diagram, time_words
from egmctl.report.views.nccl import nccl_section
from egmctl.topology.topology import topology
from egmctl.units import counted, gpu_name, grouped, listed, printable, several, shortened

_FEW = 3
"""The number of flows from which a case's name is shown without its path."""


def soak(report: RunReport) -> Iterator[doc.Matrix]:
    """Yield the table of a soak: for each case, the path with the worst sample relative to its median, and its time."""
    cases: dict[str, list[tuple[float, float, Measurement]]] = {}
    for m in report.measurements:
        if m.slowest_at_s is not None and (summary := m.headline):
            worst = summary.max if m.latency_ns else summary.min
            share = summary.median / worst if m.latency_ns else worst / summary.median
            cases.setdefault(m.name, []).append((share, worst, m))
    rows = []
    for case, members in cases.items():
        _, worst, m = min(members, key=lambda member: member[0])
        cells = {
            "passes": str(min(m.attempts for _, _, m in members)),
            "median": f"{m.headline.median:.2f}" if m.headline else "-",
            "worst": f"{worst:.2f}",
            "": "ns" if m.latency_ns else "GB/s",
            "at": f"{m.slowest_at_s or 0:.0f} s",
        }
        rows.append((f"{case} {m.path}" if len(m.flows) < _FEW else case, cells))
    yield doc.grid(f"Worst of {report.wall_s:.0f} s", rows)


def painted(report: RunReport) -> dict[tuple[str, str], doc.Dot]:
    """Return the bandwidths that answer the main questions, by the labels of source and destination."""
    rates: dict[tuple[str, str], doc.Dot] = {}
    brands = Frame.of(report).brands
    for m in chain.from_iterable(main_measurements(report)):
        flow, summary, (tone, _) = m.flows[0], m.bandwidth_gb_s, brands.get(id(m), (Tone.PLAIN, ""))
        if len(m.flows) == 1 and summary is not None and not flow.route.staged and m.measured:
            limit = ceiling(m)
            memory = "#" if limit and isinstance(limit.limit, PublishedRate) else ""
            share = f"{100 * summary.median / limit.gb_s:.0f} %{memory}" if limit else ""
            ends = flow.source.label, flow.destination.label
            rates.setdefault(ends, doc.Dot(label=share, value=summary.median, tone=tone))
    return rates


_CASES = 2
"""The number of cases named per owner."""
_OWNER_UNKNOWN: Mapping[OwnerUnknown | None, str] = {
    OwnerUnknown.NO_COUNTERS: "no counters show which link carried the bytes",
    OwnerUnknown.TOO_FEW: "the reads that were measured leave several GPUs",
    OwnerUnknown.OWN_LINK_EACH: "each GPU read it over its own NVLink-C2C, as memory that belongs to none",
    OwnerUnknown.CONTRADICTORY: "the link counters of its reads contradict each other",
}


def owner_lines(report: RunReport) -> Iterator[str]:
    """Yield sentences on the owner of memory by NUMA node and allocating GPU, or on why it is unknown."""
    labels = grouped(
        ((owner.numa_node, _owner_words(report, owner), owner.case), owner.allocated_by_label)
        for owner in (report.verdict.owners if report.verdict is not None else ())
    )
    cases = grouped(
        (f"NUMA{node}: memory allocated under {listed(under)} {words}", case)
        for (node, words, case), under in labels.items()
    )
    yield from (f"{sentence} ({shortened(names, _CASES)})" for sentence, names in sorted(cases.items()))


def unexpected_owners(report: RunReport) -> Iterator[str]:
    """Yield a sentence for each EGM memory whose owner is not the GPU under which it was allocated."""
    yield from dict.fromkeys(
        f"EGM memory of NUMA{owner.numa_node} allocated under {owner.allocated_by_label} belongs to "
        f"{owner.owner_label}, by the link counters: its NVLink-C2C carries the bytes"
        for owner in (report.verdict.owners if report.verdict is not None else ())
        if owner.owner not in (None, owner.allocated_by)
    )


def _owner_words(report: RunReport, owner: MemoryOwner) -> str:
    if owner.owner is not None:
        return f"belongs to {owner.owner_label}, by the link counters"
    flow = report.measurements[owner.measurements[0]].flows[0]
    not_egm = f"not EGM ({printable(flow.route.egm_reason)})"
    return f"has an unknown owner: {_OWNER_UNKNOWN.get(owner.unknown, not_egm)}"


_NODES_DRAWN = 4
_MANY = 8
"""The number of skipped paths named per reason with ``-v``."""
_BENCH_WORST = 5
"""The number of slow paths named."""
_REASONS = 4
"""The number of reasons for failures shown without ``-v``."""
_WARNINGS = 4
_STAGED = 2
"""The number of notes on staging through host memory."""
_FAULTS = 3
"""The number of faults in the kernel log shown without ``-v``."""
_AGAINST = {Yardstick.PROFILE: "the expected", Yardstick.LINK: "its link's", Yardstick.PEERS: "its peers'"}


def bench_document(report: RunReport) -> doc.Document:
    """Return the document of a run."""
    subject = counted(gpu_name(gpu.name) for gpu in report.gpus)
    version = report.cuda_driver_version
    cuda = f" (CUDA {version // 1000}.{version % 1000 // 10})" if version else ""
    driver = report.driver_version or "unknown"
    return doc.Document(
        command="egmctl bench",
        subject=subject,
        subtitle=f"{subject}, driver {driver}{cuda}; {bench_answer.tally(report)}, {report.wall_s:.0f} s",
        facts=tuple(_facts(report, f"driver {driver}{cuda}")),
        banners=bench_banners(report),
        body=tuple(_body(report)),
    )


def _facts(report: RunReport, driver: str) -> Iterator[str]:
    """Yield where and when a run was made, with which driver, how much it measured, and by which version."""
    origins = [machine.origin for machine in report.machines]
    if len(origins) == 1:
        host = report.machines[0].host
        yield from filter(None, (origins[0].name or (host and not origins[0].redacted and host.hostname),))
    elif origins:
        yield several(len(origins), "node")
    yield time_words(report.started_at)
    yield driver
    yield bench_answer.tally(report)
    yield f"took {report.wall_s:.0f} s"
    yield from dict.fromkeys(origin.tool for origin in origins if origin.tool)


def bench_banners(report: RunReport) -> tuple[str, ...]:
    """Return the banners of a run: a fake driver, modelled machines and confidential computing."""
    fake = (FAKE,) if are_fake(gpu.name for gpu in report.gpus) else ()
    lines = (line for machine in report.machines for line in (*banners(machine.origin), *confidential_banner(machine)))
    return tuple(dict.fromkeys((*fake, *lines)))


def _body(report: RunReport) -> Iterator[doc.DocumentBlock]:
    yield verdict(report.answer)
    if report.causes:
        yield from cause_entries(report)
    yield from _kernel(report)
    if not any(bench_answer.was_run(m) for m in report.measurements):
        yield from _nccl(report)
        yield from _details(report)
        return
    axes, main = tuple(swept(report)), main_rates(report)
    if not main.bars:
        yield from (chart for axis in axes for chart in overlay(report, axis))
    yield replace(main, beside=tuple(drawings(report)))
    yield from _worst_paths(report)
    yield doc.Section("Failed or unstable", partial(_broken, report))
    for axis in axes:
        drawn = overlay(report, axis) if main.bars else ()
        yield doc.Section(LOOKS[axis].title, partial(chain, drawn, all_series(report, axis)))
    yield from class_tables(report, axes)
    yield from _nccl(report)
    yield doc.Section("Soak", partial(soak, report))
    yield doc.Section("Warnings", partial(_warnings, report))
    if report.doubts:
        yield doubts_section(report)
    staged = tuple(bench_answer.staged_lines(report))
    more = (f"and {len(staged) - _STAGED} more pairs",) if len(staged) > _STAGED else ()
    notes = [
        *filter(
            None,
            (bench_answer.alarm_line(report), bench_answer.egm_line(report), bench_answer.route_line(report)),
        ),
        *unexpected_owners(report),
    ]
    notes += [*staged[:_STAGED], *more, *_skipped(report), *report.problems]
    yield doc.Section("Notes", (doc.Bullets(tuple(notes)),))
    yield from _details(report)
    yield doc.Hint("Matrices, settings and references: -v; all of it as a page: -o run.html")


def _nccl(report: RunReport) -> Iterator[doc.Section]:
    if report.nccl is not None:
        yield from nccl_section(report, report.nccl)


def _warnings(report: RunReport) -> Iterator[doc.DocumentBlock]:
    sentences = [
        f"{sentence} ({several(len(paths), 'path')})"
        for sentence, paths in bench_answer.seen_by_bench(report, causes=False).items()
    ]
    yield doc.Bullets(tuple(sentences[:_WARNINGS]))
    if further := len(sentences[_WARNINGS:]):
        yield doc.Hint(f"and {further} more (-v)", more=True)


def _details(report: RunReport) -> Iterator[doc.Section]:
    """Yield the details: the drawing, all numbers, the references, and how the run measured."""
    if not main_rates(report).bars:
        yield doc.Section("Topology", partial(drawings, report), folded=True, level=Level.PAGE)
    for machine in report.machines[:_NODES_DRAWN]:
        yield machine_section(machine)
    if len(report.machines) > _NODES_DRAWN:
        words = f"{len(report.machines) - _NODES_DRAWN} more nodes were measured; JSON has the facts of each."
        yield doc.Section("Further nodes", (doc.Paragraph(words),), level=Level.PAGE)
    sections: list[tuple[str, doc.Body]] = [
        ("Further slow paths", lambda: [doc.Bullets(tuple(_slow_paths(report)[_BENCH_WORST:]))]),
        *families(report),
    ]
    if report.verdict is not None:
        sections += judged_sections(report, report.verdict)
    sections += [
        ("Owner of EGM memory", lambda: [doc.Bullets(tuple(owner_lines(report)))]),
        ("Skipped", partial(_skipped_cases, report)),
        ("Each warning", lambda: [doc.Bullets(tuple(bench_answer.warnings(report)))]),
        ("How it was measured", lambda: [doc.Bullets(tuple(_method(report)))]),
    ]
    notes = _notes(report)
    for title, body in sections:
        printed = title in _PRINTED
        note = notes.get(title, "")
        yield doc.Section(title, body, level=Level.VERBOSE, folded=True, note=note, printed=printed)


_PRINTED = ("References", "How it was measured")
"""The titles of the folded sections that paper shows, too: how it was measured."""


def on_paper(report: RunReport) -> Iterator[doc.Section]:
    """Yield the sections on how a run was measured, for paper alone: those of a page may be within a folded part."""
    for section in _details(report):
        if section.title in _PRINTED:
            yield replace(section, folded=False, printed=False, on_paper=True, level=Level.PAGE)


def _notes(report: RunReport) -> Mapping[str, str]:
    """Return what is in the folded sections, by title."""
    waived = sum(m.status is MeasurementStatus.WAIVED for m in report.measurements)
    verdict = report.verdict
    references = ""
    if verdict is not None:
        references = f"profile {verdict.profile}" if verdict.profile else "no profile"
    return {
        **family_notes(report),
        "Further slow paths": several(max(len(_slow_paths(report)) - _BENCH_WORST, 0), "path"),
        "Outliers": "GPUs and pairs that are slower than their peers",
        "Each warning": several(len(tuple(bench_answer.warnings(report))), "warning"),
        "References": references,
        "Skipped": several(waived, "measurement"),
        "How it was measured": ", ".join(bench_answer.how(report)[:3]),
    }


def _skipped_cases(report: RunReport) -> Iterator[doc.Entry]:
    for status, reason, paths in bench_answer.exceptions(report):
        if status is MeasurementStatus.WAIVED:
            title = f"{shortened(paths, _MANY)}: {reason}"
            yield doc.Entry(status.upper(), STATUS_TONES[status], title)


def _method(report: RunReport) -> Iterator[str]:
    yield f"{', '.join(bench_answer.how(report))}. GB/s are 1e9 bytes a second; a copy counts its bytes once."
    yield from filter(None, (bench_answer.where_time_went(report), bench_answer.kernel_line(report)))
    yield from report.notes
    nodes = node_names(rank.host for rank in report.ranks)
    yield from (f"{node} is {host or 'unknown'}" for host, node in nodes.items())


def drawings(report: RunReport, causes: Sequence[Cause] = ()) -> Iterator[doc.Diagram]:
    """Yield the drawings of the nodes, with the bandwidth measured over each link and painted by its verdict.

    Parameters
    ----------
    causes
        The causes of the answer, which mark the devices that they are about.
    """
    chosen = {gpu.bus_id for gpu in report.gpus}
    for machine in report.machines[:_NODES_DRAWN]:
        gpus = [gpu for gpu in machine.gpus or () if gpu.bus_id in chosen]
        yield node_diagram(partial(topology, machine, gpus), partial(painted, report), _DRAWN, causes=causes)


def pairs(report: RunReport) -> Iterator[doc.Matrix]:
    """Yield the matrix of the bandwidths between GPUs that answer the first of the main questions."""
    measured = main_measurements(report)[0]
    yield from islice(matrices(measured, Frame.of(report)), 1) if measured else ()


_DRAWN = (
    "GB/s of single copies, pushed between GPUs, and the share of the link's rate (# the memory's); of a GPU on a "
    "switch the median of its pairs, ↓ out and ↑ in. Red is slow, an arrow one slow pair, dots not measured."
)


def _kernel(report: RunReport) -> Iterator[doc.Entry | doc.Hint]:
    """Return the faults that the kernel logged during the run and that require action."""

    def entry(fault: LoggedFault) -> doc.Entry:
        fix = doc.KeyValues((("fix", fault.remedy.words),))
        body: tuple[doc.DocumentBlock, ...] = (fix, *commands_of(fault.remedy))
        words = f"logged by the kernel meanwhile: {fault.words}"
        return doc.Entry(fault.status.upper(), TONES[fault.status], words, body=body, level=Level.SUMMARY)

    return doc.limited(map(entry, bench_answer.grave(report)), _FAULTS, "kernel message", Level.SUMMARY)


def _slow_paths(report: RunReport) -> list[tuple[doc.Span, str, doc.Span]]:
    """Return the slow paths by severity, then by the distance from the expected value: grade, path and case."""
    slow: list[tuple[int, float, tuple[doc.Span, str, doc.Span]]] = []
    excused = report.answer.excused
    for judged in report.verdict.judged if report.verdict is not None else ():
        bad = [judgement for judgement in judged.judgements if judgement.grade in BAD_GRADES]
        if not bad:
            continue
        first = min(bad, key=lambda j: (list(Grade).index(j.grade), list(Yardstick).index(j.yardstick)))
        m = report.measurements[judged.measurement]
        words, share = f"{m.path}: {number(first.value)} {unit_of(m)}", 1.0
        if first.expected:
            share = first.value / first.expected
            reference = f"{first.limit}'s" if first.limit else _AGAINST[first.yardstick]
            words += f", {100 * share:.0f} % of {reference} {number(first.expected)}"
        if bound := first.fail if first.grade is Grade.FAIL else first.warn:
            words += f" (limit {number(bound)})"
        mark = mark_of_grade(first.grade, excused=judged.measurement in excused)
        grade = doc.Span(f"{mark.word} ", mark.tone)
        far = 1 / share if m.quantity is Quantity.LATENCY and share else share
        slow.append((list(Grade).index(first.grade), far, (grade, f"{words} ", doc.Span(m.name, Tone.DIM))))
    return [path for *_, path in sorted(slow, key=lambda entry: entry[:2])]


def _worst_paths(report: RunReport) -> Iterator[doc.Entry | doc.Hint]:
    slow = _slow_paths(report)
    for grade, words, case in slow[:_BENCH_WORST]:
        yield doc.Entry(grade.text.strip(), grade.tone, (words, case), level=Level.SUMMARY)
    if more := len(slow[_BENCH_WORST:]):
        yield doc.Hint(f"and {more} more paths are slow (-v)", more=True, level=Level.SUMMARY)


def _broken(report: RunReport) -> Iterator[doc.DocumentBlock]:
    """Return the reasons for failed and unstable measurements with some paths, and all paths with ``-v``."""
    groups = [
        group
        for group in bench_answer.exceptions(report)
        if group[0] not in (MeasurementStatus.WAIVED, MeasurementStatus.UNSTABLE)
    ]
    unstable = {
        f"{m.name} {m.path}": m.reason or "" for m in report.measurements if m.status is MeasurementStatus.UNSTABLE
    }
    if unstable:
        (reason,) = unstable.values() if len(unstable) == 1 else ("the samples differ too much",)
        groups.append((MeasurementStatus.UNSTABLE, reason, list(unstable)))
    return doc.limited((_reason(*group, unstable) for group in groups), _REASONS, "reason")


def _reason(status: MeasurementStatus, reason: str, paths: Sequence[str], unstable: Mapping[str, str]) -> doc.Entry:
    """Return the entry of a reason with its paths; ``-v`` shows all of them, and how much each unstable one varies."""
    rows = [("paths", ", ".join(paths))] if len(paths) > PATHS else []
    if status is MeasurementStatus.UNSTABLE and len(paths) > 1:
        rows = list(unstable.items())
    title = f"{shortened(paths, PATHS)}: {reason}"
    body = (doc.KeyValues(tuple(rows), level=Level.VERBOSE),)
    return doc.Entry(status.upper(), STATUS_TONES.get(status, Tone.BAD), title, body=body)


def _skipped(report: RunReport) -> Iterator[str]:
    explained = {number for cause in report.causes for number in cause.measurements}
    waived = [
        m for n, m in enumerate(report.measurements) if m.status is MeasurementStatus.WAIVED and n not in explained
    ]
    if waived:
        reasons = list(dict.fromkeys(m.reason or "" for m in waived))
        more = " ..." if len(reasons) > 2 else ""
        yield f"{several(len(waived), 'measurement')} skipped: {'; '.join(reasons[:2])}{more}"
