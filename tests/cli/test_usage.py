"""Wrong use is one sentence, exit code 2, and an error document where JSON was asked for."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import fields

import pytest

from egmctl.api.options import BenchOptions, DoctorOptions
from egmctl.cli.bench import RunOptions
from egmctl.cli.doctor import WayOptions
from egmctl.cli.fleet import FleetOptions
from egmctl.cli.output import OutputOptions
from tests.in_process import run

NO_FORMAT = "the suffix '{}' names no format"
SECTIONS = "valid are all and host,gpus,pairs,switches,nics,driver,process,confinement,system,kernel_log"
ON_TRAY = {
    "topo --gpus 9": "--gpus '9': there is no GPU 9; the GPUs here are 0-3",
    "topo --gpus 3-1": "--gpus '3-1' runs backwards",
    "topo --gpus ''": "--gpus is empty",
    "topo --gpus x": "--gpus 'x' is not a GPU",
    "topo --numa 7": "there is no CPU NUMA node 7; the CPU NUMA nodes here are 0-1",
    "topo --json --csv": "--json and --csv exclude each other",
    "topo -o topo.xml": NO_FORMAT.format(".xml"),
    "topo -o missing/topo.txt": "missing is not a directory",
    "doctor --for egm,speed": "--for 'speed': no such purpose; valid are egm, p2p, ipc, fabric, rdma, perf",
    "doctor --check drv.version": "--check 'drv.version': there is no such check; did you mean drv.versions",
    "doctor --skip '*'": "leave no check",
    "doctor --explain x": "--explain 'x': there is no such check",
    "doctor --gpus 9": "there is no GPU 9; the GPUs here are 0-3",
    "doctor --numa 7": "there is no CPU NUMA node 7",
    "doctor --expect gpus=many": "--expect 'gpus=many' is no count, not egm and no domain; valid are gpus=8,nics=4,",
    "doctor --expect domain=1": "--expect 'domain=1' is no count, not egm and no domain; valid are gpus=8,nics=4,",
    "doctor --expect domain,racks=2": "--expect 'racks=2' is no count, not egm and no domain; valid are gpus=8,nics=4,",
    "doctor --expect domain-gpus": "--expect domain-gpus does not say how many; valid are gpus=8",
    "doctor --expect nonesuch": "--expect: no count such as gpus=8,nics=4,numa=2, and there is no machine 'none",
    "doctor --expect gpus": "--expect gpus does not say how many; valid are gpus=8,nics=4,numa=2,egm,d",
    "doctor --expect hgx-h200": "there is no machine 'hgx-h200'; did you mean hgx-h200x4? --machine list shows all",
    "doctor --json --format prom": "--json and --format prom exclude each other",
    "doctor --brief -v": "--brief and --verbose exclude each other",
    "doctor --list --format prom": "--format prom: no such format here; valid are text, json",
    "doctor --list --explain numa.mode": "--list and --explain exclude each other",
    "doctor -o found.csv": f"found.csv: {NO_FORMAT.format('.csv')}; valid are .txt, .json, .html, .svg, .md",
    "doctor -o a.json -o a.json": "a.json is given 2 times; give it once",
    "bringup --gpus 9": "there is no GPU 9",
    "bringup --gpus ''": "--gpus is empty; ",
    "bringup --numa ''": "--numa is empty; ",
}
ELSEWHERE = {
    "--no-such": "no such option: --no-such; 'egmctl --help' says what is valid",
    "topo --no-such": "no such option: --no-such; 'egmctl topo --help' says what is valid",
    "no-such": "no such command 'no-such'; the commands are bringup, topo, bench, watch, doctor, explain, snapshot, ",
    "profile no-such": "no such command 'no-such'; the commands are list, show, match, learn",
    "topo --machine missing.json": "missing.json",
    "topo --machine pyproject.toml": "pyproject.toml is not JSON",
    "snapshot --sections gpu": SECTIONS,
    "snapshot --sections ''": SECTIONS,
    "snapshot --sections host,": SECTIONS,
    "snapshot --sections host,,nics": SECTIONS,
    "snapshot --sections probes": SECTIONS,
    "snapshot -o node.txt": ".json",
    "compare none.json": "file none.json cannot be read: No such file or directory",
    "compare README.md README.md": "file README.md is not JSON",
    "compare a.json b.json --tolerance 100": "it must be from 0 to below 100 per cent",
    "show none.json": "file none.json cannot be read: No such file or directory",
    "show profiles/machines/gh200.json --format nagios": "no such format here",
    "docs fabrik": "docs has no topic 'fabrik'; did you mean fabric?",
    "docs ../README": "docs has no topic '../README'",
}
WRONG = {f"{line} --machine gb200-tray": sentence for line, sentence in ON_TRAY.items()} | ELSEWHERE


@pytest.mark.parametrize(("line", "sentence"), WRONG.items())
def test_wrong_use_is_one_sentence(line: str, sentence: str) -> None:
    done = run(*shlex.split(line))
    assert (done.code, done.out == "") == (2, "--json" not in line)
    assert sentence in done.err
    assert (done.err.count("\n"), done.err[:8]) == (1, "egmctl: ")


@pytest.mark.parametrize("command", ["bench", "doctor", "bringup", "topo", "compare", "fleet"])
def test_help_shows_at_most_ten_options_and_help_before_the_headings(command: str) -> None:
    first, *headed = re.split(r"\n\n(?=[A-Z][A-Za-z ]+:\n)", run(command, "--help").out.partition("\nOptions:\n")[2])
    assert len(re.findall(r"^  -", first, re.M)) <= 11
    assert {"Output"} <= {part.partition(":")[0] for part in headed}


def test_each_heading_of_help_has_options() -> None:
    groups = (BenchOptions, DoctorOptions, OutputOptions, RunOptions, WayOptions, FleetOptions)
    for group in groups:
        named = [name for names in group.HEADINGS.values() for name in names.split()]
        assert set(named) <= {field.name for field in fields(group)}, group


@pytest.mark.parametrize("line", ["topo --gpus 9 --machine gh200", "doctor --gpus 9 --machine gh200", "topo --no-such"])
def test_with_json_it_is_a_document_too(line: str) -> None:
    done = run(*line.split(), "--json")
    document = json.loads(done.out)
    assert (done.code, document["exit_code"], document["errors"][0]["code"]) == (2, 2, "usage")


def test_for_nagios_it_is_unknown() -> None:
    assert run("doctor", "--machine", "gb200-tray", "--gpus", "9", "--exit-style", "nagios").code == 3
