"""Write the journal of a run: one line per event, on disk before the next step begins."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from egmctl import __version__
from egmctl.files import NEW_FILE, open_folder, open_regular, path_of, state_folder, write_all
from egmctl.journal import events
from egmctl.model.codec import to_json
from egmctl.model.measurement import RunReport

FILES_LIMIT = 20
"""The maximum number of journals in a directory."""
FILE_LIMIT = 32 << 20
"""The maximum size of a journal in bytes. Lines beyond it are not written."""

_OURS = re.compile(rf"bench-([0-9]{{6,9}})-[0-9]{{8}}T[0-9]{{6}}Z{re.escape(events.SUFFIX)}", re.ASCII)

_NAMES = {record: name for name, record in events.RECORDS.items()}


def journal_folder() -> Path:
    """Return the default directory of journals."""
    return state_folder() / "journal"


class Journal:
    """A recorder that writes a run's journal. A write error ends the journal, not the run.

    Parameters
    ----------
    folders
        Directories for the journal. The first writable one is used; without any, nothing is written.
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
        self._state = events.State()
        self._lines = 1
        self._size = events.STATE_BYTES

    def __call__(self, event: events.Event) -> None:
        """Write an event. For the begin of a step and for kernel messages, return when all events are on disk."""
        if isinstance(event, events.Begin):
            self._begin(event)
        elif self._file is not None:
            self._write(_NAMES[type(event)], to_json(self._clean(event)))
            if isinstance(event, events.StepBegun | events.Logged):
                # The node may panic next.
                self._flush()

    def _begin(self, begin: events.Begin) -> None:
        """Create the file with the lines that describe the plan; remove it if they cannot be written."""
        self._make()
        content = {
            "schema": events.JOURNAL_SCHEMA,
            "egmctl": __version__,
            "bench": RunReport.SCHEMA,
            "steps": begin.steps,
            "result": to_json(self._clean(begin.report)),
        }
        for _ in events.BEGIN_LINES:
            self._write(events.BEGIN, content)
        if self._state.cut is not None and self.path is not None:
            with contextlib.suppress(OSError), open_folder(self.path.parent) as folder:
                os.unlink(self.path.name, dir_fd=folder)
            self.path = None
            self.close()

    def end(self, exit_code: int) -> None:
        """Record the end of the run, after its result was written, and close the file."""
        self._put(replace(self._state, exit_code=exit_code, lines=self._lines))
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
                with open_folder(folder, make=True) as opened:
                    path, file = _new_file(path_of(opened))
                    # The lock shows other commands that the journal is being written, so that they neither remove it
                    # nor report its run. Network file systems without locks cannot show this.
                    with contextlib.suppress(OSError):
                        fcntl.flock(file, fcntl.LOCK_EX)
                    _flush_folder(path_of(opened))
                    prune(path_of(opened))
            except OSError as error:
                self.failure = f"{folder}: {error.strerror}"
                continue
            self._file, self.path, self.failure = file, folder / path.name, None
            return

    def _write(self, event: str, content: Mapping[str, Any]) -> None:
        if self._file is None or self._state.cut is not None:
            return
        line = events.line(self._lines, event, content)
        try:
            if self._size + len(line) > FILE_LIMIT:
                raise OSError(errno.EFBIG, f"it is full at {FILE_LIMIT >> 20} MiB")
            write_all(self._file, line)
        except OSError as error:
            self._cut(error)
            return
        self._lines, self._size = self._lines + 1, self._size + len(line)

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

    def _put(self, state: events.State) -> None:
        """Overwrite the first line in place, which needs no more disk space."""
        self._state = state
        if self._file is None:
            return
        try:
            os.pwrite(self._file, events.state_line(state), 0)
        except OSError as error:
            self.failure = self.failure or f"{self.path}: {error.strerror}"


def _new_file(folder: Path) -> tuple[Path, int]:
    """Create a journal with its first line; return its path and descriptor.

    Its number is larger than that of every other journal in the directory, because the clock may have been set back.

    Raises
    ------
    OSError
        The file cannot be created or written.
    """
    number = max(map(_number, journals(folder)), default=0) + 1
    while True:
        path = folder / f"bench-{number:06}-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}{events.SUFFIX}"
        try:
            file = os.open(path, NEW_FILE, 0o600)
            break
        except FileExistsError:
            # Another run created the same name in this second.
            number += 1
    try:
        write_all(file, events.state_line(events.State()))
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
        paths = [path for path in folder.iterdir() if path.suffix == events.SUFFIX and path.is_file()]
    except OSError:
        return []
    return sorted(paths, key=lambda path: (_number(path), path.name))


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
    with contextlib.suppress(OSError), open_folder(path.parent) as folder:
        descriptor = open_regular(path_of(folder) / path.name, os.O_RDWR | os.O_NOFOLLOW)
        with open(descriptor, "r+b", buffering=0) as file:
            state = events.read_state(file.read(events.STATE_BYTES))
            if state is not None:
                os.pwrite(file.fileno(), events.state_line(replace(state, mentioned=True)), 0)
