"""Bounded reads of the kernel's files below one root directory, and why a value could not be read.

Everything that reads a fact from a file goes through :class:`Root`, so that a test (or a person with a copy of
another machine's ``/sys`` and ``/proc``) can put a directory tree in the place of ``/`` with the environment
variable ``EGMCTL_SYSROOT``. A file may be missing, unreadable, huge or garbage: each of these is one
:class:`Unreadable`, and :class:`Reasons` turns it into a null with its reason.
"""

from __future__ import annotations

import ctypes
import errno
import os
import re
from collections.abc import Callable
from typing import TypeVar

from egmctl.model.machine import Reason, Unread
from egmctl.units import parse_kernel_list

T = TypeVar("T")

SYSROOT_VARIABLE = "EGMCTL_SYSROOT"

READ_LIMIT = 1 << 20
"""Bytes of the largest file read whole. The largest that matters, ``/proc/self/mountinfo`` of a node with many
containers, has some 100 KiB."""

_LIBC = ctypes.CDLL(None, use_errno=True)

_REASONS = {
    errno.ENOENT: Reason.NOT_PRESENT,
    errno.ENOTDIR: Reason.NOT_PRESENT,
    errno.ENODEV: Reason.NOT_PRESENT,
    errno.ENXIO: Reason.NOT_PRESENT,
    errno.EACCES: Reason.NO_PERMISSION,
    errno.EPERM: Reason.NO_PERMISSION,
    errno.EINVAL: Reason.NOT_SUPPORTED,
    errno.EOPNOTSUPP: Reason.NOT_SUPPORTED,
    errno.ENOSYS: Reason.NOT_SUPPORTED,
}


class Unreadable(Exception):
    """A value cannot be read. ``unread`` says why; its detail names the file and holds nothing of its content."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.unread = Unread(reason=reason, detail=detail)

    @classmethod
    def from_os_error(cls, error: OSError, path: str) -> Unreadable:
        """Translate what the kernel answered for ``path``."""
        number = error.errno or 0
        return cls(_REASONS.get(number, Reason.FAILED), f"{path}: {errno.errorcode.get(number, 'unknown error')}")


class Reasons:
    """Collects why the values of one record are null while the record is being put together.

    ::

        why = Reasons()
        return Record(value=why.read("value", lambda: root.number("/proc/value")), unread=why.unread)
    """

    def __init__(self) -> None:
        self.unread: dict[str, Unread] = {}

    def read(self, name: str, function: Callable[[], T]) -> T | None:
        """Return ``function()``, or ``None`` with the reason kept under ``name``."""
        try:
            return function()
        except Unreadable as error:
            self.unread[name] = error.unread
            return None

    def null(self, names: str, reason: Reason, detail: str) -> None:
        """Keep one reason for several fields, named with spaces between."""
        self.unread.update(dict.fromkeys(names.split(), Unread(reason=reason, detail=detail)))


class Root:
    """A directory that stands for ``/``. Paths are given and named as on the machine itself: ``/proc/devices``."""

    def __init__(self, directory: str = "/") -> None:
        self.directory = os.path.realpath(directory)
        self.is_live = self.directory == "/"

    @classmethod
    def from_environment(cls) -> Root:
        """Return the root that ``EGMCTL_SYSROOT`` names, ``/`` without it."""
        return cls(os.environ.get(SYSROOT_VARIABLE) or "/")

    def path(self, path: str) -> str:
        """Return where ``path`` of the machine lies for the operating system."""
        return path if self.is_live else self.directory + path

    def read_bytes(self, path: str, limit: int = READ_LIMIT, *, from_end: bool = False) -> bytes:
        """Return up to ``limit`` bytes from the start of a file, or those at its end.

        Raises
        ------
        Unreadable
            If it is missing, not permitted or not a file.
        """
        try:
            # O_NONBLOCK: a FIFO in the place of a file must not hang the reader.
            descriptor = os.open(self.path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
        except OSError as error:
            raise Unreadable.from_os_error(error, path) from None
        try:
            parts = []
            if from_end:
                os.lseek(descriptor, max(0, os.fstat(descriptor).st_size - limit), os.SEEK_SET)
            while limit > 0 and (part := os.read(descriptor, min(limit, 1 << 16))):
                parts.append(part)
                limit -= len(part)
            return b"".join(parts)
        except OSError as error:
            raise Unreadable.from_os_error(error, path) from None
        finally:
            os.close(descriptor)

    def read(self, path: str) -> str:
        """Return a file's text without the white space around it; bytes that are not UTF-8 become U+FFFD.

        Raises
        ------
        Unreadable
            If it is missing, not permitted, not a file or longer than :data:`READ_LIMIT`.
        """
        data = self.read_bytes(path, READ_LIMIT + 1)
        if len(data) > READ_LIMIT:
            raise Unreadable(Reason.FAILED, f"{path}: longer than {READ_LIMIT} bytes")
        return data.decode(errors="replace").strip()

    def lines(self, path: str) -> list[str]:
        """Return a file's lines, which only line feeds end.

        The names of processes and cgroups, which users choose, may hold all else that ``str.splitlines`` splits at:
        one of ``"\\rUid: 0 0 0 0"`` would bring a line of its own to ``/proc/PID/status``.

        Raises
        ------
        Unreadable
            As :meth:`read`.
        """
        return self.read(path).split("\n")

    def number(self, path: str, base: int = 10) -> int:
        """Return the whole number that a file holds: ``0x10de``, ``-1``.

        Raises
        ------
        Unreadable
            Also if it holds something else.
        """
        text = self.read(path)
        if not re.fullmatch(r"-?(0x)?[0-9a-fA-F]{1,16}", text, re.ASCII):
            raise Unreadable(Reason.FAILED, f"{path}: not a number")
        try:
            return int(text, base)
        except ValueError:
            raise Unreadable(Reason.FAILED, f"{path}: not a number") from None

    def kernel_list(self, path: str) -> str:
        """Return the kernel list that a file holds: ``0-3,8``.

        Raises
        ------
        Unreadable
            Also if it holds something else.
        """
        return kernel_list(self.read(path), path)

    def line(self, path: str, key: str) -> str:
        """Return the value of the first line ``key: value`` of a file.

        Raises
        ------
        Unreadable
            Also if there is no such line.
        """
        for line in self.lines(path):
            found, colon, value = line.partition(":")
            if colon and found.strip() == key:
                return value.strip()
        raise Unreadable(Reason.NOT_PRESENT, f"{path}: no line {key!r}")

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, in order.

        Raises
        ------
        Unreadable
            If it is missing, not permitted or not a directory.
        """
        try:
            return sorted(os.fsencode(name).decode(errors="replace") for name in os.listdir(self.path(path)))
        except OSError as error:
            raise Unreadable.from_os_error(error, path) from None

    def names_if_any(self, path: str) -> list[str]:
        """Return the names in a directory, in order; none where it is missing.

        Raises
        ------
        Unreadable
            If it is not permitted.
        """
        try:
            return self.names(path)
        except Unreadable as error:
            if error.unread.reason is Reason.NOT_PRESENT:
                return []
            raise

    def file_system(self, path: str) -> os.statvfs_result:
        """Return what the file system that ``path`` lies on says of itself; nothing is opened.

        Raises
        ------
        Unreadable
            If nothing is there.
        """
        try:
            return os.statvfs(self.path(path))
        except OSError as error:
            raise Unreadable.from_os_error(error, path) from None

    def status(self, path: str) -> os.stat_result:
        """Return what stat(2) says, links followed.

        Raises
        ------
        Unreadable
            If nothing is there, or it cannot be reached.
        """
        try:
            return os.stat(self.path(path))
        except OSError as error:
            raise Unreadable.from_os_error(error, path) from None

    def access(self, path: str) -> str:
        """Return whether access(2) lets this process read and write: ``"ok"``, or the name of its error number.

        ``os.access`` does not say which. access(2) asks the device cgroup (``devcgroup_inode_permission``) as open(2)
        does, but not the driver.
        """
        if _LIBC.access(os.fsencode(self.path(path)), os.R_OK | os.W_OK) == 0:
            return "ok"
        number = ctypes.get_errno()
        return errno.errorcode.get(number, str(number))

    def link(self, path: str) -> str:
        """Return what a symbolic link holds: ``pid:[4026531836]`` in ``/proc/self/ns``.

        Raises
        ------
        Unreadable
            If it is missing, not permitted or no link.
        """
        try:
            return os.fsencode(os.readlink(self.path(path))).decode(errors="replace")
        except OSError as error:
            raise Unreadable.from_os_error(error, path) from None

    def exists(self, path: str) -> bool:
        """Return whether something is there, links followed."""
        return os.path.exists(self.path(path))

    def resolve(self, path: str) -> str:
        """Return ``path`` with all links followed, as on the machine itself.

        Raises
        ------
        Unreadable
            If nothing is there, or the links lead out of the root.
        """
        try:
            found = os.path.realpath(self.path(path), strict=True)
        except OSError as error:
            raise Unreadable.from_os_error(error, path) from None
        if self.is_live:
            return found
        if not found.startswith(self.directory + "/"):
            raise Unreadable(Reason.FAILED, f"{path}: leads out of the root directory")
        return found.removeprefix(self.directory)


def kernel_list(text: str, path: str) -> str:
    """Return ``text`` if it is a kernel list.

    Raises
    ------
    Unreadable
        If not.
    """
    try:
        parse_kernel_list(text)
    except ValueError:
        raise Unreadable(Reason.FAILED, f"{path}: not a kernel list") from None
    return text
