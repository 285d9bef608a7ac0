"""Events of GPUs, PCIe and the driver in the kernel log, before and during a run."""

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
"""The maximum number of events to keep. A failing link logs thousands of the same event."""

_RECORD_BYTES = 1 << 16
"""The size of the read buffer. If a record is larger than the buffer, read(2) fails with EINVAL."""
_RECORDS_LIMIT = 1 << 18
_JOURNAL_BYTES = 64 << 20
_JOURNAL_LINES = 100_000
"""The number of newest lines to read from the journal, about 40 MiB as JSON."""
_TEXT_LIMIT = 200

Line = tuple[float, str]
"""The seconds since boot, and the message."""

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
"""The process that an Xid names: ``pid=%s, name=%s, TEXT`` (open-gpu-kernel-modules, kernel_rc.c, krcReportXid).

A process chooses its name, up to 15 bytes of any value (proc_pid_comm(5)), even ``", "``; the log escapes some bytes,
e.g. as ``\\x2c``. So the name ends at the last comma that 15 bytes allow, and no part of it stays in the text.
"""
_OTHER_PROCESS = re.compile(
    r"\b(?:process )?\w*(?:[pt]id|name|comm|cmd|command|process|task)\s*[=:(].*", re.ASCII | re.IGNORECASE | re.DOTALL
)
"""A process in any other format and all text after it, because the end of its name is unknown."""
_CHANNEL = re.compile(r", Ch [0-9a-f]{8}$", re.ASCII)
"""The most common start of the text. It is so short that :data:`_PROCESS` takes it as part of a name of one or two
letters."""
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
"""Strings one of which every relevant line contains. Searching for them first is ten times as fast as the patterns."""
_OF_ONE_GPU = re.compile(r"NVRM: The NVIDIA (?:probe |GPU |.{1,80} GPU installed in this system is)", re.ASCII)
"""The begin of a sentence about a GPU that the driver writes over several lines of one record (nv-pci.c). No process
has a part in it."""
_ONE_SENTENCE = re.compile(r"\s*(?:\\x0a|\n)\s*NVRM:\s*", re.ASCII)
_DRIVER_LINE = re.compile(r"(NVRM|nvidia-uvm|nvidia-nvswitch\d*|nvidia-nvlink)\b", re.ASCII)


def kernel_log(root: Root) -> KernelLog:
    """Read the kernel log of this boot from ``/dev/kmsg`` or, on the live node, from the journal.

    Raises
    ------
    Unreadable
        No source can be read. The reason is that of ``/dev/kmsg``; the detail names both.
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
    """Parse a line of the log; return ``None`` if it is not an event of a known kind.

    Parameters
    ----------
    time_s
        The seconds since boot.
    message
        The line without time and priority. Text after a line feed, which the kernel escapes (``\\x0a``), is ignored.
    """
    if not any(word in message for word in _SOURCES):
        return None
    if match := _XID.match(message):
        return _xid(time_s, match)
    if _OF_ONE_GPU.match(message):
        message = _ONE_SENTENCE.sub(" ", message)
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
    """Return the text up to the first mention of a process in any format."""
    return _OTHER_PROCESS.sub("", text).rstrip(" ,")


def _first_line(text: str) -> str:
    return text.partition("\\x0a")[0].partition("\n")[0]


def _kept(source: str, read: tuple[Sequence[Line], float, bool]) -> KernelLog:
    """Return the record of the log with the newest :data:`EVENTS_LIMIT` events of the lines that were read."""
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
        # A copy is a regular file with one record per line. The time of its last record stands for the current time.
        lines = [line for text in root.lines(KMSG) if (line := _record(text)) is not None]
        return lines, lines[-1][0] if lines else 0.0, False
    descriptor = _open(root)
    try:
        lines, overwritten = records(descriptor)
    finally:
        os.close(descriptor)
    return lines, _now_s(), overwritten


def _open(root: Root, whence: int = os.SEEK_SET) -> int:
    """Open ``/dev/kmsg`` for nonblocking reads, at the oldest record or at ``whence``, and return the descriptor.

    Raises
    ------
    Unreadable
        It cannot be opened.
    """
    try:
        descriptor = os.open(root.path(KMSG), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        if whence != os.SEEK_SET:
            os.lseek(descriptor, 0, whence)
        return descriptor
    except OSError as error:
        raise Unreadable.from_os_error(error, KMSG) from None


def records(descriptor: int) -> tuple[list[Line], bool]:
    """Read all available records; return them and whether some were overwritten before they were read (EPIPE).

    Raises
    ------
    Unreadable
        A read failed.
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
        # A read returns one record, with its properties on lines that start with a space; a file copy has one per line.
        texts = data.decode(errors="replace").split("\n")
        lines += [line for text in texts if (line := _record(text)) is not None]
    return lines, overwritten


def _record(text: str) -> Line | None:
    """Return the time and the message of a record; ``None`` for records that programs wrote to ``/dev/kmsg``.

    A record is ``priority,sequence,microseconds,flags;message``. The facility, ``priority >> 3``, of a program's record
    is never 0 (Documentation/ABI/testing/dev-kmsg).
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
        # A message that is not UTF-8 is a list of bytes (systemd.journal-fields(7)).
        text = bytes(message).decode(errors="replace") if isinstance(message, list) else str(message)
        if entry.get("SYSLOG_FACILITY", "0") != "0":
            return None
        stamp = entry.get("_SOURCE_MONOTONIC_TIMESTAMP") or entry["__MONOTONIC_TIMESTAMP"]
        return int(stamp) / 1e6, text
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _bus_id(text: str) -> str:
    """Return a bus id in the model's format, with function 0 if the text has none."""
    domain, bus, slot = text.lower().split(":")
    return f"{domain[-8:].lstrip('0').zfill(4)}:{bus}:{slot if '.' in slot else slot + '.0'}"


class KernelLogWatch:
    """The events in ``/dev/kmsg`` since this object was created, new ones (:meth:`events`) and all (:attr:`messages`).

    A call without new events costs one system call. If ``/dev/kmsg`` cannot be read, there are no events, and
    :attr:`unread` gives the reason.
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
        """Return the events since the last call, in order, up to :data:`EVENTS_LIMIT` over all calls."""
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
        """The record of all messages up to the last call of :meth:`events`."""
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
        """Close the log."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _end(self, error: Unreadable) -> None:
        self.unread = error.unread
        self.close()


def _now_s() -> float:
    """Return the current time by the kernel log's clock."""
    return round(time.clock_gettime(time.CLOCK_MONOTONIC), 3)
