"""A journal that a disk, a network, a hand or a stranger has damaged: nothing that was measured is lost silently."""

from __future__ import annotations

import json
import random
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from egmctl import saved
from egmctl.errors import ExitCode, UsageError
from egmctl.journal import events
from egmctl.journal import read as reading
from egmctl.journal.events import BEGIN_LINES
from egmctl.journal.read import JournalContent, is_journal
from egmctl.model.codec import ITEMS_LIMIT
from egmctl.model.measurement import MeasurementStatus, RunReport
from egmctl.report.kinds import BENCH
from tests.answers import code_of
from tests.fuzz.documents import original
from tests.in_process import run
from tests.journal.lines import changed, ended, with_state
from tests.memory import most_bytes

ONE_LINE = "1 line damaged: what it held is missing"
TWO_LINES = "2 lines damaged: what they held is missing"


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the journal of a run that came to its end, whose lines are all as short as most are."""
    lines = original("journal", tmp_path_factory.mktemp("original")).splitlines(keepends=True)
    for number in BEGIN_LINES:
        lines[number] = changed(lines[number], lambda entry: entry["result"].update(machines=[]))
    return ended(b"".join(lines))


def read(content: bytes) -> JournalContent:
    """Return what a journal holds, read as every document is."""
    return reading.read_journal(content, "journal x", partial(saved._result, RunReport))


def outcome(content: bytes, whole: JournalContent) -> str:
    """Say what becomes of a damaged journal: the only bad answer is that something is missing and nothing says so."""
    if not is_journal(content):
        return "refused"
    try:
        kept = read(content)
    except UsageError:
        return "refused"
    if kept.report.problems:
        assert code_of(kept.report) is ExitCode.CRASHED
        return "damage is said"
    return "nothing is missing" if kept == whole else "SILENT LOSS"


def measured(lines: Sequence[bytes]) -> set[int]:
    """Return the numbers of the tasks whose outcome is in whole lines of a journal."""
    entries = (json.loads(line) for line in lines if b'"event":"measurement"' in line)
    return {entry["number"] for entry in entries}


def test_500_flipped_bits_lose_nothing_silently(content: bytes) -> None:
    choice, whole = random.Random(1), read(content)  # noqa: S311
    outcomes: Counter[str] = Counter()
    for _ in range(500):
        damaged = bytearray(content)
        damaged[choice.randrange(len(content))] ^= 1 << choice.randrange(8)
        outcomes[outcome(bytes(damaged), whole)] += 1
    assert outcomes.keys() == {"damage is said", "nothing is missing"}


def test_a_flipped_bit_in_any_line_costs_that_line_alone(content: bytes) -> None:
    choice, whole = random.Random(2), read(content)  # noqa: S311
    lines = content.splitlines(keepends=True)
    for number, line in enumerate(lines):
        damaged = bytearray(line)
        damaged[choice.randrange(len(line) - 1)] ^= 1 << choice.randrange(8)
        kept = read(b"".join([*lines[:number], damaged, *lines[number + 1 :]]))
        assert (kept.damage is None) == (number in BEGIN_LINES), "those two hold the same"
        assert len(kept.report.measurements) >= len(whole.report.measurements) - 1


def test_700_cuts_lose_nothing_silently(content: bytes) -> None:
    """Half of them at the end, half in the middle, of one byte, some bytes or any part."""
    choice, whole = random.Random(3), read(content)  # noqa: S311
    outcomes: Counter[str] = Counter()
    for number in range(700):
        place = choice.randrange(len(content))
        length = choice.choice((1, choice.randint(1, 300), choice.randint(1, len(content))))
        rest = b"" if number % 2 else content[place + length :]
        outcomes[outcome(content[:place] + rest, whole)] += 1
    assert outcomes.keys() == {"damage is said", "nothing is missing", "refused"}


def test_cut_at_any_byte_it_is_read_up_to_there(content: bytes) -> None:
    content = with_state(content)
    first = content.index(b"\n", events.STATE_BYTES)
    choice = random.Random(3)  # noqa: S311
    for cut in (first, first + 1, len(content) - 1, *(choice.randrange(len(content)) for _ in range(60))):
        part = content[:cut]
        if cut <= first:
            with pytest.raises(UsageError, match="journal x: the lines that say what was to be measured are damaged"):
                read(part)
            continue
        kept = read(part)
        finished = [m for m in kept.report.measurements if m.status is not MeasurementStatus.CRASHED]
        assert len(finished) == len(measured(part.split(b"\n")[:-1]))
        assert kept.exit_code is None


@pytest.mark.parametrize(
    ("damage", "costs"),
    [
        *((cut, 1) for cut in (b"\xff\x00", b"{", b'{"event":"measurement","number":1,"measu')),
        *((line, 0) for line in (b"[]\n", b"\n", b"{}\n", b"NaN\n")),
    ],
)
def test_a_line_that_was_cut_costs_the_line_that_it_runs_into_and_one_that_says_nothing_costs_none(
    content: bytes, damage: bytes, costs: int
) -> None:
    lines = content.splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if number > 5 and measured([line]))
    kept = read(b"".join([*lines[:place], damage, *lines[place:]]))
    assert len(kept.report.measurements) == len(measured(lines)) - costs
    assert (kept.exit_code, kept.damage) == (0, ONE_LINE if costs else None)


SUMMARY = {"median": 1.0, "min": 1.0, "max": 1.0, "cv": None}


@pytest.mark.parametrize(
    "change",
    [
        lambda entry: entry.update(measurement=1),
        lambda entry: entry.update(event="step", tasks=[{"number": 1.5, "task": {}}]),
        lambda entry: entry.update(event="note", text="\ud800"),
        lambda entry: entry.update(event="note", text=1),
        lambda entry: entry.update(event="of another egmctl"),
        lambda entry: entry.update(event=[]),
        lambda entry: entry.update(line=10**12),
        # What no document of the bench may have either.
        lambda entry: entry["measurement"].update(flows=[]),
        lambda entry: entry["measurement"]["flows_gb_s"].append({}),
        lambda entry: entry["measurement"]["flows_gb_s"].extend([SUMMARY] * 3),
        lambda entry: entry["measurement"]["samples"][0]["flows_gb_s"].extend([1.0] * 3),
        lambda entry: entry.update(number=-1),
        lambda entry: entry.update(number=10**6),
        lambda entry: entry.update(number=True),
    ],
)
def test_a_line_that_fits_nowhere_costs_what_it_holds(content: bytes, change: Callable[[dict[str, Any]], None]) -> None:
    lines = content.splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if number > 5 and measured([line]))
    kept = read(b"".join([*lines[:place], changed(lines[place], change), *lines[place + 1 :]]))
    assert len(kept.report.measurements) == len(measured(lines)) - 1
    assert kept.report.problems == (f"read from a journal: {ONE_LINE}",)
    assert (kept.exit_code, kept.damage) == (0, ONE_LINE)


def test_a_step_that_fits_nowhere_was_not_under_way(content: bytes) -> None:
    lines = with_state(content).splitlines(keepends=True)
    place = max(number for number, line in enumerate(lines) if b'"event":"step"' in line)
    damaged = changed(lines[place], lambda entry: entry["tasks"][0]["task"].update(flows=[]))
    kept = read(b"".join([*lines[:place], damaged, *lines[place + 1 :]]))
    assert (kept.damage, kept.under_way) == (ONE_LINE, ())
    assert len(kept.report.measurements) == len(measured(lines))


@pytest.mark.parametrize("unended", [False, True])
def test_lines_that_are_missing_or_zeros_are_counted(content: bytes, unended: bool) -> None:
    lines = (with_state(content) if unended else content).splitlines(keepends=True)
    for number in range(3, len(lines) - 3):
        for filling in (b"", b"\0" * 9 + b"\n", b"\0" * len(lines[number] + lines[number + 1])):
            kept = read(b"".join([*lines[:number], filling, *lines[number + 2 :]]))
            more = filling.endswith(b"\0")
            assert kept.damage == f"{3 if more else 2} lines damaged: what they held is missing", (number, filling)


def test_a_last_line_that_is_no_part_of_one_is_damage_and_one_that_was_cut_is_none(content: bytes) -> None:
    lines = with_state(content).splitlines(keepends=True)
    assert read(b"".join(lines[:-1]) + lines[-1][:30]).damage is None, "the run died in it"
    assert read(b"".join(lines[:-1]) + b"\0" * 30 + b"\n").damage == ONE_LINE


def test_a_first_line_that_is_damaged_leaves_the_end_unknown(content: bytes) -> None:
    kept = read(b"\0" + content[1:])
    assert (kept.exit_code, kept.under_way) == (None, ())
    assert kept.ending == "ended in an unknown way: the journal's first line is damaged"
    assert len(kept.report.measurements) == len(read(content).report.measurements)


@pytest.mark.parametrize("format", BENCH.formats)
def test_what_is_left_is_shown_in_every_format_with_the_exit_code_of_a_run_that_broke(
    content: bytes, tmp_path: Path, format: str
) -> None:
    lines = content.splitlines(keepends=True)
    path = tmp_path / "x.journal"
    path.write_bytes(b"".join([*lines[:6], b"\0\n", *lines[8:]]))
    shown = run("show", path, "--format", format)
    assert (shown.code, shown.err) == (ExitCode.CRASHED, f"egmctl: {path}: {TWO_LINES}\n")
    assert shown.out
    if format in ("text", "json", "html", "md"):
        assert TWO_LINES in " ".join(shown.out.split())
    path.write_bytes(content)
    assert run("show", path, "--format", format).code == ExitCode.OK


def test_a_list_of_runs_and_a_comparison_say_it_too(content: bytes, tmp_path: Path) -> None:
    whole, damaged = tmp_path / "a.journal", tmp_path / "b.journal"
    whole.write_bytes(content)
    lines = content.splitlines(keepends=True)
    damaged.write_bytes(b"".join([*lines[:6], *lines[8:]]))
    assert f"exit code 0; {TWO_LINES}" in " ".join(run("history", "--journal", tmp_path).out.split())
    assert run("compare", whole, damaged).err == f"egmctl: {damaged}: {TWO_LINES}\n"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda result: result["machines"][0]["gpus"].append(result["machines"][0]["gpus"][0]), "gpus: the bus id"),
        (lambda result: result.update(machines=[7]), "result.machines[0]: expected an object"),
        (lambda result: result.update(notes=["x"] * (ITEMS_LIMIT + 1)), "result.notes: expected at most"),
        (lambda result: result.update(causes=[{}]), "result.causes[0]: the key"),
    ],
)
def test_its_first_line_is_held_against_the_rules_for_every_document(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], sentence: str
) -> None:
    state, first, *rest = ended(original("journal", tmp_path)).splitlines(keepends=True)
    path = tmp_path / "kept.journal"
    path.write_bytes(b"".join([state, changed(first, lambda entry: change(entry["result"])), *rest]))
    shown, listed = run("show", path), run("history", "--journal", tmp_path)
    assert (shown.code, listed.code) == (2, 0)
    assert sentence in shown.err
    assert sentence in listed.err


@pytest.mark.parametrize("piece", [b"{},", b"0,", b"\n", b"[" * 3, b"x" * 9])
def test_what_calls_itself_a_journal_costs_little(piece: bytes) -> None:
    head = b'{"line":1,"event":"begin","schema":"egmctl.journal/1","x":['
    body = head + piece * ((events.FILE_LIMIT - 100) // len(piece)) + b"0]"
    content = body + b',"crc32":"%08x"}\n' % zlib.crc32(body)
    assert is_journal(content)

    def refused() -> None:
        with pytest.raises(UsageError, match=r"journal x(: the lines that say| is larger| has more values)"):
            read(content)

    assert most_bytes(refused) < 150 << 20


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the journal of another run of the same bench, with other numbers."""
    lines = original("journal", tmp_path_factory.mktemp("other")).splitlines(keepends=True)
    for number, line in enumerate(lines):
        if b'"event":"measurement"' in line:
            lines[number] = changed(line, lambda entry: entry["measurement"].update(wall_s=77.0))
    return ended(b"".join(lines))


def test_200_mixtures_of_two_runs_lose_nothing_silently(content: bytes, other: bytes) -> None:
    """A file system that gives a block to two files, or a hand that puts two journals together."""
    choice = random.Random(3)  # noqa: S311
    whole = {journal: read(journal) for journal in (content, other)}
    first, second = content.splitlines(keepends=True), other.splitlines(keepends=True)
    outcomes: Counter[str] = Counter()
    for _ in range(200):
        if choice.random() < 0.5:
            place, end = choice.randrange(len(first)), choice.randrange(len(second))
            mixture = [*first[:place], *second[end:]]
        else:
            mixture = [choice.choice(pair) for pair in zip(first, second, strict=True)]
        text = b"".join(mixture)
        begins_as_second = b'"event":"begin"' in text and reading._run_of(text) == reading._run_of(other)
        outcomes[outcome(text, whole[other if begins_as_second else content])] += 1
    assert outcomes["SILENT LOSS"] == 0
    assert outcomes["damage is said"] > 100


def test_lines_of_another_run_are_counted_and_not_shown(content: bytes, other: bytes) -> None:
    lines, strange = content.splitlines(keepends=True), other.splitlines(keepends=True)
    mixed = read(b"".join([*lines, *strange[-2:]]))
    assert mixed.damage == "2 lines of another run: lines of this run may be missing"
    assert mixed.report.measurements == read(content).report.measurements
    replaced = read(b"".join([*lines[:5], strange[5], *lines[6:]]))
    assert replaced.damage == f"{ONE_LINE}; 1 line of another run: lines of this run may be missing"


def test_a_journal_without_ids_is_read_as_before(content: bytes) -> None:
    lines = content.splitlines(keepends=True)
    earlier = [changed(line, lambda entry: entry.pop("run")) for line in lines[1:]]
    without = read(with_state(lines[0] + b"".join(earlier), exit_code=0, lines=len(lines)))
    assert without == read(content)
