"""``bench --suite egm_shared``: verified, as fast as within one process, nothing left."""

from __future__ import annotations

import pytest

from egmctl.bench.engines.life_cycle import STAGES
from egmctl.bench.suites import SUITES
from egmctl.model.codec import from_json
from egmctl.model.measurement import RunReport
from tests.bench.ipc import BY_NAME, GOOD, complaints, of_case
from tests.gpu.node import Node

CASES = [case for case in BY_NAME.values() if SUITES["egm_shared"].has(case)]
LIFE_CYCLE = "egm_shared_life_cycle"
ALONE = tuple(f"egm_shared_{way}_{by}" for way in ("read", "write") for by in ("ce", "sm"))
LIVES_LEFT_MIB = 8
"""What a GPU may have in use more than before: the driver's own."""


def measured(node: Node, *arguments: str) -> RunReport:
    """Return the report of a run that measures and leaves nothing."""
    with node.nothing_left(more_mib=LIVES_LEFT_MIB):
        code, result = node.bench_with_code("--no-verdict", *arguments, timeout_s=300)
    report = from_json(RunReport, result)
    assert complaints(report) == []
    assert code == (3 if any(m.status == "waived" for m in report.measurements) else 0)
    return report


def suite(node: Node, gpus: int) -> RunReport:
    """Run the suite; a fake node leaves out the cases of one process that are beside them."""
    if not node.is_fake:
        return measured(node, "--suite", "egm_shared", "--gpus", f"0-{gpus - 1}" if gpus > 1 else "0")
    with node.nothing_left():
        report = node.measure(*CASES, gpus=gpus)
    assert complaints(report) == []
    return report


def check(report: RunReport, name: str) -> None:
    """Expect that every byte of a case was verified, at the speed of one process (host paths drift by up to 4 %)."""
    for m in of_case(report, name):
        assert m.status in GOOD, m
        assert m.verification == "gpu-every-sample"
        if name in ALONE and m.in_process is not None:
            assert m.bandwidth_gb_s is not None
            assert m.bandwidth_gb_s.median == pytest.approx(m.in_process, rel=0.15), (name, m.in_process)


@pytest.mark.long
def test_one_gpu_imports_what_a_process_beside_it_exports(node: Node) -> None:
    report = suite(node, 1)
    assert [rank.label for rank in report.ranks] == ["GPU0", "GPU0"]
    for name in ALONE:
        assert of_case(report, name)
        check(report, name)
    assert of_case(report, LIFE_CYCLE)
    for life in of_case(report, LIFE_CYCLE):
        assert [stage.name for stage in life.stages] == list(STAGES)


@pytest.fixture(scope="module")
def two(node: Node, two_gpus: None) -> RunReport:  # noqa: ARG001
    """Run the suite once on two GPUs."""
    return suite(node, 2)


@pytest.mark.long
@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_two_gpus_share_one_allocation_alone_and_at_once(two: RunReport, name: str) -> None:
    at_once = "all" in name
    assert len(of_case(two, name)) == len(two.numa_nodes) * (1 if at_once else 2)
    check(two, name)
    if at_once:
        assert all(len(m.flows_gb_s) == 2 for m in of_case(two, name))


@pytest.mark.gpu
def test_a_sweep_of_egm_up_to_eight_gib_measures_every_size_that_fits(node: Node) -> None:
    cases = ("--case", "host_numa_to_device_memcpy_??", "--case", "host_numa_read_sm")
    report = measured(node, "--sweep", "size", "--size", "8G", "--samples", "2", "--gpus", "0", *cases)
    for m in report.measurements:
        assert m.status in GOOD or m.waivers[0].kind == "no-room", m
