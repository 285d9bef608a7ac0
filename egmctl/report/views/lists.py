"""Views of lists: earlier runs, profiles, machines, cases, and the steps and cost of a plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from egmctl.bench.plan.task import shortened_task
from egmctl.files import profiles_dir
from egmctl.model import listing
from egmctl.model.machine import Machine, OriginKind
from egmctl.model.profile import LinkFacts, MachineSignature, MatchResult, Profile, ProfileList, Reference
from egmctl.model.task import Quantity, named
from egmctl.report import document as doc
from egmctl.report.document import Level, Tone
from egmctl.report.views.bench_answer import false_alarms
from egmctl.report.views.findings import tone_of
from egmctl.report.views.machine import banners
from egmctl.report.views.nccl import plan_section
from egmctl.topology.platform import platform
from egmctl.units import format_size, grouped, several, shortened

_NAMED = 2
"""The number of cases named per reason why they would not run."""


def history_document(history: listing.History) -> doc.Document:
    """Return the table of saved runs, the latest last, and their files."""
    runs = history.runs
    if not runs:
        nothing = "No bench run of this node is kept; 'egmctl bench' keeps one."
        body: tuple[doc.DocumentBlock, ...] = (doc.Paragraph(nothing, level=Level.SUMMARY),)
    else:
        finished = [run for run in runs if run.exit_code is not None]
        unfinished = f", {len(runs) - len(finished)} of them did not end" if len(finished) < len(runs) else ""
        # The names of runs for ``egmctl compare``; a run that did not end has none.
        names = {id(run): f"last~{back}" if back else "last" for back, run in enumerate(reversed(finished))}
        rows = (
            (
                names.get(id(run), ""),
                run.started_at.replace("T", " ").removesuffix("Z").removesuffix("+00:00"),
                str(len(run.gpus)),
                f"{run.ok} of {run.measurements}",
                doc.Span(run.ending, tone_of(run.state)),
            )
            for run in runs
        )
        count = f"{several(len(runs), 'bench run')} kept{unfinished}"
        body = (
            doc.Paragraph(
                f"{count}, the latest last. 'egmctl show FILE' shows one, 'egmctl compare last' the last two."
            ),
            doc.table(("run", "began (UTC)", "GPUs", "ok", "ending"), rows, right=("GPUs", "ok"), wrap=("ending",)),
            doc.Section("Files", (doc.table(("began", "file"), ((run.started_at, run.file) for run in runs)),)),
        )
    return doc.Document(body=body)


def machines_document(listed: listing.MachineList) -> doc.Document:
    """Return the list of machines: name, origin (recorded or modelled), platform and description."""
    return doc.Document(body=tuple(map(_entry, listed.machines)))


def _entry(machine: listing.ShippedMachine) -> doc.Entry:
    about = (doc.Paragraph(machine.description, tone=Tone.DIM),) if machine.description else ()
    return doc.Entry(machine.name, Tone.STRONG, f"{machine.origin.value}: {machine.platform}", body=about)


def machine_list(machines: Sequence[Machine]) -> listing.MachineList:
    """Return the list entries of machines."""
    return listing.MachineList(
        machines=tuple(
            listing.ShippedMachine(
                name=machine.origin.name,
                origin=machine.origin.kind,
                platform=platform(machine).line,
                description=machine.origin.description,
            )
            for machine in machines
        )
    )


def profiles_document(profiles: ProfileList) -> doc.Document:
    """Return the list of profiles in the order in which they are matched, or the full document of a single one.

    The file is shown for profiles that are not part of egmctl.
    """
    if len(profiles.profiles) == 1:
        return profile_document(profiles.profiles[0].profile)
    shipped = profiles_dir()
    entries = []
    for entry in profiles.profiles:
        file = "" if Path(entry.file).parent == shipped else f" ({entry.file})"
        kinds = doc.Paragraph(_kinds(entry.profile), tone=Tone.DIM)
        entries.append(doc.Entry(entry.profile.name, Tone.STRONG, f"{entry.profile.title}{file}", body=(kinds,)))
    return doc.Document(body=tuple(entries))


def profile_document(profile: Profile) -> doc.Document:
    """Return a profile: how it recognises a machine, its links and references, and the source of every number."""
    marks = {name: f"[{place}]" for place, name in enumerate(profile.sources, 1)}
    body: list[doc.DocumentBlock] = [
        doc.Paragraph(f"{profile.name}: {profile.title}"),
        doc.Section("Recognised by", (doc.Bullets(tuple(_signature(profile.match))),)),
    ]
    if profile.links:
        heads = ("", "links", "GB/s each", "payload", "GB/s", "source")
        rows = tuple((*_link(link), marks[link.source]) for link in profile.links)
        body.append(doc.Section("Links, one direction", (doc.table(heads, rows, right=heads[1:]),)))
    if profile.references:
        by_link = grouped((reference.link, reference) for reference in profile.references)
        tables = tuple(_references(link, references, marks) for link, references in by_link.items())
        body.append(doc.Section("References (GB/s, latencies in ns)", tables))
    if profile.healthy:
        alarms = f"{false_alarms(profile.name, profile.healthy)} {marks[profile.healthy.source]}"
        body.append(doc.Section("False alarms", (doc.Paragraph(alarms),)))
    sources = tuple(
        f"{marks[name]} {source}{f' {source.url}' if source.url else ''}" for name, source in profile.sources.items()
    )
    body.append(doc.Section("Sources", (doc.Bullets(sources),)))
    return doc.Document(body=tuple(body))


def _link(link: LinkFacts) -> tuple[str, ...]:
    payload = f"{100 * link.payload:.1f} %"
    return link.link, str(link.links), f"{link.rate_gb_s:g}", payload, f"{link.gb_s:.1f}"


def match_document(result: MatchResult) -> doc.Document:
    """Return the profile of a machine with the reasons, or the reason why none matches."""
    points: tuple[doc.Bullets, ...] = ()
    if result.profile is None:
        verdict = doc.Verdict("Profile", Tone.WARN, f"none: {result.reason}")
    else:
        verdict = doc.Verdict("Profile", Tone.GOOD, result.profile)
        (match,) = (match for match in result.matches if match.profile == result.profile)
        points = (doc.Bullets(tuple(point.reason for point in match.points)),)
    return doc.Document(banners=banners(result.origin), body=(verdict, *points))


def _signature(match: MachineSignature) -> list[str]:
    count = f"{match.least_gpus} to {match.most_gpus}" if match.least_gpus != match.most_gpus else f"{match.most_gpus}"
    lines = [
        f"GPU name {' or '.join(match.gpu_names)}",
        f"PCI device id {' or '.join(match.device_ids)}",
        f"{count} GPU" if count == "1" else f"{count} GPUs",
    ]
    if match.nvlinks is not None:
        lines.append(f"{several(match.nvlinks, 'NVLink')} per GPU")
    if match.link is not None:
        lines.append(f"{match.link} between GPUs, or fewer links")
    lines.append("NVLink-C2C" if match.c2c else "no NVLink-C2C")
    if match.nvlink_domain is not None:
        lines.append(f"{'a' if match.nvlink_domain else 'no'} multi-node NVLink domain")
    return lines


def _references(link: str, references: Sequence[Reference], marks: dict[str, str]) -> doc.Matrix:
    rows = tuple(
        (
            named(reference.case, reference.point) + (f", {reference.flows} flows" if reference.flows else ""),
            _number(reference.typical),
            _number(reference.warn),
            _number(reference.fail),
            marks[reference.source]
            + (marks[reference.bounds_source] if reference.bounds_source not in (None, reference.source) else ""),
        )
        for reference in references
    )
    heads = ("typical", "warn", "fail", "source")
    return doc.table((link, *heads), rows, right=heads)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _kinds(profile: Profile) -> str:
    kinds = {profile.sources[reference.source].kind for reference in profile.references}
    count = len(profile.references)
    return f"{several(count, 'reference')}, {' and '.join(sorted(kinds))}" if count else "no references"


def cases_document(cases: listing.CaseList) -> doc.Document:
    """Return the list of cases with the number of measurements that would run, and why the others would not."""
    families = grouped((case.family, case) for case in cases.cases)
    stops = ((case.name, case.reasons or ([] if case.measurements else ["needs two GPUs"])) for case in cases.cases)
    reasons = grouped((reason, name) for name, case_reasons in stops for reason in case_reasons)
    skipped = tuple(f"{shortened(names, _NAMED)}: {reason}" for reason, names in reasons.items())
    about = tuple((case.name, case.description) for case in cases.cases)
    return doc.Document(
        body=(
            *(_family(family, members) for family, members in families.items()),
            doc.Section("Skipped", (doc.Bullets(skipped),)),
            doc.Section("Suites", (doc.KeyValues(tuple(cases.suites.items())),)),
            doc.Section("What they measure", (doc.KeyValues(about),), level=Level.VERBOSE),
        ),
    )


def _family(family: str, cases: list[listing.ListedCase]) -> doc.Section:
    rows = ((case.name, f"{case.runnable} of {case.measurements}", ", ".join(case.axes)) for case in cases)
    return doc.Section(family, (doc.table(("case", "would run", "--sweep"), rows, right=("would run",)),))


def plan_document(plan: listing.PlanReport) -> doc.Document:
    """Return the steps of a plan, their peak memory and their estimated time."""
    return doc.Document(body=tuple(_plan(plan)))


def _plan(plan: listing.PlanReport) -> Iterator[doc.DocumentBlock]:
    tasks = listing.PlannedTasks.of(plan.tasks)
    kinds = tasks.kinds
    names = {id(kind): kind.name for kind in tasks.distinct}
    by_case = grouped((names[id(kinds[step.tasks[0]])], (number, step)) for number, step in enumerate(plan.steps, 1))
    for case, steps in by_case.items():
        rows = [_counted(steps, plan)] if len(steps) > _STEPS_SHOWN else [_step(*step, plan) for step in steps]
        yield doc.Section(case, (doc.table(("", "", ""), rows, wrap=("",)),))
    if plan.nccl is not None:
        yield from plan_section(plan.nccl)
    waived = Counter(kind.waiver for kind in kinds if kind.waivers)
    if any(len(steps) > _STEPS_SHOWN for steps in by_case.values()):
        yield doc.Paragraph(
            f"Cases of more than {_STEPS_SHOWN} steps are counted; --json has every step.", tone=Tone.DIM
        )
    reasons = (*(f"{count}: {reason}" for reason, count in waived.items()), *plan.notes)
    if reasons:
        yield doc.Section("Not measured", (doc.Bullets(reasons),))
    if plan.memory:
        held = tuple(f"{memory.place}: {format_size(memory.bytes)}" for memory in plan.memory)
        yield doc.Section("Peak memory", (doc.Bullets(held),))
    runnable = several(sum(not kind.waivers for kind in kinds), "measurement")
    time = f"{plan.seconds:.0f} s" if plan.seconds < 7200 else duration(plan.seconds)
    yield doc.Paragraph(
        f"{runnable} in {several(len(plan.steps), 'step')}, {plan.bytes_moved / 1e12:.2f} TB, about {time}"
    )


_STEPS_SHOWN = 64
"""The most steps of a case that are shown one by one: no case of 8 GPUs has more. 72 GPUs have 9,500 steps."""


def _step(number: int, step: listing.PlanStep, plan: listing.PlanReport) -> tuple[str, str, str]:
    paths = ", ".join(plan.tasks[place].path for place in step.tasks)
    alone = ", once more alone" if step.proof else ""
    return f"{number:>4}", f"{paths}{alone}", f"{_much(step, plan)}, {step.seconds:.2f} s"


def _counted(steps: Sequence[tuple[int, listing.PlanStep]], plan: listing.PlanReport) -> tuple[str, str, str]:
    """Return the row that stands for all steps of a case: their numbers and measurements, and the time of them all."""
    measured = several(sum(len(step.tasks) for _, step in steps if not step.proof), "measurement")
    alone = sum(step.proof for _, step in steps)
    again = f", {alone} once more alone" if alone else ""
    much = dict.fromkeys(_much(step, plan) for _, step in steps if not step.proof)
    seconds = sum(step.seconds or 0 for _, step in steps)
    (first, _), (last, _) = steps[0], steps[-1]
    return f"{first:>4}-{last}", f"{measured}{again}", f"{' or '.join(much)}, {seconds:.2f} s"


def _much(step: listing.PlanStep, plan: listing.PlanReport) -> str:
    kind = listing.PlannedTasks.of(plan.tasks).kinds[step.tasks[0]]
    task = shortened_task(kind) if step.proof else kind
    much = format_size(task.size_bytes)
    if task.quantity is Quantity.BANDWIDTH:
        return f"{1 if step.proof else plan.settings.samples} x {task.copies} x {much}"
    return much


def cost_document(cost: listing.JobCost) -> doc.Document:
    """Return the cost of a run on many ranks, per case (``--dry-run --ranks``)."""
    name = cost.origin.name if cost.origin.kind is not OriginKind.LIVE else "this one"
    heads = ("", "measured", "steps", "TB moved", "time", "held")
    rows = [_costs(case.case, [case], case.seconds, "!" if case.too_large else "") for case in cost.costs]
    nothing = "Nothing was measured; all nodes are assumed to be one NVLink domain."
    return doc.Document(
        body=(
            doc.Paragraph(f"Cost: {several(cost.ranks, 'GPU')} on {several(cost.nodes, 'node')} like {name}"),
            doc.Paragraph(nothing, tone=Tone.DIM),
            doc.table(heads, (*rows, _costs("all", cost.costs, cost.seconds)), right=heads[1:]),
            *(doc.Entry("!", Tone.WARN, line) for line in _breaks(cost)),
        ),
    )


def duration(seconds: float) -> str:
    """Return a duration in a suitable unit: ``51.0 s``, ``12.0 min``, ``3.4 h``, ``17.0 d``."""
    for unit, least, length in (("d", 2 * 86400, 86400), ("h", 2 * 3600, 3600), ("min", 120, 60)):
        if seconds >= least:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def _costs(name: str, cases: Sequence[listing.CaseCost], seconds: float, mark: str = "") -> tuple[str, ...]:
    """Return the row of one case or of all; the mark is for a case that may need too much memory."""
    measured, steps = sum(case.measurements - case.waived for case in cases), sum(case.steps for case in cases)
    moved, held = sum(case.bytes for case in cases) / 1e12, max(case.held_bytes for case in cases)
    return name, str(measured), str(steps), f"{moved:.1f}", duration(seconds), format_size(held) + mark


def _breaks(cost: listing.JobCost) -> Iterator[str]:
    """Yield sentences on cases that need too much memory, and on skipped measurements."""
    large = [case.case for case in cost.costs if case.too_large]
    if large:
        yield f"more than one place may hold: use a smaller --size for {', '.join(large)}"
    for reason in dict.fromkeys(case.reason for case in cost.costs if case.reason):
        waived = sum(case.waived for case in cost.costs if case.reason == reason)
        yield f"skipped: {waived} ({reason})"
