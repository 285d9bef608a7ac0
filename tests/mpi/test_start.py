"""MPI that does not start ends no command: where tasks cannot talk to each other, one of each node answers for it."""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from egmctl.mpi.world import Launched, MpiFailed, World
from tests.conftest import ROOT, Ended, RunEgmctl
from tests.fake.plugin import MakeFakeNode
from tests.mpi.jobs import launch
from tests.mpi.nodes import QUICK, in_domain

pytestmark = pytest.mark.processes

OPEN_MPI = """
print('''--------------------------------------------------------------------------
The application appears to have been direct launched using "srun",
but OMPI was not built with SLURM's PMI support. There are several options:
--------------------------------------------------------------------------
*** An error occurred in MPI_Init''')
raise SystemExit(1)
"""
"""How Open MPI ends a process of an srun whose PMI it does not know: by exit(3)."""
WAYS = {
    "exit": ("print('PMI2_Init failed', flush=True); os._exit(7)", "MPI_Init exited with code 7 (PMI2_Init failed)"),
    "abort": ("print('no daemon', flush=True); os.abort()", "MPI_Init died from SIGABRT (no daemon)"),
    "crash": ("os.kill(os.getpid(), 11)", "MPI_Init died from SIGSEGV"),
    "Open MPI": (
        OPEN_MPI.replace("raise SystemExit(1)", "sys.stdout.flush(); os._exit(1)"),
        'MPI_Init exited with code 1 (The application appears to have been direct launched using "srun", but OMPI was '
        "not built with SLURM's PMI support.)",
    ),
    "no library": (
        "raise RuntimeError('cannot load MPI library')",
        "there is no mpi4py or no MPI library (cannot load MPI library): pip install 'egmctl[mpi]'",
    ),
}


def stub(folder: Path, starting: str) -> dict[str, str]:
    """Write an mpi4py that does this when it is imported; return the environment in which it is the one."""
    package = folder / "mpi4py"
    package.mkdir()
    (package / "__init__.py").write_text("class rc:\n    pass\n")
    (package / "MPI.py").write_text(
        f"import os, pathlib, sys, time\npathlib.Path({str(folder)!r}, 'started').touch()\n{starting}\n"
    )
    return {"PYTHONPATH": f"{folder}:{ROOT}"}


def task(rank: int, local: int, size: int = 4) -> dict[str, str]:
    """Return what srun tells a task of itself."""
    return {"SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(size), "SLURM_LOCALID": str(local)}


@pytest.mark.parametrize("way", WAYS)
def test_how_mpi_ended_is_the_reason(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, way: str) -> None:
    starting, reason = WAYS[way]
    for name, value in stub(tmp_path, starting).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(MpiFailed) as caught:
        World(Launched(0, 2, "srun", True))
    assert caught.value.reason == reason


@pytest.mark.long
def test_doctor_answers_alone_and_says_why_its_tasks_cannot_talk(
    egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path: Path
) -> None:
    starting, reason = WAYS["exit"]
    env = fake_node(in_domain("rack1-n1")).environment() | stub(tmp_path, starting) | task(0, 0)
    alone = egmctl("doctor", "--mpi", "off", env=env)
    assert not (tmp_path / "started").exists()
    done = egmctl("doctor", env=env)
    assert (done.code, done.out.splitlines()[0].partition(":")[0]) == (alone.code, alone.out.partition(":")[0])
    assert done.err == (
        f"egmctl: the processes of this job cannot talk to each other: {reason}; start them with the launcher of the "
        "MPI that mpi4py loads (its own mpirun, or srun --mpi=pmix), or give --mpi off; the first process of each node "
        "answers for that node alone\n"
    )


def test_what_the_nodes_would_have_compared_is_unknown_with_the_reason(
    egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path: Path
) -> None:
    env = fake_node(in_domain("rack1-n1")).environment() | stub(tmp_path, WAYS["exit"][0]) | task(0, 0)
    done = egmctl("doctor", "--check", "peers.*", "--json", env=env)
    found = json.loads(done.out)["result"]["findings"]
    assert {(one["status"], one["summary"]) for one in found} == {
        ("unknown", "the processes of this job could not talk to each other")
    }
    assert found[0]["evidence"][0]["value"] == WAYS["exit"][1]


def test_bringup_answers_alone_and_is_incomplete_without_the_fabric(
    egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path: Path
) -> None:
    without_gpus = replace(in_domain("rack1-n1"), gpus=(), pairs=())
    env = fake_node(without_gpus).environment() | stub(tmp_path, WAYS["exit"][0]) | task(0, 0)
    written = tmp_path / "node.json"
    done = egmctl("bringup", "-o", "-", "-o", written, env=env)
    reason = WAYS["exit"][1]
    assert done.err == (
        f"egmctl: the fabric is not measured: {reason}; the first process of each node answers for that node alone\n"
    )
    assert "; fabric not measured" in " ".join(done.out.partition("Next: ")[0].split())
    assert json.loads(written.read_text())["answer"]["gaps"][-1] == {
        "kind": "fabric",
        "reason": f"the fabric between the nodes was not measured: {reason}",
        "measurements": [],
        "checks": [],
        "nodes": [],
        "causes": [],
    }


@pytest.mark.parametrize("command", ["doctor", "topo", "bringup"])
def test_another_task_of_a_node_says_and_writes_nothing(
    egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path: Path, command: str
) -> None:
    env = fake_node(in_domain("rack1-n1")).environment() | stub(tmp_path, WAYS["exit"][0]) | task(3, 1)
    done = egmctl(command, "-o", tmp_path / "one.json", env=env)
    assert (done.code, done.out, done.err) == (0, "", "")
    assert not (tmp_path / "one.json").exists()


@pytest.mark.long
@pytest.mark.parametrize("command", ["doctor", "topo"])
def test_the_first_task_of_another_node_writes_a_file_of_its_own(
    egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path: Path, command: str
) -> None:
    env = fake_node(in_domain("rack1-n1")).environment() | stub(tmp_path, WAYS["exit"][0]) | task(2, 0)
    done = egmctl(command, "-o", tmp_path / "one.json", env=env)
    assert done.out
    written = {path.name for path in tmp_path.glob("*.json")}
    assert written == {f"one-{socket.gethostname()}.json"}


def test_what_needs_mpi_says_so_in_one_sentence(egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path: Path) -> None:
    env = fake_node(in_domain("rack1-n1")).environment() | stub(tmp_path, WAYS["exit"][0])
    done = egmctl("bench", *QUICK, "--no-journal", env=env | task(0, 0))
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith(f"egmctl: the processes of this job cannot talk to each other: {WAYS['exit'][1]}; start")
    assert done.err.count("\n") == 1
    other = egmctl("bench", *QUICK, "--no-journal", env=env | task(1, 1))
    assert (other.code, other.out, other.err) == (0, "", "")


def test_what_needs_no_mpi_never_starts_it(egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path: Path) -> None:
    env = fake_node(in_domain("rack1-n1")).environment() | stub(tmp_path, WAYS["exit"][0]) | task(0, 0)
    saved, again = tmp_path / "machine.json", tmp_path / "again.json"
    snapshots = [("snapshot", "-o", file) for file in (saved, again)]
    for command in (*snapshots, ("show", saved), ("compare", saved, again), ("topo",)):
        done = egmctl(*command, env=env)
        assert done.code == 0, done.err
    assert not (tmp_path / "started").exists()


@pytest.mark.long
def test_mpi_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in stub(tmp_path, "time.sleep(600)").items():
        monkeypatch.setenv(name, value)
    waited: list[str] = []
    with pytest.raises(MpiFailed, match=r"MPI_Init: no result within 0\.3 s"):
        World(Launched(0, 2, "srun", True), lambda: waited.append("said"), start_s=0.3)
    assert waited == ["said"]


def test_mpi_reaches_a_launcher_by_the_descriptor_that_pmi_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    for name, value in stub(tmp_path, "os.write(int(os.environ['PMI_FD']), b'init'); os._exit(1)").items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PMI_FD", str(writer))
    with pytest.raises(MpiFailed):
        World(Launched(0, 2, "mpiexec", True))
    assert os.read(reader, 9) == b"init"
    os.close(reader)
    os.close(writer)


def under_mpirun(node: dict[str, str | None], *arguments: str) -> Ended:
    given = [f"{name}={value}" for name, value in node.items() if value is not None]
    return launch(["-n", "2", "env", *given, sys.executable, "-m", "egmctl", *arguments])


@pytest.mark.long
@pytest.mark.needs("mpirun")
def test_two_tasks_of_mpirun_answer_once(fake_node: MakeFakeNode, tmp_path: Path) -> None:
    env = dict(fake_node(in_domain("rack1-n1")).environment()) | stub(tmp_path, WAYS["abort"][0])
    done = under_mpirun(env, "doctor", "--json")
    assert json.loads(done.out)["schema"].startswith("egmctl.doctor/")
    assert done.err.count("cannot talk to each other") == 1
