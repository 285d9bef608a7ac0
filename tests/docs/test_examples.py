"""The examples of the documents: commands that the parser takes, scripts that run, manifests of the right shape."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from typer.core import TyperGroup
from typer.main import get_command

from egmctl.cli.app import app
from tests.conftest import ROOT, RunEgmctl

EXAMPLES = ROOT / "docs" / "examples"
TEXTS = (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), *sorted(EXAMPLES.iterdir()))


def commands() -> list[tuple[str, list[str]]]:
    """Return every egmctl command line of the texts, as the name of its file and its words after egmctl."""
    found = []
    for path in TEXTS:
        text = path.read_text()
        if path.suffix == ".md":
            text = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
        for line in text.splitlines():
            for match in re.finditer(
                r"(?:^|[ '])egmctl ((?:topo|doctor|bench|snapshot|fleet|compare|show)\b[^|>;]*)", line
            ):
                if not line.lstrip().startswith("#"):
                    command = re.split(r" #|'$|\|\||&&", match[1])[0]
                    found.append((path.name, shlex.split(command)))
    return found


@pytest.mark.parametrize(("name", "words"), commands())
def test_a_command_of_the_examples_is_one(name: str, words: list[str]) -> None:
    group = cast(TyperGroup, get_command(app))
    with group.commands[words[0]].make_context(f"{name}: egmctl {words[0]}", words[1:]):
        pass


def test_commands_are_found() -> None:
    """Guards the pattern above: a command that it does not find is one that nobody checks."""
    texts = {"README.md", "compare.md", "doctor.md", "fleet.md", "running.md", "fabric.sbatch", "kubernetes.yaml"}
    assert {name for name, _ in commands()} >= texts
    assert len(commands()) >= 40


@pytest.mark.parametrize(("code", "drains"), [(0, False), (1, True), (2, False), (3, False), (4, False), (130, False)])
@pytest.mark.processes
def test_the_prolog_fails_for_a_failed_check_and_nothing_else(tmp_path: Path, code: int, drains: bool) -> None:
    script = (EXAMPLES / "slurm-prolog.sh").read_text()
    fake = tmp_path / "egmctl"
    fake.write_text(f'#!/bin/sh\necho "$@"\nexit {code}\n')
    fake.chmod(0o755)
    log = tmp_path / "log"
    script = script.replace("/opt/egmctl/bin/egmctl", str(fake)).replace("/var/log/egmctl-prolog.log", str(log))
    done = subprocess.run(["sh", "-c", script], env={}, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) is drains
    assert (done.stdout, done.stderr) == ("", "")
    assert log.read_text() == "doctor --brief --for egm,p2p,fabric --skip imex.channel\n"


def test_the_prolog_leaves_a_node_alone_on_which_no_job_has_a_channel(egmctl: RunEgmctl) -> None:
    (words,) = re.findall(r'"\$egmctl" (doctor [^>]*) >', (EXAMPLES / "slurm-prolog.sh").read_text())
    assert egmctl(*words.split(), "--machine", "hgx-h200x4").code == 0
    assert egmctl("doctor", "--for", "fabric", "--machine", "hgx-h200x4").code == 1, "it has none"


@pytest.mark.processes
def test_the_batch_script_is_one_for_bash() -> None:
    subprocess.run(["bash", "-n", str(EXAMPLES / "fabric.sbatch")], check=True)


def manifest() -> dict[str, dict[str, Any]]:
    return {one["kind"]: one for one in yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())}


def test_the_manifest_has_the_kinds_it_names() -> None:
    versions = {kind: one["apiVersion"] for kind, one in manifest().items()}
    assert versions == {
        "DaemonSet": "apps/v1",
        "ComputeDomain": "resource.nvidia.com/v1beta1",
        "MPIJob": "kubeflow.org/v2beta1",
    }
    labels = {kind: one["metadata"]["labels"]["egmctl"] for kind, one in manifest().items()}
    assert labels == {"DaemonSet": "doctor", "ComputeDomain": "bench", "MPIJob": "bench"}


def test_the_daemon_set_selects_its_own_pods_and_mounts_what_it_has() -> None:
    spec = manifest()["DaemonSet"]["spec"]
    template = spec["template"]
    assert spec["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    check_pod(template["spec"])


def test_the_job_has_a_rank_for_every_gpu_and_claims_the_channel_of_its_domain() -> None:
    job, domain = manifest()["MPIJob"]["spec"], manifest()["ComputeDomain"]["spec"]
    launcher, worker = job["mpiReplicaSpecs"]["Launcher"], job["mpiReplicaSpecs"]["Worker"]
    assert job["launcherCreationPolicy"] in ("AtStartup", "WaitForWorkersReady")
    assert job["runPolicy"]["cleanPodPolicy"] in ("None", "Running", "All")
    for replica in (launcher, worker):
        check_pod(replica["template"]["spec"])
    (container,) = worker["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == job["slotsPerWorker"]
    command = launcher["template"]["spec"]["containers"][0]["command"]
    assert int(command[command.index("-n") + 1]) == job["slotsPerWorker"] * worker["replicas"]
    assert domain["numNodes"] == worker["replicas"]
    (claim,) = worker["template"]["spec"]["resourceClaims"]
    assert claim["resourceClaimTemplateName"] == domain["channel"]["resourceClaimTemplate"]["name"]
    assert container["resources"]["claims"] == [{"name": claim["name"]}]
    words = command[command.index("egmctl") + 1 :]
    with cast(TyperGroup, get_command(app)).commands[words[0]].make_context("egmctl", words[1:]):
        pass


def check_pod(pod: dict[str, Any]) -> None:
    """Check a pod's parts against each other."""
    volumes = {volume["name"] for volume in pod.get("volumes", ())}
    for container in pod["containers"]:
        assert {"name", "image"} <= container.keys()
        assert {mount["name"] for mount in container.get("volumeMounts", ())} <= volumes
        assert all(isinstance(word, str) for word in (*container.get("command", ()), *container.get("args", ())))
        assert all(isinstance(one["value"], str) for one in container.get("env", ()))
