"""What a large run would cost is what the plan of a real one adds up to, and ten thousand GPUs are no trouble."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from egmctl.bench.case import Case
from egmctl.bench.estimate import plan_bytes, plan_seconds
from egmctl.bench.fabric_plan import make_fabric_plan
from egmctl.bench.registry import FABRIC_CASES
from egmctl.bench.scale import modelled, scale
from egmctl.model.measurement import Pattern, Settings
from tests.conftest import ROOT, RunEgmctl, command_environment
from tests.fake.machines import with_imex_channel
from tests.fake.node import load

SETTINGS = Settings(size_bytes=512 << 20, copies=None, samples=3, timeout_s=60)
PAIRS = next(case for case in FABRIC_CASES if case.name == "fabric_device_write_ce")


@pytest.mark.parametrize("sample", [None, 1, 3])
@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8, 13])
@pytest.mark.parametrize("machine", ["gb200-nvl72", "hgx-h200x4", "dgx-h100"])
def test_it_is_what_the_plan_of_a_real_run_adds_up_to(machine: str, ranks: int, sample: int | None) -> None:
    node = with_imex_channel(load(machine))
    plan = make_fabric_plan(modelled(node, ranks), FABRIC_CASES, SETTINGS, sample)
    found = scale(node, ranks, FABRIC_CASES, SETTINGS, sample)
    assert sum(cost.measurements for cost in found.costs) == len(plan.tasks)
    assert sum(cost.waived for cost in found.costs) == len(plan.tasks) - len(plan.runnable)
    assert sum(cost.steps for cost in found.costs) == len(plan.steps)
    assert sum(cost.bytes for cost in found.costs) == plan_bytes(plan)
    # How often host memory is made is told roughly.
    assert found.seconds == pytest.approx(plan_seconds(plan), rel=0.1)


@pytest.mark.parametrize(("ranks", "rounds"), [(72, 71), (576, 575), (577, 577), (10_000, 9_999)])
def test_pairs_of_n_gpus_take_n_less_one_rounds_both_ways_each_with_a_proof(ranks: int, rounds: int) -> None:
    (cost,) = scale(load("gb200-nvl72"), ranks, [PAIRS], SETTINGS).costs
    assert cost.steps == 4 * rounds
    assert cost.measurements == ranks * (ranks - 1)


@pytest.mark.parametrize("case", [c for c in FABRIC_CASES if c.pattern in (Pattern.RING, Pattern.BISECT)])
def test_rings_and_bisections_are_one_step(case: Case) -> None:
    (cost,) = scale(load("gb200-nvl72"), 576, [case], SETTINGS).costs
    assert (cost.steps, cost.measurements) == (1, 1)


def test_what_does_not_fit_is_said(egmctl: RunEgmctl) -> None:
    done = egmctl("bench", "--suite", "fabric", "--dry-run", "--ranks", "576", "--machine", "gb200-nvl72")
    assert done.code == 0, done.err
    assert "Scale: 576 GPUs on 144 nodes like gb200-nvl72" in done.out
    assert "Nothing was measured" in done.out
    assert "--size has to be smaller for fabric_device_all_to_one_write_ce, fabric_host_numa_all_to_one_write_ce" in (
        " ".join(done.out.split())
    )


@pytest.mark.long
def test_ten_thousand_gpus_take_less_than_ten_seconds_and_one_gibibyte() -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    words = ("bench", "--suite", "fabric", "--dry-run", "--ranks", "10000", "--machine", "gb200-nvl72")
    done = subprocess.run(
        [sys.executable, "-m", "egmctl", *words],
        env=command_environment({}),
        cwd=ROOT,
        capture_output=True,
        check=True,
        encoding="utf-8",
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert "10000 GPUs on 2500 nodes" in done.stdout
    # Its own time, not what other processes of this machine take of it.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 10
    assert after.ru_maxrss < 1 << 20


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--ranks", "8"), "--ranks goes with --suite fabric only"),
        (("--suite", "fabric", "--ranks", "8"), "--ranks is for --dry-run"),
        (("--suite", "fabric", "--dry-run", "--ranks", "1"), "--ranks 1: it must be from 2 to"),
        (("--suite", "fabric", "--dry-run", "--sample", "0"), "--sample 0: it must be 1 or more"),
        (("--suite", "fabric", "--sweep", "size"), "--sweep does not go with --suite fabric"),
        (("--suite", "fabric", "--numa", "1"), "--numa does not go with --suite fabric"),
        (("--suite", "fabric,egm"), "--suite fabric is a run of its own"),
    ],
)
def test_what_makes_no_sense_is_one_sentence(egmctl: RunEgmctl, words: tuple[str, ...], sentence: str) -> None:
    done = egmctl("bench", *words)
    assert done.code == 2
    assert sentence in done.err
