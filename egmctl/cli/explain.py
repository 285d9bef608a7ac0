"""``egmctl explain``: from an error of CUDA or NVML to its cause on this node."""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from egmctl.cli.options import (
    GroupedCommand,
    MachineOption,
    launched,
    refuse_together,
    requested_machine,
    takes_options,
)
from egmctl.cli.output import OutputOptions, Outputs, say
from egmctl.errors import UsageError
from egmctl.report.kinds import EXPLAIN, Format
from egmctl.units import printable

if TYPE_CHECKING:
    from egmctl.model.explanation import ErrorLog, Explanations

LOG_FILE = "CUDA_LOG_FILE"
"""The variable that makes CUDA write its error log (since CUDA 12.9, driver 575)."""
STANDARD_INPUT = "-"
LOG_PART = 8 << 20
"""The number of bytes that are read of the beginning and of the end of that log."""
# Texts, not compiled here: every command imports this file.
_CALL = r"(?a:(cu|cuda(?!Error)|nvml)[A-Z]\w*)"
_ERROR = r"(?a:[0-9]{1,9}|(CUDA_ERROR_|cudaError|NVML_ERROR_)\w+)"
_PROGRAM = "egmctl.program"

WhatArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[CALL] [ERROR] | MESSAGE | FILE | - | -- PROGRAM [ARG]..",
        help="A function and an error; a message; a file; - or nothing for what is piped in; after --, a program.",
    ),
]
PidOption = Annotated[
    int, typer.Option("--pid", metavar="PID", min=0, show_default=False, help="Judge what that process may use.")
]


class ExplainCommand(GroupedCommand):
    """The command's parser. It keeps what follows ``--``, which the parser would mix with other arguments."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments before ``--``."""
        place = args.index("--") if "--" in args else len(args)
        ctx.meta[_PROGRAM] = args[place + 1 :]
        return super().parse_args(ctx, args[:place])


@takes_options(EXPLAIN.formats)
def explain(
    context: typer.Context,
    output: OutputOptions,
    what: WhatArgument = None,
    machine: MachineOption = None,
    pid: PidOption = 0,
) -> int:
    """Say what an error or a message means, its causes, and which of them holds on this node.

    Examples: egmctl explain cuMemCreate 800; egmctl explain app.log; egmctl explain -- ./app
    """
    words, program = what or [], context.meta[_PROGRAM]
    refuse_together({"--machine": machine is not None, "--pid": pid > 0})
    outputs = output.checked(EXPLAIN.formats)
    if program:
        if words or machine is not None or pid:
            raise UsageError("explain -- runs a program on this node: leave out what else is to be explained")
        return _run(program, outputs)

    log, checks = _asked(words)
    result = _explained(log, machine, pid, quiet=output.quiet, checks=checks)
    outputs.show(result(False), lambda: result(True))
    return result(False).exit_code


def _asked(words: Sequence[str]) -> tuple[ErrorLog, bool]:
    """Return the failures that the arguments name, and whether the node's checks are to be asked.

    The arguments are a call, an error or both, in any order; a file; or words that were pasted. A call alone is
    answered with its errors, between which no node decides. Without arguments, what is piped in is read.
    """
    from egmctl.doctor.explain import failures_of
    from egmctl.model.explanation import ErrorLog

    if not words and _input_is_piped():
        words = [STANDARD_INPUT]
    calls = [word for word in words if re.fullmatch(_CALL, word)]
    errors = [word for word in words if re.fullmatch(_ERROR, word)]
    files = [word for word in words if word == STANDARD_INPUT or (word not in calls + errors and os.path.exists(word))]
    others = [word for word in words if word not in calls + errors + files]
    if others and not files and (pasted := _pasted(" ".join(words))).failures:
        return pasted, True
    if others:
        raise UsageError(
            f"explain {printable(others[0][:100])!r}: not a known function (cuMemCreate, cudaMalloc, nvmlInit), error "
            "(CUDA_ERROR_NOT_PERMITTED, 800, Xid 79), message or file"
        )
    if not words or len(words) > 2 or max(len(calls), len(errors)) > 1 or (files and len(words) > 1):
        raise UsageError(
            "explain: give a function, an error or both; or one file; or a message; or, after --, a program to run; "
            "or pipe a text in"
        )
    if not files:
        call, error = next(iter(calls), None), next(iter(errors), None)
        return ErrorLog(failures=failures_of(call, error)), error is not None
    return _read(files[0]), True


def _input_is_piped() -> bool:
    """Return whether standard input is a pipe or a file: no terminal, and not /dev/null, as in a service."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _pasted(text: str) -> ErrorLog:
    """Return the failures in words that were given as arguments."""
    from egmctl.facts.error_log import read_failures

    log = read_failures(io.BytesIO(text.encode("utf-8", "replace")))
    return replace(log, failures=tuple(replace(each, line_number=None) for each in log.failures))


def _read(file: str) -> ErrorLog:
    """Return the failures in a file or standard input; of a single line, what its words name as arguments."""
    from egmctl.doctor.explain import failures_of
    from egmctl.facts.error_log import read_failures
    from egmctl.files import read_part

    class Reader(io.RawIOBase):
        """Reads a file, and waits for the writer of a FIFO."""

        def __init__(self, descriptor: int) -> None:
            self.descriptor = descriptor
            self.first = b""

        def read1(self, size: int) -> bytes:
            part = read_part(self.descriptor, size, is_first=not self.first)
            self.first = self.first or part[:1000]
            return part

    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    try:
        descriptor = os.dup(0) if file == STANDARD_INPUT else os.open(file, flags)
        try:
            reader = Reader(descriptor)
            log = read_failures(reader)  # type: ignore[arg-type]
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UsageError(f"explain: {printable(file)} cannot be read: {error.strerror}") from error
    words = reader.first.decode("utf-8", "replace").split() if not log.failures and log.lines == 1 else []
    calls = [word for word in words if re.fullmatch(_CALL, word)]
    errors = [word for word in words if re.fullmatch(_ERROR, word)]
    if words and len(words) == len(calls) + len(errors) <= 2 and max(len(calls), len(errors)) == 1:
        with contextlib.suppress(UsageError):
            return replace(log, failures=failures_of(next(iter(calls), None), next(iter(errors), None)))
    return log


def _explained(
    log: ErrorLog, machine: str | None = None, pid: int = 0, *, quiet: bool, checks: bool = True
) -> Callable[[bool], Explanations]:
    """Return a function that returns the explanation, redacted or not, after the checks that belong to it are run."""
    from egmctl.api.doctor import judged, sections_for_checks
    from egmctl.doctor.explain import checks_of

    asked = checks_of(log.failures) if checks else ()
    node = requested_machine(machine, sections_for_checks(asked), quiet=quiet, cuda=False, pid=pid) if asked else None
    return lambda redacted: judged(log, node, redacted=redacted)


def _run(program: Sequence[str], outputs: Outputs) -> int:
    """Run a program, then say on standard error why its calls failed; end as the program ended."""
    from egmctl.launch.program import run_through
    from egmctl.launch.standard_error import StandardError

    if outputs.files or outputs.targets[0].format is not Format.TEXT:
        raise UsageError("explain -- writes text on standard error only: leave out -o and --json")
    chosen = os.environ.get(LOG_FILE)
    with _folder() as folder:
        file = Path(chosen) if chosen else folder / "cuda.log"
        if not chosen:
            file.touch(mode=0o600)
        before = file.stat().st_size if file.is_file() else 0
        (output := folder / "output").mkdir(mode=0o700)
        errors = StandardError(output)
        try:
            with errors.resized():
                code = run_through(program, {**os.environ, LOG_FILE: str(file)}, errors.descriptor)
        except OSError as error:
            raise UsageError(f"explain -- {printable(program[0])} cannot be run: {error.strerror}") from error
        finally:
            is_open = errors.finish()
        log = _logged(file, before)
        # A program that succeeds may print what it likes, and a child may go on for hours.
        printed = _printed(errors.parts()) if code else None
    who = f"{printable(program[0])}{f' (rank {launch.rank})' if (launch := launched(os.environ)) else ''}"
    ended = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"
    if code and is_open:
        say(f"a process that {who} started still runs; what it prints from now on is passed on, and not explained")
    if log is not None and log.failures:
        say(f"{who} {ended}; CUDA's log says what failed")
        _answer(log, outputs, is_brief=code == 0)
    elif printed is not None and _states_a_failure(printed):
        say(f"{who} {ended}; CUDA logged no failed call, its standard error says what failed")
        _answer(printed, outputs, is_brief=False)
    elif code:
        nothing = "CUDA logged no failed call (drivers before 575, CUDA 12.9, log none)"
        said = f"and its standard error has no known error; {_UNREAD}"
        unread = f"{LOG_FILE}={printable(str(file))} cannot be read"
        say(f"{who} {ended}; {unread if log is None else nothing}, {said}")
    return code if code >= 0 else _die(-code)


def _states_a_failure(printed: ErrorLog) -> bool:
    """Return whether a failed program printed more than lines that are harmless, which do not say why it failed."""
    from egmctl.api.doctor import judged
    from egmctl.model.explanation import Severity

    return any(each.severity is not Severity.HARMLESS for each in judged(printed, None).explanations)


_UNREAD = "its standard output, where NCCL prints, is not read (NCCL_DEBUG=WARN NCCL_DEBUG_FILE=/dev/stderr moves that)"


def _answer(log: ErrorLog, outputs: Outputs, *, is_brief: bool) -> None:
    """Write the answer to standard error; a program that succeeds has dealt with the failure, or has only tried."""
    result = _explained(log, quiet=outputs.options.quiet)
    sys.stderr.write(f"{replace(outputs.targets[0], brief=is_brief).draw(result(False))}\n")


_FOLDERS = "egmctl-explain-"
"""With what the names of folders for logs begin."""


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Make a private folder, and remove it and those that killed commands have left.

    Its owner holds a lock on it, which the kernel releases however the owner ends, in whichever container it runs.
    """
    import fcntl
    import shutil
    import tempfile

    for left in Path(tempfile.gettempdir()).glob(f"{_FOLDERS}*"):
        with contextlib.suppress(OSError):
            descriptor = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                if os.fstat(descriptor).st_uid == os.geteuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(descriptor)
    folder = Path(tempfile.mkdtemp(prefix=_FOLDERS))
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield folder
    finally:
        os.close(descriptor)
        shutil.rmtree(folder, ignore_errors=True)


def _printed(files: Sequence[Path]) -> ErrorLog | None:
    """Return the failures in the kept parts of a program's standard error, ``None`` if they cannot be read."""
    from egmctl.facts.error_log import read_failures

    try:
        return read_failures(io.BytesIO(b"".join(file.read_bytes() for file in files)))
    except OSError:
        return None


def _logged(file: Path, before: int) -> ErrorLog | None:
    """Return the failures in the first and the last part of CUDA's log, ``None`` if it cannot be read.

    Parameters
    ----------
    before
        The size of the file before the program, in bytes.
    """
    from egmctl.facts.error_log import read_failures
    from egmctl.files import open_regular

    try:
        with os.fdopen(open_regular(file), "rb") as stream:
            last = max(before + LOG_PART, os.fstat(stream.fileno()).st_size - LOG_PART)
            parts = (os.pread(stream.fileno(), LOG_PART, place) for place in (before, last))
            return read_failures(*map(io.BytesIO, parts))
    except OSError:
        return None


def _die(number: int) -> int:
    """End this process by a signal, as the program ended, without a core file of its own."""
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    return 128 + number
