"""On real hardware: a healthy node goes; a GPU that a device cgroup denies, and GPUs in use, are named as the cause."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from egmctl.verdict.profiles import load_profile, match_profile
from tests.doctor.cgroups import denying_v2
from tests.gpu.commands import minor, started
from tests.gpu.node import Node
from tests.gpu.traffic import pushing

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("two_gpus")]

CGROUP = "dev.cgroup-restricted"


class Run(NamedTuple):
    """How a run of the command ended."""

    code: int
    text: str
    document: dict[str, Any]
    page: str
    seconds: float

    @property
    def answer(self) -> dict[str, Any]:
        """The answer of the document."""
        answer: dict[str, Any] = self.document["answer"]
        return answer

    @property
    def result(self) -> dict[str, Any]:
        """The result of the document."""
        result: dict[str, Any] = self.document["result"]
        return result

    def roots(self) -> list[str]:
        """Return the check of each cause, which is one of ``bench.`` if only the bench has found it."""
        return [cause["finding"]["check"] for cause in self.answer["causes"]]


def bringup(folder: Path, *arguments: str, before: Callable[[], None] | None = None) -> Run:
    json_file, page = folder / "node.json", folder / "node.html"
    begun = time.perf_counter()
    done = started("bringup", "-o", "-", "-o", json_file, "-o", page, *arguments, before=before, timeout_s=120)
    seconds = time.perf_counter() - begun
    assert json_file.exists(), done.err
    return Run(done.code, done.out, json.loads(json_file.read_text()), page.read_text(), seconds)


def test_a_healthy_node_goes_in_less_than_30_seconds(node: Node, tmp_path: Path) -> None:
    if not match_profile(node.machine, load_profile("hgx-h200")).fits:
        pytest.skip("only of HGX H200 does this project know what is normal")
    run = bringup(tmp_path)
    assert run.text.startswith("GO: "), run.text
    assert (run.code, run.answer["state"], run.answer["gaps"]) == (0, "good", [])
    assert len(run.text.splitlines()) <= 25
    assert run.seconds < 30
    assert 'id="bench"' in run.page


@pytest.mark.needs_root
@pytest.mark.parametrize(
    ("arguments", "answer", "word", "code"),
    [(("--gpus", "all"), "bad", "NO-GO: ", 1), ((), "incomplete", "INCOMPLETE: ", 3)],
)
def test_a_gpu_that_a_cgroup_denies_is_the_cause(
    node: Node, tmp_path: Path, arguments: tuple[str, ...], answer: str, word: str, code: int
) -> None:
    gpu = node.gpus[1]
    with denying_v2(minor(gpu)) as cgroup:
        run = bringup(tmp_path, *arguments, before=cgroup.join)
    assert run.text.startswith(word), run.text
    assert (run.code, run.answer["state"]) == (code, answer)
    assert f"the device cgroup denies /dev/nvidia{minor(gpu)}" in " ".join(run.text.split())
    assert run.roots() == [CGROUP], "one cause, not one of doctor and one of the bench"
    measurements = run.result["run"]["measurements"]
    assert {measurements[number]["status"] for number in run.answer["causes"][0]["measurements"]} == {"waived"}
    assert len(run.text.splitlines()) <= 25
    plugin = started("show", tmp_path / "node.json", "--format", "nagios").out.splitlines()[0]
    assert plugin.startswith(f"EGMCTL {'CRITICAL' if code == 1 else 'UNKNOWN'} - {word}{CGROUP}: ")
    assert f"/dev/nvidia{minor(gpu)}" in plugin


def test_traffic_beside_it_is_the_cause(tmp_path: Path) -> None:
    with pushing():
        run = bringup(tmp_path)
    assert (run.code, run.answer["state"]) == (3, "incomplete"), run.text
    assert "in use by process " in " ".join(run.text.split()[:60]), "within the first lines"
    assert len(run.text.splitlines()) <= 25
