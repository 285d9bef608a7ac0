"""What ``egmctl bench`` would do, on machines that are not here, and what it refuses before it begins."""

from __future__ import annotations

import json
import re

import pytest
import typer

from egmctl.api import fabric
from egmctl.bench.plan.cost import job_cost, plan_bytes, plan_seconds, steps_seconds
from egmctl.bench.plan.fabric import make_fabric_plan
from egmctl.bench.plan.placement import modelled
from egmctl.bench.suites import CASES, FABRIC_CASES, SUITES, SWEPT, select_cases
from egmctl.cli.app import app
from egmctl.errors import NothingToDo, UsageError
from egmctl.facts import collect
from egmctl.model.task import Axis
from egmctl.report.render.text import WIDTH
from egmctl.units import MIB
from tests.bench.four import NAMES
from tests.bench.plans import SETTINGS, plan_of
from tests.conftest import Ended, RunEgmctl
from tests.fake.machines import with_imex_channel
from tests.fake.node import load
from tests.fake.plugin import MakeFakeNode
from tests.in_process import run
from tests.launch.start import children
from tests.schemas import validate


def dry_run(machine: str, *options: str) -> Ended:
    return run("bench", "--machine", machine, "--dry-run", *options)


def planned(machine: str, *options: str) -> dict[str, object]:
    """Return the result of a dry run in JSON."""
    result: dict[str, object] = json.loads(dry_run(machine, "--json", *options).out)["result"]
    return result


def test_a_dry_run_of_the_gb200_has_every_family_and_touches_nothing(egmctl: RunEgmctl) -> None:
    ended = egmctl("bench", "--machine", "gb200-tray", "--dry-run", "--full", "--numa", "1", "--gpus", "0-3")
    assert ended.code == 0
    for family in {case.family for case in CASES}:
        assert any(f"\n{case.name}\n" in f"\n{ended.out}" for case in CASES if case.family == family)
    assert "GPU0 -> GPU3, GPU1 -> GPU2" in ended.out
    assert "once more alone" in ended.out
    assert re.search(r"NUMA1: \d", ended.out)
    assert "NUMA0" not in ended.out
    assert re.search(r"\d+ measurements in \d+ steps, [0-9.]+ TB, about \d+ s\n$", ended.out)
    assert max(map(len, ended.out.splitlines())) <= WIDTH


def test_a_dry_run_in_json_is_the_plan() -> None:
    document = json.loads(dry_run("gb200-tray", "--pair", "0:1", "--quick", "--json").out)
    validate(document, "plan")
    result = document["result"]
    assert document["machine"]["name"] == "gb200-tray"
    assert {task["case"]: len(task["flows"]) for task in result["tasks"]} == {
        "device_to_device_memcpy_write_ce": 1,
        "device_to_device_memcpy_read_ce": 1,
        "device_to_device_memcpy_write_sm": 1,
        "device_to_device_bidirectional_memcpy_write_ce": 2,
        "device_to_device_latency_sm": 1,
    }
    assert [step["tasks"] for step in result["steps"]] == [[number] for number in range(5)]
    assert result["memory"] == [{"place": f"GPU{index}", "bytes": 1024 * MIB} for index in (0, 1)]
    assert {gpu["uuid"] for gpu in result["gpus"]} == {None}


def test_a_dry_run_names_each_point() -> None:
    tasks = planned("gb200-tray", "--sweep", "streams")["tasks"]
    assert isinstance(tasks, list)
    assert {task["point"]["streams"] for task in tasks} == {1, 2, 4, 8}
    assert {task["case"] for task in tasks} == set(SWEPT[Axis.STREAMS])


@pytest.mark.parametrize(("suite", "seed"), [("quick", "1"), ("fabric", "2")])
def test_a_dry_run_names_places_in_their_order(egmctl: RunEgmctl, suite: str, seed: str) -> None:
    """Python's hashes of strings differ from process to process: nothing may follow the order of a set."""
    options = ("bench", "--machine", "gb200-nvl72", "--dry-run", "--suite", suite)
    memory = egmctl(*options, env={"PYTHONHASHSEED": seed}).out.partition("Peak memory\n")[2].partition("\n\n")[0]
    labels = [line.strip().partition(": ")[0] for line in memory.splitlines()]
    assert labels == [*(f"GPU{number}" for number in range(4)), "NUMA0", "NUMA1", "host"]


def test_a_fabric_s_ranks_read_their_nodes_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is begun early for other suites could make the device nodes whose absence a rank is to see."""
    before, meanwhile = children(), []

    def read_machine(*_: object, **__: object) -> None:
        meanwhile.append(children() - before)
        raise NothingToDo("seen enough")

    monkeypatch.setattr(fabric, "read_machine", read_machine)
    with pytest.raises(NothingToDo, match="seen enough"):
        typer.main.get_command(app)(["bench", "--suite", "fabric", "--no-journal"], standalone_mode=False)
    assert meanwhile == [set()]


@pytest.mark.parametrize("words", [("--suite", "nonsense"), ("--suite", "fabric", "--pair", "0:1")])
def test_a_suite_that_does_not_exist_or_fit_is_refused_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(collect, "reading", None)
    with pytest.raises(UsageError):
        typer.main.get_command(app)(["bench", *words], standalone_mode=False)


def test_serial_is_one_pair_at_a_time() -> None:
    steps = planned("dgx-h100", "--serial", "--suite", "p2p", "--gpus", "0-2")["steps"]
    assert isinstance(steps, list)
    assert {(len(step["tasks"]), step["proof"]) for step in steps} == {(1, False)}


def test_a_list_of_another_machine_has_its_reasons() -> None:
    ended = run("bench", "--machine", "gh200", "--list", "--suite", "p2p")
    assert ended.code == 0
    assert "needs two GPUs" in ended.out
    assert all(f"\n{name} " in ended.out for name in SUITES)


def test_a_list_fits_two_screens_and_is_json_too() -> None:
    options = ("bench", "--machine", "gb200-nvl72", "--list")
    assert len(run(*options).out.splitlines()) <= 100
    listed = json.loads(run(*options, "--json").out)["result"]
    cases = {case["name"]: case for case in listed["cases"]}
    assert list(cases) == [case.name for case in select_cases([])]
    assert cases["host_numa_to_device_memcpy_ce"]["axes"] == ["size", "streams"]
    assert list(listed["suites"]) == list(SUITES)


def test_a_sweep_measures_every_case_at_every_size(egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
    options = ("--gpus", "0", "--numa", "0", "--samples", "1", "--json")
    node = fake_node("gb200-tray")
    ended = egmctl("bench", "--sweep", "size", "--size", "64K", "--case", NAMES[0], *options, env=node.environment())
    measurements = json.loads(ended.out)["result"]["measurements"]
    assert [m["size_bytes"] for m in measurements] == [4096, 16384, 65536]
    assert {m["status"] for m in measurements} <= {"ok", "unstable"}
    assert {m["copies"] for m in measurements} == {128}


def test_by_itself_it_measures_every_family_of_a_gb200(egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
    node = fake_node("gb200-tray")
    small = ("--pair", "1:2,NUMA1:1", "--size", "64K", "--samples", "1", "--copies", "1", "--json")
    ended = egmctl("bench", *small, env=node.environment(), timeout_s=110)
    assert ended.code == 0
    result = json.loads(ended.out)["result"]
    # Messages need UCX, memory for all GPUs more processes; the curve over the number of SMs is part of --full.
    assert {m["family"] for m in result["measurements"]} == {case.family for case in CASES} - {"rdma", "egm_shared"}
    assert {m["status"] for m in result["measurements"]} <= {"ok", "unstable"}
    assert result["problems"] == []
    assert node.leaks() == []


@pytest.mark.parametrize("suite", [name for name in SUITES if name != "fabric"])
def test_measuring_disjoint_pairs_at_once_is_never_slower(suite: str) -> None:
    at_once, serial = (
        plan_of(suites=(suite,), gpus=4, nodes=(0,), samples=SUITES[suite].samples, serial=serial)
        for serial in (False, True)
    )
    assert sum(steps_seconds(at_once)) < plan_seconds(at_once) <= plan_seconds(serial)


def test_the_bytes_are_those_of_the_samples_and_of_the_proofs() -> None:
    plan = plan_of(NAMES[2], copies=16)
    # 56 ordered pairs, and after each of 14 rounds one pair alone for a quarter of a sample.
    assert plan_bytes(plan) == (56 * 3 * 16 + 14 * 4) * 512 * MIB


@pytest.mark.parametrize(
    ("machine", "arguments", "sentence"),
    [
        ("hgx-h200x4", ("--gpus", ""), "--gpus is empty; the GPUs here are 0-3"),
        ("hgx-h200x4", ("--list", "--gpus", ""), "--gpus is empty; the GPUs here are 0-3"),
        ("hgx-h200x4", ("--size", "900T"), "more than half of the 4.2 GiB free there; --size 225M fits"),
        ("gb200-nvl72", ("--suite", "fabric", "--size", "900T"), "more than half of the 185.0 GiB free there"),
        (
            "gb200-tray",
            ("--full", "--size", "8G", "--samples", "1000", "--copies", "128"),
            "this takes about 2392 days, more than 30; give a smaller --size or --samples, or fewer cases",
        ),
        ("gh200", ("--sweep", "colour"), "there are size, sms, footprint, load, streams"),
        ("gh200", ("--ranks", "8"), "--ranks works with --suite fabric only"),
        ("gh200", ("--suite", "fabric", "--ranks", "1"), "'--ranks': 1 is not in the range 2<=x<=100000"),
        ("gh200", ("--suite", "fabric", "--sample", "0"), "'--sample': 0 is not in the range x>=1"),
        ("gh200", ("--suite", "fabric", "--sweep", "size"), "--sweep cannot be combined with --suite fabric"),
        ("gh200", ("--suite", "fabric", "--numa", "1"), "--numa cannot be combined with --suite fabric"),
        ("gh200", ("--suite", "fabric,egm"), "--suite fabric is a run of its own"),
    ],
)
def test_a_plan_that_no_run_would_follow_is_refused(machine: str, arguments: tuple[str, ...], sentence: str) -> None:
    mode = () if "--list" in arguments else ("--dry-run",)
    ended = run("bench", "--machine", machine, *mode, *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert sentence in ended.err


def test_ranks_that_are_not_here_can_only_be_planned() -> None:
    ended = run("bench", "--suite", "fabric", "--ranks", "8")
    assert (ended.code, ended.out) == (2, "")
    assert "--ranks is for --dry-run" in ended.err


@pytest.mark.parametrize("sample", [None, 3])
@pytest.mark.parametrize("machine", ["gb200-nvl72", "hgx-h200x4"])
def test_the_costs_of_the_cases_of_many_ranks_add_up_to_the_plan(machine: str, sample: int | None) -> None:
    layout = modelled(with_imex_channel(load(machine)), 5)
    plan = make_fabric_plan(layout, FABRIC_CASES, SETTINGS, sample)
    cost = job_cost(plan, layout)
    assert sum(case.measurements for case in cost.costs) == len(plan.tasks)
    assert sum(case.waived for case in cost.costs) == len(plan.tasks) - len(plan.runnable)
    assert sum(case.steps for case in cost.costs) == len(plan.steps)
    assert sum(case.bytes for case in cost.costs) == plan_bytes(plan)
    assert cost.seconds == plan_seconds(plan) > sum(case.seconds for case in cost.costs)
    assert max(case.held_bytes for case in cost.costs) <= max(peak.bytes for peak in plan.peaks)


def test_the_cost_of_many_ranks_says_what_does_not_fit() -> None:
    options = ("--suite", "fabric", "--ranks", "576", "--case", "*all_to_one*", "--sample", "1")
    text = " ".join(dry_run("gb200-nvl72", *options).out.split())
    assert "Cost: 576 GPUs on 144 nodes like gb200-nvl72" in text
    assert "Nothing was measured" in text
    assert "use a smaller --size for fabric_device_all_to_one_write_ce, fabric_host_numa_all_to_one_write_ce" in text


def test_the_cost_of_many_ranks_has_json_too() -> None:
    document = json.loads(dry_run("gb200-nvl72", "--suite", "fabric", "--ranks", "8", "--json").out)
    assert (document["schema"], document["result"]["ranks"], document["result"]["nodes"]) == ("egmctl.cost/2", 8, 2)
    assert document["result"]["seconds"] > 0


@pytest.mark.parametrize("ranks", ["146", "100000"])
def test_a_run_that_would_be_refused_is_refused_with_what_is_left_to_do(ranks: str) -> None:
    ended = dry_run("gb200-nvl72", "--suite", "fabric", "--ranks", ranks)
    assert ended.code == 3
    assert "more than one run can report; --sample 8 or --case measures some" in ended.err
