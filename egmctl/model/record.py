"""The parts of every record: nulls with reasons, strings that say whether they may be shared, the commands' names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from egmctl.compat import StrEnum
from egmctl.units import parse_kernel_list


class Share(StrEnum):
    """How a string may be shared, as a mark on its type."""

    PLAIN = "plain"
    SENTENCE = "sentence"
    """One of our own sentences, kept without the private names that it quotes."""
    UUID = "uuid"
    """High-entropy identifier: replaced by one derived from its hash, so that two recordings still join."""
    KERNEL_RELEASE = "kernel-release"
    """Kept up to the upstream version and well-known distribution words."""
    CGROUP_PATH = "cgroup-path"
    """Kept where a component is a well-known word or number of a manager (``job_42``), pseudonymised elsewhere."""
    ENVIRONMENT = "environment"
    """Kept where it is numbers, ranges and well-known words, pseudonymised elsewhere."""
    PARAMETER = "parameter"
    """A parameter of a module or the kernel: kept without paths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """How a string is spelled, as a mark on its type: :mod:`egmctl.model.codec` refuses others in a document."""

    example: str
    pattern: str
    """Regular expression of the whole string; it is in the JSON Schema too."""
    read: Callable[[str], object] = str
    """Raises ValueError for what the pattern lets through."""


Plain = Annotated[str, Share.PLAIN]
Sentence = Annotated[str, Share.SENTENCE]
Uuid = Annotated[str, Share.UUID]
BusId = Annotated[
    str,
    Share.PLAIN,
    Spelling(example="0000:1b:00.0", pattern=r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"),
]
"""PCI bus id, lower case, 4-digit domain: ``0000:1b:00.0``. The identity of a device."""
KernelList = Annotated[
    str,
    Share.PLAIN,
    Spelling(
        example="0-3,8", pattern=r"([0-9]{1,7}(-[0-9]{1,7})?(,[0-9]{1,7}(-[0-9]{1,7})?)*)?", read=parse_kernel_list
    ),
]
"""A set of numbers in the kernel's spelling, ``0-3,8`` (:func:`egmctl.units.parse_kernel_list`)."""


class Reason(StrEnum):
    """Why a value is null."""

    NOT_SUPPORTED = "not-supported"
    """The driver, the device or the kernel says it has no such thing."""
    NO_PERMISSION = "no-permission"
    DRIVER_TOO_OLD = "driver-too-old"
    """The library has no such function, or does not know the attribute."""
    MISSING_LIBRARY = "missing-library"
    TIMED_OUT = "timed-out"
    CRASHED = "crashed"
    NOT_PRESENT = "not-present"
    """The file or the device is not there."""
    NOT_ASKED = "not-asked"
    """The section or the source was not collected."""
    FAILED = "failed"
    """The call failed in a way that none of the other words describes."""
    NOT_STATED = "not-stated"
    """The document does not say: the sources of a modelled machine do not state it, or a recording is older."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """Why one value could not be read, and what was tried."""

    reason: Reason
    detail: Sentence = ""
    """The call or path and what it answered, e.g. ``nvmlDeviceGetC2cModeInfoV: 3 (Not Supported)``. Written by us:
    holds no names from the machine."""


NOT_STATED = Unread(reason=Reason.NOT_STATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Base of every record that is read from a machine."""

    unread: Mapping[Plain, Unread] = field(default_factory=dict)
    """Name of each field (or ``field.key`` in a mapping) that is ``None`` because it could not be read."""

    def reason_of(self, name: str) -> Reason | None:
        """Return why a field was not read; ``None`` where nothing says so."""
        unread = self.unread.get(name)
        return None if unread is None else unread.reason


class Command(StrEnum):
    """One that says in a JSON document what it found."""

    SNAPSHOT = "snapshot"
    TOPO = "topo"
    DOCTOR = "doctor"
    BENCH = "bench"
    BRINGUP = "bringup"
