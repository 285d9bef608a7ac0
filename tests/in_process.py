"""Runs the command inside this process: for tests of what it answers, where the process is not the point."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path

from egmctl.cli import app, output
from tests.conftest import Ended, command_environment


def run(*arguments: str | Path) -> Ended:
    """Run ``egmctl`` with these arguments, as ``tests.conftest.egmctl`` does, without a process of its own."""
    out, err = io.StringIO(), io.StringIO()
    with _environment(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        output.emitted = output.muted = output.relayed = False
        code = app.run_command([str(argument) for argument in arguments])
    return Ended(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _environment() -> Iterator[None]:
    """Take away what steers the command, the user's own profiles among it."""
    before = dict(os.environ)
    try:
        os.environ.clear()
        os.environ.update(command_environment({"XDG_CONFIG_HOME": "/nonexistent", "EGMCTL_NO_SKIP": None}))
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
