"""What the tests of this folder share: the node's GPUs, and commands that are started inside a device cgroup."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from egmctl.model.gpu import Gpu
from tests.conftest import ROOT, Ended, command_environment


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
    done = subprocess.run(
        [sys.executable, "-m", "egmctl", *map(str, arguments)],
        env=command_environment(variables or {}),
        preexec_fn=before,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Ended(done.returncode, done.stdout, done.stderr)


def minor(gpu: Gpu) -> int:
    """Return the minor number of a GPU's device node."""
    assert gpu.proc is not None
    assert gpu.proc.minor is not None
    return gpu.proc.minor
