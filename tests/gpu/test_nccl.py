"""On real hardware: NCCL's bandwidth by egmctl and by the same program alone, and how it fails with a GPU a task."""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from egmctl.bench.nccl.collectives import COLLECTIVES
from egmctl.bench.nccl.plan import installed, nccl_plan
from egmctl.bench.nccl.run import measure_plan
from egmctl.facts import replay
from egmctl.facts.collect import collect
from egmctl.launch import Child
from egmctl.model.gpu import Gpu
from egmctl.model.measurement import RunReport, Settings
from egmctl.model.nccl import NcclStatus
from egmctl.verdict.nccl import with_nccl_cause
from tests.conftest import ROOT
from tests.doctor.cgroups import Cgroup, denying_v2
from tests.gpu.commands import egmctl_words, minor, mpirun, started

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(400),
    pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed"),
]

ALONE = Path(__file__).with_name("nccl_alone.py")
SIZE = 1 << 30
ROUNDS = 3
Recorded = Callable[[str, object], None]
"""What keeps a figure in the XML of the run."""
WITHIN = 0.01
"""The largest difference between egmctl and the same program alone."""


def by_egmctl(folder: Path, *arguments: str, **variables: str) -> dict[str, Any]:
    """Run the suite on two GPUs; return the result."""
    file = folder / "run.json"
    words = ("bench", "--suite", "nccl", "--gpus", "0-1", *arguments, "--force")
    done = started(*words, "-o", file, variables=variables, timeout_s=180)
    assert file.exists(), done.err
    result: dict[str, Any] = json.loads(file.read_text())["result"]
    return result


def alone() -> float:
    """Return the bus bandwidth of the same collective by a program that has nothing of egmctl."""
    done = subprocess.run([sys.executable, ALONE, str(SIZE)], capture_output=True, text=True, timeout=180, check=True)
    return float(done.stdout.split()[-1])


@pytest.mark.usefixtures("gpus")
def test_it_is_the_number_of_the_same_program_alone(tmp_path: Path, record_property: Recorded) -> None:
    egmctl, itself = [], []
    for _ in range(ROUNDS):
        nccl = by_egmctl(tmp_path, "--case", "nccl_all_reduce", "--samples", "7")["nccl"]
        assert (nccl["status"], nccl["plan"]["size_bytes"]) == ("ok", SIZE), nccl["reason"]
        egmctl.append(nccl["results"][0]["bus_gb_s"])
        itself.append(alone())
    ratio = statistics.median(egmctl) / statistics.median(itself)
    record_property("all_reduce GB/s", f"egmctl {egmctl}, alone {itself}, ratio {ratio:.4f}")
    assert abs(ratio - 1) < WITHIN, (egmctl, itself)


@pytest.mark.usefixtures("gpus")
def test_all_collectives_are_right_and_beside_the_links(tmp_path: Path, record_property: Recorded) -> None:
    result = by_egmctl(tmp_path)
    nccl = result["nccl"]
    assert (nccl["status"], [each["name"] for each in nccl["results"]]) == ("ok", [*COLLECTIVES]), nccl["reason"]
    assert all(each["verified"] for each in nccl["results"])
    record_property("collectives", json.dumps(nccl))
    assert nccl["environment"]["NCCL_NVLS_ENABLE"] == "0"
    assert nccl["transports"], "its log names them"
    assert "NVLS" not in nccl["transports"]
    if [hop["link"] for hop in result["measurements"][0]["flows"][0]["route"]["hops"]] == ["nvlink"]:
        assert all(name.startswith("P2P/") for name in nccl["transports"])
        assert all(0.5 < each["share"] < 1.05 for each in nccl["results"])


@pytest.mark.usefixtures("gpus")
def test_without_p2p_it_says_so(tmp_path: Path) -> None:
    nccl = by_egmctl(tmp_path, "--case", "nccl_all_reduce", "--size", "64M", NCCL_P2P_DISABLE="1")["nccl"]
    assert nccl["environment"]["NCCL_P2P_DISABLE"] == "1"
    assert all(name.startswith("SHM/") for name in nccl["transports"])


@pytest.mark.usefixtures("gpus")
def test_nothing_is_left_of_a_run_that_is_interrupted(tmp_path: Path) -> None:
    words = ["bench", "--suite", "nccl", "--gpus", "0-1", "--case", "nccl_*", "--samples", "1000", "--json"]
    command = subprocess.Popen(
        [sys.executable, "-m", "egmctl", *words],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while command.poll() is None and not [*tmp_path.glob("egmctl-nccl-*/nccl.1.log")]:
        time.sleep(0.1)
    command.send_signal(signal.SIGINT)
    out, _ = command.communicate(timeout=60)
    assert command.returncode == 130
    assert json.loads(out)["result"]["nccl"]["status"] == "waived"
    assert not [*tmp_path.glob("egmctl-nccl-*")]
    mine = subprocess.run(["pgrep", "-f", "bench.nccl.torch_rank"], capture_output=True, text=True, check=False)
    assert mine.stdout == ""


@pytest.mark.needs_root
def test_with_a_gpu_a_task_nccl_dies_and_the_cgroup_is_the_cause(
    gpus: tuple[Gpu, ...], tmp_path: Path, record_property: Recorded
) -> None:
    """Two ranks with one GPU each by device cgroups of version 2, as Slurm's ConstrainDevices confines tasks."""
    machine = collect(("host", "gpus", "pairs", "driver", "process", "confinement"))
    settings = Settings(size_bytes=SIZE, copies=None, samples=3, timeout_s=90)
    plan = nccl_plan(
        machine, gpus[:2], settings, collectives=("all_reduce",), size_bytes=None, nvls=False, program=installed()
    )
    assert plan.waivers == ()
    with denying_v2(minor(gpus[1])) as first, denying_v2(minor(gpus[0])) as second:
        own: list[Cgroup] = [first, second]

        def start(rank: int, target: str, arguments: dict[str, Any], environment: Mapping[str, str | None]) -> Child:
            return Child(
                target,
                {**arguments, "device": 0},
                environment={**environment, "CUDA_VISIBLE_DEVICES": gpus[rank].uuid, "PYTHONPATH": str(ROOT)},
                before="tests.doctor.cgroups:join_by_path",
                before_arguments={"directory": str(own[rank].directory)},
            )

        nccl = measure_plan(plan, machine, settings.timeout_s, start)
        snapshot = tmp_path / "machine.json"
        done = started("snapshot", "-o", snapshot, before=first.join)
        assert done.code == 0, done.err
    record_property("a GPU a task", repr(nccl.failures))
    assert nccl.status is NcclStatus.FAILED
    warnings = [failure.warning.text for failure in nccl.failures if failure.warning is not None]
    assert any("invalid device ordinal" in text for text in warnings), nccl.failures
    denied = replay.load_machine(str(snapshot))
    report = RunReport(
        settings=settings,
        gpus=(),
        numa_nodes=(),
        driver_version=None,
        cuda_driver_version=None,
        started_at="2026-01-01T00:00:00+00:00",
        wall_s=0,
        interrupted=False,
        measurements=(),
        nccl=nccl,
        machines=(denied,),
    )
    (cause,) = with_nccl_cause(report, nccl, denied).causes
    assert "the other rank's GPU is denied to this process" in cause.finding.cause
    assert f"the device cgroup denies /dev/nvidia{minor(gpus[1])}" in cause.finding.cause


@pytest.mark.needs_root
@pytest.mark.needs("mpirun")
def test_in_a_job_with_a_gpu_a_task_egmctl_names_the_cgroup(gpus: tuple[Gpu, ...]) -> None:
    nccl = egmctl_words("bench", "--suite", "nccl", "--case", "nccl_all_reduce", "--json")
    done = mpirun(nccl, nccl)
    assert json.loads(done.out)["result"]["nccl"]["status"] == "ok", done.err
    with denying_v2(*map(minor, gpus[1:])) as first, denying_v2(minor(gpus[0]), *map(minor, gpus[2:])) as second:
        join = 'echo $$ > {}/cgroup.procs && exec "$@"'
        done = mpirun(*(["sh", "-c", join.format(each.directory), "sh", *nccl] for each in (first, second)))
    document = json.loads(done.out)
    assert (done.code, document["result"]["nccl"]["status"]) == (1, "failed"), done.err
    assert "invalid device ordinal" in document["answer"]["sentence"]
    (cause,) = [each["finding"]["cause"] for each in document["answer"]["causes"]]
    assert "the other rank's GPU is denied to this process" in cause
    assert f"the device cgroup denies /dev/nvidia{minor(gpus[1])}" in cause


@pytest.mark.needs_root
def test_in_a_task_with_one_gpu_it_is_not_run_and_the_cgroup_is_named(gpus: tuple[Gpu, ...], tmp_path: Path) -> None:
    with denying_v2(minor(gpus[1])) as cgroup:
        file = tmp_path / "run.json"
        done = started("bench", "--suite", "nccl", "-o", file, "--force", before=cgroup.join, timeout_s=180)
    result = json.loads(file.read_text())["result"]
    if len(gpus) == 2:
        assert (done.code, result["nccl"]["status"]) == (3, "waived")
        assert f"denied by the device cgroup (/dev/nvidia{minor(gpus[1])}: EPERM)" in result["nccl"]["reason"]
    assert "dev.cgroup-restricted" in [cause["finding"]["check"] for cause in result["causes"]]
