"""The sections on NCCL: its bus bandwidths beside the links, how it reached them, and what it would measure."""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.model.measurement import RunReport
from egmctl.model.nccl import NcclPlan, NcclProgram, NcclRun, NcclStatus
from egmctl.report import document as doc
from egmctl.report.document import Level
from egmctl.units import format_size, listed, printable, several, shortened

_PROGRAMS = {NcclProgram.TORCH: "PyTorch", NcclProgram.NCCL_TESTS: "nccl-tests"}
_TRANSPORTS = 4
"""The number of transports that are named."""


def nccl_section(report: RunReport, nccl: NcclRun) -> Iterator[doc.Section]:
    """Yield the section on a run's own NCCL."""
    blocks: list[doc.DocumentBlock] = []
    if nccl.results:
        blocks.append(_table(nccl))
    lines = list(_lines(report, nccl))
    yield doc.Section("NCCL", (*blocks, doc.Bullets(tuple(lines))))
    if nccl.environment:
        body = (doc.KeyValues(tuple((name, printable(value)) for name, value in nccl.environment.items())),)
        yield doc.Section("NCCL's variables", body, level=Level.VERBOSE, folded=True)


def _table(nccl: NcclRun) -> doc.Matrix:
    heads = ("bus GB/s", "of slowest link", "ms", "data")
    rows = tuple(
        (
            result.name,
            f"{result.bus_gb_s:.1f}",
            "-" if result.share is None else f"{100 * result.share:.0f} %",
            _milliseconds(result.elapsed_ms),
            {True: "right", False: "WRONG", None: "not checked"}[result.verified],
        )
        for result in nccl.results
    )
    return doc.table(("", *heads), rows, right=heads[:3])


def _milliseconds(elapsed_ms: tuple[float, ...]) -> str:
    low, high = f"{min(elapsed_ms):.3f}", f"{max(elapsed_ms):.3f}"
    return low if low == high else f"{low} to {high}"


def _lines(report: RunReport, nccl: NcclRun) -> Iterator[str]:
    """Yield what it was set beside, how it was measured, and how it failed."""
    if nccl.status is not NcclStatus.OK:
        yield printable(nccl.reason or nccl.status)
    if nccl.slowest is not None:
        path = report.measurements[nccl.slowest.measurement].path
        yield f"the slowest link direction measured in this run: {path}, {nccl.slowest.gb_s:.1f} GB/s by copies"
    if nccl.not_comparable:
        yield f"not set beside the links: {nccl.not_comparable}"
    if nccl.status is NcclStatus.WAIVED and not nccl.results:
        return
    plan, versions = nccl.plan, nccl.versions
    by = _PROGRAMS.get(plan.program, "") if plan.program is not None else ""
    by += f" {versions['torch']}" if "torch" in versions else ""
    library = printable(f"NCCL {versions.get('nccl', 'of unknown version')} by {by}")
    yield f"{library} on {shortened(plan.labels, 8)}: {_how(plan)}; {_nvls(nccl)}"
    if nccl.transports:
        names = [f"{printable(name)} ({count})" for name, count in nccl.transports.items()]
        channels = "" if nccl.channels is None else f"; {several(nccl.channels, 'channel')}"
        yield f"connections by transport: {shortened(names, _TRANSPORTS)}{channels}"
    # The reason of a run that failed names its first failure.
    for failure in nccl.failures[1:] if nccl.status is NcclStatus.FAILED else nccl.failures:
        yield printable(f"{failure.label}: {failure.words}")


def _nvls(nccl: NcclRun) -> str:
    """Return whether NCCL could use NVLS: the user's variable decides where the plan allows it."""
    value = nccl.environment.get("NCCL_NVLS_ENABLE")
    if not nccl.plan.nvls or value is None:
        return f"NVLS {'allowed' if nccl.plan.nvls else 'off'}"
    return f"NVLS {'off' if value == '0' else 'allowed'} (NCCL_NVLS_ENABLE={printable(value)})"


def _how(plan: NcclPlan) -> str:
    samples = several(plan.samples, "sample")
    return f"{format_size(plan.size_bytes)}, {samples} of {several(plan.iterations, 'collective')} each"


def plan_section(plan: NcclPlan) -> Iterator[doc.Section]:
    """Yield the section on what NCCL would measure (``--dry-run``)."""
    by = "PyTorch or nccl-tests" if plan.program is None else _PROGRAMS.get(plan.program, plan.program.value)
    if plan.waivers:
        lines = tuple(f"not measured: {waiver.reason}" for waiver in plan.waivers)
    else:
        names = listed(plan.collectives)
        nvls = "allowed" if plan.nvls else "off"
        lines = (f"{names} by {by} on {shortened(plan.labels, 8)}: {_how(plan)}; NVLS {nvls}",)
    yield doc.Section("NCCL", (doc.Bullets(lines),))
