"""The folder that a fleet's results are in: ``fleet.json``, and one file a node under ``nodes``.

Every file appears whole, and no run writes into the folder of another.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from egmctl.documents import check_schema, read_object, refuse
from egmctl.errors import EgmctlError, UsageError
from egmctl.files import NEW_FILE, make_folder, open_folder, open_parent, path_of, write_whole
from egmctl.model.codec import DecodeError, from_json
from egmctl.model.command import Command
from egmctl.model.fleet import FleetReport
from egmctl.units import printable

REPORT = "fleet.json"
NODES = "nodes"


class Folder:
    """A folder of results.

    Parameters
    ----------
    path
        It has to be there already, with its folder of nodes: see :func:`new_folder` and :func:`old_folder`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other runs out of the folder inside the block.

        Raises
        ------
        UsageError
            If one is in it.
        """
        lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UsageError(f"another egmctl fleet is using {printable(str(self.path))}") from error
            except OSError:
                # A network file system without locks: then nothing keeps others out.
                pass
            yield
        finally:
            os.close(lock)

    def spool(self, node: str) -> BinaryIO:
        """Return a file for what a node sends while it sends it; :meth:`discard` or :meth:`keep` end it."""
        self.discard(node)
        try:
            with open_folder(self.path / NODES) as nodes:
                part = os.open(self.part(node).name, NEW_FILE, 0o666, dir_fd=nodes)
            return os.fdopen(part, "wb", buffering=0)
        except OSError as error:
            raise EgmctlError(f"cannot write {printable(str(self.part(node)))}: {error.strerror}") from error

    def part(self, node: str) -> Path:
        """Return the path of the file that :meth:`spool` makes."""
        return self.path / NODES / f".{node}.part"

    def sent(self, node: str) -> bytes:
        """Return what a node sent."""
        try:
            return self.part(node).read_bytes()
        except OSError as error:
            raise EgmctlError(f"cannot read {printable(str(self.part(node)))}: {error.strerror}") from error

    def keep(self, node: str, document: bytes) -> str:
        """Put a node's document in its place, in place of what it sent, and return its path in the folder.

        It is a part of what was sent, and goes where that is: a disk that is full by now has room for it.
        """
        name, part = document_of(node), self.part(node)
        try:
            with open_folder(self.path / NODES) as nodes:
                sent = os.open(part.name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=nodes)
                with os.fdopen(sent, "r+b") as file:
                    file.write(document + b"\n")
                    file.truncate()
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(part.name, Path(name).name, src_dir_fd=nodes, dst_dir_fd=nodes)
        except OSError as error:
            raise EgmctlError(f"cannot write {printable(str(self.path / name))}: {error.strerror}") from error
        return name

    def holds(self, name: str) -> bool:
        """Say whether a document is there."""
        return (self.path / name).is_file()

    def discard(self, node: str) -> None:
        """Remove what a node sent."""
        with contextlib.suppress(OSError), open_folder(self.path / NODES) as nodes:
            os.unlink(self.part(node).name, dir_fd=nodes)

    def write_report(self, text: str) -> None:
        """Put ``fleet.json`` in its place, over an earlier one of this run."""
        write_whole(self.path / REPORT, text.encode())

    def read_report(self) -> FleetReport:
        """Return what an earlier run wrote.

        Raises
        ------
        UsageError
            If it is no report.
        """
        path = self.path / REPORT
        source = f"file {path}"
        document = read_object(path, source, "report of egmctl fleet")
        check_schema(document, (FleetReport.SCHEMA,), source, "report of egmctl fleet")
        try:
            return from_json(FleetReport, document.get("result"), "result")
        except DecodeError as error:
            refuse(source, f"is not a valid report: {error}")


def document_of(node: str) -> str:
    """Return the path of a node's document in the folder."""
    return f"{NODES}/{node}.json"


def new_folder(path: Path | None, command: Command, now: datetime) -> Folder:
    """Make the folder of a run.

    Parameters
    ----------
    path
        Where; it may be there already if it is empty. ``None`` is a new folder of this directory, named by the command
        and the time.

    Raises
    ------
    UsageError
        If there is something in it, or it cannot be made.
    """
    if path is None:
        stamp = f"egmctl-fleet-{command}-{now:%Y%m%dT%H%M%SZ}"
        tries = (Path(stamp), *(Path(f"{stamp}-{number}") for number in range(2, 100)))
        path = next((one for one in tries if not one.exists()), tries[0])
    name = printable(str(path))
    try:
        with open_parent(path) as (parent, last), contextlib.suppress(FileExistsError):
            os.mkdir(last, dir_fd=parent)
        with open_folder(path) as opened:
            if (owner := os.fstat(opened).st_uid) != os.geteuid():
                raise UsageError(f"{name} belongs to user {owner}, who could redirect what is written there")
            if os.listdir(path_of(opened)):
                raise UsageError(f"{name} exists; give a new folder, or --resume {name} to continue")
            os.mkdir(NODES, dir_fd=opened)
    except OSError as error:
        raise UsageError(f"{name} cannot be made: {error.strerror}") from error
    return Folder(path)


def old_folder(path: Path) -> Folder:
    """Return the folder of an earlier run.

    Raises
    ------
    UsageError
        If there is none, or it cannot be read or written to, or is of another user: what it says is run on the nodes.
    """
    if not os.access(path / REPORT, os.R_OK):
        raise UsageError(f"{printable(str(path))} is not a folder of egmctl fleet: it has no readable {REPORT}")
    if not os.access(path / NODES, os.W_OK | os.X_OK):
        raise UsageError(f"{printable(str(path / NODES))} cannot be written to")
    try:
        make_folder(path)
    except OSError as error:
        raise UsageError(f"{printable(str(path))} cannot be written to: {error.strerror}") from error
    # The owner of a folder can exchange what is in it, and where a link leads is its owner's choice.
    for one in (path / REPORT, path, path / NODES):
        status = one.stat() if one == path else one.lstat()
        name = printable(str(one))
        if stat.S_ISLNK(status.st_mode):
            raise UsageError(f"{name} is a link: --resume takes the folder that the earlier run made")
        if status.st_uid not in (os.geteuid(), 0):
            raise UsageError(f"{name} belongs to user {status.st_uid}: --resume would run what it says on the nodes")
    return Folder(path)
