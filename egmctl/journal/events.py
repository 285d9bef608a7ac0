"""The events of a run, and the journal to which they are written: on disk before the next step begins.

A journal has a line of JSON for each event, with a line number, the id of its run and a checksum. The first line is the
run's state. It has a fixed length and is overwritten in place, so that the end of a run can be recorded on a full disk.
All other lines are appended. The id is under the checksum of each line: without it, lines of two runs that a file
system or a hand has put into one file would pass for one run.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from egmctl import __version__
from egmctl.dataclass import dataclass
from egmctl.files import NEW_FILE, descriptor_path, open_folder, open_regular, state_folder, write_all
from egmctl.model.answer import Answer, State
from egmctl.model.codec import DecodeError, from_json, to_json
from egmctl.model.kernel_log import KernelEvent
from egmctl.model.measurement import Measurement, RunReport
from egmctl.model.nccl import NcclRun
from egmctl.model.task import NumberedTask, Task

JOURNAL_SCHEMA = "egmctl.journal/1"
SUFFIX = ".journal"

STATE, BEGIN = "state", "begin"
"""The values of ``event`` that are not in :data:`RECORDS`."""

STATE_BYTES = 512
"""The length of the first line, padded with spaces."""

BEGIN_LINES = (1, 2)
"""The numbers of the two lines that describe the plan. Both have the same content: without it nothing can be shown."""

_CHECKSUM = b',"crc32":"%08x"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """The state of a run: the other keys of the line whose ``event`` is ``state``."""

    run: str = ""
    """The id of the run, a random number in each of its lines; empty in journals of egmctl before 0.1.0's release."""
    exit_code: int | None = None
    """The run's exit code; ``None`` if it has not ended."""
    answer: State | None = None
    """What the run answered; ``None`` if it has not ended, and in journals of version 0.1."""
    lines: int | None = None
    """The number of lines of the journal, including this one; ``None`` while lines may be added."""
    cut: str | None = None
    """The reason why later lines of the run are missing, such as a full disk."""
    mentioned: bool = False
    """Whether a later command has reported that this run did not end."""


def journal_line(number: int, event: str, content: Mapping[str, Any]) -> bytes:
    """Return a line of a journal. Its checksum covers everything before the checksum."""
    text = json.dumps({"line": number, "event": event, **content}, allow_nan=False, separators=(",", ":"))
    body = text[:-1].encode()
    return body + _CHECKSUM % zlib.crc32(body) + b"\n"


def state_line(state: RunState) -> bytes:
    """Return the first line of a journal."""
    return journal_line(0, STATE, to_json(state)).rstrip(b"\n").ljust(STATE_BYTES - 1) + b"\n"


def entry(line: bytes) -> dict[str, Any] | None:
    """Return the content of a line; ``None`` if it is damaged or incomplete."""
    place = line.rfind(b',"crc32":')
    body = line[:place]
    if place < 0 or not line.endswith(b"\n") or line[place:].rstrip(b" \n") != _CHECKSUM % zlib.crc32(body):
        return None
    try:
        content = json.loads(body + b"}", parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) and type(content.get("line")) is int else None


def read_state(first_line: bytes) -> RunState | None:
    """Return the state from the first line of a journal; ``None`` if the line is damaged."""
    content = entry(first_line) or {}
    try:
        return from_json(RunState, content) if (content.get("line"), content.get("event")) == (0, STATE) else None
    except DecodeError:
        return None


def _refuse(word: str) -> None:
    raise ValueError(f"JSON has no number for {word}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """The run begins."""

    report: RunReport
    """A report without measurements."""
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBegun:
    """A step begins. A recorder returns only when this event and all earlier ones are on disk."""

    tasks: tuple[NumberedTask, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOutcome:
    """The outcome of a task, which replaces an earlier one with the same number."""

    number: int
    measurement: Measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class Logged:
    """New messages of the kernel log. A recorder returns only when they are on disk."""

    events: tuple[KernelEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """A new note of the run."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """A problem outside of the measurements."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclOutcome:
    """What NCCL measured, after all tasks."""

    nccl: NcclRun


JournalEvent = Begin | StepBegun | TaskOutcome | Logged | Note | Problem | NcclOutcome
Recorder = Callable[[JournalEvent], None]
"""A function that is called with the events of a run in order, :class:`Begin` first."""

RECORDS: Mapping[str, type[StepBegun | TaskOutcome | Logged | Note | Problem | NcclOutcome]] = {
    "step": StepBegun,
    "measurement": TaskOutcome,
    "kernel": Logged,
    "note": Note,
    "problem": Problem,
    "nccl": NcclOutcome,
}
"""The record that the other keys of a line form, by the line's ``event``."""


def forget(_event: JournalEvent) -> None:
    """Discard an event: the recorder of a run without a journal."""


ENGINE_WORDS = {"ce": "copy engine", "sm-write": "SM write", "sm-read": "SM read"}


def what(task: Task) -> str:
    """Return a task's path, engine and name: ``GPU2 -> GPU3 by SM write (device_to_device_memcpy_write_sm)``."""
    engine = ENGINE_WORDS.get(task.engine.value, task.engine.value)
    return f"{task.path} by {engine} ({task.name})"


FILES_LIMIT = 20
"""The maximum number of journals in a directory."""
FILE_LIMIT = 32 << 20
"""The maximum size of a journal in bytes. Lines beyond it are not written."""

_OURS = re.compile(rf"bench-([0-9]{{6,9}})-[0-9]{{8}}T[0-9]{{6}}Z{re.escape(SUFFIX)}", re.ASCII)

_NAMES = {record: name for name, record in RECORDS.items()}


def journal_folder() -> Path:
    """Return the default directory of journals."""
    return state_folder() / "journal"


class Journal:
    """A recorder that writes a run's journal. A write error ends the journal, not the run.

    Parameters
    ----------
    folders
        Directories for the journal. The first writable one is used; without any, nothing is written. One of another
        user but root, or behind a link of such a user, is not used: its owner could redirect what is written there.
    clean
        A function that redacts a part of the report.
    """

    def __init__(self, folders: Sequence[Path], clean: Callable[[Any], Any]) -> None:
        self.path: Path | None = None
        self.failure: str | None = None
        """The reason why there is no journal, or why it ends early."""
        self._folders = folders
        self._clean = clean
        self._file: int | None = None
        self._state = RunState(run=secrets.token_hex(8))
        self._lines = 1
        self._size = STATE_BYTES

    def __call__(self, event: JournalEvent) -> None:
        """Write an event. For the begin of a step and for kernel messages, return when all events are on disk."""
        if isinstance(event, Begin):
            self._begin(event)
        elif self._file is not None:
            self._write(_NAMES[type(event)], to_json(self._clean(event)))
            if isinstance(event, StepBegun | Logged):
                # The node may panic next.
                self._flush()

    def _begin(self, begin: Begin) -> None:
        """Create the file with the lines that describe the plan; remove it if they cannot be written."""
        self._make()
        content = {
            "schema": JOURNAL_SCHEMA,
            "egmctl": __version__,
            "bench": RunReport.SCHEMA,
            "steps": begin.steps,
            "result": to_json(self._clean(begin.report)),
        }
        for _ in BEGIN_LINES:
            self._write(BEGIN, content)
        if self._state.cut is not None and self.path is not None:
            with contextlib.suppress(OSError), open_folder(self.path.parent) as folder:
                os.unlink(self.path.name, dir_fd=folder)
            self.path = None
            self.close()

    def end(self, answer: Answer) -> None:
        """Record the end of the run with its answer, after its result was written, and close the file."""
        code = int(answer.exit_code)
        self._put(replace(self._state, exit_code=code, answer=answer.state, lines=self._lines))
        self._flush()
        self.close()

    def close(self) -> None:
        """Close the file without recording the end of the run."""
        file, self._file = self._file, None
        if file is None:
            return
        try:
            os.close(file)
        except OSError as error:
            # A network file system reports failed writes here.
            self.failure = self.failure or f"{self.path}: {error.strerror}"

    def _make(self) -> None:
        for folder in self._folders:
            try:
                with open_folder(folder, make=True, own=True) as opened:
                    path, file = _new_file(descriptor_path(opened), self._state)
                    # The lock shows other commands that the journal is being written, so that they neither remove it
                    # nor report its run. Network file systems without locks cannot show this.
                    with contextlib.suppress(OSError):
                        fcntl.flock(file, fcntl.LOCK_EX)
                    _flush_folder(descriptor_path(opened))
                    prune(descriptor_path(opened))
            except OSError as error:
                self.failure = f"{folder}: {error.strerror}"
                continue
            self._file, self.path, self.failure = file, folder / path.name, None
            return

    def _write(self, event: str, content: Mapping[str, Any]) -> None:
        if self._file is None or self._state.cut is not None:
            return
        text = journal_line(self._lines, event, {"run": self._state.run, **content})
        try:
            if self._size + len(text) > FILE_LIMIT:
                raise OSError(errno.EFBIG, f"it is full at {FILE_LIMIT >> 20} MiB")
            write_all(self._file, text)
        except OSError as error:
            self._cut(error)
            return
        self._lines, self._size = self._lines + 1, self._size + len(text)

    def _flush(self) -> None:
        if self._file is None:
            return
        try:
            os.fdatasync(self._file)
        except OSError as error:
            self._cut(error)

    def _cut(self, error: OSError) -> None:
        """Truncate the journal after its last complete line; write the reason into its first line."""
        reason = error.strerror or "it cannot be written"
        self.failure = f"{self.path}: {reason}"
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
        self._put(replace(self._state, lines=self._lines, cut=reason))

    def _put(self, state: RunState) -> None:
        """Overwrite the first line in place, which needs no more disk space."""
        self._state = state
        if self._file is None:
            return
        try:
            os.pwrite(self._file, state_line(state), 0)
        except OSError as error:
            self.failure = self.failure or f"{self.path}: {error.strerror}"


def _new_file(folder: Path, state: RunState) -> tuple[Path, int]:
    """Create a journal with its first line; return its path and descriptor.

    Its number is larger than that of every other journal in the directory, because the clock may have been set back.

    Raises
    ------
    OSError
        The file cannot be created or written.
    """
    number = max(map(_number, journals(folder)), default=0) + 1
    while True:
        path = folder / f"bench-{number:06}-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}{SUFFIX}"
        try:
            file = os.open(path, NEW_FILE, 0o600)
            break
        except FileExistsError:
            # Another run created the same name in this second.
            number += 1
    try:
        write_all(file, state_line(state))
    except OSError:
        os.close(file)
        path.unlink()
        raise
    return path, file


def _number(path: Path) -> int:
    """Return the number in a journal's name; 0 if this module does not create such names."""
    match = _OURS.fullmatch(path.name)
    return int(match[1]) if match else 0


def _flush_folder(folder: Path) -> None:
    """Flush a directory to disk. Otherwise a panic could lose a new file's name, and with it the file."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        opened.callback(os.close, descriptor)
        os.fsync(descriptor)


def journals(folder: Path) -> list[Path]:
    """Return the journals of a directory, the oldest first."""
    try:
        paths = [path for path in folder.iterdir() if path.suffix == SUFFIX and path.is_file()]
    except OSError:
        return []
    return sorted(paths, key=lambda path: (_number(path), path.name))


def earlier(folder: Path | None = None) -> list[Path]:
    """Return the journals that no running command is writing, the oldest first."""
    return [path for path in journals(folder or journal_folder()) if not at_work(path)]


def at_work(path: Path) -> bool:
    """Return whether a journal is locked, i.e. being written."""
    try:
        with open(open_regular(path), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def ended(path: Path) -> bool:
    """Return whether a journal's run has ended, from the journal's first line."""
    state = _state_of(path)
    return state is not None and state.exit_code is not None


def is_unmentioned(path: Path) -> bool:
    """Return whether a run did not end and no command has reported this yet, from the journal's first line."""
    state = _state_of(path)
    return state is not None and state.exit_code is None and not state.mentioned


def _state_of(path: Path) -> RunState | None:
    try:
        with open(open_regular(path), "rb") as file:
            return read_state(file.read(STATE_BYTES))
    except OSError:
        return None


def prune(folder: Path) -> None:
    """Remove the oldest journals of a directory beyond :data:`FILES_LIMIT`, unless they are being written.

    Other files with the same suffix, such as systemd's, stay.
    """
    for path in [path for path in journals(folder) if _number(path)][:-FILES_LIMIT]:
        if not at_work(path):
            with contextlib.suppress(OSError):
                path.unlink()


def mention(path: Path) -> None:
    """Record in a journal that a command has reported that its run did not end."""
    with contextlib.suppress(OSError), open_folder(path.parent, own=True) as folder:
        descriptor = open_regular(descriptor_path(folder) / path.name, os.O_RDWR | os.O_NOFOLLOW)
        with open(descriptor, "r+b", buffering=0) as file:
            state = read_state(file.read(STATE_BYTES))
            if state is not None:
                os.pwrite(file.fileno(), state_line(replace(state, mentioned=True)), 0)
