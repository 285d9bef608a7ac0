"""Write files atomically, so that readers and crashes never leave a partial file, and read files up to a size limit.

The folders of files that ship with egmctl, and the reader of their TOML, are at the end.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import select
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from egmctl.errors import EgmctlError, UsageError
from egmctl.units import printable

FIFO_WAIT_S = 10.0
"""The time that a reader waits for the writer of a FIFO."""

_LINKS = 40
"""The maximum number of links in one path, as in the kernel (``MAXSYMLINKS``)."""

_NOT_REGULAR = "it is not a regular file"


_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
"""The flags of open(2) for a new file; they fail if the file exists."""


class FileExists(UsageError):
    """The file exists and must not be replaced. Another process may just have created it."""


def write_whole(path: Path, content: bytes, *, replace: bool = True) -> None:
    """Write a file atomically. If the path is a link, write its target.

    A replaced file keeps its permissions, except, if another user owned it, write permission for group and others.

    Parameters
    ----------
    replace
        Whether to replace an existing file. If not, only one of two concurrent writers succeeds.

    Raises
    ------
    FileExists
        The file exists and ``replace`` is false.
    EgmctlError
        The write fails. An existing file is then unchanged.
    """
    try:
        _write(path, content, replace)
    except FileExistsError as error:
        raise FileExists(f"{printable(path)} exists; --force overwrites it") from error
    except OSError as error:
        raise EgmctlError(f"cannot write {printable(path)}: {error.strerror}") from error


def write_all(descriptor: int, content: bytes) -> None:
    """Write all bytes. On a nearly full disk write(2) writes some of them, and fails only when it is called again.

    Raises
    ------
    OSError
        Some bytes are not written.
    """
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def settle(descriptor: int) -> None:
    """Make a network file system report failed writes now, which it otherwise does only when the file is closed.

    Raises
    ------
    OSError
        Written data is lost.
    """
    os.close(os.dup(descriptor))


def _write(path: Path, content: bytes, replace: bool) -> None:
    # Not derived from the file's name, which may be too long with a suffix.
    temporary = f".egmctl-{os.getpid()}-{time.monotonic_ns():x}.tmp"
    with open_parent(path) as (folder, name):
        earlier = status_in(folder, name)
        if earlier is not None and not stat.S_ISREG(earlier.st_mode):
            raise OSError(errno.EINVAL, _NOT_REGULAR)
        try:
            with os.fdopen(os.open(temporary, NEW_FILE, 0o666, dir_fd=folder), "wb") as file:
                if earlier is not None:
                    # The owner may change: neither setuid nor write permission of others was meant for the new one.
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
    """Return the lstat(2) of a name in an open directory; ``None`` if it does not exist."""
    try:
        return os.lstat(name, dir_fd=folder)
    except FileNotFoundError:
        return None


def _claim(folder: int, temporary: str, name: str) -> None:
    """Rename a file unless the new name exists. link(2) checks this atomically, whereas rename(2) replaces a file."""
    try:
        os.link(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK):
            raise
        # A file system without hard links (FAT, some FUSE): the process that creates the empty file may replace it.
        os.close(os.open(name, NEW_FILE, dir_fd=folder))
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


@contextlib.contextmanager
def open_parent(path: Path, *, make: bool = False, own: bool = False) -> Iterator[tuple[int, str]]:
    """Open the directory of a path's last component; yield its descriptor and the last name, which is not a link.

    Each component is looked up in the open directory before it, so that no other process can exchange one meanwhile.
    Links anywhere in the path are followed as by a kernel with ``fs.protected_symlinks``: in a sticky, world-writable
    directory (``/tmp``), only links of this user or of the directory's owner
    (https://docs.kernel.org/admin-guide/sysctl/fs.html#protected-symlinks).

    Parameters
    ----------
    make
        Whether to create missing directories, with mode 0700.
    own
        Whether to follow only links of this user and of root: the owner of a link chooses where the path leads.

    Raises
    ------
    OSError
        EACCES: a link must not be followed. ELOOP: too many links. ENOENT: a directory is missing.
    """
    names = list(reversed(path.parts))
    links = 0
    folder = os.open(".", _FOLDER)
    try:
        while names:
            name = names.pop()
            if _is_link(folder, name, own):
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
def open_folder(path: Path, *, make: bool = False, own: bool = False) -> Iterator[int]:
    """Open a directory and yield its descriptor. Links and ``make`` are handled as in :func:`open_parent`.

    Parameters
    ----------
    own
        Whether the directory, and each link that leads there, must belong to this user or to root.

    Raises
    ------
    OSError
        EACCES: the directory or a link belongs to another user. Others are those of :func:`open_parent`.
    """
    with open_parent(path, make=make, own=own) as (parent, name):
        folder = _open_folder(parent, name, make)
    try:
        owner = os.fstat(folder).st_uid
        if own and owner not in (os.geteuid(), 0):
            raise OSError(errno.EACCES, f"it belongs to user {owner}, who could redirect what is written there")
        yield folder
    finally:
        os.close(folder)


def make_folder(path: Path) -> None:
    """Create a directory and its parents, with mode 0700, if missing. For links see :func:`open_parent`.

    Raises
    ------
    OSError
        The directory cannot be created or opened.
    """
    with open_folder(path, make=True):
        pass


def descriptor_path(folder: int) -> Path:
    """Return a path to an open directory that stays valid if the directory is renamed."""
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


def _is_link(folder: int, name: str, own: bool) -> bool:
    """Return whether a name in a directory is a link; raise OSError (EACCES) if the link must not be followed."""
    link = status_in(folder, name)
    if link is None or not stat.S_ISLNK(link.st_mode):
        return False
    around = os.fstat(folder)
    shared = around.st_mode & stat.S_ISVTX and around.st_mode & stat.S_IWOTH
    if shared and link.st_uid not in (os.geteuid(), around.st_uid):
        raise OSError(errno.EACCES, f"{printable(name)} is another user's link in a folder that everybody may write to")
    if own and link.st_uid not in (os.geteuid(), 0):
        raise OSError(
            errno.EACCES,
            f"{printable(name)} is a link of user {link.st_uid}, who could redirect what is written there",
        )
    return True


def next_free(path: Path) -> Path:
    """Return an unused path in the same directory, e.g. ``a-2.json``. A name that is too long is cut."""
    stem = path.stem.encode()[:200].decode(errors="ignore") or "result"
    suffix = path.suffix.encode()[:20].decode(errors="ignore")
    others = (path.with_name(f"{stem}-{number}{suffix}") for number in itertools.count(2))
    return next(other for other in others if not other.exists())


def state_folder() -> Path:
    """Return the directory of the command's state, ``~/.local/state/egmctl``. It may not exist.

    ``$XDG_STATE_HOME`` replaces ``~/.local/state`` if it is absolute
    (https://specifications.freedesktop.org/basedir-spec).
    """
    stated = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (stated if stated.is_absolute() else Path(os.path.expanduser("~/.local/state"))) / "egmctl"


def read_bounded(path: Path, limit: int) -> bytes:
    """Return a file's content, or its first ``limit + 1`` bytes if it is longer than ``limit`` bytes.

    Pipes are read until end of file.

    Raises
    ------
    OSError
        The file cannot be read, or no process opened a FIFO for writing within :data:`FIFO_WAIT_S`. ``strerror`` is the
        reason.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        parts: list[bytes] = []
        room = limit + 1
        while room > 0 and (part := read_part(descriptor, min(room, 1 << 20), is_first=not parts)):
            parts.append(part)
            room -= len(part)
        return b"".join(parts)
    finally:
        os.close(descriptor)


def read_part(descriptor: int, size: int, *, is_first: bool) -> bytes:
    """Return the next bytes of a file that was opened with ``O_NONBLOCK``; none at its end.

    Parameters
    ----------
    is_first
        Whether nothing was read yet: then a FIFO may still be without a writer.

    Raises
    ------
    OSError
        As for :func:`read_bounded`.
    """
    is_fifo = stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    # poll(2) reports POLLHUP if a writer has opened and closed the FIFO since it was opened here.
    had_writer = select.poll()
    had_writer.register(descriptor, select.POLLIN)
    until = time.monotonic() + FIFO_WAIT_S
    while True:
        try:
            part = os.read(descriptor, size)
        except BlockingIOError:
            # A writer has it open but has not written yet: a running command, perhaps for hours.
            select.select([descriptor], [], [])
            continue
        if part or not is_fifo or not is_first or had_writer.poll(0):
            return part
        if time.monotonic() > until:
            raise OSError(errno.EPIPE, f"it is a FIFO, and nobody opened it to write within {FIFO_WAIT_S:g} s")
        time.sleep(0.05)


def open_regular(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor. The call does not block if the path is a FIFO or a device.

    Raises
    ------
    OSError
        The file cannot be opened or is not a regular file. ``strerror`` is the reason.
    """
    descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, _NOT_REGULAR)
    return descriptor


# --- shipped files ----------------------------------------------------------------------------------------------------

_PACKAGE = Path(__file__).resolve().parent


def _shipped(name: str) -> Path:
    """Return a shipped directory: inside the package if installed from a wheel, beside it in a checkout."""
    packaged = _PACKAGE / f"_{name}"
    return packaged if packaged.is_dir() else _PACKAGE.parent / name


def profiles_dir() -> Path:
    """Return the directory of the platform profiles."""
    return _shipped("profiles")


def machines_dir() -> Path:
    """Return the directory of the recorded machines (``NAME.json``)."""
    return profiles_dir() / "machines"


def docs_dir() -> Path:
    """Return the directory of the guide."""
    return _shipped("docs")


def read_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text, by Python's own reader or, in Python 3.10, by tomli, its origin.

    Raises
    ------
    ValueError
        The text is not TOML.
    """
    if sys.version_info >= (3, 11):
        from tomllib import loads
    else:
        from tomli import loads
    tables: dict[str, Any] = loads(text)
    return tables
