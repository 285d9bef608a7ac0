"""Limits of GPU memory: read, noted, planned within, and the cause of CUDA_ERROR_OUT_OF_MEMORY."""

from __future__ import annotations

from pathlib import Path

import pytest

from egmctl.bench.peaks import Peak
from egmctl.bench.plan.budget import free_bytes, most_bytes
from egmctl.doctor.check import EVERYTHING
from egmctl.doctor.explain import explain_failures
from egmctl.doctor.runner import CHECKS
from egmctl.facts.process import device_memory_cgroup, process
from egmctl.facts.root import Root
from egmctl.model.explanation import CauseState, ErrorLog, Failure, Library
from egmctl.model.finding import Status
from egmctl.model.host import DeviceMemoryLimit
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from egmctl.model.route import MemoryKind
from egmctl.model.task import Endpoint
from egmctl.topology.access import gpu_memory_bytes
from egmctl.units import GIB
from tests.answers import diagnose
from tests.doctor.faults import Fault
from tests.doctor.machines import bus_id, patched, run, shipped
from tests.fake.sysroot import Tree

POD = "/kubepods.slice/pod1"


def well(machine: Machine) -> Machine:
    return patched(machine, "process", device_memory=(), device_memory_capacity=None)


def on_host(machine: Machine) -> Machine:
    return patched(machine, "process", container_signs=())


def limited(*limits: tuple[str, int, int], capacity: int | None = None, total: int = 8 * GIB) -> Machine:
    """HGX H200 on which cgroups limit GPU1, each with a path, ``dmem.max`` and ``dmem.current``."""
    machine = well(shipped("hgx-h200x4"))
    gpu = bus_id(machine, 1)
    entries = tuple(
        DeviceMemoryLimit(cgroup=cgroup, bus_id=gpu, max_bytes=most, current_bytes=held)
        for cgroup, most, held in limits
    )
    capacities = None if capacity is None else {gpu: capacity}
    machine = patched(machine, "process", device_memory=entries, device_memory_capacity=capacities)
    # NVML and CUDA report the limit as the total (NVIDIA's guide to MPS v3 memory partitioning).
    machine = patched(machine, "gpus[1].nvml", memory_total_bytes=total, memory_used_bytes=0)
    return patched(machine, "gpus[1].cuda", memory_total_bytes=total)


FAULTS = {"gpu.memory-limit": Fault(lambda: patched(limited((POD, 8 * GIB, 0)), "origin", name="limited"))}


def noted(machine: Machine) -> list[str]:
    findings = run("gpu.memory-limit", machine)
    return [f"{finding.place.label}: {finding.summary}" for finding in findings if finding.status is Status.NOTE]


def test_a_limit_is_noted_with_its_cgroup_and_the_gpus_own_memory() -> None:
    assert noted(limited((POD, 8 * GIB, 0))) == [f"GPU1: GPU memory is limited to 8 GiB by cgroup {POD}"]
    assert noted(limited((POD, 8 * GIB, 0), capacity=140 * GIB)) == [
        f"GPU1: GPU memory is limited to 8 GiB of 140 GiB by cgroup {POD}"
    ]
    # The limits of all cgroups above apply, and the one that leaves the least counts.
    both = limited((POD, 16 * GIB, 12 * GIB), (f"{POD}/job", 8 * GIB, 1 * GIB))
    assert noted(both) == [f"GPU1: GPU memory is limited to 16 GiB by cgroup {POD}"]
    assert noted(limited((POD, -1, 0))) == []
    assert noted(limited((POD, 140 * GIB, 0), capacity=140 * GIB)) == []


def test_a_limit_that_only_nvml_knows_is_noted_too() -> None:
    machine = patched(limited(), "gpus[1].nvml", memory_limit_bytes=8 * GIB, memory_limit_used_bytes=GIB)
    assert noted(machine) == ["GPU1: GPU memory is limited to 8 GiB by its cgroup or MPS (NVML)"]


@pytest.mark.parametrize(
    ("reason", "status"), [(Reason.NOT_PRESENT, "skip"), (Reason.NOT_STATED, "skip"), (Reason.NO_PERMISSION, "unknown")]
)
def test_limits_that_were_not_read_do_not_pass(reason: Reason, status: str) -> None:
    why = {"device_memory": Unread(reason=reason)}
    machine = patched(shipped("hgx-h200x4"), "process", device_memory=None, unread=why)
    assert {finding.status.value for finding in run("gpu.memory-limit", machine)} == {status}


@pytest.mark.parametrize(("reason", "status"), [(Reason.FAILED, "unknown"), (Reason.DRIVER_TOO_OLD, "pass")])
def test_a_limit_that_the_bindings_cannot_ask_for_is_not_excluded(reason: Reason, status: str) -> None:
    why = {"memory_limit_bytes": Unread(reason=reason)}
    machine = patched(on_host(well(shipped("hgx-h200x4"))), "gpus[*].nvml", memory_limit_bytes=None, unread=why)
    assert {finding.status.value for finding in run("gpu.memory-limit", machine)} == {status}


def test_a_reported_total_under_a_limit_is_not_the_gpus() -> None:
    machine = limited((POD, 8 * GIB, 0))
    gpu = (machine.gpus or ())[1]
    assert gpu_memory_bytes(machine, gpu) is None
    assert gpu_memory_bytes(limited((POD, 8 * GIB, 0), capacity=140 * GIB), gpu) == 140 * GIB
    by_this_driver = limited((POD, 8 * GIB, 0), total=140 * GIB)
    assert gpu_memory_bytes(by_this_driver, (by_this_driver.gpus or ())[1]) == 140 * GIB
    diagnosis = diagnose(machine, EVERYTHING, CHECKS)
    assert [f.check for f in diagnosis.findings if f.status in (Status.FAIL, Status.WARN)] == []
    # Without a limit, a GPU with less memory than its siblings differs.
    assert {finding.status for finding in run("gpu.uniform", limited())} == {Status.WARN}


def test_buffers_are_planned_within_the_limit() -> None:
    machine = limited((POD, 8 * GIB, 3 * GIB), total=140 * GIB)
    peak = Peak(Endpoint(memory=MemoryKind.DEVICE, label="GPU1", bus_id=bus_id(machine, 1)), 0)
    assert free_bytes(machine, peak) == 5 * GIB
    assert most_bytes(patched(machine, "gpus[1].nvml", memory_used_bytes=None), peak) == 8 * GIB


@pytest.mark.parametrize(
    ("machine", "state"),
    [
        (limited((POD, 8 * GIB, 0)), CauseState.HOLDS),
        (on_host(well(shipped("hgx-h200x4"))), CauseState.EXCLUDED),
        (well(shipped("hgx-h200x4")), CauseState.UNKNOWN),
        (patched(well(shipped("hgx-h200x4")), "gpus[*].nvml", memory_limit_bytes=-1), CauseState.EXCLUDED),
        (shipped("hgx-h200x4"), CauseState.UNKNOWN),
    ],
)
def test_explain_knows_a_limit_as_the_cause(machine: Machine, state: CauseState) -> None:
    failure = Failure(library=Library.CUDA, call="cuMemCreate", number=2)
    (explanation,) = explain_failures(ErrorLog(failures=(failure,)), diagnose(machine, EVERYTHING, CHECKS)).explanations
    (cause,) = [cause for cause in explanation.causes if "gpu.memory-limit" in cause.checks]
    assert cause.state is state


def test_files_of_every_cgroup_are_read(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.write("/proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw")
    tree.write("/proc/self/cgroup", "0::/pod/job\n")
    region = "nvidia/0000:1B:00.0/vidmem"
    tree.write("/sys/fs/cgroup/dmem.capacity", f"drm/0000:03:00.0/vram0 1000\n{region} 150000000000\n")
    tree.write("/sys/fs/cgroup/pod/dmem.max", f"{region} 8589934592\n")
    tree.write("/sys/fs/cgroup/pod/dmem.current", f"{region} 4096\n")
    tree.write("/sys/fs/cgroup/pod/job/dmem.max", f"{region} max\n")
    tree.write("/sys/fs/cgroup/pod/job/dmem.low", f"{region} 65536\n")
    facts = process(Root(str(tmp_path)))
    assert facts.device_memory_capacity == {"0000:1b:00.0": 150_000_000_000}
    pod, job = facts.device_memory or ()
    assert (pod.cgroup, pod.max_bytes, pod.current_bytes) == ("/pod", 8 * GIB, 4096)
    assert (job.cgroup, job.max_bytes, job.low_bytes) == ("/pod/job", -1, 65536)
    assert job.unread["min_bytes"].reason is Reason.NOT_PRESENT
    assert device_memory_cgroup(Root(str(tmp_path)), 0).endswith("/sys/fs/cgroup/pod/job")


@pytest.mark.parametrize("line", ["nvidia/0000:1b:00/vidmem 1", "nvidia/0000:1b:00.0/vidmem 1 2", "nvidia/all max"])
def test_a_file_of_limits_that_says_something_else_is_not_read_as_no_limit(tmp_path: Path, line: str) -> None:
    tree = Tree(tmp_path)
    tree.write("/proc/self/mountinfo", "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw")
    tree.write("/proc/self/cgroup", "0::/pod\n")
    tree.write("/sys/fs/cgroup/pod/dmem.max", f"drm/0000:03:00.0/vram0 1000\n{line}\n")
    facts = process(Root(str(tmp_path)))
    assert (facts.device_memory, facts.unread["device_memory"].reason) == (None, Reason.FAILED)
