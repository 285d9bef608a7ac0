"""On GPUs every command is a process of its own, started as a user starts it, by whatever Python is there."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from egmctl.facts.collect import collect
from egmctl.model.gpu import Gpu
from tests.conftest import ROOT, Ended, RunEgmctl, ended


@pytest.fixture(scope="session")
def egmctl() -> RunEgmctl:
    """Run ``egmctl``; the keywords are those of the fixture that it stands in for."""

    def run(
        *arguments: str | Path, env: Mapping[str, str | None] | None = None, cwd: Path = ROOT, timeout_s: float = 60
    ) -> Ended:
        return ended([sys.executable, "-m", "egmctl", *map(str, arguments)], env=env, cwd=cwd, timeout_s=timeout_s)

    return run


@pytest.fixture(scope="session")
def gpus() -> tuple[Gpu, ...]:
    """Return the node's GPUs, two or more."""
    found = collect(("gpus",)).gpus or ()
    if len(found) < 2:
        pytest.skip("needs two GPUs")
    return found
