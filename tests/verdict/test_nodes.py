"""A run between processes on several nodes: causes are said per node, though GPUs have the same bus ids everywhere."""

from __future__ import annotations

from dataclasses import replace

import pytest

from egmctl.bench.plan.fabric import make_fabric_plan
from egmctl.bench.plan.placement import RankLayout, modelled
from egmctl.bench.suites import FABRIC_CASES
from egmctl.facts.redact import redact
from egmctl.model.listing import PlannedTask
from egmctl.model.machine import Machine
from egmctl.model.measurement import (
    GpuEvidence,
    Measurement,
    MeasurementStatus,
    RunReport,
    Settings,
    TaskEvidence,
    finish,
)
from egmctl.verdict.answers.words import cause_words
from egmctl.verdict.explain import during, with_causes
from tests.bench.reports import report
from tests.doctor.faults import healthy
from tests.doctor.machines import patched

SETTINGS = Settings(size_bytes=512 << 20, copies=1, samples=3, timeout_s=60)
DEVICE, HOST = "fabric_device_write_ce", "fabric_host_numa_read_ce"
NODES = ("node1", "node2")
GPU0 = (healthy().gpus or ())[0].bus_id


def layout(*nodes: Machine) -> RankLayout:
    """Eight ranks, four a node, on these two nodes."""
    made = modelled(healthy(), 8)
    return replace(made, machines=dict(zip(made.machines, nodes, strict=True)))


def links_down() -> Machine:
    return patched(healthy(), "gpus[0].nvml.nvlinks[3]", active=False)


def run(of: RankLayout, *, failed: tuple[str, ...] = (), case: str = DEVICE) -> RunReport:
    """All that is planned, of which what touches these GPUs failed for a known cause."""
    plan = make_fabric_plan(of, [known for known in FABRIC_CASES if known.name == case], SETTINGS)

    def ended(planned: PlannedTask) -> Measurement:
        if planned.waivers:
            return finish(planned, MeasurementStatus.WAIVED, reason=planned.waiver, waivers=planned.waivers)
        broke = {*planned.flows[0].path.split(" -> ")} & {*failed}
        return finish(
            planned,
            MeasurementStatus.FAILED if broke else MeasurementStatus.OK,
            known_cause=True,
            reason="it was refused",
        )

    made = report(plan, map(ended, plan.tasks))
    return replace(made, ranks=plan.ranks, machines=tuple(map(redact, of.machines.values())))


def paths(made: RunReport, check: str) -> dict[str, set[str]]:
    """By the node that a check's fault is on, the paths that it explains."""
    return {
        cause.node: {made.measurements[number].path for number in cause.measurements}
        for cause in made.causes
        if cause.finding.check == check
    }


def test_links_that_are_down_on_one_node_explain_no_path_of_the_other_nodes_gpu_of_that_bus_id() -> None:
    made = with_causes(run(layout(healthy(), links_down()), failed=("node1:GPU0", "node2:GPU0")))
    failed = {one.path for one in made.measurements if one.status is MeasurementStatus.FAILED}
    touching = {path for path in failed if "node2:GPU0" in path}
    assert paths(made, "nvlink.links") == {"node2": touching}
    explained = {made.measurements[number].path for cause in made.causes for number in cause.measurements}
    assert failed - explained == failed - touching != set()


@pytest.mark.parametrize("case", [DEVICE, HOST])
def test_what_a_gpu_without_links_keeps_from_being_measured_is_that_nodes_doing(case: str) -> None:
    without = patched(healthy(), "gpus[0].nvml.nvlinks[*]", active=False)
    made = run(layout(healthy(), without), case=case)
    waived = {one.path for one in made.measurements if one.status is MeasurementStatus.WAIVED}
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
    ((node, found),) = paths(made, "imex.channel").items()
    assert node == "node2"
    assert all("node2:" in path for path in found)


def test_host_memory_that_seccomp_keeps_away_is_that_nodes_own() -> None:
    answers = {"get_mempolicy": "EPERM", "mbind": "EPERM", "set_mempolicy": "ok"}
    memory = patched(healthy(), "confinement", seccomp="filter", system_calls=answers)
    made = with_causes(run(layout(healthy(), memory), failed=("node2:GPU0:NUMA0",), case=HOST))
    found = paths(made, "numa.mempolicy-syscalls")
    assert set(found) == {"node2"}
    assert all("node2:GPU0:NUMA0" in path for path in found["node2"])


def test_two_gpus_of_one_bus_id_keep_their_names_and_heat_makes_nothing_fail() -> None:
    made = run(layout(healthy(), healthy()))
    hot = [GpuEvidence(bus_id=GPU0, label=f"{n}:GPU0", throttle_reasons=("hw-thermal-slowdown",)) for n in NODES]
    first = replace(made.measurements[0], evidence=TaskEvidence(gpus=tuple(hot)), status=MeasurementStatus.FAILED)
    made = replace(made, measurements=(first, *made.measurements[1:]))
    ((finding, _),) = during(made)
    assert (finding.place.label, finding.place.ids) == ("node1:GPU0, node2:GPU0", (GPU0,))
    assert not with_causes(made).causes
