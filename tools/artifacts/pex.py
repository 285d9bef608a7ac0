"""One file for those who have a Python and do not want the folder: a pex for several Pythons of one architecture."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from artifacts.archive import sha256

PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def make_pex(target: Path, wheel: Path, lock: Path, arch: str, pex: Path, epoch: int) -> None:
    """Write a pex of egmctl and everything in the lock file that fits the architecture and :data:`PYTHONS`."""
    requirements = target.with_suffix(".requirements")
    requirements.write_text(f"{lock.read_text()}egmctl @ file://{wheel} --hash=sha256:{sha256(wheel)}\n")
    command: list[str | Path] = [pex, "--requirement", requirements, "--intransitive", "--output-file", target]
    # Unpacked once into a virtual environment: child processes start from there, as from any other.
    command += ["--console-script", "egmctl", "--venv", "--sh-boot", "--no-build"]
    # They are asked for by the wheel and never imported.
    command += ["--exclude", "cuda-python", "--exclude", "cuda-core"]
    for python in PYTHONS:
        command += ["--platform", f"manylinux_2_28_{arch}-cp-{python}.0-cp{python.replace('.', '')}"]
    try:
        subprocess.run(command, check=True, env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)})
    finally:
        requirements.unlink()
