"""In jobs of the node's own Slurm and in containers with its real GPUs: what they may use, and why not.

A Slurm must run here that has this node's GPUs as GRES and confines devices (``ConstrainDevices=yes``), Podman and crun
must be installed. The same with device nodes that stand for GPUs is in ``tests/habitat``, with many more cases.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from egmctl.facts.collect import collect
from tests.conftest import ROOT, Ended, ended
from tests.doctor.real_node import gravest
from tests.habitat.place import container, device_node, program, readable_folder

pytestmark = [pytest.mark.gpu, pytest.mark.needs_root, pytest.mark.timeout(300)]

EGMCTL = (sys.executable, "-m", "egmctl")
CGROUP, MISSING = "dev.cgroup-restricted", "dev.nodes-missing"
FAILING = Path(__file__).with_name("failing.py")
KIND, PARENT = "egmctl.test/real", f"egmctl-gpu-{os.getpid()}"

Srun = Callable[..., Ended]


def failed(done: Ended) -> set[str]:
    """Return the checks of doctor that failed."""
    return {each["check"] for each in json.loads(done.out)["result"]["findings"] if each["status"] == "fail"}


@pytest.fixture(scope="module")
def srun() -> Srun:
    """Run a command by srun: its options in a text, then the command's words."""
    if (
        shutil.which("srun") is None
        or not subprocess.run(
            ["sinfo", "--noheader"], capture_output=True, text=True, timeout=20, check=False
        ).stdout.strip()
    ):
        pytest.skip("no Slurm runs here")
    return lambda options, *words: ended(
        ["srun", "--quiet", *options.split(), *map(str, words)], cwd=ROOT, timeout_s=90
    )


def test_a_job_with_all_gpus_passes_and_measures(srun: Srun) -> None:
    every = f"--gres=gpu:{len(collect(('gpus',)).gpus or ())}"
    done = srun(every, *EGMCTL, "doctor", "--json", "--mpi", "off")
    assert CGROUP not in {
        each["check"] for each in json.loads(done.out)["result"]["findings"] if each["status"] == "fail"
    }
    done = srun(every, *EGMCTL, "bench", "--quick", "--mpi", "off", "--json")
    measured = json.loads(done.out)["result"]["measurements"]
    assert {each["status"] for each in measured} <= {"ok", "unstable"}, done.err


def test_a_job_without_gpus_is_denied_by_slurm_and_told_what_to_ask_for(srun: Srun) -> None:
    done = srun("", *EGMCTL, "doctor", "--json", "--mpi", "off")
    finding = gravest(json.loads(done.out))[CGROUP]
    assert (done.code, finding["status"]) == (1, "fail")
    assert finding["cause"].startswith("set by Slurm for this job")
    assert finding["remedy"]["text"].startswith("Ask Slurm for GPUs (--gres=gpu:N")


def test_a_program_that_fails_in_such_a_job_is_explained(srun: Srun) -> None:
    done = srun("", *EGMCTL, "explain", "--", sys.executable, FAILING, "none")
    assert done.code == 3
    assert "cuInit: CUDA_ERROR_NO_DEVICE (100)" in done.err
    assert "Ask Slurm for GPUs (--gres=gpu:N" in " ".join(done.err.split())


def test_of_two_tasks_the_first_answers_for_the_node(srun: Srun) -> None:
    done = srun("--ntasks=2 --gres=gpu:1", *EGMCTL, "topo", "--json")
    assert (done.code, done.out.count('"egmctl.topo/')) == (0, 1)


@pytest.fixture(scope="module")
def podman() -> Iterator[Srun]:
    """Run egmctl in a container with real GPUs: Podman's options in a text, then the command's words."""
    if any(shutil.which(name) is None for name in ("podman", "crun")):
        pytest.skip("Podman and crun are not installed")
    with readable_folder(PARENT) as folder:
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        variables = {"PYTHONPATH": f"{folder}/tree:{folder}/packages", "EGMCTL_NO_JOURNAL": "1"}
        variables |= {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}
        exports = "".join(f"export {name}='{value}'\n" for name, value in variables.items())
        program(folder / "bin/egmctl", f'{exports}exec {folder}/python/bin/{version} -m egmctl "$@"')
        spec = Path("/run/cdi/egmctl-real.json")
        spec.parent.mkdir(exist_ok=True)
        spec.write_text(json.dumps(_devices()))
        start, settings = container(folder), {"CONTAINERS_CONF": f"{folder}/containers.conf"}

        def run(options: str, *words: str) -> Ended:
            return ended([*start, *options.split(), "--rootfs", f"{folder}/rootfs", *words], env=settings, timeout_s=90)

        try:
            if (tried := run("", "true")).code:
                pytest.skip(f"Podman runs no container here, not even 'true': {tried.err}")
            yield run
        finally:
            spec.unlink()


def _devices() -> dict[str, Any]:
    """Return the CDI specification of all GPUs of this node together."""
    nodes = [path for path in sorted(Path("/dev").glob("nvidia*")) if stat.S_ISCHR(path.stat().st_mode)]
    numbers = {path.name: path.stat().st_rdev for path in nodes}
    edits = {"deviceNodes": [device_node(name, os.major(number), os.minor(number)) for name, number in numbers.items()]}
    return {"cdiVersion": "0.5.0", "kind": KIND, "devices": [{"name": "all", "containerEdits": edits}]}


def test_a_container_with_all_gpus_passes_and_measures(podman: Srun) -> None:
    assert failed(podman(f"--device={KIND}=all", "egmctl", "doctor", "--json")).isdisjoint({CGROUP, MISSING})
    done = podman(f"--device={KIND}=all", "egmctl", "bench", "--quick", "--json")
    measurements = json.loads(done.out)["result"]["measurements"]
    if any("NVRTC is not installed" in each["reason"] for each in measurements):
        pytest.skip("this machine's NVRTC is not in the container, nor are compiled kernels")
    statuses = {each["status"] for each in measurements}
    # Podman's seccomp profile refuses the calls that place HOST_NUMA memory.
    assert "ok" in statuses <= {"ok", "unstable", "waived"}, [each["reason"] for each in measurements]


def test_a_container_without_gpus_is_one_cause(podman: Srun) -> None:
    done = podman("", "egmctl", "doctor", "--json")
    findings = [each for each in json.loads(done.out)["result"]["findings"] if each["status"] == "fail"]
    assert [each["check"] for each in findings if not each["explained_by"]] == [MISSING]
