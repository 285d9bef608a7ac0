"""Things that happen to a quick bench on HGX H200, each with what the bench and a bring-up say of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from egmctl.bench.results import of_both, summarize
from egmctl.doctor.check import EVERYTHING, Scope
from egmctl.doctor.runner import CHECKS
from egmctl.model.answer import State
from egmctl.model.bringup import Bringup
from egmctl.model.gpu import GpuProcess
from egmctl.model.host import LibraryFailure
from egmctl.model.machine import Machine
from egmctl.model.measurement import (
    GpuEvidence,
    Measurement,
    MeasurementStatus,
    Placement,
    RunReport,
    Sample,
    TaskEvidence,
)
from egmctl.model.profile import Profile
from egmctl.model.task import Flow, Task
from egmctl.verdict.answers import answered
from egmctl.verdict.bringup import bringup_answer
from egmctl.verdict.explain import with_causes
from egmctl.verdict.judge import with_verdict
from tests.answers import diagnose
from tests.doctor.machines import patched, with_gpu_denied
from tests.properties.results import PROFILE, REFUTED
from tests.verdict.runs import H2D, H200, WRITE, Value, run, slow_at, usual

GPUS = [gpu.bus_id for gpu in H200.gpus or ()]
PATH = "GPU0 -> GPU1"
WITHOUT_H2D = replace(PROFILE, references=tuple(one for one in PROFILE.references if one.case != H2D))
DENIED = with_gpu_denied(H200, 3)
BUSY = patched(H200, "gpus[3].nvml", processes=(GpuProcess(pid=4711),))
ALL_BUSY = patched(H200, "gpus[*].nvml", processes=(GpuProcess(pid=4711),))
HIDDEN = patched(H200, "process", environment={"CUDA_VISIBLE_DEVICES": "0,1,2"})
SILENT = patched(patched(H200, "gpus[*]", nvml=None), "", pairs=())
HUNG = patched(SILENT, "driver", nvml_failure=LibraryFailure(how="timed-out", call="nvmlInit"), nvml_error=None)
NO_P2P = patched(H200, "pairs[*]", can_access_peer=False, p2p_status=dict.fromkeys(("read", "write", "nvlink"), "CNS"))

Change = Callable[[Measurement], Measurement]


def flapping(m: Measurement) -> Measurement:
    """Return a measurement of 112, 447 and 447 GB/s in each of four attempts."""
    samples = tuple(Sample(bandwidth_gb_s=v, flows_gb_s=(v,), elapsed_ms=8, wall_ms=9) for v in (112.0, 447.0, 447.0))
    summary = summarize([112.0, 447.0, 447.0])
    attempt = replace(m, samples=samples, bandwidth_gb_s=summary, flows_gb_s=(summary,))
    kept = attempt
    for _ in range(3):
        kept = of_both(kept, attempt)
    return kept


def misplaced(m: Measurement) -> Measurement:
    place = Placement(label="NUMA0", proof="move_pages", detail="3 of 4 pages are on node 1", right=False)
    return replace(m, placements=(place,))


def rerouted(m: Measurement) -> Measurement:
    return replace(m, evidence=REFUTED)


def ended(status: MeasurementStatus, *more: MeasurementStatus) -> Change:
    """Return the change to how it ended: of several, the first path's way, the others on other paths."""
    ways = dict(zip((PATH, "GPU1 -> GPU0"), (status, *more), strict=False))

    def change(m: Measurement) -> Measurement:
        if m.path not in ways:
            return m
        return replace(m, status=ways[m.path], samples=(), bandwidth_gb_s=None, flows_gb_s=(), reason="as it ended")

    return change


def beside_others(m: Measurement) -> Measurement:
    gpus = tuple(GpuEvidence(bus_id=bus_id, label="GPU1", other_processes=(1066,)) for bus_id in GPUS[1:2])
    return replace(m, evidence=TaskEvidence(gpus=gpus)) if "GPU1" in m.path else m


def a_little_slow(task: Task, flow: Flow) -> float:
    """Return 0.96 of what is usual: below the bound of a warning, above that of a failure."""
    return usual(task, flow) * 0.96


@dataclass(frozen=True, kw_only=True)
class Row:
    """What happened to a quick bench, and what is said of it."""

    bench: str
    """The word of the bench."""
    bringup: State
    machine: Machine = H200
    cases: Sequence[str] = (WRITE, H2D)
    change: Change = lambda m: m
    at: str = ""
    """The path that it happens to; all, if none is named."""
    value: Value = usual
    profile: Profile | None = PROFILE
    named: bool = False
    """Whether ``--gpus`` names all GPUs."""
    interrupted: bool = False
    strict: bool = False
    state: State | None = None
    """The state of the bench, if it is not that of the bring-up."""

    @property
    def run(self) -> RunReport:
        made = run(*self.cases, value=self.value, machine=self.machine, waives=True)
        changed = tuple(self.change(m) if m.measured and self.at in (m.path, "") else m for m in made.measurements)
        whole = replace(made, measurements=changed, interrupted=self.interrupted)
        verdict = with_verdict(whole, self.profile, profile_reason="of this kind", strict=self.strict)
        return answered(with_causes(verdict, asked=GPUS if self.named else ()))

    @property
    def whole(self) -> Bringup:
        return bringup_answer(
            diagnose(self.machine, Scope(gpus=tuple(GPUS)) if self.named else EVERYTHING, CHECKS), self.run
        )


GOOD, WARN, BAD, BROKE, INCOMPLETE = State.GOOD, State.WARN, State.BAD, State.BROKE, State.INCOMPLETE
CRASHED, CORRUPT = MeasurementStatus.CRASHED, MeasurementStatus.CORRUPT
ROWS = {
    "well": Row(bench="PASS", bringup=GOOD),
    "GPU3 is busy": Row(bench="INCOMPLETE", bringup=INCOMPLETE, machine=BUSY),
    "GPU3 is denied": Row(bench="INCOMPLETE", bringup=INCOMPLETE, machine=DENIED),
    "GPU3 is busy and named": Row(bench="INCOMPLETE", bringup=INCOMPLETE, machine=BUSY, named=True),
    "GPU3 is denied and named": Row(bench="FAIL", bringup=BAD, machine=DENIED, named=True),
    "112, 447, 447 in 4 attempts": Row(bench="FAIL", bringup=BAD, change=flapping, at=PATH),
    "wrong NUMA node": Row(bench="FAIL", bringup=BAD, change=misplaced, at="NUMA0 -> GPU0"),
    "route refuted": Row(bench="INCOMPLETE", bringup=INCOMPLETE, change=rerouted, at=PATH),
    "crash": Row(bench="BROKE", bringup=BROKE, change=ended(CRASHED), at=PATH),
    "corrupt and crash": Row(bench="FAIL", bringup=BAD, change=ended(CORRUPT, CRASHED)),
    "interrupted": Row(bench="INTERRUPTED", bringup=State.INTERRUPTED, interrupted=True),
    "interrupted and corrupt": Row(bench="FAIL", bringup=BAD, change=ended(CORRUPT), at=PATH, interrupted=True),
    "NVML hangs": Row(bench="FAIL", bringup=BAD, machine=HUNG),
    "no profile": Row(bench="NO REFERENCE", bringup=INCOMPLETE, profile=None, state=GOOD),
    "no H2D in the profile": Row(bench="PASS", bringup=INCOMPLETE, profile=WITHOUT_H2D, state=GOOD),
    "hidden GPU": Row(bench="PASS", bringup=INCOMPLETE, machine=HIDDEN, state=GOOD),
    "no P2P": Row(bench="FAIL", bringup=BAD, machine=NO_P2P),
    "all waived, no P2P": Row(bench="FAIL", bringup=BAD, machine=NO_P2P, cases=("device_to_device_memcpy_write_sm",)),
    "all waived, busy": Row(bench="INCOMPLETE", bringup=INCOMPLETE, machine=ALL_BUSY),
    "a little slow": Row(bench="PASS WITH WARNINGS", bringup=WARN, value=a_little_slow),
    "a little slow, --strict": Row(bench="FAIL", bringup=BAD, value=a_little_slow, strict=True),
    "no profile, --strict": Row(bench="NO REFERENCE", bringup=INCOMPLETE, profile=None, strict=True),
    "slow beside others and elsewhere": Row(
        bench="FAIL", bringup=BAD, value=slow_at("GPU1", "GPU3"), change=beside_others
    ),
    "slow beside others": Row(bench="INCOMPLETE", bringup=INCOMPLETE, value=slow_at("GPU1"), change=beside_others),
}
