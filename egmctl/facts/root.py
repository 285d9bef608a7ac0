"""Files below a root: that of this node, or of another one's tree."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

from egmctl.driver.reading import Unreadable, error_name
from egmctl.facts.system_calls import call
from egmctl.launch.program import output_of
from egmctl.model.record import Reason
from egmctl.units import parse_kernel_list

T = TypeVar("T")

SYSROOT_VARIABLE = "EGMCTL_SYSROOT"

READ_LIMIT = 1 << 20
"""Bytes of the largest file read whole. The largest that matters, ``/proc/self/mountinfo`` of a node with many
containers, has some 100 KiB."""

_LIBC = ctypes.CDLL(None, use_errno=True)


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
        # O_NONBLOCK: a FIFO in the place of a file must not hang the reader.
        descriptor = _ask(path, os.open, self.path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
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
        return _integers([self.read(path)], base, f"{path}: not a number")[0]

    def search(self, path: str, pattern: str, missing: str) -> re.Match[str]:
        """Return where a pattern is in a file's text; ``^`` is the start of any line.

        Raises
        ------
        Unreadable
            Also if it is nowhere; ``missing`` says so in a few words.
        """
        if match := re.search(pattern, self.read(path), re.ASCII | re.MULTILINE):
            return match
        raise Unreadable(Reason.FAILED, f"{path}: {missing}")

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
            name, colon, value = line.partition(":")
            if colon and name.strip() == key:
                return value.strip()
        raise Unreadable(Reason.NOT_PRESENT, f"{path}: no line {key!r}")

    def numbers(self, path: str, key: str, base: int = 10, least: int = 1) -> list[int]:
        """Return the whole numbers of the first line ``key: number number ...`` of a file.

        Raises
        ------
        Unreadable
            Also if there is something else, or fewer than ``least``.
        """
        words = self.line(path, key).split()
        complaint = f"{path}: {key!r} is not a number"
        if len(words) < least:
            raise Unreadable(Reason.FAILED, complaint)
        return _integers(words, base, complaint)

    def names(self, path: str) -> list[str]:
        """Return the names in a directory, in order.

        Raises
        ------
        Unreadable
            If it is missing, not permitted or not a directory.
        """
        names = _ask(path, os.listdir, self.path(path))
        return sorted(os.fsencode(name).decode(errors="replace") for name in names)

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
        return _ask(path, os.statvfs, self.path(path))

    def status(self, path: str) -> os.stat_result:
        """Return what stat(2) says, links followed.

        Raises
        ------
        Unreadable
            If nothing is there, or it cannot be reached.
        """
        return _ask(path, os.stat, self.path(path))

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
        return os.fsencode(_ask(path, os.readlink, self.path(path))).decode(errors="replace")

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
        target = _ask(path, lambda: os.path.realpath(self.path(path), strict=True))
        if self.is_live:
            return target
        if not target.startswith(self.directory + "/"):
            raise Unreadable(Reason.FAILED, f"{path}: leads out of the root directory")
        return target.removeprefix(self.directory)


def _ask(path: str, function: Callable[..., T], *arguments: Any) -> T:
    """Return the answer of a function of the system; its error is that of ``path``."""
    try:
        return function(*arguments)
    except OSError as error:
        raise Unreadable.from_os_error(error, path) from None


def _integers(words: Sequence[str], base: int, complaint: str) -> list[int]:
    try:
        if all(re.fullmatch(r"-?(0x)?[0-9a-fA-F]{1,16}", word, re.ASCII) for word in words):
            return [int(word, base) for word in words]
    except ValueError:
        pass
    raise Unreadable(Reason.FAILED, complaint)


def program_output(command: Sequence[str], shown: str, timeout_s: float, limit: int) -> bytes:
    """Return what a system's program prints.

    Parameters
    ----------
    shown
        How to call the program in a reason.
    limit
        Bytes after which the rest is left out.

    Raises
    ------
    Unreadable
        If it cannot be run, fails or takes too long.
    """
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}
    try:
        return output_of(command, timeout_s=timeout_s, limit=limit, environment=environment)
    except TimeoutError:
        raise Unreadable(Reason.TIMED_OUT, f"{shown}: no response within {timeout_s:g} s") from None
    except OSError as error:
        raise Unreadable.from_os_error(error, shown) from None


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


NAMES_LIMIT = 1 << 16
"""Names in one folder. A ``/dev`` has hundreds, and there are at most some thousand IMEX channels."""

_NO_MAGICLINKS, _IN_ROOT = 0x02, 0x10  # include/uapi/linux/openat2.h
_EMPTY_PATH, _EACCESS = 0x1000, 0x200  # AT_*, include/uapi/linux/fcntl.h
_TRIES = 16


@dataclass(frozen=True, slots=True)
class Overrides:
    """Which refusals by mode bits the other process may pass over, by capabilities that the one who asks has not."""

    searches: bool = False
    """CAP_DAC_OVERRIDE or CAP_DAC_READ_SEARCH."""
    opens: bool = False
    """CAP_DAC_OVERRIDE."""
    uids: Sequence[Sequence[int]] = ()
    """The user ids that its user namespace knows, as (first, how many): of other users' files no capability counts
    (``capable_wrt_inode_uidgid``)."""
    gids: Sequence[Sequence[int]] = ()

    def open(self, status: os.stat_result) -> bool:
        """Say whether it may open a file whatever its mode."""
        owners = ((self.uids, status.st_uid), (self.gids, status.st_gid))
        return self.opens and all(
            any(first <= number < first + count for first, count in ranges) for ranges, number in owners
        )


class OtherRoot:
    """Device nodes below a descriptor; the methods are those of :class:`Root` that look at nodes.

    Parameters
    ----------
    descriptor
        A folder; it is the caller's.
    overrides
        Of the process whose root it is.
    is_live
        Whether it is the root of a process here, and not a copied tree.
    """

    def __init__(self, descriptor: int, overrides: Overrides | None = None, *, is_live: bool = True) -> None:
        self.is_live = is_live
        self._descriptor = descriptor
        self._overrides = overrides or Overrides()

    def check(self) -> None:
        """Make the two system calls that all stands on, where they can only succeed.

        Raises
        ------
        OSError
            The kernel is too old for one (openat2 is there since Linux 5.6, faccessat2 since 5.8), or a filter of
            system calls refuses it. Its ``strerror`` is the call's name.
        """
        os.close(self._open("/", os.O_PATH | os.O_DIRECTORY))
        call("faccessat2", self._descriptor, b"", os.F_OK, _EMPTY_PATH | _EACCESS)

    def names_if_any(self, path: str) -> list[str]:
        """Return the names in a folder, in order; none where it is missing.

        Raises
        ------
        Unreadable
            If it is not permitted, or has more than :data:`NAMES_LIMIT`.
        """
        try:
            # O_DIRECTORY: of something else the kernel says so before it opens it.
            folder = self._open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK)
            try:
                with os.scandir(folder) as entries:
                    names = [os.fsencode(entry.name) for entry in islice(entries, NAMES_LIMIT + 1)]
            finally:
                os.close(folder)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return []
            raise self._unreadable(error, path) from None
        if len(names) > NAMES_LIMIT:
            raise Unreadable(Reason.FAILED, f"{path}: more than {NAMES_LIMIT} names")
        return sorted(name.decode(errors="replace") for name in names)

    def exists(self, path: str) -> bool:
        """Return whether something is there, links followed within the root."""
        try:
            with self._looked_at(path):
                return True
        except Unreadable:
            return False

    def status(self, path: str) -> os.stat_result:
        """See :meth:`egmctl.facts.root.Root.status`."""
        with self._looked_at(path) as node:
            return os.fstat(node)

    def file_system(self, path: str) -> os.statvfs_result:
        """See :meth:`egmctl.facts.root.Root.file_system`."""
        with self._looked_at(path) as node:
            return os.fstatvfs(node)

    def access(self, path: str) -> str:
        """Return whether faccessat2(2) lets this process' effective user read and write what is there.

        Returns
        -------
        str
            ``"ok"``, ``"EPERM"`` (the device cgroup), ``"EACCES"`` (mode bits) or ``"ENOENT"``: nothing is there.

        Raises
        ------
        Unreadable
            Any other answer says nothing of the other process, nor does EACCES that its capabilities may pass over.
        """
        try:
            with self._looked_at(path) as node:
                try:
                    call("faccessat2", node, b"", os.R_OK | os.W_OK, _EMPTY_PATH | _EACCESS)
                except OSError as error:
                    return self._refusal(error, node, path)
                return "ok"
        except Unreadable as error:
            answers = {Reason.NOT_PRESENT: "ENOENT", Reason.NO_PERMISSION: "EACCES"}
            if error.unread.reason not in answers:
                raise
            return answers[error.unread.reason]

    def _refusal(self, error: OSError, node: int, path: str) -> str:
        name = error_name(error)
        if name == "EACCES" and self._overrides.open(os.fstat(node)):
            raise Unreadable(Reason.FAILED, f"{path}: EACCES; the process has CAP_DAC_OVERRIDE")
        if name not in ("EPERM", "EACCES"):
            raise Unreadable(Reason.FAILED, f"{path}: faccessat2: {name}")
        return name

    @contextmanager
    def _looked_at(self, path: str) -> Iterator[int]:
        """Lend an O_PATH descriptor of what is there: it says what it is, and does not open it."""
        try:
            node = self._open(path, os.O_PATH)
        except OSError as error:
            raise self._unreadable(error, path) from None
        try:
            yield node
        except OSError as error:
            raise Unreadable(Reason.FAILED, f"{path}: {error_name(error)}") from None
        finally:
            os.close(node)

    def _open(self, path: str, flags: int) -> int:
        how = struct.pack("=QQQ", flags | os.O_CLOEXEC, 0, _IN_ROOT | _NO_MAGICLINKS)  # struct open_how
        for left in reversed(range(_TRIES)):
            try:
                return call("openat2", self._descriptor, os.fsencode(path), how, len(how))
            except OSError as error:
                # Something was renamed or mounted while ``..`` was followed: the kernel asks to be asked again.
                if error.errno != errno.EAGAIN or not left:
                    raise
        raise AssertionError

    def _unreadable(self, error: OSError, path: str) -> Unreadable:
        """Translate an answer to a path: what is not there, what is not permitted, and what says nothing."""
        if error.errno == errno.EACCES and self._overrides.searches:
            return Unreadable(Reason.FAILED, f"{path}: EACCES; the process has CAP_DAC_OVERRIDE or _READ_SEARCH")
        reasons = {
            errno.ENOENT: Reason.NOT_PRESENT,
            errno.ENOTDIR: Reason.NOT_PRESENT,
            errno.EACCES: Reason.NO_PERMISSION,
        }
        return Unreadable(reasons.get(error.errno or 0, Reason.FAILED), f"{path}: {error_name(error)}")
