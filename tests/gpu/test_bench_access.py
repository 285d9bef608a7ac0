"""On real hardware: the bench where device cgroups deny a GPU or nvidia-uvm, and where GPUs are busy."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from egmctl.model.gpu import Gpu
from tests.doctor.cgroups import denying_v1, denying_v2
from tests.gpu.commands import minor, started
from tests.gpu.traffic import pushing

pytestmark = [pytest.mark.gpu, pytest.mark.needs_root]

QUICK = ("bench", "--quick")


class Run(NamedTuple):
    """How a run of the bench ended."""

    code: int
    text: str
    result: dict[str, Any]

    @property
    def answer(self) -> str:
        """The answer in one line."""
        lines = self.text.splitlines()
        end = next((place for place, line in enumerate(lines) if line.startswith("Next: ")), 1)
        return " ".join(line.strip() for line in lines[:end])

    def checks(self) -> list[str]:
        return [cause["finding"]["check"] for cause in self.result["causes"]]

    def statuses(self) -> set[str]:
        return {one["status"] for one in self.result["measurements"]}


def bench(folder: Path, *arguments: str, before: Callable[[], None] | None = None, **variables: str) -> Run:
    file = folder / "run.json"
    done = started(
        *QUICK, *arguments, "-o", "-", "-o", file, "--force", before=before, variables=variables, timeout_s=300
    )
    assert done.out, done.err
    return Run(done.code, done.out, json.loads(file.read_text())["result"])


def test_a_healthy_node_has_no_cause(tmp_path: Path) -> None:
    run = bench(tmp_path)
    assert (run.code, run.checks(), run.statuses()) == (0, [], {"ok"})


@pytest.mark.parametrize("denying", [denying_v1, denying_v2])
def test_one_gpu_denied(gpus: tuple[Gpu, ...], tmp_path: Path, denying: Any) -> None:
    with denying(minor(gpus[1])) as cgroup:
        run = bench(tmp_path, before=cgroup.join)
        asked = bench(tmp_path, "--gpus", "all", before=cgroup.join)
    assert run.answer.startswith("INCOMPLETE: GPU1: the device cgroup denies ")
    assert "PASS for the " in run.answer
    assert (run.code, asked.code) == (3, 1)
    assert run.checks() == asked.checks() == ["dev.cgroup-restricted"]
    assert run.result["verdict"]["profile"] is not None, "the profile that fits what is known"
    assert run.statuses() == {"ok", "waived"}
    routes = [flow["route"] for one in run.result["measurements"] for flow in one["flows"]]
    assert not any(route["degraded"] for route in routes), "no EGM here, so nothing of it is blocked"
    explains = set(run.result["causes"][0]["measurements"])
    assert explains == {n for n, one in enumerate(run.result["measurements"]) if one["status"] == "waived"}


def test_a_hidden_gpu_is_a_choice_unless_it_was_named(gpus: tuple[Gpu, ...], tmp_path: Path) -> None:
    hidden = bench(tmp_path, CUDA_VISIBLE_DEVICES="0")
    asked = bench(tmp_path, "--gpus", "all", CUDA_VISIBLE_DEVICES="0")
    assert (hidden.code, asked.code) == (0, 1)
    assert hidden.checks() == asked.checks() == ["bench.gpu-hidden"]
    assert "hidden by CUDA_VISIBLE_DEVICES, but --gpus names GPU1" in asked.answer
    waived = [one for one in asked.result["measurements"] if one["status"] == "waived"]
    assert {waiver["kind"] for one in waived for waiver in one["waivers"]} == {"gpu-hidden"}
    assert len(gpus) > 1


def test_denied_at_an_ancestor(gpus: tuple[Gpu, ...], tmp_path: Path) -> None:
    with denying_v2(minor(gpus[1]), below="job/step") as cgroup:
        run = bench(tmp_path, before=cgroup.join)
    assert "an ancestor of this process' cgroup" in run.result["causes"][0]["finding"]["cause"]


def test_all_denied_by_both_versions_at_once(gpus: tuple[Gpu, ...], tmp_path: Path) -> None:
    with denying_v1(minor(gpus[0])) as first, denying_v2(*map(minor, gpus[1:])) as second:

        def before() -> None:
            first.join()
            second.join()

        run = bench(tmp_path, before=before)
    assert (run.code, run.statuses()) == (1, {"waived"})
    assert run.answer.startswith("FAIL: nothing was measured: ")
    assert "dev.cgroup-restricted" in run.checks()
    assert "Path classes" not in run.text


@pytest.mark.parametrize("verbose", [(), ("-v",)])
def test_uvm_denied(tmp_path: Path, verbose: tuple[str, ...]) -> None:
    majors = Path("/proc/devices").read_text().partition("Block devices:")[0].split("\n")
    (uvm,) = [int(line.split()[0]) for line in majors if line.split()[1:] == ["nvidia-uvm"]]
    with denying_v2(0, major=uvm) as cgroup:
        run = bench(tmp_path, *verbose, before=cgroup.join)
    assert run.code == 1
    assert run.answer == (
        "FAIL: nothing was measured: the device cgroup denies /dev/nvidia-uvm, which CUDA cannot do without"
    )
    assert run.checks() == ["dev.control-nodes"]
    assert "Path classes" not in run.text
    assert "waived:" not in run.text.replace("measurements:", "")


def test_busy_gpus(gpus: tuple[Gpu, ...], tmp_path: Path) -> None:
    with pushing():
        run = bench(tmp_path, "--gpus", "0-1")
        beside = bench(tmp_path, "--gpus", "0-1", "--allow-busy")
    assert len(gpus) > 1
    assert (run.code, run.checks()) == (3, ["bench.gpu-in-use"])
    assert "in use by process " in run.answer
    assert "--allow-busy" in run.text
    assert "Path classes" not in run.text
    assert beside.checks() == ["bench.other-processes"], "slow, and explained by the other process"


def test_one_gpu_hidden(gpus: tuple[Gpu, ...], tmp_path: Path) -> None:
    run = bench(tmp_path, CUDA_VISIBLE_DEVICES="0")
    assert len(gpus) > 1
    assert (run.code, run.checks()) == (0, ["bench.gpu-hidden"])
    assert run.answer.startswith("PASS"), "who hides a GPU has chosen so"
