"""The child's side: it serves one target. A sealed child first gives up the ability to load any more code.

Python imports at odd moments. An exception that nobody caught is printed with the lines of the source files, which are
opened then; the first two lines of a file may name a codec, and a codec is a module. A warning opens files too. Who
can put a file where one of these is looked for has code run. Why this matters: docs/decisions/0007-another-root.md.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import socket
import sys
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

from egmctl.driver import breadcrumb
from egmctl.errors import EgmctlError
from egmctl.launch.channel import RAISED, RESULT, Channel, ChannelClosed, die_with

EXIT_CODE = 70
"""The exit code of a sealed child that could not tell its parent of an exception (sysexits.h, EX_SOFTWARE)."""


def seal() -> None:
    """Import nothing and print nothing from now on. It cannot be undone."""
    faulthandler.disable()
    warnings.simplefilter("ignore")
    sys.excepthook = _end
    sys.unraisablehook = _nothing
    for place in (sys.meta_path, sys.path, sys.path_hooks, sys.path_importer_cache):
        place.clear()


def _end(*_: object) -> None:
    os._exit(EXIT_CODE)


def _nothing(_: object) -> None:
    pass


def serve(target: str, parent_pid: int, channel_fd: int, breadcrumb_fd: int, request_fd: int) -> NoReturn:
    """Serve one target and end this process.

    Parameters
    ----------
    target
        ``"package.module:function"``; its module is imported after the hook has run, or before, if this child is to
        be sealed.
    parent_pid
        This process dies with it.
    channel_fd, breadcrumb_fd, request_fd
        Inherited: the child's end of the socket pair, the breadcrumb's memory, and a file with the request.
    """
    die_with(parent_pid)
    faulthandler.enable()
    for fd in (channel_fd, breadcrumb_fd, request_fd):
        os.set_inheritable(fd, False)
    breadcrumb.attach(breadcrumb_fd)
    with open(request_fd, "rb") as file:
        request = json.load(file)
    channel = Channel(socket.socket(fileno=channel_fd))
    try:
        if request["sealed"]:
            for name in filter(None, (target, request["before"])):
                _function(name)
            seal()
        if request["before"]:
            _function(request["before"])(request["before_arguments"])
            # The kernel drops the request where a process changes its user (prctl(2)), which a hook may do.
            die_with(parent_pid)
        channel.send_frame(RESULT, _function(target)(channel, request["arguments"]))
    except ChannelClosed:
        # The parent has no more use for this child.
        pass
    except Exception as error:
        if not request["sealed"]:
            sys.excepthook(type(error), error, error.__traceback__)
        channel.send_frame(RAISED, _described(error))
    sys.stdout.flush()
    sys.stderr.flush()
    # All is said. A library's exit handlers (the driver's above all) could only take time or hang.
    os._exit(0)


def _function(name: str) -> Callable[..., Any]:
    module, _, function = name.partition(":")
    loaded: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return loaded


def _described(error: Exception) -> dict[str, Any]:
    own = None
    if isinstance(error, EgmctlError):
        own = {"code": error.code, "exit_code": error.exit_code, "details": vars(error)}
    return {"kind": type(error).__name__, "message": str(error), "own": own}
