"""Compare saved results of one kind: the second file with the first, or each node of a fleet with all nodes.

Pure: :func:`compare` reads no file and no machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import NamedTuple

from egmctl.comparison import facts, paths
from egmctl.comparison.collectives import differing
from egmctl.comparison.paths import TOLERANCE, GpuNames, SpreadOf, affected, default_spread, points, touched
from egmctl.comparison.worth import outcome_of
from egmctl.dataclass import dataclass
from egmctl.errors import UsageError
from egmctl.model.answer import Cause
from egmctl.model.bringup import Bringup
from egmctl.model.comparison import ComparedNode, Comparison, ComparisonCause, Outcome, PathDifference
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import Finding, PlaceKind, Status, WaiverKind
from egmctl.model.measurement import RunReport, Settings
from egmctl.model.record import Command
from egmctl.saved import Saved
from egmctl.units import fold, grouped, listed, natural
from egmctl.verdict.answers import answered
from egmctl.verdict.explain import Shortfalls, with_causes

HARDLY = 0.25
"""The part of the smaller of two runs that both must have measured: a comparison of less would pass as one of the runs.
The value is our choice."""
_PLACES = {PlaceKind.GPU: "GPU", PlaceKind.PAIR: "pair", PlaceKind.NUMA: "NUMA", PlaceKind.NIC: "NIC"}
_GRAVITY = {Status.PASS: 0, Status.NOTE: 1, Status.ASSUMED: 1, Status.UNKNOWN: 1, Status.WARN: 2, Status.FAIL: 3}
_FAULTS = (Status.WARN, Status.FAIL)


def compare(saved: Sequence[Saved], *, tolerance: float = TOLERANCE, spread: SpreadOf = default_spread) -> Comparison:
    """Return the differences between two or more saved results.

    Parameters
    ----------
    saved
        Results of one kind. If there are two, the first is the reference. Files without a result are listed but not
        compared.
    tolerance
        The largest change of a median that is not reported, as a part of the reference.
    spread
        A function that returns how much the median of a measurement's path is known to differ from run to run.

    Raises
    ------
    UsageError
        There are fewer than two results, or they are of several kinds.
    """
    results = Results()
    for file in saved:
        results.add(file)
    return results.compared(tolerance=tolerance, spread=spread)


class Results:
    """Results that are added one by one, and of which only what is compared is kept, once if it is equal."""

    def __init__(self) -> None:
        self._files: list[_File] = []
        self._facts = facts.MachineFacts()
        self._checks: dict[Hashable, _Checks] = {}

    def __len__(self) -> int:
        return len(self._files)

    def add(self, saved: Saved) -> None:
        """Add a result."""
        result = saved.result
        run = result.run if isinstance(result, Bringup) else result
        file = _File(
            name=saved.name,
            path=saved.path,
            kind=saved.kind,
            failure=saved.failure,
            readable=result is not None,
            node=_node(saved),
            run=run if isinstance(run, RunReport) else None,
            gpus=tuple((gpu.bus_id, gpu.index, gpu.uuid) for machine in saved.machines for gpu in machine.gpus or ()),
            facts=self._facts.of(saved.machines[0]) if len(saved.machines) == 1 else None,
        )
        if isinstance(result, Diagnosis):
            checks = _Checks.of(result)
            file.checks = self._checks.setdefault(checks.key, checks)
        self._files.append(file)

    def compared(
        self, *, order: Sequence[str] = (), tolerance: float = TOLERANCE, spread: SpreadOf = default_spread
    ) -> Comparison:
        """Return the differences between the results, as :func:`compare` does.

        Parameters
        ----------
        order
            The names of the results in the order in which they are compared; by default they are as they were added.
        """
        position = {name: number for number, name in enumerate(order)}
        files = sorted(self._files, key=lambda file: position.get(file.name, 0))
        return answered(_compared(files, tolerance, spread))


@dataclass(slots=True, kw_only=True, eq=False)
class _File:
    """What is compared of one result."""

    name: str
    path: Path
    kind: Command | None
    failure: str
    readable: bool
    """Whether there is a result."""
    node: ComparedNode
    run: RunReport | None
    checks: _Checks | None = None
    gpus: tuple[tuple[str, int, str | None], ...]
    """The bus id, index and UUID of each GPU."""
    facts: Mapping[str, facts.FileStatements] | None
    """The statements about its machine, by section; ``None`` unless it has exactly one."""

    @property
    def indices(self) -> dict[str, int]:
        """The index of each GPU by bus id."""
        return {bus_id: index for bus_id, index, _ in self.gpus}


def _compared(files: Sequence[_File], tolerance: float, spread: SpreadOf) -> Comparison:
    kind = _kind(files)
    of_nodes = len(files) > 2
    ordered = sorted(files, key=lambda file: natural(file.name)) if of_nodes else files
    readable = [file for file in ordered if file.readable]
    names = [file.name for file in readable]
    file_names = [file.name for file in ordered]
    comparison = Comparison(
        kind=kind,
        nodes=tuple(file.node for file in ordered),
        folded=fold(file_names) if of_nodes else ", ".join(file_names),
        tolerance=tolerance,
        compared=0,
    )
    if len(readable) < 2:
        return comparison
    runs = [file.run for file in readable if file.run is not None]
    if len(runs) == len(readable):
        comparison = _bench(comparison, names, runs, spread)
    elif kind is Command.DOCTOR:
        comparison = _doctor(comparison, names, readable)
    if all(file.facts is not None for file in readable):
        comparison = _machines(comparison, names, readable)
    if of_nodes:
        outliers = {path.node for path in comparison.paths} | {node for item in comparison.words for node in item.nodes}
        same = tuple(name for name in names if name not in outliers)
        comparison = replace(comparison, same=same, same_folded=fold(same))
    return comparison


def _bench(comparison: Comparison, names: Sequence[str], runs: Sequence[RunReport], spread: SpreadOf) -> Comparison:
    gpus = GpuNames([{gpu.bus_id: gpu.index for gpu in run.gpus} for run in runs])
    measured = [points(run, gpus, number) for number, run in enumerate(runs)]
    known = [[key for key, point in run.items() if point.value is not None] for run in measured]
    shared, fewest = len(set(known[0]).intersection(*known)), min(map(len, known))
    if not comparison.of_nodes and shared < HARDLY * fewest:
        both = f"{len(known[0])} and {len(known[1])} measured paths, of which only {shared} are the same"
        return replace(comparison, notes=(f"the runs hardly overlap: they have {both}", *differing(names, runs)))
    different = tuple(
        paths.path_differences(names, measured, comparison.tolerance, spread, of_nodes=comparison.of_nodes)
    )
    return replace(
        comparison,
        compared=sum(count > 1 for count in Counter(key for run in known for key in run).values()),
        paths=different,
        causes=_causes_of_worse(names, runs, different),
        affected=affected(different, dict(zip(names, measured, strict=True))),
        touches=touched(different),
        notes=(*_matched(gpus), *_settings(names, runs), *differing(names, runs)),
    )


def _doctor(comparison: Comparison, names: Sequence[str], files: Sequence[_File]) -> Comparison:
    gpus = GpuNames([file.indices for file in files])
    results = _check_results([file.checks for file in files if file.checks is not None], gpus)
    attributes = facts.attribute_differences(names, results, gpus, _graded, of_nodes=comparison.of_nodes)
    return replace(comparison, compared=facts.compared(results), words=attributes, notes=_matched(gpus))


def _machines(comparison: Comparison, names: Sequence[str], files: Sequence[_File]) -> Comparison:
    """Add the differences between the machines; for snapshots and topologies these are the result itself."""
    gpus = GpuNames([file.indices for file in files])
    by_section = [file.facts or {} for file in files]
    sections = [name for name in by_section[0] if all(name in stated for stated in by_section)]
    stated = facts.renamed([[part for name in sections for part in of_file[name]] for of_file in by_section], gpus)
    different = facts.attribute_differences(names, stated, gpus, outcome_of, of_nodes=comparison.of_nodes)
    notes = () if comparison.of_nodes else _swapped(*files)
    if comparison.kind in (Command.BENCH, Command.BRINGUP, Command.DOCTOR):
        return replace(comparison, machines=different, notes=(*comparison.notes, *notes))
    return replace(comparison, compared=facts.compared(stated), words=different, notes=(*_matched(gpus), *notes))


def _kind(saved: Sequence[_File]) -> Command:
    """Return the kind of all files that have a result.

    Raises
    ------
    UsageError
        There are fewer than two files, none has a result, or they are of several kinds.
    """
    if len(saved) < 2:
        raise UsageError("there is nothing to compare with: give two files or more")
    kinds = {file.kind: file.path for file in saved if file.kind is not None}
    if not kinds:
        raise UsageError(f"none of the {len(saved)} files has a result: {saved[0].path}: {saved[0].failure}")
    if len(kinds) > 1:
        files = listed([f"{path} is of egmctl {kind}" for kind, path in kinds.items()])
        raise UsageError(f"{files}: only results of one kind can be compared")
    return next(iter(kinds))


def _node(saved: Saved) -> ComparedNode:
    recorded_at = saved.origin.recorded_at if saved.origin is not None else ""
    busy: set[str] = set()
    problem, run = saved.failure, saved.result.run if isinstance(saved.result, Bringup) else saved.result
    if isinstance(run, RunReport):
        recorded_at = run.started_at
        evidence = [gpu for m in run.measurements if m.evidence for gpu in m.evidence.gpus]
        busy = {gpu.label for gpu in evidence if gpu.other_processes} | _not_measured(run)
        problem = "interrupted, a partial report" if run.interrupted else ""
    return ComparedNode(
        name=saved.name,
        tool=saved.tool,
        at=recorded_at,
        modelled=saved.modelled,
        fake=saved.fake,
        busy=tuple(sorted(busy, key=natural)),
        interrupted=isinstance(run, RunReport) and run.interrupted,
        problem=problem,
    )


def _not_measured(run: RunReport) -> set[str]:
    """Return the GPUs that were not measured because other processes used them."""
    labels = {gpu.bus_id: gpu.label for gpu in run.gpus}
    waivers = [waiver for m in run.measurements for waiver in m.waivers]
    waivers += run.nccl.plan.waivers if run.nccl is not None else ()
    busy = (bus_id for waiver in waivers if waiver.kind is WaiverKind.GPU_BUSY for bus_id in waiver.gpus)
    return {labels.get(bus_id, bus_id) for bus_id in busy}


def _matched(gpus: GpuNames) -> tuple[str, ...]:
    return ("the files have no bus id in common: GPUs are matched by index",) if gpus.by_index else ()


def _swapped(before: _File, after: _File) -> tuple[str, ...]:
    """Return a note on GPUs with the same bus id but another UUID in the second machine."""
    earlier = {bus_id: uuid for bus_id, _, uuid in before.gpus}
    matched = [(bus_id, index, uuid) for bus_id, index, uuid in after.gpus if uuid and earlier.get(bus_id)]
    swapped = [f"GPU{index}" for bus_id, index, uuid in matched if uuid != earlier[bus_id]]
    return (f"{', '.join(swapped)}: another GPU than in the first file, by its UUID",) if swapped else ()


def _settings(names: Sequence[str], runs: Sequence[RunReport]) -> tuple[str, ...]:
    """Return a note for each setting that differs between the runs."""
    notes = []
    for field in fields(Settings):
        texts = (facts.fact_text(getattr(run.settings, field.name), field.name) for run in runs)
        nodes = grouped(zip(texts, names, strict=True))
        if len(nodes) > 1:
            values = ", ".join(f"{value} in {fold(members)}" for value, members in nodes.items())
            notes.append(f"settings differ: {field.name.replace('_', ' ')} {values}")
    return tuple(notes)


class _CheckResult(NamedTuple):
    """The result of a check for one thing."""

    status: Status | None
    """``None`` if the check did not run."""
    summaries: tuple[str, ...] = ()
    """The findings behind a status other than pass and skip."""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.status or "not checked", "; ".join(self.summaries))))


@dataclass(frozen=True, slots=True, eq=False)
class _Checks:
    """The results of the checks of one diagnosis."""

    stated: Mapping[facts.Subject, _CheckResult]
    """The results for the things that findings name, GPUs by bus id."""
    usual: Mapping[str, Status]
    """The result of each check for other things: ``pass`` if any of its findings is not ``skip``."""

    @classmethod
    def of(cls, diagnosis: Diagnosis) -> _Checks:
        """Return the results of a diagnosis."""
        usual = dict.fromkeys((finding.check for finding in diagnosis.findings), Status.SKIP)
        usual |= {finding.check: Status.PASS for finding in diagnosis.findings if finding.status is not Status.SKIP}
        return cls(_by_subject(diagnosis), usual)

    @property
    def key(self) -> Hashable:
        """A key that equal results share."""
        return tuple(self.stated.items()), tuple(self.usual.items())


def _check_results(results: Sequence[_Checks], names: GpuNames) -> list[facts.FileStatements]:
    """Return each file's check results for every thing that a finding of any file names.

    A check names the thing only for a problem and the node otherwise. So for a thing that only findings of other files
    name, the value is ``pass`` if the check ran.
    """
    by_file = facts.renamed([(checks.stated,) for checks in results], names)
    subjects = {subject: None for (stated,) in by_file for subject in stated}
    known: dict[tuple[int, int], facts.Statements] = {}
    statements_by_file: list[facts.FileStatements] = []
    for checks, (stated,) in zip(results, by_file, strict=True):
        key = id(checks), id(stated)
        if key not in known:
            known[key] = {subject: _CheckResult(checks.usual.get(subject.what)) for subject in subjects} | dict(stated)
        statements_by_file.append((known[key],))
    return statements_by_file


def _graded(_subject: facts.Subject, before: _CheckResult, after: _CheckResult) -> Outcome | None:
    """Grade a change of a check's result; ``None`` if both are pass, skip or not checked."""
    old, new = before.status, after.status
    if {old, new} <= {Status.PASS, Status.SKIP, None}:
        return None
    if old in (None, Status.SKIP) or new in (None, Status.SKIP):
        return Outcome.DIFFERENT
    if _GRAVITY[new] > _GRAVITY[old] and new in _FAULTS:
        return Outcome.WORSE
    # What was not known, or only noted, was no fault: that it passes now is no improvement.
    if _GRAVITY[new] < _GRAVITY[old] and old in _FAULTS and new not in (Status.UNKNOWN, Status.ASSUMED):
        return Outcome.BETTER
    return Outcome.DIFFERENT


def _by_subject(result: Diagnosis) -> dict[facts.Subject, _CheckResult]:
    def subject(finding: Finding, place: str) -> facts.Subject:
        return facts.Subject(_PLACES.get(finding.place.kind, ""), place, finding.check)

    places = ((finding, place) for finding in result.findings for place in finding.place.ids or ("",))
    by_subject = grouped((subject(finding, place), finding) for finding, place in places)
    return {thing: _check_result(findings) for thing, findings in by_subject.items()}


def _check_result(findings: Sequence[Finding]) -> _CheckResult:
    """Return the worst status with the summaries of its findings."""
    worst = max((finding.status for finding in findings), key=lambda status: _GRAVITY.get(status, -1))
    if worst in (Status.PASS, Status.SKIP):
        return _CheckResult(worst)
    return _CheckResult(worst, tuple(sorted({finding.summary for finding in findings if finding.status is worst})))


def _causes_of_worse(
    names: Sequence[str], runs: Sequence[RunReport], differences: Sequence[PathDifference]
) -> tuple[ComparisonCause, ...]:
    """Return the causes of the paths that are slower; for each node, those that explain most first.

    A path that is slower while others used its GPUs is no worse than before, and yet has that cause.

    A cause that the first of two runs also has, or that more than half of several nodes have, is left out.
    """
    # The causes of the same paths are found in every run: a cause that the reference also has explains no difference.
    worse = {index: path for index, path in enumerate(differences) if path.outcome is Outcome.WORSE or path.is_slower}
    if not worse:
        return ()
    labels = {path.path for path in worse.values()}
    by_run: list[tuple[Cause, ...]] = []
    for run in runs:
        numbers = frozenset(number for number, m in enumerate(run.measurements) if m.path in labels)
        by_run.append(with_causes(run, short=Shortfalls(failing=numbers)).causes)
    common = Counter(_identity(cause) for causes in by_run for cause in causes)
    most_runs = 1 if len(runs) == 2 else len(runs) / 2
    result: list[ComparisonCause] = []
    for name, run, causes in zip(names, runs, by_run, strict=True):
        for cause in causes:
            short = {(run.measurements[number].case, run.measurements[number].path) for number in cause.measurements}
            explains = tuple(i for i, path in worse.items() if path.node == name and (path.case, path.path) in short)
            if explains and common[_identity(cause)] <= most_runs:
                result.append(ComparisonCause(node=name, finding=cause.finding, explains=explains))
    return tuple(result)


def _identity(cause: Cause) -> tuple[str, tuple[str, ...], str]:
    return cause.finding.check, cause.finding.place.ids, cause.node
