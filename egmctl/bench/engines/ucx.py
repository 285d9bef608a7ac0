"""How two ranks measure messages that UCX carries: the sender has the clock, the receiver looks at every byte.

Each task has a connection of its own, so that UCX's report at its end is about that task alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from egmctl.bench.engines.base import BenchEngine
from egmctl.bench.engines.ucx_side import Side
from egmctl.bench.processes.collective import CollectiveStep
from egmctl.bench.processes.context import WorkerContext
from egmctl.bench.ucx_report import OVER_NETWORK
from egmctl.errors import DriverCallError
from egmctl.model.measurement import Measurement, Settings, Task, Verification, waived
from egmctl.model.timing import Phase
from egmctl.model.ucx import UcxDevice
from egmctl.model.waiver import WaiverKind

BY_DEVICE_BYTES = 64 << 20
"""Messages from this size on are measured by each network device too."""


@dataclass(frozen=True, kw_only=True)
class Ucx(BenchEngine):
    """Tasks are measured one after the other."""

    @property
    def verification(self) -> Verification:
        return Verification.GPU_EVERY_SAMPLE

    def measure(self, worker: WorkerContext, tasks: Sequence[Task], settings: Settings) -> list[Measurement]:
        found = []
        for task in tasks:
            side, measurement = _measure(CollectiveStep(worker, [task]), worker, task, settings.samples)
            if _tells_devices_apart(measurement):
                measurement = _with_devices(worker, task, side, measurement)
            found.append(measurement)
        return found


UCX = Ucx(caption="UCX", counted="each byte copied, once", needs_kernels=False, timed_by_host=True)
UCX_PUT = replace(UCX, caption="UCX put")
UCX_GET = replace(UCX, caption="UCX get")


def _measure(
    collective: CollectiveStep,
    worker: WorkerContext,
    task: Task,
    samples: int,
    options: Mapping[str, str] | None = None,
) -> tuple[Side, Measurement]:
    side = Side(collective, worker, task, options or {})
    try:
        side.connect()
        if side.missing is not None:
            return side, waived(task, WaiverKind.UNSUPPORTED_ENGINE, side.missing)
        with worker.stopwatch.phase(Phase.WARM_UP):
            side.warm_up()
        with worker.stopwatch.phase(Phase.MEASURING):
            for number in range(samples):
                side.sample(number)
        told = collective.do(lambda _: side.told())[0]
    finally:
        # What cannot be given back here is so after a failure that is told already.
        with suppress(DriverCallError):
            side.close()
    (outcome,) = collective.outcomes
    return side, outcome or side.conclude(told)


def _tells_devices_apart(measurement: Measurement) -> bool:
    """Say whether messages are measured by each network device too: large ones, between memory of one kind."""
    source, destination = measurement.flows[0].source, measurement.flows[0].destination
    return (
        measurement.ucx is not None
        and measurement.ucx.route in OVER_NETWORK
        and measurement.bandwidth_gb_s is not None
        and measurement.size_bytes >= BY_DEVICE_BYTES
        and source.memory is destination.memory
    )


def _with_devices(worker: WorkerContext, task: Task, side: Side, measurement: Measurement) -> Measurement:
    """Return a measurement with what one sample reaches by each network device of the sender alone."""
    devices = []
    for name in side.devices if len(side.devices) > 1 else ():
        _, by_it = _measure(CollectiveStep(worker, [task]), worker, task, 1, {"NET_DEVICES": name})
        reached = by_it.bandwidth_gb_s
        devices.append(
            UcxDevice(
                name=name,
                bandwidth_gb_s=reached.median if reached else None,
                reason=by_it.reason,
                transports=by_it.ucx.transports if by_it.ucx else (),
            )
        )
    assert measurement.ucx is not None  # noqa: S101 - _tells_devices_apart has seen to it
    return replace(measurement, ucx=replace(measurement.ucx, devices=tuple(devices)))
