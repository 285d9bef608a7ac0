"""Keeps the journal of a run: one line for each event, on disk before the next step begins."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from egmctl import __version__
from egmctl.files import NEW_FILE, open_folder, path_of, state_folder, write_all
from egmctl.journal import events
from egmctl.model.codec import to_json
from egmctl.model.kernel_log import KernelEvent
from egmctl.model.measurement import BENCH_SCHEMA, Measurement, RunReport, Task

FILES_LIMIT = 50
"""Journals that a folder keeps; the oldest go first."""
FOLDER_LIMIT = 256 << 20
"""Bytes of all of them."""
FILE_LIMIT = 32 << 20
"""Bytes of the longest one: what would come after that is not kept."""

_OURS = re.compile(rf"bench-[0-9]{{8}}T[0-9]{{6}}Z-[0-9]+{re.escape(events.SUFFIX)}", re.ASCII)


def journal_folder() -> Path:
    """Return where journals are kept unless somebody says otherwise."""
    return state_folder() / "journal"


class Journal:
    """One run's journal. A disk that takes no more costs the rest of the journal, never the run.

    Parameters
    ----------
    folders
        Where it may be; the first one that can be written to is taken.
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
        self._size = 0

    def begin(self, report: RunReport, steps: int) -> None:
        """Make the file, and remove the oldest ones of its folder."""
        self._file = self._made()
        first = {"schema": events.JOURNAL_SCHEMA, "egmctl": __version__, "bench": BENCH_SCHEMA, "steps": steps}
        self._write(events.BEGIN, **first, result=to_json(self._clean(report)))

    def step(self, tasks: Sequence[tuple[int, Task]]) -> None:
        """Write that a step begins, and wait until the disk has that and all before it."""
        told = [{"number": number, "task": to_json(self._clean(task))} for number, task in tasks]
        self._write(events.STEP, tasks=told)
        self._flush()

    def measurement(self, number: int, measurement: Measurement) -> None:
        """Write an outcome."""
        self._write(events.MEASUREMENT, number=number, measurement=to_json(self._clean(measurement)))

    def kernel(self, logged: Sequence[KernelEvent]) -> None:
        """Write what the kernel has logged, and wait until the disk has it: the node may be about to go down."""
        self._write(events.KERNEL, events=[to_json(self._clean(event)) for event in logged])
        self._flush()

    def note(self, text: str) -> None:
        """Write a note."""
        self._write(events.NOTE, text=self._clean(text))

    def problem(self, text: str) -> None:
        """Write a problem."""
        self._write(events.PROBLEM, text=self._clean(text))

    def end(self, exit_code: int) -> None:
        """Write that the run came to its end and its result is where it should be."""
        self._write(events.END, exit_code=exit_code)
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

    def _made(self) -> int | None:
        name = f"bench-{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{os.getpid()}{events.SUFFIX}"
        for folder in self._folders:
            try:
                with open_folder(folder, make=True) as opened:
                    file = os.open(name, NEW_FILE | os.O_APPEND, 0o600, dir_fd=opened)
                    # The lock says that the journal is being written: others neither remove it nor tell of its end.
                    # On network file systems without locks nobody knows.
                    with contextlib.suppress(OSError):
                        fcntl.flock(file, fcntl.LOCK_EX)
                    _flush_folder(path_of(opened))
                    prune(path_of(opened))
            except OSError as error:
                self.failure = f"{folder}: {error.strerror}"
                continue
            self.path, self.failure = folder / name, None
            return file
        return None

    def _write(self, event: str, **more: Any) -> None:
        if self._file is None:
            return
        line = json.dumps({"event": event, **more}, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        if self._size + len(line) > FILE_LIMIT and event != events.END:
            line = json.dumps({"event": events.FULL}).encode() + b"\n"
            self._fail(f"it is full at {FILE_LIMIT >> 20} MiB", line)
            return
        try:
            write_all(self._file, line)
            self._size += len(line)
        except OSError as error:
            self._fail(error.strerror or "it cannot be written")

    def _flush(self) -> None:
        if self._file is None:
            return
        try:
            os.fdatasync(self._file)
        except OSError as error:
            self._fail(error.strerror or "it cannot be written")

    def _fail(self, why: str, last: bytes = b"") -> None:
        self.failure = f"{self.path}: {why}"
        if self._file is not None and last:
            with contextlib.suppress(OSError):
                write_all(self._file, last)
        self.close()


def _flush_folder(folder: Path) -> None:
    """Have the disk know a new file's name: a node that panics would lose it with all that is in it."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError:
        return


def journals(folder: Path) -> list[Path]:
    """Return the journals of a folder, the oldest first."""
    try:
        return sorted(path for path in folder.iterdir() if path.suffix == events.SUFFIX and path.is_file())
    except OSError:
        return []


def at_work(path: Path) -> bool:
    """Say whether a journal is being written."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def prune(folder: Path) -> None:
    """Remove the oldest journals of a folder that has too many, or too large ones; those at work stay.

    Only files that are named as this module names them: others have journals too, systemd among them.
    """
    kept = size = 0
    for path in reversed([path for path in journals(folder) if _OURS.fullmatch(path.name)]):
        try:
            kept, size = kept + 1, size + path.stat().st_size
            if (kept > FILES_LIMIT or size > FOLDER_LIMIT) and not at_work(path):
                path.unlink()
        except OSError:
            continue


def mention(path: Path) -> None:
    """Write that somebody was told of a run that did not end."""
    try:
        with open_folder(path.parent) as folder:
            file = os.open(path.name, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, dir_fd=folder)
    except OSError:
        return
    with contextlib.suppress(OSError):
        try:
            # The last line may be a part of one.
            write_all(file, b"\n" + json.dumps({"event": events.MENTIONED}).encode() + b"\n")
        finally:
            os.close(file)
