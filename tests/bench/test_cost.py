"""What a run between many ranks would cost is what its plan adds up to."""

from __future__ import annotations

import pytest

from egmctl.bench.case import Case
from egmctl.bench.plan.cost import job_cost, plan_bytes, plan_seconds
from egmctl.bench.plan.fabric import make_fabric_plan
from egmctl.bench.plan.placement import modelled
from egmctl.bench.suites import FABRIC_CASES
from egmctl.model.listing import CaseCost
from egmctl.model.measurement import Settings
from egmctl.model.task import Pattern
from tests.conftest import RunEgmctl
from tests.fake.machines import with_imex_channel
from tests.fake.node import load

SETTINGS = Settings(size_bytes=512 << 20, copies=None, samples=3, timeout_s=60)
PAIRS = next(case for case in FABRIC_CASES if case.name == "fabric_device_write_ce")


def cost(ranks: int, case: Case, sample: int | None = None) -> CaseCost:
    layout = modelled(load("gb200-nvl72"), ranks)
    (found,) = job_cost(make_fabric_plan(layout, [case], SETTINGS, sample), layout).costs
    return found


@pytest.mark.parametrize("sample", [None, 3])
@pytest.mark.parametrize("machine", ["gb200-nvl72", "hgx-h200x4", "dgx-h100"])
def test_the_cases_add_up_to_the_plan(machine: str, sample: int | None) -> None:
    layout = modelled(with_imex_channel(load(machine)), 5)
    plan = make_fabric_plan(layout, FABRIC_CASES, SETTINGS, sample)
    found = job_cost(plan, layout)
    assert sum(one.measurements for one in found.costs) == len(plan.tasks)
    assert sum(one.waived for one in found.costs) == len(plan.tasks) - len(plan.runnable)
    assert sum(one.steps for one in found.costs) == len(plan.steps)
    assert sum(one.bytes for one in found.costs) == plan_bytes(plan)
    assert found.seconds == plan_seconds(plan) > sum(one.seconds for one in found.costs)
    assert max(one.held_bytes for one in found.costs) <= max(peak.bytes for peak in plan.peaks)


def test_pairs_of_n_gpus_take_n_less_one_rounds_both_ways_each_with_a_proof() -> None:
    found = cost(72, PAIRS)
    assert (found.steps, found.measurements) == (4 * 71, 72 * 71)


@pytest.mark.parametrize("case", [c for c in FABRIC_CASES if c.pattern in (Pattern.RING, Pattern.BISECT)])
def test_rings_and_bisections_are_one_step(case: Case) -> None:
    found = cost(144, case)
    assert (found.steps, found.measurements) == (1, 1)


def test_what_does_not_fit_is_said(egmctl: RunEgmctl) -> None:
    words = ("--ranks", "576", "--machine", "gb200-nvl72", "--case", "*all_to_one*", "--sample", "1")
    done = egmctl("bench", "--suite", "fabric", "--dry-run", *words)
    assert done.code == 0, done.err
    assert "Cost: 576 GPUs on 144 nodes like gb200-nvl72" in done.out
    assert "Nothing was measured" in done.out
    assert "use a smaller --size for fabric_device_all_to_one_write_ce, fabric_host_numa_all_to_one_write_ce" in (
        " ".join(done.out.split())
    )


@pytest.mark.parametrize("ranks", ["146", "100000"])
def test_a_run_that_would_be_refused_is_refused_with_what_is_left_to_do(egmctl: RunEgmctl, ranks: str) -> None:
    done = egmctl("bench", "--suite", "fabric", "--dry-run", "--ranks", ranks, "--machine", "gb200-nvl72")
    assert done.code == 3
    assert "more than one run can report; --sample 8 or --case measures some" in done.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--ranks", "8"), "--ranks works with --suite fabric only"),
        (("--suite", "fabric", "--ranks", "8"), "--ranks is for --dry-run"),
        (("--suite", "fabric", "--dry-run", "--ranks", "1"), "'--ranks': 1 is not in the range 2<=x<=100000"),
        (("--suite", "fabric", "--dry-run", "--sample", "0"), "'--sample': 0 is not in the range x>=1"),
        (("--suite", "fabric", "--sweep", "size"), "--sweep cannot be combined with --suite fabric"),
        (("--suite", "fabric", "--numa", "1"), "--numa cannot be combined with --suite fabric"),
        (("--suite", "fabric,egm"), "--suite fabric is a run of its own"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(egmctl: RunEgmctl, words: tuple[str, ...], sentence: str) -> None:
    done = egmctl("bench", *words)
    assert done.code == 2
    assert sentence in done.err
