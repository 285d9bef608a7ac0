"""What is known of the messages of programs: the entries of ``message_lines``, and their causes in ``message_causes``.

An entry is a table ``[ID]`` with these keys:

* ``program``: who prints it. ``source``: where the line is printed, documented or was seen. ``example``: such a line.
* ``lines``: fixed parts of the line; ``<>`` stands for any text, and a space for several. But a line is first found by
  its anchor, as it is written: ``Pending      <>: Yes`` is found in the column of a report.
* ``needs``, ``without``: words that the line must, or must not, have.
* ``severity``: a :class:`~egmctl.model.explanation.Severity`.
* ``states``: whether the line itself states its first cause.
* ``means``: what the line says, as a clause. ``causes``: names of causes, the most likely first.
* ``alternative``: what this program can do instead of the remedy of the first cause. So a cause that several programs
  share names no setting that only one of them reads.
* ``field``: whether the line is a field of a report, whose value counts: nothing stands before it but what ends in a
  bracket, a bar or a colon, and nothing after it; ``<>`` stands for spaces, and it is read exactly.
* ``stops-start``: whether a GPU that has this fault does not start, so that the driver's line that it failed to start
  is a consequence.
* ``reports-xid``: whether the line repeats an Xid of the kernel log, which is then a failure of its own.
* ``doctor``: the :class:`~egmctl.model.kernel_log.DriverMessage` that doctor reads in the same line.

A cause is a table ``[NAME]`` with ``cause``, a clause; the keys of its :class:`~egmctl.model.remedy.Remedy`: ``text``
(one sentence or two), ``look``, ``run``, ``needs`` and ``works_in``; and ``see``, ``checks``, ``decides``, ``noted``,
``holds_in`` and ``confirmable`` as in :class:`~egmctl.model.explanation.KnownCause`.

A text of 200 MB has millions of lines, few of which match. So each pattern has an anchor, a part that is rare in logs,
and one pattern of all anchors decides whether a line is looked at.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from egmctl.dataclass import dataclass
from egmctl.files import read_toml
from egmctl.model.explanation import KnownCause, Severity
from egmctl.model.remedy import remedy_of

DRIVER = "NVRM"
"""The word in each line of the kernel driver. They are few, so that all of them are looked at."""
GAP = 200
"""The most characters that ``<>`` stands for: a hostile line takes no quadratic time."""


@dataclass(frozen=True, slots=True)
class KnownMessage:
    """An entry: a message that a program prints, and its causes, the most likely first."""

    id: str
    program: str
    means: str
    severity: Severity
    states: bool
    """Whether the line itself states the first cause."""
    causes: tuple[KnownCause, ...]
    lines: tuple[str, ...]
    needs: str
    without: str
    example: str
    source: str
    is_field: bool
    """Whether the line is a field of a report."""
    stops_start: bool
    """Whether a GPU with this fault does not start."""
    reports_xid: bool
    """Whether the line also states an Xid."""
    doctor: str
    """The name of the :class:`~egmctl.model.kernel_log.DriverMessage` of the same line; empty if doctor has none."""


@dataclass(frozen=True, slots=True)
class _Pattern:
    message: KnownMessage
    line: str
    regex: re.Pattern[str]
    anchor: str

    def matches(self, text: str) -> bool:
        """Return whether a line, with single spaces, is this message."""
        message = self.message
        if message.needs not in text or (message.without and message.without in text):
            return False
        return self.regex.search(text) is not None


@dataclass(frozen=True, slots=True)
class KnownMessages:
    """All entries, and the patterns that find them."""

    entries: Mapping[str, KnownMessage]
    triggers: tuple[re.Pattern[bytes], ...]
    """Find the places of the anchors in a text, but for lines of :data:`DRIVER`; a pattern for each first letter."""
    _anchors: re.Pattern[str]
    _patterns: Mapping[str, tuple[_Pattern, ...]]
    """The patterns by the anchor at whose place one of them can match; those of shorter anchors are among them."""
    _loose: tuple[tuple[KnownMessage, tuple[str, ...], int], ...]
    """The glued parts of each pattern that is long enough to be told without spaces and case, and their length."""

    def match(self, text: str, anchors: Iterable[str] | None = None) -> KnownMessage | None:
        """Return the message in a line; of several the gravest, of these the one with the most fixed words.

        Parameters
        ----------
        anchors
            The anchors in the line, if :attr:`triggers` have found them all.
        """
        text = " ".join(text.split())
        is_information = _INFO.search(text) is not None
        found = (
            each for anchor in (self.anchors(text) if anchors is None else anchors) for each in self._patterns[anchor]
        )
        found = (pattern for pattern in found if not is_information or _INFO.search(pattern.line) is not None)
        matching = (pattern for pattern in found if pattern.matches(text))
        best = min(matching, key=lambda pattern: (pattern.message.severity.rank, -len(pattern.line)), default=None)
        return None if best is None else best.message

    def loosely(self, text: str) -> KnownMessage | None:
        """Return the message in a pasted text, whatever its case, line breaks, table borders, escapes and quotes.

        For a text that is short and in which nothing else was found: each pattern is looked for, but for those whose
        fixed words are few.
        """
        glued = _glued(text)
        is_information = "ncclinfo" in glued and "ncclwarn" not in glued
        matching = [
            (entry, words)
            for entry, parts, words in self._loose
            if not (is_information and "ncclinfo" not in parts[0])
            and _glued(entry.needs) in glued
            and not (entry.without and _glued(entry.without) in glued)
            and _has_in_order(glued, parts)
        ]
        best = min(matching, key=lambda each: (each[0].severity.rank, -each[1]), default=None)
        return None if best is None else best[0]

    def anchors(self, text: str) -> Iterator[str]:
        """Yield the anchors in a text."""
        place = 0
        while (anchor := self._anchors.search(text, place)) is not None:
            yield anchor[0]
            place = anchor.start() + 1


_INFO = re.compile(r"\bNCCL (INFO|TRACE)\b")
"""Lines of NCCL that report and do not warn. An error that they repeat is told by a line of its own, but for the few
messages whose pattern has these words."""


@cache
def messages() -> KnownMessages:
    """Return the entries, which are read on the first call."""
    causes = {name: known_cause(table) for name, table in _tables("message_causes")}
    entries = {
        name: KnownMessage(
            id=name,
            program=table["program"],
            means=_folded(table["means"]),
            severity=Severity(table["severity"]),
            states=table.get("states", False),
            causes=tuple(_causes(table, causes)),
            lines=tuple(table["lines"]),
            needs=table.get("needs", ""),
            without=table.get("without", ""),
            example=table["example"],
            source=table["source"],
            is_field=table.get("field", False),
            stops_start=table.get("stops-start", False),
            reports_xid=table.get("reports-xid", False),
            doctor=table.get("doctor", ""),
        )
        for name, table in _tables("message_lines")
    }
    patterns = [
        _Pattern(entry, line, re.compile(_field(line) if entry.is_field else _regex(line, _ANY_TEXT)), _anchor(line))
        for entry in entries.values()
        for line in entry.lines
    ]
    anchors = sorted({pattern.anchor for pattern in patterns}, key=lambda anchor: (-len(anchor), anchor))
    by_themselves = {pattern.anchor for pattern in patterns if DRIVER not in pattern.message.example}
    triggers = _by_first_letter(anchor for anchor in anchors if anchor in by_themselves)
    return KnownMessages(
        entries=entries,
        triggers=tuple(re.compile(pattern.encode()) for pattern in triggers),
        _anchors=re.compile("|".join(_by_first_letter(anchors))),
        _patterns={anchor: tuple(each for each in patterns if anchor.startswith(each.anchor)) for anchor in anchors},
        _loose=tuple(_loose(pattern for pattern in patterns if not pattern.message.is_field)),
    )


def known_cause(table: Mapping[str, Any]) -> KnownCause:
    """Return a cause from its table in a TOML file."""
    return KnownCause(
        cause=_folded(table["cause"]),
        remedy=remedy_of(table),
        see=_folded(table.get("see", "")),
        checks=tuple(table.get("checks", ())),
        decides=table.get("decides", False),
        noted=table.get("noted", False),
        holds_in=table.get("holds_in", ""),
        confirmable=table.get("confirmable", True),
        log=table.get("log", ""),
    )


def _causes(table: Mapping[str, Any], causes: Mapping[str, KnownCause]) -> Iterator[KnownCause]:
    """Yield the causes of an entry; the first has the alternative of the entry's program."""
    first, *others = (causes[name] for name in table["causes"])
    yield replace(first, alternative=_folded(table.get("alternative", "")))
    yield from others


def _tables(folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for file in sorted((Path(__file__).parent / folder).glob("*.toml")):
        yield from read_toml(file.read_text(encoding="utf-8")).items()


def _folded(text: str) -> str:
    return " ".join(text.split())


_ANY_TEXT = f".{{0,{GAP}}}?"


def _field(line: str) -> str:
    """Return the pattern of a field of a report, which begins the line, or follows what stands before a line."""
    return rf"(?:^|[\]>)|:] ){_regex(line, ' ?')}$"


def _regex(line: str, gap: str) -> str:
    """Return the pattern of a line: ``<>`` is a gap, and a quotation mark any of those that logs and JSON use."""
    parts = (_QUOTE.sub(lambda _: _QUOTES, re.escape(_folded(part))) for part in line.split("<>"))
    pattern = gap.join(parts)
    # A number at the end is that number, not the beginning of a longer one.
    return rf"{pattern}(?!\d)" if line[-1].isdecimal() else pattern


LOOSE = 20
"""The fewest characters, without spaces, that tell a message whatever their case. Our choice."""


def _loose(patterns: Iterable[_Pattern]) -> Iterator[tuple[KnownMessage, tuple[str, ...], int]]:
    for pattern in patterns:
        parts = tuple(filter(None, map(_glued, pattern.line.split("<>"))))
        words = sum(map(len, parts))
        if words >= LOOSE:
            yield pattern.message, parts, words


_NOISE = re.compile(r"[\s|\\\"'`\u2018\u2019\u201c\u201d]+")
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})")


def _glued(text: str) -> str:
    """Return a text in small letters, without what a paste adds or loses: spaces, borders, quotes and escapes."""
    plain = _ESCAPE.sub(lambda escape: chr(int(escape[1], 16)), html.unescape(text))
    return _NOISE.sub("", plain).casefold()


def _has_in_order(text: str, parts: tuple[str, ...]) -> bool:
    """Return whether a glued text has the glued parts of a pattern, each soon after the one before."""
    first, *others = parts
    start = text.find(first)
    while start >= 0:
        end = start + len(first)
        for part in others:
            place = text.find(part, end, end + GAP + len(part))
            if place < 0:
                break
            end = place + len(part)
        else:
            # A number at the end is that number, as for a line.
            if not (text[end - 1].isdecimal() and text[end : end + 1].isdecimal()):
                return True
        start = text.find(first, start + 1)
    return False


_QUOTE = re.compile("[\"'`]")
_QUOTES = r"""(?:\\{0,7}["'`\u2018\u2019\u201c\u201d])?"""
"""A quotation mark, or none; each program that quotes a line, in JSON or otherwise, puts backslashes before it."""
_PART = re.compile(r"[^\"'`\\]{4,}")
_ONE_SPACE = re.compile("(?<! ) $")
"""A space that ends an anchor. Several are kept: reports align their columns by them, which is rare in logs."""
_FIRST = "vPEFwbfumost<"
"""The letters with which an anchor begins, in order of preference: few, and rare in logs. Each is searched for once."""
_COMMON = (
    "Failed",
    "Error",
    "CUDA",
    "NCCL",
    "GPU",
    "NVIDIA",
    "Memory",
    "Device",
    "WARN",
    "vice",
    "vidia",
    "Warning",
    "failed",
    "fault",
    "File",
    "Pending",
    "Progress",
    "Exceeded",
)
"""With what many lines of ordinary logs go on."""


def _anchor(line: str) -> str:
    """Return the part of a line by which it is found: it begins with a letter that is rare in logs, and is long."""
    parts = [part[0] for fixed in line.split("<>") for part in _PART.finditer(fixed)]
    anchors = [_ONE_SPACE.sub("", part[start : start + 12]) for part in parts for start in range(len(part) - 3)]
    best = min(anchors, key=lambda anchor: (_cost(anchor), -len(anchor)))
    return best


def _cost(anchor: str) -> tuple[bool, int]:
    """Return how much it costs to search for an anchor: whether much else begins like it, and its first letter."""
    is_common = any(anchor.startswith(word) and len(anchor) < len(word) + 4 for word in _COMMON)
    place = _FIRST.find(anchor[0])
    return is_common or (len(anchor) < 8 and anchor.islower()), place if place >= 0 else len(_FIRST)


def _by_first_letter(anchors: Iterable[str]) -> list[str]:
    """Return a pattern for each first letter of the anchors. Longer anchors come before those that they begin with.

    The second and the third letter are branches of their own: of a hundred anchors that begin alike, few are compared.
    """
    groups: dict[str, dict[str, dict[str, list[str]]]] = {}
    for anchor in anchors:
        seconds = groups.setdefault(anchor[0], {}).setdefault(anchor[1], {})
        seconds.setdefault(anchor[2], []).append(re.escape(anchor[3:]))
    return [
        re.escape(first) + _branches({second: _branches(thirds) for second, thirds in seconds.items()})
        for first, seconds in groups.items()
    ]


def _branches(rests: Mapping[str, Iterable[str] | str]) -> str:
    """Return a pattern of each letter, followed by its pattern or by one of its texts."""
    branches = (
        re.escape(letter) + (rest if isinstance(rest, str) else f"(?:{'|'.join(rest)})")
        for letter, rest in rests.items()
    )
    return f"(?:{'|'.join(branches)})"
