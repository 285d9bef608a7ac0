"""Random results of all kinds that have an answer, whose parts fit together as those of real ones do."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from egmctl.comparison import compare
from egmctl.doctor.check import Scope
from egmctl.doctor.runner import CHECKS, diagnose
from egmctl.fleet import session
from egmctl.model.answer import State
from egmctl.model.bringup import Bringup
from egmctl.model.comparison import Comparison
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.explanation import CauseState, Explanation, Explanations, Failure, KnownCause, Library
from egmctl.model.finding import Status, Waiver, WaiverKind
from egmctl.model.fleet import FabricRun, FleetReport, Launcher, NodeCommand, NodeResult, Reach
from egmctl.model.machine import Machine
from egmctl.model.measurement import (
    GpuEvidence,
    HostLoad,
    LinkEvidence,
    LinkProof,
    Measurement,
    MeasurementStatus,
    RunReport,
    TaskEvidence,
    finish,
)
from egmctl.model.record import Command
from egmctl.model.remedy import Remedy
from egmctl.model.route import LinkKind
from egmctl.model.task import Task
from egmctl.topology.topology import Topology, topology
from egmctl.verdict.answers import answered
from egmctl.verdict.answers.run import of_run
from egmctl.verdict.bringup import bringup_answer
from egmctl.verdict.explain import with_causes
from egmctl.verdict.judge import with_verdict
from egmctl.verdict.profiles import all_profiles
from tests.comparison.runs import saved
from tests.doctor.machines import shipped
from tests.doctor.sick import SICK
from tests.verdict.runs import D2H, H2D, H200, LATENCY, LOCAL, WRITE, run, usual

PROFILE = next(profile for profile, _ in all_profiles() if profile.name == "hgx-h200")
DENIED = shipped("h200-cgroup-denied")
NODES = (H200, H200, DENIED, shipped("h200-links-down"), shipped("gb200-nvl72"), shipped("gh200"))
REFUTED = TaskEvidence(
    gpus=(), route=LinkEvidence(link=LinkKind.NVLINK, expected_bytes=100, carried_bytes=0, verdict=LinkProof.REFUTED)
)
BUSY = HostLoad(cpus=64, load_average=40.0, wall_s=10.0, others_cpu_s=400.0)
CASES = (WRITE, H2D, D2H, LOCAL, LATENCY)
_ERRORS = (
    MeasurementStatus.CORRUPT,
    MeasurementStatus.FAILED,
    MeasurementStatus.CRASHED,
    MeasurementStatus.TIMED_OUT,
    MeasurementStatus.UNSTABLE,
)


def random_result(seed: int) -> RunReport | Diagnosis | Bringup | Topology | Comparison | FleetReport | Explanations:
    """Return the random result of a number; the same number gives the same result."""
    dice = random.Random(seed)  # noqa: S311
    kinds: Sequence[Callable[[random.Random], object]] = (
        *(random_run, random_run, random_bringup, random_bringup, random_diagnosis),
        *(random_topology, random_comparison, random_fleet, random_explanations),
    )
    made: RunReport = dice.choice(kinds)(dice)  # type: ignore[assignment]
    return made


def random_machine(dice: random.Random) -> Machine:
    """Return a shipped machine, or one with a fault."""
    return dice.choice([*NODES, *(dice.choice(list(SICK.values())).machine() for _ in range(1))])


def random_diagnosis(dice: random.Random, machine: Machine | None = None) -> Diagnosis:
    """Return what doctor says of a machine, with some findings turned into others."""
    node = machine or random_machine(dice)
    found = diagnose(node, Scope(), CHECKS, strict=dice.random() < 0.2)
    part = dice.choice((0, 0, 0, 0.02, 0.7))
    findings = tuple(
        replace(finding, status=Status.UNKNOWN, remedy=None)
        if finding.status is Status.PASS and dice.random() < part
        else finding
        for finding in found.findings
    )
    return answered(replace(found, findings=findings))


def random_topology(dice: random.Random) -> Topology:
    """Return the topology of a machine."""
    return answered(topology(random_machine(dice)))


def random_run(dice: random.Random, *, whole_node: bool = False) -> RunReport:
    """Return a run in which paths are slow, broken, waived, on a busy GPU or of another link; judged or not."""
    node = dice.choice((H200, H200, DENIED))
    cases = dice.sample(CASES, dice.randint(1, len(CASES)))
    slow = dice.choice((1.0, 1.0, 1.0, 0.9, 0.5))
    bad_gpu = f"GPU{dice.randrange(4)}"
    made = run(
        *cases,
        value=lambda task, flow: usual(task, flow) * (slow if bad_gpu in (flow.source.label, "") else 1),
        machine=node,
        waives=True,
    )
    chance = dice.choice((0, 0, 0, 0.1, 1))
    measurements = tuple(_changed(dice, m) if dice.random() < chance else m for m in made.measurements)
    if dice.random() < 0.2:
        measurements = tuple(map(_beside_others, measurements))
    made = replace(
        made,
        measurements=measurements,
        interrupted=dice.random() < 0.1,
        problems=("a worker ended",) if dice.random() < 0.1 else (),
        host_load=HostLoad(cpus=64, load_average=40.0, wall_s=10.0, others_cpu_s=400.0)
        if dice.random() < 0.1
        else None,
    )
    strict = dice.random() < 0.2
    if (profile := dice.choice((PROFILE, PROFILE, PROFILE, None, "none"))) != "none":
        made = with_verdict(made, profile, profile_reason="of this kind", strict=strict)  # type: ignore[arg-type]
    named = [gpu.bus_id for gpu in node.gpus or ()] if dice.random() < 0.2 else ()
    made = with_causes(made, asked=named)
    return replace(made, answer=of_run(made, whole_node=whole_node))


def _changed(dice: random.Random, m: Measurement) -> Measurement:
    fate = dice.randrange(4)
    if fate == 0:
        task = {name: getattr(m, name) for name in Task.__dataclass_fields__}
        kind = dice.choice(list(WaiverKind))
        gpus = (m.flows[0].source.bus_id or m.flows[0].destination.bus_id or "",)
        waiver = Waiver(kind=kind, reason=f"it was not made ({kind})", gpus=gpus)
        return finish(Task(**task), MeasurementStatus.WAIVED, reason=waiver.reason, waivers=(waiver,))
    if fate == 1:
        return replace(m, evidence=REFUTED)
    status, known = dice.choice(_ERRORS), dice.random() < 0.5
    if status is MeasurementStatus.UNSTABLE:
        return replace(m, status=status, reason="the samples differ too much") if m.measured else m
    return replace(
        m,
        status=status,
        reason="as it ended",
        known_cause=known,
        waivers=(),
        samples=(),
        bandwidth_gb_s=None,
        latency_ns=None,
        flows_gb_s=(),
    )


def _beside_others(m: Measurement) -> Measurement:
    end = m.flows[0].source if m.flows[0].source.bus_id else m.flows[0].destination
    gpu = GpuEvidence(bus_id=end.bus_id or "0000:00:00.0", label=end.label, other_processes=(4711,))
    return replace(m, evidence=TaskEvidence(gpus=(gpu,)))


def random_bringup(dice: random.Random) -> Bringup:
    """Return a bring-up with or without a run, on a node that may have changed meanwhile."""
    made = random_run(dice) if dice.random() < 0.8 else None
    node = made.machines[0] if made else None
    before = random_diagnosis(dice, H200) if dice.random() < 0.3 else None
    return bringup_answer(
        replace(random_diagnosis(dice, node), strict=False),
        made,
        before=before,
        not_measured="" if made else "there is no driver",
        no_fabric="no MPI here" if dice.random() < 0.2 else "",
    )


def random_comparison(dice: random.Random) -> Comparison:
    """Return a comparison of two or three random results of one kind."""
    count = dice.choice((2, 2, 3))
    if dice.random() < 0.5:
        return compare([saved(f"node{n}", random_run(dice), Command.BENCH) for n in range(count)])
    return compare([saved(f"node{n}", random_diagnosis(dice), Command.DOCTOR) for n in range(count)])


def random_fleet(dice: random.Random) -> FleetReport:
    """Return a fleet of random nodes, some of them silent, or a job whose ranks may have measured the fabric."""
    command = dice.choice((Command.DOCTOR, Command.BENCH, Command.BRINGUP))
    makers: dict[Command, Callable[[random.Random], RunReport | Diagnosis | Bringup]] = {
        Command.DOCTOR: random_diagnosis,
        Command.BENCH: random_run,
        Command.BRINGUP: random_bringup,
    }
    loaded, nodes = {}, []
    for number in range(dice.randint(1, 4)):
        name, fate = f"node{number}", dice.random()
        if fate < 0.1:
            nodes.append(NodeResult(node=name, reach=Reach.UNREACHABLE, state=State.BROKE, reason="ssh: timed out"))
        elif fate < 0.15:
            nodes.append(NodeResult(node=name, reach=Reach.NOT_ASKED, state=State.INTERRUPTED, reason="not started"))
        else:
            result = makers[command](dice)
            loaded[name] = saved(name, result, command)
            answer = result.answer
            nodes.append(NodeResult(node=name, reach=Reach.ANSWERED, state=answer.state, word=answer.word))
    asked = NodeCommand(
        command=command,
        nodes=tuple(node.node for node in nodes),
        remote_command="egmctl",
        version="",
        domain_gpus=dice.choice((None, None, 8)),
    )
    fabric = None
    if command is Command.BRINGUP and dice.random() < 0.4:
        measured = dice.random() < 0.7
        fabric = FabricRun(run=random_run(dice, whole_node=True)) if measured else FabricRun(reason="no MPI here")
    report = session.report_of(asked, nodes, "2026-11-20T22:00:00Z", None if fabric else Launcher.SSH)
    report = replace(report, fabric=fabric)
    return session.folded(report, lambda node: loaded[node.node], lambda _sentence: None)


def random_explanations(dice: random.Random) -> Explanations:
    """Return what is known of failed calls, with causes in random states."""
    explanations = tuple(
        Explanation(
            failure=Failure(library=Library.CUDA, number=800, call=f"cuMemCreate{number}"),
            name="CUDA_ERROR_NOT_PERMITTED",
            causes=tuple(
                KnownCause(
                    cause=f"cause {number}.{place} applies",
                    remedy=Remedy(text="Remove it."),
                    see="ls",
                    checks=("imex.daemon",),
                    state=dice.choice(list(CauseState)),
                )
                for place in range(dice.randrange(3))
            ),
        )
        for number in range(dice.randrange(3))
    )
    return answered(Explanations(checked=None, explanations=explanations, lines=dice.choice((None, 12))))
