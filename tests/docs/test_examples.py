"""The examples of the documents: commands that the parser takes, scripts that run, manifests of the right shape."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import time
from collections import Counter
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from typer.core import TyperGroup
from typer.main import get_command

from egmctl import __version__
from egmctl.bench.plan.cost import job_cost
from egmctl.bench.plan.fabric import make_fabric_plan
from egmctl.bench.plan.placement import modelled
from egmctl.bench.suites import SUITES, select_cases
from egmctl.cli.app import app
from egmctl.model.measurement import Settings
from egmctl.units import MIB
from tests.conftest import ROOT, ended
from tests.doctor.machines import shipped
from tests.in_process import run

EXAMPLES = ROOT / "docs" / "examples"
TEXTS = (
    ROOT / "README.md",
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(path for path in EXAMPLES.rglob("*") if path.is_file()),
)


GROUP = cast(TyperGroup, get_command(app))


def commands() -> list[tuple[str, list[str]]]:
    """Return every egmctl command line of the texts, as the name of its file and its words after egmctl."""
    found = []
    for path in TEXTS:
        text = path.read_text()
        if path.suffix == ".md":
            text = "\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
        for line in text.splitlines():
            for match in re.finditer(
                r"(?:^|[ '])egmctl ((?:bringup|topo|doctor|bench|snapshot|fleet|compare|history|show)\b[^|>;]*)", line
            ):
                if not line.lstrip().startswith("#"):
                    command = re.split(r" #|'$|\|\||&&", match[1])[0]
                    found.append((path.name, shlex.split(command)))
    return found


@pytest.mark.parametrize(("name", "words"), commands())
def test_a_command_of_the_examples_is_one(name: str, words: list[str]) -> None:
    with GROUP.commands[words[0]].make_context(f"{name}: egmctl {words[0]}", words[1:]):
        pass


def test_commands_are_found() -> None:
    """Guards the pattern above: a command that it does not find is one that nobody checks."""
    texts = {"README.md", "compare.md", "doctor.md", "fleet.md", "slurm.md", "fabric.sbatch", "kubernetes.yaml"}
    assert {name for name, _ in commands()} >= texts
    assert len(commands()) >= 40


def consumers() -> list[tuple[str, list[str], list[str]]]:
    """Return each row of the table of programs that use EGM: its name, the command's words, the checks it names."""
    rows = re.findall(
        r"^\| ([^|]+) \| [^|]+ \| `egmctl ([^`]+)` \| (.*) \|$", (ROOT / "docs/egm.md").read_text(), re.MULTILINE
    )
    return [
        (row[0], shlex.split(row[1]), re.findall(r"\[([a-z0-9-]+\.[a-z-]+)\]\(doctor\.md#", row[2])) for row in rows
    ]


def test_the_command_for_a_program_runs_the_checks_that_it_is_said_to() -> None:
    named = {row[0].split(",")[0].split()[0] for row in consumers()}
    assert named == {"Mooncake", "Dynamo", "NCCL", "NVSHMEM", "RAPIDS"}
    for program, words, checks in consumers():
        done = run(*words, "--list")
        listed = {line.split()[0] for line in done.out.splitlines() if line and not line.startswith(" ")}
        assert set(checks) <= listed, program


def run_slurm_script(
    name: str, place: Path, code: int, **environment: str
) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run a prolog or an epilog with an egmctl that ends with this code; return what it did, and its log."""
    fake = place / "egmctl"
    fake.write_text(f'#!/bin/sh\necho "$@"\nexit {code}\n')
    fake.chmod(0o755)
    script = (EXAMPLES / name).read_text().replace("/opt/egmctl/bin/egmctl", str(fake)).replace("/var/log", str(place))
    environment["PATH"] = os.environ["PATH"]
    done = subprocess.run(["sh", "-c", script], env=environment, capture_output=True, text=True, check=False)
    (log,) = place.glob("*.log")
    return done, log.read_text()


@pytest.mark.parametrize("code", [0, 1, 2, 3, 4, 130])
@pytest.mark.processes
def test_the_prolog_fails_for_a_failed_check_and_nothing_else(tmp_path: Path, code: int) -> None:
    done, log = run_slurm_script("slurm-prolog.sh", tmp_path, code)
    assert ((done.returncode != 0), done.stdout, done.stderr) == (code == 1, "", "")
    assert log == "doctor --format nagios --skip imex.channel\n"


@pytest.mark.parametrize("code", [0, 1, 3, 4])
@pytest.mark.processes
def test_the_epilog_asks_for_the_time_of_the_job_alone(tmp_path: Path, code: int) -> None:
    done, log = run_slurm_script("slurm-epilog.sh", tmp_path, code, SLURM_JOB_START_TIME=str(int(time.time()) - 100))
    assert ((done.returncode != 0), done.stdout, done.stderr) == (code == 1, "", "")
    since = re.search(r"doctor --format nagios --skip imex\.channel --since ([0-9]+)s\n$", log)
    assert since is not None
    assert 160 <= int(since[1]) <= 190, "since a minute before it began"


@pytest.mark.processes
def test_the_epilog_looks_at_a_day_where_slurm_does_not_say_when_the_job_began(tmp_path: Path) -> None:
    _, log = run_slurm_script("slurm-epilog.sh", tmp_path, 0, SLURM_JOB_ID="7")
    assert log.splitlines()[0] == "job 7, the kernel's log since 1d"
    assert log.endswith(" --since 1d\n")


def test_the_check_of_nhc_runs_the_prolog_within_its_time() -> None:
    lines = [line for line in (EXAMPLES / "nhc.conf").read_text().splitlines() if not line.startswith("#")]
    whole, check = (re.fullmatch(pattern, line) for pattern, line in zip(NHC, lines, strict=True))
    assert whole is not None
    assert check is not None
    limit = re.search(r"timeout -k ([0-9]+) ([0-9]+) ", (EXAMPLES / "slurm-prolog.sh").read_text())
    assert limit is not None
    assert int(limit[1]) + int(limit[2]) < int(check[1]) < int(whole[1])


NHC = (r"\* \|\| export TIMEOUT=([0-9]+)", r"\* \|\| check_cmd_status -t ([0-9]+) -r 0 /etc/slurm/egmctl-prolog\.sh")


@pytest.mark.parametrize("name", ["fabric.sbatch", "node.sbatch"])
@pytest.mark.processes
def test_a_batch_script_is_one_for_bash(name: str) -> None:
    subprocess.run(["bash", "-n", str(EXAMPLES / name)], check=True)


@pytest.mark.long
def test_the_fabric_of_a_rack_fits_into_the_time_of_its_batch_script() -> None:
    """By our own estimate, with a third to spare; reading and kernels take no longer than writes of copy engines."""
    script = (EXAMPLES / "fabric.sbatch").read_text()
    nodes, tasks = (int(number) for number in re.findall(r"--(?:nodes|ntasks-per-node)=([0-9]+)", script)[:2])
    (hours, minutes) = re.findall(r"--time=([0-9]+):([0-9]+):00", script)[0]
    assert nodes * tasks == 72
    settings = Settings(size_bytes=512 * MIB, copies=None, samples=SUITES["fabric"].samples, timeout_s=60)
    layout = modelled(shipped("gb200-nvl72"), nodes * tasks)
    suite = select_cases((), ("fabric",))
    alike = Counter(re.sub("_sm$", "_ce", case.name.replace("_read_", "_write_")) for case in suite)
    writes = [case for case in suite if case.name in alike]
    cost = job_cost(make_fabric_plan(layout, writes, settings, None), layout)
    seconds = cost.seconds + sum(each.seconds * (alike[each.case] - 1) for each in cost.costs)
    assert len(cost.costs) == len(alike)
    assert seconds * 4 / 3 < 3600 * int(hours) + 60 * int(minutes)


def manifest() -> dict[str, dict[str, Any]]:
    return {one["kind"]: one for one in yaml.safe_load_all((EXAMPLES / "kubernetes.yaml").read_text())}


def test_the_manifest_has_the_kinds_it_names() -> None:
    found = {kind: (one["apiVersion"], one["metadata"]["labels"]["egmctl"]) for kind, one in manifest().items()}
    assert found == {
        "DaemonSet": ("apps/v1", "doctor"),
        "Job": ("batch/v1", "bringup"),
        "ComputeDomain": ("resource.nvidia.com/v1beta1", "bench"),
        "MPIJob": ("kubeflow.org/v2beta1", "bench"),
    }


def test_the_daemon_set_selects_its_own_pods_and_the_bring_up_of_a_node_asks_once() -> None:
    daemons, bring_up = manifest()["DaemonSet"]["spec"], manifest()["Job"]["spec"]
    assert daemons["selector"]["matchLabels"].items() <= daemons["template"]["metadata"]["labels"].items()
    assert (bring_up["backoffLimit"], bring_up["template"]["spec"]["restartPolicy"]) == (0, "Never")
    for spec in (daemons, bring_up):
        check_pod(spec["template"]["spec"])
    (container,) = bring_up["template"]["spec"]["containers"]
    parse(container["command"])


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
    parse(command[command.index("egmctl") :])


def parse(words: list[str]) -> None:
    """Check that this is a command line of egmctl."""
    assert words[0].rpartition("/")[2] == "egmctl"
    with GROUP.commands[words[1]].make_context("egmctl", words[2:]):
        pass


def test_the_alert_rules_are_about_metrics_that_there_are() -> None:
    (group,) = yaml.safe_load((EXAMPLES / "prometheus-rules.yml").read_text())["groups"]
    documented = set(re.findall(r"^\| `(egmctl_[a-z_]+)` \|", (ROOT / "docs/reports.md").read_text(), re.MULTILINE))
    named = {name for rule in group["rules"] for name in re.findall(r"\begmctl_[a-z_]+\b(?!\\)", rule["expr"])}
    assert named - {"egmctl_doctor"} <= documented
    assert len(named) >= 4
    assert all(rule["annotations"]["summary"].startswith("{{ $labels.instance }}: ") for rule in group["rules"])


@pytest.mark.needs("promtool")
@pytest.mark.processes
def test_the_alert_rules_call_for_what_they_should() -> None:
    done = ended(["promtool", "test", "rules", "tests/docs/prometheus-rules.test.yml"])
    assert done.code == 0, done.out + done.err


def test_the_service_writes_the_file_whose_age_is_watched() -> None:
    (command,) = re.findall(r"^ExecStart=(.*)$", (EXAMPLES / "egmctl-textfile.service").read_text(), re.MULTILINE)
    words = shlex.split(command)
    parse(words)
    file = words[words.index("-o") + 1]
    rules = (EXAMPLES / "prometheus-rules.yml").read_text()
    (pattern,) = re.findall(r'node_textfile_mtime_seconds\{file=~"([^"]+)"', rules)
    assert re.fullmatch(pattern.replace("\\\\", "\\"), file)


def test_the_play_takes_the_files_that_make_dist_writes() -> None:
    (play,) = yaml.safe_load((EXAMPLES / "ansible.yml").read_text())
    assert play["vars"]["egmctl_version"] == __version__
    (command,) = (task["ansible.builtin.command"] for task in play["tasks"] if "ansible.builtin.command" in task)
    parse(["egmctl", *command.split()[3:]])
    assert (EXAMPLES / play["vars"]["egmctl_dist"].partition("/")[2]).resolve() == ROOT / "dist"


def test_reframe_is_given_command_lines_that_there_are() -> None:
    tree = ast.parse((EXAMPLES / "reframe_egmctl.py").read_text())
    options = [
        ast.literal_eval(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "executable_opts"
    ]
    assert [words[0] for words in options] == ["doctor", "bench"]
    for words in options:
        parse(["egmctl", *words])


def test_the_image_holds_the_folder_that_make_dist_writes() -> None:
    text = (EXAMPLES / "folder.Dockerfile").read_text()
    (pattern,) = re.findall(r"^ADD dist/(\S+) /opt/$", text, re.MULTILINE)
    for arch in ("x86_64", "aarch64"):
        assert fnmatchcase(f"egmctl-{__version__}-linux-{arch}-cu13.tar.xz", pattern)
        assert arch in text


def check_pod(pod: dict[str, Any]) -> None:
    """Check a pod's parts against each other."""
    volumes = {volume["name"] for volume in pod.get("volumes", ())}
    for container in pod["containers"]:
        assert {"name", "image"} <= container.keys()
        assert {mount["name"] for mount in container.get("volumeMounts", ())} <= volumes
        assert all(isinstance(word, str) for word in (*container.get("command", ()), *container.get("args", ())))
        assert all(isinstance(one["value"], str) for one in container.get("env", ()))
