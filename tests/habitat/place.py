"""egmctl in a folder that jobs and containers of every user may read, wherever Python and the checkout lie."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from egmctl.units import MIB
from tests.conftest import ROOT
from tests.doctor.machines import patched, shipped

SMALL = patched(shipped("hgx-h200x4"), "gpus[*].nvml", memory_total_bytes=264 * MIB, memory_used_bytes=0)
"""An HGX node with little memory, which makes small buffers: the fake driver copies them fast."""

CGROUPS = Path("/sys/fs/cgroup")
PATIENCE_S = 60
"""How long a daemon may take, on a machine that is ever so busy."""

BOUND = {"python": Path(sys.base_prefix), "tree": ROOT, "packages": Path(sysconfig.get_paths()["purelib"])}
"""What is bound into the folder, by its name there."""


@contextlib.contextmanager
def readable_folder(name: str) -> Iterator[Path]:
    """Make a temporary folder with Python, the checkout and its packages in it."""
    with tempfile.TemporaryDirectory(prefix=f"egmctl-{name}-") as path, contextlib.ExitStack() as stack:
        folder = Path(path)
        folder.chmod(0o755)
        (folder / "bin").mkdir()
        for part, source in BOUND.items():
            (folder / part).mkdir()
            subprocess.run(["mount", "--bind", source, folder / part], check=True)
            stack.callback(_unmount, folder / part)
        yield folder


def _unmount(place: Path) -> None:
    subprocess.run(["umount", "--lazy", place], check=True)


def install(folder: Path, place: Path, variables: Mapping[str, str | None]) -> None:
    """Install at ``place`` the command that runs egmctl on a fake node with these variables."""
    python = folder / "python/bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    kept = {name: value for name, value in variables.items() if value is not None and name != "EGMCTL_FAKE_LOG"}
    libraries = place.with_suffix(".driver")
    shutil.copytree(str(kept["LD_LIBRARY_PATH"]).partition(os.pathsep)[0], libraries)
    kept |= {"LD_LIBRARY_PATH": str(libraries), "PYTHONPATH": f"{folder}/tree:{folder}/packages"}
    exports = "".join(f"export {name}='{value}'\n" for name, value in {**kept, "EGMCTL_NO_JOURNAL": "1"}.items())
    program(place, f'{exports}exec {python} -m egmctl "$@"')


def program(path: Path, script: str = "") -> None:
    """Write a shell script that every user may run."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def remove_cgroups(name: str) -> None:
    """Kill what is left in the cgroups of version 1 of this name, and remove them."""
    for top in CGROUPS.glob(f"*/{name}"):
        for procs in top.glob("**/cgroup.procs"):
            for pid in procs.read_text().split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        for folder in sorted((path for path in top.glob("**") if path.is_dir()), reverse=True):
            wait(partial(_removed, folder), f"{folder} stays")


def _removed(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        folder.rmdir()
    return not folder.exists()


def wait(condition: Callable[[], bool], complaint: str) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, complaint
        time.sleep(0.1)
