"""Runs real MPI jobs: the same program several times under mpirun, on this machine."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.conftest import Ended, ended
from tests.tiers import why_not

MPIRUN = ("mpirun", "--allow-run-as-root", "--oversubscribe")


def mpirun(
    ranks: int,
    program: Sequence[str | Path],
    *,
    env: Mapping[str, str | None] | None = None,
    options: Sequence[str] = (),
    timeout_s: float = 280,
) -> Ended:
    """Run a Python program as ``ranks`` processes of one job; return how the whole job ended."""
    job = ["-n", str(ranks), sys.executable, *map(str, program)]
    return launch(job, env=env, options=options, timeout_s=timeout_s)


def launch(
    job: Sequence[str],
    *,
    env: Mapping[str, str | None] | None = None,
    options: Sequence[str] = (),
    timeout_s: float = 280,
) -> Ended:
    """Run mpirun with what ``job`` says of processes and programs."""
    if (reason := why_not(["mpirun"])) is not None:
        pytest.skip(reason)
    return ended([*MPIRUN, *options, *job], env=env, timeout_s=timeout_s)


def alone(
    program: Sequence[str | Path], *, env: Mapping[str, str | None] | None = None, timeout_s: float = 280
) -> Ended:
    """Run a Python program as one process, without a launcher."""
    return ended([sys.executable, *map(str, program)], env=env, timeout_s=timeout_s)
