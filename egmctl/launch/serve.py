"""Serve one target in a child process. A sealed child first makes it impossible to load further code.

Python imports modules at unexpected times. To print an uncaught exception, it opens the source files of the traceback;
the first two lines of a file may name a codec, which Python then imports as a module. A warning opens files, too. A
user who can create a file on one of these search paths can run code in the process. The rationale is in
docs/decisions/0007-another-root.md.
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
"""The exit code of a sealed child that could not report an exception to its parent (sysexits.h, EX_SOFTWARE)."""


def seal() -> None:
    """Disable imports, tracebacks and warnings for the rest of the process."""
    faulthandler.disable()
    warnings.simplefilter("ignore")
    sys.excepthook = lambda *_: os._exit(EXIT_CODE)
    sys.unraisablehook = lambda _: None
    for place in (sys.meta_path, sys.path, sys.path_hooks, sys.path_importer_cache):
        place.clear()


def serve_target(target: str, parent_pid: int, channel_fd: int, breadcrumb_fd: int, request_fd: int) -> NoReturn:
    """Call one target, send its result or exception to the parent, and exit.

    Parameters
    ----------
    target
        The function ``"package.module:function"``. Its module is imported after the hook has run, or before it if the
        child is sealed.
    parent_pid
        The parent, whose death kills this process.
    channel_fd, breadcrumb_fd, request_fd
        Inherited descriptors: the child's end of the socket pair, the breadcrumb's memory, and a file with the request.
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
            # The kernel cancels the request if the process changes its user (prctl(2)), which a hook may do.
            die_with(parent_pid)
        channel.send_frame(RESULT, _function(target)(channel, request["arguments"]))
    except ChannelClosed:
        # The parent no longer needs this child.
        pass
    except Exception as error:
        if not request["sealed"]:
            sys.excepthook(type(error), error, error.__traceback__)
        channel.send_frame(RAISED, _described(error))
    sys.stdout.flush()
    sys.stderr.flush()
    # The exit handlers of libraries, in particular of the driver, would only cost time and could hang.
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
