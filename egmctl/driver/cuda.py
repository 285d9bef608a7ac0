"""Checked calls of ``cuda.bindings.driver``: every CUDA call of the tool goes through :func:`call`.

The bindings return error numbers as values, and raise if the library or a function is missing. :func:`call` turns both
into exceptions that name the call. While a call runs, the breadcrumb names it, so that the parent can report where a
child hung or died.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import itertools
import re
import threading
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from egmctl.driver import breadcrumb
from egmctl.errors import DriverCallError, DriverLibraryMissing, DriverTooOld

if TYPE_CHECKING:
    from concurrent.futures import Future


def call(name: str, *arguments: Any) -> Any:
    """Call a function of the CUDA driver and return what it returns.

    Parameters
    ----------
    name
        The function's name in ``cuda.bindings.driver``, e.g. ``"cuMemCreate"``.
    *arguments
        The function's arguments, as the bindings take them.

    Returns
    -------
    Any
        The values that follow the CUresult: ``None``, one value, or a tuple of several.

    Raises
    ------
    DriverCallError
        The call returned something other than CUDA_SUCCESS.
    DriverLibraryMissing
        libcuda.so.1 is missing or cannot be loaded.
    DriverTooOld
        The driver or the bindings lack the function.
    """
    breadcrumb.enter(name)
    try:
        result, *values = _call(name, arguments)
    finally:
        breadcrumb.leave()
    if result != 0:
        raise DriverCallError(name, int(result), result.name, "" if int(result) == _NOT_READY else _words(name))
    if not values:
        return None
    return values[0] if len(values) == 1 else tuple(values)


_LOG_HEAD = re.compile(r"\[[0-9:.]+\]\[([0-9]+)\]\[CUDA\]\[[EW]\](?:\[(\w+)\])? ?", re.ASCII)
"""The beginning of an entry of CUDA's error log: [time][thread][CUDA][E] message; until CUDA 13.3 the guide also has
the function (https://docs.nvidia.com/cuda/cuda-programming-guide/04-special-topics/error-log-management.html)."""
RETURNING = re.compile(r"Returning ([0-9]+) \(\w+\) from (\w+)", re.ASCII)
"""The message of a failed call; the driver's own reason is the message before it, if it gives one."""
LOG_BYTES = 25_600
"""The number of bytes of its log that the driver keeps."""
LOG_SHOWN = 300
"""The number of characters of a message that are kept."""
_NOT_READY = 600
"""CUDA_ERROR_NOT_READY: what queries of a busy stream or event return."""


def initialise() -> int:
    """Check that the driver supports the bindings, call cuInit, and return the driver's CUDA version (13000 is 13.0).

    After :func:`initialise_ahead` this waits for its thread and returns, or raises, what came of it.

    Raises
    ------
    DriverTooOld
        The bindings have a newer CUDA major version than the driver. NVIDIA does not support this combination, and
        even cuCtxSynchronize is missing
        (docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html).
    DriverCallError, DriverLibraryMissing
        See :func:`call`.
    """
    return _initialise() if _ahead is None else _ahead.result()


def initialise_ahead(_arguments: Mapping[str, Any]) -> None:
    """Start to initialise CUDA in a thread, so that a child's imports take place meanwhile (a hook of a child)."""
    global _ahead
    # Processes that only read the facts need none of it.
    from concurrent.futures import Future

    _ahead = future = Future[int]()

    def run() -> None:
        try:
            future.set_result(_initialise())
        except BaseException as error:
            future.set_exception(error)

    try:
        threading.Thread(target=run, name="cuInit", daemon=True).start()
    except RuntimeError:
        # A limit of processes forbids the thread.
        _ahead = None


_ahead: Future[int] | None = None


def _initialise() -> int:
    version: int = call("cuDriverGetVersion")
    check_version(version)
    call("cuInit", 0)
    return version


def check_version(version: int) -> None:
    """Raise DriverTooOld, with a remedy, if the bindings have a newer CUDA major version than ``version``."""
    ours, theirs = bindings().CUDA_VERSION // 1000, version // 1000
    if ours > theirs:
        remedy = "pip install 'egmctl[cu12]'" if theirs == 12 else "update the driver"
        raise DriverTooOld(
            "cuInit",
            None,
            f"cuda-bindings {bindings_version()} needs a driver for CUDA {ours} and this one is for CUDA "
            f"{theirs}.{version % 1000 // 10}: {remedy}",
        )


@functools.cache
def bindings() -> Any:
    """Return the module ``cuda.bindings.driver``, for its types and enums.

    Importing it takes tens of milliseconds and does not load the driver.
    """
    return importlib.import_module("cuda.bindings.driver")


def bindings_version() -> str:
    """Return the version of cuda-bindings.

    It is read from the module, because the distribution cuda-python may not be installed.
    """
    version: str = importlib.import_module("cuda.bindings").__version__
    return version


class LogEntry(NamedTuple):
    """An entry of CUDA's error log."""

    thread: str
    call: str | None
    """The function, where the driver names it before the message."""
    message: str


def log_entries(text: str) -> Iterator[LogEntry]:
    """Yield the entries of CUDA's error log in a text.

    An entry ends with its line, or where the next begins: a message that the driver has cut has no end of line (seen
    with driver 580, of a kernel that could not be loaded).
    """
    for line in text.splitlines():
        heads = list(_LOG_HEAD.finditer(line))
        for head, following in itertools.zip_longest(heads, heads[1:]):
            end = len(line) if following is None else following.start()
            yield LogEntry(head[1], head[2], line[head.end() : end])


def _words(name: str) -> str:
    """Return the driver's own reason for the last failure of this thread, a call of ``name``, from its error log.

    It is empty if the driver gives none, or keeps no log (before CUDA 12.9).
    """
    buffer, size = ctypes.create_string_buffer(LOG_BYTES + 1), ctypes.c_size_t(LOG_BYTES)
    try:
        # cuda-bindings 13.3 does not find this function in a driver for CUDA 13.0, which exports it.
        failed = ctypes.CDLL("libcuda.so.1").cuLogsDumpToMemory(None, buffer, ctypes.byref(size), 0)
    except (OSError, AttributeError):
        return ""
    entries = log_entries("" if failed else buffer.raw[: size.value].decode("utf-8", "replace"))
    messages = [entry.message for entry in entries if entry.thread == str(threading.get_ident())]
    reason, last = ["", "", *messages][-2:]
    returning = RETURNING.match(last)
    is_own = returning is not None and returning[2].startswith(name) and not RETURNING.match(reason)
    return reason[:LOG_SHOWN] if is_own else ""


def _library_loads() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _call(name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    function = getattr(bindings(), name, None)
    if function is None:
        raise DriverTooOld(name, None, f"not in cuda-bindings {bindings_version()}")
    try:
        result: tuple[Any, ...] = function(*arguments)
    except RuntimeError as error:
        # The bindings raise a RuntimeError for a missing function and for a missing library; its class depends on their
        # version. Only the message for a missing function holds its name ("function cuMemCreate is not found").
        if name in str(error):
            raise DriverTooOld(name, None, "the driver has no such function") from error
        if _library_loads():
            lacks = f"libcuda.so.1 lacks a function that cuda-bindings {bindings_version()} needs"
            raise DriverTooOld(name, None, lacks) from error
        raise DriverLibraryMissing(name, None, "libcuda.so.1 cannot be loaded") from error
    except ValueError as error:
        # A CUresult newer than the bindings' enum.
        if unknown := re.fullmatch(r"(\d+) is not a valid CUresult", str(error)):
            raise DriverCallError(name, int(unknown[1]), "CUDA_ERROR unknown to cuda-bindings") from error
        raise
    return result
