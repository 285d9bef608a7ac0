"""The verdict and ``egmctl profile`` from the command line, on fake nodes and machines that ship."""

from __future__ import annotations

import csv
import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from egmctl.model.codec import from_json
from egmctl.model.measurement import RunReport
from egmctl.model.profile import Profile, Reference, Signature, Unit
from egmctl.verdict.profiles import dump, load
from tests.conftest import ROOT, RunEgmctl
from tests.fake.node import FakeNode
from tests.fake.plugin import MakeFakeNode

WRITE = "device_to_device_memcpy_write_ce"
ALL_GPUS = ("bench", "--case", WRITE, "--samples", "3", "--copies", "1", "--size", "64M", "--quiet")
BENCH = (*ALL_GPUS, "--gpus", "0,1")


@pytest.fixture
def node(fake_node: MakeFakeNode) -> FakeNode:
    """Return a fake HGX H200 of four GPUs."""
    return fake_node("hgx-h200x4")


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str | None]:
    """Return the environment of a user without profiles."""
    return {"XDG_CONFIG_HOME": str(tmp_path / "config")}


def profile_of(typical: float, warn: float, fail: float, name: str = "site") -> Profile:
    """Return a profile of the fake node that knows one thing."""
    shipped = load("hgx-h200")
    reference = Reference(case=WRITE, link="NV18", unit=Unit.GB_S, typical=typical, warn=warn, fail=fail, source="runs")
    match = Signature(
        gpu_names=("FAKE NVIDIA H200",), device_ids=("10de:2335",), most_gpus=8, nvlinks=18, c2c=False, source="runs"
    )
    return replace(shipped, name=name, match=match, references=(reference,), links=())


def reached(egmctl: RunEgmctl, node: FakeNode, home: dict[str, str | None]) -> float:
    """Return what the fake node gives."""
    ended = egmctl(*BENCH, "--no-verdict", "--json", env=node.environment() | home)
    result = from_json(RunReport, json.loads(ended.out)["result"])
    assert result.verdict is None
    assert result.measurements[0].bandwidth_gb_s is not None
    return result.measurements[0].bandwidth_gb_s.median


def check(schema: str, document: object) -> None:
    """Validate a document."""
    jsonschema.validate(document, json.loads((ROOT / f"docs/schemas/{schema}.schema.json").read_text()))


@pytest.mark.long
def test_fake_gpus_are_of_no_shipped_profile(egmctl: RunEgmctl, node: FakeNode, home: dict[str, str | None]) -> None:
    ended = egmctl(*BENCH, env=node.environment() | home)
    told = " ".join(ended.out.split())
    assert "NO REFERENCE: 2 measurements and nothing to judge them by: no profile matches 4 x FAKE NVIDIA H200" in told
    assert "PASS" not in ended.out


@pytest.mark.long
def test_a_profile_that_is_asked_for_judges_and_the_exit_code_follows(
    egmctl: RunEgmctl, node: FakeNode, home: dict[str, str | None], tmp_path: Path
) -> None:
    value = reached(egmctl, node, home)
    codes = {}
    for word, factor in (("well", 0.9), ("warned", 1.1), ("failed", 2.0)):
        path = tmp_path / f"{word}.toml"
        path.write_text(dump(profile_of(factor * value, factor * value, 0.8 * factor * value, word)))
        codes[word] = [
            egmctl(*BENCH, "--profile", path, *extra, env=node.environment() | home).code
            for extra in ((), ("--strict",))
        ]
    assert codes == {"well": [0, 0], "warned": [0, 1], "failed": [1, 1]}


@pytest.mark.long
def test_a_sites_profile_is_found_and_the_text_and_the_table_say_what_was_judged(
    egmctl: RunEgmctl, node: FakeNode, home: dict[str, str | None], tmp_path: Path
) -> None:
    folder = tmp_path / "config/egmctl/profiles"
    folder.mkdir(parents=True)
    (folder / "site.toml").write_text(dump(profile_of(1e9, 1e9, 1e9)))
    ended = egmctl(*BENCH, env=node.environment() | home)
    assert ended.code == 1
    assert ended.out.startswith("FAKE GPUs, nothing of this is hardware\nFAIL: 1 of 1 path classes")
    assert f"% of the expected 1000000000 {WRITE}" in " ".join(ended.out.split())
    assert max(map(len, ended.out.splitlines())) <= 80
    table = egmctl(*ALL_GPUS, "--csv", env=node.environment() | home)
    rows = list(csv.DictReader(io.StringIO(table.out)))
    assert {(row["verdict_profile"], row["expected"]) for row in rows} == {("fail", "1000000000.0")}
    assert {row["verdict_peers"] for row in rows} <= {"pass", "warn", "fail"}


def test_a_broken_profile_is_told_before_anything_is_measured(
    egmctl: RunEgmctl, home: dict[str, str | None], tmp_path: Path
) -> None:
    path = tmp_path / "site.toml"
    text = dump(profile_of(1.0, 1.0, 1.0)).replace("\ntypical", "\ntipical")
    path.write_text(text)
    line = text.splitlines().index("tipical = 1.0") + 1
    ended = egmctl("bench", "--profile", path, env=home)
    sentence = f"egmctl: profile {path}, line {line}: references[0].tipical: there is no such key\n"
    assert (ended.code, ended.err) == (2, sentence)


@pytest.mark.parametrize("option", [("--strict",), ("--profile", "hgx-h200")])
def test_no_verdict_goes_with_nothing_that_is_about_the_verdict(egmctl: RunEgmctl, option: tuple[str, ...]) -> None:
    ended = egmctl("bench", "--no-verdict", *option)
    assert (ended.code, ended.err) == (
        2,
        f"egmctl: --no-verdict and {option[0]} exclude each other; give one of them\n",
    )


def test_list_names_every_profile_with_what_it_knows(egmctl: RunEgmctl, home: dict[str, str | None]) -> None:
    ended = egmctl("profile", "list", env=home)
    assert ended.code == 0
    assert "hgx-b200     HGX B200 and DGX B200: B200 on NVSwitch\n             no references\n" in ended.out
    assert max(map(len, ended.out.splitlines())) <= 80
    document = json.loads(egmctl("profile", "list", "--json", env=home).out)
    check("profiles", document)
    assert {entry["profile"]["name"] for entry in document["result"]["profiles"]} >= {"hgx-h200", "gb300-nvl72"}


def test_show_has_each_number_and_its_source(egmctl: RunEgmctl, home: dict[str, str | None]) -> None:
    ended = egmctl("profile", "show", "hgx-a100", env=home)
    assert ended.code == 0
    assert "device_to_device_memcpy_write_ce    274.4  243.7     -  [4][7]\n" in ended.out
    assert "  [4] published: p2pBandwidthLatencyTest" in ended.out
    shown = json.loads(egmctl("profile", "show", "hgx-a100", "--json", env=home).out)["result"]["profiles"][0]
    assert from_json(Profile, shown["profile"]) == load("hgx-a100")


@pytest.mark.long
def test_match_says_why(egmctl: RunEgmctl, home: dict[str, str | None]) -> None:
    ended = egmctl("profile", "match", "--machine", "hgx-h200x4", "--quiet", env=home)
    assert (ended.code, ended.out.splitlines()[:4]) == (
        0,
        ["Profile: hgx-h200", "", "  GPU name NVIDIA H200", "  PCI device id 10de:2335"],
    )
    none = egmctl("profile", "match", "--machine", "gh200x4", env=home)
    assert none.code == 3
    assert none.out.startswith(
        "MODEL of gh200x4, built from public documentation, not captured from hardware\nProfile: none: "
    )
    document = json.loads(egmctl("profile", "match", "--machine", "gh200x4", "--json", env=home).out)
    check("match", document)
    assert (document["exit_code"], document["result"]["profile"]) == (3, None)


@pytest.mark.long
def test_the_machines_that_can_be_matched_are_listed(egmctl: RunEgmctl, home: dict[str, str | None]) -> None:
    ended = egmctl("profile", "match", "--machine", "list", env=home)
    assert (ended.code, ended.out) == (0, egmctl("topo", "--machine", "list").out)


def test_the_live_node_is_matched_too(egmctl: RunEgmctl, node: FakeNode, home: dict[str, str | None]) -> None:
    ended = egmctl("profile", "match", env=node.environment() | home)
    assert ended.code == 3
    assert "no profile matches 4 x FAKE NVIDIA H200 (10de:2335)" in ended.out


@pytest.mark.long
def test_what_is_learnt_of_a_nodes_runs_judges_its_next_run(
    egmctl: RunEgmctl, node: FakeNode, home: dict[str, str | None], tmp_path: Path
) -> None:
    environment = node.environment() | home
    for run in ("one", "two"):
        assert egmctl(*BENCH, "-o", tmp_path / f"{run}.json", env=environment).code == 0
    profile = tmp_path / "fake.toml"
    ended = egmctl("profile", "learn", tmp_path / "one.json", tmp_path / "two.json", "-o", profile, env=home)
    assert (ended.code, ended.out) == (0, "")
    assert "learnt from 2 runs on 1 machine" in ended.err
    assert load(str(profile)).sources["runs"].text.startswith("by egmctl, 2 runs on 1 machine")
    folder = tmp_path / "config/egmctl/profiles"
    folder.mkdir(parents=True)
    shutil.move(profile, folder / "fake.toml")
    verdict = json.loads(egmctl(*BENCH, "--json", env=environment).out)["result"]["verdict"]
    assert verdict["profile"] == "fake"
    assert [one["by_profile"] for one in verdict["classes"]] != ["no-reference"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("learn", "{tmp}/nothing.json"), "cannot be read: No such file or directory"),
        (("learn", "{tmp}/topo.json"), "is not a bench result: it is a result of egmctl topo"),
        (("learn", "{tmp}/topo.json", "-o", "{tmp}/site.json"), "a profile is a file NAME.toml"),
        (("show", "dgx"), "there is no profile 'dgx'; there are"),
        (("match", "--machine", "dgx"), "dgx"),
    ],
)
def test_what_is_asked_wrongly_is_one_sentence(
    egmctl: RunEgmctl, home: dict[str, str | None], tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    assert egmctl("topo", "--machine", "gh200", "-o", tmp_path / "topo.json").code == 0
    ended = egmctl("profile", *(argument.format(tmp=tmp_path) for argument in arguments), env=home)
    assert ended.code == 2
    assert sentence in ended.err
    assert ended.err.count("\n") == 1
