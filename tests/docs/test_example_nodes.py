"""Every example that asks doctor, on every healthy machine and on sick ones: which nodes it lets pass, and why not.

A prolog that drains a healthy node stops a cluster, and one that never asked doctor looks as if it had passed.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from egmctl.doctor.situation import in_domain
from egmctl.facts import replay
from egmctl.model.machine import OriginKind
from tests.command_server import SERVER
from tests.conftest import ROOT
from tests.docs.examples import SICK
from tests.doctor.machines import shipped
from tests.in_process import run

EXAMPLES = ROOT / "docs" / "examples"
HOOKS = ("slurm-prolog.sh", "slurm-epilog.sh")
HEALTHY = replay.machine_names()


def doctors() -> dict[str, list[str]]:
    """Return the words after egmctl with which each example calls doctor."""
    commands = {name: _words(name, r'"\$egmctl" (doctor [^>\n]*)') for name in HOOKS}
    for name in ("node.sbatch", "fabric.sbatch", "kubernetes.yaml", "egmctl-textfile.service"):
        commands[name] = _words(name, r"egmctl (doctor --[^|;&\n]*)")
    (play,) = yaml.safe_load((EXAMPLES / "ansible.yml").read_text())
    (command,) = (task["ansible.builtin.command"] for task in play["tasks"] if "ansible.builtin.command" in task)
    commands["ansible.yml"] = command.split()[3:]
    detector = json.loads((EXAMPLES / "node-problem-detector.json").read_text())
    commands["node-problem-detector.json"] = detector["rules"][0]["args"]
    tree = ast.parse((EXAMPLES / "reframe_egmctl.py").read_text())
    assigned = (node for node in ast.walk(tree) if isinstance(node, ast.Assign))
    options = [ast.literal_eval(node.value) for node in assigned if ast.unparse(node.targets[0]) == "executable_opts"]
    commands["gpud/plugins.yaml"] = _words("gpud/plugins.yaml", r'"\$egmctl" (doctor [^>\n]*) 2>')
    (preflight,) = yaml.safe_load((EXAMPLES / "nvsentinel/values.yaml").read_text())["preflight"]["initContainers"]
    (arguments,) = (variable["value"] for variable in preflight["env"] if variable["name"] == "EGMCTL_ARGS")
    commands["nvsentinel/values.yaml"] = ["doctor", *shlex.split(arguments)]
    commands["reframe_egmctl.py"] = next(words for words in options if words[0] == "doctor")
    return commands


def _words(name: str, pattern: str) -> list[str]:
    lines = (line for line in (EXAMPLES / name).read_text().splitlines() if not line.lstrip().startswith("#"))
    (command,) = re.findall(pattern, "\n".join(lines))
    return shlex.split(command)


def cases() -> list[tuple[str, str]]:
    """Return each example with each machine; the batch script for racks with their trays alone."""
    return [
        (name, machine)
        for name in doctors()
        for machine in HEALTHY
        if name != "fabric.sbatch" or in_domain(shipped(machine))
    ]


def test_every_example_that_asks_doctor_is_tried() -> None:
    files = (path for path in EXAMPLES.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    asking = {str(path.relative_to(EXAMPLES)) for path in files if "doctor" in path.read_text()}
    # These start another example, show what it wrote, or have a machine of their own.
    others = {"egmctl-textfile.timer", "nhc.conf", "prometheus-rules.yml", "grafana-dashboard.json"}
    others |= {"nvsentinel/preflight.py"}
    assert asking - others - {"notebook.ipynb", "Dockerfile", "folder.Dockerfile"} == set(doctors())


@pytest.mark.parametrize(("name", "machine"), cases())
def test_no_example_finds_a_fault_on_a_healthy_machine(name: str, machine: str, tmp_path: Path) -> None:
    words = ["1d" if word == "$since" else word for word in doctors()[name]]
    if "-o" in words:
        words[words.index("-o") + 1] = str(tmp_path / Path(words[words.index("-o") + 1]).name)
    done = run(*words, "--machine", machine)
    text = done.out + "".join(path.read_text() for path in tmp_path.iterdir())
    assert re.search(r"dev\.count-consistency|checks passed|pass=[1-9]", text), "doctor ran"
    is_model = shipped(machine).origin.kind is OriginKind.MODELLED
    assert done.code in ((0, 3) if is_model else (0,)), text


def hooked(name: str, machine: str, place: Path) -> tuple[int, str, str]:
    """Run a prolog or an epilog on a machine; return its exit code, doctor's answer and the reason of the drain."""
    egmctl, scontrol = place / "egmctl", place / "scontrol"
    egmctl.write_text(f'#!/bin/sh\nexec {shlex.join(SERVER.stand_in())} "$@" --machine {machine}\n')
    scontrol.write_text(f'#!/bin/sh\necho "$@" >{place}/drained\n')
    for program in (egmctl, scontrol):
        program.chmod(0o755)
    script = (EXAMPLES / name).read_text()
    for path, stand_in in (("/opt/egmctl/bin/egmctl", egmctl), ("/usr/bin/scontrol", scontrol), ("/var/log", place)):
        script = script.replace(path, str(stand_in))
    environment = {"PATH": os.environ["PATH"], "SLURMD_NODENAME": "node1"}
    done = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, check=False)
    (log,) = place.glob("*.log")
    drained = place / "drained"
    return done.returncode, log.read_text(), drained.read_text() if drained.exists() else ""


@pytest.mark.parametrize("machine", HEALTHY)
@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.long
@pytest.mark.processes
def test_no_hook_drains_a_healthy_node(name: str, machine: str, tmp_path: Path) -> None:
    code, log, drained = hooked(name, machine, tmp_path)
    assert (code, drained) == (0, "")
    assert re.search(r"^EGMCTL (OK|UNKNOWN) - .* pass=[1-9]", log, re.MULTILINE), log


@pytest.mark.parametrize("machine", SICK)
@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.long
@pytest.mark.processes
def test_a_sick_node_is_drained_with_its_cause(name: str, machine: str, tmp_path: Path) -> None:
    code, log, drained = hooked(name, machine, tmp_path)
    assert code == 1, log
    assert f"state=drain reason={SICK[machine]}" in drained


@pytest.mark.parametrize("name", HOOKS)
@pytest.mark.processes
def test_a_hook_without_egmctl_says_so_and_drains_nothing(name: str, tmp_path: Path) -> None:
    script = (EXAMPLES / name).read_text().replace("/opt/egmctl", str(tmp_path)).replace("/var/log", str(tmp_path))
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=False)
    words = f"{tmp_path}/bin/egmctl is not there: this node was not checked\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, "", words)
    assert [path.read_text() for path in tmp_path.glob("*.log")] == [words]
