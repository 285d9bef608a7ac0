"""Keeps the journal of a run: one line for each event, on disk before the next step begins."""

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
"""Journals that a folder keeps; the oldest go first."""
FILE_LIMIT = 32 << 20
"""Bytes of the longest one: what would come after that is not kept."""

_OURS = re.compile(rf"bench-([0-9]{{6,9}})-[0-9]{{8}}T[0-9]{{6}}Z{re.escape(events.SUFFIX)}", re.ASCII)

_NAMES = {record: name for name, record in events.RECORDS.items()}


def journal_folder() -> Path:
    """Return where journals are kept unless somebody says otherwise."""
    return state_folder() / "journal"


class Journal:
    """One run's journal, as a recorder. A disk that takes no more costs the rest of the journal, never the run.

    Parameters
    ----------
    folders
        Where it may be; the first one that can be written to is taken. Without any, nothing is kept.
    clean
        Takes out of a part of the report what may not leave the site.
    """

    def __init__(self, folders: Sequence[Path], clean: Callable[[Any], Any]) -> None:
        self.path: Path | None = None
        self.failure: str | None = None
        """Why there is none, or why it ends early."""
        self._folders = folders
        self._clean = clean
        self._file: int | None = None
        self._state = events.State()
        self._lines = 1
        self._size = events.STATE_BYTES

    def __call__(self, event: events.Event) -> None:
        """Write an event; before a step, and once the kernel has logged something, wait until the disk has it all."""
        if isinstance(event, events.Begin):
            self._begin(event)
        elif self._file is not None:
            self._write(_NAMES[type(event)], to_json(self._clean(event)))
            if isinstance(event, events.StepBegun | events.Logged):
                # The node may be about to go down.
                self._flush()

    def _begin(self, begin: events.Begin) -> None:
        """Make the file, and remove the oldest ones of its folder."""
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
        """Write that the run came to its end and its result is where it should be."""
        self._put(replace(self._state, exit_code=exit_code, lines=self._lines))
        self._flush()
        self.close()

    def close(self) -> None:
        """Leave the journal as it is."""
        file, self._file = self._file, None
        if file is None:
            return
        try:
            os.close(file)
        except OSError as error:
            # A network file system tells here what it could not write.
            self.failure = self.failure or f"{self.path}: {error.strerror}"

    def _make(self) -> None:
        for folder in self._folders:
            try:
                with open_folder(folder, make=True) as opened:
                    path, file = _new_file(path_of(opened))
                    # The lock says that the journal is being written: others neither remove it nor tell of its end.
                    # On network file systems without locks nobody knows.
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
        """End the journal after its last whole line; its first line then says why."""
        reason = error.strerror or "it cannot be written"
        self.failure = f"{self.path}: {reason}"
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._size)
        self._put(replace(self._state, lines=self._lines, cut=reason))

    def _put(self, state: events.State) -> None:
        """Write the first line in its place, which needs no more room."""
        self._state = state
        if self._file is None:
            return
        try:
            os.pwrite(self._file, events.state_line(state), 0)
        except OSError as error:
            self.failure = self.failure or f"{self.path}: {error.strerror}"


def _new_file(folder: Path) -> tuple[Path, int]:
    """Return the path and a descriptor of a new journal, which holds its first line.

    Its number is above those of all others in the folder, as a clock may have been set back.

    Raises
    ------
    OSError
        If there is no room for it, or none can be made.
    """
    number = max(map(_number, journals(folder)), default=0) + 1
    while True:
        path = folder / f"bench-{number:06}-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}{events.SUFFIX}"
        try:
            file = os.open(path, NEW_FILE, 0o600)
            break
        except FileExistsError:
            # Another run began in this second.
            number += 1
    try:
        write_all(file, events.state_line(events.State()))
    except OSError:
        os.close(file)
        path.unlink()
        raise
    return path, file


def _number(path: Path) -> int:
    """Return the number in a journal's name, 0 where it is not one that this module gives."""
    match = _OURS.fullmatch(path.name)
    return int(match[1]) if match else 0


def _flush_folder(folder: Path) -> None:
    """Have the disk know a new file's name: a node that panics would lose it with all that is in it."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        opened.callback(os.close, descriptor)
        os.fsync(descriptor)


def journals(folder: Path) -> list[Path]:
    """Return the journals of a folder, the oldest first."""
    try:
        paths = [path for path in folder.iterdir() if path.suffix == events.SUFFIX and path.is_file()]
    except OSError:
        return []
    return sorted(paths, key=lambda path: (_number(path), path.name))


def at_work(path: Path) -> bool:
    """Say whether a journal is being written."""
    try:
        with open(open_regular(path), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def prune(folder: Path) -> None:
    """Remove the oldest journals of a folder that has too many; those at work stay.

    Only files that are named as this module names them: others have journals too, systemd among them.
    """
    for path in [path for path in journals(folder) if _number(path)][:-FILES_LIMIT]:
        if not at_work(path):
            with contextlib.suppress(OSError):
                path.unlink()


def mention(path: Path) -> None:
    """Write that somebody was told of a run that did not end."""
    with contextlib.suppress(OSError), open_folder(path.parent) as folder:
        descriptor = open_regular(path_of(folder) / path.name, os.O_RDWR | os.O_NOFOLLOW)
        with open(descriptor, "r+b", buffering=0) as file:
            state = events.read_state(file.read(events.STATE_BYTES))
            if state is not None:
                os.pwrite(file.fileno(), events.state_line(replace(state, mentioned=True)), 0)
