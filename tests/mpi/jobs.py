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
    job = ["-n", str(ranks), sys.executable, *map(str, program)]
    return launch(job, env=env, options=options, timeout_s=timeout_s)


def launch(
    job: Sequence[str],
    *,
    env: Mapping[str, str | None] | None = None,
    options: Sequence[str] = (),
    timeout_s: float = 100,
) -> Ended:
    """Run mpirun with what ``job`` says of processes and programs."""
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun here")
    return _ended([*MPIRUN, *options, *job], env, timeout_s)


def alone(
    program: Sequence[str | Path], *, env: Mapping[str, str | None] | None = None, timeout_s: float = 100
) -> Ended:
    """Run a Python program as one process, without a launcher."""
    return _ended([sys.executable, *map(str, program)], env, timeout_s)


def _ended(command: Sequence[str], env: Mapping[str, str | None] | None, timeout_s: float) -> Ended:
    done = subprocess.run(
        command,
        env=command_environment(env or {}),
        cwd=ROOT,
        timeout=timeout_s,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    return Ended(done.returncode, done.stdout, done.stderr)
