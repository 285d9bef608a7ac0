"""Run a function in a process of its own on a fake node, with the real bindings."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests import forked
from tests.fake.node import FakeNode

_PROGRAM = Path(__file__).with_name("program.py")


def run_on(node: FakeNode, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Return what ``function(*arguments)`` returns in a process on the node; both go through JSON.

    Options are those of :func:`start_on`.
    """
    with start_on(node, function, *arguments, **options) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, f"{function.__name__} ended with {process.returncode}:\n{err}"
    return json.loads(out)


def ending_on(node: FakeNode, function: Callable[..., Any], *arguments: Any, **options: Any) -> int:
    """Return the exit status of such a process, minus the signal's number where one ended it."""
    with start_on(node, function, *arguments, **options) as process:
        process.communicate(timeout=60)
    return process.returncode


def start_on(
    node: FakeNode,
    function: Callable[..., Any],
    *arguments: Any,
    faults: str = "",
    environment: Mapping[str, str] | None = None,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[str]:
    """Start the process, a fork of this one, and return it; what the function returns is the JSON that it prints."""
    forked.import_bindings()
    variables = {**os.environ, **node.environment(faults), **(environment or {})}
    return forked.ForkedPopen(
        [sys.executable, str(_PROGRAM), json.dumps([function.__module__, function.__qualname__, arguments])],
        env={name: value for name, value in variables.items() if value is not None},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        pass_fds=pass_fds,
    )


def cu(name: str, *arguments: Any) -> Any:
    """Call a function of the driver; return its value or values, or raise :class:`CudaError`."""
    from cuda.bindings import driver

    result, *values = getattr(driver, name)(*arguments)
    if result != 0:
        raise CudaError(name, int(result))
    return values[0] if len(values) == 1 else tuple(values) or None


def code(name: str, *arguments: Any) -> int:
    """Call a function of the driver and return the CUresult."""
    from cuda.bindings import driver

    return int(getattr(driver, name)(*arguments)[0])


class CudaError(Exception):
    """A call that was to succeed did not."""


def use_device(device: int) -> Any:
    """Initialise the driver and make a device's primary context current; return the context."""
    cu("cuInit", 0)
    context = cu("cuDevicePrimaryCtxRetain", device)
    cu("cuCtxSetCurrent", context)
    return context


SEGMENTATION_FAULT, ABORTED = -signal.SIGSEGV, -signal.SIGABRT
