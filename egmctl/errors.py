"""The exceptions of egmctl, and the exit code with which each kind ends the command.

::

    EgmctlError
    ├── UsageError          2   the user asked for something that does not exist or makes no sense
    ├── NothingToDo         3   nothing could be run or determined here (no driver, no GPU, all waived)
    ├── ChildFailed         4   a child process crashed, hung or raised
    │   └── ChildNotStarted         or could not be started
    └── DriverCallError     4   a CUDA or NVML call failed inside a child
        ├── DriverLibraryMissing    the library could not be loaded
        └── DriverTooOld            the library has no such function, or is too old for our bindings

Every message is one sentence that names the bad part and says what is valid. Scripts may rely on
``docs/exit-codes.md``.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

ERROR_SCHEMA = "egmctl.error/1"
"""The schema of the document that a command writes if it ends without a result."""


class ExitCode(IntEnum):
    """The exit codes of every command, in every output format."""

    OK = 0
    FAILED = 1
    """A check failed, data was corrupt, or a known cause in the environment stopped a case."""
    USAGE = 2
    NOTHING = 3
    """Nothing could be run or determined here: no driver, no GPU, every case waived."""
    CRASHED = 4
    """A crash, a timeout or an unknown driver error during the run. Outranks FAILED."""
    INTERRUPTED = 130
    """SIGINT or SIGTERM. Outranks everything."""


class EgmctlError(Exception):
    """The base class of errors that a command reports as one sentence instead of a traceback."""

    exit_code = ExitCode.CRASHED
    code = "error"
    """The value of ``errors[].code`` in JSON documents, the same in all versions."""


class UsageError(EgmctlError):
    """The user's input is wrong; the message names the bad part and what is valid."""

    exit_code = ExitCode.USAGE
    code = "usage"


class NothingToDo(EgmctlError):
    """Nothing could be run or determined on this machine; the message says what is missing."""

    exit_code = ExitCode.NOTHING
    code = "nothing"


class ChildFailed(EgmctlError):
    """A child process ended without a result: it crashed, timed out or raised an exception.

    An `EgmctlError` raised in the child keeps its message, its ``code`` and its ``exit_code`` in the parent.

    Parameters
    ----------
    message
        One sentence.
    ending
        The sentence without its subject, the child: ``died from SIGKILL``. Empty if the child is not its subject.
    how
        ``"crashed"`` (a signal or an exit code ended it), ``"timed-out"`` or ``"raised"``.
    last_call
        The driver call in progress, from the child's breadcrumb; ``None`` if there was none.
    last_subject
        The bus id of the GPU of that call, if the child recorded it.
    kind
        For ``raised``, the name of the exception's class in the child. It distinguishes a missing library from a
        failed call without an import of the child's modules.
    details
        For ``raised``, the attributes of an `EgmctlError`: for a `DriverCallError` ``call``, ``number``, ``name``.
    output
        The end of the child's standard output and error, usually a traceback. It may contain control characters.
    """

    code = "child-failed"

    def __init__(
        self,
        message: str,
        *,
        how: str,
        ending: str = "",
        last_call: str | None = None,
        last_subject: str | None = None,
        kind: str | None = None,
        details: Mapping[str, Any] | None = None,
        output: str = "",
    ) -> None:
        super().__init__(message)
        self.how = how
        self.ending = ending
        self.last_call = last_call
        self.last_subject = last_subject
        self.kind = kind
        self.details = details or {}
        self.output = output


class ChildNotStarted(ChildFailed):
    """The system could not start a child process: it ran out of processes, memory or file descriptors."""


class DriverCallError(EgmctlError):
    """A CUDA or NVML call did not return success.

    Parameters
    ----------
    call
        The function's name, e.g. ``"cuMemCreate"``.
    code
        The number that it returned; ``None`` if there is none, e.g. because the library or symbol is missing.
    name
        The driver's name for the number, e.g. ``"CUDA_ERROR_NOT_PERMITTED"``, or a description.
    log
        The driver's own reason, from CUDA's error log; empty if it gives none.
    """

    code = "driver-call"

    def __init__(self, call: str, code: int | None, name: str, log: str = "") -> None:
        message = f": {log}" if log else ""
        number = "" if code is None else f" ({code}{message})"
        super().__init__(f"{call} failed: {name}{number}")
        self.call = call
        self.number = code
        self.name = name
        self.log = log


class DriverLibraryMissing(DriverCallError):
    """The library cannot be loaded. ``number`` is ``None``; ``name`` says which library."""

    code = "driver-missing"


class DriverTooOld(DriverCallError):
    """The function is missing, or the driver is for an older CUDA than the bindings. ``number`` is ``None``."""

    code = "driver-too-old"
