"""Children of ``egmctl`` and of tests that start at once: forks of a process that has imported what they need.

A child has a process, a group, an environment and descriptors of its own, as if it had been executed; only the fifth
of a second that Python takes to start and import is spent once, not thousands of times. What has to do with starting
(imports, the interpreter's own variables, a sealed child) is tested with interpreters of its own.
"""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import functools
import gc
import importlib
import os
import pkgutil
import runpy
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

_LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
_SCRIPTS = ("/launch/child.py", "/fake/program.py")
_HIGHEST_DESCRIPTOR = 4096


class ForkedPopen(subprocess.Popen[Any]):
    """``subprocess.Popen``, but that the script of a child is run in a fork of this process."""

    def _execute_child(self, args: Any, *others: Any) -> None:
        script = next((number for number, word in enumerate(args) if str(word).endswith(_SCRIPTS)), None)
        if script is None or args[0] != sys.executable:
            super()._execute_child(args, *others)  # type: ignore[misc]
            return
        # Their places are those of the parameters of this method of subprocess.Popen, in Python 3.10 to 3.14.
        pass_fds, cwd, env = others[3:6]
        stdin, stdout, stderr = others[9], others[12], others[14]
        waiting, ready = os.pipe()
        with warnings.catch_warnings():
            # Python 3.12 and later warn where there are threads: a worker of pytest-xdist has one.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            if others[20]:
                os.setsid()
            elif 0 in others[21:]:
                os.setpgid(0, 0)
            _become(args[script:], (stdin, stdout, stderr), {*pass_fds}, cwd, env, ready)
        os.close(ready)
        # The child closes its end, and all else that it does not keep, when it is as if executed.
        os.read(waiting, 1)
        os.close(waiting)
        self.pid = pid
        self._child_created = True
        self._close_pipe_fds(*others[9:15])  # type: ignore[attr-defined]


def _become(
    words: Sequence[str],
    streams: Sequence[int],
    kept: set[int],
    cwd: str | None,
    env: dict[str, str] | None,
    ready: int,
) -> None:
    """Be what ``exec`` would have made of this fork, run the script and end."""
    code = 1
    try:
        gc.disable()
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        for place, stream in enumerate(streams):
            if stream not in (-1, place):
                os.dup2(stream, place)
        _close_all_but({0, 1, 2, ready, *kept})
        if cwd is not None:
            os.chdir(cwd)
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        os.write(ready, b".")
        os.close(ready)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
        sys.excepthook = sys.__excepthook__
        sys.argv = [*words]
        _load_libraries()
        runpy.run_path(words[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def end_after(run: Callable[[], object]) -> NoReturn:
    """Run a function and end this fork as an interpreter ends, but that it does not take down its modules.

    To take them down copies every page that the fork shares with its server, which takes longer than most commands.
    """
    code = 1
    try:
        run()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        for stream in filter(None, (sys.stdout, sys.stderr)):
            stream.flush()
    except OSError:
        code = 120
    os._exit(code)


def _close_all_but(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept and int(name) < _HIGHEST_DESCRIPTOR:
            with suppress(OSError):
                os.close(int(name))


def _load_libraries() -> None:
    """Load the driver's libraries from the folders that the loader would have read of the environment at the start."""
    for name in _LIBRARIES:
        for folder in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep):
            if folder and Path(folder, name).exists():
                ctypes.CDLL(str(Path(folder, name)))
                break


@functools.cache
def import_all() -> None:
    """Import what commands and their children import when they run, and compile what they compile at first use."""
    import egmctl

    for module in pkgutil.walk_packages(egmctl.__path__, "egmctl."):
        if not module.name.startswith(("egmctl.__main__", "egmctl.launch.child")):
            for value in vars(importlib.import_module(module.name)).values():
                if isinstance(value, type) and dataclasses.is_dataclass(value):
                    # egmctl.dataclass compiles it when it is first asked for.
                    _ = value.__init__
    import_bindings()
    import_numpy()


def import_bindings() -> None:
    """Import the driver's bindings, which load no library yet."""
    for name in ("cuda.bindings.driver", "cuda.bindings.nvrtc", "pynvml"):
        importlib.import_module(name)


def import_numpy() -> None:
    """Import numpy, which takes a child as long as all else that it does, without threads of its BLAS, as there."""
    with mock.patch.dict(os.environ, OPENBLAS_NUM_THREADS="1"):
        importlib.import_module("numpy")


@contextmanager
def children(*, ahead: bool = True) -> Iterator[None]:
    """Have this process' children of ``egmctl`` be forks of it.

    Parameters
    ----------
    ahead
        Whether it imports all of egmctl first, which takes as long as the start of three children.
    """
    if ahead:
        import_all()
    usual, subprocess.Popen = subprocess.Popen, ForkedPopen  # type: ignore[misc]
    try:
        yield
    finally:
        subprocess.Popen = usual  # type: ignore[misc]
