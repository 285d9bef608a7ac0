"""``--launcher srun`` with a script that stands in for srun: no Slurm is here.

The script takes the options that srun documents, says where it was sent, and runs the command on this machine with its
own standard streams, as srun does on the node. What Slurm itself does is not tested by it.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, RunEgmctl, command_environment
from tests.fleet.lab import ANSWERS, SAYS_VERSION, patient, settle

pytestmark = pytest.mark.processes

FAKE_SRUN = Path(__file__).with_name("fake_srun.sh")


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    shutil.copyfile(FAKE_SRUN, tmp_path / "bin" / "srun")
    (tmp_path / "bin" / "srun").chmod(0o755)
    return tmp_path


def node(cluster: Path, name: str, script: str) -> None:
    (cluster / name).mkdir()
    (cluster / name / "egmctl").write_text(f"#!/bin/sh\n{script}\n")
    (cluster / name / "egmctl").chmod(0o755)


def start(cluster: Path, *arguments: str, program: Sequence[str] = ("-m", "egmctl")) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *program, "fleet", *arguments, "--launcher", "srun", "--json"],
        cwd=cluster,
        env=command_environment(
            {
                "PATH": f"{cluster}/bin:{os.environ['PATH']}",
                "PYTHONPATH": str(ROOT),
                "XDG_STATE_HOME": f"{cluster}/state",
            }
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finished(process: subprocess.Popen[bytes]) -> tuple[dict[str, Any], str]:
    """Return the report of a fleet that was started, and its standard error."""
    out, err = process.communicate(timeout=60)
    report: dict[str, Any] = json.loads(out)["result"]
    return report, err.decode()


def reach(report: dict[str, Any]) -> dict[str, str]:
    return {answer["node"]: answer["reach"] for answer in report["answers"]}


def test_each_node_is_a_step_of_its_own(cluster: Path) -> None:
    node(cluster, "node01", ANSWERS)
    node(cluster, "node02", ANSWERS)
    arguments = ("-w", "node[01-02],gone", "--launcher-options", "--partition=gpu", "--connect-timeout", "7")
    report, err = finished(start(cluster, "doctor", *arguments))
    assert reach(report) == {"node01": "answered", "node02": "answered", "gone": "unreachable"}, err
    assert "Unable to allocate resources" in report["answers"][0]["reason"]
    asked = sorted((cluster / "asked").read_text().splitlines())
    assert len(asked) == 3
    expected = "--partition=gpu --nodes=1 --ntasks=1 --nodelist=node01 --overlap --immediate=7 sh -c "
    assert asked[1].startswith(expected)


@pytest.mark.long
def test_documents_travel_compressed_and_older_nodes_and_folders_have_plain_ones(
    cluster: Path, egmctl: RunEgmctl
) -> None:
    real = f"exec {sys.executable} -m egmctl doctor --machine gh200 --json"
    version = egmctl("--version").out.splitlines()[0]
    for name, command in {"node01": real, "node02": f"unset EGMCTL_ENCODING; {real}"}.items():
        node(cluster, name, f'[ "$1" = --version ] && echo "{version}" && exit; {command} | tee {cluster}/{name}/sent')
    report, err = finished(start(cluster, "doctor", "-w", "node[01-02]", "-o", "out"))
    assert reach(report) == {"node01": "answered", "node02": "answered"}, err
    assert [group["folded"] for group in report["groups"]] == ["node[01-02]"]
    compressed, plain = ((cluster / name / "sent").read_bytes() for name in ("node01", "node02"))
    assert 5 * len(compressed) < len(plain)
    kept = [cluster / "out/nodes" / f"{name}.json.gz" for name in ("node01", "node02")]
    assert [json.loads(gzip.decompress(file.read_bytes())) for file in kept] == [json.loads(plain)] * 2
    # The folder as version 0.1 wrote it, of a run that did not reach the second node.
    kept[1].unlink()
    kept[0].with_suffix("").write_bytes(gzip.decompress(kept[0].read_bytes()))
    kept[0].unlink()
    saved = cluster / "out/fleet.json"
    saved.write_text(saved.read_text().replace(".json.gz", ".json"))
    again, err = finished(start(cluster, "doctor", "--resume", "out"))
    assert [answer["file"] for answer in again["answers"]] == ["nodes/node01.json", "nodes/node02.json.gz"]
    assert [group["folded"] for group in again["groups"]] == ["node[01-02]"], err
    compared = egmctl("compare", *(cluster / "out" / answer["file"] for answer in again["answers"]), "--json")
    assert json.loads(compared.out)["result"]["nodes"][1]["name"] == "node02", compared.err
    assert "node[01-02]" in egmctl("show", cluster / "out").out


@pytest.mark.long
def test_nodes_that_run_at_once_need_few_file_descriptors(cluster: Path) -> None:
    """So that 200 of them, the most at once, fit in the usual limit of 1,024."""
    (cluster / "runs").mkdir()
    together = f"touch {cluster}/runs/$$; until [ $(ls {cluster}/runs | wc -l) -ge 40 ]; do sleep 0.1; done"
    for number in range(1, 41):
        node(cluster, f"n{number:02}", f"{SAYS_VERSION}; {together}; {ANSWERS.partition('; ')[2]}")
    process = start(cluster, "doctor", "-w", "n[01-40]")
    resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (225, 225))
    report, err = finished(process)
    assert report["counts"] == {"answered": 40}, err


@pytest.mark.long
def test_ctrl_c_ends_the_step_through_its_standard_input(cluster: Path) -> None:
    end = f"sleep 0.5; touch {cluster}/ended; exit 130"
    node(cluster, "node01", f"{SAYS_VERSION}; trap '{end}' TERM; touch {cluster}/runs; while :; do sleep 0.1; done")
    process = start(cluster, "bench", "-w", "node01")
    settle((cluster / "runs").exists)
    process.send_signal(signal.SIGINT)
    report, err = finished(process)
    assert process.returncode == 130
    assert re.search(r"retry missing nodes: egmctl fleet bench --resume \S+ --launcher srun\n", err)
    assert report["counts"] == {"interrupted": 1}
    assert (cluster / "ended").exists()


@pytest.mark.long
def test_what_a_launcher_has_started_ends_with_a_fleet_that_is_killed(cluster: Path) -> None:
    """As the ProxyCommand of an ssh that has no connection yet."""
    sleeper = cluster / "bin" / "proxy"
    sleeper.write_bytes(Path("/bin/sleep").read_bytes())
    sleeper.chmod(0o755)
    (cluster / "bin" / "srun").write_text("#!/bin/sh\n(setsid proxy 60 &)\nproxy 60 & proxy 60\n")

    def running() -> int:
        count = 0
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                count += os.readlink(entry / "exe") == str(sleeper)
            except OSError:
                continue
        return count

    with start(cluster, "doctor", "-w", "a", program=patient(1)) as process:
        settle(lambda: running() == 3, "what the launcher starts")
        process.kill()
        process.communicate()
    settle(lambda: running() == 0, "its end")


@pytest.fixture
def small_disk(cluster: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = cluster / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", str(folder)], check=True, timeout=30)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True, timeout=30)


LONG_ANSWER = f"{SAYS_VERSION}; sleep 1; head -c 600000 /dev/zero | tr '\\0' ' '; {ANSWERS.partition('; ')[2]}"
"""White space before a document is valid JSON."""


@pytest.mark.long
@pytest.mark.needs_root
@pytest.mark.needs("mount")
def test_a_disk_that_fills_up_costs_the_node_that_fills_it(cluster: Path, small_disk: Path) -> None:
    node(cluster, "node01", ANSWERS)
    node(cluster, "node02", LONG_ANSWER)
    node(cluster, "node03", f"{SAYS_VERSION}; sleep 30")
    out_folder = small_disk / "out"
    process = start(cluster, "doctor", "-w", "node[01-03]", "-o", str(out_folder))
    report, err = finished(process)
    assert reach(report) == {"node01": "answered", "node02": "lost", "node03": "interrupted"}
    reasons = {answer["node"]: answer["reason"] for answer in report["answers"]}
    assert reasons["node02"].startswith("what it sent could not be kept: cannot write ")
    assert process.returncode == 4
    assert err.splitlines()[-1].endswith(": No space left on device")
    assert json.loads((out_folder / "fleet.json").read_text())["result"]["answers"] == report["answers"]
    assert [path.name for path in (out_folder / "nodes").iterdir()] == ["node01.json.gz"], "nothing half is left"
    for name in ("node02", "node03"):
        shutil.copy(cluster / "node01/egmctl", cluster / name / "egmctl")
    report, err = finished(start(cluster, "doctor", "--resume", str(out_folder)))
    assert report["counts"] == {"answered": 3}, err


@pytest.mark.needs_root
@pytest.mark.needs("mount")
def test_a_report_that_has_no_room_in_the_end_goes_elsewhere(cluster: Path, small_disk: Path) -> None:
    """The first node fills the disk beside the folder, after its own answer has found room there."""
    fills = f"(sleep 0.3; head -c 400000 /dev/zero >{small_disk}/other; true) 2>/dev/null"
    node(cluster, "node01", f"{ANSWERS}; {fills}")
    process = start(cluster, "doctor", "-w", "node01", "-o", str(small_disk / "out"))
    report, err = finished(process)
    assert report["counts"] == {"answered": 1}
    last = err.splitlines()[-1]
    match = re.fullmatch(r"egmctl: cannot write .*fleet.json: No space left on device; the result is in (.*)", last)
    assert match, err
    assert json.loads(Path(match[1]).read_text())["result"]["counts"] == {"answered": 1}
    assert process.returncode == 4
