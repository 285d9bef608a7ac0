"""Measurements by several processes of a test's own: cases of shared memory, without those beside them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from egmctl.bench.case import Case, Footprint
from egmctl.bench.plan.make import make_plan
from egmctl.bench.processes.group import Group, start_group
from egmctl.bench.suites import CASES
from egmctl.bench.supervisor import supervise
from egmctl.model.gpu import Gpu
from egmctl.model.machine import Machine
from egmctl.model.measurement import Measurement, MeasurementStatus, RunReport, Settings
from egmctl.units import MIB
from egmctl.verdict.answers import answered
from egmctl.verdict.explain import with_causes
from tests import forked
from tests.conftest import ROOT
from tests.fake.machines import nvl4, with_imex_channel
from tests.fake.node import FakeNode
from tests.fake.plugin import MakeFakeNode
from tests.launch.start import children, wait_until

BY_NAME = {case.name: case for case in CASES}
IPC = {name: case for name, case in BY_NAME.items() if case.family == "ipc"}
GOOD = {MeasurementStatus.OK, MeasurementStatus.UNSTABLE}
"""Times of a fake differ as its host is busy."""


def measure(
    machine: Machine,
    cases: Sequence[Case],
    settings: Settings,
    *,
    gpus: Sequence[Gpu] | None = None,
    numa_nodes: Sequence[int] = (0,),
    hosts: Sequence[str | None] = (),
    start: Callable[[int], Group] = start_group,
) -> RunReport:
    """Measure cases between the first two GPUs, or others, by processes that this one starts.

    Parameters
    ----------
    hosts
        The names of the ranks' nodes, if they are to be on several.
    """
    chosen = (machine.gpus or ())[:2] if gpus is None else gpus
    plan = make_plan(machine, chosen, numa_nodes, [replace(case, in_process=None) for case in cases], settings)
    if hosts:
        ranks = tuple(replace(rank, host=host) for rank, host in zip(plan.ranks, hosts, strict=True))
        plan = replace(plan, ranks=ranks)
    report = supervise(plan, machine, on_progress=lambda _part, _task: None, start_ranks=start)
    return answered(with_causes(report))


def small(case: Case) -> Case:
    """Return a case whose lives and chains are of 2 MiB at most."""
    least_bytes = case.footprint.least_bytes if case.footprint is not None else 2 * MIB
    return replace(case, footprint=case.footprint and Footprint(least_bytes=min(least_bytes, 2 * MIB)))


def of_case(report: RunReport, name: str) -> list[Measurement]:
    """Return the measurements of a case."""
    return [measurement for measurement in report.measurements if measurement.case == name]


def complaints(report: RunReport) -> list[str]:
    """Return what was neither measured nor waived, and why."""
    whole = {*GOOD, MeasurementStatus.WAIVED}
    bad = [measurement for measurement in report.measurements if measurement.status not in whole]
    return [*report.problems, *(f"{m.case}: {m.status}: {m.reason}" for m in bad)]


class Run(NamedTuple):
    """How a run on a fake node ended."""

    report: RunReport
    node: FakeNode

    def of(self, case: str) -> list[Measurement]:
        """Return the measurements of a case."""
        return of_case(self.report, case)


RunIpc = Callable[..., Run]


def runner(fake_node: MakeFakeNode, monkeypatch: pytest.MonkeyPatch) -> RunIpc:
    """Return a function that measures small cases by two processes or more on a fake node."""

    def run(
        *names: str, faults: str = "", machine: Machine | None = None, gpus: int = 2, timeout_s: float = 30, **more: Any
    ) -> Run:
        node = fake_node(machine or with_imex_channel(nvl4()))
        for name, value in node.environment(faults).items():
            monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        settings = Settings(size_bytes=MIB, copies=2, samples=2, timeout_s=timeout_s)
        before = children()
        with forked.children():
            chosen = (node.machine.gpus or ())[:gpus]
            cases = [small(BY_NAME[name]) for name in names]
            report = measure(node.machine, cases, settings, gpus=chosen, numa_nodes=[1], **more)
        assert wait_until(lambda: children() <= before), "a process was left behind"
        return Run(report, node)

    return run
