"""Notes on a run whose messages UCX carried: what doctor's checks say of the route that UCX took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from egmctl.bench.case import Case
from egmctl.bench.plan.make import SECTIONS
from egmctl.doctor.check import Scope
from egmctl.model.finding import Guard, Status
from egmctl.model.machine import Machine
from egmctl.model.measurement import Measurement, MemoryKind, RunReport
from egmctl.model.task import UCX_ENGINES
from egmctl.model.ucx import UcxRoute
from egmctl.topology.links import gpu_nic_link

_CHECKS = ("rdma.", "pcie.")
"""Beginnings of the ids of the checks that explain a route."""


def sections(cases: Sequence[Case]) -> tuple[str, ...]:
    """Return the facts that a plan of these cases and its explanation need."""
    return (*SECTIONS, "nics", "system") if any(case.engine in UCX_ENGINES for case in cases) else SECTIONS


def explained(report: RunReport) -> RunReport:
    """Return a report with a note for each finding of the doctor that may explain why UCX took its route.

    Where GPUDirect RDMA was in use everywhere it could be, there is nothing to explain.
    """
    report = replace(report, measurements=tuple(_with_distances(m, report) for m in report.measurements))
    on_gpu = [
        m.ucx
        for m in report.measurements
        if m.ucx is not None
        and MemoryKind.DEVICE in (m.flows[0].source.memory, m.flows[0].destination.memory)
        and m.ucx.route is not UcxRoute.GPUDIRECT_RDMA
    ]
    if not on_gpu:
        return report
    notes = [line for machine in report.machines for line in _findings(machine)]
    components = on_gpu[0].components
    if "ib" not in components:
        notes.append(
            f"UCX {on_gpu[0].version} found no InfiniBand transport (only {', '.join(components)}): it needs a NIC "
            "and a UCX build with InfiniBand. The libucx wheels have none; RAPIDS_LIBUCX_PREFER_SYSTEM_LIBRARY=1 "
            "makes ucxx use the system's UCX"
        )
    return replace(report, notes=(*report.notes, *dict.fromkeys(notes)))


def _with_distances(measurement: Measurement, report: RunReport) -> Measurement:
    """Return a measurement whose network devices say how far they are from the sender's GPU."""
    ucx, sender = measurement.ucx, measurement.flows[0].initiator
    ends = [(machine, gpu) for machine in report.machines for gpu in machine.gpus or () if gpu.bus_id == sender]
    if ucx is None or not ucx.devices or not ends:
        return measurement
    machine, gpu = ends[0]
    distances = {nic.name: gpu_nic_link(machine, gpu, nic).kind.value for nic in machine.nics or ()}
    devices = (replace(device, distance=distances.get(device.name.partition(":")[0])) for device in ucx.devices)
    return replace(measurement, ucx=replace(ucx, devices=tuple(devices)))


def _findings(machine: Machine) -> Iterator[str]:
    # All checks: only where there is something to explain.
    from egmctl.doctor.runner import CHECKS, diagnose

    checks = [check for check in CHECKS if check.id.startswith(_CHECKS) and Guard.RDMA in check.guards]
    by_words: dict[str, dict[str, None]] = {}
    for finding in diagnose(machine, Scope(purposes=(Guard.RDMA,)), checks).findings:
        if finding.status in (Status.FAIL, Status.WARN, Status.UNKNOWN):
            by_words.setdefault(f"{finding.status}: {finding.summary}", {})[finding.check] = None
    for words, ids in by_words.items():
        yield f"doctor's check{'s' * (len(ids) > 1)} {', '.join(ids)}: {words}"
