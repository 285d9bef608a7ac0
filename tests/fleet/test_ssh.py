"""``egmctl fleet`` over real ssh: to hosts with an sshd each, in namespaces of their own (``lab.py``)."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import pty
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egmctl import __version__
from tests.conftest import ROOT, Ended, command_environment
from tests.doctor.machines import patched
from tests.fake.node import load
from tests.fake.plugin import MakeFakeNode
from tests.fleet.lab import ANSWERS, SAYS_VERSION, Lab, on, settle
from tests.schemas import validate

pytestmark = [pytest.mark.needs_root, pytest.mark.needs("ssh", "sshd", "ip")]

BENCH = ("--case", "device_to_device_memcpy_write_ce", "--samples", "1", "--size", "1M", "--gpus", "0-1")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab(tmp_path) as made:
        yield made


def result(ended: Ended) -> dict[str, Any]:
    """Return the report that was printed, whatever else was."""
    document = json.loads(ended.out)
    validate(document, "fleet")
    assert document["exit_code"] == ended.code
    results: dict[str, Any] = document["result"]
    return results


def answers(ended: Ended) -> dict[str, dict[str, Any]]:
    return {answer["node"]: answer for answer in result(ended)["answers"]}


def finished(process: subprocess.Popen[bytes]) -> Ended:
    """Return how a command that was started ended."""
    out, err = process.communicate(timeout=60)
    return Ended(process.returncode, out.decode(), err.decode())


def files(folder: Path) -> list[str]:
    """Return the names of the files of a run, whatever folder of it they are in."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


@pytest.mark.long
def test_the_folder_is_copied_to_nodes_and_run_there_as_the_guide_says(lab: Lab) -> None:
    (block,) = re.findall(r"```sh\n(clush .*?)```", (ROOT / "docs/fleet.md").read_text(), re.DOTALL)
    home = {node: lab.folder / f"home-{node}" for node in ("node01", "node02")}
    for node, folder in home.items():
        folder.mkdir()
        lab.host(node, None, environment=f"HOME={folder}")
    name = re.findall(r"egmctl-\S+?-cu13", block)[0]
    program = lab.folder / name / "bin/egmctl"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{ANSWERS}\n")
    program.chmod(0o755)
    subprocess.run(("tar", "-cJf", f"{name}.tar.xz", name), cwd=lab.folder, check=True)
    (lab.folder / "arrived").mkdir()
    block = block.replace("/tmp/", f"{lab.folder}/arrived/").replace("01-72", "01-02")  # noqa: S108
    *copying, asking = block.splitlines()
    clush = (sys.executable, "-m", "ClusterShell.CLI.Clush", "-o", f"-F {lab.folder}/ssh_config")
    for line in copying:
        words = lab.inside(*clush, *shlex.split(line)[1:])
        subprocess.run(words, cwd=lab.folder, check=True, timeout=100, stdin=subprocess.DEVNULL)
    ended = lab.run(*shlex.split(asking)[1:], "--json")
    assert {node: answer["reach"] for node, answer in answers(ended).items()} == dict.fromkeys(home, "answered")
    assert all((folder / name / "bin/egmctl").is_file() for folder in home.values())


@pytest.mark.long
def test_whatever_a_node_does_is_a_result_and_nothing_is_left_behind(lab: Lab) -> None:
    noise = lab.folder / "noise"
    noise.write_text(f"echo 'Welcome! {{ \"schema\": 1 }}'; echo on stderr >&2; echo x >>{lab.folder}/made\n")
    lab.host("node01", ANSWERS)
    lab.host("noisy", ANSWERS, environment=f"BASH_ENV={noise}")
    lab.host("other", f'[ "$1" = --version ] || touch {lab.folder}/was-run; echo egmctl 0.0.1')
    lab.host("lacks", None)
    lab.host("silent", None, listening=False)
    lab.host("floods", f"{SAYS_VERSION}; exec cat /dev/zero")
    lab.host("babbles", f"{SAYS_VERSION}; printf 'h\\033[31mello'")
    nodes = "node01,noisy,other,lacks,silent,floods,babbles"
    ended = lab.run("fleet", "doctor", "-w", nodes, "--connect-timeout", "3", "--json", "-o", "out")
    results = answers(ended)
    assert {node: answer["reach"] for node, answer in results.items()} == {
        "node01": "answered",
        "noisy": "answered",
        "other": "wrong-version",
        "lacks": "no-egmctl",
        "silent": "unreachable",
        "floods": "flooded",
        "babbles": "garbage",
    }
    assert (lab.folder / "made").exists(), "noise was made"
    assert results["other"]["reason"] == f"egmctl 0.0.1, not egmctl {__version__}; nothing was run"
    assert not (lab.folder / "was-run").exists()
    assert results["silent"]["reason"].startswith("ssh: connect to host 10.77.")
    assert "sent more than 64 MiB" in results["floods"]["reason"]
    assert "is not JSON" in results["babbles"]["reason"]
    assert ended.code == 4, "a node without an answer counts as a crash"
    folder = lab.folder / "results" / "out"
    assert files(folder) == ["fleet.json", "node01.json.gz", "noisy.json.gz"]
    assert json.loads((folder / "fleet.json").read_text()) == json.loads(ended.out)
    assert (
        json.loads(gzip.decompress((folder / "nodes" / "node01.json.gz").read_bytes()))["schema"] == "egmctl.doctor/1"
    )
    for node in results:
        settle(lambda node=node: not lab.processes(node))  # type: ignore[misc]


@pytest.mark.long
def test_the_example_in_the_documentation_is_what_is_printed(lab: Lab, fake_node: MakeFakeNode) -> None:
    whole = on(fake_node("hgx-h200x4").environment())
    for name in ("node01", "node02", "node03"):
        lab.host(name, whole)
    lab.host(
        "node04", on(fake_node(patched(load("hgx-h200x4"), "gpus[2].nvml.nvlinks[0]", active=False)).environment())
    )
    _, _, example = (ROOT / "docs/fleet.md").read_text().partition("```console\n")
    shown, _, _ = example.partition("\n```")[0].partition("...")
    done = lab.run("fleet", "doctor", "-w", "node[01-04]")
    said = re.sub("[0-9]{8}T[0-9]{6}Z", "20261120T221828Z", done.out)
    # How many checks there are is not what the example is about.
    totals = "[0-9]+ (?=unknown|pass|skip)"
    assert re.sub(totals, "", said).startswith(re.sub(totals, "", shown))


@pytest.mark.long
def test_resume_asks_only_the_nodes_that_lack_and_any_version_where_that_is_said(lab: Lab) -> None:
    lab.host("node01", f"{ANSWERS}; echo x >>{lab.folder}/times")
    lab.host("node02", f"{ANSWERS.replace(f'egmctl {__version__} ', 'egmctl 0.0.1 ', 1)}; echo x >>{lab.folder}/times")
    ended = lab.run("fleet", "doctor", "-w", "node[01-02]", "-o", "out", "--json")
    assert (ended.code, answers(ended)["node02"]["reach"]) == (4, "wrong-version")
    options = f"-F {lab.folder}/ssh_config"
    assert f"egmctl fleet doctor --resume out --launcher-options '{options}'\n" in ended.err
    ended = lab.run("fleet", "doctor", "--resume", "out", "--any-version", "--json")
    assert (ended.code, ended.err) == (0, "")
    assert [answer["version"] for answer in answers(ended).values()] == [f"egmctl {__version__}", "egmctl 0.0.1"]
    again = lab.run("fleet", "doctor", "--resume", "out")
    assert again.out.splitlines()[:3] == ["GO: 2 of 2 nodes are ready", "", "OK 2: node[01-02]"]
    assert (lab.folder / "times").read_text() == "x\nx\n", "each node ran it once"


def slow(lab: Lab) -> str:
    """Return an egmctl that takes a while to end when it is told to."""
    end = f"sleep 0.5; echo ended >{lab.folder}/end; exit 130"
    return f"{SAYS_VERSION}; trap '{end}' TERM; touch {lab.folder}/runs; while :; do sleep 0.1; done"


@pytest.mark.long
def test_ctrl_c_ends_what_runs_on_the_nodes_and_keeps_what_is_there(lab: Lab) -> None:
    lab.host("node01", ANSWERS)
    lab.host("node02", slow(lab))
    process = lab.start("fleet", "doctor", "-w", "node[01-02]", "-o", "out", "--json")
    folder = lab.folder / "results" / "out"
    settle(lambda: (lab.folder / "runs").exists() and (folder / "nodes" / "node01.json.gz").exists())
    os.killpg(process.pid, signal.SIGINT)
    ended = finished(process)
    assert ended.code == 130, ended.err
    assert [answer["reach"] for answer in result(ended)["answers"]] == ["answered", "interrupted"]
    assert (lab.folder / "end").exists(), "it was waited for until it had ended its own children"
    assert not lab.processes("node02")
    assert files(folder) == ["fleet.json", "node01.json.gz"]


@pytest.mark.long
def test_a_terminal_is_shown_how_far_it_is_and_its_ctrl_c_does_not_reach_the_ssh_processes(lab: Lab) -> None:
    lab.host("node01", "echo garbage")
    lab.host("node02", slow(lab))
    command = lab.command("fleet", "doctor", "-w", "node[01-02]")
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(lab.folder)
        os.execvpe(command[0], command, command_environment({"TERM": "xterm", "COLUMNS": "200"}))  # noqa: S606
    shown, typed = b"", False
    with contextlib.suppress(OSError), open(terminal, "r+b", buffering=0) as keyboard:
        while chunk := keyboard.read(65536):
            shown += chunk
            if b"1 failed, the last node01" in shown and (lab.folder / "runs").exists() and not typed:
                typed = bool(keyboard.write(b"\x03"))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert b"1 of 2" in shown
    assert b"1 under way, 1 failed, the last node01, stopping them" in shown
    assert (lab.folder / "end").exists(), "ssh lived on until the command on the node had ended"


@pytest.mark.long
def test_ctrl_c_asks_no_node_whose_turn_has_not_come_and_until_then_no_other_run_may_use_the_folder(lab: Lab) -> None:
    lab.host("node01", slow(lab))
    lab.host("node02", slow(lab))
    process = lab.start("fleet", "doctor", "-w", "node[01-02]", "--fanout", "1", "-o", "out", "--json")
    settle((lab.folder / "runs").exists)
    second = lab.run("fleet", "doctor", "--resume", "out")
    assert (second.code, second.err) == (2, "egmctl: another egmctl fleet is using out\n")
    process.terminate()
    ended = finished(process)
    assert ended.code == 130
    assert result(ended)["counts"] == {"interrupted": 1, "not-asked": 1}
    assert "--resume" in ended.err


@pytest.mark.long
def test_ctrl_c_ends_a_real_bench_and_its_children(lab: Lab, fake_node: MakeFakeNode) -> None:
    node = fake_node("hgx-h200x4")
    lab.host("node01", on(node.environment()))
    process = lab.start(
        "fleet", "bench", "-w", "node01", "-o", str(lab.folder / "out"), "--json", "--", *BENCH, "--duration", "100"
    )
    settle(lambda: len(node.calls("cuLaunchKernel")) > 1, seconds=60)
    os.killpg(process.pid, signal.SIGINT)
    ended = finished(process)
    assert (ended.code, lab.processes("node01")) == (130, []), ended.err
    (answer,) = answers(ended).values()
    assert answer["reach"] == "interrupted"
    document = json.loads(gzip.decompress((Path(result(ended)["folder"]) / answer["file"]).read_bytes()))
    assert document["result"]["interrupted"], "what it had measured until then"


@pytest.mark.long
def test_where_the_folder_of_results_is_removed_each_node_says_so_and_nothing_goes_on(lab: Lab) -> None:
    waits = f"until [ -e {lab.folder}/gone ]; do sleep 0.1; done"
    lab.host("node01", f"{SAYS_VERSION}; touch {lab.folder}/runs; {waits}")
    lab.host("node02", f"{SAYS_VERSION}; exec sleep 1000")
    process = lab.start("fleet", "doctor", "-w", "node[01-02]", "-o", "out")
    settle((lab.folder / "runs").exists)
    shutil.rmtree(lab.folder / "results/out")
    (lab.folder / "gone").touch()
    ended = finished(process)
    assert ended.code == 4
    text = " ".join(ended.out.split())
    assert text.startswith("BROKE: 0 of 2 nodes are ready, 2 are unknown ")
    why = "what it sent could not be kept: cannot read out/nodes/.NODE.part: No such file or directory"
    assert why in text
    settle(lambda: not lab.processes("node01") and not lab.processes("node02"))


@pytest.mark.long
def test_a_second_ctrl_c_waits_for_no_node(lab: Lab) -> None:
    told = f"trap 'touch {lab.folder}/told' TERM"
    lab.host("node01", f"{SAYS_VERSION}; {told}; touch {lab.folder}/runs; while :; do sleep 0.1; done")
    process = lab.start("fleet", "bench", "-w", "node01", kill_after_s=6)
    settle((lab.folder / "runs").exists)
    os.killpg(process.pid, signal.SIGINT)
    settle((lab.folder / "told").exists)
    assert process.poll() is None
    os.killpg(process.pid, signal.SIGINT)
    assert finished(process).code == 130
    assert lab.processes("node01"), "it was not waited for"
    settle(lambda: not lab.processes("node01"))


@pytest.mark.long
def test_a_command_on_a_node_ends_with_the_fleet_that_is_killed(lab: Lab) -> None:
    lab.host("node01", f"{SAYS_VERSION}; touch {lab.folder}/runs; exec sleep 1000")
    process = lab.start("fleet", "bench", "-w", "node01")
    settle((lab.folder / "runs").exists)
    process.kill()
    process.communicate()
    settle(lambda: not lab.processes("node01"))


@pytest.mark.long
def test_a_command_ends_with_its_time_also_where_the_node_is_cut_off(lab: Lab) -> None:
    for name in ("node01", "hangs"):
        lab.host(name, f"{SAYS_VERSION}; touch {lab.folder}/{name}-runs; exec sleep 1000")
    alive = ("--launcher-options", f"-F {lab.folder}/ssh_config -oServerAliveInterval=1 -oServerAliveCountMax=3")
    process = lab.start("fleet", "bench", "-w", "node01,hangs", "--timeout", "6", "--json", *alive)
    settle(lambda: (lab.folder / "node01-runs").exists() and (lab.folder / "hangs-runs").exists())
    lab.cut("node01")
    results = answers(finished(process))
    assert {node: answer["reach"] for node, answer in results.items()} == {"hangs": "timed-out", "node01": "lost"}
    assert results["hangs"]["reason"] == "the command did not end in 6 s and was stopped"
    assert "not responding" in results["node01"]["reason"]
    settle(lambda: not lab.processes("node01") and not lab.processes("hangs"))


def test_the_options_reach_the_node_as_they_were_given(lab: Lab) -> None:
    lab.host("node01", f'{SAYS_VERSION}; printf "%s\\n" "$@" >>{lab.folder}/words; {ANSWERS}')
    nasty = ["--gpus", f"$(touch {lab.folder}/pwned) `id` 'a' \"b\" ; & | > * ~ \\ %hosts", "--check", "a.*"]
    ended = lab.run("fleet", "doctor", "-w", "node01", "--", *nasty)
    assert ended.code == 0, ended.err
    assert (lab.folder / "words").read_text().splitlines() == ["doctor", "--json", *nasty]
    assert not (lab.folder / "pwned").exists()


@pytest.mark.long
def test_every_command_of_a_real_egmctl_and_why_one_has_no_result(lab: Lab, fake_node: MakeFakeNode) -> None:
    real = on(fake_node("hgx-h200x4").environment())
    lab.host("node01", real)
    lab.host("node02", real)
    asked = {"snapshot": ("node[01-02]",), "topo": ("node[01-02]",), "bench": ("node01", "--", *BENCH)}
    for command, (nodes, *options) in asked.items():
        ended = lab.run("fleet", command, "--json", "-w", nodes, *options)
        (group,) = result(ended)["groups"]
        assert (ended.code, group["folded"]) == (0, nodes), ended.out
        assert any("FAKE" in line["value"] for line in group["lines"])
    ended = lab.run("fleet", "bench", "-w", "node01", "--json", "--", "--gpus", "9")
    (answer,) = answers(ended).values()
    assert (ended.code, answer["reach"], answer["state"]) == (4, "failed", "broke"), "a node without a result"
    assert answer["reason"] == "--gpus '9': there is no GPU 9; the GPUs here are 0-3"
