"""Writes files whole and reads them within bounds: no reader, and no crash in the middle, ever sees a part of one."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import select
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from egmctl.errors import EgmctlError, UsageError
from egmctl.units import printable

FIFO_WAIT_S = 10.0
"""Seconds that a reader waits for the writer of a FIFO."""

_LINKS = 40
"""Links that the kernel follows in one path (``MAXSYMLINKS``)."""

_NOT_REGULAR = "it is not a regular file"


_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags that open a file which must not exist yet."""


class FileExists(UsageError):
    """The file exists, perhaps only since a moment ago, and must not be replaced."""


def write_whole(path: Path, content: bytes, *, replace: bool = True) -> None:
    """Write a file whole or not at all; through a link its target is written, and an earlier file keeps its mode.

    Parameters
    ----------
    replace
        Whether it may replace an earlier file. If not, only one of two concurrent writers succeeds.

    Raises
    ------
    FileExists
        If it exists and ``replace`` is false.
    EgmctlError
        If writing fails; an earlier file is then unchanged.
    """
    try:
        _write(path, content, replace)
    except FileExistsError as error:
        raise FileExists(f"{printable(path)} exists; --force overwrites it") from error
    except OSError as error:
        raise EgmctlError(f"cannot write {printable(path)}: {error.strerror}") from error


def write_all(descriptor: int, content: bytes) -> None:
    """Write all of it: a nearly full disk takes a part, and reports the error only at the next write.

    Raises
    ------
    OSError
        If not all of it was taken.
    """
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def settle(descriptor: int) -> None:
    """Make a network file system report failed writes now: it reports a full disk only when a file is closed.

    Raises
    ------
    OSError
        If written data is lost.
    """
    os.close(os.dup(descriptor))


def _write(path: Path, content: bytes, replace: bool) -> None:
    # A name of its own length: the file's own, and some letters more, may be too long.
    temporary = f".egmctl-{os.getpid()}-{time.monotonic_ns():x}.tmp"
    with open_parent(path) as (folder, name):
        earlier = status_in(folder, name)
        if earlier is not None and not stat.S_ISREG(earlier.st_mode):
            raise OSError(errno.EINVAL, _NOT_REGULAR)
        try:
            with os.fdopen(os.open(temporary, NEW_FILE, 0o666, dir_fd=folder), "wb") as file:
                if earlier is not None:
                    # It may have a new owner, for whom setuid was not meant, nor that others may write.
                    is_own = earlier.st_uid == os.geteuid()
                    os.fchmod(file.fileno(), earlier.st_mode & (0o777 if is_own else 0o755))
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            if not replace:
                _claim(folder, temporary, name)
            else:
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)


def status_in(folder: int, name: str) -> os.stat_result | None:
    """Return the status of a name in an open folder, ``None`` if it does not exist."""
    try:
        return os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return None


def _claim(folder: int, temporary: str, name: str) -> None:
    """Give a file its name unless the name exists: link(2) does so atomically, while rename(2) replaces."""
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        # A file system without hard links (FAT, some FUSE): whoever makes the empty file may replace it.
        os.close(os.open(name, NEW_FILE, dir_fd=folder))
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


@contextlib.contextmanager
def open_parent(path: Path, *, make: bool = False) -> Iterator[tuple[int, str]]:
    """Open the folder that a path ends in; yield its descriptor and the last name, which is no link.

    Each name on the way is looked up in the open folder before it: nobody can exchange one of them in the meantime.
    Links are followed as the kernel does with ``fs.protected_symlinks`` on, in every place of the path: in a folder
    that everybody may write to and nobody may clear (``/tmp``), a link counts only if it is one's own or the folder's
    owner's (https://docs.kernel.org/admin-guide/sysctl/fs.html#protected-symlinks).

    Parameters
    ----------
    make
        Create missing folders, for this user alone.

    Raises
    ------
    OSError
        EACCES for a link that does not count; ELOOP for too many; ENOENT for a folder that is missing.
    """
    names = list(reversed(path.parts))
    links = 0
    folder = os.open(".", _FOLDER)
    try:
        while names:
            name = names.pop()
            if _is_link(folder, name):
                if (links := links + 1) > _LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                names += reversed(Path(os.readlink(name, dir_fd=folder)).parts)
            elif not names and name not in ("/", ".."):
                yield folder, name
                return
            else:
                below = _open_folder(folder, name, make)
                os.close(folder)
                folder = below
        yield folder, "."
    finally:
        os.close(folder)


@contextlib.contextmanager
def open_folder(path: Path, *, make: bool = False) -> Iterator[int]:
    """Open a folder to write in it, and yield its descriptor; links on the way and ``make`` as :func:`open_parent`."""
    with open_parent(path, make=make) as (parent, name):
        folder = _open_folder(parent, name, make)
    try:
        yield folder
    finally:
        os.close(folder)


def make_folder(path: Path) -> None:
    """Create a folder for this user, and those above it, unless they exist; links as :func:`open_parent`.

    Raises
    ------
    OSError
        If it does not exist afterwards.
    """
    with open_folder(path, make=True):
        pass


def path_of(folder: int) -> Path:
    """Return a path to an open folder that stays valid even if the folder is renamed."""
    return Path(f"/proc/self/fd/{folder}")


def _open_folder(parent: int, name: str, make: bool) -> int:
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)
    except FileNotFoundError:
        if not make:
            raise
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=parent)
    return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=parent)


def _is_link(folder: int, name: str) -> bool:
    """Return whether a name in a folder is a link; raise an error for one that must not be followed."""
    link = status_in(folder, name)
    if link is None or not stat.S_ISLNK(link.st_mode):
        return False
    around = os.fstat(folder)
    shared = around.st_mode & stat.S_ISVTX and around.st_mode & stat.S_IWOTH
    if shared and link.st_uid not in (os.geteuid(), around.st_uid):
        raise OSError(errno.EACCES, f"{printable(name)} is another user's link in a folder that everybody may write to")
    return True


def next_free(path: Path) -> Path:
    """Return an unused name in the same folder: ``a-2.json``; a name that is too long is cut."""
    stem = path.stem.encode()[:200].decode(errors="ignore") or "result"
    suffix = path.suffix.encode()[:20].decode(errors="ignore")
    others = (path.with_name(f"{stem}-{number}{suffix}") for number in itertools.count(2))
    return next(other for other in others if not other.exists())


def state_folder() -> Path:
    """Return the folder of files that the command keeps by itself, which need not exist: ``~/.local/state/egmctl``.

    ``$XDG_STATE_HOME`` counts if it is absolute: https://specifications.freedesktop.org/basedir-spec.
    """
    stated = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (stated if stated.is_absolute() else Path(os.path.expanduser("~/.local/state"))) / "egmctl"


def read_bounded(path: Path, limit: int) -> bytes:
    """Return the content of a file; of a file larger than ``limit`` bytes, one byte more than that.

    Pipes are read to their end. Reading a FIFO without a writer ends after :data:`FIFO_WAIT_S`.

    Raises
    ------
    OSError
        If it cannot be read; ``strerror`` says why.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        is_fifo = stat.S_ISFIFO(os.fstat(descriptor).st_mode)
        # poll(2) gives POLLHUP once somebody has had a FIFO open for writing since it was opened here.
        had_writer = select.poll()
        had_writer.register(descriptor, select.POLLIN)
        until = time.monotonic() + FIFO_WAIT_S
        parts: list[bytes] = []
        room = limit + 1
        while room > 0:
            try:
                part = os.read(descriptor, min(room, 1 << 20))
            except BlockingIOError:
                # Somebody has it open and has not written yet: a command at work, perhaps for hours.
                select.select([descriptor], [], [])
                continue
            if part:
                parts.append(part)
                room -= len(part)
            elif is_fifo and not parts and not had_writer.poll(0):
                if time.monotonic() > until:
                    raise OSError(errno.EPIPE, f"it is a FIFO, and nobody opened it to write within {FIFO_WAIT_S:g} s")
                time.sleep(0.05)
            else:
                break
        return b"".join(parts)
    finally:
        os.close(descriptor)


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Return a descriptor of a regular file, without blocking if something else has taken its place.

    Raises
    ------
    OSError
        If it cannot be opened, or is no regular file; ``strerror`` says why.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, _NOT_REGULAR)
    return descriptor
