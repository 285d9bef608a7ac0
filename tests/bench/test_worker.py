"""What the worker makes of samples: expired ones are taken again, within a bound."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from egmctl.bench.engines import transfer
from egmctl.bench.evidence import LinkCounters
from egmctl.bench.plan.make import make_plan
from egmctl.bench.processes.collective import Exchange
from egmctl.bench.processes.context import AllocatedBuffer, Stopwatch
from egmctl.bench.processes.worker import engine_for
from egmctl.bench.results import EXPIRED_LIMIT
from egmctl.gpu.telemetry import Telemetry
from egmctl.gpu.timing import Gate, Gating, Timing
from egmctl.model.measurement import Measurement, MeasurementStatus, Settings, Verification
from tests.bench.four import FOUR
from tests.doctor.machines import shipped

MACHINE = shipped("dgx-h100")
SETTINGS = Settings(size_bytes=1 << 30, copies=1, samples=3, timeout_s=60)


class StubRig:
    """A worker without a GPU: its one stream, gate, pattern and memory are itself."""

    how = Gating.KERNEL
    verification = Verification.GPU_EVERY_SAMPLE
    bus_id = ""
    cpu_reads = False
    address = 0
    size_bytes = 1 << 30
    pageable = own_pages = False
    granularity_bytes = recommended_granularity_bytes = None
    allocate_ms = 1.0
    touch_ms = None
    gpus = ranks = ()
    exchange = Exchange()
    gate = Gate()

    def __init__(self) -> None:
        self.stopwatch = Stopwatch()
        self.pattern = self.context = self
        self.link_counters = LinkCounters(Telemetry(()))

    def stream(self, *_arguments: object, held: bool = True) -> StubRig:  # noqa: ARG002
        return self

    def held(self, _buffer: object) -> Any:
        memory: Any = self
        return AllocatedBuffer(memory, seed=1)

    def has(self, _buffer: object) -> bool:
        return False

    def offer(self) -> tuple[dict[str, Any], list[int]]:
        return {}, []

    def check(self, *_arguments: object) -> Any:
        """Find no difference."""
        return lambda: None

    def placements(self, _buffers: object) -> tuple[()]:
        return ()

    near = stream
    fill = connect = disconnect_unused = make_current = copy = synchronize = check


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Measure one path with given timings."""
    monkeypatch.setattr(transfer, "poison", lambda *_arguments: None)
    plan = make_plan(MACHINE, (MACHINE.gpus or ())[:2], [0], FOUR, SETTINGS)

    def run(*timings: Timing) -> Measurement:
        left = list(timings)
        held = SimpleNamespace(run=lambda: (left.pop(0),))
        monkeypatch.setattr(transfer, "GatedWork", lambda *_arguments: held)
        worker: Any = StubRig()
        task = plan.tasks[-1]
        (measurement,) = engine_for(task.engine)(worker, [task], SETTINGS)
        return measurement

    return run


def sample(elapsed_ms: float, *, expired: bool = False) -> Timing:
    """Return a timing."""
    return Timing(elapsed_ms, (elapsed_ms,), elapsed_ms + 0.02, expired)


def test_an_expired_sample_is_thrown_away_and_taken_again(run: Any) -> None:
    measurement = run(sample(10), sample(1, expired=True), sample(10), sample(10))
    assert measurement.status is MeasurementStatus.OK
    assert [s.elapsed_ms for s in measurement.samples] == [10, 10, 10]
    assert measurement.bandwidth_gb_s.median == pytest.approx(107.3741824)


def test_a_gate_that_always_gives_up_is_a_failure_with_a_known_cause(run: Any) -> None:
    measurement = run(*[sample(10, expired=True)] * EXPIRED_LIMIT)
    assert (measurement.status, measurement.known_cause) == (MeasurementStatus.FAILED, True)
    assert "the host failed 3 times to queue the work in time" in measurement.reason


def test_samples_that_differ_are_unstable_with_all_of_them_kept(run: Any) -> None:
    measurement = run(sample(10), sample(12), sample(10))
    assert measurement.status is MeasurementStatus.UNSTABLE
    assert measurement.reason == "the samples vary by 10.2 % (CV)"
    assert len(measurement.samples) == 3
