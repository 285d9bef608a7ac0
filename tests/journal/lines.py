"""Lines of a journal with any content and a checksum that fits: what a test or a stranger may write into one."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

from egmctl import saved
from egmctl.journal import events
from egmctl.journal import read as reading
from egmctl.journal.events import RunState
from egmctl.journal.read import JournalContent
from egmctl.model.measurement import RunReport
from tests.bench.four import OPTIONS


def stamped(entry: dict[str, Any]) -> bytes:
    """Return the line of a journal that holds this, with its number and event among it."""
    content = {key: value for key, value in entry.items() if key not in ("line", "event", "crc32")}
    return events.journal_line(entry["line"], entry["event"], content)


def changed(line: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """Return a line with its content changed, and a checksum of that."""
    entry = json.loads(line)
    change(entry)
    return stamped(entry)


def with_state(content: bytes, **state: Any) -> bytes:
    """Return a journal whose first line says this."""
    _, begin, *_ = content.splitlines(keepends=True)
    run = (events.entry(begin) or {}).get("run", "")
    return events.state_line(RunState(run=run, **state)) + content[events.STATE_BYTES :]


def ended(content: bytes) -> bytes:
    """Return a journal as it is after its run has ended with exit code 0."""
    return with_state(content, exit_code=0, lines=content.count(b"\n"))


def read(content: bytes) -> JournalContent:
    """Return what a journal holds, read as every document is."""
    return reading.read_journal(content, "journal x", partial(saved._result, RunReport))


BENCH = ("bench", "--numa", "1", "--gpus", "0-1", "--size", "1M", "--samples", "2", "--copies", "2", *OPTIONS)
UNDER_WAY = "the command ended while this was measured"
