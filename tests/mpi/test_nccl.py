"""``egmctl bench --suite nccl`` in two tasks of a job, each with one GPU alone, as Slurm gives a GPU to a task.

The device cgroup that makes NCCL fail there is real in ``tests/gpu/test_nccl.py``.
"""

from __future__ import annotations

import json
import os

import pytest

from tests.conftest import ROOT, RunEgmctl
from tests.fake.plugin import MakeFakeNode
from tests.mpi.nodes import Place, egmctl_under_mpi, in_domain

pytestmark = [pytest.mark.processes, pytest.mark.long]

NCCL = ("bench", "--suite", "nccl", "--size", "1M", "--copies", "2", "--samples", "2", "--json")
PYTORCH = f"{ROOT / 'tests/fake/pytorch'}{os.pathsep}{ROOT}"


def tasks(fake_node: MakeFakeNode, *hosts: str, fault: str = "") -> list[Place]:
    """Return the places of tasks, the n-th of which sees GPU n alone."""
    env = {"PYTHONPATH": PYTORCH, "FAKE_TORCH": fault, "FAKE_TORCH_MS": "3.0,3.4"}
    return [
        Place(fake_node(in_domain(host)), 1, env={**env, "CUDA_VISIBLE_DEVICES": str(number)})
        for number, host in enumerate(hosts)
    ]


def test_each_task_runs_its_rank_and_rank_0_answers(fake_node: MakeFakeNode) -> None:
    done = egmctl_under_mpi(tasks(fake_node, "n1", "n1"), *NCCL)
    assert done.code == 0, done.err
    document = json.loads(done.out)
    nccl = document["result"]["nccl"]
    assert (nccl["status"], nccl["plan"]["labels"]) == ("ok", ["GPU0", "GPU1"])
    assert [each["elapsed_ms"] for each in nccl["results"]] == [[1.7, 1.7]] * 3, "of the slowest task"
    assert document["answer"]["sentence"].startswith("NCCL's bus bandwidth: all_reduce ")

    done = egmctl_under_mpi(tasks(fake_node, "n1", "n1", fault="cuda101:01"), *NCCL)
    document = json.loads(done.out)
    assert (done.code, document["result"]["nccl"]["status"]) == (1, "failed"), done.err
    assert [failure["label"] for failure in document["result"]["nccl"]["failures"]] == ["GPU0", "GPU1"]
    (finding,) = [each["finding"] for each in document["answer"]["causes"] if each["finding"]["check"] == "bench.nccl"]
    assert "the other rank's GPU is denied to this process" in finding["cause"]


def test_a_job_without_a_collective_is_refused(fake_node: MakeFakeNode) -> None:
    done = egmctl_under_mpi(tasks(fake_node, "n1", "n1"), *NCCL, "--case", "device_to_device_memcpy_write_ce")
    assert done.code == 2, done.out
    assert "NCCL's collectives only, nccl_all_reduce, nccl_all_gather and nccl_sendrecv" in done.err


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--serial",), "--serial cannot be combined with collectives of NCCL alone"),
        (("--sample", "1"), "--sample works with --suite fabric only"),
        (("--journal", "."), "--journal cannot be combined with --suite nccl in a job"),
    ],
)
def test_options_that_mean_nothing_in_a_job_are_refused(egmctl: RunEgmctl, option: tuple[str, ...], words: str) -> None:
    done = egmctl(*NCCL, *option, env={"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"})
    assert done.code == 2
    assert words in done.err


def test_a_task_that_dies_ends_all_and_several_nodes_are_refused(fake_node: MakeFakeNode) -> None:
    # The other task hears of it when its own rank, which waits in the collective, has been silent for the timeout.
    done = egmctl_under_mpi(tasks(fake_node, "n1", "n1", fault="die:1"), *NCCL, "--timeout", "5")
    reason = json.loads(done.out)["result"]["nccl"]["reason"]
    assert (done.code, reason) == (4, "NCCL failed in all_reduce: rank 1 (GPU1): its process died from SIGKILL")
    done = egmctl_under_mpi(tasks(fake_node, "n1", "n2"), *NCCL)
    assert done.code == 2
    assert "--suite nccl is for the GPUs of one node, and this job has 2 nodes" in done.err
