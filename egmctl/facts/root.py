"""Access to files below a root directory: this node's, a copied tree's, or another process'."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeVar

from egmctl.dataclass import dataclass
from egmctl.driver.reading import Unreadable, error_name
from egmctl.facts.system_calls import system_call
from egmctl.launch.program import output_of
from egmctl.model.record import Reason
from egmctl.units import parse_kernel_list

T = TypeVar("T")

SYSROOT_VARIABLE = "EGMCTL_SYSROOT"

READ_LIMIT = 1 << 20
"""The maximum size in bytes of a file that is read whole. The largest relevant file, ``/proc/self/mountinfo`` on a node
with many containers, has about 100 KiB."""

_LIBC = ctypes.CDLL(None, use_errno=True)


class Root:
    """A directory that is used as ``/``. Arguments and messages name paths of the machine, e.g. ``/proc/devices``."""

    def __init__(self, directory: str = "/") -> None:
        self.directory = os.path.realpath(directory)
        self.is_live = self.directory == "/"

    @classmethod
    def from_environment(cls) -> Root:
        """Return the root named by ``EGMCTL_SYSROOT``, or ``/`` if that is not set."""
        return cls(os.environ.get(SYSROOT_VARIABLE) or "/")

    def path(self, path: str) -> str:
        """Return the path below the root directory for a ``path`` of the machine."""
        return path if self.is_live else self.directory + path

    def read_bytes(self, path: str, limit: int = READ_LIMIT, *, from_end: bool = False) -> bytes:
        """Return up to ``limit`` bytes from the start or the end of a file.

        Raises
        ------
        Unreadable
            The path is missing, not permitted or not a file.
        """
        # O_NONBLOCK, so that a FIFO instead of a file does not block the reader.
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
        """Return a file's text without surrounding white space. Bytes that are not UTF-8 become U+FFFD.

        Raises
        ------
        Unreadable
            The path is missing, not permitted or not a file, or the file is longer than :data:`READ_LIMIT`.
        """
        data = self.read_bytes(path, READ_LIMIT + 1)
        if len(data) > READ_LIMIT:
            raise Unreadable(Reason.FAILED, f"{path}: longer than {READ_LIMIT} bytes")
        return data.decode(errors="replace").strip()

    def lines(self, path: str) -> list[str]:
        """Return a file's lines, split only at line feeds.

        Users choose the names of processes and cgroups, which may contain the other characters at which
        ``str.splitlines`` splits: the name ``"\\rUid: 0 0 0 0"`` would forge a line of ``/proc/PID/status``.

        Raises
        ------
        Unreadable
            As for :meth:`read`.
        """
        return self.read(path).split("\n")

    def number(self, path: str, base: int = 10) -> int:
        """Return the integer in a file, e.g. ``0x10de`` or ``-1``.

        Raises
        ------
        Unreadable
            As for :meth:`read`, or the file contains something else.
        """
        return _integers([self.read(path)], base, f"{path}: not a number")[0]

    def search(self, path: str, pattern: str, missing: str) -> re.Match[str]:
        """Return the first match of a pattern in a file's text; ``^`` matches at the start of each line.

        Raises
        ------
        Unreadable
            As for :meth:`read`, or there is no match; the detail then is ``missing``.
        """
        if match := re.search(pattern, self.read(path), re.ASCII | re.MULTILINE):
            return match
        raise Unreadable(Reason.FAILED, f"{path}: {missing}")

    def kernel_list(self, path: str) -> str:
        """Return the kernel list in a file, e.g. ``0-3,8``.

        Raises
        ------
        Unreadable
            As for :meth:`read`, or the file contains something else.
        """
        return kernel_list(self.read(path), path)

    def line(self, path: str, key: str) -> str:
        """Return the value of the first line ``key: value`` of a file.

        Raises
        ------
        Unreadable
            As for :meth:`read`, or there is no such line.
        """
        for line in self.lines(path):
            name, colon, value = line.partition(":")
            if colon and name.strip() == key:
                return value.strip()
        raise Unreadable(Reason.NOT_PRESENT, f"{path}: no line {key!r}")

    def numbers(self, path: str, key: str, base: int = 10, least: int = 1) -> list[int]:
        """Return the integers of the first line ``key: number number ...`` of a file.

        Raises
        ------
        Unreadable
            As for :meth:`line`, or the value contains something else, or fewer than ``least`` numbers.
        """
        words = self.line(path, key).split()
        complaint = f"{path}: {key!r} is not a number"
        if len(words) < least:
            raise Unreadable(Reason.FAILED, complaint)
        return _integers(words, base, complaint)

    def names(self, path: str) -> list[str]:
        """Return the sorted names in a directory.

        Raises
        ------
        Unreadable
            The path is missing, not permitted or not a directory.
        """
        names = _ask(path, os.listdir, self.path(path))
        return sorted(os.fsencode(name).decode(errors="replace") for name in names)

    def names_if_any(self, path: str) -> list[str]:
        """Return the sorted names in a directory, or an empty list if it is missing.

        Raises
        ------
        Unreadable
            The directory cannot be read for another reason.
        """
        try:
            return self.names(path)
        except Unreadable as error:
            if error.unread.reason is Reason.NOT_PRESENT:
                return []
            raise

    def file_system(self, path: str) -> os.statvfs_result:
        """Return the result of statvfs(3) for the file system that contains ``path``, without opening the path.

        Raises
        ------
        Unreadable
            The path does not exist or cannot be reached.
        """
        return _ask(path, os.statvfs, self.path(path))

    def status(self, path: str) -> os.stat_result:
        """Return the result of stat(2), following symbolic links.

        Raises
        ------
        Unreadable
            The path does not exist or cannot be reached.
        """
        return _ask(path, os.stat, self.path(path))

    def access(self, path: str) -> str:
        """Return ``"ok"`` if access(2) grants this process read and write access, else the name of the error.

        ``os.access`` does not return the error. Like open(2), access(2) checks the device cgroup
        (``devcgroup_inode_permission``), but it does not call the driver.
        """
        if _LIBC.access(os.fsencode(self.path(path)), os.R_OK | os.W_OK) == 0:
            return "ok"
        number = ctypes.get_errno()
        return errno.errorcode.get(number, str(number))

    def link(self, path: str) -> str:
        """Return the text of a symbolic link, e.g. ``pid:[4026531836]`` in ``/proc/self/ns``.

        Raises
        ------
        Unreadable
            The path is missing, not permitted or not a link.
        """
        return os.fsencode(_ask(path, os.readlink, self.path(path))).decode(errors="replace")

    def exists(self, path: str) -> bool:
        """Return whether a path exists, following symbolic links."""
        return os.path.exists(self.path(path))

    def resolve(self, path: str) -> str:
        """Return ``path`` with all symbolic links resolved, as a path of the machine.

        Raises
        ------
        Unreadable
            The path does not exist, or its links lead out of the root.
        """
        target = _ask(path, lambda: os.path.realpath(self.path(path), strict=True))
        if self.is_live:
            return target
        if not target.startswith(self.directory + "/"):
            raise Unreadable(Reason.FAILED, f"{path}: leads out of the root directory")
        return target.removeprefix(self.directory)


def _ask(path: str, function: Callable[..., T], *arguments: Any) -> T:
    """Call a function and return its result; turn an OSError into Unreadable for ``path``."""
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
    """Run a program of the system and return its output.

    Parameters
    ----------
    shown
        The name of the program in messages.
    limit
        The maximum size of the output in bytes; the rest is dropped.

    Raises
    ------
    Unreadable
        The program cannot be run, fails or times out.
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
        The text is not a kernel list.
    """
    try:
        parse_kernel_list(text)
    except ValueError:
        raise Unreadable(Reason.FAILED, f"{path}: not a kernel list") from None
    return text


NAMES_LIMIT = 1 << 16
"""The maximum number of names in a folder. ``/dev`` has hundreds; there are at most some thousand IMEX channels."""

_NO_MAGICLINKS, _IN_ROOT = 0x02, 0x10  # include/uapi/linux/openat2.h
_EMPTY_PATH, _EACCESS = 0x1000, 0x200  # AT_*, include/uapi/linux/fcntl.h
_TRIES = 16


@dataclass(frozen=True, slots=True)
class Overrides:
    """The capabilities by which the other process overrides mode bits, which the reading process itself lacks."""

    searches: bool = False
    """Whether the process has CAP_DAC_OVERRIDE or CAP_DAC_READ_SEARCH."""
    opens: bool = False
    """Whether the process has CAP_DAC_OVERRIDE."""
    uids: Sequence[Sequence[int]] = ()
    """The user ids that are mapped in its user namespace, as (first, count). Capabilities have no effect on files of
    other users (``capable_wrt_inode_uidgid``)."""
    gids: Sequence[Sequence[int]] = ()

    def open(self, status: os.stat_result) -> bool:
        """Return whether the process can open a file regardless of its mode."""
        owners = ((self.uids, status.st_uid), (self.gids, status.st_gid))
        return self.opens and all(
            any(first <= number < first + count for first, count in ranges) for ranges, number in owners
        )


class OtherRoot:
    """The root directory of another process, with the methods of :class:`Root` that read device nodes.

    Parameters
    ----------
    descriptor
        The directory, which the caller closes.
    overrides
        The overrides of the process.
    is_live
        Whether it is the root of a process on this node and not a copied tree.
    """

    def __init__(self, descriptor: int, overrides: Overrides | None = None, *, is_live: bool = True) -> None:
        self.is_live = is_live
        self._descriptor = descriptor
        self._overrides = overrides or Overrides()

    def check(self) -> None:
        """Check that openat2(2) and faccessat2(2) work, with calls that otherwise cannot fail.

        Raises
        ------
        OSError
            The kernel lacks a call (openat2 needs Linux 5.6, faccessat2 Linux 5.8), or a system call filter refuses
            it. The ``strerror`` is the call's name.
        """
        os.close(self._open("/", os.O_PATH | os.O_DIRECTORY))
        system_call("faccessat2", self._descriptor, b"", os.F_OK, _EMPTY_PATH | _EACCESS)

    def names_if_any(self, path: str) -> list[str]:
        """Return the sorted names in a folder, or an empty list if it is missing.

        Raises
        ------
        Unreadable
            The folder cannot be read, or it has more than :data:`NAMES_LIMIT` names.
        """
        try:
            # With O_DIRECTORY the kernel rejects anything else before it opens it.
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
        """Return whether a path exists, following symbolic links within the root."""
        try:
            with self._looked_at(path):
                return True
        except Unreadable:
            return False

    def status(self, path: str) -> os.stat_result:
        """Return the result of fstat(2); see :meth:`egmctl.facts.root.Root.status`."""
        with self._looked_at(path) as node:
            return os.fstat(node)

    def file_system(self, path: str) -> os.statvfs_result:
        """Return the result of fstatvfs(3); see :meth:`egmctl.facts.root.Root.file_system`."""
        with self._looked_at(path) as node:
            return os.fstatvfs(node)

    def access(self, path: str) -> str:
        """Return whether faccessat2(2) grants this process' effective user read and write access.

        Returns
        -------
        str
            ``"ok"``, ``"EPERM"`` (device cgroup), ``"EACCES"`` (mode bits) or ``"ENOENT"`` (the path does not exist).

        Raises
        ------
        Unreadable
            The result does not apply to the other process: another error, or EACCES that its capabilities override.
        """
        try:
            with self._looked_at(path) as node:
                try:
                    system_call("faccessat2", node, b"", os.R_OK | os.W_OK, _EMPTY_PATH | _EACCESS)
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
        """Yield an O_PATH descriptor of a path, which does not open the device, and close it afterwards."""
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
                return system_call("openat2", self._descriptor, os.fsencode(path), how, len(how))
            except OSError as error:
                # EAGAIN: a rename or mount happened while ``..`` was resolved, so the call must be repeated.
                if error.errno != errno.EAGAIN or not left:
                    raise
        raise AssertionError

    def _unreadable(self, error: OSError, path: str) -> Unreadable:
        """Return the exception for an error: missing, not permitted, or failed, as is EACCES that may be overridden."""
        if error.errno == errno.EACCES and self._overrides.searches:
            return Unreadable(Reason.FAILED, f"{path}: EACCES; the process has CAP_DAC_OVERRIDE or _READ_SEARCH")
        reasons = {
            errno.ENOENT: Reason.NOT_PRESENT,
            errno.ENOTDIR: Reason.NOT_PRESENT,
            errno.EACCES: Reason.NO_PERMISSION,
        }
        return Unreadable(reasons.get(error.errno or 0, Reason.FAILED), f"{path}: {error_name(error)}")
