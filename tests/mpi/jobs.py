"""Runs real MPI jobs: the same program several times under mpirun, on this machine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.conftest import ROOT, Ended, command_environment

MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe")


def mpirun(
    ranks: int,
    program: Sequence[str | Path],
    *,
    env: Mapping[str, str | None] | None = None,
    options: Sequence[str] = (),
    timeout_s: float = 100,
) -> Ended:
    """Run a Python program as ``ranks`` processes of one job; return how the whole job ended."""
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun here")
    return alone(program, env=env, timeout_s=timeout_s, before=[*MPIRUN, *options, "-n", str(ranks)])


def alone(
    program: Sequence[str | Path],
    *,
    env: Mapping[str, str | None] | None = None,
    timeout_s: float = 100,
    before: Sequence[str] = (),
) -> Ended:
    """Run a Python program as one process, or by the launcher ``before`` it."""
    done = subprocess.run(
        [*before, sys.executable, *map(str, program)],
        env=command_environment(env or {}),
        cwd=ROOT,
        timeout=timeout_s,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)
