"""Answers of racks by hand, for views of them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from egmctl.comparison import compare
from egmctl.doctor.check import Scope
from egmctl.doctor.runner import CHECKS
from egmctl.fleet.domain import judged_gpus, node_gpus
from egmctl.fleet.folder import groups, lines_of
from egmctl.model.answer import State
from egmctl.model.bringup import Bringup
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.fleet import FleetReport, GroupLine, Launcher, NodeCommand, NodeGroup, NodeResult, Reach, reach_counts
from egmctl.model.machine import Machine
from egmctl.model.measurement import RunReport
from egmctl.model.record import Command
from egmctl.report.kinds import Format
from egmctl.report.views.fleet import CAUSES_SHOWN
from egmctl.saved import Saved, load
from egmctl.units import fold
from egmctl.verdict.answers import answered
from egmctl.verdict.bringup import bringup_answer
from egmctl.verdict.explain import with_causes
from egmctl.verdict.judge import with_verdict
from tests.answers import diagnose, render, with_answer
from tests.comparison.runs import saved as saved_run
from tests.doctor.machines import shipped
from tests.verdict.bringups import LINKS, healthy, measured, sick
from tests.verdict.narrow import PROFILE
from tests.verdict.runs import H2D, WRITE, run, slow_at


@functools.cache
def go() -> Bringup:
    return bringup_answer(healthy(), measured())


@functools.cache
def no_go() -> Bringup:
    return bringup_answer(sick(("nvlink.links", LINKS)), measured(value=slow_at("GPU2")))


def saved(folder: Path, name: str, result: Bringup) -> Path:
    path = folder / f"{name}.json"
    path.write_text(str(render(result, Format.JSON)))
    return path


@functools.cache
def rack() -> FleetReport:
    """Return 72 nodes, of which two have links down, one was not measured, and one is silent."""
    nodes = [f"node{n:02}" for n in range(1, 73)]
    kinds = {"go": go(), "no-go": no_go(), "incomplete": bringup_answer(healthy(), None, not_measured="no idle GPU")}
    with TemporaryDirectory() as folder:
        lines = {name: lines_of(load(saved(Path(folder), name, result))) for name, result in kinds.items()}
    odd = {"node05": "no-go", "node23": "no-go", "node40": "incomplete"}
    answers = tuple(
        NodeResult(node=node, reach=Reach.UNREACHABLE, state=State.BROKE, reason="ssh: no route to host")
        if node == "node71"
        else NodeResult(node=node, reach=Reach.ANSWERED, state=kinds[odd.get(node, "go")].answer.state, file=node)
        for node in nodes
    )
    return answered(
        FleetReport(
            asked=NodeCommand(command=Command.BRINGUP, nodes=tuple(nodes), remote_command="egmctl", version=""),
            folded=fold(nodes),
            launcher=Launcher.SSH,
            folder="rack",
            started_at="2026-11-20T22:00:00Z",
            finished=True,
            counts=reach_counts(answers),
            answers=answers,
            groups=groups(answers, {n: lines[odd.get(n, "go")] for n in nodes if n != "node71"}),
        )
    )


H200 = shipped("hgx-h200x4")


def lines(machine: Machine, *slow: str) -> tuple[GroupLine, ...]:
    made = replace(run(WRITE, H2D, value=slow_at(*slow), machine=H200), machines=(machine,))
    return lines_of(saved_run("node1", answered(with_causes(with_verdict(made, PROFILE)))))


ANSWERS = (
    *(
        NodeResult(node=f"node{n:02}", reach=Reach.ANSWERED, state=State.GOOD, file=f"nodes/node{n:02}.json")
        for n in (1, 2)
    ),
    NodeResult(node="node03", reach=Reach.ANSWERED, state=State.BAD, file="nodes/node03.json"),
    NodeResult(node="node04", reach=Reach.UNREACHABLE, state=State.BROKE, reason="ssh: \x1b[2Jdown"),
)
REPORT = answered(
    FleetReport(
        asked=NodeCommand(
            command=Command.DOCTOR,
            arguments=("--for", "egm"),
            nodes=tuple(answer.node for answer in ANSWERS),
            remote_command="egmctl",
            version="egmctl 0.1.0",
        ),
        folded="node[01-04]",
        launcher=Launcher.SSH,
        folder="results",
        started_at="2026-11-20T22:00:00Z",
        finished=True,
        counts=reach_counts(ANSWERS),
        answers=ANSWERS,
        groups=(
            NodeGroup(
                nodes=("node01", "node02"), folded="node[01-02]", lines=(GroupLine(key="checks", value="40 pass"),)
            ),
            NodeGroup(
                nodes=("node03",),
                folded="node03",
                lines=tuple(
                    GroupLine(key=f"check.{n} [bold]", value="no", check=f"check.{n}", status="fail")
                    for n in range(CAUSES_SHOWN + 3)
                ),
            ),
            NodeGroup(
                nodes=("node04",),
                folded="node04",
                lines=(GroupLine(key="", value="ssh: \x1b[2Jdown", status="unreachable"),),
            ),
        ),
    )
)


Result = Diagnosis | RunReport | Bringup


def doctor(machine: Machine) -> Diagnosis:
    return diagnose(machine, Scope(), CHECKS)


def fleet(results: Mapping[str, Result | Reach], command: Command) -> FleetReport:
    """Return the report of a fleet whose nodes gave these results, or did not answer."""
    answers = [
        NodeResult(node=node, reach=result, state=State.BROKE, reason="ssh: down")
        if isinstance(result, Reach)
        else NodeResult(node=node, reach=Reach.ANSWERED, state=with_answer(result).answer.state)
        for node, result in results.items()
    ]
    loaded = {
        node: Saved(path=Path(node), kind=command, name=node, result=with_answer(result), tool="")
        for node, result in results.items()
        if not isinstance(result, Reach)
    }
    asked = replace(REPORT.asked, command=command, arguments=(), nodes=tuple(results))
    read = {answer.node: node_gpus(answer, loaded[answer.node]) for answer in answers if answer.node in loaded}
    answers, ready = judged_gpus(asked, answers, {node: gpus for node, gpus in read.items() if gpus is not None})
    alike = groups(answers, {node: lines_of(saved) for node, saved in loaded.items()})
    compared = compare(list(loaded.values())) if len(loaded) > 1 else None
    report = replace(REPORT, asked=asked, folded=fold(results), answers=tuple(answers), groups=alike)
    return answered(replace(report, readiness=ready, comparison=compared))
