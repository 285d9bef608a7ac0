"""Hooks of these tests: a module of its own, so that the targets are not imported with it."""

from __future__ import annotations

import os
import sys
import time
from typing import Any


def mark(arguments: dict[str, Any]) -> None:
    assert "tests.launch.targets" not in sys.modules
    os.environ["EGMCTL_TEST_HOOK_RAN"] = arguments["mark"]


def mark_sealed(arguments: dict[str, Any]) -> None:
    assert "tests.launch.targets" in sys.modules
    os.environ["EGMCTL_TEST_HOOK_RAN"] = arguments["mark"]


def note_cpu_time(_arguments: dict[str, Any]) -> None:
    os.environ["EGMCTL_TEST_CPU_S"] = str(time.process_time())


def fail(_arguments: dict[str, Any]) -> None:
    raise PermissionError(1, "the cgroup cannot be joined")


def become_nobody(_arguments: dict[str, Any]) -> None:
    import tests.launch.targets  # noqa: F401 - the checkout may be out of that user's reach

    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
