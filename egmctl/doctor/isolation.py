"""``egmctl doctor --isolation``: what a process may read that was not shared with it, tried on idle GPUs.

Only this option runs it, never ``--active`` nor bringup: each trial ends a process of its own with error 700, which the
driver logs as an Xid 31. The driver decides, so one pair of GPUs answers for the node.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from egmctl import launch
from egmctl.doctor.check import Scope
from egmctl.doctor.situation import usable
from egmctl.driver.cuda import initialise
from egmctl.errors import ChildFailed, DriverCallError
from egmctl.facts.kernel_log import KernelLogWatch
from egmctl.facts.root import Root
from egmctl.gpu import isolation_trials as trials
from egmctl.gpu.context import Context
from egmctl.launch import Channel, Message
from egmctl.model.kernel_log import KernelEvent
from egmctl.model.machine import Machine
from egmctl.model.probes import IsolationKind, IsolationTrial, ProbeOutcome

PAGE_FAULT_XID = 31
"""The Xid of a GPU's read or write of an address without a mapping (MMU fault)."""
TRIAL_TIMEOUT_S = 60.0
"""The timeout of each answer of a process: CUDA may start slowly, and kernels may have to be compiled."""


def planned(machine: Machine, scope: Scope) -> list[IsolationTrial]:
    """Return the trials, as not run: the first two usable GPUs in scope, or the one; empty without any."""
    gpus = [gpu.bus_id for gpu in usable(machine, scope.gpus_of(machine))][:2]
    if not gpus:
        return []
    owner, reader = gpus[0], gpus[-1]
    kinds: list[tuple[IsolationKind, int | None]] = [(IsolationKind.PROCESS, None), (IsolationKind.LEGACY_BLOCK, None)]
    if owner != reader:
        nodes = scope.numa_of(machine)[:1]
        kinds = [(IsolationKind.PEER, None), *((IsolationKind.HOST, node) for node in nodes), *kinds]
    return [
        IsolationTrial(kind=kind, owner=owner, reader=reader, numa_node=node, outcome=ProbeOutcome.NOT_RUN)
        for kind, node in kinds
    ]


def tried(machine: Machine, scope: Scope) -> Machine:
    """Make the trials and return the machine with what they have shown."""
    watch = KernelLogWatch(Root.from_environment())
    results = tuple(_results(planned(machine, scope)))
    watch.events()
    log = watch.messages
    return replace(machine, isolation=tuple(_with_xids(each, log.unread is None, log.events) for each in results))


def _results(plan: Sequence[IsolationTrial]) -> Iterator[IsolationTrial]:
    for trial in plan:
        try:
            yield _attempt(trial)
        except ChildFailed as error:
            outcome = ProbeOutcome.TIMED_OUT if error.how == "timed-out" else ProbeOutcome.CRASHED
            if error.how == "raised":
                outcome = ProbeOutcome.ERROR
            number = error.details.get("number")
            called = error.details.get("call") or error.last_call
            yield replace(trial, outcome=outcome, call=called, error_number=number, detail=str(error))


def _attempt(trial: IsolationTrial) -> IsolationTrial:
    """Make one trial, by a process that reads and, for memory of another process, one that owns it."""
    arguments: Message = {"kind": trial.kind, "owner": trial.owner, "reader": trial.reader, "node": trial.numa_node}
    known: Message = {}
    if trial.kind in (IsolationKind.PEER, IsolationKind.HOST):
        with launch.Child("egmctl.doctor.isolation:read", arguments) as child:
            return _finished(trial, child, known)
    with launch.Child("egmctl.doctor.isolation:own", arguments) as owner:
        offer, _ = owner.receive(TRIAL_TIMEOUT_S)
        if trial.kind is IsolationKind.LEGACY_BLOCK:
            known = {"block_bytes": offer["block_bytes"], "neighbours": len(offer["neighbours"])}
        with launch.Child("egmctl.doctor.isolation:read", {**arguments, "offer": offer}) as reader:
            return _finished(trial, reader, known)


def _finished(trial: IsolationTrial, reader: launch.Child, known: Message) -> IsolationTrial:
    result: Any = reader.result(TRIAL_TIMEOUT_S, known.update)
    pid = reader.pid if result.get("kernel_result") else None
    outcome = ProbeOutcome.OK
    if result.get("detail"):
        outcome = ProbeOutcome.ERROR if result.get("call") else ProbeOutcome.NOT_RUN
    return replace(trial, outcome=outcome, pid=pid, **known, **result)


def _with_xids(trial: IsolationTrial, is_read: bool, events: Sequence[KernelEvent]) -> IsolationTrial:
    if trial.pid is None or not is_read:
        return trial
    own = [event for event in events if (event.number, event.pid) == (PAGE_FAULT_XID, trial.pid)]
    return replace(trial, xids=len(own))


# --- the processes ---------------------------------------------------------------------------------------------------


def own(parent: Channel, arguments: Message) -> None:
    """Allocate memory, say where it is, and keep it until the command closes the channel."""
    initialise()
    owner = Context(arguments["owner"])
    legacy = arguments["kind"] == IsolationKind.LEGACY_BLOCK
    parent.send(trials.export_one(owner) if legacy else {"address": trials.keep(owner).address})
    with contextlib.suppress(launch.ChannelClosed):
        parent.receive()


def read(parent: Channel, arguments: Message) -> Message:
    """Read what was not shared, and return the CUresult; messages before it have what is known before."""
    initialise()
    reader = Context(arguments["reader"])
    kind, offer = IsolationKind(arguments["kind"]), arguments.get("offer", {})
    try:
        if kind is IsolationKind.PROCESS:
            return dict(trials.reach(reader, offer["address"], parent.send))
        if kind is IsolationKind.LEGACY_BLOCK:
            return dict(trials.look_around(reader, **offer, tell=parent.send))
        return dict(trials.closed_to(Context(arguments["owner"]), reader, arguments["node"], parent.send))
    except trials.OwnAddress:
        return {"detail": "the reading process has memory of its own at the same address"}
    except DriverCallError as error:
        return {"call": error.call, "error_number": error.number, "detail": str(error)}
