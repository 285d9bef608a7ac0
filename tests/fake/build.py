"""Compiles the fake driver's libraries with ``cc``, once for each content of its sources."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

SOURCES = Path(__file__).parent / "driver"

CUDA, NVML, VERBS, MLX5 = "libcuda.so.1", "libnvidia-ml.so.1", "libibverbs.so.1", "libmlx5.so.1"

_SHARED = ("answers.c", "calls.c", "faults.c", "traffic.c")
_OF_LIBRARY = {
    CUDA: (
        "devices.c",
        "contexts.c",
        "physical.c",
        "regions.c",
        "alloc.c",
        "vmm.c",
        "share.c",
        "pools.c",
        "share_pools.c",
        "rates.c",
        "queues.c",
        "streams.c",
        "ipc_events.c",
        "values.c",
        "copies.c",
        "kernels.c",
        "kernels_latency.c",
        "modules.c",
        "symbols.c",
    ),
    NVML: ("nvml.c", "nvml_values.c", "nvml_structures.c"),
    VERBS: ("verbs.c",),
    MLX5: ("verbs.c",),
}
_OPTIONS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-g", "-fPIC", "-fvisibility=hidden", "-shared", "-pthread")
_LIBRARIES = ("-ldl", "-lm")


class NoCompiler(Exception):
    """This machine has no ``cc``."""


def build() -> Path:
    """Return a folder with both libraries, compiled now or before.

    Raises
    ------
    NoCompiler
        If there is no ``cc`` and the libraries were not compiled before.
    """
    cache = Path(tempfile.gettempdir(), f"egmctl-fake-driver-{os.getuid()}")
    cache.mkdir(mode=0o700, exist_ok=True)
    if cache.stat().st_uid != os.getuid():
        raise PermissionError(f"{cache} belongs to someone else")
    folder = cache / _identity()
    if folder.exists():
        return folder
    if shutil.which("cc") is None:
        raise NoCompiler("there is no C compiler (cc) to build the fake driver with")
    with open(cache / "lock", "w") as lock:
        # Test processes that run side by side: one builds, the others wait for it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            with tempfile.TemporaryDirectory(dir=cache) as work:
                for name in _OF_LIBRARY:
                    compile_library(name, Path(work, name))
                Path(work).chmod(0o755)
                shutil.copytree(work, folder.with_suffix(".new"), dirs_exist_ok=True)
                folder.with_suffix(".new").rename(folder)
    return folder


def without_symbols(library: Path, names: Iterable[str], place: Path) -> None:
    """Write a copy of a library that lacks exported functions.

    Parameters
    ----------
    names
        Without version suffixes; their versions (``_v2`` and so on) go as well.
    """
    content = library.read_bytes()
    for name in names:
        # The name in the table of dynamic strings no longer fits the hash that it is looked up by.
        pattern = rb"\0" + re.escape(name.encode()) + rb"(?=(_v[0-9])?\0)"
        content, count = re.subn(pattern, b"\0-" + name.encode()[1:], content)
        if not count:
            raise ValueError(f"{library.name} has no function {name}")
    place.write_bytes(content)


def compile_library(name: str, place: Path, *options: str, compiler: str = "cc") -> None:
    """Compile :data:`CUDA` or :data:`NVML` to ``place``, with more options for the compiler.

    Raises
    ------
    RuntimeError
        With what ``cc`` wrote.
    """
    files = [str(SOURCES / source) for source in (*_SHARED, *_OF_LIBRARY[name])]
    command = [compiler, *_OPTIONS, *options, f"-Wl,-soname,{name}", "-o", str(place), *files, *_LIBRARIES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"cc failed on the fake driver's {name}:\n{done.stderr}")


@functools.cache
def _identity() -> str:
    content = hashlib.sha256(f"{platform.machine()} {_OPTIONS} {_LIBRARIES} {_OF_LIBRARY}".encode())
    for path in sorted(SOURCES.glob("*.[ch]")):
        content.update(path.name.encode() + path.read_bytes())
    return content.hexdigest()[:16]
