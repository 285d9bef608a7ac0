"""What ``egmctl bench`` says: the answer, the worst paths, a row for each class of paths; then every number.

The first screen is the answer; the matrices, what they were judged by and how they were measured come with ``-v`` and
on the page.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from egmctl.model.finding import Status as Found
from egmctl.model.gpu import FAKE, are_fake
from egmctl.model.measurement import Measurement, Quantity, RunReport, Status
from egmctl.model.rank import node_names
from egmctl.model.verdict import BAD_GRADES, ClassVerdict, Grade, Judgement, Yardstick, worst_grade
from egmctl.report.document import (
    Block,
    Bullets,
    Diagram,
    Document,
    Entry,
    Hint,
    KeyValues,
    Level,
    Paragraph,
    Section,
    Span,
    Tone,
)
from egmctl.report.views.bench_answer import answer, was_run
from egmctl.report.views.bench_cells import GRADE_TONES, STATUS_TONES, Frame
from egmctl.report.views.bench_classes import class_tables, number
from egmctl.report.views.bench_judged import judged_sections
from egmctl.report.views.bench_kernel import grave, kernel_line, logged
from egmctl.report.views.bench_notes import exceptions, how, tally, where_time_went
from egmctl.report.views.bench_owners import owner_lines, unexpected_owners
from egmctl.report.views.bench_rates import rates
from egmctl.report.views.bench_sms import by_sms
from egmctl.report.views.bench_soak import soak_lines, worst_paths
from egmctl.report.views.bench_tables import families
from egmctl.report.views.bench_warnings import route_line, seen, staged_lines, warnings
from egmctl.report.views.causes import cause_entries
from egmctl.report.views.machine import banners, confidential_banner, machine_section
from egmctl.report.views.node_scene import node_scene
from egmctl.report.views.topo import gpu_matrix
from egmctl.topology.topology import Topology, topology
from egmctl.verdict.classes import unit_of
from egmctl.wording import counted, gpu_name, several, shortened

_NODES_DRAWN = 4
_MANY = 8
"""Paths with the same reason that are named with -v."""
_WORST = 5
"""Paths that are named."""
_REASONS = 4
"""Reasons for what failed or was skipped that are told without -v."""
_WARNINGS = 4
_PATHS = 3
_STAGED = 2
"""Pairs without peer access that are named."""
_FAULTS = 3
"""Faults of the kernel's log that are told without -v."""
_STATUS_TONES = {Found.FAIL: Tone.BAD, Found.WARN: Tone.WARN}


def bench_document(report: RunReport) -> Document:
    """Return what there is to say of a run first."""
    subject = counted(gpu_name(gpu.name) for gpu in report.gpus)
    version = report.cuda_driver_version
    cuda = f" (CUDA {version // 1000}.{version % 1000 // 10})" if version else ""
    driver = report.driver_version or "unknown"
    fake = (FAKE,) if are_fake(gpu.name for gpu in report.gpus) else ()
    modelled = tuple(
        dict.fromkeys(
            one for machine in report.machines for one in (*banners(machine.origin), *confidential_banner(machine))
        )
    )
    return Document(
        command="egmctl bench",
        subject=subject,
        subtitle=f"{subject}, driver {driver}{cuda}; {tally(report)}, {report.wall_s:.0f} s",
        banners=(*fake, *modelled),
        body=tuple(_body(report)),
    )


def _body(report: RunReport) -> Iterator[Block]:
    yield answer(report)
    yield from cause_entries(report)
    yield from _kernel(report)
    if not any(was_run(m) for m in report.measurements):
        yield from _details(report)
        return
    yield from _worst_paths(report)
    yield from _broken(report)
    yield from class_tables(report)
    if by_number := tuple(by_sms(report.measurements, Frame.of(report))):
        yield Section(title="Bandwidth by number of SMs", body=by_number)
    if lines := tuple(soak_lines(report)):
        worst = worst_paths(report)
        yield Section(title="Soak", body=(Bullets(items=lines), *([worst] if worst is not None else [])))
    yield from _warnings(report)
    staged = tuple(staged_lines(report))
    more = (f"and {len(staged) - _STAGED} more pairs",) if len(staged) > _STAGED else ()
    notes = [*filter(None, [route_line(report)]), *unexpected_owners(report), *staged[:_STAGED], *more]
    notes += [*_skipped(report), *report.problems]
    if notes:
        yield Section(title="Notes", body=(Bullets(items=tuple(notes)),))
    yield from _details(report)
    yield Hint(words="Matrices, settings and references: -v; all of it as a page: -o run.html")


def _warnings(report: RunReport) -> Iterator[Section]:
    told = [f"{sentence} ({several(len(paths), 'path')})" for sentence, paths in seen(report, causes=False).items()]
    if told:
        yield Section(title="Warnings", body=tuple(_first(told)))


def _first(sentences: Sequence[str]) -> Iterator[Bullets | Hint]:
    yield Bullets(items=tuple(sentences[:_WARNINGS]))
    if len(sentences) > _WARNINGS:
        yield Bullets(items=tuple(sentences[_WARNINGS:]), level=Level.VERBOSE)
        yield Hint(words=f"and {len(sentences) - _WARNINGS} more (-v)", more=True)


def _details(report: RunReport) -> Iterator[Section]:
    """Yield what stands behind the answer: the picture, every number, what it was judged by, how it was measured."""
    chosen = {gpu.bus_id for gpu in report.gpus}
    for machine in report.machines[:_NODES_DRAWN]:
        judged = topology(machine, [gpu for gpu in machine.gpus or () if gpu.bus_id in chosen])
        yield topology_section(judged, report)
        yield machine_section(machine)
    if len(report.machines) > _NODES_DRAWN:
        told = f"{len(report.machines) - _NODES_DRAWN} more nodes were measured; JSON has the facts of each."
        yield Section(title="Further nodes", body=(Paragraph(words=told),), level=Level.PAGE)
    for title, blocks in families(report):
        yield Section(title=title, body=blocks, level=Level.VERBOSE)
    if report.verdict is not None:
        yield from judged_sections(report, report.verdict)
    if owned := tuple(owner_lines(report)):
        yield Section(title="Owner of EGM memory", body=(Bullets(items=owned),), level=Level.VERBOSE)
    skipped = tuple(
        Entry(
            word=status.upper(), tone=STATUS_TONES.get(status, Tone.BAD), title=f"{shortened(paths, _MANY)}: {reason}"
        )
        for status, reason, paths in exceptions(report)
        if status is Status.WAIVED
    )
    if skipped:
        yield Section(title="Skipped", body=skipped, level=Level.VERBOSE)
    if all_warnings := tuple(warnings(report)):
        yield Section(title="Each warning", body=(Bullets(items=all_warnings),), level=Level.VERBOSE)
    how_line = f"{', '.join(how(report))}. GB/s are 1e9 bytes a second; a copy counts its bytes once."
    nodes = node_names(rank.host for rank in report.ranks)
    where = tuple(f"{node} is {host or 'unknown'}" for host, node in nodes.items())
    told_notes = (how_line, *filter(None, [where_time_went(report), kernel_line(report)]), *report.notes, *where)
    yield Section(title="How it was measured", body=(Bullets(items=told_notes),), level=Level.VERBOSE)


def topology_section(judged: Topology, report: RunReport) -> Section:
    """Return the picture of a node with what was measured over each link."""
    found, cases = rates(report)
    told = "Rates are nominal, in one direction."
    if any(label in judged.gpus for ends in found for label in ends):
        told += (
            " Numbers with arrows are measured GB/s in the drawing's directions (↓ down, ↑ up, → from the first GPU): "
            f"single copies by copy engines, of a GPU on a switch the median of its pairs. Cases: {', '.join(cases)}."
        )
    links = (gpu_matrix(judged),) if judged.gpus else ()
    picture = Diagram(scene=node_scene(judged, found))
    body = (Paragraph(words=judged.platform.line), picture, Paragraph(words=told, tone=Tone.DIM), *links)
    return Section(title="Topology", body=body, level=Level.PAGE)


def _kernel(report: RunReport) -> Iterator[Entry | Hint]:
    """Yield what the kernel logged meanwhile that calls for an operator."""
    found = grave(report)
    for fault in found[:_FAULTS]:
        fix = fault.remedy.text + (f" ({fault.remedy.command})" if fault.remedy.command else "")
        yield Entry(
            word=fault.status.upper(),
            tone=_STATUS_TONES[fault.status],
            title=logged(fault),
            body=(KeyValues(rows=(("fix", fix),)),),
            level=Level.SUMMARY,
        )
    if len(found) > _FAULTS:
        yield Hint(words=f"and {len(found) - _FAULTS} more in the kernel's log (-v)", more=True, level=Level.SUMMARY)


def _worst_paths(report: RunReport) -> Iterator[Entry | Hint]:
    """Yield the paths that are farthest from what is expected."""
    verdict = report.verdict
    if verdict is None:
        return
    classes = {number: one for one in verdict.classes for number in one.measurements}
    found: list[tuple[float, Grade, Measurement, ClassVerdict, Judgement]] = []
    for judged in verdict.judged:
        bad = [one for one in judged.judgements if one.grade in BAD_GRADES]
        if bad:
            grade = worst_grade(one.grade for one in bad)
            first = min(bad, key=lambda one: (list(Grade).index(one.grade), list(Yardstick).index(one.yardstick)))
            measurement = report.measurements[judged.measurement]
            share = first.value / first.expected if first.expected else 1.0
            slower = 1 / share if measurement.quantity is Quantity.LATENCY and share else share
            found.append((slower, grade, measurement, classes[judged.measurement], first))
    found.sort(key=lambda item: (list(Grade).index(item[1]), item[0]))
    for _, grade, measurement, of, judgement in found[:_WORST]:
        unit = unit_of(measurement)
        against = ""
        if judgement.expected:
            by = {Yardstick.PROFILE: "the expected", Yardstick.LINK: "its link's", Yardstick.PEERS: "its peers'"}
            against = f", {100 * judgement.value / judgement.expected:.0f} % of {by[judgement.yardstick]}"
            against += f" {number(judgement.expected)}"
        yield Entry(
            word=grade.upper(),
            tone=GRADE_TONES[grade],
            title=(f"{measurement.path}: {number(judgement.value)} {unit}{against} ", Span(of.case, Tone.DIM)),
            level=Level.SUMMARY,
        )
    if len(found) > _WORST:
        yield Hint(words=f"and {len(found) - _WORST} more paths are slow (-v)", more=True, level=Level.SUMMARY)


def _broken(report: RunReport) -> Iterator[Section]:
    """Yield what was not measured, or not steadily, with why; all paths of it with ``-v``."""
    told = [one for one in exceptions(report) if one[0] not in (Status.WAIVED, Status.UNSTABLE)]
    unstable = {f"{m.case} {m.path}": m.reason or "" for m in report.measurements if m.status is Status.UNSTABLE}
    if unstable:
        (reason,) = unstable.values() if len(unstable) == 1 else ("the samples differ too much",)
        told.append((Status.UNSTABLE, reason, list(unstable)))
    entries: list[Block] = [
        Entry(
            word=status.upper(),
            tone=STATUS_TONES.get(status, Tone.BAD),
            title=f"{shortened(paths, _PATHS)}: {reason}",
            body=tuple(_each(status, paths, unstable)),
            level=Level.NORMAL if place < _REASONS else Level.VERBOSE,
        )
        for place, (status, reason, paths) in enumerate(told)
    ]
    if len(told) > _REASONS:
        entries.append(Hint(words=f"and {len(told) - _REASONS} more reasons (-v)", more=True))
    if entries:
        yield Section(title="Failed or unstable", body=tuple(entries))


def _each(status: Status, paths: Sequence[str], unstable: Mapping[str, str]) -> Iterator[KeyValues]:
    """Yield all paths where some are not named, and by how much each unstable one varies."""
    if status is Status.UNSTABLE and len(paths) > 1:
        yield KeyValues(rows=tuple(unstable.items()), level=Level.VERBOSE)
    elif len(paths) > _PATHS:
        yield KeyValues(rows=(("paths", ", ".join(paths)),), level=Level.VERBOSE)


def _skipped(report: RunReport) -> Iterator[str]:
    explained = {number for cause in report.causes for number in cause.explains}
    waived = [m for n, m in enumerate(report.measurements) if m.status is Status.WAIVED and n not in explained]
    if waived:
        reasons = Counter(m.reason or "" for m in waived)
        told = "; ".join(reason for reason, _ in reasons.most_common(2))
        yield f"{several(len(waived), 'measurement')} skipped: {told}{' ...' if len(reasons) > 2 else ''}"
