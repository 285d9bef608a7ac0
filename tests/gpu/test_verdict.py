"""The verdict on real GPUs: a healthy node passes, a wrong expectation fails where it is wrong, traffic is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from egmctl.model.profile import Profile
from egmctl.verdict.learning import profile_toml
from egmctl.verdict.profiles import load_profile, match_profile
from tests.bench.four import cases
from tests.gpu.node import Node
from tests.gpu.traffic import pushing

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("two_gpus")]

WRITE, READ = "device_to_device_memcpy_write_ce", "device_to_device_memcpy_read_ce"


@pytest.fixture(scope="module")
def profile(node: Node) -> Profile:
    """Return the profile that this project has measured itself."""
    profile = load_profile("hgx-h200")
    if not match_profile(node.machine, profile).fits:
        pytest.skip("only of HGX H200 does this project know what is normal")
    return profile


def test_a_healthy_node_passes_and_each_class_says_by_what(node: Node, profile: Profile) -> None:
    code, result = node.bench_with_code("--quick", timeout_s=110)
    verdict = result["verdict"]
    assert (code, verdict["profile"]) == (0, profile.name), verdict["classes"]
    assert verdict["classes"]
    for path_class in verdict["classes"]:
        assert path_class["grade"] == "pass", path_class
        assert path_class["expected"] > 0, path_class
        assert path_class["source"].startswith("measured"), path_class
    assert not verdict["culprits"]


def test_a_wrong_expectation_fails_where_it_is_wrong(node: Node, profile: Profile, tmp_path: Path) -> None:
    higher = tuple(
        replace(r, typical=r.typical * 1.2, warn=r.warn * 1.2, fail=r.fail * 1.2)
        if r.case == WRITE and r.typical and r.warn and r.fail
        else r
        for r in profile.references
    )
    path = tmp_path / "doctored.toml"
    path.write_text(profile_toml(replace(profile, name="doctored", references=higher)))
    options = ("--samples", "3", "--profile", str(path))
    code, result = node.bench_with_code(*cases(WRITE, READ), *options, timeout_s=110)
    failed = {
        result["measurements"][judged["measurement"]]["case"]
        for judged in result["verdict"]["judged"]
        for judgement in judged["judgements"]
        if judgement["grade"] == "fail"
    }
    assert (code, failed) == (1, {WRITE})
    assert {judged["case"]: judged["grade"] for judged in result["verdict"]["classes"]} == {WRITE: "fail", READ: "pass"}


def test_traffic_beside_it_is_named_by_gpu_and_direction(node: Node) -> None:
    if len(node.gpus) < 4:
        pytest.skip("with fewer than four GPUs nobody can say which is the odd one")
    with pushing():
        code, result = node.bench_with_code("--case", WRITE, "--samples", "3", "--allow-busy", timeout_s=110)
    named = {(culprit["label"], culprit["direction"]) for culprit in result["verdict"]["culprits"]}
    assert {name for name in named if name[1] is not None} == {("GPU0", "egress"), ("GPU1", "ingress")}, named
    assert code == 1
