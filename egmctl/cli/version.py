"""``--version``: the tool, the bindings and the driver, without loading either of the latter."""

from __future__ import annotations

import os
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from egmctl import __version__
from egmctl.files import read_bounded


def versions() -> str:
    """Return one line a part: what it is and its version, or that it is not there."""
    return (
        f"egmctl {__version__}\n"
        f"cuda-bindings {_distribution('cuda-bindings')}\n"
        f"nvidia-ml-py {_distribution('nvidia-ml-py')}\n"
        f"NVIDIA driver {_driver()}\n"
    )


def _distribution(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _driver() -> str:
    """Read the version of the loaded kernel module from ``/proc/driver/nvidia/version``."""
    path = Path(os.environ.get("EGMCTL_SYSROOT", "/")) / "proc/driver/nvidia/version"
    try:
        text = read_bounded(path, 4096).decode(errors="replace")
    except OSError:
        return "not loaded"
    match = re.search(r"\b[0-9]{3,}\.[0-9]+(?:\.[0-9]+)?\b", text)
    return match[0] if match else "of an unknown version"
