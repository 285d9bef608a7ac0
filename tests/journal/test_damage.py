"""A journal that a disk, a network or a hand has damaged: nothing that was measured is lost silently."""

from __future__ import annotations

import random
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from egmctl import saved
from egmctl.errors import ExitCode, UsageError
from egmctl.journal import read as reading
from egmctl.journal.events import BEGIN_LINES
from egmctl.journal.read import Kept, is_journal
from egmctl.model.measurement import RunReport
from egmctl.report.kinds import BENCH
from tests.fuzz.documents import original
from tests.in_process import run
from tests.journal.lines import ended, with_state


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the journal of a run that came to its end."""
    return ended(original("journal", tmp_path_factory.mktemp("original")))


def read(content: bytes) -> Kept:
    return reading.read(content, "journal x", partial(saved._result, RunReport))


def outcome(content: bytes, whole: Kept) -> str:
    """Say what becomes of a damaged journal: the only bad answer is that something is missing and nothing says so."""
    if not is_journal(content):
        return "refused"
    try:
        kept = read(content)
    except UsageError:
        return "refused"
    if kept.report.problems:
        assert kept.report.exit_code is ExitCode.CRASHED
        return "damage is said"
    return "nothing is missing" if kept == whole else "SILENT LOSS"


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
    assert read(b"".join(lines[:-1]) + b"\0" * 30 + b"\n").damage == "1 line damaged: what it held is missing"


@pytest.mark.parametrize("format", BENCH.formats)
def test_what_is_left_is_shown_in_every_format_with_the_exit_code_of_a_run_that_broke(
    content: bytes, tmp_path: Path, format: str
) -> None:
    lines = content.splitlines(keepends=True)
    path = tmp_path / "x.journal"
    path.write_bytes(b"".join([*lines[:6], b"\0\n", *lines[8:]]))
    shown = run("show", path, "--format", format)
    damage = "2 lines damaged: what they held is missing"
    assert (shown.code, shown.err) == (ExitCode.CRASHED, f"egmctl: {path}: {damage}\n")
    assert shown.out
    if format in ("text", "json", "html", "md"):
        assert damage in " ".join(shown.out.split())
    path.write_bytes(content)
    assert run("show", path, "--format", format).code == ExitCode.OK


def test_a_list_of_runs_and_a_comparison_say_it_too(content: bytes, tmp_path: Path) -> None:
    whole, damaged = tmp_path / "a.journal", tmp_path / "b.journal"
    whole.write_bytes(content)
    lines = content.splitlines(keepends=True)
    damaged.write_bytes(b"".join([*lines[:6], *lines[8:]]))
    damage = "2 lines damaged: what they held is missing"
    assert f"exit code 0; {damage}" in " ".join(run("history", "--journal", tmp_path).out.split())
    assert run("compare", whole, damaged).err == f"egmctl: {damaged}: {damage}\n"


def test_a_first_line_that_is_damaged_leaves_the_end_unknown(content: bytes) -> None:
    kept = read(b"\0" + content[1:])
    assert (kept.exit_code, kept.under_way) == (None, ())
    assert kept.ending == "ended in an unknown way: the journal's first line is damaged"
    assert len(kept.report.measurements) == len(read(content).report.measurements)
