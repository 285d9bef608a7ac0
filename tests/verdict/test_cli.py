"""The verdict and ``egmctl profile`` from the command line, on a fake node and machines that ship."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from egmctl.model.codec import from_json
from egmctl.model.profile import MachineSignature, Profile, Reference, Unit
from egmctl.verdict.learning import profile_toml
from egmctl.verdict.profiles import load_profile
from tests.conftest import RunEgmctl
from tests.fake.node import FakeNode
from tests.fake.plugin import MakeFakeNode
from tests.in_process import run
from tests.schemas import validate

WRITE = "device_to_device_memcpy_write_ce"
BENCH = ("bench", "--case", WRITE, "--samples", "1", "--copies", "1", "--size", "64M", "--gpus", "0,1", "--json", "-q")


@pytest.fixture(scope="module")
def node(fake_node: MakeFakeNode) -> FakeNode:
    """Return a fake HGX H200 of four GPUs."""
    return fake_node("hgx-h200x4")


@pytest.fixture(scope="module")
def measured(egmctl: RunEgmctl, node: FakeNode, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a run that only measured."""
    file = tmp_path_factory.mktemp("measured") / "run.json"
    ended = egmctl(*BENCH, "--no-verdict", env=node.environment())
    assert ended.code == 0
    file.write_text(ended.out)
    return file


def result(text: str) -> dict[str, Any]:
    """Return the result of a document."""
    read: dict[str, Any] = json.loads(text)["result"]
    return read


def profile_of(warn: float, fail: float) -> Profile:
    """Return a profile of the fake node that knows one thing."""
    reference = Reference(case=WRITE, link="NV18", unit=Unit.GB_S, typical=warn, warn=warn, fail=fail, source="runs")
    match = MachineSignature(
        gpu_names=("FAKE NVIDIA H200",), device_ids=("10de:2335",), most_gpus=8, nvlinks=18, c2c=False, source="runs"
    )
    return replace(load_profile("hgx-h200"), name="site", match=match, references=(reference,), links=())


@pytest.mark.long
@pytest.mark.parametrize(
    ("warn", "fail", "options", "answer"),
    [
        (1e-6, 1e-6, (), ("pass", 0)),
        (1e-6, 1e-6, ("--strict",), ("pass", 0)),
        (1e6, 1e-6, (), ("warn", 0)),
        (1e6, 1e-6, ("--strict",), ("warn", 1)),
        (449.0, 449.0, (), ("fail", 1)),
        (449.0, 449.0, ("--strict",), ("fail", 1)),
    ],
)
def test_a_profile_that_is_asked_for_judges_and_the_exit_code_follows(
    egmctl: RunEgmctl,
    node: FakeNode,
    tmp_path: Path,
    warn: float,
    fail: float,
    options: tuple[str, ...],
    answer: tuple[str, int],
) -> None:
    path = tmp_path / "site.toml"
    path.write_text(profile_toml(profile_of(warn, fail)))
    ended = egmctl(*BENCH, "--profile", path, *options, env=node.environment())
    (judged,) = result(ended.out)["verdict"]["classes"]
    assert (judged["by_profile"], ended.code) == answer


def test_no_verdict_only_measures(measured: Path) -> None:
    assert result(measured.read_text())["verdict"] is None
    assert "not judged (--no-verdict)" in run("show", measured).out


@pytest.mark.long
def test_what_is_learnt_of_a_nodes_runs_judges_its_next_run(
    egmctl: RunEgmctl, node: FakeNode, measured: Path, tmp_path: Path
) -> None:
    profile, again = tmp_path / "egmctl/profiles/fake.toml", tmp_path / "again.json"
    profile.parent.mkdir(parents=True)
    shutil.copy(measured, again)
    ended = run("profile", "learn", measured, again, "-o", profile)
    assert (ended.code, ended.out) == (0, "")
    assert "learnt from 2 runs on 1 machine" in ended.err
    assert load_profile(str(profile)).sources["runs"].text.startswith("by egmctl, 2 runs on 1 machine")
    verdict = result(egmctl(*BENCH, env=node.environment() | {"XDG_CONFIG_HOME": str(tmp_path)}).out)["verdict"]
    assert (verdict["profile"], verdict["classes"][0]["by_profile"] != "no-reference") == ("fake", True)


def test_a_broken_profile_is_told_before_anything_is_measured(egmctl: RunEgmctl, tmp_path: Path) -> None:
    path = tmp_path / "site.toml"
    text = profile_toml(profile_of(1.0, 1.0)).replace("\ntypical", "\ntipical")
    path.write_text(text)
    line = text.splitlines().index("tipical = 1.0") + 1
    ended = egmctl("bench", "--profile", path)
    sentence = f"egmctl: profile {path}, line {line}: references[0].tipical: there is no such key\n"
    assert (ended.code, ended.err) == (2, sentence)


@pytest.mark.parametrize("option", [("--strict",), ("--profile", "hgx-h200")])
def test_no_verdict_goes_with_nothing_that_is_about_the_verdict(option: tuple[str, ...]) -> None:
    ended = run("bench", "--no-verdict", *option)
    sentence = f"egmctl: --no-verdict and {option[0]} exclude each other; give one of them\n"
    assert (ended.code, ended.err) == (2, sentence)


def test_list_names_every_profile_with_what_it_knows() -> None:
    ended = run("profile", "list")
    assert ended.code == 0
    assert "hgx-b200       HGX B200 and DGX B200: B200 on NVSwitch\n               no references\n" in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80
    profiles = result(run("profile", "list", "--json").out)["profiles"]
    assert {entry["profile"]["name"] for entry in profiles} >= {"hgx-h200", "gb300-nvl72"}


def test_show_has_each_number_and_its_source() -> None:
    ended = run("profile", "show", "hgx-a100")
    assert ended.code == 0
    assert "device_to_device_memcpy_write_ce    274.4  243.7     -  [4][7]\n" in ended.out
    assert "  [4] published: p2pBandwidthLatencyTest" in ended.out
    shown = result(run("profile", "show", "hgx-a100", "--json").out)["profiles"][0]
    assert from_json(Profile, shown["profile"]) == load_profile("hgx-a100")


def test_match_says_why() -> None:
    """Of a machine that fits: tests/frozen."""
    ended = run("profile", "match", "--machine", "gh200x4", "--json")
    document = json.loads(ended.out)
    validate(document, "match")
    assert (ended.code, document["exit_code"], document["result"]["profile"]) == (3, 3, None)
    assert "PCI device id unknown, not 10de:2342" in document["result"]["reason"]


def test_the_live_node_is_matched_too(egmctl: RunEgmctl, node: FakeNode) -> None:
    ended = egmctl("profile", "match", env=node.environment())
    assert ended.code == 3
    assert "no profile matches 4 x FAKE NVIDIA H200 (10de:2335)" in ended.out


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("learn {tmp}/nothing.json", "cannot be read: No such file or directory"),
        ("learn {tmp}/topo.json", "is not a bench result: it is a result of egmctl topo"),
        ("learn {tmp}/topo.json -o {tmp}/site.json", "a profile is a file NAME.toml"),
        ("show dgx", "there is no profile 'dgx'; there are"),
        ("match --machine dgx", "dgx"),
    ],
)
def test_what_is_asked_wrongly_is_one_sentence(tmp_path: Path, words: str, sentence: str) -> None:
    (tmp_path / "topo.json").write_text(run("topo", "--machine", "gh200", "--json").out)
    ended = run("profile", *words.format(tmp=tmp_path).split())
    assert (ended.code, ended.err.count("\n")) == (2, 1)
    assert sentence in ended.err
