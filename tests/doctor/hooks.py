"""What a test has a child of the launcher do, before it is the child or as its target: it runs there, by name."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from egmctl.launch import Channel

_libc = ctypes.CDLL(None)


def join_cgroup(arguments: dict[str, Any]) -> None:
    """Move the calling process into the cgroup ``directory``."""
    Path(arguments["directory"], "cgroup.procs").write_text(str(os.getpid()))


def say_who(parent: Channel, arguments: dict[str, Any]) -> dict[str, Any]:
    """Say what the kernel says of this process, and what Python would still import; wait for a word if told to."""
    file = os.open("/proc/self/status", os.O_RDONLY)
    lines = os.read(file, 1 << 16).split(b"\n")
    os.close(file)
    said: dict[str, Any] = dict(line.decode().split(":\t", 1) for line in lines if b":\t" in line)
    said["dumpable"] = _libc.prctl(3, 0, 0, 0, 0)  # PR_GET_DUMPABLE
    said["finders"] = [*map(str, sys.meta_path), *sys.path]
    try:
        importlib.import_module("this")
        said["import"] = "ok"
    except ImportError:
        said["import"] = "ImportError"
    if arguments.get("wait"):
        parent.send({"pid": os.getpid()})
        parent.receive(timeout_s=30)
    return said


def raise_error(_parent: Channel, _arguments: dict[str, Any]) -> None:
    """Raise what nobody expects."""
    raise RuntimeError("out of order")
