"""Finds errors of CUDA and NVML and Xids in any text: CUDA's own log, and messages of NCCL, UCX, PyTorch and others.

The text is untrusted and may be large: it is read line by line; of each kind of failure, its first line is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from typing import BinaryIO

from egmctl.driver.cuda import LOG_LINE, LOG_SHOWN, RETURNING
from egmctl.driver.signatures import signatures
from egmctl.facts.kernel_log import event
from egmctl.model.explanation import ErrorLog, Failure, Library
from egmctl.model.kernel_log import EventKind

LINE_LIMIT = 1 << 14
"""The number of bytes of a line that are looked at together; the rest counts as further lines."""
_KINDS = 50
"""The number of kinds of failures that are kept."""
_THREADS = 64
"""The number of threads whose last message of CUDA's log is kept."""

_CANDIDATE = re.compile(rb"cuda|cu[A-Z]|CUDA|Cuda|nvml|NVML|NVRM: Xid")
_FAILS = re.compile(rb"error|Error|ERROR|fail|Fail|Reason|ret:|hit|out of memory|NVRM: Xid|\]\[CUDA\]\[")
_NAME = re.compile(r"\b(?:CUDA_ERROR_|cudaError|NVML_ERROR_)\w+", re.ASCII)
_CALL = re.compile(r"\b(?:cu|cuda|nvml)[A-Z]\w*(?<!_t)\b", re.ASCII)
_NUMBER = re.compile(
    # The lengths are bounded, so that a hostile line takes no quadratic time.
    r"(?:(?i:cuda[\w ]{0,40}(?:error|failure)|\berror)[ :=]{0,3}\(?(?:code[ =])?|code=|\b\w{3,60} failed[: ]{1,3})"
    r"([0-9]{1,3})\b(?! ?[%.])",
    re.ASCII,
)


def read_failures(*streams: BinaryIO) -> ErrorLog:
    """Return the failures in a text, each kind once, in the order of their first lines.

    An error without its call is the same kind as one of that number with a call: frameworks repeat the driver.

    Parameters
    ----------
    streams
        The parts of the text, which are read to their ends.

    Raises
    ------
    OSError
        A stream cannot be read.
    """
    kinds: dict[tuple[Library, str | None, int | None], Failure] = {}
    messages: dict[str, str] = {}
    number = left_out = 0
    lines = (line for stream in streams for line in iter(partial(stream.readline, LINE_LIMIT), b""))
    for number, part in enumerate(lines, 1):
        if not _CANDIDATE.search(part) or not _FAILS.search(part):
            continue
        line = part.decode("utf-8", "replace").strip()
        if (failure := _failure(line, messages)) is None:
            continue
        call = None if failure.call is None else signatures().driver_call(failure.call)
        key = (failure.library, call, failure.number)
        if (first := kinds.get(key)) is not None:
            kinds[key] = replace(first, count=first.count + 1, log=first.log or failure.log)
        elif len(kinds) < _KINDS:
            kinds[key] = replace(failure, line=line[:LOG_SHOWN], line_number=number)
        else:
            left_out += 1
    with_call = {(library, code) for library, call, code in kinds if call is not None}
    kept = (each for (library, call, code), each in kinds.items() if call or (library, code) not in with_call)
    return ErrorLog(failures=tuple(kept), lines=number, left_out=left_out)


def _failure(line: str, messages: dict[str, str]) -> Failure | None:
    """Return the failure that a line states, or ``None``.

    Parameters
    ----------
    messages
        The last message of CUDA's log by thread, which this function keeps; the line with the call comes after it.
    """
    known = signatures()
    if (log := LOG_LINE.search(line)) is not None:
        thread, call, message = log.groups()
        if (returning := RETURNING.match(message)) is None and call is None:
            messages[thread] = message[:LOG_SHOWN]
            if len(messages) > _THREADS:
                del messages[next(iter(messages))]
            return None
        reason = messages.pop(thread, "") if returning else message[:LOG_SHOWN]
        call = returning[2] if returning else call
        if known.driver_call(call) in known.noise:
            return None
        return Failure(library=Library.CUDA, number=int(returning[1]) if returning else None, call=call, log=reason)
    start = line.find("NVRM: Xid")
    xid = None if start < 0 else event(0.0, line[start:])
    if xid is not None and xid.kind is EventKind.XID:
        return Failure(library=Library.XID, number=xid.number)
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
    if (words := _words(library).search(line)) is not None:
        names = signatures().names.items()
        yield next(key for key, name in names if key[0] is library and name.words.lower() == words[0].lower())


@cache
def _words(library: Library) -> re.Pattern[str]:
    """Return the pattern of the words of all errors of a library; longer ones first, as some begin like others.

    CUDA's are told from the system's, of which some differ by case alone ("Invalid argument").
    """
    words = {name.words for (of_library, _), name in signatures().names.items() if of_library is library and name.words}
    pattern = "|".join(map(re.escape, sorted(words, key=len, reverse=True)))
    return re.compile(pattern, re.IGNORECASE if library is Library.NVML else 0)
