"""Reasons for missing values, normal forms of PCI bus ids and UUIDs, and system call numbers."""

from __future__ import annotations

import errno
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from egmctl.model.record import Reason, Unread

T = TypeVar("T")
D = TypeVar("D")

_BY_ERRNO = {
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
FAILURE_WORDS = {Reason.MISSING_LIBRARY: "missing", Reason.DRIVER_TOO_OLD: "too-old"}
"""The values of :attr:`egmctl.model.host.LibraryFailure.how` by reason; every other reason is ``error``."""


def error_name(error: OSError) -> str:
    """Return the symbolic name of an error's number, e.g. ``ENOENT``."""
    return errno.errorcode.get(error.errno or 0, "unknown error")


class Unreadable(Exception):
    """A value cannot be read.

    Parameters
    ----------
    reason, detail
        The fields of the ``unread`` record. The detail names the file or call and its error; it contains no content
        of a file.
    name
        The library's name for the error, e.g. ``NVML_ERROR_NOT_SUPPORTED``; ``None`` if it has none.
    number
        The error number that the call returned.
    """

    def __init__(self, reason: Reason, detail: str, name: str | None = None, number: int | None = None) -> None:
        super().__init__(detail)
        self.unread = Unread(reason=reason, detail=detail)
        self.name = name
        self.number = number

    @classmethod
    def because(cls, why: Unread) -> Unreadable:
        """Return the exception for an ``unread`` record."""
        return cls(why.reason, why.detail)

    @classmethod
    def from_os_error(cls, error: OSError, path: str) -> Unreadable:
        """Return the exception for the kernel's error on ``path``."""
        return cls(_BY_ERRNO.get(error.errno or 0, Reason.FAILED), f"{path}: {error_name(error)}")

    def library_failure(self, call: str) -> dict[str, Any]:
        """Return a ``LibraryFailure`` record as JSON data, for a call that makes the whole library unusable."""
        how = FAILURE_WORDS.get(self.unread.reason, "error")
        return {"how": how, "call": call, "number": self.number, "name": self.name, "detail": self.unread.detail}


def read_or(default: D, function: Callable[[], T]) -> T | D:
    """Return ``function()``, or ``default`` if that raises Unreadable."""
    try:
        return function()
    except Unreadable:
        return default


def if_present(default: D, function: Callable[[], T]) -> T | D:
    """Return ``function()``, or ``default`` if what it reads does not exist.

    Raises
    ------
    Unreadable
        It exists and cannot be read.
    """
    try:
        return function()
    except Unreadable as error:
        if error.unread.reason is not Reason.NOT_PRESENT:
            raise
        return default


class Reasons:
    """A collector of the reasons why fields of one record are null.

    ::

        Reasons().record(Record, path="/proc/value", value=lambda: root.number("/proc/value"))
    """

    def __init__(self) -> None:
        self.unread: dict[str, Unread] = {}

    def read(self, name: str, function: Callable[[], T]) -> T | None:
        """Return ``function()``; if that raises Unreadable, keep the reason under ``name`` and return ``None``."""
        try:
            return function()
        except Unreadable as error:
            self.unread[name] = error.unread
            return None

    def mapping(self, field: str, names: Iterable[str], function: Callable[[str], T]) -> dict[str, T | None]:
        """Return ``function(name)`` by name; for a value that is ``None`` the reason is kept under ``field.name``."""
        return {name: self.read(f"{field}.{name}", functools.partial(function, name)) for name in names}

    def fields(self, names: str, function: Callable[[], Any]) -> dict[str, Any]:
        """Return the fields (separated by spaces) that ``function`` fills; all ``None`` if it raises Unreadable."""
        keys = names.split()
        try:
            answer = function()
        except Unreadable as error:
            self.unread.update(dict.fromkeys(keys, error.unread))
            return dict.fromkeys(keys)
        return dict(zip(keys, answer if len(keys) > 1 else (answer,), strict=True))

    def record(self, kind: Callable[..., T], /, **fields: object) -> T:
        """Return a record of these fields, with the reasons for null fields as ``unread``.

        Callables are called. An Unread or Unreadable is the reason why its field is null.
        """
        values = {name: self.read(name, value) if callable(value) else value for name, value in fields.items()}
        for name, value in values.items():
            if isinstance(value, Unread | Unreadable):
                self.unread[name] = value if isinstance(value, Unread) else value.unread
                values[name] = None
        return kind(**values, unread=self.unread)


BUS_ID = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})\.([0-7])", re.IGNORECASE)


def normal_bus_id(text: str) -> str:
    """Return a PCI bus id as sysfs writes it: lower case, with a domain of at least 4 digits (``0000:1b:00.0``).

    NVML writes ``00000000:1B:00.0``, CUDA ``0000:1B:00.0``. A domain above ffff (VMD, some hypervisors) keeps its
    digits, as in sysfs.

    Raises
    ------
    ValueError
        ``text`` is not a bus id.
    """
    match = BUS_ID.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a PCI bus id; valid is 0000:1b:00.0")
    domain, bus, device, function = (int(part or "0", 16) for part in match.groups())
    return f"{domain:04x}:{bus:02x}:{device:02x}.{function}"


def bus_order(text: str) -> tuple[int, ...]:
    """Return the numbers of a bus id, as a sort key."""
    return tuple(int(part, 16) for part in re.split(r"[:.]", text))


def uuid_text(raw: bytes) -> str:
    """Return 16 bytes as ``8-4-4-4-12`` hexadecimal digits."""
    digits = raw.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


_SINCE_5_0 = {"pidfd_open": 434, "openat2": 437, "pidfd_getfd": 438, "faccessat2": 439}
"""System calls added after Linux 5.0, which have the same number on every architecture."""

NUMBERS: Mapping[str, Mapping[str, int]] = {
    "x86_64": {"mbind": 237, "set_mempolicy": 238, "get_mempolicy": 239, "move_pages": 279, "bpf": 321, **_SINCE_5_0},
    "aarch64": {"mbind": 235, "get_mempolicy": 236, "set_mempolicy": 237, "move_pages": 239, "bpf": 280, **_SINCE_5_0},
}
"""System call numbers by architecture, as uname(2) names it, from arch/x86/entry/syscalls/syscall_64.tbl and, for
aarch64, include/uapi/asm-generic/unistd.h. On other architectures these calls are not made."""
