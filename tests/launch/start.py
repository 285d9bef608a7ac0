"""Start the targets of these tests, and look at what has become of processes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from egmctl import launch

ROOT = Path(__file__).resolve().parents[2]


def run(target: str, arguments: dict[str, Any] | None = None, *, timeout_s: float = 60, **options: Any) -> Any:
    """Run ``tests.launch.targets:target``."""
    return launch.run(
        f"tests.launch.targets:{target}", arguments or {}, timeout_s=timeout_s, **_with_tests_importable(options)
    )


def spawn(target: str, arguments: dict[str, Any] | None = None, **options: Any) -> launch.Child:
    """Spawn ``tests.launch.targets:target``."""
    return launch.Child(f"tests.launch.targets:{target}", arguments or {}, **_with_tests_importable(options))


def is_alive(pid: int) -> bool:
    """Whether a process runs: one that is dead and not yet reaped does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(")")[2].split()[0] not in ("Z", "X")


def children() -> set[str]:
    """Return the processes that this one has started and that are still there."""
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        # A thread that ends meanwhile leaves its children to another one.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found |= {*(task / "children").read_text().split()}
    return found


def wait_until(condition: Callable[[], bool], timeout_s: float = 60) -> bool:
    """Wait for something that another process does; return whether it came."""
    end = time.monotonic() + timeout_s
    while not (met := condition()) and time.monotonic() < end:
        time.sleep(0.01)
    return met


def open_descriptors() -> list[str]:
    """What this process has open, by number and name."""
    names = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            names.append(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
        except FileNotFoundError:
            continue
    return sorted(names)


def _with_tests_importable(options: dict[str, Any]) -> dict[str, Any]:
    return options | {"environment": {"PYTHONPATH": str(ROOT), **options.get("environment", {})}}
