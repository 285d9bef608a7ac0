"""Commands on GPUs that are more than a process of their own: inside a device cgroup, or as the ranks of a job."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from egmctl.model.gpu import Gpu
from tests.conftest import ROOT, Ended, command_environment, ended


def egmctl_words(*arguments: str | Path) -> list[str]:
    """Return the command line of ``egmctl`` with these arguments."""
    return [sys.executable, "-m", "egmctl", *map(str, arguments)]


def started(
    *arguments: str | Path,
    before: Callable[[], None] | None = None,
    variables: Mapping[str, str | None] | None = None,
    timeout_s: float = 60,
) -> Ended:
    """Run ``egmctl`` as a process of its own.

    Parameters
    ----------
    before
        What that process does before it becomes the command: join a cgroup, say.
    """
    done = ended(egmctl_words(*arguments), env=variables, timeout_s=timeout_s, preexec_fn=before)
    assert "Traceback" not in done.err, done.err
    return done


def minor(gpu: Gpu) -> int:
    """Return the minor number of a GPU's device node."""
    assert gpu.proc is not None
    assert gpu.proc.minor is not None
    return gpu.proc.minor


def mpirun(*ranks: Sequence[str], meanwhile: Callable[[], None] | None = None) -> Ended:
    """Run programs as the ranks of one job, and do something while they run."""
    job = [part for rank in ranks for part in (":", "-n", "1", *rank)][1:]
    process = subprocess.Popen(
        ["mpirun", "--allow-run-as-root", "--oversubscribe", *job],
        env=command_environment({}),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    try:
        if meanwhile is not None:
            meanwhile()
        out, err = process.communicate(timeout=110)
    finally:
        process.kill()
    return Ended(process.returncode, out, err)
