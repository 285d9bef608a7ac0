"""What a plan costs on a node of many GPUs: tasks that are alike are looked at once, whatever their number."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from egmctl.bench.plan import Plan, make, paths
from egmctl.bench.plan.budget import fitted, memory_of
from egmctl.bench.plan.candidates import Known
from egmctl.bench.plan.cost import case_list, plan_report
from egmctl.bench.plan.make import make_plan
from egmctl.bench.plan.task import Candidate, planned_task
from egmctl.bench.suites import select_cases
from egmctl.model.gpu import Gpu, GpuProcess
from egmctl.model.machine import Machine
from egmctl.report.kinds import Format, render
from egmctl.topology.links import Link, gpu_link
from egmctl.units import MIB
from tests.bench.plans import SETTINGS
from tests.doctor.machines import patched, shipped, with_gpu_denied

WRITE = "device_to_device_memcpy_write_ce"


@cache
def node_of(gpus: int) -> Machine:
    """Return a node of H200 GPUs that are alike, each of which reaches all others through switches."""
    machine = shipped("hgx-h200x4")
    (gpu, *_), (pair, *_) = machine.gpus or (), machine.pairs or ()
    bus_ids = [f"0000:{number + 1:02x}:00.0" for number in range(gpus)]
    return replace(
        machine,
        gpus=tuple(replace(gpu, index=index, bus_id=bus_id) for index, bus_id in enumerate(bus_ids)),
        pairs=tuple(replace(pair, source=a, target=b) for a in bus_ids for b in bus_ids if a != b),
    )


def plan_for(
    machine: Machine, *names: str, suite: str = "standard", known: Known | None = None, mib: int = 512
) -> Plan:
    cases = select_cases(names, [] if names else [suite])
    settings = replace(SETTINGS, size_bytes=mib * MIB)
    return make_plan(machine, machine.gpus or (), machine.cpu_nodes, cases, settings, known=known)


def counted_calls(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> int:
    """Return how many tasks are made for a plan and for what is said of it in text."""
    calls = 0

    def counting(*arguments: object, **options: object) -> object:
        nonlocal calls
        calls += 1
        return planned_task(*arguments, **options)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(make, "planned_task", counting)
        plan = plan_for(machine)
    case_list(plan, select_cases((), ["standard"]), machine.origin)
    render(plan_report(plan, machine.origin), Format.TEXT)
    return calls


def test_the_tasks_that_a_plan_makes_grow_with_the_gpus_and_not_with_their_pairs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = {gpus: counted_calls(monkeypatch, node_of(gpus)) for gpus in (8, 16, 24)}
    assert len(plan_for(node_of(24)).tasks) > 6 * len(plan_for(node_of(8)).tasks)
    # A waived task is looked at alone, because its waiver names its GPU.
    assert calls[24] - calls[16] == calls[16] - calls[8] <= 8 * 4, calls


def test_the_link_of_two_gpus_is_looked_for_once_for_all_cases_and_both_directions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_for: list[frozenset[str]] = []

    def counting(machine: Machine, first: Gpu, second: Gpu) -> Link:
        looked_for.append(frozenset((first.bus_id, second.bus_id)))
        return gpu_link(machine, first, second)

    monkeypatch.setattr(paths, "gpu_link", counting)
    plan_for(node_of(8))
    assert len(looked_for) == len(set(looked_for)) == 8 * 7 // 2


@pytest.mark.parametrize("suite", ["standard", "full"])
@pytest.mark.parametrize("name", ["dgx-h100", "hgx-h200x4", "gb200-tray", "dgx-station-gb300"])
def test_a_task_that_stands_for_others_is_equal_to_them(monkeypatch: pytest.MonkeyPatch, name: str, suite: str) -> None:
    machine = shipped(name)
    shared = plan_for(machine, suite=suite)
    monkeypatch.setattr(make, "looks_at_each", lambda _case: True)
    assert plan_for(machine, suite=suite) == shared


ONE_BUSY = patched(shipped("hgx-h200x4"), "gpus[3].nvml", processes=(GpuProcess(pid=4711),))
ONE_DENIED = with_gpu_denied(shipped("hgx-h200x4"), 3)
ONE_WITHOUT_P2P = patched(
    shipped("hgx-h200x4"),
    "pairs[0]",
    can_access_peer=False,
    p2p_status=dict.fromkeys(("read", "write", "nvlink"), "CNS"),
)


@pytest.mark.parametrize("machine", [ONE_BUSY, ONE_DENIED, ONE_WITHOUT_P2P], ids=["busy", "denied", "no P2P"])
def test_a_task_of_a_gpu_or_a_path_that_cannot_be_used_stands_for_itself(
    monkeypatch: pytest.MonkeyPatch, machine: Machine
) -> None:
    shared = plan_for(machine)
    assert 0 < sum(bool(task.waivers) for task in shared.tasks) < len(shared.tasks)
    monkeypatch.setattr(make, "looks_at_each", lambda _case: True)
    assert plan_for(machine) == shared


def test_flows_that_one_process_verifies_in_turn_are_of_another_kind_than_those_of_several() -> None:
    machine = node_of(4)
    known = Known(machine, allow_busy=False)
    plan_for(machine, WRITE, known=known)
    first, second, *_ = (alone for made in known.flows.values() for alone in made.values())
    flows = first.flows + second.flows
    candidate = Candidate(flows, first.paths + second.paths, (machine.gpus or ())[:2], None)
    ranks = (replace(flow, destination=replace(flow.destination, rank=rank)) for rank, flow in enumerate(flows))
    kinds = known.kind_of(candidate), known.kind_of(candidate._replace(flows=tuple(ranks)))
    assert None not in kinds
    assert kinds[0] != kinds[1]


def test_gpus_that_differ_do_not_stand_for_each_other() -> None:
    machine = node_of(8)
    attributes = {**(machine.gpus or ())[3].cuda.attributes, "L2_CACHE_SIZE": 128 * MIB}  # type: ignore[union-attr]
    machine = patched(machine, "gpus[3].cuda", attributes=attributes)
    tasks = plan_for(machine, "device_local_copy", "device_local_latency_uncached").tasks
    copied, read = tasks[:8], tasks[8:]
    assert [task.rotated_bytes for task in copied] == [0, 0, 0, 1024 * MIB, 0, 0, 0, 0]
    assert [task.size_bytes // MIB for task in read] == [240, 240, 240, 512, 240, 240, 240, 240]


@pytest.mark.parametrize("suite", ["standard", "full"])
def test_a_plan_of_another_size_is_the_one_that_is_made_anew(suite: str) -> None:
    machine = node_of(4)
    known = Known(machine, allow_busy=False)
    for mib in (512, 256, 64):
        assert plan_for(machine, suite=suite, known=known, mib=mib) == plan_for(machine, suite=suite, mib=mib)


def test_where_memory_is_short_the_plan_that_was_made_smaller_has_the_peaks_of_its_tasks() -> None:
    machine = patched(node_of(4), "host.numa_nodes[0]", memory_free_bytes=600 * MIB)
    machine = patched(machine, "host", memory_available_bytes=600 * MIB)
    known = Known(machine, allow_busy=False)

    def planned(size_bytes: int, of: Known | None = known) -> Plan:
        return plan_for(machine, mib=size_bytes // MIB, known=of)

    plan = fitted(planned(512 * MIB), memory_of(machine), planned)
    assert plan.settings.size_bytes < 512 * MIB
    known_free = [(peak, free) for peak in plan.peaks if (free := memory_of(machine).free(peak)) is not None]
    assert any(free == 600 * MIB for _, free in known_free)
    assert all(peak.bytes <= free * plan.settings.memory_percent // 100 for peak, free in known_free)
    assert fitted(planned(512 * MIB, None), memory_of(machine), lambda size_bytes: planned(size_bytes, None)) == plan


def test_the_uses_that_a_fitted_plan_knows_are_those_of_its_steps_and_of_no_others() -> None:
    machine = patched(node_of(4), "host.numa_nodes[0]", memory_free_bytes=600 * MIB)
    known = Known(machine, allow_busy=False)

    def planned(size_bytes: int) -> Plan:
        return plan_for(machine, mib=size_bytes // MIB, known=known)

    plan = fitted(planned(512 * MIB), memory_of(machine), planned)
    assert plan.known_uses is not None
    assert plan.uses is plan.known_uses[2]
    assert plan.peaks == replace(plan, known_uses=None).peaks
    first_steps = replace(plan, steps=plan.steps[:1])
    assert first_steps.peaks == replace(first_steps, known_uses=None).peaks
    assert first_steps.peaks != plan.peaks


def test_the_steps_of_a_case_are_counted_where_nobody_would_read_them() -> None:
    few, many = (plan_for(node_of(gpus), WRITE) for gpus in (8, 24))
    text = str(render(plan_report(few, node_of(8).origin), Format.TEXT))
    assert text.count("GPU0 -> GPU1") == 1 + text.count("GPU0 -> GPU1, once more alone")
    assert "--json has every step" not in text
    counted = str(render(plan_report(many, node_of(24).origin), Format.TEXT))
    assert "1-92  552 measurements, 46 once more alone" in counted
    assert "--json has every step" in counted
    assert len(plan_report(many, node_of(24).origin).tasks) == 552
