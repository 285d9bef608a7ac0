"""A GPU that others use is not measured, unless that is asked for; then the numbers say so."""

from __future__ import annotations

from dataclasses import replace

from egmctl.bench.plan import Plan
from egmctl.bench.plan.flows import IDLE_MEMORY_BYTES, in_use
from egmctl.bench.plan.make import make_plan
from egmctl.model.gpu import Gpu, GpuProcess
from egmctl.model.machine import Machine
from egmctl.model.measurement import Settings
from tests.bench.four import FOUR
from tests.doctor.machines import shipped

MACHINE = shipped("gb200-tray")
SETTINGS = Settings(size_bytes=1 << 20, copies=1, samples=1, timeout_s=1)


def with_nvml(index: int, **changes: object) -> Machine:
    """Return the machine with one GPU about which NVML says something else."""
    gpus = list(MACHINE.gpus or ())
    nvml = gpus[index].nvml
    assert nvml is not None
    gpus[index] = replace(gpus[index], nvml=replace(nvml, **changes))  # type: ignore[arg-type]
    return replace(MACHINE, gpus=tuple(gpus))


def plan_of(machine: Machine, *, allow_busy: bool = False) -> Plan:
    """Plan everything on two GPUs and one node."""
    settings = replace(SETTINGS, allow_busy=allow_busy)
    return make_plan(machine, (machine.gpus or ())[:2], [0], FOUR, settings)


def gpu(machine: Machine, index: int) -> Gpu:
    assert machine.gpus is not None
    return machine.gpus[index]


def test_paths_of_a_gpu_with_a_process_are_waived_with_its_pid_and_the_others_run() -> None:
    busy = with_nvml(1, processes=(GpuProcess(pid=4711, name="python3", used_memory_bytes=None),))
    plan = plan_of(busy)
    waived = {planned.waiver for planned in plan.tasks if planned.waiver}
    assert waived == {"GPU1 is in use by process 4711; 'egmctl bench --allow-busy' measures it anyway"}
    assert {flow.initiator_label for task in plan.runnable for flow in task.flows} == {"GPU0"}
    assert all("numa" in task.case for task in plan.runnable)


def test_it_is_measured_when_asked_for_and_the_report_says_so() -> None:
    plan = plan_of(with_nvml(1, processes=(GpuProcess(pid=4711),)), allow_busy=True)
    assert len(plan.runnable) == len(plan.tasks)
    assert plan.notes == ("measured anyway: GPU1 is in use by process 4711",)


def test_memory_that_no_visible_process_holds_belongs_to_another() -> None:
    used = with_nvml(0, processes=(), memory_used_bytes=12 << 30, numa_node=None)
    assert str(in_use(gpu(used, 0))) == "12 GiB of GPU0 are in use, by no process that is visible from here"


def test_the_drivers_own_memory_and_that_of_a_numa_node_are_nobodys() -> None:
    assert in_use(gpu(with_nvml(0, processes=(), memory_used_bytes=IDLE_MEMORY_BYTES, numa_node=None), 0)) is None
    assert in_use(gpu(with_nvml(0, processes=(), memory_used_bytes=12 << 30, numa_node=2), 0)) is None


def test_of_many_processes_some_are_named_and_the_rest_counted() -> None:
    many = with_nvml(0, processes=tuple(GpuProcess(pid=pid) for pid in range(100, 107)))
    assert str(in_use(gpu(many, 0))) == "GPU0 is in use by process 100, 101, 102 and 4 more"
