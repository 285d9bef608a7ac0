"""One file for those who have a Python and do not want the folder: a pex for several Pythons of one architecture."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from packaging.tags import compatible_tags, cpython_tags

from artifacts.archive import sha256

PYTHONS = ("3.10", "3.11", "3.12", "3.13")
NEWEST_GLIBC = 28
"""2.28: what wheels may need. Older ones are looked for, too, back to 2.5 of manylinux1."""


def make_pex(target: Path, wheel: Path, lock: Path, arch: str, pex: Path, epoch: int) -> None:
    """Write a pex of egmctl and everything in the lock file that fits the architecture and :data:`PYTHONS`."""
    requirements = target.with_suffix(".requirements")
    requirements.write_text(f"{lock.read_text()}egmctl @ file://{wheel} --hash=sha256:{sha256(wheel)}\n")
    command: list[str | Path] = [pex, "--requirement", requirements, "--intransitive", "--output-file", target]
    # Unpacked once into a virtual environment: child processes start from there, as from any other.
    # With the tools that make a virtual environment of it, without network: that starts fastest.
    command += ["--console-script", "egmctl", "--venv", "--sh-boot", "--include-tools", "--no-build"]
    # ClusterShell's samples and manual pages, which pex leaves out and then misses, are read by nobody.
    command += ["--no-emit-warnings"]
    # They are asked for by the wheel and never imported.
    command += ["--exclude", "cuda-python", "--exclude", "cuda-core"]
    for python in PYTHONS:
        command += ["--complete-platform", json.dumps(platform(python, arch))]
    try:
        subprocess.run(command, check=True, env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)})
    finally:
        requirements.unlink()


def platform(python: str, arch: str) -> dict[str, object]:
    """Describe a CPython such as ``"3.10"`` on Linux, as pex wants it: the wheels it takes, and its markers."""
    version = tuple(map(int, python.split(".")))
    legacy = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    platforms = [f"{name}_{arch}" for minor in range(NEWEST_GLIBC, 4, -1) for name in _names(minor, legacy)]
    tags = [*cpython_tags(version, platforms=platforms), *compatible_tags(version, f"cp{python}", platforms)]
    markers = {
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": arch,
        "platform_python_implementation": "CPython",
        "platform_release": "",
        "platform_system": "Linux",
        "platform_version": "",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }
    return {"compatible_tags": [str(tag) for tag in tags], "marker_environment": markers}


def _names(minor: int, legacy: dict[int, str]) -> list[str]:
    return [f"manylinux_2_{minor}", *([legacy[minor]] if minor in legacy else [])]
