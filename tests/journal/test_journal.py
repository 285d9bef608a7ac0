"""A bench that is killed costs one step: what it had measured is on disk, and what it was at is named."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import random
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from egmctl import saved
from egmctl.cli import journal as commands
from egmctl.cli.output import OutputOptions, Outputs
from egmctl.errors import UsageError
from egmctl.fleet.folder import Folder
from egmctl.journal import events, write
from egmctl.journal import read as reading
from egmctl.journal.events import what
from egmctl.journal.read import Kept, earlier, is_journal
from egmctl.model.codec import ITEMS_LIMIT
from egmctl.model.measurement import RunReport, Status
from egmctl.saved import load_journal
from tests.bench.four import OPTIONS
from tests.cli.test_private import check, planted
from tests.conftest import ROOT, RunEgmctl, command_environment
from tests.fake.node import FakeNode
from tests.fake.plugin import MakeFakeNode
from tests.fuzz.documents import original
from tests.journal.lines import changed, ended, with_state
from tests.memory import most_bytes

BENCH = ("bench", "--numa", "1", "--gpus", "0-1", "--size", "1M", "--samples", "2", "--copies", "2", *OPTIONS)
UNDER_WAY = "the command ended while this was measured"

KILLS = int(os.environ.get("EGMCTL_TEST_KILLS", "3"))
"""The moments at which a run is killed; 100 were run once."""


@pytest.fixture
def node(fake_node: MakeFakeNode) -> FakeNode:
    return fake_node("gb200-tray")


@pytest.fixture
def env(node: FakeNode, tmp_path: Path) -> dict[str, str | None]:
    return {**node.environment(), "EGMCTL_NO_JOURNAL": None, "XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state/egmctl/journal"


def read(content: bytes, source: str) -> Kept:
    """Return what a journal holds, read as every document is."""
    return reading.read(content, source, partial(saved._result, RunReport))


def killed(env: dict[str, str | None], after_s: float) -> list[str]:
    """Run a bench, kill it so long after its first line in the journal, and return what it had told by then."""
    read_end, write_end = os.pipe()
    command = [sys.executable, "-m", "tests.journal.killed", str(write_end), *BENCH, "-q"]
    whole = command_environment(env)
    null = subprocess.DEVNULL
    with subprocess.Popen(command, cwd=ROOT, env=whole, pass_fds=[write_end], stdout=null, stderr=null) as process:
        os.close(write_end)
        first = os.read(read_end, 1)
        time.sleep(after_s)
        process.kill()
    with open(read_end, "rb") as file:
        return (first + file.read()).decode().splitlines()


@pytest.mark.long
@pytest.mark.timeout(60 + 20 * KILLS)
def test_killed_at_any_moment_each_journal_has_what_was_measured_and_names_the_step(
    env: dict[str, str | None], folder: Path
) -> None:
    choice = random.Random(7)  # noqa: S311
    for number in range(KILLS):
        said = killed(env, choice.random() * 1.5)
        path = earlier(folder)[-1]
        assert len(earlier(folder)) == min(number + 1, write.FILES_LIMIT)
        kept = load_journal(path)
        measured = {int(line.split()[1]) for line in said if line.startswith("measurement ")}
        finished = [m for m in kept.report.measurements if m.reason != UNDER_WAY]
        assert len(finished) >= len(measured), "nothing that was measured is lost"
        if said[-1] == "end":
            assert (kept.exit_code, kept.under_way) == (0, ())
            continue
        assert kept.exit_code is None
        steps = [line for line in said if line.startswith("step ")]
        if steps and not kept.under_way:
            # Killed between its last measurement and the next step.
            assert said[-1].startswith("measurement") or len(finished) > len(measured)
        for task in kept.under_way:
            assert what(task) in kept.ending or "more at once" in kept.ending
        assert kept.ending in kept.report.problems[-1]
        assert len(kept.report.measurements) == len(finished) + len(kept.under_way)


@pytest.mark.long
def test_what_was_under_way_is_named(egmctl: RunEgmctl, env: dict[str, str | None], folder: Path) -> None:
    """A copy that hangs stands for a node that dies while it is at work."""
    lines = whole_journal(egmctl, env, folder).splitlines(keepends=True)
    steps = [number for number, line in enumerate(lines) if b'"event":"step"' in line]
    part = with_state(b"".join(lines[: steps[3] + 1]))
    kept = read(part, "journal x")
    (task,) = kept.under_way
    assert kept.ending == f"ended while measuring {task.path} by copy engine ({task.case})"
    assert kept.report.measurements[-1].status is Status.CRASHED
    path = folder / "cut.journal"
    path.write_bytes(part)
    shown = egmctl("show", path)
    assert shown.code == 0
    assert f"the run ended while measuring {task.path}" in " ".join(shown.out.split())
    assert json.loads(egmctl("show", path, "--json").out)["schema"].startswith("egmctl.bench/")


def whole_journal(egmctl: RunEgmctl, env: dict[str, str | None], folder: Path) -> bytes:
    """Return the journal of a run that came to its end."""
    done = egmctl(*BENCH, "--json", "-q", env=env)
    assert done.code == 0, done.err
    (path,) = earlier(folder)
    report, ended = saved.load(path).result, json.loads(done.out)["result"]
    assert isinstance(report, RunReport)
    assert len(report.measurements) == len(ended["measurements"])
    assert path.stat().st_mode & 0o777 == 0o600
    return path.read_bytes()


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    """Return the journal of a run that came to its end."""
    return ended(original("journal", tmp_path))


@pytest.mark.long
def test_cut_at_any_byte_it_is_read_up_to_there(content: bytes) -> None:
    assert is_journal(content)
    content = with_state(content)
    first = content.index(b"\n", events.STATE_BYTES)
    choice = random.Random(3)  # noqa: S311
    cuts = {first, first + 1, len(content) - 1, *(choice.randrange(len(content)) for _ in range(60))}
    for cut in sorted(cuts):
        part = content[:cut]
        if cut <= first:
            with pytest.raises(UsageError, match="journal x: the lines that say what was to be measured are damaged"):
                read(part, "journal x")
            continue
        kept = read(part, "journal x")
        lines = part.split(b"\n")[:-1]
        finished = [m for m in kept.report.measurements if m.status is not Status.CRASHED]
        assert len(finished) == len(measured(lines))
        assert kept.exit_code is None


ONE_LINE = "1 line damaged: what it held is missing"


@pytest.mark.parametrize("damage", [b"\xff\x00", b"{", b'{"event":"measurement","number":1,"measu'])
def test_a_line_that_was_cut_costs_the_line_that_it_runs_into(content: bytes, damage: bytes) -> None:
    lines = content.splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if number > 5 and measured([line]))
    kept = read(b"".join([*lines[:place], damage, *lines[place:]]), "journal x")
    assert len(kept.report.measurements) == len(measured(lines)) - 1
    assert (kept.exit_code, kept.damage) == (0, ONE_LINE)


@pytest.mark.parametrize("damage", [b"[]\n", b"\n", b"{}\n", b"NaN\n"])
def test_a_line_that_says_nothing_costs_nothing(content: bytes, damage: bytes) -> None:
    lines = content.splitlines(keepends=True)
    kept = read(b"".join([*lines[:6], damage, *lines[6:]]), "journal x")
    assert (len(kept.report.measurements), kept.report.problems) == (len(measured(lines)), ())


SUMMARY = {"median": 1.0, "min": 1.0, "max": 1.0, "cv": None}


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: changed(line, lambda entry: entry.update(measurement=1)),
        lambda line: changed(line, lambda entry: entry.update(event="step", tasks=[{"number": 1.5, "task": {}}])),
        lambda line: changed(line, lambda entry: entry.update(event="note", text="\ud800")),
        lambda line: changed(line, lambda entry: entry.update(event="note", text=1)),
        lambda line: changed(line, lambda entry: entry.update(event="of another egmctl")),
        lambda line: changed(line, lambda entry: entry.update(event=[])),
        lambda line: changed(line, lambda entry: entry.update(line=10**12)),
        lambda line: line.replace(b"0", b"1"),
        # What no document of the bench may have either.
        lambda line: changed(line, lambda entry: entry["measurement"].update(flows=[])),
        lambda line: changed(line, lambda entry: entry["measurement"]["flows_gb_s"].append({})),
        lambda line: changed(line, lambda entry: entry["measurement"]["flows_gb_s"].extend([SUMMARY] * 3)),
        lambda line: changed(line, lambda entry: entry["measurement"]["samples"][0]["flows_gb_s"].extend([1.0] * 3)),
        lambda line: changed(line, lambda entry: entry.update(number=-1)),
        lambda line: changed(line, lambda entry: entry.update(number=10**6)),
        lambda line: changed(line, lambda entry: entry.update(number=True)),
    ],
)
def test_a_line_that_fits_nowhere_costs_what_it_holds(content: bytes, damage: Callable[[bytes], bytes]) -> None:
    lines = content.splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if number > 5 and measured([line]))
    kept = read(b"".join([*lines[:place], damage(lines[place]), *lines[place + 1 :]]), "journal x")
    assert len(kept.report.measurements) == len(measured(lines)) - 1
    assert kept.damage == ONE_LINE
    assert kept.report.problems == (f"read from a journal: {ONE_LINE}",)
    assert kept.exit_code == 0


def test_a_step_that_fits_nowhere_was_not_under_way(content: bytes) -> None:
    lines = with_state(content).splitlines(keepends=True)
    place = max(number for number, line in enumerate(lines) if b'"event":"step"' in line)
    damaged = changed(lines[place], lambda entry: entry["tasks"][0]["task"].update(flows=[]))
    kept = read(b"".join([*lines[:place], damaged, *lines[place + 1 :]]), "journal x")
    assert kept.damage == ONE_LINE
    assert kept.under_way == ()
    assert len(kept.report.measurements) == len(measured(lines))


def measured(lines: Sequence[bytes]) -> set[int]:
    """Return the numbers of the tasks whose outcome is in whole lines of a journal."""
    entries = (json.loads(line) for line in lines if b'"event":"measurement"' in line)
    return {entry["number"] for entry in entries}


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
    egmctl: RunEgmctl, tmp_path: Path, content: bytes, change: Callable[[dict[str, Any]], None], sentence: str
) -> None:
    state, first, *rest = content.splitlines(keepends=True)
    path = tmp_path / "kept.journal"
    path.write_bytes(b"".join([state, changed(first, lambda entry: change(entry["result"])), *rest]))
    shown, listed = egmctl("show", path), egmctl("history", "--journal", tmp_path)
    assert (shown.code, listed.code) == (2, 0)
    assert sentence in shown.err
    assert sentence in listed.err


@pytest.mark.long
def test_the_next_bench_mentions_it_once(egmctl: RunEgmctl, env: dict[str, str | None], folder: Path) -> None:
    content = whole_journal(egmctl, env, folder)
    (path,) = earlier(folder)
    path.write_bytes(with_state(content[:-20_000]))
    ending = load_journal(path).ending
    sentence = f"egmctl: an earlier bench {ending}; 'egmctl show {path}' shows its results\n"
    assert egmctl(*BENCH, env=env).err == sentence
    assert egmctl(*BENCH, env=env).err == ""


def test_there_is_something_to_tell_of_a_run_that_did_not_end_once(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "kept.journal"
    path.write_bytes(content)
    assert not reading.is_unmentioned(path)
    path.write_bytes(with_state(content))
    assert reading.is_unmentioned(path)
    write.mention(path)
    assert not reading.is_unmentioned(path)
    assert "the run ended" in load_journal(path).report.problems[-1]
    assert not reading.is_unmentioned(tmp_path / "not there")


@pytest.mark.long
def test_where_it_is_kept(egmctl: RunEgmctl, env: dict[str, str | None], folder: Path, tmp_path: Path) -> None:
    assert egmctl(*BENCH, "-q", "--no-journal", env=env).code == 0
    assert egmctl(*BENCH, "-q", env=env | {"EGMCTL_NO_JOURNAL": "1"}).code == 0
    assert not folder.exists()
    assert egmctl(*BENCH, "-q", "--journal", tmp_path / "mine", env=env).code == 0
    assert len(earlier(tmp_path / "mine")) == 1
    assert not folder.exists()
    (tmp_path / "results").mkdir()
    nowhere = env | {"XDG_STATE_HOME": "/dev/null"}
    assert egmctl(*BENCH, "-q", "-o", tmp_path / "results/x.json", env=nowhere).code == 0
    assert len(earlier(tmp_path / "results")) == 1, "beside the result"
    done = egmctl(*BENCH, env=nowhere)
    assert done.code == 0
    assert "egmctl: the run's journal ends early: /dev/null/egmctl/journal: Not a directory\n" in done.err
    wrong = egmctl("bench", "--journal", tmp_path, "--no-journal", env=env)
    assert (wrong.code, wrong.err) == (2, "egmctl: --no-journal and --journal exclude each other; give one of them\n")


@pytest.mark.long
def test_it_holds_nothing_private(egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path: Path) -> None:
    env = {**fake_node(planted()).environment(), "EGMCTL_NO_JOURNAL": None}
    egmctl(*BENCH, "-q", "--journal", tmp_path / "kept", "--allow-busy", env=env)
    (path,) = earlier(tmp_path / "kept")
    check(path.read_text(), what="journal")


@pytest.fixture
def many(tmp_path: Path) -> Path:
    for number in range(write.FILES_LIMIT + 5):
        (tmp_path / f"bench-{number + 1:06}-20261122T0000{59 - number % 60:02}Z.journal").write_text("x" * 100)
    return tmp_path


def test_the_oldest_go_and_those_at_work_stay(many: Path) -> None:
    """Oldest by their number, whatever the clock said."""
    first = write.journals(many)[0]
    with first.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write.prune(many)
    numbers = [int(path.name.split("-")[1]) for path in write.journals(many)]
    assert numbers == [1, *range(6, write.FILES_LIMIT + 6)]


def test_a_clock_that_is_set_back_makes_no_run_the_oldest(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(write.FILES_LIMIT):
        (tmp_path / f"bench-{number + 1:06}-20991231T2359{number:02}Z.journal").write_bytes(content)
    report = read(content, "it").report
    for _ in range(2):
        journal = write.Journal([tmp_path], lambda part: part)
        journal(events.Begin(report=dataclasses.replace(report, measurements=(), problems=()), steps=3))
        journal.close()
        assert journal.path is not None
        assert earlier(tmp_path)[-1] == journal.path, "it is the latest one, though its time is not"
        said: list[str] = []
        monkeypatch.setattr(commands, "say", said.append)
        commands.open_journal(commands.JournalOptions(journal=tmp_path), Outputs(targets=(), options=OutputOptions()))
        assert said == [f"an earlier bench ended between two steps; 'egmctl show {journal.path}' shows its results"]


def test_a_fifo_in_the_place_of_a_journal_keeps_nobody_waiting(tmp_path: Path) -> None:
    path = tmp_path / "bench-000001-20261122T000000Z.journal"
    os.mkfifo(path)
    began = time.monotonic()
    assert not write.at_work(path)
    assert not reading.is_unmentioned(path)
    assert not reading.ended(path)
    write.mention(path)
    assert earlier(tmp_path) == []
    assert time.monotonic() - began < 5


@pytest.mark.long
def test_a_full_one_ends_and_the_run_goes_on(env: dict[str, str | None], folder: Path, tmp_path: Path) -> None:
    room = 12_000
    (tmp_path / "small.py").write_text(
        "import sys; from egmctl.journal import write\n"
        "class Small(write.Journal):\n"
        "    def _begin(self, *arguments):\n"
        "        super()._begin(*arguments)\n"
        f"        write.FILE_LIMIT = self._size + {room}\n"
        "write.Journal = Small\n"
        "from egmctl.cli.app import run; sys.exit(run(sys.argv[1:]))\n"
    )
    command = [sys.executable, str(tmp_path / "small.py"), *BENCH, "--json"]
    done = subprocess.run(command, cwd=ROOT, env=command_environment(env), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert "the run's journal ends early: " in done.stderr
    (path,) = earlier(folder)
    begins = path.read_bytes().splitlines(keepends=True)[:3]
    assert path.stat().st_size <= sum(map(len, begins)) + room
    kept = load_journal(path)
    cut = "the journal was cut off (it is full at 0 MiB): what was measured afterwards is unknown"
    assert kept.report.notes[-1] == cut
    assert (kept.exit_code, kept.damage, kept.report.problems) == (0, None, ())
    assert 0 < len(kept.report.measurements) < len(json.loads(done.stdout)["result"]["measurements"])


@pytest.mark.long
def test_earlier_runs_are_listed_and_compared_without_their_names(
    egmctl: RunEgmctl, env: dict[str, str | None], folder: Path
) -> None:
    assert egmctl("history", env=env).out == "No bench run of this node is kept; 'egmctl bench' keeps one.\n"
    none = egmctl("compare", "last", env=env)
    assert (none.code, none.err) == (
        2,
        "egmctl: last~1: there is no such run: 0 finished bench runs of this node are kept (egmctl history)\n",
    )
    for _ in range(2):
        egmctl(*BENCH, "-q", env=env)
        time.sleep(1.1)
    first, second = earlier(folder)
    compared = egmctl("compare", "last", "--tolerance", "99", env=env).out
    assert f"{first.stem} -> {second.stem}" in compared
    listed = json.loads(egmctl("history", "--json", env=env).out)["result"]["runs"]
    assert [run["file"] for run in listed] == [str(first), str(second)]
    assert all(run["ok"] == run["measurements"] > 0 for run in listed)
    assert str(second) in egmctl("history", env=env).out
    assert egmctl("compare", first, "last", "--tolerance", "99", env=env).out == compared


@pytest.mark.parametrize(
    ("name", "piece"),
    [
        ("objects", b"{},"),
        ("numbers", b"0,"),
        pytest.param("lines", b"\n", marks=pytest.mark.long),
        ("lists", b"[" * 3),
        ("text", b"x" * 9),
    ],
)
def test_what_calls_itself_a_journal_costs_little(name: str, piece: bytes) -> None:
    head = b'{"line":1,"event":"begin","schema":"egmctl.journal/1","x":['
    body = head + piece * ((write.FILE_LIMIT - 100) // len(piece)) + b"0]"
    content = body + b',"crc32":"%08x"}\n' % zlib.crc32(body)
    assert is_journal(content), name

    def refused() -> None:
        with pytest.raises(UsageError, match=r"journal x(: the lines that say| is larger than any journal)"):
            read(content, "journal x")

    assert most_bytes(refused) < 150 << 20


def test_journals_of_others_are_never_removed(tmp_path: Path) -> None:
    for number in range(write.FILES_LIMIT + 9):
        (tmp_path / f"system@{number:03}.journal").write_text("systemd's")
    (tmp_path / "bench-mine.journal").write_text("a copy that somebody keeps")
    write.prune(tmp_path)
    assert len(list(tmp_path.iterdir())) == write.FILES_LIMIT + 10


def test_that_somebody_was_told_is_written_through_no_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    (tmp_path / "x.journal").symlink_to(victim)
    write.mention(tmp_path / "x.journal")
    assert victim.read_text() == "untouched"


def test_on_a_file_system_without_locks_it_is_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    journal = write.Journal([tmp_path], str)
    journal._make()
    assert journal.failure is None
    journal.close()
    assert len(list(tmp_path.glob("bench-*.journal"))) == 1
    with Folder(tmp_path).alone():
        pass
