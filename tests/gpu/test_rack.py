"""``egmctl bringup`` by the ranks of an MPI job on real GPUs: one answer for the nodes and the fabric between them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from egmctl.facts.collect import collect
from egmctl.model.gpu import Gpu
from tests.conftest import Ended
from tests.gpu.commands import egmctl_words, mpirun

pytest.importorskip("ClusterShell")

pytestmark = [pytest.mark.gpu, pytest.mark.needs_root, pytest.mark.needs("mpirun")]

BRINGUP = egmctl_words("bringup", "--json")


def result_of(done: Ended) -> dict[str, Any]:
    """Return the answer that rank 0 has written, whose exit code is the job's."""
    document = json.loads(done.out)
    assert (document["schema"], document["exit_code"]) == ("egmctl.fleet/3", done.code), done.err
    result: dict[str, Any] = document["result"]
    return result


@pytest.mark.usefixtures("imex_channel", "gpus")
def test_two_ranks_bring_up_their_node_once_and_measure_between_their_gpus() -> None:
    done = mpirun(BRINGUP, BRINGUP)
    result = result_of(done)
    (answer,) = result["answers"]
    assert answer["reach"] == "answered"
    assert "2 tasks on 1 node: first each node, then the fabric\n" in done.err
    assert re.search(r"fabric: 1 of 1 pair of 2 GPUs, about [0-9]+ s\n", done.err)
    run = result["fabric"]["run"]
    assert {m["status"] for m in run["measurements"]} <= {"ok", "unstable"}, [m["reason"] for m in run["measurements"]]
    assert all(m["verification"] for m in run["measurements"] if m["bandwidth_gb_s"])
    assert [rank["label"] for rank in run["ranks"]] == ["GPU0", "GPU1"]


def test_one_rank_on_each_of_two_nodes_is_one_answer_for_both() -> None:
    """Both are this machine under two names, whose GPUs the two measure at the same time: only who answers counts."""
    machine = collect(("gpus",))
    if not machine.gpus:
        pytest.skip("needs a GPU")
    names = ("tray1", "tray2")
    renamed = ["unshare", "--uts", "sh", "-c", 'hostname "$0" && exec "$@"']
    done = mpirun(*([*renamed, name, *BRINGUP, "--gpus", "0"] for name in names))
    result = result_of(done)
    assert [(answer["node"], answer["reach"]) for answer in result["answers"]] == [(name, "answered") for name in names]
    assert "2 tasks on 2 nodes: first each node, then the fabric\n" in done.err
    if not in_a_domain(machine.gpus):
        assert result["fabric"]["run"] is None
        assert "fabric handles do not go from node to node here" in result["fabric"]["reason"]
        assert done.code in (1, 3, 4)


def in_a_domain(gpus: tuple[Gpu, ...]) -> bool:
    return any(gpu.nvml and gpu.nvml.fabric and gpu.nvml.fabric.cluster_uuid for gpu in gpus)
