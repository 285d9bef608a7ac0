"""What nodes have in common: each answer as lines of what matters, equal ones together.

Of numbers that are never twice the same, temperatures or bandwidths, nothing is in the lines; ``egmctl compare`` looks
at those.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from egmctl.model import finding, measurement
from egmctl.model.fleet import Answer, Group, Line, Reach
from egmctl.model.machine import Machine
from egmctl.model.measurement import RunReport
from egmctl.model.verdict import Grade
from egmctl.report.doctor_json import DoctorResult
from egmctl.saved import Saved
from egmctl.topo.links import Link
from egmctl.topo.missing import missing
from egmctl.topo.routes import Route
from egmctl.topo.topology import topology


def groups(
    answers: Sequence[Answer], lines_of: Mapping[str, tuple[Line, ...]], fold: Callable[[Iterable[str]], str]
) -> tuple[Group, ...]:
    """Return nodes whose lines are the same together, the largest group first.

    Parameters
    ----------
    lines_of
        The lines of each node that answered.
    fold
        Writes nodes in short.
    """
    alike: dict[tuple[Line, ...], list[str]] = {}
    for answer in answers:
        lines = lines_of.get(answer.node)
        alike.setdefault(_silence(answer) if lines is None else lines, []).append(answer.node)
    ordered = sorted(alike.items(), key=lambda item: (item[1][0] not in lines_of, -len(item[1])))
    usual = ordered[0][0] if ordered and ordered[0][1][0] in lines_of else ()
    found = []
    for lines, nodes in ordered:
        shown = lines if lines is usual or nodes[0] not in lines_of else differences(lines, usual)
        found.append(Group(nodes=tuple(nodes), folded=fold(nodes), lines=shown))
    return tuple(found)


def lines_of(saved: Saved) -> tuple[Line, ...]:
    """Return what matters of a node's answer."""
    match saved.result:
        case DoctorResult() as result:
            return _doctor_lines(result)
        case RunReport() as report:
            return _bench_lines(report)
        case Machine() as machine:
            return machine_lines(machine)
    return tuple(line for machine in saved.machines for line in machine_lines(machine))


def differences(lines: Sequence[Line], usual: Sequence[Line]) -> tuple[Line, ...]:
    """Return the lines that differ from the usual ones, each with what is usual, and the usual that are missing."""
    theirs = {line.key: line for line in usual}
    own = {line.key for line in lines}
    changed = [
        Line(
            key=line.key,
            value=line.value,
            status=line.status,
            detail=line.detail,
            usual=theirs[line.key].value if line.key in theirs else "",
        )
        for line in lines
        if line != theirs.get(line.key)
    ]
    gone = [Line(key=line.key, value="", detail=line.detail, usual=line.value) for line in usual if line.key not in own]
    return (*changed, *gone)


def machine_lines(machine: Machine) -> tuple[Line, ...]:
    """Return what matters of a node's facts: its parts, their versions, and how they are connected."""
    judged = topology(machine)
    lacking = missing(machine)
    driver, host = machine.driver, machine.host
    names = Counter(gpu.name or "a GPU without a name" for gpu in judged.gpus.values())
    lines = [Line(key="platform", value=judged.platform.line)]
    if lacking is not None:
        lines.append(Line(key="topology", value=lacking.sentence, status="fail"))
    lines.append(Line(key="GPUs", value=", ".join(f"{number} x {name}" for name, number in names.items()) or "none"))
    if machine.nics is not None:
        lines.append(Line(key="NICs", value=str(len(machine.nics)), detail=True))
    if driver is not None:
        version = driver.driver_version or driver.module_version or "none"
        lines.append(Line(key="driver", value=" ".join(filter(None, (version, driver.module_flavour)))))
    if host is not None:
        lines.append(Line(key="kernel", value=host.kernel or "?", detail=True))
        lines.append(Line(key="CPU", value=f"{host.cpu_count or '?'} x {host.cpu_model or '?'}", detail=True))
        nodes = {node.kind.value for node in host.numa_nodes or ()}
        numbers = [f"{sum(n.kind.value == kind for n in host.numa_nodes or ())} {kind}" for kind in sorted(nodes)]
        lines.append(Line(key="NUMA nodes", value=", ".join(numbers) or "?", detail=True))
    for label, gpu in judged.gpus.items():
        firmware = None if gpu.nvml is None else gpu.nvml.vbios
        told = (gpu.name or "?", f"VBIOS {firmware}" if firmware else "", f"known to {', '.join(gpu.sources)}")
        lines.append(Line(key=label, value="; ".join(filter(None, told)), detail=True))
    for (one, other), link in judged.links.items():
        lines.append(Line(key=f"{one} - {other}", value=_link(link), detail=True))
    for route in judged.routes:
        lines.append(Line(key=f"{judged.label(route.gpu)} - NUMA {route.node}", value=_route(route), detail=True))
    return tuple(lines)


def _silence(answer: Answer) -> tuple[Line, ...]:
    """Return the line of a node that has no document."""
    # Its own name in the launcher's words would make every node a group of its own.
    reason = answer.reason.replace(answer.node, "NODE")
    status = answer.reach.value if answer.reach is not Reach.ANSWERED else Reach.GARBAGE.value
    return (Line(key="", value=reason, status=status),)


def _doctor_lines(result: DoctorResult) -> tuple[Line, ...]:
    told = ", ".join(f"{number} {status}" for status, number in result.counts.items() if number)
    lines = [Line(key="platform", value=result.platform, detail=True), Line(key="checks", value=told)]
    problems = (finding.Status.FAIL, finding.Status.WARN, finding.Status.UNKNOWN)
    for status in problems:
        for one in result.findings:
            if one.status is status:
                key = " ".join(filter(None, (one.check, one.place.label)))
                detail = status is finding.Status.UNKNOWN
                lines.append(Line(key=key, value=one.summary, status=status.value, detail=detail))
    return tuple(lines)


def _bench_lines(report: RunReport) -> tuple[Line, ...]:
    statuses = Counter(one.status for one in report.measurements)
    told = ", ".join(f"{statuses[status]} {status}" for status in measurement.Status if statuses[status])
    gpus = Counter(gpu.name or "a GPU without a name" for gpu in report.gpus)
    lines = [
        Line(key="GPUs", value=", ".join(f"{number} x {name}" for name, number in gpus.items())),
        Line(key="driver", value=report.driver_version or "?", detail=True),
        Line(key="measurements", value=told or "none"),
    ]
    lines.extend(
        Line(key=f"problem {place}", value=problem, status="fail") for place, problem in enumerate(report.problems, 1)
    )
    healthy = (measurement.Status.OK, measurement.Status.WAIVED)
    for one in report.measurements:
        if one.status not in healthy:
            status = "warn" if one.status is measurement.Status.UNSTABLE else "fail"
            lines.append(Line(key=f"{one.case} {one.path}", value=f"{one.status}: {one.reason}", status=status))
    verdict = report.verdict
    if verdict is not None:
        status = {Grade.FAIL: "fail", Grade.WARN: "warn"}.get(verdict.grade, "")
        lines.append(Line(key="verdict", value=verdict.grade.value, status=status))
        lines.extend(
            Line(key=f"{one.path_class} {one.label}", value=f"weak ({one.grade})", status=one.grade.value)
            for one in verdict.culprits
        )
    return tuple(lines)


def _link(link: Link) -> str:
    return link.symbol if not link.reason else f"{link.symbol} ({link.reason})"


def _route(route: Route) -> str:
    return route.symbol if not route.reason else f"{route.symbol} ({route.reason})"
