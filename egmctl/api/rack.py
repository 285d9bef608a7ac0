"""``egmctl bringup`` by an MPI job: one rank brings up each node, then all ranks measure the fabric between their GPUs.

Ranks that bring up no node wait without a process on a GPU. Rank 0 gets the nodes' documents and has the answer.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial

from egmctl.api.bench import Bench, judge_run
from egmctl.api.fabric import facts_of_rank, run_request
from egmctl.api.machine import read_machine
from egmctl.api.options import BringupOptions
from egmctl.bench.fabric_run import GATHER_S, INTERRUPTED_S, measure_job
from egmctl.bench.plan import Plan
from egmctl.bench.plan.cost import plan_seconds
from egmctl.bench.processes.group import start_rank
from egmctl.bench.suites import FABRIC
from egmctl.bench.supervisor import OnProgress
from egmctl.dataclass import dataclass
from egmctl.doctor.check import expected_domain_gpus
from egmctl.errors import EgmctlError, NothingToDo, UsageError
from egmctl.facts.redact import redact_report
from egmctl.fleet.session import folded, report_of
from egmctl.model.answer import State
from egmctl.model.bringup import Bringup
from egmctl.model.codec import from_json, to_json
from egmctl.model.fleet import FabricRun, FleetReport, NodeCommand, NodeResult, Reach
from egmctl.model.measurement import RunReport
from egmctl.model.record import Command
from egmctl.mpi.world import RanksMissing, World
from egmctl.report.exports.json import result_json
from egmctl.saved import load_text
from egmctl.units import several
from egmctl.verdict.answers import answered_for_node

SAMPLE, SAMPLED = 8, 1000
"""The number of other GPUs that each GPU is measured with, and the maximum of its product with the number of GPUs, so
that the document stays far below its limit of 64 MiB. Disjoint pairs are measured at the same time, so the time hardly
grows with the number of GPUs (docs/decisions/0020-a-rack-is-one-job.md)."""
CASES = (
    *("fabric_device_write_ce", "fabric_device_read_ce", "fabric_host_numa_write_ce", "fabric_host_numa_read_ce"),
    *("fabric_device_ring_write_ce", "fabric_device_bisect_write_ce", "fabric_device_latency"),
)
"""As in the suite of a node's bring-up, one look at every link: pairs, a ring and bisection."""

NODE_S = 600.0
"""The timeout of a node's bring-up; four H200 take 13 s, and each hanging step a minute."""


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """What a job does with the terminal and the files of its command."""

    ready: Callable[[], object]
    """Raises an error if the answer cannot be written, before anything is measured."""
    say: Callable[[str], None]
    """Called with a sentence for the user."""
    progress: Callable[[], AbstractContextManager[OnProgress]]
    """Returns what is called with the progress of the fabric's measurement."""


def bring_up_job(
    world: World, node: Callable[[], Bringup], options: BringupOptions, hooks: Hooks
) -> FleetReport | None:
    """Bring up the nodes of a job and the fabric between them, and return the answer on rank 0, else ``None``.

    Parameters
    ----------
    node
        A function that brings up this node and returns the answer with pseudonyms.

    Raises
    ------
    EgmctlError
        The job cannot begin. Raised on every rank.
    RanksMissing
        Raised on other ranks than 0, if rank 0 or another one is gone.
    """

    def host_name() -> str:
        hooks.ready()
        machine = read_machine(sections=("host",), cuda=False)
        return (machine.host.hostname if machine.host else None) or world.host

    started = f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
    host, hosts = world.share(str, host_name, str, GATHER_S)
    nodes = tuple(dict.fromkeys(hosts))
    hooks.say(f"{several(len(hosts), 'task')} on {several(len(nodes), 'node')}: first each node, then the fabric")
    own = _answer_of(host, node) if hosts.index(host) == world.rank else None
    interrupted = own is not None and own[0].reach is Reach.INTERRUPTED
    try:
        parts = world.gather(to_json(own), INTERRUPTED_S if interrupted else NODE_S)
    except KeyboardInterrupt:
        interrupted, parts = True, world.gather(to_json(own), INTERRUPTED_S)
    silent = [rank for rank in range(len(hosts)) if rank not in parts and not world.rank]
    try:
        if interrupted or silent:
            raise RanksMissing(tuple(silent))
        fabric = _fabric(world, options, hooks)
    except RanksMissing as error:
        if world.rank:
            raise
        # The other ranks wait for rank 0, which aborts the job when the answer is written.
        world.broken = True
        reason = "no answer from " + ", ".join(f"rank {rank} on {hosts[rank]}" for rank in error.ranks)
        fabric = FabricRun(reason="interrupted" if interrupted else reason)
    if world.rank:
        return None
    reach, state = (Reach.INTERRUPTED, State.INTERRUPTED) if interrupted else (Reach.TIMED_OUT, State.BROKE)
    answers = {name: NodeResult(node=name, reach=reach, state=state) for name in nodes}
    packed = {}
    for part in filter(None, parts.values()):
        answer = from_json(NodeResult, part[0])
        answers[answer.node], packed[answer.node] = answer, base64.b64decode(part[1])
    report = replace(report_of(_asked(nodes, options), [*answers.values()], started), fabric=fabric)
    return folded(report, lambda answer: load_text(zlib.decompress(packed[answer.node]), answer.node), hooks.say)


def _answer_of(host: str, node: Callable[[], Bringup]) -> tuple[NodeResult, str]:
    """Return the answer of this rank's node, and its compressed document or, after an error, nothing."""
    try:
        answer = node()
    except EgmctlError as error:
        return NodeResult(node=host, reach=Reach.FAILED, state=State.BROKE, reason=str(error)), ""
    own = answer.answer
    reach = Reach.INTERRUPTED if own.state is State.INTERRUPTED else Reach.ANSWERED
    packed = base64.b64encode(zlib.compress(result_json(answer).encode(), 9)).decode()
    return NodeResult(node=host, reach=reach, state=own.state, word=own.word, sentence=own.sentence), packed


def _asked(nodes: tuple[str, ...], options: BringupOptions) -> NodeCommand:
    words = {"gpus": "--gpus", "numa": "--numa", "expect": "--expect", "purposes": "--for"}
    given = {words[name]: value for name, value in vars(options).items() if name in words and value is not None}
    arguments = [word for item in given.items() for word in item]
    if options.serials:
        arguments.append("--serials")
    return NodeCommand(
        command=Command.BRINGUP,
        arguments=tuple(arguments),
        nodes=nodes,
        remote_command="egmctl",
        version="",
        domain_gpus=expected_domain_gpus(options.expect),
    )


# --- the fabric ------------------------------------------------------------------------------------------------------


def _fabric(world: World, options: BringupOptions, hooks: Hooks) -> FabricRun:
    """Measure between all ranks; return the outcome on rank 0."""
    bench = Bench(suites=(FABRIC,), cases=CASES, gpus=options.gpus)
    sample = max(1, min(SAMPLE, SAMPLED // world.size)) if world.size > SAMPLE + 1 else None
    # The others have waited for rank 0's node and those of all others.
    world.all_gather(None, 2 * NODE_S)
    child, facts = start_rank(world.rank, world.size), partial(facts_of_rank, bench, hooks.ready)
    try:
        with hooks.progress() as on_progress:
            run = measure_job(
                world,
                child,
                facts,
                run_request(bench, sample),
                on_progress,
                on_plan=lambda plan: hooks.say(_plan_words(plan)),
            )
    except (NothingToDo, UsageError) as error:
        return FabricRun(reason=str(error))
    return FabricRun() if run is None else _judged(bench, run)


def _plan_words(plan: Plan) -> str:
    """Return how many pairs of GPUs will be measured, and for how long."""
    count, pairs = len(plan.ranks), {frozenset(task.ranks) for task in plan.tasks if len(task.ranks) == 2}
    every = several(count * (count - 1) // 2, "pair")
    return f"fabric: {len(pairs)} of {every} of {count} GPUs, about {plan_seconds(plan):.0f} s"


def _judged(bench: Bench, run: RunReport) -> FabricRun:
    """Judge a run by the profile of rank 0's node, and find its causes."""
    # The answer names its nodes, so the names of the ranks' nodes are no secret.
    report = replace(redact_report(run, None), ranks=run.ranks)
    report = bench.explain(judge_run(report, report.machines[0]))
    # All of the rack is asked about: a link without a reference is a gap.
    return FabricRun(run=replace(answered_for_node(report), machines=()))
