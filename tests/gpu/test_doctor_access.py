"""On real hardware: the doctor on a healthy node, in a device cgroup that denies one GPU, and with one hidden."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from egmctl.facts.collect import collect
from egmctl.model.machine import Gpu
from tests.conftest import ROOT, command_environment
from tests.doctor.cgroups import denying_v2

pytestmark = [pytest.mark.gpu, pytest.mark.needs_root]

CGROUP, COUNT, CONTROL = "dev.cgroup-restricted", "dev.count-consistency", "dev.control-nodes"


class Run(NamedTuple):
    """How a run of the command ended."""

    code: int
    findings: list[dict[str, Any]]
    seconds: float

    def of(self, check: str) -> dict[str, Any]:
        """Return the one finding of a check."""
        (finding,) = [finding for finding in self.findings if finding["check"] == check]
        return finding


@pytest.fixture(scope="module")
def gpus() -> tuple[Gpu, ...]:
    found = collect(("gpus",), cuda=False).gpus or ()
    if len(found) < 2:
        pytest.skip("needs two GPUs")
    return found


def doctor(*arguments: str, before: Callable[[], None] | None = None, **variables: str) -> Run:
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "egmctl", "doctor", "--json", *arguments],
        env=command_environment(variables),
        preexec_fn=before,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    seconds = time.perf_counter() - started
    assert done.stdout, done.stderr
    return Run(done.returncode, json.loads(done.stdout)["result"]["findings"], seconds)


def minor(gpu: Gpu) -> int:
    assert gpu.proc is not None
    assert gpu.proc.minor is not None
    return gpu.proc.minor


def test_a_healthy_node(gpus: tuple[Gpu, ...]) -> None:
    run = doctor()
    wrong = [finding for finding in run.findings if finding["status"] in ("fail", "warn")]
    assert [(finding["check"], finding["summary"]) for finding in wrong] == []
    assert run.code == 0
    line = run.of(COUNT)["evidence"][0]["value"]
    assert line == " > ".join(
        [f"{len(gpus)} {step}" for step in ("on PCI", "driver", "device node", "accessible", "NVML")]
        + ["not asked CUDA"]
    )


def test_it_takes_less_than_two_seconds(gpus: tuple[Gpu, ...]) -> None:
    assert len(gpus) <= 8
    assert min(doctor().seconds for _ in range(3)) < 2


@pytest.mark.parametrize("which", [0, 1])
def test_a_gpu_that_was_asked_for_and_is_denied(gpus: tuple[Gpu, ...], which: int) -> None:
    gpu = gpus[which]
    with denying_v2(minor(gpu), name="Slurm_Cgroup_v2") as cgroup:
        run = doctor("--gpus", gpu.bus_id, before=cgroup.join)
    found = run.of(CGROUP)
    assert (run.code, found["status"], found["place"]["ids"]) == (1, "fail", [gpu.bus_id])
    assert found["summary"].startswith(f"the device cgroup denies /dev/nvidia{minor(gpu)}, and GPU")
    assert found["cause"] == "set by Slurm for this job"
    assert "CUDA_VISIBLE_DEVICES" in found["remedy"]["text"]
    rest = len(gpus) - 1
    line = run.of(COUNT)["evidence"][0]["value"]
    assert line.endswith(f"{len(gpus)} device node > {rest} accessible > {rest} NVML > not asked CUDA")


def test_a_gpu_that_was_not_asked_for_and_is_denied(gpus: tuple[Gpu, ...]) -> None:
    with denying_v2(minor(gpus[1])) as cgroup:
        run = doctor(before=cgroup.join)
    found = run.of(CGROUP)
    assert (run.code, found["status"], found["place"]["ids"]) == (0, "pass", [gpus[1].bus_id])
    assert "ordinary share" in found["note"]


def test_a_gpu_that_cuda_visible_devices_hides(gpus: tuple[Gpu, ...]) -> None:
    run = doctor("--gpus", gpus[1].bus_id, CUDA_VISIBLE_DEVICES="0")
    assert run.code == 0
    assert run.of(CGROUP)["status"] == "pass"
    assert "keeps them as routes" in run.of(CGROUP)["note"]
    assert run.of("env.visible-devices")["status"] == "pass"


def test_nvidiactl_denied(gpus: tuple[Gpu, ...]) -> None:
    with denying_v2(255) as cgroup:
        run = doctor(before=cgroup.join)
    assert len(gpus) > 1
    assert (run.code, run.of(CONTROL)["status"]) == (1, "fail")
    assert run.of(CGROUP)["status"] == "pass"


def test_a_running_job_in_a_device_cgroup(gpus: tuple[Gpu, ...]) -> None:
    with denying_v2(minor(gpus[1])) as cgroup, subprocess.Popen(["sleep", "60"], preexec_fn=cgroup.join) as job:
        try:
            run = doctor("--pid", str(job.pid), "--gpus", gpus[1].bus_id)
        finally:
            job.kill()
    found = run.of(CGROUP)
    assert (run.code, found["status"], found["place"]["ids"]) == (1, "fail", [gpus[1].bus_id])
    assert (f"/proc/{job.pid}/cgroup", cgroup.path) in [(seen["source"], seen["value"]) for seen in found["evidence"]]
