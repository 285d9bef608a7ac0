"""``egmctl bench --suite fabric`` by four real MPI ranks on fake nodes: one run, one report, and who failed by name."""

from __future__ import annotations

import json
import os
import re
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from egmctl.saved import load_journal
from tests.conftest import RunEgmctl
from tests.fake.plugin import MakeFakeNode
from tests.mpi.nodes import IMPATIENT, QUICK, RANK, RECOVER, Place, egmctl_under_mpi, in_domain, wait_for

pytestmark = pytest.mark.processes

WRITE = ("bench", *QUICK, "--case", "fabric_device_write_ce")
TO_EGM = "fabric_host_numa_to_host_numa_write_ce"
CASES = (
    *("fabric_device_write_ce", "fabric_device_all_to_one_write_ce", "fabric_device_latency"),
    *("fabric_device_bidirectional_write_ce", "fabric_device_bisect_write_ce"),
    *("fabric_host_numa_ring_write_ce", "fabric_host_numa_one_to_all_write_ce"),
    *("fabric_host_numa_read_sm", TO_EGM),
)
"""One of each kind of pattern, memory and engine."""


def measured(out: str) -> list[dict[str, Any]]:
    """Return the measurements of the one document that the job has written."""
    measurements: list[dict[str, Any]] = json.loads(out)["result"]["measurements"]
    return measurements


def by_initiator(out: str) -> dict[int, list[dict[str, Any]]]:
    """Return the measurements by the rank that moves the bytes."""
    found: dict[int, list[dict[str, Any]]] = {}
    for measurement in measured(out):
        found.setdefault(measurement["flows"][0]["initiator_rank"], []).append(measurement)
    return found


@pytest.mark.long
def test_all_ranks_of_two_nodes_measure_each_other_and_rank_0_reports_it(
    fake_node: MakeFakeNode, tmp_path: Path
) -> None:
    kept, words, written = tmp_path / "kept", tmp_path / "report.txt", tmp_path / "report.json"
    # Kernels are found in the cache of whoever runs the tests: each process would compile them again.
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    env = {"EGMCTL_NO_JOURNAL": "", "HOME": str(tmp_path), "XDG_CACHE_HOME": cache}
    nodes = [Place(fake_node(in_domain(f"rack1-n{number}")), 2, env=env) for number in (1, 2)]
    cases = [word for case in CASES for word in ("--case", case)]
    outputs = ("-v", "-o", words, "-o", written, "--journal", kept)
    done = egmctl_under_mpi(nodes, "bench", *QUICK, *cases, *outputs)
    assert done.code == 0, done.err
    assert done.out.count(f"written: {words}") == 1

    result = json.loads(written.read_text())["result"]
    labels = ["node1:GPU0", "node1:GPU1", "node2:GPU0", "node2:GPU1"]
    assert [(rank["label"], rank["host"]) for rank in result["ranks"]] == list(
        zip(labels, ["rack1-n1"] * 2 + ["rack1-n2"] * 2, strict=True)
    )
    assert len(result["machines"]) == 2
    assert result["host_load"] is None, "rank 0 sees neither the other node nor whose the other ranks' CPU time is"
    measurements = result["measurements"]
    assert {m["case"] for m in measurements} == set(CASES)
    assert {m["status"] for m in measurements} <= {"ok", "unstable"}
    assert all(m["verification"] for m in measurements)
    # Both GPUs of a node have the same NUMA node: from and to its memory pairs across nodes take turns.
    for case, route, at_once in (
        ("fabric_device_write_ce", "NV18 across nodes", 2),
        (TO_EGM, "C2C>NV18>C2C across nodes", 1),
    ):
        pairs = [m for m in measurements if m["case"] == case]
        assert {m["flows"][0]["initiator_label"] for m in pairs} == {*labels}
        across = [m for m in pairs if m["flows"][0]["route"]["symbol"] == route]
        assert (len(pairs), len(across)) == (12, 8)
        # On a busy machine a pair alone may differ from the same pair among others: then all are measured alone.
        alone = any(note.startswith(case) and "one at a time" in note for note in result["notes"])
        assert alone or {m["concurrent"] for m in across} == {at_once}
        assert alone or {m["concurrent"] for m in pairs if m not in across} == {2}
    assert {m["verification"] for m in measurements if m["case"] == TO_EGM} == {"gpu-every-sample"}
    egm = [m for m in measurements if m["case"] == "fabric_host_numa_read_sm"]
    assert {m["flows"][0]["route"]["egm"] for m in egm} == {"yes"}

    assert words.read_text().count("node1 is rack1-n1\n  node2 is rack1-n2\n") == 1

    (path,) = kept.iterdir()
    assert not list(tmp_path.rglob("egmctl/journal")), "rank 0 alone keeps one"
    journal = load_journal(path)
    assert (journal.exit_code, journal.under_way) == (0, ())
    assert [(m.case, m.status.value) for m in journal.report.measurements] == [
        (m["case"], m["status"]) for m in measurements
    ]
    assert journal.report.kernel_messages is not None
    assert not [leak for place in nodes for leak in place.node.leaks()]


@pytest.mark.long
def test_a_wrong_byte_and_a_failing_call_are_named_with_their_ranks_and_the_others_go_on(
    fake_node: MakeFakeNode,
) -> None:
    faults = {
        "rack1-n1": "cuMemcpyAsync@4=corrupt:4096",
        # As under a device cgroup that denies the owner's GPU.
        "rack1-n2": "cuMemImportFromShareableHandle=error:801",
        "rack1-n3": "",
    }
    nodes = [Place(fake_node(in_domain(host)), 1, fault) for host, fault in faults.items()]
    done = egmctl_under_mpi(nodes, "bench", *QUICK, "--case", TO_EGM, "--json")
    assert done.code == 1, done.err
    changes, fails, works = (found for _, found in sorted(by_initiator(done.out).items()))
    assert sorted(m["status"] == "corrupt" for m in changes) == [False, True]
    assert {m["status"] for m in (*changes, *works)} <= {"ok", "unstable", "corrupt"}
    assert "corrupt" not in {m["status"] for m in works}
    assert {(m["status"], m["failed_rank"], m["known_cause"]) for m in fails} == {("failed", 1, True)}
    for m in fails:
        assert "rank 1 (node2:GPU0)" in m["reason"]
        assert "device cgroup" in m["reason"]


@pytest.mark.long
def test_a_rank_that_dies_or_hangs_is_named_with_its_node_and_call_and_the_rest_is_measured(
    fake_node: MakeFakeNode,
) -> None:
    faults = "cuMemImportFromShareableHandle@1=kill:9,once;cuMemImportFromShareableHandle@2=hang,once"
    nodes = [Place(fake_node(in_domain("rack1-n1")), 3), Place(fake_node(in_domain("rack1-n2")), 1, faults)]
    # Who dies is missed at once; who hangs costs the time that a step has, which the others need on a busy machine.
    done = egmctl_under_mpi(nodes, *WRITE, "--timeout", "10", "--json")
    assert done.code == 4, done.err
    failed = [m for m in measured(done.out) if m["status"] not in ("ok", "unstable")]
    ways = {
        "crashed": "died from SIGKILL in cuMemImportFromShareableHandle",
        "timed-out": "it is in cuMemImportFromShareableHandle",
    }
    named = [m for m in failed if m["failed_rank"] == 3]
    assert {m["status"] for m in named} == ways.keys()
    for m in named:
        assert m["last_call"] == "cuMemImportFromShareableHandle"
        assert ways[m["status"]] in m["reason"]
        assert "node2:GPU0" in m["reason"]
    late = [m for m in failed if m["failed_rank"] != 3]
    assert {m["status"] for m in late} <= {"timed-out"}, late
    assert len(late) <= 1, "on a busy machine another rank may be late once"


@pytest.mark.long
def test_a_rank_without_a_channel_is_named_and_what_it_has_no_part_in_is_measured(fake_node: MakeFakeNode) -> None:
    nodes = [
        # As in a container of its own: another sysroot, the same node's name.
        Place(fake_node(in_domain("rack1-n1", channel=False)), 1),
        Place(fake_node(in_domain("rack1-n1")), 2),
        Place(fake_node(in_domain("rack1-n2", channel=False)), 1),
    ]
    done = egmctl_under_mpi(nodes, *WRITE, "--json")
    assert done.code == 3, "in a domain of several nodes, a missing channel leaves its paths unknown"
    without = {0: "node1:GPU0: there is no IMEX channel", 3: "node2:GPU0: there is no IMEX channel"}
    for m in measured(done.out):
        concerned = {m["flows"][0][end]["rank"] for end in ("source", "destination")} & without.keys()
        assert (m["status"] == "waived") == bool(concerned)
        assert not concerned or any(without[rank] in m["reason"] for rank in concerned)


@pytest.mark.long
@pytest.mark.parametrize("driver", [None, "590.10"], ids=["cliques", "cliques and drivers"])
def test_what_differs_between_nodes_ends_the_run_before_it_begins(fake_node: MakeFakeNode, driver: str | None) -> None:
    other = in_domain("rack1-n2", driver=driver, clique=8)
    done = egmctl_under_mpi([Place(fake_node(in_domain("rack1-n1")), 1), Place(fake_node(other), 1)], *WRITE)
    assert done.code == 3
    assert ("the driver's version differs between nodes: " in done.err) is (driver is not None)
    assert driver is None or f"{driver} on rack1-n2; the NVLink domain differs between nodes: " in done.err
    assert "the NVLink domain differs between nodes: " in done.err
    assert "clique 8 on rack1-n2" in done.err
    assert done.err.count("egmctl: ") == 1


@pytest.mark.long
@pytest.mark.parametrize(
    "options", [RECOVER, ("--mca", "odls_base_sigkill_timeout", "5")], ids=["the others live on", "mpirun ends them"]
)
def test_a_command_that_is_killed_is_named_in_the_report_and_the_job_ends(
    fake_node: MakeFakeNode, tmp_path: Path, options: tuple[str, ...]
) -> None:
    written = tmp_path / "report.json"
    nodes = [Place(fake_node(in_domain("rack1-n1")), 2), Place(fake_node(in_domain("rack1-n2")), 1)]
    arguments = ("bench", *QUICK, "--samples", "500", "--timeout", "2", "-o", written)
    with ThreadPoolExecutor() as beside:
        job = beside.submit(egmctl_under_mpi, nodes, *arguments, options=options, program=IMPATIENT, timeout_s=90)
        wait_for(lambda: bool(nodes[1].node.calls("cuEventRecord")), job)
        nodes[1].signal_commands(signal.SIGKILL)
        job.result()
    report = json.loads(written.read_text())
    assert report["exit_code"] == 4
    said = report["result"]["problems"] + [m["reason"] or "" for m in report["result"]["measurements"]]
    # On a busy machine another rank may be late as well.
    gone = re.compile(r"gone or does not respond: .*rank 2 \(node2:GPU0 on rack1-n2\)")
    assert any(map(gone.search, said)), said


@pytest.mark.long
def test_an_interruption_of_all_commands_is_a_report_of_what_there_is(fake_node: MakeFakeNode, tmp_path: Path) -> None:
    # As scancel does; a rank that sits in the driver does not end by itself.
    written = tmp_path / "report.json"
    fault = "cuMemImportFromShareableHandle@3=hang"
    nodes = [Place(fake_node(in_domain("rack1-n1")), 2), Place(fake_node(in_domain("rack1-n2")), 1, fault)]
    with ThreadPoolExecutor() as beside:
        job = beside.submit(egmctl_under_mpi, nodes, "bench", *QUICK, "-o", written, options=RECOVER, program=RANK)
        wait_for(lambda: any(call.ending == "hang" for call in nodes[1].node.calls()), job)
        for place in nodes:
            place.signal_commands(signal.SIGTERM)
        job.result()
    report = json.loads(written.read_text())
    assert (report["exit_code"], report["result"]["interrupted"], report["result"]["problems"]) == (130, True, [])
    assert any(m["status"] in ("ok", "unstable") for m in report["result"]["measurements"])


@pytest.mark.long
def test_each_process_for_itself_without_mpi(fake_node: MakeFakeNode) -> None:
    done = egmctl_under_mpi(
        [Place(fake_node(in_domain("rack1-n1")), 2)], "bench", "--mpi", "off", "--list", "--color", "never"
    )
    assert done.out.count("device_local_copy ") == 2


def test_a_plan_is_shown_once_by_a_job_and_is_that_of_what_it_would_measure(egmctl: RunEgmctl) -> None:
    plan = ("bench", "--dry-run", "--machine", "gb200-nvl72")
    of_fabric, silent, by_itself = (
        egmctl(*plan, *suite, env={"OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": "2"})
        for rank, suite in (("0", ("--suite", "fabric")), ("1", ()), ("0", ()))
    )
    assert (silent.code, silent.out) == (0, "")
    assert (by_itself.code, by_itself.out) == (0, of_fabric.out)
    assert "fabric_" in by_itself.out


@pytest.mark.parametrize("suite", ["fabric", "rdma"])
def test_a_sample_of_nothing_is_a_usage_error(egmctl: RunEgmctl, suite: str) -> None:
    of_a_job = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "2"}
    done = egmctl("bench", "--suite", suite, "--sample", "0", env=of_a_job)
    message = (
        "egmctl: invalid value for '--sample': 0 is not in the range x>=1; 'egmctl bench --help' says what is valid\n"
    )
    assert (done.code, done.err) == (2, message)


NO_MPI4PY = "raise ImportError('not there')"
NO_MPI = """
class rc:
    pass

def __getattr__(name):
    raise RuntimeError("not there\\nlibmpi.so.12: cannot open")
"""
"""mpi4py's wheel where it finds no MPI library."""


@pytest.mark.parametrize("module", [NO_MPI4PY, NO_MPI], ids=["no mpi4py", "no MPI"])
def test_without_mpi_one_sentence_says_what_to_install(
    egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path: Path, module: str
) -> None:
    (tmp_path / "mpi4py.py").write_text(module)
    node = fake_node(in_domain("rack1-n1"))
    paths = f"{tmp_path}:{Path(__file__).parents[2]}"
    env = node.environment() | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "2", "PYTHONPATH": paths}
    done = egmctl(*WRITE, env=env)
    assert done.code == 3
    assert "MPI library (not there): pip install 'egmctl[mpi]'" in done.err
