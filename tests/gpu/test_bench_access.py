"""The bench where device cgroups deny a GPU or nvidia-uvm, where a GPU is hidden, and where GPUs are busy."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.doctor.cgroups import Cgroup, denying_v1, denying_v2
from tests.gpu.guarded import GuardedNode
from tests.gpu.traffic import pushing

pytestmark = pytest.mark.needs_root

QUICK = ("bench", "--quick")
Denying = Callable[..., AbstractContextManager[Cgroup]]


class Run(NamedTuple):
    """How a run of the bench ended."""

    code: int
    text: str
    json: str

    @property
    def document(self) -> dict[str, Any]:
        """The document."""
        document: dict[str, Any] = json.loads(self.json)
        return document

    @property
    def result(self) -> dict[str, Any]:
        """The result of the document."""
        result: dict[str, Any] = self.document["result"]
        return result

    @property
    def answer(self) -> str:
        """The answer in one line."""
        # Where the driver lists no GPU, none is called a fake one.
        lines = [line for line in self.text.splitlines() if not line.startswith("FAKE ")]
        end = next((place for place, line in enumerate(lines) if line.startswith("Next: ")), 1)
        return " ".join(line.strip() for line in lines[:end])

    def checks(self) -> list[str]:
        return [cause["finding"]["check"] for cause in self.result["causes"]]

    def statuses(self) -> set[str]:
        return {measurement["status"] for measurement in self.result["measurements"]}


def bench(node: GuardedNode, folder: Path, *arguments: str, cgroups: Sequence[Cgroup] = (), **variables: str) -> Run:
    file = folder / "run.json"
    done = node.run(*QUICK, *arguments, "-o", "-", "-o", file, "--force", cgroups=cgroups, **variables)
    assert done.out, done.err
    return Run(done.code, done.out, file.read_text())


def test_a_healthy_node_has_no_cause(guarded: GuardedNode, tmp_path: Path) -> None:
    run = bench(guarded, tmp_path)
    assert (run.code, run.checks(), run.statuses()) == (0, [], {"ok"})


@pytest.mark.parametrize("denying", [denying_v1, denying_v2, partial(denying_v2, below="job/step")])
def test_one_gpu_denied(guarded: GuardedNode, tmp_path: Path, denying: Denying) -> None:
    with denying(guarded.minors[1]) as cgroup:
        run = bench(guarded, tmp_path, cgroups=[cgroup])
        asked = bench(guarded, tmp_path, "--gpus", "all", cgroups=[cgroup])
    assert run.answer.startswith("INCOMPLETE: GPU1: the device cgroup denies ")
    assert (run.code, asked.code) == (3, 1)
    assert run.checks() == asked.checks() == ["dev.cgroup-restricted"]
    assert run.statuses() == {"ok", "waived"}
    routes = [flow["route"] for measurement in run.result["measurements"] for flow in measurement["flows"]]
    assert not any(route["degraded"] for route in routes), "no EGM here, so nothing of it is blocked"
    waived = [n for n, measurement in enumerate(run.result["measurements"]) if measurement["status"] == "waived"]
    (cause,) = run.result["causes"]
    assert cause["measurements"] == waived
    assert cgroup.path.lstrip("/") not in run.json, "a document names no cgroup"
    is_below = "an ancestor of this process' cgroup" in cause["finding"]["cause"]
    assert is_below is isinstance(denying, partial)
    if guarded.is_fake:
        (gap,) = run.document["answer"]["gaps"]
        assert (gap["kind"], gap["measurements"], gap["causes"]) == ("waived", waived, [0])
        assert (run.document["answer"]["causes"][0]["status"], run.code) == ("note", run.document["exit_code"])
        assert cgroup.path in run.text, "the policy, by the name that it has here"
        assert asked.answer.startswith(
            "FAIL: GPU1: the device cgroup denies /dev/nvidia1, but GPU1 is required (--gpus"
        )
    else:
        assert "PASS for the " in run.answer
        assert run.result["verdict"]["profile"] is not None, "the profile that fits what is known"


def test_a_hidden_gpu_is_a_choice_unless_it_was_named(guarded: GuardedNode, tmp_path: Path) -> None:
    hidden = bench(guarded, tmp_path, CUDA_VISIBLE_DEVICES="0")
    asked = bench(guarded, tmp_path, "--gpus", "all", CUDA_VISIBLE_DEVICES="0")
    assert (hidden.code, asked.code) == (0, 1)
    assert hidden.checks() == asked.checks() == ["bench.gpu-hidden"]
    assert guarded.is_fake or hidden.answer.startswith("PASS"), "who hides a GPU has chosen so"
    assert "hidden by CUDA_VISIBLE_DEVICES, but --gpus names GPU1" in asked.answer
    waived = [measurement for measurement in asked.result["measurements"] if measurement["status"] == "waived"]
    assert {waiver["kind"] for measurement in waived for waiver in measurement["waivers"]} == {"gpu-hidden"}


def test_all_denied_by_both_versions_at_once(guarded: GuardedNode, tmp_path: Path) -> None:
    first, *others = guarded.minors
    with denying_v1(first) as one, denying_v2(*others) as two:
        run = bench(guarded, tmp_path, cgroups=[one, two])
        if guarded.is_fake:
            bringup = guarded.run("bringup", "--gpus", "all", "--format", "json", "-q", cgroups=[one, two])
    assert (run.code, run.statuses()) == (1, {"waived"})
    assert run.answer.startswith("FAIL: nothing was measured: ")
    assert "dev.cgroup-restricted" in run.checks()
    assert "Path classes" not in run.text
    if guarded.is_fake:
        assert run.answer.endswith("/dev/nvidia3: no GPU can be used")
        answer = json.loads(bringup.out)["answer"]
        (cause,) = answer["causes"]
        assert (bringup.code, answer["state"], cause["finding"]["check"]) == (1, "bad", "dev.cgroup-restricted")


@pytest.mark.parametrize("verbose", [(), ("-v",)])
def test_uvm_denied(guarded: GuardedNode, tmp_path: Path, verbose: tuple[str, ...]) -> None:
    with denying_v2(0, major=guarded.uvm_major) as cgroup:
        run = bench(guarded, tmp_path, *verbose, cgroups=[cgroup])
    assert run.code == 1, "no allocation of GPUs lacks this node: doctor fails too"
    assert run.answer == (
        "FAIL: nothing was measured: the device cgroup denies /dev/nvidia-uvm, which CUDA cannot do without"
    )
    assert run.checks() == ["dev.control-nodes"]
    if guarded.is_fake:
        assert cgroup.path in run.text
        assert ("cuInit" in run.text) is bool(verbose), "what follows from it is not the cause: -v alone has it"
    assert "Path classes" not in run.text
    assert "waived:" not in run.text.replace("measurements:", "")


@pytest.mark.gpu
def test_busy_gpus(guarded: GuardedNode, tmp_path: Path) -> None:
    with pushing():
        run = bench(guarded, tmp_path, "--gpus", "0-1")
        beside = bench(guarded, tmp_path, "--gpus", "0-1", "--allow-busy")
    assert (run.code, run.checks()) == (3, ["bench.gpu-in-use"])
    assert "in use by process " in run.answer
    assert "--allow-busy" in run.text
    assert "Path classes" not in run.text
    assert beside.checks() == ["bench.other-processes"], "slow, and explained by the other process"
