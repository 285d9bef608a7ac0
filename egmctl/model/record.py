"""Base types of all records: reasons for nulls, string types with sharing rules and formats, and names of commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.units import parse_kernel_list, printable

if TYPE_CHECKING:
    from egmctl.errors import ExitCode
    from egmctl.model.answer import Answer


_REPR = 120
"""The number of characters of an answer in one line."""


class Shown:
    """A result with an answer, which a notebook shows by itself.

    The model imports no view, so the functions are found by name.
    """

    __slots__ = ()
    if TYPE_CHECKING:
        # Each kind of result has the field, at the end of its own.
        answer: Answer

    def __repr__(self) -> str:
        """Return one line: the type, and the answer in words. A dataclass keeps this with ``repr=False``."""
        words = printable(f"{self.answer.word}: {self.answer.sentence}")
        return f"<{type(self).__name__} {words if len(words) <= _REPR else f'{words[:_REPR]}...'}>"

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of the command (``docs/exit-codes.md``)."""
        return self.answer.exit_code

    def _repr_html_(self) -> str:
        """Return the answer of the result's page with its picture (IPython's rich display)."""
        html: str = resolve_name("egmctl.report.kinds:answer_html")(self)
        return html


class Share(StrEnum):
    """The rules for sharing strings, as ``Annotated`` metadata, unless full output is requested."""

    PLAIN = "plain"
    SENTENCE = "sentence"
    """A sentence of this tool. The private names that it quotes are replaced."""
    UUID = "uuid"
    """A high-entropy identifier. A value derived from its hash replaces it, so that two recordings can be joined."""
    KERNEL_RELEASE = "kernel-release"
    """The kernel release. The upstream version and well-known distribution names are kept."""
    CGROUP_PATH = "cgroup-path"
    """A cgroup path. Well-known components and numbers of a manager (``job_42``) are kept, others pseudonymised."""
    ENVIRONMENT = "environment"
    """An environment variable. Numbers, ranges and well-known words are kept, others pseudonymised."""
    PARAMETER = "parameter"
    """A parameter of a module or the kernel. Paths are pseudonymised."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """The format of a string, as ``Annotated`` metadata: :mod:`egmctl.model.codec` rejects other strings."""

    example: str
    pattern: str
    """The regular expression of the whole string, also in the JSON Schema."""
    read: Callable[[str], object] = str
    """A parser that raises ValueError for an invalid string that matches the pattern."""


Plain = Annotated[str, Share.PLAIN]
Sentence = Annotated[str, Share.SENTENCE]
Uuid = Annotated[str, Share.UUID]
BusId = Annotated[
    str, Share.PLAIN, Spelling(example="0000:1b:00.0", pattern=r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
]
"""A PCI bus id, which identifies a device: lower case, domain of at least 4 digits, ``0000:1b:00.0``."""
KernelList = Annotated[
    str,
    Share.PLAIN,
    Spelling(
        example="0-3,8", pattern=r"([0-9]{1,7}(-[0-9]{1,7})?(,[0-9]{1,7}(-[0-9]{1,7})?)*)?", read=parse_kernel_list
    ),
]
"""A set of numbers in the kernel's list format, ``0-3,8`` (:func:`egmctl.units.parse_kernel_list`)."""


class Reason(StrEnum):
    """The reasons for a null."""

    NOT_SUPPORTED = "not-supported"
    """The driver, the device or the kernel reports that it does not support this."""
    NO_PERMISSION = "no-permission"
    DRIVER_TOO_OLD = "driver-too-old"
    """The library lacks the function or does not know the attribute."""
    MISSING_LIBRARY = "missing-library"
    TIMED_OUT = "timed-out"
    CRASHED = "crashed"
    NOT_PRESENT = "not-present"
    """The file or the device does not exist."""
    NOT_ASKED = "not-asked"
    """The section or the source was not queried."""
    FAILED = "failed"
    """The call failed for a reason without a value of its own here."""
    NOT_STATED = "not-stated"
    """The document does not state it: the sources of a modelled machine lack it, or a recording is older than the
    field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """The reason why one value could not be read, and the call or path."""

    reason: Reason
    detail: Sentence = ""
    """The call or path and its error, e.g. ``nvmlDeviceGetC2cModeInfoV: 3 (Not Supported)``. It contains no names from
    the machine."""


NOT_STATED = Unread(reason=Reason.NOT_STATED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """The base of every record that is read from a machine."""

    unread: Mapping[Plain, Unread] = field(default_factory=dict)
    """The reasons for nulls by field name, or by ``field.key`` for a mapping. Nulls without an entry are values."""

    def reason_of(self, name: str) -> Reason | None:
        """Return why a field was not read; ``None`` if there is no reason."""
        unread = self.unread.get(name)
        return None if unread is None else unread.reason


class Command(StrEnum):
    """The commands that write results as JSON documents."""

    SNAPSHOT = "snapshot"
    TOPO = "topo"
    DOCTOR = "doctor"
    BENCH = "bench"
    BRINGUP = "bringup"
