"""The errors, and the exit code that each kind ends the command with.

::

    EgmctlError
    ├── UsageError          2   the user asked for something that does not exist or makes no sense
    ├── NothingToDo         3   nothing could be run or determined here (no driver, no GPU, all waived)
    ├── ChildFailed         4   a child process crashed, hung or raised
    │   └── ChildNotStarted         or could not be started
    └── DriverCallError     4   a CUDA or NVML call failed inside a child
        ├── DriverLibraryMissing    the library could not be loaded
        └── DriverTooOld            the library has no such function, or is too old for our bindings

Every message is one sentence that names the bad part and says what is valid. ``docs/exit-codes.md`` is the
contract that users script against.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

ERROR_SCHEMA = "egmctl.error/1"
"""Schema of the document of a command that ended before it had a result."""


class ExitCode(IntEnum):
    """The exit codes of every command, the same whatever the output form."""

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
    """Base of every error that a command reports as one sentence instead of a traceback."""

    exit_code = ExitCode.CRASHED
    code = "error"
    """Stable word for the JSON envelope's ``errors[].code``."""


class UsageError(EgmctlError):
    """The user's input is wrong; the message names the bad part and what is valid."""

    exit_code = ExitCode.USAGE
    code = "usage"


class NothingToDo(EgmctlError):
    """Nothing could be run or determined on this machine; the message says what is missing."""

    exit_code = ExitCode.NOTHING
    code = "nothing"


class ChildFailed(EgmctlError):
    """A child process ended without a result: it crashed, hung past its deadline, or raised.

    An `EgmctlError` raised in the child keeps its sentence, its ``code`` and its ``exit_code`` in the parent.

    Parameters
    ----------
    message
        One sentence.
    how
        ``"crashed"`` (died from a signal or an exit code), ``"timed-out"`` or ``"raised"``.
    last_call
        The driver call that was under way, from the child's breadcrumb; ``None`` if there was none.
    last_subject
        The bus id of the GPU that this call was about, where the child said so.
    kind
        For ``raised``: the name of the exception's class in the child, so that a caller can tell a missing
        library from a failed call without the child's modules.
    details
        For ``raised``, the attributes of an `EgmctlError`: of a `DriverCallError` ``call``, ``number``, ``name``.
    output
        The end of what the child wrote to its standard streams, a traceback above all; not safe to show as it is.
    """

    code = "child-failed"

    def __init__(
        self,
        message: str,
        *,
        how: str,
        last_call: str | None = None,
        last_subject: str | None = None,
        kind: str | None = None,
        details: Mapping[str, Any] | None = None,
        output: str = "",
    ) -> None:
        super().__init__(message)
        self.how = how
        self.last_call = last_call
        self.last_subject = last_subject
        self.kind = kind
        self.details = details or {}
        self.output = output


class ChildNotStarted(ChildFailed):
    """The system could not start a child process: no process, no memory or no descriptor was left for it."""


class DriverCallError(EgmctlError):
    """A CUDA or NVML call did not return success.

    Parameters
    ----------
    call
        The function's name, e.g. ``"cuMemCreate"``.
    code
        The number it returned; ``None`` where there was no number (library or symbol missing).
    name
        The driver's own name for the code, e.g. ``"CUDA_ERROR_NOT_PERMITTED"``.
    """

    code = "driver-call"

    def __init__(self, call: str, code: int | None, name: str) -> None:
        number = "" if code is None else f" ({code})"
        super().__init__(f"{call} failed: {name}{number}")
        self.call = call
        self.number = code
        self.name = name


class DriverLibraryMissing(DriverCallError):
    """The first call found no library; ``number`` is ``None`` and ``name`` says what was looked for."""

    code = "driver-missing"


class DriverTooOld(DriverCallError):
    """The library has no such function, or serves an older CUDA than the installed bindings; ``number`` is ``None``."""

    code = "driver-too-old"
