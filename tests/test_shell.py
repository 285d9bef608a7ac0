"""Shell programs are files of their own, which a shell can read before it runs them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

SCRIPTS = sorted(
    path for folder in ("docs", "egmctl", "tests", "tools") for path in (ROOT / folder).rglob("*.sh") if path.is_file()
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: str(path.relative_to(ROOT)))
@pytest.mark.processes
def test_a_script_is_one_for_any_posix_shell(script: Path) -> None:
    done = subprocess.run(["sh", "-n", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_scripts_are_found() -> None:
    assert {"build_python.sh", "inside.sh", "measure.sh", "node_watch.sh", "slurm-prolog.sh"} <= {
        script.name for script in SCRIPTS
    }
