"""The root directory of another process, looked at from outside of it: a descriptor that its links cannot lead out of.

Who lives below it made what is there, and may change it while it is looked at. So this process' own root directory
stays what it is, and paths are followed by the kernel alone: openat2(2) with RESOLVE_IN_ROOT takes absolute links and
``..`` as that process would and never leaves its root, and RESOLVE_NO_MAGICLINKS refuses the links of ``/proc``, which
lead anywhere. Nothing but folders is ever opened: of all else there is an O_PATH descriptor, which starts no device
and waits for no FIFO. A file system may still answer late or never: whoever calls this is a child with a deadline.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from egmctl.facts.root import Unreadable
from egmctl.facts.system_calls import call
from egmctl.model.machine import Reason

NAMES_LIMIT = 1 << 16
"""Names in one folder. A ``/dev`` has hundreds, and there are at most some thousand IMEX channels."""

_NO_MAGICLINKS, _IN_ROOT = 0x02, 0x10  # include/uapi/linux/openat2.h
_EMPTY_PATH, _EACCESS = 0x1000, 0x200  # AT_*, include/uapi/linux/fcntl.h
_TRIES = 16


@dataclass(frozen=True, slots=True)
class Overrides:
    """Which refusals by mode bits the other process may pass over, by capabilities that the one who asks has not."""

    searches: bool
    """CAP_DAC_OVERRIDE or CAP_DAC_READ_SEARCH."""
    opens: bool
    """CAP_DAC_OVERRIDE."""
    uids: Sequence[Sequence[int]]
    """The user ids that its user namespace knows, as (first, how many): of other users' files no capability counts
    (``capable_wrt_inode_uidgid``)."""
    gids: Sequence[Sequence[int]]

    def open(self, status: os.stat_result) -> bool:
        """Say whether it may open a file whatever its mode."""
        return self.opens and _within(self.uids, status.st_uid) and _within(self.gids, status.st_gid)


NO_OVERRIDES = Overrides(searches=False, opens=False, uids=(), gids=())


class OtherRoot:
    """Device nodes below a descriptor, as :class:`egmctl.facts.nodes.Place` wants them.

    Parameters
    ----------
    descriptor
        A folder; it is the caller's.
    overrides
        Of the process whose root it is.
    is_live
        Whether it is the root of a process here, and not a copied tree.
    """

    def __init__(self, descriptor: int, overrides: Overrides = NO_OVERRIDES, *, is_live: bool = True) -> None:
        self.is_live = is_live
        self._descriptor = descriptor
        self._overrides = overrides

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
                return self._answer(node, path)
        except Unreadable as error:
            if error.unread.reason is Reason.NOT_PRESENT:
                return "ENOENT"
            if error.unread.reason is Reason.NO_PERMISSION:
                return "EACCES"
            raise

    def _answer(self, node: int, path: str) -> str:
        try:
            call("faccessat2", node, b"", os.R_OK | os.W_OK, _EMPTY_PATH | _EACCESS)
        except OSError as error:
            name = errno.errorcode.get(error.errno or 0, "unknown error")
        else:
            return "ok"
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
            raise Unreadable(Reason.FAILED, f"{path}: {errno.errorcode.get(error.errno or 0, '')}") from None
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
        name = errno.errorcode.get(error.errno or 0, "unknown error")
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return Unreadable(Reason.NOT_PRESENT, f"{path}: {name}")
        if error.errno != errno.EACCES:
            return Unreadable(Reason.FAILED, f"{path}: {name}")
        if self._overrides.searches:
            return Unreadable(Reason.FAILED, f"{path}: EACCES; the process has CAP_DAC_OVERRIDE or _READ_SEARCH")
        return Unreadable(Reason.NO_PERMISSION, f"{path}: {name}")


def _within(ranges: Sequence[Sequence[int]], number: int) -> bool:
    return any(first <= number < first + count for first, count in ranges)
