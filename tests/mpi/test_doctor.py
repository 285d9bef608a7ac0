"""``egmctl doctor`` by four real MPI ranks: the nodes are compared, and open each other's memory."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import RunEgmctl
from tests.fake.plugin import MakeFakeNode
from tests.mpi.nodes import Place, egmctl_under_mpi, in_domain

pytestmark = pytest.mark.processes

PEERS = ("doctor", "--check", "peers.*", "--json")


def findings(out: str) -> dict[str, list[dict[str, Any]]]:
    """Return the findings of the one document that the job has written, by check."""
    by_check: dict[str, list[dict[str, Any]]] = {}
    for finding in json.loads(out)["result"]["findings"]:
        by_check.setdefault(finding["check"], []).append(finding)
    return by_check


@pytest.fixture
def two_nodes(fake_node: MakeFakeNode) -> list[Place]:
    return [Place(fake_node(in_domain(f"rack1-n{number}")), 2) for number in (1, 2)]


@pytest.mark.long
def test_nodes_that_are_alike_pass_and_open_each_others_memory_both_ways(two_nodes: list[Place]) -> None:
    done = egmctl_under_mpi(two_nodes, *PEERS, "--active")
    assert done.code == 0, done.err
    by_check = findings(done.out)
    statuses = {check: {finding["status"] for finding in by_check[check]} for check in by_check}
    assert statuses == {
        "peers.versions": {"pass"},
        "peers.clique": {"pass"},
        # No program of a copied tree is run, so the service's state is not read.
        "peers.imex": {"unknown"},
        "peers.nics": {"skip"},
        "peers.nodes": {"pass"},
        "peers.fabric-active": {"pass"},
    }
    summaries = [finding["summary"] for finding in by_check["peers.fabric-active"]]
    assert [summary.partition(" ")[0] for summary in summaries] == ["device", "HOST_NUMA"]
    assert all("2 directions between ranks" in summary for summary in summaries)


@pytest.mark.long
def test_what_differs_is_told_by_node(fake_node: MakeFakeNode) -> None:
    nodes = [
        Place(fake_node(in_domain("rack1-n1")), 1),
        Place(fake_node(in_domain("rack1-n2")), 1),
        Place(fake_node(in_domain("rack1-n3", driver="590.10", clique=8, channel=False)), 1),
    ]
    done = egmctl_under_mpi(nodes, *PEERS)
    assert done.code == 1, done.err
    by_check = {check: first for check, (first, *_) in findings(done.out).items()}
    odd = {check for check, finding in by_check.items() if finding["status"] == "fail"}
    assert odd == {"peers.versions", "peers.clique", "peers.imex"}
    for check in odd:
        assert "rack1-n3" in {evidence["source"] for evidence in by_check[check]["evidence"]}
    assert by_check["peers.fabric-active"]["status"] == "skip"


@pytest.mark.long
def test_an_import_that_fails_or_kills_its_rank_is_told_with_both_ranks_and_costs_its_own_part_only(
    fake_node: MakeFakeNode,
) -> None:
    faults = ("", "cuMemImportFromShareableHandle=error:801", "cuMemImportFromShareableHandle=kill:9,once")
    nodes = [Place(fake_node(in_domain(f"rack1-n{n}")), 1, fault) for n, fault in enumerate(faults, 1)]
    done = egmctl_under_mpi(nodes, *PEERS, "--active")
    assert done.code == 1, done.err
    device, egm, killed, *works = findings(done.out)["peers.fabric-active"]
    assert [finding["status"] for finding in (device, egm, killed, *works)] == ["fail"] * 3 + ["pass"] * 2
    for fails in (device, egm):
        assert "node1:GPU0 to node2:GPU0, node3:GPU0 to node2:GPU0 (owner to importer)" in fails["summary"]
        assert {evidence["source"] for evidence in fails["evidence"]} == {"rank 1 on rack1-n2"}
        assert "device cgroup" in fails["cause"]
    assert "to node3:GPU0 (owner to importer): killed a process" in killed["summary"]
    assert [evidence["source"] for evidence in killed["evidence"]] == ["rank 2 on rack1-n3"]


VISIBLE = "env.visible-devices"


@pytest.mark.long
@pytest.mark.parametrize(
    ("asked", "told"),
    [(("imex.channel", "--for", "fabric"), ["imex.channel"]), ((VISIBLE, "--strict"), [VISIBLE]), ((VISIBLE,), [])],
    ids=["a failure", "a warning with --strict", "a warning"],
)
def test_a_check_that_fails_on_another_node_is_told(
    fake_node: MakeFakeNode, asked: tuple[str, ...], told: list[str]
) -> None:
    other = Place(fake_node(in_domain("rack1-n2", channel=False)), 1, env={"CUDA_VISIBLE_DEVICES": "0,9"})
    done = egmctl_under_mpi([Place(fake_node(in_domain("rack1-n1")), 1), other], "doctor", "--json", "--check", *asked)
    assert done.code == bool(told), done.err
    (finding,) = findings(done.out)["peers.nodes"]
    assert finding["status"] == ("fail" if told else "pass")
    assert [(e["source"], e["value"]) for e in finding["evidence"]] == [("rack1-n2", check) for check in told]


@pytest.mark.long
@pytest.mark.parametrize("command", [("doctor", "--check", "peers.*"), ("bench", "--suite", "fabric")])
def test_a_wrong_use_on_one_node_is_a_usage_error_of_the_job(fake_node: MakeFakeNode, command: tuple[str, ...]) -> None:
    fewer = replace(in_domain("rack1-n2"), gpus=(in_domain("rack1-n2").gpus or ())[:1], pairs=())
    nodes = [Place(fake_node(in_domain("rack1-n1")), 1), Place(fake_node(fewer), 2)]
    done = egmctl_under_mpi(nodes, *command, "--gpus", "1")
    assert done.code == 2, done.err
    assert re.search(r"egmctl: rank 1 \(\S+\) and 1 more: --gpus '1': there is no GPU 1", done.err)


@pytest.mark.long
@pytest.mark.parametrize("command", [("doctor", "--check", "peers.*"), ("bench", "--suite", "fabric")])
def test_a_file_that_rank_0_may_not_write_ends_all_ranks(
    two_nodes: list[Place], tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "there.json").touch()
    # Without the option mpirun itself would end the others, which srun does not.
    written = ("-o", tmp_path / "there.json")
    done = egmctl_under_mpi(two_nodes, *command, *written, options=("--enable-recovery",), timeout_s=60)
    assert "there.json exists; --force overwrites it" in done.err


@pytest.mark.parametrize("asked", [("--for", "nothing"), ("--list",)])
def test_a_job_says_once_what_every_rank_would_say(egmctl: RunEgmctl, asked: tuple[str, ...]) -> None:
    said = [
        egmctl("doctor", *asked, env={"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": "2"}) for rank in ("0", "1")
    ]
    assert [bool(done.out + done.err) for done in said] == [True, False]


def test_alone_the_checks_of_peers_do_not_concern_a_node(egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
    of_a_job = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}
    done = egmctl(*PEERS, "--mpi", "off", env=fake_node(in_domain("rack1-n1")).environment() | of_a_job)
    assert {finding["status"] for group in findings(done.out).values() for finding in group} == {"skip"}
