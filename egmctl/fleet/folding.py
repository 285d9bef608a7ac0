"""What nodes have in common: each answer as a few lines that say how it stands there, equal ones together.

What the nodes differ in, down to single facts and numbers, :mod:`egmctl.comparison` says.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from egmctl.model import finding, fleet, measurement
from egmctl.model.bringup import Answer, Bringup
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.fleet import GroupLine, NodeGroup
from egmctl.model.machine import Machine
from egmctl.model.measurement import RunReport
from egmctl.model.verdict import Grade
from egmctl.report.document import plain
from egmctl.report.views.bench_answer import answer
from egmctl.report.views.bringup import root_of, verdict
from egmctl.report.views.causes import asked_words
from egmctl.saved import Saved
from egmctl.topology.missing import missing
from egmctl.topology.platform import platform
from egmctl.wording import counted, gpu_name

_STATUSES = {Grade.FAIL: "fail", Grade.WARN: "warn"}


def groups(
    answers: Sequence[fleet.NodeAnswer],
    lines_of: Mapping[str, tuple[GroupLine, ...]],
    fold: Callable[[Iterable[str]], str],
) -> tuple[NodeGroup, ...]:
    """Return nodes whose lines are the same together, the largest group first, those that did not answer last.

    Parameters
    ----------
    lines_of
        The lines of each node that answered.
    fold
        Writes nodes in short.
    """
    alike: dict[tuple[GroupLine, ...], list[fleet.NodeAnswer]] = {}
    for one in answers:
        alike.setdefault(lines_of.get(one.node) or _silence(one, _nameless(one)), []).append(one)
    found = []
    for lines, those in sorted(alike.items(), key=lambda item: (item[1][0].node not in lines_of, -len(item[1]))):
        nodes = tuple(answer.node for answer in those)
        told = _silence(those[0], those[0].reason) if nodes[0] not in lines_of and len(nodes) == 1 else lines
        found.append(NodeGroup(nodes=nodes, folded=fold(nodes), lines=told))
    return tuple(found)


def lines_of(saved: Saved) -> tuple[GroupLine, ...]:
    """Return how it stands on a node."""
    match saved.result:
        case Diagnosis() as result:
            return _doctor_lines(result)
        case RunReport() as report:
            return _bench_lines(report)
        case Bringup() as found:
            return _bringup_lines(found)
    return tuple(line for machine in saved.machines for line in _machine_lines(machine))


def _silence(answer: fleet.NodeAnswer, reason: str) -> tuple[GroupLine, ...]:
    """Return the line of a node that has no document."""
    return (GroupLine(key="", value=reason, status=answer.reach.value),)


def _nameless(answer: fleet.NodeAnswer) -> str:
    """Return why there is no document, without what makes it another reason on every node: its name and address."""
    return re.sub(r"\bhost \S+ port\b", "host NODE port", answer.reason.replace(answer.node, "NODE"))


def _machine_lines(machine: Machine) -> tuple[GroupLine, ...]:
    lacking, driver = missing(machine), machine.driver
    lines = [GroupLine(key="platform", value=platform(machine).line)]
    if lacking is not None:
        lines.append(GroupLine(key="", value=lacking.sentence, status="fail"))
    lines.append(GroupLine(key="GPUs", value=_counted(gpu.name for gpu in machine.gpus or ())))
    if driver is not None:
        version = driver.driver_version or driver.module_version or "none"
        lines.append(GroupLine(key="driver", value=" ".join(filter(None, (version, driver.module_flavour)))))
    return tuple(lines)


def _doctor_lines(result: Diagnosis) -> tuple[GroupLine, ...]:
    told = ", ".join(f"{number} {status}" for status, number in result.counts.items() if number)
    lines = [GroupLine(key="platform", value=result.platform), GroupLine(key="checks", value=told or "none")]
    for status in (finding.Status.FAIL, finding.Status.WARN):
        for one in result.findings:
            if one.status is status and not one.explained_by:
                key = " ".join(filter(None, (one.check, one.place.label)))
                explains = f"; explains {', '.join(one.explains)}" if one.explains else ""
                lines.append(GroupLine(key=key, value=f"{one.summary}{explains}", check=one.check, status=status.value))
    return tuple(lines)


def _bench_lines(report: RunReport) -> tuple[GroupLine, ...]:
    statuses = Counter(one.status for one in report.measurements)
    told = ", ".join(f"{statuses[status]} {status}" for status in measurement.Status if statuses[status])
    lines = [
        GroupLine(key="GPUs", value=_counted(gpu.name for gpu in report.gpus)),
        GroupLine(key="measurements", value=told or "none"),
    ]
    culprits: Sequence[GroupLine] = ()
    if report.verdict is not None:
        status = _STATUSES.get(report.verdict.grade, "")
        told = plain(answer(report).sentence) if status else report.verdict.grade.value
        lines.append(GroupLine(key="" if status else "verdict", value=told, status=status))
        culprits = [
            GroupLine(
                key=culprit.path_class,
                value=f"{culprit.label} is slower than its peers",
                status=_STATUSES.get(culprit.grade, ""),
            )
            for culprit in report.verdict.culprits
        ]
    lines += [GroupLine(key="", value=problem, status="fail") for problem in report.problems]
    for one in report.measurements:
        if one.status not in (measurement.Status.OK, measurement.Status.WAIVED):
            status = "warn" if one.status is measurement.Status.UNSTABLE else "fail"
            lines.append(GroupLine(key=f"{one.case} {one.path}", value=one.status.value, status=status))
    # Slow in both directions is one line.
    lines += dict.fromkeys(culprits)
    lines += _cause_lines(report)
    return tuple(lines)


def _cause_lines(report: RunReport) -> Iterator[GroupLine]:
    """Yield what explains a run: each cause once."""
    for cause in report.causes:
        key = " ".join(filter(None, ("cause", cause.finding.check, cause.node, cause.finding.place.label)))
        value = f"{cause.finding.summary}{asked_words(cause)}; "
        value += f"explains {len(cause.explains)} of {len(report.measurements)} measurements"
        yield GroupLine(key=key, value=value, status="" if cause.status is finding.Status.NOTE else cause.status.value)


def _bringup_lines(found: Bringup) -> tuple[GroupLine, ...]:
    """Return the causes of a node that may not be handed over, the gravest first, then the answer."""
    lines = []
    for cause in found.causes:
        root = root_of(found, cause)
        if root is not None and cause.status in (finding.Status.FAIL, finding.Status.WARN):
            key = " ".join(filter(None, (root.check, root.place.label)))
            lines.append(GroupLine(key=key, value=root.summary, check=root.check, status=cause.status.value))
    told = verdict(found)
    status = {Answer.NO_GO: "fail", Answer.INCOMPLETE: "warn"}.get(found.answer, "")
    if not any(line.status == "fail" for line in lines):
        lines.insert(0, GroupLine(key="", value=plain(told.sentence) if status else told.word, status=status))
    lines.append(GroupLine(key="GPUs", value=_counted(gpu.name for gpu in found.machine.gpus or ())))
    return tuple(lines)


def _counted(names: Iterable[str | None]) -> str:
    return counted(map(gpu_name, names)) or "none"
