"""An IMEX channel for tests: the device node of channel 0, made where there is none."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def channel_made() -> Iterator[None]:
    """Make IMEX channel 0 with mknod where there is none; take it away again."""
    channel = Path("/dev/nvidia-caps-imex-channels/channel0")
    if channel.exists():
        yield
        return
    words = (line.split() for line in Path("/proc/devices").read_text().splitlines())
    major = next((int(device[0]) for device in words if device[1:] == ["nvidia-caps-imex-channels"]), None)
    if major is None:
        pytest.skip("the driver has no IMEX channels")
    made = not channel.parent.exists()
    channel.parent.mkdir(exist_ok=True)
    os.mknod(channel, stat.S_IFCHR | 0o666, os.makedev(major, 0))
    try:
        yield
    finally:
        channel.unlink()
        if made:
            channel.parent.rmdir()
