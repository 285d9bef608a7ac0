"""egmctl in the jobs of a real Slurm that confines their devices, CPUs and memory, and as its prolog and epilog."""

from __future__ import annotations

import contextlib
import gzip
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from egmctl.model.host import System
from egmctl.model.machine import Machine
from egmctl.units import MIB, parse_kernel_list
from tests.conftest import ROOT
from tests.doctor.confined import NOBODY
from tests.doctor.machines import patched
from tests.doctor.real_node import gravest, without_driver
from tests.fake.plugin import MakeFakeNode
from tests.habitat.place import FORKING, LITTLE, SMALL, install, program, with_version_1
from tests.habitat.slurm import Cluster, slurm_cluster
from tests.mpi.nodes import in_domain, tray

pytestmark = [
    pytest.mark.needs_root,
    pytest.mark.needs("slurmd", "slurmctld", "srun", "munged", "mount", "cc"),
    pytest.mark.processes,
    pytest.mark.long,
    without_driver,
    with_version_1,
]

CGROUP, MODES = "dev.cgroup-restricted", "dev.permissions"
EXAMPLES = ROOT / "docs" / "examples"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with slurm_cluster() as running:
        yield running


@pytest.mark.parametrize(
    ("options", "code", "denied", "owner", "remedy"),
    [
        ("--gres=gpu:1", 0, "GPU1-3", "job", "Ask Slurm for all GPUs of the node (--gres=gpu:4)"),
        ("", 1, "GPU0-3", "job", "Ask Slurm for GPUs (--gres=gpu:N, this node has 4): this step has none."),
        ("--ntasks=2 --gpus-per-task=1", 0, "GPU1-3", "task", "Give every task all GPUs of the job (srun --gpu-bind="),
    ],
    ids=["one GPU", "no gres", "a GPU of each task's own"],
)
def test_what_slurm_denies_is_named_with_its_owner_and_with_what_to_ask_for(
    cluster: Cluster, options: str, code: int, denied: str, owner: str, remedy: str
) -> None:
    _, documents = cluster.documents(options, "doctor", "--mpi", "off")
    for number, document in enumerate(documents):
        finding = gravest(document)[CGROUP]
        assert (document["exit_code"], finding["status"]) == (code, "fail" if code else "note")
        assert finding["place"]["label"] == (denied if not number else "GPU0,2-3")
        assert finding["cause"].startswith(f"set by Slurm for this {owner} (/proc/self/cgroup: ")
        assert finding["remedy"]["text"].startswith(remedy)
    assert len(documents) == (2 if owner == "task" else 1)


def test_with_all_gpus_of_the_node_nothing_is_denied(cluster: Cluster) -> None:
    done, (document,) = cluster.documents("--gres=gpu:4", "doctor", "--gpus", "all")
    assert (done.code, gravest(document)[CGROUP]["status"]) == (0, "pass")


def test_another_user_is_told_the_same_as_root_and_what_the_modes_deny(cluster: Cluster) -> None:
    with mode(cluster.node.device(1), 0o600):
        _, (document,) = cluster.documents("--gres=gpu:2", "doctor", user=NOBODY)
        _, (of_root,) = cluster.documents("--gres=gpu:2", "doctor")
    findings, expected = gravest(document), gravest(of_root)
    for finding in (findings[CGROUP], expected[CGROUP]):
        assert finding["place"]["label"] == "GPU2-3"
        assert finding["remedy"]["text"].startswith("Ask Slurm for all GPUs of the node (--gres=gpu:4)")
    assert (findings[MODES]["status"], findings[MODES]["place"]["label"]) == ("fail", "GPU1")
    assert expected[MODES]["status"] == "pass"


@contextlib.contextmanager
def mode(path: Path, bits: int) -> Iterator[None]:
    """Give a file other permissions until the block is left."""
    before = path.stat().st_mode
    path.chmod(bits)
    try:
        yield
    finally:
        path.chmod(before)


def test_of_two_jobs_at_once_each_is_denied_the_gpu_of_the_other(cluster: Cluster) -> None:
    """Each waits until both are there."""
    both = "touch here-$SLURM_JOB_ID; until [ $(ls here-* | wc -l) -eq 2 ]; do sleep 0.1; done; "
    script = both + "egmctl doctor --json; echo ==; egmctl topo --json"
    with cluster.job("--gres=gpu:1", script) as one, cluster.job("--gres=gpu:1", script) as other:
        outputs = [job.communicate(timeout=120)[0] for job in (one, other)]
    usable = {}
    for out in outputs:
        diagnosis, topology = (json.loads(text) for text in out.split("==\n"))
        states = topology["result"]["gpu_states"]
        (usable[gravest(diagnosis)[CGROUP]["place"]["label"]],) = [
            state["label"] for state in states if not state["blocked_by"]
        ]
    assert usable == {"GPU1-3": "GPU0", "GPU0,2-3": "GPU1"}


def test_from_outside_doctor_says_of_a_job_what_it_says_inside(cluster: Cluster) -> None:
    with cluster.job("--gres=gpu:1", "egmctl doctor --json; echo; echo $$; exec sleep 300") as job:
        assert job.stdout is not None
        inside = gravest(json.loads("".join(iter(job.stdout.readline, "\n"))))[CGROUP]
        pid = job.stdout.readline().strip()
        (cluster.node.root / "proc" / pid).symlink_to(f"/proc/{pid}")
        code, findings = cluster.node.doctor("--pid", pid)
        asked_for, _ = cluster.node.doctor("--pid", pid, "--gpus", "all")
    assert (code, asked_for, cluster.node.doctor("--gpus", "all")[0]) == (0, 1, 0), "what runs beside it is not denied"
    assert findings[CGROUP]["place"]["label"] == "GPU1-3"
    assert findings[CGROUP]["remedy"] == inside["remedy"]
    assert findings[CGROUP]["cause"] == inside["cause"].replace("/proc/self/", f"/proc/{pid}/")


def test_a_bench_keeps_to_the_memory_and_the_cpus_of_its_job(cluster: Cluster) -> None:
    sizes = {}
    for memory, cpus in ((1024, 2), (220, 1)):
        options = f"--gres=gpu:1 --mem={memory} --cpus-per-task={cpus}"
        done, (document,) = cluster.documents(options, "bench", "--case", "host_numa_to_device_memcpy_ce")
        (measured,) = [task for task in document["result"]["measurements"] if task["status"] != "waived"]
        assert (done.code, measured["status"]) == (0, "ok"), done.err
        assert cpu_count(document["result"]["machines"][0]["host"]["allowed_cpus"]) == cpus
        sizes[memory] = measured["size_bytes"]
    assert sizes[220] < 110 * MIB < sizes[1024]


def cpu_count(kernel_list: str) -> int:
    return len(parse_kernel_list(kernel_list))


def test_a_bench_measures_what_slurm_gave_and_names_what_it_did_not(cluster: Cluster) -> None:
    done, (document,) = cluster.documents("--gres=gpu:1 --mem=0", "bench", "--quick", path=cluster.forking)
    run = document["result"]
    assert Counter(task["status"] for task in run["measurements"]) == {"ok": 5, "waived": 69}
    assert (done.code, causes(run)) == (0, {CGROUP: "GPU1-3"})


@pytest.mark.parametrize(
    ("options", "code", "answer", "denied"),
    [("--gres=gpu:2 --ntasks=2 --mem=0", 3, "incomplete", "GPU2-3"), ("", 1, "bad", "GPU0-3")],
    ids=["two tasks with two GPUs", "no gres"],
)
def test_bringup_answers_once_with_the_denial_as_its_one_cause(
    cluster: Cluster, options: str, code: int, answer: str, denied: str
) -> None:
    _, (document,) = cluster.documents(options, "bringup", path=cluster.forking)
    result = document["answer"]
    assert (document["exit_code"], result["state"], causes(result)) == (code, answer, {CGROUP: denied})


def causes(result: dict[str, Any]) -> dict[str, str]:
    """Return the place of each cause, by its check."""
    findings = [cause["finding"] for cause in result["causes"]]
    return {finding["check"]: finding["place"]["label"] for finding in findings}


def test_tasks_of_one_step_are_one_job_to_doctor_where_slurm_starts_its_mpi(cluster: Cluster) -> None:
    done, (document,) = cluster.documents("--mpi=pmix --ntasks=2 --gres=gpu:2", "doctor")
    assert (done.code, done.err) == (0, "")
    assert gravest(document)[CGROUP]["place"]["label"] == "GPU2-3"


def test_where_mpi_does_not_start_the_first_task_answers_and_says_so(cluster: Cluster) -> None:
    done, (document,) = cluster.documents("--mpi=none --ntasks=2 --gres=gpu:2", "doctor")
    assert (done.code, gravest(document)[CGROUP]["place"]["label"]) == (0, "GPU2-3")
    assert done.err.startswith("egmctl: the processes of this job cannot talk to each other: MPI_Init ")
    assert done.err.endswith("; the first process of each node answers for that node alone\n")


def test_a_bench_of_one_process_refuses_two_tasks_once_and_says_what_would_do(cluster: Cluster) -> None:
    done, _ = cluster.documents("--ntasks=2 --gres=gpu:2", "bench", "--quick")
    words = "srun started 2 processes, which can only measure --suite fabric, rdma or nccl together; with --mpi "
    assert (done.code, done.err) == (2, f"egmctl: {words}off each measures by itself\n")


@pytest.fixture
def hooked(cluster: Cluster) -> Iterator[Cluster]:
    """Have the prolog and the epilog of the documents run before and after each job on the first node."""
    cluster.wait_for_jobs()
    for name in HOOKS:
        text = (EXAMPLES / f"slurm-{name}.sh").read_text()
        cluster.hook(name, text.replace("/opt/egmctl", str(cluster.folder)).replace("/var/log", str(cluster.folder)))
    yield cluster
    cluster.end_jobs()
    for name in HOOKS:
        cluster.hook(name)


HOOKS = ("prolog", "epilog")


def run_on_first(cluster: Cluster, *command: str | Path) -> int:
    """Run a job with one GPU on the first node, and return its exit code."""
    return cluster.slurm("srun", f"--nodelist={cluster.names[0]}", "--gres=gpu:1", *command).code


@contextlib.contextmanager
def without(cluster: Cluster, *minors: int) -> Iterator[str]:
    """Make GPUs' device nodes again and give the first node back to jobs when the block is left; its name."""
    try:
        yield cluster.names[0]
    finally:
        for minor in minors:
            cluster.node.device(minor).unlink(missing_ok=True)
            cluster.node.make_node(minor)
        cluster.end_jobs()
        cluster.resume(cluster.names[0])


def test_the_prolog_drains_a_node_with_the_fault_as_its_reason_and_a_resumed_node_runs_jobs(hooked: Cluster) -> None:
    with without(hooked, 2, 3) as name:
        for minor in (2, 3):
            hooked.node.device(minor).unlink()
        hooked.slurm("sbatch", f"--nodelist={name}", "--gres=gpu:1", "--wrap=touch it-ran")
        nodes = "there is no device node: /dev/nvidia2, /dev/nvidia3"
        assert hooked.settle(name, "drain") == f"egmctl: dev.nodes-missing: GPU2-3: {nodes}"
        assert "$ nvidia-modprobe -c 2 -c 3" in (hooked.folder / "egmctl-prolog.log").read_text()
        assert len(hooked.jobs()) == 1, "the job is back in the queue"
        assert not (hooked.folder / "out/it-ran").exists()
    assert run_on_first(hooked, "true") == 0
    hooked.wait_for_jobs()
    assert hooked.state(name) == ("idle", "none")


def test_the_epilog_drains_a_node_that_a_job_leaves_with_a_fault(hooked: Cluster) -> None:
    with without(hooked, 2) as name:
        assert run_on_first(hooked, "rm", hooked.node.device(2)) == 0
        reason = "egmctl: dev.nodes-missing: GPU2: there is no device node: /dev/nvidia2"
        assert hooked.settle(name, "drain") == reason


@pytest.mark.parametrize(
    ("script", "machine", "start", "options"),
    [
        ("node.sbatch", SMALL, FORKING, ()),
        ("fabric.sbatch", in_domain("tray"), LITTLE, ("--nodes=2", "--ntasks-per-node=1")),
    ],
    ids=["node.sbatch", "fabric.sbatch"],
)
def test_a_batch_script_of_the_documents_measures(
    cluster: Cluster, fake_node: MakeFakeNode, script: str, machine: Machine, start: str, options: tuple[str, ...]
) -> None:
    """Each Slurm node is a node of its own with one GPU; the rack of 18 and the time that it takes are not here."""
    place, out = cluster.folder / script, cluster.folder / "out"
    place.mkdir()
    for name in cluster.names:
        install(cluster.folder, place / name, fake_node(with_one_gpu(machine, name)).environment(), start=start)
    program(place / "egmctl", f'unset CUDA_VISIBLE_DEVICES\nexec {place}/$SLURMD_NODENAME "$@"')
    ends = cluster.sbatch(*options, EXAMPLES / script, path=place)
    text = "".join(path.read_text() for path in out.glob("egmctl-*.out"))
    assert ends == "JobState=COMPLETED ExitCode=0:0", text
    assert text.startswith(("OK: ", "OK for fabric: ")), "doctor comes first"
    runs = [json.loads(path.read_text())["result"] for path in sorted(out.glob("egmctl-*.json"))]
    assert [len(run["ranks"]) for run in runs] == ([0, 0] if script == "node.sbatch" else [2])
    for run in runs:
        assert "ok" in {task["status"] for task in run["measurements"]} <= {"ok", "waived"}
    for path in out.glob("egmctl-*"):
        path.unlink()


@pytest.fixture
def rack(cluster: Cluster, fake_node: MakeFakeNode) -> Path:
    """Return a folder whose egmctl sees each Slurm node as a tray of one NVLink domain, with one GPU."""
    place = cluster.folder / "rack"
    place.mkdir(exist_ok=True)
    for name in cluster.names:
        shutil.rmtree(place / f"{name}.driver", ignore_errors=True)
        install(cluster.folder, place / name, fake_node(with_one_gpu(tray(name), name)).environment(), start=LITTLE)
    program(place / "egmctl", f'unset CUDA_VISIBLE_DEVICES\nexec {place}/$SLURMD_NODENAME "$@"')
    return place


RACK = ("srun", "--quiet", "--nodes=2", "--ntasks-per-node=1", "--mem=0")


def test_the_tasks_of_two_nodes_bring_up_both_and_the_fabric_between_them_and_answer_once(
    cluster: Cluster, rack: Path
) -> None:
    done = cluster.slurm(*RACK, "--mpi=pmix", "egmctl", "bringup", "--json", path=rack)
    document = json.loads(done.out)
    assert (document["schema"], document["exit_code"]) == ("egmctl.fleet/3", done.code)
    result = document["result"]
    assert [(answer["node"], answer["reach"]) for answer in result["answers"]] == [
        (name, "answered") for name in cluster.names
    ]
    assert "egmctl: 2 tasks on 2 nodes: first each node, then the fabric\n" in done.err
    assert "egmctl: fabric: 1 of 1 pair of 2 GPUs, about " in done.err
    assert "ok" in {m["status"] for m in result["fabric"]["run"]["measurements"]}


def test_without_mpi_each_node_answers_for_itself_and_is_incomplete_without_the_fabric(
    cluster: Cluster, rack: Path
) -> None:
    done = cluster.slurm(*RACK, "--mpi=none", "egmctl", "bringup", "-o", "rack.json", path=rack)
    assert done.err.startswith("egmctl: the fabric is not measured: MPI_Init ")
    answers = [json.loads(path.read_text())["answer"] for path in sorted((cluster.folder / "out").glob("rack*.json"))]
    assert [(answer["state"], answer["gaps"][-1]["kind"]) for answer in answers] == [("incomplete", "fabric")] * 2
    assert done.code == 3


def test_a_fleet_asks_each_node_by_a_step_of_its_own_and_gets_compressed_documents(
    cluster: Cluster, rack: Path
) -> None:
    sent = cluster.folder / "out/sent"
    program(cluster.folder / "rack/tee", f'{rack}/egmctl "$@" | tee -a {sent}')
    nodes = ("-w", ",".join(cluster.names), "--launcher", "srun", "--launcher-options", "--mem=0")
    done = cluster.slurm("egmctl", "fleet", "doctor", *nodes, "--remote-command", rack / "tee", "-o", "fleet", "--json")
    result = json.loads(done.out)["result"]
    reach = {answer["node"]: (answer["reach"], answer["reason"]) for answer in result["answers"]}
    assert reach == dict.fromkeys(cluster.names, ("answered", "")), done.err
    assert b"{" not in sent.read_bytes()
    for answer in result["answers"]:
        document = gzip.decompress((cluster.folder / "out/fleet" / answer["file"]).read_bytes())
        assert json.loads(document)["schema"] == "egmctl.doctor/1"


def with_one_gpu(machine: Machine, host: str) -> Machine:
    """Return a machine with another name, an IMEX service and one GPU."""
    imex = System(daemons=("nvidia-imex",))
    return replace(patched(machine, "host", hostname=host), gpus=(machine.gpus or ())[:1], pairs=(), system=imex)
