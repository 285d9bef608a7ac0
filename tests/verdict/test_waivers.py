"""What was not measured: each kind of waiver with its cause, first line and exit code, also where GPUs were named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from egmctl.api.bench import Bench
from egmctl.bench.plan.cost import plan_report
from egmctl.bench.plan.make import make_plan
from egmctl.bench.suites import CASES
from egmctl.model.finding import Evidence, Status, Waiver, WaiverKind
from egmctl.model.gpu import GpuProcess
from egmctl.model.host import LibraryFailure, NumaKind
from egmctl.model.machine import Machine
from egmctl.model.measurement import MeasurementStatus, RunReport, Settings, waived
from egmctl.units import MIB
from egmctl.verdict.explain import with_causes
from egmctl.verdict.judge import with_verdict
from egmctl.verdict.profiles import load_profile
from tests.answers import code_of
from tests.answers import shown as answer
from tests.doctor.faults import healthy
from tests.doctor.machines import patched, shipped, with_gpu_denied
from tests.verdict.runs import H2D, USUAL, WRITE, run

H200 = shipped("hgx-h200x4")
GB200 = shipped("gb200-tray")
GH200X2 = shipped("gh200x2")
PINNED, FABRIC, IPC_NUMA = "host_to_device_memcpy_ce", "ipc_fabric_device_read_ce", "ipc_posix_fd_host_numa_read_ce"


def measured(machine: Machine, *cases: str, nodes: Sequence[int] = (0,)) -> RunReport:
    """A run in which all that is planned reaches what is usual on HGX H200."""
    made = run(
        *cases, value=lambda task, _: USUAL.get(task.case, USUAL[H2D]), machine=machine, nodes=nodes, waives=True
    )
    return with_verdict(made, load_profile("hgx-h200"))


def explained(made: RunReport, *, asked: bool = False) -> RunReport:
    return with_causes(made, asked=[gpu.bus_id for gpu in made.gpus] if asked else ())


def first(made: RunReport) -> str:
    found = answer(made)
    return f"{found.word}: {found.sentence}"


def kinds(made: RunReport) -> set[WaiverKind]:
    return {waiver.kind for one in made.measurements for waiver in one.waivers}


def hidden(machine: Machine, visible: str) -> Machine:
    return patched(machine, "process", environment={"CUDA_VISIBLE_DEVICES": visible})


def used(machine: Machine, gpu: int) -> Machine:
    return patched(machine, f"gpus[{gpu}].nvml", processes=(GpuProcess(pid=4711),))


def without(attribute: str, *gpus: int, machine: Machine = H200) -> Machine:
    for index in gpus:
        cuda = (machine.gpus or ())[index].cuda
        assert cuda is not None
        machine = patched(machine, f"gpus[{index}].cuda", attributes={**cuda.attributes, attribute: 0})
    return machine


def apart(**pair: object) -> Machine:
    return patched(H200, "pairs[*]", **pair)


def blind(machine: Machine) -> Machine:
    """NVML hangs; CUDA works."""
    machine = patched(patched(machine, "gpus[*]", nvml=None), "", pairs=())
    return patched(machine, "driver", nvml_failure=LibraryFailure(how="timed-out", call="nvmlInit"), nvml_error=None)


@dataclass(frozen=True)
class Case:
    machine: Machine
    kinds: set[WaiverKind]
    check: str | None
    """What is found as the cause."""
    first: str
    """How the first line begins."""
    codes: tuple[int, int] = (0, 0)
    """The exit codes, and where all GPUs were named: then a GPU that is in use is still no fault."""
    asked: str = ""
    """What the first line says then."""
    cases: tuple[str, ...] = (WRITE, H2D)
    nodes: tuple[int, ...] = (0,)


K = WaiverKind
NO_P2P = {"can_access_peer": False, "p2p_status": dict.fromkeys(("read", "write", "nvlink"), "CNS")}
FAST = "PASS: all 2 path classes are as fast as profile hgx-h200 expects"
BUSY = "INCOMPLETE: GPU3: in use by process 4711"
WAIVED = {
    "hidden": Case(
        *(hidden(H200, "0,1,2"), {K.GPU_HIDDEN}, "bench.gpu-hidden", "PASS: all 2 path classes", (0, 1)),
        "FAIL: GPU3: hidden by CUDA_VISIBLE_DEVICES, but --gpus names GPU3; 7 measurements not made",
    ),
    "hidden by mistake": Case(
        *(hidden(H200, "0,1,7,3"), {K.GPU_HIDDEN}, "env.visible-devices"),
        *("INCOMPLETE: CUDA_VISIBLE_DEVICES: entry 3 is 7", (3, 1)),
        "but --gpus names GPU2-3; 12 measurements not made",
    ),
    "denied": Case(
        *(with_gpu_denied(H200, 3), {K.GPU_UNUSABLE}, "dev.cgroup-restricted"),
        *("INCOMPLETE: GPU3: the device cgroup denies /dev/nvidia3", (3, 1)),
        "but GPU3 is required (--gpus, --expect)",
    ),
    "MIG": Case(
        *(patched(H200, "gpus[3].nvml", mig_mode=True), {K.GPU_UNUSABLE}, "gpu.mig"),
        *("INCOMPLETE: GPU3: MIG is on", (3, 1), "but --gpus names GPU3; 7 measurements not made"),
    ),
    "prohibited": Case(
        *(patched(H200, "gpus[3].nvml", compute_mode="prohibited"), {K.GPU_UNUSABLE}, "gpu.compute-mode"),
        *("FAIL: GPU3: no process may use", (1, 1), "FAIL: GPU3: no process may use"),
    ),
    "busy": Case(
        *(used(H200, 3), {K.GPU_BUSY}, "bench.gpu-in-use", f"{BUSY}; 7 measurements not made", (3, 3)),
        f"{BUSY}, but --gpus names GPU3; 7 measurements not made",
    ),
    "no P2P": Case(
        *(apart(**NO_P2P), {K.NO_PEER_ACCESS}, "p2p.status"),
        *("FAIL: GPU0-3: no P2P read and write and nvlink", (1, 1)),
        cases=(H2D, "device_to_device_memcpy_write_sm"),
    ),
    "no atomics": Case(
        *(apart(cuda_attributes={"NATIVE_ATOMIC_SUPPORTED": 0}), {K.NO_ATOMICS}, None),
        f"{FAST}; 12 measurements not made: GPU0 has no",
        cases=(WRITE, H2D, "device_to_device_atomic_add"),
    ),
    "cpuset": Case(
        *(patched(H200, "host", allowed_numa_nodes="0"), {K.NO_NUMA_MEMORY}, None),
        "INCOMPLETE: 4 of 20 measurements were not made: this process",
        (3, 3),
        nodes=(0, 1),
    ),
    "no HOST_NUMA": Case(
        without("HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", 3), {K.UNSUPPORTED_MEMORY}, None, FAST
    ),
    "no fabric handles": Case(
        patched(without("HANDLE_TYPE_FABRIC_SUPPORTED", *range(4)), "driver", imex_channels=None),
        *({K.UNSUPPORTED_HANDLE}, None, "PASS: "),
        cases=(WRITE, FABRIC),
    ),
    "no IMEX channel": Case(
        *(patched(H200, "driver", imex_channels=()), {K.NO_IMEX_CHANNEL}, None),
        "PASS: all 1 path classes are as fast as profile hgx-h200 expects; 12 measurements not made: there is no IMEX",
        cases=(WRITE, FABRIC),
    ),
    "no IMEX channel in a domain": Case(
        *(patched(healthy(), "driver", imex_channels=()), {K.NO_IMEX_CHANNEL}, "imex.channel", "INCOMPLETE: ", (3, 3)),
        asked="12 measurements not made",
        cases=(WRITE, FABRIC),
    ),
    "blocked EGM route": Case(
        *(with_gpu_denied(GB200, 2, 3), {K.GPU_UNUSABLE, K.EGM_BLOCKED}, "dev.cgroup-restricted", "", (1, 1)),
        "GPU2-3 is required (--gpus, --expect)",
        cases=(IPC_NUMA,),
        nodes=(0, 1),
    ),
}


@pytest.mark.parametrize("name", WAIVED)
def test_what_was_not_measured_has_its_cause_first_line_and_exit_code(name: str) -> None:
    case = WAIVED[name]
    made = measured(case.machine, *case.cases, nodes=case.nodes)
    assert kinds(made) == case.kinds
    found = explained(made)
    assert [cause.finding.check for cause in found.causes] == ([] if case.check is None else [case.check])
    assert first(found).startswith(case.first), first(found)
    asked = explained(made, asked=True)
    assert case.asked in first(asked), first(asked)
    assert (code_of(found), code_of(asked)) == case.codes


@pytest.mark.parametrize("kind", [K.REFUSED, K.UNSUPPORTED_ENGINE, K.NO_ROOM, K.GIVEN_UP, K.NO_NVLINK])
def test_what_a_run_itself_waives_is_no_fault_of_the_nodes(kind: WaiverKind) -> None:
    made = measured(H200, WRITE, H2D)
    refused = waived(made.measurements[0], kind, "as it was tried")
    found = explained(replace(made, measurements=(refused, *made.measurements[1:])))
    assert (found.causes, code_of(found)) == ((), 3 if kind in (K.NO_ROOM, K.GIVEN_UP) else 0)
    if kind is K.NO_ROOM:
        assert answer(found).advice == "free memory there, then run it again"
    missing = kind not in (K.REFUSED, K.UNSUPPORTED_ENGINE)
    assert ("not made: as it was tried" in first(found)) is missing, "else these GPUs do not have it"


def test_all_that_stops_a_measurement_is_recorded_and_has_its_cause() -> None:
    """GPU1 is busy and GPU3 denied: the path between them has both."""
    machine = used(with_gpu_denied(H200, 3), 1)
    made = explained(measured(machine, WRITE), asked=True)
    between = next(number for number, one in enumerate(made.measurements) if one.path == "GPU1 -> GPU3")
    assert {cause.finding.check: cause.asked for cause in made.causes if between in cause.measurements} == {
        "dev.cgroup-restricted": "GPU3",
        "bench.gpu-in-use": "GPU1",
    }
    assert all(label in first(made) for label in ("GPU1: in use by process 4711", "GPU3 is required"))


def test_a_gpu_that_is_denied_and_busy_was_denied() -> None:
    machine = patched(with_gpu_denied(H200, 3), "gpus[3]", nvml=(H200.gpus or ())[3].nvml)
    assert K.GPU_BUSY not in kinds(measured(used(machine, 3), WRITE))


def test_a_dead_nvml_does_not_hide_a_gpu() -> None:
    """Each has its own cause, and that CUDA_VISIBLE_DEVICES hides a GPU that nobody named is no failure."""
    made = measured(hidden(blind(H200), "0,1,2"), WRITE)
    found = explained(made)
    told = {cause.finding.check: {found.measurements[n].status for n in cause.measurements} for cause in found.causes}
    assert told == {"drv.libraries": {MeasurementStatus.OK}, "bench.gpu-hidden": {MeasurementStatus.WAIVED}}
    assert code_of(found) == 1, "NVML that hangs is a fault of the node"
    asked = explained(made, asked=True)
    assert code_of(asked) == 1
    assert first(asked).startswith("FAIL: GPU3: hidden by CUDA_VISIBLE_DEVICES, but --gpus names GPU3")
    assert "NVML did not answer in time" in first(asked)


def test_a_crash_of_nvml_on_one_gpu_takes_all_of_them() -> None:
    gone = patched(H200, "gpus[*]", nvml=None, cuda=None)
    gpu = (H200.gpus or ())[1].bus_id
    failed = LibraryFailure(how="crashed", call="nvmlDeviceGetUUID", gpu=gpu)
    found = explained(measured(patched(gone, "driver", nvml_failure=failed), WRITE))
    (cause,) = found.causes
    assert cause.finding.check == "drv.libraries"
    assert len(cause.measurements) == len(found.measurements)
    assert code_of(found) == 1, "nothing was measured, for a fault"


def test_who_uses_a_gpu_is_told_with_the_call_that_said_so() -> None:
    unseen = patched(H200, "gpus[3].nvml", memory_used_bytes=12 << 30)
    found = [explained(measured(machine, WRITE)).causes[0].finding for machine in (used(H200, 3), unseen)]
    assert [(finding.evidence, finding.remedy and finding.remedy.look) for finding in found] == [
        (
            (Evidence(source="nvmlDeviceGetComputeRunningProcesses(GPU3)", value="process 4711"),),
            "ps -o pid,user,etime,args -p 4711",
        ),
        ((Evidence(source="nvmlDeviceGetMemoryInfo(GPU3)", value="12 GiB used"),), "nvidia-smi"),
    ]


def test_only_numa_memory_depends_on_the_egm_route() -> None:
    """All paths to the second CPU are called slow; pinned memory's are not for want of EGM."""
    made = measured(with_gpu_denied(GB200, 2, 3), H2D, PINNED, nodes=(1,))
    slow = tuple(
        replace(one, status=MeasurementStatus.FAILED, known_cause=True) if one.measured else one
        for one in made.measurements
    )
    found = with_causes(replace(made, measurements=slow, verdict=None))
    cases = {
        found.measurements[n].case
        for c in found.causes
        for n in c.measurements
        if slow[n].status is MeasurementStatus.FAILED
    }
    assert cases == {H2D}


def without_names(made: RunReport, kind: WaiverKind) -> RunReport:
    """As when a worker finds that CUDA does not see a GPU: it does not say which of a path."""
    waiver = Waiver(kind=kind, reason="CUDA does not see a GPU of this path")
    changed = tuple(replace(one, waivers=(waiver,)) if one.waivers else one for one in made.measurements)
    return replace(made, measurements=changed)


def test_a_gpu_that_a_worker_misses_is_the_one_of_which_nothing_was_measured() -> None:
    made = measured(patched(H200, "gpus[3].nvml", compute_mode="prohibited"), WRITE)
    (cause,) = explained(without_names(made, K.GPU_UNUSABLE), asked=True).causes
    assert (cause.finding.check, cause.status, cause.asked) == ("gpu.compute-mode", Status.FAIL, "GPU3")


def test_a_gpu_that_a_worker_misses_for_no_reason_that_a_check_knows_is_told_too() -> None:
    made = replace(measured(with_gpu_denied(H200, 3), WRITE), machines=(H200,))
    missed = without_names(made, K.GPU_UNUSABLE)
    for asked, code, word in ((False, 3, "INCOMPLETE"), (True, 1, "FAIL")):
        found = explained(missed, asked=asked)
        (cause,) = found.causes
        assert (cause.finding.check, cause.finding.place.label) == ("bench.gpu-unusable", "GPU3")
        assert code_of(found) == code
        assert first(found).startswith(f"{word}: GPU3: CUDA does not see it")


def test_a_copy_that_is_staged_misses_the_path_that_was_asked_for() -> None:
    """It was measured, and is slow by no reference. NVML says OK of the pair, CUDA alone refuses it."""
    found = explained(measured(patched(H200, "pairs[1]", can_access_peer=False), WRITE))
    staged = [n for n, one in enumerate(found.measurements) if one.measured and one.missed_path and not one.waivers]
    assert [found.measurements[n].path for n in staged] == ["GPU0 -> GPU2"]
    (cause,) = found.causes
    assert (cause.finding.check, cause.measurements, cause.asked) == ("p2p.status", tuple(staged), "")
    assert code_of(found) == 1


NO_MEMORY = patched(shipped("dgx-h100"), "host.numa_nodes[1]", kind=NumaKind.CPU_ONLY, memory_total_bytes=0)


@pytest.mark.parametrize(
    ("machine", "allowed", "by_chance", "summary"),
    [
        (shipped("dgx-h100"), "0", 3, "memory of this NUMA node is required (--numa)"),
        *((NO_MEMORY, allowed, None, "has no memory") for allowed in ("0", "0-1", None)),
    ],
)
def test_a_numa_node_that_was_asked_for_and_is_forbidden_or_has_no_memory_is_a_failure(
    machine: Machine, allowed: str | None, by_chance: int | None, summary: str
) -> None:
    made = measured(patched(machine, "host", allowed_numa_nodes=allowed), H2D, nodes=(0, 1))
    made = replace(made, verdict=None)
    found, asked = Bench(cases=(H2D,)).explain(made), Bench(cases=(H2D,), numa="0,1").explain(made)
    assert by_chance is None or (found.causes, code_of(found)) == ((), by_chance)
    (cause,) = asked.causes
    assert (cause.finding.check, cause.finding.place.label, asked.exit_code) == ("numa.cpuset-mems", "NUMA 1", 1)
    assert first(asked).startswith("FAIL: NUMA 1: ")
    assert summary in first(asked)


NO_ATS = without("PAGEABLE_MEMORY_ACCESS", 0, 1, machine=patched(GH200X2, "gpus[*].nvml", addressing_mode="none"))
OFFLINE = {"numa_status": "online_failed", "numa_node": None}
NOT_ONLINE = patched(patched(GH200X2, "gpus[*].nvml", numa_node=None), "gpus[*].proc", **OFFLINE)


@pytest.mark.parametrize(
    ("machine", "prefix", "check"), [(NO_ATS, "system_", "uvm.addressing-mode"), (NOT_ONLINE, "gpu_numa_", "numa.mode")]
)
def test_memory_that_a_gpu_does_not_share_with_the_cpu_has_its_cause(machine: Machine, prefix: str, check: str) -> None:
    made = replace(measured(machine, *(one.name for one in CASES if prefix in one.name)), verdict=None)
    assert kinds(made) == {K.UNSUPPORTED_MEMORY}
    found = explained(made)
    (cause,) = found.causes
    waived = {n for n, one in enumerate(found.measurements) if one.status is MeasurementStatus.WAIVED}
    assert (cause.finding.check, set(cause.measurements), cause.status) == (check, waived, Status.FAIL)
    assert code_of(found)


def test_a_plan_that_is_not_run_says_all_that_stops_it() -> None:
    machine = used(with_gpu_denied(H200, 3), 1)
    settings = Settings(size_bytes=512 * MIB, copies=16, samples=3, timeout_s=60)
    plan = make_plan(machine, machine.gpus or (), [0], [case for case in CASES if case.name == WRITE], settings)
    found = {one.path: one for one in plan_report(plan, machine.origin).tasks}
    assert [waiver.kind for waiver in found["GPU1 -> GPU3"].waivers] == [K.GPU_UNUSABLE, K.GPU_BUSY]
    assert found["GPU1 -> GPU3"].waiver == "GPU3: denied by the device cgroup (/dev/nvidia3: EPERM)"
    assert (found["GPU0 -> GPU2"].waiver, found["GPU0 -> GPU2"].waivers) == (None, ())
