"""The kernel log: what it has said of GPUs, PCIe and the driver, before and during a run."""

from __future__ import annotations

import errno
import json
import os
import re
import time
from collections.abc import Sequence
from dataclasses import replace

from egmctl.driver.reading import Unreadable
from egmctl.facts.root import Root, program_output
from egmctl.model.kernel_log import DriverMessage, EventKind, KernelEvent, KernelLog, KernelMessages
from egmctl.model.record import Reason, Unread

KMSG = "/dev/kmsg"
JOURNAL = "/usr/bin/journalctl"
JOURNAL_TIMEOUT_S = 3.0
EVENTS_LIMIT = 500
"""Events that are kept. A link that fails logs thousands of the same."""

_RECORD_BYTES = 1 << 16
"""More than the kernel's largest record; a smaller buffer makes read(2) fail with EINVAL."""
_RECORDS_LIMIT = 1 << 18
_JOURNAL_BYTES = 64 << 20
_JOURNAL_LINES = 100_000
"""The newest lines of the journal that are read: some 40 MiB as JSON."""
_TEXT_LIMIT = 200

Line = tuple[float, str]
"""Seconds since boot, and the message."""

_XID = re.compile(
    r"NVRM: Xid \(PCI:([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})(?: GPU-I:\d+)?(?: GPU-CI:\d+)?\): "
    r"(\d{1,6})(?:, |$)(.*)",
    re.ASCII | re.IGNORECASE | re.DOTALL,
)
_PROCESS = re.compile(
    r"pid=(?:'?<unknown>'?|(\d{1,10})), name="
    r"((?:\\x[0-9a-f]{2}|(?!\\x[0-9a-f]{2}).){0,15}(?=, |,$)|.*?(?=, |$))(?:, ?)?",
    re.ASCII | re.DOTALL,
)
"""Whom the driver blames: ``pid=%s, name=%s, TEXT`` (open-gpu-kernel-modules, kernel_rc.c, krcReportXid).

A process names itself, by 15 bytes (proc_pid_comm(5)) that may be anything, ``", "`` too; the kernel's log has some of
them as ``\\x2c``. So the name ends at the last comma that so many bytes allow: nothing of it is ever in the text.
"""
_OTHER_PROCESS = re.compile(
    r"\b(?:process )?\w*(?:[pt]id|name|comm|cmd|command|process|task)\s*[=:(].*", re.ASCII | re.IGNORECASE | re.DOTALL
)
"""A process in any other spelling, and all that comes after it: where its name ends is not known."""
_CHANNEL = re.compile(r", Ch [0-9a-f]{8}$", re.ASCII)
"""The most common beginning of the text, so short that it could be part of a name of one or two letters."""
_CAUSED_BY = re.compile(r" caused by previous Xid (\d{1,6})", re.ASCII)
_SXID = re.compile(
    r"nvidia-nvswitch\d+: SXid \(PCI:([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])\): (\d{1,6}), (.*)",
    re.ASCII | re.IGNORECASE,
)
_AER = re.compile(
    r"\S+ ([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): PCIe Bus Error: "
    r"severity=(Corrected|Correctable|Uncorrected|Uncorrectable)(?: \((Fatal|Non-Fatal)\))?, (.*)",
    re.ASCII,
)
_LINK = re.compile(r"\bLink (\d{1,3})\b", re.ASCII)
_FATAL = re.compile(r"\b(Non-?fatal|Fatal)\b", re.IGNORECASE)
_BUS_ID = re.compile(r"\b([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})(\.[0-7])?\b", re.ASCII | re.IGNORECASE)
_SOURCES = ("NVRM", "nvidia", "PCIe Bus Error")
"""One of these is in every line that counts: looking for them first is ten times as fast as the patterns."""
_DRIVER_LINE = re.compile(r"(NVRM|nvidia-uvm|nvidia-nvswitch\d*|nvidia-nvlink)\b", re.ASCII)


def kernel_log(root: Root) -> KernelLog:
    """Read the log of this boot.

    Raises
    ------
    Unreadable
        If neither source may be read; the reason is the kernel log's own, the detail names both.
    """
    try:
        return _kept(KMSG, _kmsg(root))
    except Unreadable as error:
        if not root.is_live:
            raise
        try:
            return _kept("journalctl", _journal(root))
        except Unreadable as other:
            detail = f"{error.unread.detail}; {other.unread.detail}"
            raise Unreadable(error.unread.reason, detail) from None


def event(time_s: float, message: str) -> KernelEvent | None:
    """Return what a line of the log says; ``None`` if it is none of the known kinds.

    Parameters
    ----------
    time_s
        Seconds since boot.
    message
        The line without time and priority. Of a text with a line feed, which the kernel escapes (``\\x0a``), only what
        is before counts.
    """
    if not any(word in message for word in _SOURCES):
        return None
    if match := _XID.match(message):
        return _xid(time_s, match)
    message = _first_line(message)
    if match := _SXID.match(message):
        return _numbered(EventKind.SXID, time_s, match[1], match[2], match[3])
    if match := _AER.match(message):
        return KernelEvent(
            kind=EventKind.AER,
            time_s=time_s,
            bus_id=match[1],
            fatal=match[3] == "Fatal",
            corrected=match[2].startswith("Correct"),
            text=match[4][:_TEXT_LIMIT],
        )
    known = [words for words in DriverMessage if words.value in message] if _DRIVER_LINE.match(message) else []
    if not known:
        return None
    bus_id = _BUS_ID.search(message)
    bus_id_text = _bus_id(bus_id[0]) if bus_id else None
    return KernelEvent(kind=EventKind.DRIVER, time_s=time_s, message=known[0], bus_id=bus_id_text)


def _xid(time_s: float, match: re.Match[str]) -> KernelEvent:
    domain, bus, slot, number, rest = match.groups()
    name = ""
    process = _PROCESS.search(rest)
    if process is not None:
        name = _CHANNEL.sub("", process[2])
        rest = rest[: process.start()] + rest[process.end() :]
    rest = without_process(_first_line(rest))
    caused = _CAUSED_BY.search(rest)
    xid = _numbered(EventKind.XID, time_s, f"{domain}:{bus}:{slot}", number, rest)
    return replace(
        xid,
        fatal=xid.fatal if 144 <= int(number) <= 150 else None,
        pid=int(process[1]) if process and process[1] else None,
        process=name if name not in ("", "<unknown>") else None,
        caused_by=int(caused[1]) if caused else None,
    )


def _numbered(kind: EventKind, time_s: float, bus_id: str, number: str, text: str) -> KernelEvent:
    link, fatal = _LINK.search(text), _FATAL.search(text)
    return KernelEvent(
        kind=kind,
        time_s=time_s,
        bus_id=_bus_id(bus_id),
        number=int(number),
        fatal=fatal[1].lower() == "fatal" if fatal else None,
        link=int(link[1]) if link else None,
        text=text[:_TEXT_LIMIT],
    )


def without_process(text: str) -> str:
    """Return the text of a line up to where it names a process, however the driver spells that."""
    return _OTHER_PROCESS.sub("", text).rstrip(" ,")


def _first_line(text: str) -> str:
    return text.partition("\\x0a")[0].partition("\n")[0]


def _kept(source: str, read: tuple[Sequence[Line], float, bool]) -> KernelLog:
    """Return the log of some lines, read at a time, with or without a gap."""
    lines, now_s, overwritten = read
    events = [kernel_event for line in lines if (kernel_event := event(*line)) is not None]
    return KernelLog(
        source=source,
        now_s=now_s,
        first_s=lines[0][0] if lines else None,
        overwritten=overwritten,
        events=tuple(events[-EVENTS_LIMIT:]),
        left_out=max(0, len(events) - EVENTS_LIMIT),
    )


def _kmsg(root: Root) -> tuple[Sequence[Line], float, bool]:
    if not root.is_live:
        # A copy of the records as a regular file, one a line; its last line is the best clock there is.
        lines = [line for text in root.lines(KMSG) if (line := _record(text)) is not None]
        return lines, lines[-1][0] if lines else 0.0, False
    descriptor = _open(root)
    try:
        lines, overwritten = records(descriptor)
    finally:
        os.close(descriptor)
    return lines, _now_s(), overwritten


def _open(root: Root, whence: int = os.SEEK_SET) -> int:
    """Return a descriptor of the kernel's records, at the oldest of them or at the end, which no read waits on.

    Raises
    ------
    Unreadable
        If it may not be read.
    """
    try:
        descriptor = os.open(root.path(KMSG), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        if whence != os.SEEK_SET:
            os.lseek(descriptor, 0, whence)
        return descriptor
    except OSError as error:
        raise Unreadable.from_os_error(error, KMSG) from None


def records(descriptor: int) -> tuple[list[Line], bool]:
    """Return the records up to the newest, and whether some were overwritten meanwhile (EPIPE).

    Raises
    ------
    Unreadable
        If reading fails.
    """
    lines: list[Line] = []
    overwritten = False
    for _ in range(_RECORDS_LIMIT):
        try:
            data = os.read(descriptor, _RECORD_BYTES)
        except BlockingIOError:
            break
        except OSError as error:
            if error.errno == errno.EPIPE:
                overwritten = True
                continue
            raise Unreadable.from_os_error(error, KMSG) from None
        if not data:
            break
        # One record a read, and its properties on lines that begin with a space; a copy as a file has one a line.
        texts = data.decode(errors="replace").split("\n")
        lines += [line for text in texts if (line := _record(text)) is not None]
    return lines, overwritten


def _record(text: str) -> Line | None:
    """Return time and message of a record of the kernel's own; programs that write to ``/dev/kmsg`` are not believed.

    ``priority,sequence,microseconds,flags;message``; a program's facility, ``priority >> 3``, is never 0
    (Documentation/ABI/testing/dev-kmsg).
    """
    head, semicolon, message = text.partition(";")
    fields = head.split(",")
    numbers = [field for field in fields[:3] if re.fullmatch("[0-9]{1,18}", field, re.ASCII)]
    if not semicolon or len(numbers) < 3 or int(fields[0]) >> 3:
        return None
    return int(fields[2]) / 1e6, message.partition("\n")[0]


def _journal(root: Root) -> tuple[Sequence[Line], float, bool]:
    if not root.exists(JOURNAL):
        raise Unreadable(Reason.NOT_PRESENT, f"{JOURNAL}: ENOENT")
    options = ("--dmesg", "--boot", "--output=json", "--no-pager", "--quiet", f"--lines={_JOURNAL_LINES}")
    fields = "--output-fields=MESSAGE,_SOURCE_MONOTONIC_TIMESTAMP,SYSLOG_FACILITY"
    output = program_output([root.path(JOURNAL), *options, fields], JOURNAL, JOURNAL_TIMEOUT_S, _JOURNAL_BYTES)
    entries = output.splitlines()
    cut = len(entries) >= _JOURNAL_LINES or len(output) >= _JOURNAL_BYTES
    lines = [line for raw in entries if (line := _journal_entry(raw)) is not None]
    if not lines:
        raise Unreadable(Reason.NO_PERMISSION, f"{JOURNAL}: no kernel message may be read")
    return lines, _now_s(), cut


def _journal_entry(raw: bytes) -> Line | None:
    try:
        entry = json.loads(raw)
        message = entry["MESSAGE"]
        # What is not UTF-8 comes as a list of bytes (systemd.journal-fields(7)).
        text = bytes(message).decode(errors="replace") if isinstance(message, list) else str(message)
        if entry.get("SYSLOG_FACILITY", "0") != "0":
            return None
        stamp = entry.get("_SOURCE_MONOTONIC_TIMESTAMP") or entry["__MONOTONIC_TIMESTAMP"]
        return int(stamp) / 1e6, text
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _bus_id(text: str) -> str:
    """Return a bus id in the model's spelling; a line without a function means function 0."""
    domain, bus, slot = text.lower().split(":")
    return f"{domain[-8:].lstrip('0').zfill(4)}:{bus}:{slot if '.' in slot else slot + '.0'}"


class KernelLogWatch:
    """The events from the making of this object on, one by one as they are asked for, and all of them in the end.

    Only of ``/dev/kmsg``: asking it costs a system call where there is nothing new. Where it cannot be read there are
    none, and :attr:`unread` says why.
    """

    def __init__(self, root: Root) -> None:
        self.unread: Unread | None = None
        self._descriptor: int | None = None
        self._began_s = _now_s()
        self._events: list[KernelEvent] = []
        self._left_out = 0
        self._overwritten = False
        try:
            self._descriptor = _open(root, os.SEEK_END)
        except Unreadable as error:
            self._end(error)

    def events(self) -> Sequence[KernelEvent]:
        """Return the events since the last call, in their order."""
        if self._descriptor is None:
            return ()
        try:
            lines, overwritten = records(self._descriptor)
        except Unreadable as error:
            self._end(error)
            return ()
        self._overwritten |= overwritten
        new = [kernel_event for line in lines if (kernel_event := event(*line)) is not None]
        kept = new[: EVENTS_LIMIT - len(self._events)]
        self._events += kept
        self._left_out += len(new) - len(kept)
        return tuple(kept)

    @property
    def messages(self) -> KernelMessages:
        """The messages until the last call of :meth:`events`."""
        return KernelMessages(
            source=KMSG,
            unread=self.unread,
            began_s=self._began_s,
            ended_s=_now_s(),
            overwritten=self._overwritten,
            events=tuple(self._events),
            left_out=self._left_out,
        )

    def close(self) -> None:
        """Let go of the log."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _end(self, error: Unreadable) -> None:
        self.unread = error.unread
        self.close()


def _now_s() -> float:
    """Return the time on the clock of the kernel's log."""
    return round(time.clock_gettime(time.CLOCK_MONOTONIC), 3)
