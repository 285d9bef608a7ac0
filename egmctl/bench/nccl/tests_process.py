"""A process that runs the binaries of nccl-tests, one after the other, and passes on what they print.

The binaries stay in this process's group, so they end with it (:mod:`egmctl.launch.process`).
"""

from __future__ import annotations

import subprocess
from typing import Any

from egmctl.bench.nccl.table import is_complete
from egmctl.launch import Channel

KEPT = 64 << 10
"""The number of characters that are passed on of the end of each output."""


def run(parent: Channel, arguments: dict[str, Any]) -> None:
    """Run the binaries, and report each to the parent.

    Parameters
    ----------
    arguments
        ``programs``: the path of the binary by collective; ``options``: the further words of the command line.
    """
    parent.send({"event": "started", "versions": {}})
    for name, program in arguments["programs"].items():
        done = subprocess.run(  # noqa: S603 - a binary of nccl-tests in PATH
            [program, *arguments["options"]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
        parent.send({"event": "ran", "collective": name, "exit_code": done.returncode, "output": done.stdout[-KEPT:]})
        if done.returncode and not is_complete(done.stdout):
            return
