"""EGM beside pinned and plain memory, near and far: made-up numbers of models, none measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from egmctl.bench.path_class import ceiling
from egmctl.model.route import LinkKind, MemoryKind
from egmctl.model.task import Flow, Task
from egmctl.model.verdict import EgmReads
from egmctl.report.kinds import Format
from egmctl.verdict.judge import judge, with_verdict
from tests.answers import render
from tests.doctor.machines import shipped
from tests.verdict.runs import D2H, H2D, run

PINNED, PLAIN = "host_to_device_memcpy_ce", "system_to_device_memcpy_ce"
SPEEDS = {MemoryKind.HOST_NUMA: 372.0, MemoryKind.PINNED: 380.0, MemoryKind.SYSTEM: 400.0}


def speed(task: Task, flow: Flow) -> float:
    """Return a speed by the kind of memory; GPU1's paths are twice as fast, and other CPUs' memory is slow."""
    memory = next(end.memory for end in (flow.source, flow.destination) if end.numa_node is not None)
    far = len(flow.route.hops) > 1
    wrong = 0.1 if task.case == D2H else 1
    return SPEEDS[memory] * (0.3 if far else 1) * (2 if flow.initiator_label == "GPU1" else 1) * wrong


EVERYTHING = EgmReads(local_gb_s=372, of_pinned=372 / 380, of_system=372 / 400, remote_of_local=0.3)


@pytest.mark.parametrize(
    ("cases", "nodes", "expected"),
    [
        ((H2D, D2H, PINNED, PLAIN), (0, 1), EVERYTHING),
        ((H2D, PLAIN), (0, 1), replace(EVERYTHING, of_pinned=None)),
        ((H2D, PINNED), (0,), EgmReads(local_gb_s=558, of_pinned=372 / 380, remote_of_local=0.2)),
        ((D2H, PINNED, PLAIN), (0, 1), None),
    ],
)
def test_the_ratios_compare_the_same_paths_and_lack_what_was_not_measured(
    cases: tuple[str, ...], nodes: tuple[int, ...], expected: EgmReads | None
) -> None:
    made = run(*cases, value=speed, machine=shipped("gb200-nvl72"), nodes=nodes)
    # Suites measure plain memory over one path of each kind of route; here those of the fast GPU.
    kept = [m for m in made.measurements if m.case != PLAIN or m.flows[0].initiator_label == "GPU1"]
    reads = judge(replace(made, measurements=tuple(kept)), None).egm
    assert (reads is None) == (expected is None)
    for name in EgmReads.__dataclass_fields__ if reads else ():
        assert getattr(reads, name) == pytest.approx(getattr(expected, name))


def test_a_platform_without_egm_has_no_such_ratio() -> None:
    made = run(H2D, PINNED, value=speed)
    assert all(hop.link is LinkKind.PCIE for m in made.measurements for hop in m.flows[0].route.hops)
    assert judge(made, None).egm is None


def test_the_sentence_says_which_side_was_not_measured() -> None:
    made = run(H2D, PINNED, value=speed, machine=shipped("gb200-nvl72"), nodes=(0, 1))
    text = " ".join(str(render(with_verdict(made, None), Format.TEXT)).split())
    beside = "ratio to pinned 0.98, to plain memory not measured; remote to local 0.30."
    assert f"EGM by copy engines: local 372.0 GB/s; {beside}" in text


@pytest.mark.parametrize("case", ["host_numa_one_node_to_all_memcpy_ce", "egm_shared_all_read_ce"])
def test_all_gpus_at_once_are_limited_by_the_memory_of_the_node_in_one_process_or_several(case: str) -> None:
    made = run(case, value=lambda _task, _flow: 100.0, machine=shipped("gb200-nvl72")).measurements[-1]
    assert made.case == case
    limit = ceiling(made)
    assert limit is not None
    assert (limit.gb_s, limit.limit) == (384, made.flows[0].route.memory_rate)
