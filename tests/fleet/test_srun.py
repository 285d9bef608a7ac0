"""``--launcher srun`` with a script that stands in for srun: no Slurm is here.

The script takes the options that srun documents, says where it was sent, and runs the command on this machine with its
own standard streams, as srun does on the node. What Slurm itself does is not tested by it.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, command_environment
from tests.fleet.lab import ANSWERS, SAYS_VERSION, settle

pytestmark = pytest.mark.processes

FAKE_SRUN = """#!/bin/sh
# A stand-in for srun.
printf '%s\\n' "$*" >>{folder}/asked
while [ $# -gt 0 ]; do
    case $1 in
        --nodelist=*) node=${{1#*=}}; shift ;;
        --*) shift ;;
        *) break ;;
    esac
done
if [ "$node" = gone ]; then
    echo 'srun: error: Unable to allocate resources: Requested node configuration is not available' >&2
    exit 1
fi
PATH={folder}/$node:$PATH exec "$@"
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "srun").write_text(FAKE_SRUN.format(folder=tmp_path))
    (tmp_path / "bin" / "srun").chmod(0o755)
    return tmp_path


def node(cluster: Path, name: str, script: str) -> None:
    (cluster / name).mkdir()
    (cluster / name / "egmctl").write_text(f"#!/bin/sh\n{script}\n")
    (cluster / name / "egmctl").chmod(0o755)


def start(cluster: Path, *arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "egmctl", "fleet", *arguments, "--launcher", "srun", "--json"],
        cwd=cluster,
        env=command_environment({"PATH": f"{cluster}/bin:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_each_node_is_a_step_of_its_own(cluster: Path) -> None:
    node(cluster, "node01", ANSWERS)
    node(cluster, "node02", ANSWERS)
    arguments = ("-w", "node[01-02],gone", "--launcher-options", "--partition=gpu", "--connect-timeout", "7")
    process = start(cluster, "doctor", *arguments)
    out, err = process.communicate(timeout=60)
    document = json.loads(out)
    reach = {answer["node"]: answer["reach"] for answer in document["result"]["answers"]}
    assert reach == {"node01": "answered", "node02": "answered", "gone": "unreachable"}, err
    assert "Unable to allocate resources" in document["result"]["answers"][0]["reason"]
    asked = sorted((cluster / "asked").read_text().splitlines())
    assert len(asked) == 3
    expected = "--partition=gpu --nodes=1 --ntasks=1 --nodelist=node01 --overlap --immediate=7 sh -c "
    assert asked[1].startswith(expected)


def test_ctrl_c_ends_the_step_through_its_standard_input(cluster: Path) -> None:
    end = f"sleep 1; touch {cluster}/ended; exit 130"
    node(cluster, "node01", f"{SAYS_VERSION}; trap '{end}' TERM; touch {cluster}/runs; while :; do sleep 0.1; done")
    process = start(cluster, "bench", "-w", "node01")
    settle((cluster / "runs").exists)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert re.search(r"again: egmctl fleet bench --resume \S+ --launcher srun\n", err.decode())
    assert json.loads(out)["result"]["counts"] == {"interrupted": 1}
    assert (cluster / "ended").exists()


def test_what_a_launcher_has_started_ends_with_a_fleet_that_is_killed(cluster: Path) -> None:
    """As the ProxyCommand of an ssh that has no connection yet."""
    sleeper = cluster / "bin" / "proxy"
    sleeper.write_bytes(Path("/bin/sleep").read_bytes())
    sleeper.chmod(0o755)
    (cluster / "bin" / "srun").write_text("#!/bin/sh\n(setsid proxy 60 &)\nproxy 60 & proxy 60\n")

    def running() -> int:
        found = 0
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                found += os.readlink(entry / "exe") == str(sleeper)
            except OSError:
                continue
        return found

    with start(cluster, "doctor", "-w", "a") as process:
        settle(lambda: running() == 3, "what the launcher starts")
        process.kill()
        process.communicate()
    settle(lambda: running() == 0, "its end", 40)
