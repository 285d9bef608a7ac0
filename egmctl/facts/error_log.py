"""Finds errors of CUDA and NVML, Xids, SXids and messages of programs in any text: logs, CUDA's own log, pastes.

The text is untrusted and may be large: it is read block by block, and only lines with a word of interest are looked at.
Of each kind of failure, the first line is kept; of very many kinds, the gravest.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from functools import cache
from typing import BinaryIO

from egmctl.dataclass import dataclass
from egmctl.driver.cuda import LOG_SHOWN, RETURNING, log_entries
from egmctl.driver.messages import KnownMessage, messages
from egmctl.driver.signatures import signatures
from egmctl.facts.kernel_log import event
from egmctl.model.explanation import ErrorLog, Failure, Library, Severity
from egmctl.model.finding import Guard
from egmctl.model.kernel_log import EventKind

BLOCK = 1 << 18
"""The number of bytes that are searched at once. A longer line is searched in parts."""
_AROUND = 2000
"""The number of bytes before and after a word of interest that are looked at; most lines are shorter."""
_WINDOWS = 8
"""The number of places in one line that are looked at."""
_KINDS = 50
"""The number of kinds of failures that are kept."""
_THREADS = 64
"""The number of threads whose last message of CUDA's log is kept."""
_SHORT = 8192
"""The size of a text, in bytes, that was pasted rather than logged: it may be wrapped, or name no library."""
_NARROWEST = 40
"""The fewest columns at which a terminal is taken to have broken lines. Our choice."""
OUT_OF_MEMORY = 2
"""CUDA_ERROR_OUT_OF_MEMORY, which allocators of frameworks say after any failed call."""
_DEVICE = re.compile(
    r"\b(GPU) ?#?(\d{1,2})\b(?![:\d]|\.\d)|(?<![0-9a-fA-F])([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})\b(?!:)",
    re.ASCII,
)
"""A GPU in a line: by its number, or by its PCI address."""
_DEVICES = 8
"""The number of GPUs that are kept of a failure."""
_SUBJECTS = (
    (re.compile(rb"\bEGM\b"), (Guard.EGM,)),
    (re.compile(rb"\bNCCL\b|NVLS"), (Guard.P2P, Guard.IPC)),
    (re.compile(rb"(?i:imex|fabric.?manager|nvswitch|mnnvl)"), (Guard.FABRIC,)),
    (re.compile(rb"\bUCX\b|\bRDMA\b|ibv_|libibverbs|mlx5_|NET/IB|InfiniBand|RoCE|NVSHMEM"), (Guard.RDMA,)),
)
"""What the words of a text are about, as the purposes of doctor."""
_ECHO = 10
"""The number of lines between a message that says what failed and a bare error that repeats it."""

_WORDS = (b"uda", b"CUDA", b"nvml")
"""Words of interest: cuda and Cuda are found by their end, in one search."""
_NGC = rb"\(error \d{1,3}\) \]\]"
"""How NVIDIA's images end the error of CUDA that they print at their start, on a line that names no library."""
_CALLS = (re.compile(rb"cu[A-Z]"), re.compile(rb"X(?:id|ID)"), re.compile(rb"NV(?:ML|RM)"), re.compile(_NGC))
_CANDIDATE = re.compile(rb"cuda|cu[A-Z]|CUDA|Cuda|nvml|NVML|" + _NGC)
_FAILS_PATTERN = rb"error|Error|ERROR|fail|Fail|Reason|ret:|hit|returned|out of memory|\]\[CUDA\]\["
_FAILS = re.compile(_FAILS_PATTERN)
_MAY_FAIL = re.compile(_FAILS_PATTERN + rb"|NVRM|X[Ii][Dd]|cuda\.api\.runtime")
_NAME = re.compile(r"\b(?:CUDA_ERROR_|cudaError|NVML_ERROR_)\w+", re.ASCII)
_CALL = re.compile(r"\b(?:cu|cuda|nvml)[A-Z]\w*(?<!_t)\b", re.ASCII)
_NUMBER = re.compile(
    # The lengths are bounded, so that a hostile line takes no quadratic time. "ERROR 09-30" is the date of a log.
    r"(?:(?i:cuda[\w ]{0,40}(?:error|failure)|\berror)[ :=]{0,3}\(?(?:code[ =])?|code=|\b\w{3,60} failed[: ]{1,3}"
    r"|\breturned )([0-9]{1,3})\b(?! ?[%.]|[-/]\d)",
    re.ASCII,
)
_XID = re.compile(r"\b(?:Xid|XID)(?: (?i:error))?(?: \([^)]{0,60}\))?[ :=#]{1,3}(\d{1,3})\b", re.ASCII)
_SMALL_XID = re.compile(r"\bxid[ :=#]{1,3}(\d{1,3})\b(?![.%-])", re.ASCII)
"""An Xid as people type it. Databases and protocols have transactions of that name, so that no other subject may be
beside it."""
_BESIDE_XID = re.compile(
    r"\b(?:gpu|nvidia|nvrm|cuda)\b"
    r"|^\W*(?:(?:xid|\d{1,3}|a|again|an|and|any|does|error|errors|fix|fixed|for|get|getting|got|have|help|how|i|is|it|keep|me"
    r"|mean|means|meaning|my|of|on|see|seeing|the|to|what|with|why)\b\W*)+$",
    re.ASCII | re.IGNORECASE,
)
_AFTER_XID = re.compile(r"\bcaused by previous Xid (\d{1,3})\b", re.ASCII)
"""The Xid whose consequence an Xid is, as the driver says it of removed channels (Xid 45)."""
_SXID = re.compile(r"\bSX(?:id|ID)(?: \([^)]{0,60}\))?[ :]{1,3}(\d{1,6})\b", re.ASCII)
_NON_FATAL = re.compile(r"\bnon-?fatal\b", re.IGNORECASE)
_NVRM = re.compile(r"NVRM: ?(.*)", re.DOTALL)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_CUPY = re.compile(r"cuda\.api\.runtime\.([a-z]\w+)", re.ASCII)
"""A function of the runtime in a traceback of CuPy, which leaves ``cuda`` out of its name."""
_ASKED = re.compile(r"Tried to allocate ([\d.]{1,12}) ([KMGT]iB)")
_FREE = re.compile(r"of which ([\d.]{1,12}) ([KMGT]iB) is free")
_UNITS = {"KiB": 1, "MiB": 1 << 10, "GiB": 1 << 20, "TiB": 1 << 30}


def read_failures(*streams: BinaryIO) -> ErrorLog:
    """Return the failures in a text, each kind once, in the order of their first lines.

    An error without its call is the same kind as one of that number with a call: frameworks repeat the driver. If
    Ctrl-C ends the reading, what was found so far is returned.

    Parameters
    ----------
    streams
        The parts of the text, which are read to their ends.

    Raises
    ------
    OSError
        A stream cannot be read.
    """
    reader = _Reader()
    interrupted = False
    try:
        for stream in streams:
            reader.read(stream)
    except KeyboardInterrupt:
        interrupted = True
    return reader.log(interrupted)


FailureKey = tuple[Library, "str | None", "int | None", str, "bool | None"]


@dataclass(slots=True)
class _Reader:
    """What was found so far; its size is bounded."""

    kinds: dict[FailureKey, Failure] = field(default_factory=dict)
    left_out: int = 0
    lines: int = 0
    short: bytes = b""
    """The text, while it is short; of a longer one, its beginning."""
    end: bytes = b""
    """The end of what was read last."""
    size: int = 0
    _threads: dict[str, str] = field(default_factory=dict)
    """The last message of CUDA's log by thread; the line with the call comes after it."""
    _driver_lines: deque[tuple[str, tuple[str, ...]]] = field(default_factory=lambda: deque(maxlen=3))
    """The last lines of the kernel driver that are no message by themselves, with their anchors: it breaks messages."""
    _continued: FailureKey | None = None
    """The message of the kernel driver whose further lines may follow."""
    _function: str | None = None
    """The last function of a traceback of CuPy."""

    def read(self, stream: BinaryIO) -> None:
        """Read a text to its end."""
        read = getattr(stream, "read1", stream.read)
        rest = b""
        while block := read(BLOCK):
            if self.size <= _SHORT:
                self.short += block[:_SHORT]
            self.end = block[-_SHORT:]
            self.size += len(block)
            block = rest + block
            cut = block.rfind(b"\n") + 1 or (len(block) if len(block) >= BLOCK else 0)
            self._search(block[:cut])
            rest = block[cut:]
        if rest:
            self._search(rest)
            self.lines += 1

    def _search(self, block: bytes) -> None:
        """Look at the lines of a block that have a word of interest; of a long line, at some places of it."""
        counted = end_of_line = looked_at = windows = 0
        hits = sorted(_hits(block))
        number = 0
        while number < len(hits):
            place = hits[number][0]
            if place >= end_of_line:
                windows = 0
                start_of_line = block.rfind(b"\n", 0, place) + 1
                end_of_line = block.find(b"\n", place)
                end_of_line = len(block) if end_of_line < 0 else end_of_line
            looked_at = min(end_of_line, place + _AROUND)
            start = max(start_of_line, place - _AROUND)
            anchors = []
            while number < len(hits) and hits[number][0] < looked_at:
                anchors += [hits[number][1]] if hits[number][1] else []
                number += 1
            if windows == _WINDOWS or (not anchors and not _MAY_FAIL.search(block, start, looked_at)):
                continue
            windows += 1
            self.lines += block.count(b"\n", counted, place)
            counted = place
            self._look(block[start:looked_at], dict.fromkeys(anchors))
        self.lines += block.count(b"\n", counted)

    def _look(self, part: bytes, anchors: Iterable[str]) -> None:
        """Keep the failures that a line states, or a part of it around a word of interest."""
        is_candidate = _CANDIDATE.search(part) is not None and _FAILS.search(part) is not None
        text = part.decode("utf-8", "replace").strip()
        if "\x1b" in text:
            text = _COLOURS.sub("", text)
        if (name := _CUPY.search(text)) is not None and name[1] != "check_status":
            self._function = f"cuda{name[1][0].upper()}{name[1][1:]}"
        for failure in self._failures(text, anchors, is_candidate):
            self._keep(failure, text)

    def _failures(self, text: str, anchors: Iterable[str], is_candidate: bool) -> Iterator[Failure]:
        """Yield the failures that a line states."""
        if logged := list(log_entries(text)):
            yield from filter(None, (self._logged(*entry) for entry in logged))
            return
        if (numbered := _numbered(text)) is not None:
            self._driver_lines.clear()
            if (reporter := messages().match(text, anchors)) is not None and reporter.reports_xid:
                yield Failure(library=Library.MESSAGE, number=None, message=reporter.id)
            yield numbered
            return
        if (message := self._message(text, anchors)) is not None:
            yield Failure(library=Library.MESSAGE, number=None, message=message.id)
            if message.severity is not Severity.CONTEXT:
                return
        if is_candidate and (failure := _stated_failure(text)) is not None:
            call = failure.call or (self._function if "CUDARuntimeError" in text else None)
            yield replace(failure, call=call)

    def _logged(self, thread: str, call: str | None, message: str) -> Failure | None:
        """Return the failure in a line of CUDA's own log; keep the message of a line without one."""
        known = signatures()
        if (returning := RETURNING.match(message)) is None and call is None:
            self._threads[thread] = message[:LOG_SHOWN]
            if len(self._threads) > _THREADS:
                del self._threads[next(iter(self._threads))]
            return None
        reason = self._threads.pop(thread, "") if returning else message[:LOG_SHOWN]
        name = returning[2] if returning else call
        if name is None or known.driver_call(name) in known.noise or any(words in reason for words in known.noise_log):
            return None
        return Failure(library=Library.CUDA, number=int(returning[1]) if returning else None, call=name, log=reason)

    def _message(self, text: str, anchors: Iterable[str]) -> KnownMessage | None:
        """Return the message of a program in a line, or in the lines over which the kernel driver breaks one."""
        driver = _NVRM.search(text)
        if driver is not None:
            anchors = tuple(messages().anchors(text))
        message = messages().match(text, anchors)
        if driver is None:
            return message if message is None else _by_free_memory(message, text)
        if message is None and (further := [anchor for _, found in self._driver_lines for anchor in found]):
            lines = " ".join(line for line, _ in self._driver_lines)
            message = messages().match(f"NVRM: {lines} {driver[1]}", (*further, *anchors))
        if message is None:
            self._driver_lines.append((driver[1][:LOG_SHOWN], tuple(anchors)))
            self._continue(driver[1])
        else:
            self._driver_lines.clear()
        return message

    def _continue(self, text: str) -> None:
        """Append a line to the message of the kernel driver that it continues."""
        if self._continued is None or not text[:1].islower():
            self._continued = None
            return
        first = self.kinds[self._continued]
        self.kinds[self._continued] = replace(first, line=f"{first.line} {text}"[:LOG_SHOWN])

    def _keep(self, failure: Failure, text: str) -> None:
        """Count a failure; of a new kind keep it with its line, if there is room or it is graver than another one."""
        call = None if failure.call is None else signatures().driver_call(failure.call)
        kind = (failure.library, call, failure.number, failure.message, failure.fatal)
        self._continued = None
        if (first := self.kinds.get(kind)) is not None:
            devices = first.devices if len(first.devices) >= _DEVICES else _devices(text, first.devices)
            self.kinds[kind] = replace(first, count=first.count + 1, log=first.log or failure.log, devices=devices)
            return
        if len(self.kinds) >= _KINDS:
            least = max(reversed(self.kinds), key=lambda each: severity_of(self.kinds[each]).rank)
            if severity_of(failure).rank >= severity_of(self.kinds[least]).rank:
                self.left_out += 1
                return
            self.left_out += self.kinds.pop(least).count
        self.kinds[kind] = replace(failure, line=text[:LOG_SHOWN], line_number=self.lines + 1, devices=_devices(text))
        if "NVRM" in text:
            self._continued = kind

    def log(self, interrupted: bool) -> ErrorLog:
        """Return the failures, without those that only repeat others."""
        if not self.kinds and self.size <= _SHORT:
            self._paste()
        with_call = {(library, code) for library, call, code, _, _ in self.kinds if call is not None}
        told = [each.line_number or 0 for each in self.kinds.values() if _says_what_failed(each)]
        kept = (
            each
            for (library, call, code, message, _), each in self.kinds.items()
            if call
            or message
            or library is Library.XID
            or ((library, code) not in with_call and not (_is_vague(each) and _is_near(each.line_number or 0, told)))
        )
        failures = tuple(kept)
        return ErrorLog(
            failures=failures,
            lines=self.lines,
            left_out=self.left_out,
            interrupted=interrupted,
            purposes=() if failures else self._purposes(),
        )

    def _purposes(self) -> tuple[Guard, ...]:
        """Return what the beginning and the end of the text are about."""
        about = (guard for words, guards in _SUBJECTS if words.search(self.short + self.end) for guard in guards)
        return tuple(dict.fromkeys(about))

    def _paste(self) -> None:
        """Look at a short text again: as one line, as a terminal may have wrapped it; and for words of CUDA alone."""
        pasted = self.short.decode("utf-8", "replace")
        text = " ".join(pasted.split())
        found = None
        # What a terminal broke comes first: in the joined text, parts of lines about different things may meet.
        text, message = _gravest(_unwrapped(pasted)) or _gravest([text]) or (text, None)
        if message is not None:
            found = Failure(library=Library.MESSAGE, number=None, message=message.id)
        elif (words := _unmistakable().search(text)) is not None:
            library, number = next(key for key, name in signatures().names.items() if name.words == words[0])
            found = Failure(library=library, number=number)
        elif (message := messages().loosely(pasted)) is not None:
            found = Failure(library=Library.MESSAGE, number=None, message=message.id)
        elif (xid := _SMALL_XID.search(text)) is not None and _BESIDE_XID.search(text) is not None:
            found = Failure(library=Library.XID, number=int(xid[1]))
        if found is not None:
            kind = found.library, None, found.number, found.message, found.fatal
            self.kinds[kind] = replace(found, line=text[:LOG_SHOWN], devices=_devices(text))


def _unwrapped(text: str) -> list[str]:
    """Return the lines of a text as they were before a terminal broke them at its width, also within words."""
    lines = text.splitlines()
    width = max(map(len, lines), default=0)
    return "".join(line if len(line) == width >= _NARROWEST else f"{line}\n" for line in lines).splitlines()


def _gravest(lines: Iterable[str]) -> tuple[str, KnownMessage] | None:
    """Return the line with the gravest message, the first of several; ``None`` if none has one."""
    found = [(line, message) for line in lines if (message := messages().match(line)) is not None]
    return min(found, key=lambda each: each[1].severity.rank, default=None)


def severity_of(failure: Failure) -> Severity:
    """Return how grave a failure is; an Xid counts as a failure of the system, until its catalogue says more."""
    if failure.library is Library.MESSAGE:
        return messages().entries[failure.message].severity
    if failure.library is Library.XID:
        return Severity.SYSTEM
    return Severity.ERROR if failure.call is None else Severity.CALL


def _hits(block: bytes) -> Iterator[tuple[int, str]]:
    """Yield the places of the words of interest in a block, each with its anchor of a message, if it is one."""
    for trigger in messages().triggers:
        yield from ((match.start(), match[0].decode()) for match in trigger.finditer(block))
    for pattern in _CALLS:
        yield from ((match.start(), "") for match in pattern.finditer(block))
    for word in _WORDS:
        place = block.find(word)
        while place >= 0:
            yield place, ""
            place = block.find(word, place + 1)


def _numbered(text: str) -> Failure | None:
    """Return the Xid or SXid in a line; of an Xid that the driver calls a consequence, the one that caused it."""
    if (sxid := _SXID.search(text)) is not None:
        name = "sxid-non-fatal" if _NON_FATAL.search(text) else "sxid"
        return Failure(library=Library.MESSAGE, number=int(sxid[1]), message=name)
    if (cause := _AFTER_XID.search(text)) is not None:
        return Failure(library=Library.XID, number=int(cause[1]))
    start = text.find("NVRM: Xid")
    xid = None if start < 0 else event(0.0, text[start:])
    if xid is not None and xid.kind is EventKind.XID:
        return Failure(library=Library.XID, number=xid.number, fatal=xid.fatal)
    # The name of a process, which comes after the number, may look like an Xid: in the driver's line only its
    # beginning counts.
    short = _XID.search(text) if start < 0 else _XID.match(text, start + len("NVRM: "))
    return None if short is None else Failure(library=Library.XID, number=int(short[1]))


def _devices(text: str, known: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the GPUs that are known, and those that a line names."""
    named = (f"GPU {each[2]}" if each[1] else each[3].lower() for each in _DEVICE.finditer(text))
    return tuple(dict.fromkeys((*known, *named)))[:_DEVICES]


def _stated_failure(line: str) -> Failure | None:
    """Return the failed call of CUDA or NVML that a line states, or ``None``."""
    known = signatures()
    calls = [call for call in _CALL.findall(line) if not call.startswith(("cudaError", "cudaSuccess"))]
    is_nvml = bool(calls and calls[0].startswith("nvml")) or "nvml" in line.lower()
    library = Library.NVML if is_nvml and "CUDA" not in line else Library.CUDA
    named = (known.numbers[name] for name in _NAME.findall(line) if name in known.numbers)
    if (error := next(named, None) or next(_stated(line, library), None)) is None:
        return None
    best = next((call for call in calls if (error[0], known.driver_call(call), error[1]) in known.errors), None)
    return Failure(library=error[0], number=error[1], call=best or next(iter(calls), None))


def _stated(line: str, library: Library) -> Iterator[tuple[Library, int]]:
    """Yield the errors that a line states by number, then by the library's words."""
    for number in map(int, _NUMBER.findall(line)):
        if (library, number) in signatures().names:
            yield library, number
    stated = list(_words(library).finditer(line))
    if stated:
        # "initialization error: unknown error": what stands before a colon may say where it happened.
        words = next((each for each in stated if line[each.end() : each.end() + 1] != ":"), stated[0])
        names = signatures().names.items()
        older = signatures().older_words.get(words[0])
        yield next(
            (key for key, name in names if key[0] is library and name.words.lower() == words[0].lower()),
            (library, older or 0),
        )


@cache
def _words(library: Library) -> re.Pattern[str]:
    """Return the pattern of the words of all errors of a library; longer ones first, as some begin like others.

    CUDA's are told from the system's, of which some differ by case alone ("Invalid argument").
    """
    words = {name.words for (of_library, _), name in signatures().names.items() if of_library is library and name.words}
    words |= set(signatures().older_words) if library is Library.CUDA else set()
    pattern = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    return re.compile(pattern, re.IGNORECASE if library is Library.NVML else 0)


@cache
def _unmistakable() -> re.Pattern[str]:
    """Return the pattern of words that only CUDA uses: they are long, or name what only CUDA has."""
    words = {name.words for (library, _), name in signatures().names.items() if library is Library.CUDA and name.words}
    own = (each for each in words if len(each) > 25 or "ordinal" in each)
    return re.compile("|".join(map(re.escape, sorted(own, key=len, reverse=True))))


def _by_free_memory(message: KnownMessage, text: str) -> KnownMessage:
    """Return what PyTorch's "out of memory" means: it is not that if twice as much is free as was requested."""
    if not message.id.startswith("torch-oom"):
        return message
    asked, free = _ASKED.search(text), _FREE.search(text)
    is_free = asked is not None and free is not None and _kib(free) >= 2 * _kib(asked) and " allowed; " not in text
    return messages().entries["torch-oom-but-free" if is_free else "torch-oom"]


def _kib(match: re.Match[str]) -> float:
    try:
        return float(match[1]) * _UNITS[match[2]]
    except ValueError:
        return 0.0


def _says_what_failed(failure: Failure) -> bool:
    return failure.library is Library.MESSAGE and severity_of(failure) not in (Severity.CONTEXT, Severity.HARMLESS)


def _is_vague(failure: Failure) -> bool:
    """Return whether an error says little by itself, so that frameworks repeat it after what failed."""
    number = failure.number or 0
    return number == OUT_OF_MEMORY or any(each.vague for each in signatures().find(failure.library, None, number))


def _is_near(line: int, others: list[int]) -> bool:
    return any(abs(line - other) <= _ECHO for other in others)
