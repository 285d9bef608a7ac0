"""The gpud plugin against gpud's contract (leptonai/gpud 4a8de33a, its guide of plugins and pkg/custom-plugins)."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.command_server import SERVER
from tests.conftest import ROOT

PLUGINS = ROOT / "docs" / "examples" / "gpud" / "plugins.yaml"
SPEC = {"plugin_name", "plugin_type", "run_mode", "interval", "timeout", "health_state_plugin"}
"""Of the fields of a Spec (types.go), those that the example has."""


def plugin() -> Any:
    """Return the one plugin of the file."""
    (spec,) = yaml.safe_load(PLUGINS.read_text())
    return spec


def script() -> str:
    (step,) = plugin()["health_state_plugin"]["steps"]
    return str(step["run_bash_script"]["script"])


def minutes(duration: str) -> int:
    """Return a duration of whole minutes, as Go writes it."""
    (number,) = re.findall(r"^([0-9]+)m$", duration)
    return int(number)


def test_the_plugin_is_one_that_gpud_takes() -> None:
    spec = plugin()
    assert spec.keys() == SPEC
    assert (spec["plugin_type"], spec["run_mode"]) == ("component", "auto")
    assert minutes(spec["interval"]) >= 1, "gpud refuses less than a minute"
    (step,) = spec["health_state_plugin"]["steps"]
    assert step["run_bash_script"]["content_type"] == "plaintext"


def test_the_doctor_ends_before_gpud_ends_the_plugin() -> None:
    (kill, limit) = map(int, re.findall(r"timeout -k ([0-9]+) ([0-9]+) ", script())[0])
    assert kill + limit < 60 * minutes(plugin()["timeout"]) == 60


def run(place: Path, egmctl: str | None) -> tuple[int, dict[str, Any]]:
    """Run the script as gpud does: with pipefail, output and errors in one file, where the first ``{`` begins JSON.

    Returns
    -------
    tuple
        The exit code, and what gpud's paths find in the JSON.
    """
    program = place / "egmctl"
    if egmctl is not None:
        program.write_text(f"#!/bin/sh\n{egmctl}\n")
        program.chmod(0o755)
    text = "#!/bin/bash\nset -o pipefail\n" + script().replace("/opt/egmctl/bin/egmctl", str(program))
    done = subprocess.run(
        ["bash", "-c", text],
        env={"PATH": os.environ["PATH"]},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
    )
    document, _ = json.JSONDecoder().raw_decode(done.stdout[done.stdout.index("{") :])
    paths = plugin()["health_state_plugin"]["parser"]["json_paths"]
    return done.returncode, {path["field"]: _at(document, path["query"]) for path in paths}


def _at(document: dict[str, Any], query: str) -> Any:
    value: Any = document
    for key in query.removeprefix("$.").split("."):
        value = value[key]
    return value


@pytest.mark.parametrize(
    ("code", "state", "ends"),
    [
        *((0, "good", 0), (0, "warn", 0), (1, "bad", 1), (3, "incomplete", 0), (4, "broke", 0)),
        *((2, None, 0), (4, None, 0)),
    ],
)
@pytest.mark.processes
def test_gpud_calls_a_node_unhealthy_for_a_failed_check_alone(
    tmp_path: Path, code: int, state: str | None, ends: int
) -> None:
    """An error document, whose answer is null, has nothing that gpud's paths could read."""
    answer = "null" if state is None else json.dumps({"state": state, "word": state.upper(), "sentence": "as it is"})
    egmctl = f"echo 'egmctl: {{a brace' >&2; cat <<'EOF'\n{{\"answer\": {answer}}}\nEOF\nexit {code}"
    ended, extra = run(tmp_path, egmctl)
    assert (ended, extra["state"]) == (ends, state or "broke")


@pytest.mark.parametrize("egmctl", [None, "printf '{\"answer\": '; kill -9 $$"])
@pytest.mark.processes
def test_a_doctor_that_is_missing_or_dies_is_no_fault_of_the_node(tmp_path: Path, egmctl: str | None) -> None:
    """gpud calls a node unhealthy whose plugin writes half a document."""
    ended, extra = run(tmp_path, egmctl)
    assert (ended, extra["state"]) == (0, "broke")
    assert re.fullmatch(r"egmctl ended with [0-9]+", extra["summary"])


@pytest.mark.parametrize(("machine", "ends"), [("hgx-h200x4", 0), ("h200-links-down", 1)])
@pytest.mark.long
@pytest.mark.processes
def test_the_real_doctor_writes_what_the_paths_find(tmp_path: Path, machine: str, ends: int) -> None:
    ended, extra = run(tmp_path, f'exec {shlex.join(SERVER.stand_in())} "$@" --machine {machine}')
    assert (ended, extra["state"] == "bad") == (ends, bool(ends))
    assert extra.keys() == {"state", "answer", "summary"}
