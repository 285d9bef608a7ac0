"""What NCCL measured, as it is compared: each collective is compared as a path is, by the same rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from egmctl.bench.nccl.collectives import PREFIX
from egmctl.dataclass import dataclass
from egmctl.model.measurement import MeasurementStatus, RunReport
from egmctl.model.nccl import CollectiveResult, NcclRun, NcclStatus
from egmctl.model.task import USUAL, Point, Quantity
from egmctl.units import fold, fold_labels, grouped

SPREAD = 0.005
"""The standard deviation of a bus bandwidth over runs, as a part of it: six runs of ``all_reduce`` on two H200 had
0.3 % (docs/hardware-notes.md), rounded up as for the links between GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedCollective:
    """One collective of a run, with the properties that a measurement has too."""

    case: str
    """Its name for ``--case``: ``nccl_all_reduce``."""
    size_bytes: int
    gpus: tuple[str, ...]
    """The bus ids of its GPUs."""
    labels: tuple[str, ...]
    method: tuple[str, ...]
    """What its bus bandwidth depends on by choice: the program, which counts in its own way, and NVLS."""
    value: float | None
    """The bus bandwidth in GB/s; ``None`` if there is none, or its values were wrong."""
    transports: str
    """The transports that NCCL chose, in words."""
    status: MeasurementStatus
    reason: str | None
    point: Point = USUAL
    quantity: Quantity = Quantity.BANDWIDTH

    @property
    def name(self) -> str:
        """The case, which has no points."""
        return self.case

    @property
    def path(self) -> str:
        """The GPUs in short form: ``GPU0-3``."""
        return fold_labels(self.labels)

    @property
    def ends(self) -> tuple[str, str]:
        """Nothing: a collective is between all its GPUs."""
        return "", ""


def collectives(run: RunReport) -> Iterator[ComparedCollective]:
    """Yield the collectives of a run, those without a result too."""
    nccl = run.nccl
    if nccl is None:
        return
    plan = nccl.plan
    results = {result.name: result for result in nccl.results}
    for name in plan.collectives:
        result = results.get(name)
        status = _status(nccl, name, result)
        yield ComparedCollective(
            case=f"{PREFIX}{name}",
            size_bytes=plan.size_bytes,
            gpus=plan.gpus,
            labels=plan.labels,
            method=_method(nccl),
            value=result.bus_gb_s if result is not None and status is MeasurementStatus.OK else None,
            transports=", ".join(sorted(nccl.transports)) or "an unknown transport",
            status=status,
            reason=_reason(nccl, status),
        )


def _status(nccl: NcclRun, name: str, result: CollectiveResult | None) -> MeasurementStatus:
    """Return the status of a collective, as a measurement has it."""
    if result is not None:
        return MeasurementStatus.CORRUPT if result.verified is False else MeasurementStatus.OK
    return (
        MeasurementStatus.FAILED
        if nccl.status is not NcclStatus.WAIVED and name == nccl.plan.under_way(nccl.results)
        else MeasurementStatus.WAIVED
    )


def _reason(nccl: NcclRun, status: MeasurementStatus) -> str | None:
    """Return why there is no believed result of a collective."""
    if status is MeasurementStatus.OK:
        return None
    if status is MeasurementStatus.FAILED and nccl.failures:
        return nccl.failures[0].words
    if status is MeasurementStatus.WAIVED and nccl.status is not NcclStatus.WAIVED:
        return f"not reached: NCCL failed in {nccl.plan.under_way(nccl.results)}"
    return nccl.reason


def _method(nccl: NcclRun) -> tuple[str, ...]:
    program = "no program" if nccl.plan.program is None else nccl.plan.program.value
    return program, "NVLS allowed" if nccl.plan.nvls else "NVLS off"


def differing(names: Sequence[str], runs: Sequence[RunReport]) -> Iterator[str]:
    """Yield a note for each version and method of NCCL that differs between runs with it.

    A bus bandwidth of another version of NCCL is compared: whether a new version is slower is what a user asks. That of
    another program, or with NVLS on one side, is another number.
    """
    known = [(name, _stated(run.nccl)) for name, run in zip(names, runs, strict=True) if run.nccl is not None]
    for what in dict.fromkeys(what for _, stated in known for what in stated):
        nodes = grouped((stated[what], name) for name, stated in known if what in stated)
        if len(nodes) > 1:
            yield f"NCCL: {what} differs: " + ", ".join(f"{value} in {fold(own)}" for value, own in nodes.items())


def _stated(nccl: NcclRun) -> Mapping[str, str]:
    program, nvls = _method(nccl)
    libraries = {"nccl": "the version", "torch": "PyTorch's version"}
    versions = {libraries.get(name, name): version for name, version in nccl.versions.items()}
    return {**versions, "the program": program, "NVLS": nvls}
