"""From a file on a stick to the first verdict: the commands of docs/installing.md, run and timed in a clean system."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from proof.systems import Inside

HEADING = "## From a file on a stick to the first verdict"
STICK = "/media/stick"
MEASURES = "bringup"
"""The command that wants idle GPUs: tests/gpu/prove_folder.sh runs what it is made of."""


def commands(page: Path) -> list[str]:
    """Return the commands that the page lists, but the one that measures."""
    text = page.read_text().partition(HEADING)[2]
    (block,) = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)[:1]
    lines = [line.partition(" #")[0].rstrip() for line in block.splitlines()]
    return [line for line in lines if MEASURES not in line]


def timed(page: Path, inside: Inside, node: Mapping[str, str]) -> Iterator[tuple[str, int, float, str]]:
    """Yield each command, its exit code, its seconds and the first line of its output, as a user without network."""
    for line in commands(page):
        if line == f"cd {STICK}":
            continue
        began = time.monotonic()
        done = inside.run(f"cd /artefacts && {line}", 1000, node if "egmctl " in line else {})
        yield line, done.returncode, time.monotonic() - began, (done.stdout or done.stderr).partition("\n")[0]
