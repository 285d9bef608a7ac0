"""Results as a run would have saved them: for tests of what is done with saved results."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from egmctl.bench.plan.make import make_plan
from egmctl.bench.results import summarize
from egmctl.facts.redact import redact
from egmctl.model.machine import Machine, Origin, OriginKind
from egmctl.model.measurement import MeasurementStatus, RunReport, Sample, Settings, finish
from egmctl.report.exports.json import result_json
from egmctl.units import MIB
from tests.answers import with_answer
from tests.bench.four import FOUR
from tests.bench.reports import report
from tests.doctor.machines import shipped

SETTINGS = Settings(size_bytes=512 * MIB, copies=16, samples=5, timeout_s=60)


def machine_of(name: str) -> Machine:
    """Return a shipped machine as if it were live."""
    return redact(replace(shipped(name), origin=Origin(kind=OriginKind.LIVE, tool="egmctl 0.1.0")))


def measured_report(name: str, values: Sequence[float] = (99.0, 100.0, 101.0)) -> RunReport:
    """Return a report in which each path of a shipped machine has samples of these bandwidths, in GB/s."""
    return _measured_report(name, tuple(values))


@functools.cache
def _measured_report(name: str, values: tuple[float, ...]) -> RunReport:
    machine = machine_of(name)
    nodes = [node.id for node in (machine.host.numa_nodes if machine.host else None) or () if node.cpus]
    plan = make_plan(machine, machine.gpus or (), nodes, FOUR, SETTINGS)
    found = summarize(values)
    samples = tuple(Sample(bandwidth_gb_s=value, flows_gb_s=(value,), elapsed_ms=8.5, wall_ms=9.5) for value in values)
    measurements = [
        finish(planned, MeasurementStatus.OK, samples=samples, bandwidth_gb_s=found, flows_gb_s=(found,), seeds=(1,))
        for planned in plan.tasks
    ]
    return replace(report(plan, measurements), machines=(machine,))


def bench_document(run: RunReport) -> dict[str, Any]:
    """Return the document of a run."""
    document: dict[str, Any] = json.loads(result_json(with_answer(run)))
    return document
