"""egmctl in a folder that jobs and containers of every user may read, wherever Python and the checkout lie."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from egmctl.units import MIB
from tests.conftest import ROOT
from tests.doctor.machines import patched, shipped

SMALL = patched(shipped("hgx-h200x4"), "gpus[*].nvml", memory_total_bytes=264 * MIB, memory_used_bytes=0)
"""An HGX node with little memory, which makes small buffers: the fake driver copies them fast."""

CGROUPS = Path("/sys/fs/cgroup")
PATIENCE_S = 60
"""How long a daemon may take, on a machine that is ever so busy."""

with_version_1 = pytest.mark.skipif(
    not (CGROUPS / "devices").is_dir(), reason=f"devices are confined here by version 1: there is no {CGROUPS}/devices"
)

BOUND = {"python": Path(sys.base_prefix), "tree": ROOT, "packages": Path(sysconfig.get_paths()["purelib"])}
"""What is bound into the folder, by its name there."""

_CLEANER = Path(__file__).with_name("clean.sh")


@contextlib.contextmanager
def readable_folder(*cgroups: str) -> Iterator[Path]:
    """Make a temporary folder with Python, the checkout and its packages in it.

    What is in cgroups of these names is killed when the block is left, and when this process is killed.
    """
    folder = Path(tempfile.mkdtemp(prefix="egmctl-habitat-"))
    folder.chmod(0o755)
    (folder / "bin").mkdir()
    for part, source in BOUND.items():
        (folder / part).mkdir()
        # Read-only: whoever removes the folder removes nothing of the checkout.
        subprocess.run(["mount", "-o", "bind,ro", source, folder / part], check=True)
    cleaner = ["sh", str(_CLEANER), str(folder), *cgroups]
    with subprocess.Popen(cleaner, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        yield folder
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


AS_USERS_DO = "-m egmctl"
FORKING = "{folder}/tree/tests/mpi/rank.py"
"""Its children are forks of it."""
LITTLE = f"{FORKING} --little"


def install(folder: Path, place: Path, variables: Mapping[str, str | None], *, start: str = AS_USERS_DO) -> None:
    """Install at ``place`` egmctl on a fake node with these variables, started in one of the three ways above."""
    python = folder / "python/bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    kept = {name: value for name, value in variables.items() if value is not None and name != "EGMCTL_FAKE_LOG"}
    libraries = place.with_suffix(".driver")
    shutil.copytree(str(kept["LD_LIBRARY_PATH"]).partition(os.pathsep)[0], libraries)
    # NVRTC is looked for among the packages of the Python that runs, which are not these.
    compiler = f"{folder}/packages/nvidia/cu13/lib"
    kept |= {"LD_LIBRARY_PATH": f"{libraries}:{compiler}", "PYTHONPATH": f"{folder}/tree:{folder}/packages"}
    exports = "".join(f"export {name}='{value}'\n" for name, value in {**kept, "EGMCTL_NO_JOURNAL": "1"}.items())
    program(place, f'{exports}exec {python} {start.format(folder=folder)} "$@"')


def program(path: Path, script: str = "") -> None:
    """Write a shell script that every user may run."""
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def wait(condition: Callable[[], bool], complaint: str) -> None:
    """Wait until a condition holds."""
    until = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < until, complaint
        time.sleep(0.1)


CGROUP = f"egmctl-podman-{os.getpid()}"


def container(folder: Path) -> list[str]:
    """Return the beginning of a command that runs a container with the programs of this machine, and make its root."""
    root, bound = folder / "rootfs", ["/usr:/usr:ro", *(f"{folder}/{name}:{folder}/{name}:ro" for name in BOUND)]
    for name in ("usr", "proc", "sys", "dev", "run", "etc", "var", "root", f".{folder}"):
        (root / name).mkdir(parents=True)
    # In a user namespace nobody may make what is mounted over.
    for name in ("etc/hosts", "etc/hostname", "etc/resolv.conf", "run/.containerenv"):
        (root / name).touch()
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / name).symlink_to(f"usr/{name}")
    # Podman raises limits as far as the kernel allows, which takes a right that root may lack.
    (folder / "containers.conf").write_text(
        '[containers]\ndefault_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n'
        '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "none"\nruntime = "crun"\nlock_type = "file"\n'
        f'tmp_dir = "{folder}/state"\n'
    )
    # crun refuses cgroups of version 1 beside a mounted version 2 that has controllers.
    hidden = 'umount --lazy /sys/fs/cgroup/unified 2>/dev/null; exec "$@"'
    own = [f"--{name}={folder}/{name}" for name in ("root", "runroot")]
    given = [f"--volume={volume}" for volume in (f"{folder}:{folder}", *bound)]
    return [
        *("setpriv", "--pdeathsig=KILL", "unshare", "--mount", "sh", "-c", hidden, "sh"),
        *("podman", *own, "--storage-driver=vfs"),
        *("run", "--rm", "--pull=never", "--network=host", "--workdir=/", f"--cgroup-parent=/{CGROUP}", *given),
        f"--env=PATH={folder}/bin:/usr/bin:/bin",
    ]


def device_node(name: str, major: int, minor: int) -> dict[str, Any]:
    return {"path": f"/dev/{name}", "type": "c", "major": major, "minor": minor, "fileMode": 0o666}
