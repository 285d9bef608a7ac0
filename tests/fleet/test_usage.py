"""What is wrong with a command line is told before any node is asked."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import ROOT, RunEgmctl


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("doctor",), "no nodes: name them, as in -w node[01-72]"),
        (("nonsense", "-w", "a"), "fleet has no such command as 'nonsense'; valid are snapshot, topo"),
        (
            ("doctor", "-w", "a", "--launcher", "rsh"),
            "--launcher: there is no such launcher as 'rsh'; valid are ssh, srun",
        ),
        (("doctor", "-w", "a", "--launcher", "srun"), "egmctl: --launcher srun: there is no srun in the PATH\n"),
        (("doctor", "-w", "a", "--launcher-options", "'"), '--launcher-options "\'": No closing quotation'),
        (("doctor", "-w", "a", "--", "--quick"), "no such option: --quick"),
        (("bench", "-w", "a", "--quick"), "put options of the command on the nodes after --; 'egmctl fleet --help'"),
        (("bench", "-w", "a", "--", "-o", "x.json"), "after --, -o is not allowed: fleet collects JSON from each node"),
        (("topo", "-w", "a", "--", "--machine", "gh200"), "after --, --machine is not allowed"),
        (("doctor", "-w", "a", "--", "--format", "prom"), "after --, --format is not allowed"),
        (("doctor", "-w", "a", "--", "--expect", "domain-gpus=x"), "--expect 'domain-gpus=x' is no count"),
        (("bench", "-w", "a", "--", "--list"), "after --, --list is not allowed"),
        (("doctor", "-w", "a", "--fanout", "0"), "0 is not in the range"),
        (("doctor", "--resume", "x", "-w", "a"), "--resume repeats the earlier command: leave out -w"),
        (("doctor", "--resume", "x"), "x is not a folder of egmctl fleet: it has no readable fleet.json"),
    ],
)
def test_what_makes_no_sense_is_refused(
    egmctl: RunEgmctl, tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    """Where there is no ssh, too: what the user can mend at once is told first."""
    done = egmctl("fleet", *arguments, cwd=tmp_path, env={"PATH": str(tmp_path)})
    assert (done.code, done.out) == (2, ""), done.err
    assert sentence in done.err
    assert list(tmp_path.iterdir()) == [], "no folder was made"


@pytest.mark.parametrize("arguments", [("--expect", "gpus=4, domain-gpus=28"), ("--expect=domain-gpus = 28",)])
def test_the_gpus_of_the_domain_are_read_as_the_nodes_read_them(
    egmctl: RunEgmctl, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    (tmp_path / "ssh").symlink_to("/bin/false")
    done = egmctl("fleet", "doctor", "-w", "a", "--json", "--", *arguments, cwd=tmp_path, env={"PATH": str(tmp_path)})
    assert json.loads(done.out)["result"]["asked"]["domain_gpus"] == 28, done.err


def test_where_clustershell_is_missing_it_is_one_sentence(egmctl: RunEgmctl, tmp_path: Path) -> None:
    (tmp_path / "ClusterShell.py").write_text("raise ImportError('not here')\n")
    done = egmctl("fleet", "doctor", "-w", "a", env={"PYTHONPATH": f"{tmp_path}:{ROOT}"}, cwd=tmp_path)
    assert (done.code, done.err) == (2, "egmctl: 'egmctl fleet' needs ClusterShell: pip install 'egmctl[fleet]'\n")
