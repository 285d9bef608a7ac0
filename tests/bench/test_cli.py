"""What ``egmctl bench`` would do, on machines that are not here: suites, lists, dry runs, sweeps."""

from __future__ import annotations

import json
import re

import pytest
import typer

from egmctl.bench.plan import Plan
from egmctl.bench.plan.cost import plan_bytes, plan_seconds, steps_seconds
from egmctl.bench.plan.make import make_plan
from egmctl.bench.suites import CASES, SUITES, select_cases
from egmctl.cli import fabric
from egmctl.cli.app import app
from egmctl.errors import NothingToDo, UsageError
from egmctl.facts import collect
from egmctl.model.measurement import Settings
from egmctl.report.render.text import WIDTH
from egmctl.units import MIB
from tests.bench.four import NAMES
from tests.conftest import RunEgmctl
from tests.doctor.machines import shipped
from tests.fake.plugin import MakeFakeNode
from tests.launch.start import children

DGX = shipped("dgx-h100")


def plan_of(suite: str, *, serial: bool = False, gpus: int = 8) -> Plan:
    """Plan a suite on a DGX H100."""
    settings = Settings(size_bytes=512 * MIB, copies=None, samples=SUITES[suite].samples, timeout_s=60, serial=serial)
    return make_plan(DGX, (DGX.gpus or ())[:gpus], [0], select_cases([], [suite]), settings)


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


@pytest.mark.long
def test_a_dry_run_fits_the_page(egmctl: RunEgmctl) -> None:
    for options in (("--full",), ("--suite", "ipc", "--gpus", "0")):
        ended = egmctl("bench", "--machine", "dgx-h100", "--dry-run", *options)
        assert max(map(len, ended.out.splitlines())) <= WIDTH


@pytest.mark.long
@pytest.mark.parametrize("seed", ["1", "2", "3"])
@pytest.mark.parametrize("suite", ["quick", "fabric"])
def test_a_dry_run_names_places_in_their_order(egmctl: RunEgmctl, suite: str, seed: str) -> None:
    plan = ("bench", "--machine", "gb200-nvl72", "--dry-run", "--suite", suite)
    held = (
        egmctl(*plan, env={"PYTHONHASHSEED": seed}).out.partition("Peak memory\n")[2].partition("\n\n")[0].splitlines()
    )
    labels = [line.strip().partition(": ")[0] for line in held]
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


def test_serial_is_one_pair_at_a_time(egmctl: RunEgmctl) -> None:
    ended = egmctl("bench", "--machine", "dgx-h100", "--dry-run", "--serial", "--suite", "p2p", "--gpus", "0-2")
    assert "once more alone" not in ended.out
    assert not re.search(r"GPU\d -> GPU\d, GPU", ended.out)


def test_a_list_of_another_machine_has_its_reasons(egmctl: RunEgmctl) -> None:
    ended = egmctl("bench", "--machine", "gh200", "--list", "--suite", "p2p")
    assert ended.code == 0
    assert "needs two GPUs" in ended.out
    assert all(f"\n{name} " in ended.out for name in SUITES)


def test_a_list_fits_two_screens_and_is_json_too(egmctl: RunEgmctl) -> None:
    options = ("bench", "--machine", "gb200-nvl72", "--list")
    assert len(egmctl(*options).out.splitlines()) <= 100
    listed = json.loads(egmctl(*options, "--json").out)["result"]
    cases = {case["name"]: case for case in listed["cases"]}
    assert list(cases) == [case.name for case in select_cases([])]
    assert cases["host_numa_to_device_memcpy_ce"]["axes"] == ["size", "streams"]
    assert list(listed["suites"]) == list(SUITES)


def test_a_sweep_measures_every_case_at_every_size(egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
    options = ("--gpus", "0", "--numa", "0", "--samples", "1", "--json")
    node = fake_node("gb200-tray")
    ended = egmctl("bench", "--sweep", "size", "--size", "1M", "--case", NAMES[0], *options, env=node.environment())
    measurements = json.loads(ended.out)["result"]["measurements"]
    assert [m["size_bytes"] for m in measurements] == [4096, 16384, 65536, 262144, 1048576]
    assert {m["status"] for m in measurements} <= {"ok", "unstable"}
    assert {m["copies"] for m in measurements} == {128}


@pytest.mark.long
def test_by_itself_it_measures_every_family_of_a_gb200(egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
    node = fake_node("gb200-tray")
    small = ("--size", "1M", "--samples", "1", "--copies", "1", "--json")
    ended = egmctl("bench", "--numa", "1", "--gpus", "1-2", *small, env=node.environment(), timeout_s=110)
    assert ended.code == 0
    result = json.loads(ended.out)["result"]
    measured = [m for m in result["measurements"] if m["status"] in ("ok", "unstable")]
    # Messages need UCX; the curve over the number of SMs is a suite of its own, and part of --full.
    assert {m["family"] for m in measured} == {case.family for case in CASES} - {"rdma"}
    # The fake's second node has CPUs that this machine has not.
    assert {m["engine"] for m in result["measurements"] if m not in measured} <= {"cpu"}
    assert result["problems"] == []
    assert node.leaks() == []


@pytest.mark.long
@pytest.mark.parametrize("suite", SUITES)
def test_measuring_disjoint_pairs_at_once_is_never_slower(suite: str) -> None:
    assert plan_seconds(plan_of(suite)) <= plan_seconds(plan_of(suite, serial=True))


def test_an_estimate_adds_up() -> None:
    plan = plan_of("matrices")
    assert plan_seconds(plan) > sum(steps_seconds(plan)) > 0


def test_the_bytes_are_those_of_the_samples_and_of_the_proofs() -> None:
    settings = Settings(size_bytes=512 * MIB, copies=16, samples=3, timeout_s=60)
    plan = make_plan(DGX, DGX.gpus or (), [0], select_cases([NAMES[2]]), settings)
    # 56 ordered pairs, and after each of 14 rounds one pair alone for a quarter of a sample.
    assert plan_bytes(plan) == (56 * 3 * 16 + 14 * 4) * 512 * MIB


@pytest.mark.parametrize(
    ("machine", "arguments", "sentence"),
    [
        ("hgx-h200x4", ("--gpus", ""), "--gpus is empty; the GPUs here are 0-3"),
        ("hgx-h200x4", ("--list", "--gpus", ""), "--gpus is empty; the GPUs here are 0-3"),
        ("hgx-h200x4", ("--size", "900T"), "more than half of the 4.2 GiB free there; --size 225M fits"),
        ("gb200-tray", ("--size", "900T"), "more than half of the 478.5 GiB free there; --size 14400M fits"),
        ("gb200-nvl72", ("--suite", "fabric", "--size", "900T"), "more than half of the 185.0 GiB free there"),
        (
            "gb200-tray",
            ("--full", "--size", "8G", "--samples", "1000", "--copies", "128"),
            "this takes about 2389 days, more than 30; give a smaller --size or --samples, or fewer cases",
        ),
    ],
)
def test_a_plan_that_no_run_would_follow_is_refused(
    egmctl: RunEgmctl, machine: str, arguments: tuple[str, ...], sentence: str
) -> None:
    dry_run = () if "--list" in arguments else ("--dry-run",)
    ended = egmctl("bench", "--machine", machine, *dry_run, *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert sentence in ended.err
