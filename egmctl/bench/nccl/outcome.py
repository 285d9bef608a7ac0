"""The outcome of NCCL's measurement, from what its processes reported and what NCCL logged."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from egmctl.bench.nccl.log import NcclLog, read_log
from egmctl.bench.nccl.rounds import RankReports
from egmctl.facts.error_log import read_failures
from egmctl.model.explanation import Failure
from egmctl.model.finding import Waiver, WaiverKind
from egmctl.model.nccl import Ending, NcclPlan, NcclRun, NcclStatus, RankFailure

_HIDDEN = ("NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE")
"""The variables that egmctl sets so that NCCL writes a log."""
_RECORDED = ("NCCL_", "TORCH_NCCL_")
_INTERRUPTED = "interrupted before it was done"


def put_together(
    plan: NcclPlan, gathering: RankReports, logs: Mapping[int, str], changes: Mapping[str, str | None]
) -> NcclRun:
    """Return the outcome from what the processes reported and what NCCL logged.

    Parameters
    ----------
    logs
        The text of each rank's log.
    changes
        The changes to this process's environment that NCCL's processes had.
    """
    log = read_log([*logs.values(), *gathering.outputs])
    environment = {**os.environ, **changes}
    own = {key: text for key, text in environment.items() if key.startswith(_RECORDED) and text is not None}
    variables = {key: text for key, text in sorted({**log.variables, **own}.items()) if key not in _HIDDEN}
    versions = {**gathering.versions, **({} if log.version is None else {"nccl": log.version})}
    failures = tuple(_with_warning(failure, logs) for failure in gathering.failures)
    wrong = [result.name for result in gathering.results if result.verified is False]
    status, reason = NcclStatus.OK, None
    if failures:
        first = failures[0]
        where = first.label if first.rank is None else f"rank {first.rank} ({first.label})"
        status, reason = (
            NcclStatus.FAILED,
            f"NCCL failed in {plan.under_way(gathering.results)}: {where}: {first.words}",
        )
    if wrong:
        status, reason = NcclStatus.CORRUPT, f"NCCL left wrong values in {', '.join(wrong)}"
    return NcclRun(
        plan=plan,
        status=status,
        reason=reason,
        results=tuple(gathering.results),
        versions=versions,
        transports=log.transports,
        channels=log.channels,
        environment=variables,
        failures=failures,
        known_errors=_known(log, gathering.outputs) if failures else (),
    )


def _with_warning(failure: RankFailure, logs: Mapping[int, str]) -> RankFailure:
    """Return a failure with a warning of NCCL's, of all ranks where its rank is not known.

    A warning need not be why the process ended: NCCL also warns of what it can do without.
    """
    texts = logs.values() if failure.rank is None else [logs.get(failure.rank, "")]
    warnings = read_log(texts).warnings
    if not warnings or failure.how is Ending.GARBLED:
        return failure
    return replace(failure, warning=next((each for each in warnings if "failure" in each.text), warnings[-1]))


def _known(log: NcclLog, outputs: Sequence[str]) -> tuple[Failure, ...]:
    """Return the errors in the warnings and outputs that are known, without the lines, which may name the host."""
    # As NCCL prints them: "transport/p2p.cc:275 NCCL WARN Cuda failure 101 'invalid device ordinal'".
    lines = [f"{warning.source} NCCL WARN {warning.text}" for warning in log.warnings]
    text = "\n".join([*lines, *outputs])
    failures = read_failures(io.BytesIO(text.encode("utf-8", "replace"))).failures
    return tuple(replace(failure, line="", line_number=None) for failure in failures)


def not_measured(plan: NcclPlan, reason: str) -> NcclRun:
    """Return the outcome of a plan that was not run."""
    return NcclRun(plan=plan, status=NcclStatus.WAIVED, reason=reason)


def interrupted(plan: NcclPlan) -> NcclRun:
    """Return the outcome of a plan whose run was interrupted before NCCL; of a waived one, that it was waived."""
    if plan.waivers:
        return not_measured(plan, plan.waivers[0].reason)
    return until_interrupted(not_measured(plan, _INTERRUPTED))


def until_interrupted(nccl: NcclRun) -> NcclRun:
    """Return what was measured until the run was interrupted; wrong values and failures stay the outcome.

    If every collective has a result, nothing is lacking.
    """
    if nccl.status is NcclStatus.OK and len(nccl.results) == len(nccl.plan.collectives):
        return nccl
    waiver = Waiver(kind=WaiverKind.INTERRUPTED, reason=_INTERRUPTED)
    plan = replace(nccl.plan, waivers=(*nccl.plan.waivers, waiver))
    if nccl.status is not NcclStatus.OK:
        return replace(nccl, plan=plan)
    return replace(nccl, plan=plan, status=NcclStatus.WAIVED, reason=_INTERRUPTED)
