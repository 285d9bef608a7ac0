"""Set NCCL's bus bandwidth beside the links of the same run, and find the cause if NCCL failed. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from egmctl.doctor.findings import failed, unknown
from egmctl.model.answer import Cause
from egmctl.model.explanation import DECIDED, CauseState, ErrorLog, KnownCause, leading
from egmctl.model.finding import OF_GPUS, Finding, Place, PlaceKind, Status, WaiverKind
from egmctl.model.machine import Machine
from egmctl.model.measurement import Measurement, RunReport
from egmctl.model.nccl import Ending, NcclRun, NcclStatus, SlowestDirection
from egmctl.model.remedy import Remedy, todo
from egmctl.model.route import MemoryKind
from egmctl.model.task import Engine, Pattern
from egmctl.units import shortened

NCCL_CHECK = "bench.nccl"
"""The check id of a run's finding on NCCL."""
_REMEDIES: Mapping[WaiverKind | None, Remedy] = {
    WaiverKind.NOT_INSTALLED: todo(
        "Install PyTorch for this Python; without a job, nccl-tests' binaries in PATH do as well."
    ),
    WaiverKind.TOO_FEW_GPUS: todo("Measure two or more GPUs."),
    WaiverKind.NO_ROOM: todo("Give a smaller --size or a larger --memory, or free the GPUs' memory."),
}
"""What to do so that NCCL is run, by the kind of the waiver."""
_SHARED_FOLDER = todo("Set TMPDIR to a folder that this user can write and that all tasks of the job share.")
_LABELS = 8
"""The number of GPUs named in a finding."""


def beside_links(report: RunReport, nccl: NcclRun) -> RunReport:
    """Return a run with each bus bandwidth of its NCCL as a share of the slowest link direction that it measured.

    The bus bandwidth is defined as what the busiest link carries in one direction (nccl-tests, ``doc/PERFORMANCE.md``),
    for a ring. Nothing is compared where that does not hold (``NcclRun.not_comparable``).
    """
    if not nccl.results:
        return report
    links = list(_directions(report, nccl))
    reason = _not_comparable(nccl, [measurement for _, measurement in links]) if links else ""
    if reason or not links:
        return replace(report, nccl=replace(nccl, not_comparable=reason))
    gb_s, number = min(
        (summary.median, number) for number, measurement in links if (summary := measurement.headline) is not None
    )
    results = tuple(replace(result, share=result.bus_gb_s / gb_s) for result in nccl.results)
    slowest = SlowestDirection(measurement=number, gb_s=gb_s)
    return replace(report, nccl=replace(nccl, results=results, slowest=slowest))


def _directions(report: RunReport, nccl: NcclRun) -> Iterator[tuple[int, Measurement]]:
    """Yield the measurements of one direction between two of NCCL's GPUs, by copies, with their indices."""
    for number, m in enumerate(report.measurements):
        flow = m.flows[0]
        ends = (flow.source, flow.destination)
        between = all(end.memory is MemoryKind.DEVICE and end.bus_id in nccl.plan.gpus for end in ends)
        copied = (m.engine, m.pattern) == (Engine.COPY_ENGINE, Pattern.PAIR) and not m.ranks
        if copied and between and m.headline is not None and not flow.route.staged:
            yield number, m


def _not_comparable(nccl: NcclRun, links: list[Measurement]) -> str:
    """Return why the bus bandwidth is not bounded by one direction of one link; empty if it is."""
    if "NVLS" in nccl.transports:
        return "the switches add and copy (NVLS), so that links carry less than the bus bandwidth says"
    direct = any(hop.direct for m in links for flow in m.flows for hop in flow.route.hops)
    if direct and len(nccl.plan.gpus) > 2:
        return "NVLinks lead straight from GPU to GPU, and NCCL uses those to several GPUs at once"
    return ""


def with_nccl_cause(report: RunReport, nccl: NcclRun, machine: Machine | None = None) -> RunReport:
    """Return a run with the cause of NCCL's failure, or of what keeps it from being run.

    Parameters
    ----------
    nccl
        The report's own.
    machine
        The live node, whose names the findings use; by default the run's own record of it, which has pseudonyms.
    """
    others = tuple(cause for cause in report.causes if cause.finding.check != NCCL_CHECK)
    node = machine or (report.machines[0] if len(report.machines) == 1 else None)
    finding = _finding(nccl, node)
    if finding is None:
        return replace(report, causes=others)
    return replace(report, causes=(*others, Cause(status=finding.status, finding=finding)))


def _finding(nccl: NcclRun, machine: Machine | None) -> Finding | None:
    """Return the finding on NCCL; ``None`` if it worked, or if other findings say why it was not run."""
    place = _place(nccl)
    match nccl.status:
        case NcclStatus.CORRUPT:
            remedy = todo("Drain the node: data arrived corrupt.", look="egmctl doctor --active")
            return failed(nccl.reason or "", remedy, place, check=NCCL_CHECK)
        case NcclStatus.FAILED:
            return _failure(nccl, machine, place)
        case NcclStatus.WAIVED:
            kinds = {waiver.kind for waiver in nccl.plan.waivers}
            if kinds & {*OF_GPUS, WaiverKind.INTERRUPTED}:
                return None
            # The reason of a run is that of its first waiver.
            first = nccl.plan.waivers[0].kind if nccl.plan.waivers else None
            remedy = _REMEDIES.get(first, todo("See what stops it.", look="egmctl doctor"))
            return unknown(f"NCCL was not run: {nccl.reason}", check=NCCL_CHECK, remedy=remedy)
        case _:
            return None


def _failure(nccl: NcclRun, machine: Machine | None, place: Place) -> Finding:
    """Return the finding on a failure: a failure of the node if an error is known, else unknown."""
    # Imported late: most runs have nothing to explain.
    from egmctl.doctor.explain import diagnosis_of, explain_failures

    diagnosis = None if machine is None else diagnosis_of(nccl.known_errors, machine)
    leader = leading(explain_failures(ErrorLog(failures=nccl.known_errors), diagnosis).explanations)
    reason = nccl.reason or "NCCL failed"
    if nccl.failures and nccl.failures[0].how is Ending.NO_FOLDER:
        return unknown(reason, place, check=NCCL_CHECK, remedy=_SHARED_FOLDER)
    if leader is None:
        remedy = todo("See what keeps NCCL from working.", look="egmctl doctor --for p2p,ipc")
        return unknown(reason, place, check=NCCL_CHECK, remedy=remedy)
    known = next(cause for cause in leader.causes if cause.state is not CauseState.EXCLUDED)
    return failed(reason, known.remedy, place, cause=_words(known), check=NCCL_CHECK)


def _words(known: KnownCause) -> str:
    """Return a cause with how sure it is, and the findings of this node that show it."""
    if known.state in DECIDED:
        shown = "; ".join(finding.title for finding in known.findings if finding.status in (Status.FAIL, Status.WARN))
        return f"{known.cause}{f' ({shown})' if shown else ''}"
    return f"{'most likely' if known.state is CauseState.LIKELY else 'possibly'}: {known.cause}"


def _place(nccl: NcclRun) -> Place:
    label = shortened(nccl.plan.labels, _LABELS)
    return Place(kind=PlaceKind.GPU, ids=nccl.plan.gpus, label=label)
