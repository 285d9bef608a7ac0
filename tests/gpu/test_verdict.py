"""The verdict on real GPUs: a healthy node passes, a wrong expectation fails where it is wrong, traffic is named."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from egmctl.facts.collect import collect
from egmctl.model.machine import Machine
from egmctl.model.profile import Profile
from egmctl.verdict.learning import profile_toml
from egmctl.verdict.profiles import load_profile, match_profile
from tests.conftest import RunEgmctl
from tests.gpu.traffic import pushing

pytestmark = pytest.mark.gpu

WRITE, READ = "device_to_device_memcpy_write_ce", "device_to_device_memcpy_read_ce"


@pytest.fixture(scope="module")
def machine() -> Machine:
    """Return the node; the verdict's tests need two GPUs."""
    found = collect(("host", "gpus", "pairs", "driver", "process"))
    if len(found.gpus or ()) < 2:
        pytest.skip("the verdict's tests need two GPUs")
    return found


@pytest.fixture(scope="module")
def profile(machine: Machine) -> Profile:
    """Return the profile that this project has measured itself."""
    found = load_profile("hgx-h200")
    if not match_profile(machine, found).fits:
        pytest.skip("only of HGX H200 does this project know what is normal")
    return found


def bench(egmctl: RunEgmctl, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run the bench and return its exit code and its result."""
    ended = egmctl("bench", *arguments, "--json", timeout_s=110)
    return ended.code, json.loads(ended.out)["result"]


def test_a_healthy_node_passes_and_each_class_says_by_what(egmctl: RunEgmctl, profile: Profile) -> None:
    code, result = bench(egmctl, "--quick")
    verdict = result["verdict"]
    assert (code, verdict["profile"]) == (0, profile.name), verdict["classes"]
    assert verdict["classes"]
    for one in verdict["classes"]:
        assert one["grade"] == "pass", one
        assert one["expected"] > 0, one
        assert one["source"].startswith("measured"), one
    assert not verdict["culprits"]


def test_a_wrong_expectation_fails_where_it_is_wrong(egmctl: RunEgmctl, profile: Profile, tmp_path: Path) -> None:
    higher = tuple(
        replace(r, typical=r.typical * 1.2, warn=r.warn * 1.2, fail=r.fail * 1.2)
        if r.case == WRITE and r.typical and r.warn and r.fail
        else r
        for r in profile.references
    )
    path = tmp_path / "doctored.toml"
    path.write_text(profile_toml(replace(profile, name="doctored", references=higher)))
    code, result = bench(egmctl, "--case", WRITE, "--case", READ, "--samples", "3", "--profile", str(path))
    failed = {
        result["measurements"][judged["measurement"]]["case"]
        for judged in result["verdict"]["judged"]
        for judgement in judged["judgements"]
        if judgement["grade"] == "fail"
    }
    assert (code, failed) == (1, {WRITE})
    assert {one["case"]: one["grade"] for one in result["verdict"]["classes"]} == {WRITE: "fail", READ: "pass"}


def test_traffic_beside_it_is_named_by_gpu_and_direction(egmctl: RunEgmctl, machine: Machine) -> None:
    if len(machine.gpus or ()) < 4:
        pytest.skip("with fewer than four GPUs nobody can say which is the odd one")
    with pushing():
        code, result = bench(egmctl, "--case", WRITE, "--samples", "3", "--allow-busy")
    named = {(culprit["label"], culprit["direction"]) for culprit in result["verdict"]["culprits"]}
    assert {name for name in named if name[1] is not None} == {("GPU0", "egress"), ("GPU1", "ingress")}, named
    assert code == 1
