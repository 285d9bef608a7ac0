"""``egmctl bench --suite fabric`` by four real MPI ranks on fake nodes: one run, one report, and who failed by name."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from egmctl.saved import load_journal
from tests.conftest import RunEgmctl
from tests.fake.plugin import MakeFakeNode
from tests.mpi.nodes import QUICK, Place, egmctl_under_mpi, in_domain

pytestmark = pytest.mark.processes

WRITE = ("bench", *QUICK, "--case", "fabric_device_write_ce")
RECOVER = ("--enable-recovery",)
"""mpirun lets the others live when a process is killed, as srun does."""


def result(out: str) -> dict[str, Any]:
    """Return the result of the one document that the job has written."""
    document: dict[str, Any] = json.loads(out)
    found: dict[str, Any] = document["result"]
    return found


@pytest.fixture
def two_nodes(fake_node: MakeFakeNode) -> list[Place]:
    return [Place(fake_node(in_domain(f"rack1-n{number}")), 2) for number in (1, 2)]


@pytest.mark.long
def test_all_ranks_of_two_nodes_measure_each_other_and_rank_0_reports_it(two_nodes: list[Place]) -> None:
    done = egmctl_under_mpi(two_nodes, "bench", *QUICK, "--json", timeout_s=280)
    assert done.code == 0, done.err
    found = result(done.out)
    assert [rank["label"] for rank in found["ranks"]] == ["node1:GPU0", "node1:GPU1", "node2:GPU0", "node2:GPU1"]
    assert [rank["host"] for rank in found["ranks"]] == ["rack1-n1"] * 2 + ["rack1-n2"] * 2
    assert len(found["machines"]) == 2
    measurements = found["measurements"]
    assert {m["status"] for m in measurements} <= {"ok", "unstable"}
    assert all(m["verification"] for m in measurements)
    written = [m for m in measurements if m["case"] == "fabric_device_write_ce"]
    assert len(written) == 12
    across = [m for m in written if m["flows"][0]["route"]["symbol"] == "NV18 across nodes"]
    assert len(across) == 8
    assert {m["concurrent"] for m in written} == {2}
    egm = [m for m in measurements if m["case"] == "fabric_host_numa_read_ce"]
    assert {m["flows"][0]["route"]["egm"] for m in egm} == {"yes"}
    to_egm = [m for m in measurements if m["case"] == "fabric_host_numa_to_host_numa_write_ce"]
    assert len(to_egm) == 12
    routes = [m["flows"][0]["route"]["symbol"] for m in to_egm]
    assert routes.count("C2C>NV18>C2C across nodes") == 8
    assert {m["verification"] for m in to_egm} == {"gpu-every-sample"}
    assert {m["flows"][0]["initiator_label"] for m in to_egm} == {rank["label"] for rank in found["ranks"]}
    assert not [leak for place in two_nodes for leak in place.node.leaks()]


@pytest.mark.long
def test_a_byte_that_is_changed_on_its_way_to_another_node_s_egm_is_found(fake_node: MakeFakeNode) -> None:
    wrong = "cuMemcpyAsync@4=corrupt:4096"
    nodes = [Place(fake_node(in_domain("rack1-n1")), 1, wrong), Place(fake_node(in_domain("rack1-n2")), 1)]
    case = ("--case", "fabric_host_numa_to_host_numa_write_ce")
    done = egmctl_under_mpi(nodes, "bench", *QUICK, *case, "--json")
    assert done.code == 1, done.err
    statuses = {m["flows"][0]["initiator_rank"]: m["status"] for m in result(done.out)["measurements"]}
    assert statuses[0] == "corrupt"
    assert statuses[1] in ("ok", "unstable")


@pytest.mark.long
def test_words_name_the_nodes_and_are_written_once(two_nodes: list[Place], tmp_path: Path) -> None:
    report = tmp_path / "report.txt"
    done = egmctl_under_mpi(two_nodes, *WRITE, "-v", "-o", report)
    assert done.code == 0, done.err
    assert done.out.count(f"written: {report}") == 1
    text = report.read_text()
    assert text.count("memcpy CE GPU(row)") == 1
    assert "node1 is rack1-n1\n  node2 is rack1-n2\n" in text
    assert "node2:GPU1" in text


@pytest.mark.long
def test_rank_0_keeps_the_journal_and_no_other_does(fake_node: MakeFakeNode, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    nodes = [
        Place(fake_node(in_domain(f"rack1-n{number}")), 2, env={"EGMCTL_NO_JOURNAL": "", "HOME": str(tmp_path)})
        for number in (1, 2)
    ]
    done = egmctl_under_mpi(nodes, *WRITE, "--json", "--journal", kept)
    assert done.code == 0, done.err
    (path,) = kept.iterdir()
    journal = load_journal(path)
    assert (journal.exit_code, journal.under_way) == (0, ())
    measured = [(m["case"], m["status"]) for m in result(done.out)["measurements"]]
    assert [(one.case, one.status.value) for one in journal.report.measurements] == measured
    assert journal.report.kernel_messages is not None
    assert not list(tmp_path.rglob("egmctl/journal")), "nothing anywhere else"


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "timeout_s", "how", "words"),
    [
        # Who dies is missed at once; who hangs costs the time that a step has, which the others need on a busy machine.
        ("kill:9", 60, "crashed", "died from SIGKILL in cuMemImportFromShareableHandle"),
        ("hang", 15, "timed-out", "it is in cuMemImportFromShareableHandle"),
    ],
)
def test_a_rank_that_dies_or_hangs_is_named_with_its_node_and_call_and_the_rest_is_measured(
    fake_node: MakeFakeNode, fault: str, timeout_s: int, how: str, words: str
) -> None:
    fault = f"cuMemImportFromShareableHandle@2={fault},once"
    nodes = [Place(fake_node(in_domain("rack1-n1")), 3), Place(fake_node(in_domain("rack1-n2")), 1, fault)]
    done = egmctl_under_mpi(nodes, *WRITE, "--timeout", str(timeout_s), "--json")
    assert done.code == 4, done.err
    measurements = result(done.out)["measurements"]
    failed = [m for m in measurements if m["status"] == how]
    assert failed
    assert {m["failed_rank"] for m in failed} == {3}
    assert {m["last_call"] for m in failed} == {"cuMemImportFromShareableHandle"}
    assert all(words in m["reason"] for m in failed)
    assert "node2:GPU0" in failed[0]["reason"]
    assert len([m for m in measurements if m["status"] in ("ok", "unstable")]) == len(measurements) - len(failed)


@pytest.mark.long
def test_a_failing_call_is_named_with_its_cause_and_the_others_go_on(fake_node: MakeFakeNode) -> None:
    # As under a device cgroup that denies the owner's GPU.
    nodes = [
        Place(fake_node(in_domain("rack1-n1")), 1, "cuMemImportFromShareableHandle=error:801"),
        Place(fake_node(in_domain("rack1-n2")), 1),
    ]
    done = egmctl_under_mpi(nodes, *WRITE, "--json")
    assert done.code == 1, done.err
    by_rank = {m["flows"][0]["initiator_rank"]: m for m in result(done.out)["measurements"]}
    assert by_rank[1]["status"] in ("ok", "unstable")
    assert (by_rank[0]["status"], by_rank[0]["failed_rank"], by_rank[0]["known_cause"]) == ("failed", 0, True)
    assert "rank 0 (node1:GPU0)" in by_rank[0]["reason"]
    assert "device cgroup" in by_rank[0]["reason"]


@pytest.mark.long
def test_a_rank_without_a_channel_is_named_and_what_it_has_no_part_in_is_measured(fake_node: MakeFakeNode) -> None:
    nodes = [Place(fake_node(in_domain("rack1-n1")), 2), Place(fake_node(in_domain("rack1-n2", channel=False)), 1)]
    done = egmctl_under_mpi(nodes, *WRITE, "--json")
    assert done.code == 0, done.err
    measurements = result(done.out)["measurements"]
    waived = [m for m in measurements if m["status"] == "waived"]
    assert len(waived) == 4
    assert all("node2:GPU0: there is no IMEX channel" in m["reason"] for m in waived)
    assert all(2 in {end["rank"] for end in (m["flows"][0]["source"], m["flows"][0]["destination"])} for m in waived)


@pytest.mark.long
def test_a_rank_that_alone_of_its_node_has_no_channel_is_named(fake_node: MakeFakeNode) -> None:
    # As in a container of its own: another sysroot, the same node's name.
    nodes = [Place(fake_node(in_domain("rack1-n1", channel=False)), 1), Place(fake_node(in_domain("rack1-n1")), 2)]
    done = egmctl_under_mpi(nodes, *WRITE, "--json")
    assert done.code == 0, done.err
    for m in result(done.out)["measurements"]:
        ranks = {m["flows"][0]["source"]["rank"], m["flows"][0]["destination"]["rank"]}
        assert (m["status"] == "waived") == (0 in ranks)
        assert 0 not in ranks or "GPU0: there is no IMEX channel" in m["reason"]


@pytest.mark.long
def test_different_drivers_end_the_run_before_it_begins(fake_node: MakeFakeNode) -> None:
    nodes = [Place(fake_node(in_domain("rack1-n1")), 3), Place(fake_node(in_domain("rack1-n2", driver="590.10")), 1)]
    done = egmctl_under_mpi(nodes, *WRITE)
    assert done.code == 3
    assert "the driver's version differs between nodes: " in done.err
    assert "590.10 on rack1-n2" in done.err
    assert done.err.count("egmctl: ") == 1


@pytest.mark.long
def test_different_cliques_end_the_run_where_handles_would_cross_them(fake_node: MakeFakeNode) -> None:
    nodes = [Place(fake_node(in_domain(f"rack1-n{clique}", clique=clique)), 1) for clique in (7, 8)]
    done = egmctl_under_mpi(nodes, *WRITE)
    assert done.code == 3
    assert "the NVLink domain differs between nodes: " in done.err
    assert "clique 8 on rack1-n8" in done.err


@pytest.mark.long
def test_more_ranks_than_gpus_is_a_usage_error_that_names_the_node(fake_node: MakeFakeNode) -> None:
    nodes = [Place(fake_node(in_domain("rack1-n1")), 1), Place(fake_node(in_domain("rack1-n2")), 5)]
    done = egmctl_under_mpi(nodes, *WRITE)
    assert done.code == 2
    assert "rack1-n2 has 5 ranks and 4 usable GPUs" in done.err


@pytest.mark.long
@pytest.mark.parametrize(
    "options", [RECOVER, ("--mca", "odls_base_sigkill_timeout", "5")], ids=["the others live on", "mpirun ends them"]
)
def test_a_command_that_is_killed_is_named_in_the_report_and_the_job_ends(
    fake_node: MakeFakeNode, tmp_path: Path, options: tuple[str, ...]
) -> None:
    written = tmp_path / "report.json"
    nodes = [Place(fake_node(in_domain("rack1-n1")), 2), Place(fake_node(in_domain("rack1-n2")), 1)]
    arguments = ("bench", *QUICK, "--samples", "500", "--timeout", "1", "-o", written)
    with ThreadPoolExecutor() as beside:
        job = beside.submit(egmctl_under_mpi, nodes, *arguments, options=options)
        while not nodes[1].node.calls("cuEventRecord"):
            assert not job.done(), job.result()
        nodes[1].signal_commands(signal.SIGKILL)
        job.result()
    report = json.loads(written.read_text())
    assert report["exit_code"] == 4
    said = report["result"]["problems"] + [m["reason"] or "" for m in report["result"]["measurements"]]
    assert any("gone or does not respond: rank 2 (node2:GPU0 on rack1-n2)" in words for words in said), said


@pytest.mark.long
def test_an_interruption_of_all_commands_is_a_report_of_what_there_is(fake_node: MakeFakeNode, tmp_path: Path) -> None:
    # As scancel does; a rank that sits in the driver does not end by itself.
    written = tmp_path / "report.json"
    fault = "cuMemImportFromShareableHandle@3=hang"
    nodes = [Place(fake_node(in_domain("rack1-n1")), 2), Place(fake_node(in_domain("rack1-n2")), 1, fault)]
    with ThreadPoolExecutor() as beside:
        job = beside.submit(egmctl_under_mpi, nodes, "bench", *QUICK, "-o", written, options=RECOVER)
        while not any(call.ending == "hang" for call in nodes[1].node.calls()):
            assert not job.done(), job.result()
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
