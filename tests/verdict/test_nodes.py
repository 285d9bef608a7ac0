"""A run between processes on several nodes: causes are said per node, though GPUs have the same bus ids everywhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from egmctl.bench.plan.fabric import make_fabric_plan
from egmctl.bench.plan.placement import RankLayout, modelled
from egmctl.bench.suites import FABRIC_CASES
from egmctl.facts.redact import redact
from egmctl.model.machine import Machine
from egmctl.model.measurement import Evidence, GpuEvidence, Measurement, RunReport, Settings, Status, finish
from egmctl.report.views.causes import cause_words
from egmctl.verdict.explain import during, with_causes
from tests.bench.reports import report
from tests.doctor.faults import healthy
from tests.doctor.machines import patched

SETTINGS = Settings(size_bytes=512 << 20, copies=1, samples=3, timeout_s=60)
DEVICE, HOST = "fabric_device_write_ce", "fabric_host_numa_read_ce"
GPU0 = (healthy().gpus or ())[0].bus_id


def layout(*nodes: Machine) -> RankLayout:
    """Eight ranks, four a node, on these two nodes."""
    made = modelled(healthy(), 8)
    return replace(made, machines=dict(zip(made.machines, nodes, strict=True)))


def links_down() -> Machine:
    return patched(healthy(), "gpus[0].nvml.nvlinks[3]", active=False)


def run(of: RankLayout, *, failed: tuple[str, ...] = (), cases: tuple[str, ...] = (DEVICE,)) -> RunReport:
    """All that is planned, of which what touches these GPUs failed for a known cause."""
    plan = make_fabric_plan(of, [case for case in FABRIC_CASES if case.name in cases], SETTINGS)

    def one(number: int) -> Measurement:
        planned = plan.tasks[number]
        if planned.waivers:
            return finish(planned, Status.WAIVED, reason=planned.waiver, waivers=planned.waivers)
        flow = planned.flows[0]
        broke = {flow.source.label, flow.destination.label} & {*failed}
        return finish(planned, Status.FAILED if broke else Status.OK, known_cause=True, reason="it was refused")

    made = report(plan, map(one, range(len(plan.tasks))))
    return replace(made, ranks=plan.ranks, machines=tuple(map(redact, of.machines.values())))


def paths(made: RunReport, check: str) -> dict[str, set[str]]:
    """By the node that a check's fault is on, the paths that it explains."""
    return {
        cause.node: {made.measurements[number].path for number in cause.explains}
        for cause in made.causes
        if cause.finding.check == check
    }


def test_links_that_are_down_on_one_node_explain_no_path_of_the_other_nodes_gpu_of_that_bus_id() -> None:
    made = with_causes(run(layout(healthy(), links_down()), failed=("node1:GPU0", "node2:GPU0")))
    (found,) = paths(made, "nvlink.links").items()
    assert found[0] == "node2"
    assert found[1]
    assert all("node2:GPU0" in path for path in found[1])
    unexplained = {
        one.path
        for number, one in enumerate(made.measurements)
        if one.status is Status.FAILED and number not in {n for cause in made.causes for n in cause.explains}
    }
    assert unexplained
    assert all("node1:GPU0" in path and "node2:GPU0" not in path for path in unexplained)


@pytest.mark.parametrize("case", [DEVICE, HOST])
def test_what_a_gpu_without_links_keeps_from_being_measured_is_that_nodes_doing(case: str) -> None:
    without = patched(healthy(), "gpus[0].nvml.nvlinks[*]", active=False)
    made = run(layout(healthy(), without), cases=(case,))
    waived = {one.path for one in made.measurements if one.status is Status.WAIVED}
    assert waived
    assert all("node2:GPU0" in path for path in waived)
    assert paths(with_causes(made), "nvlink.links") == {"node2": waived}


def test_the_same_fault_on_both_nodes_is_said_of_each() -> None:
    made = with_causes(run(layout(links_down(), links_down()), failed=("node1:GPU0", "node2:GPU0")))
    assert set(paths(made, "nvlink.links")) == {"node1", "node2"}
    told = [cause_words(made, cause) for cause in made.causes]
    assert {words.partition(":")[0] for words in told} == {"node1", "node2"}


def test_a_node_without_an_imex_channel_is_named() -> None:
    without = patched(healthy(), "driver", imex_channels=())
    made = with_causes(run(layout(healthy(), without)))
    (found,) = paths(made, "imex.channel").items()
    assert found[0] == "node2"
    assert all("node2:" in path for path in found[1])


def test_host_memory_that_seccomp_keeps_away_is_that_nodes_own() -> None:
    answers = {"get_mempolicy": "EPERM", "mbind": "EPERM", "set_mempolicy": "ok"}
    memory = patched(healthy(), "confinement", seccomp="filter", system_calls=answers)
    made = with_causes(run(layout(healthy(), memory), failed=("node2:GPU0:NUMA0",), cases=(HOST,)))
    found = paths(made, "numa.mempolicy-syscalls")
    assert set(found) == {"node2"}
    assert all("node2:GPU0:NUMA0" in path for path in found["node2"])


def test_what_gpus_of_the_same_bus_id_showed_is_told_of_each() -> None:
    made = run(layout(healthy(), healthy()), failed=())
    slow = Evidence(
        gpus=tuple(
            GpuEvidence(bus_id=GPU0, label=f"{node}:GPU0", throttle_reasons=("hw-thermal-slowdown",))
            for node in ("node1", "node2")
        )
    )
    first = replace(made.measurements[0], evidence=slow, status=Status.FAILED)
    found = with_causes(replace(made, measurements=(first, *made.measurements[1:])))
    assert not found.causes, "heat makes nothing fail"


def test_two_gpus_of_one_bus_id_keep_their_names() -> None:
    made = run(layout(healthy(), healthy()))
    heat = tuple(
        GpuEvidence(bus_id=GPU0, label=f"{node}:GPU0", throttle_reasons=("hw-thermal-slowdown",))
        for node in ("node1", "node2")
    )
    first = replace(made.measurements[0], evidence=Evidence(gpus=heat))
    ((finding, _),) = during(replace(made, measurements=(first, *made.measurements[1:])))
    assert (finding.place.label, finding.place.ids) == ("node1:GPU0, node2:GPU0", (GPU0,))
