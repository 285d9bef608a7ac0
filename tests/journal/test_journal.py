"""What a journal keeps of a bench that ended early, and what commands say of it; gpu/test_journal.py kills one."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from egmctl.cli import progress
from egmctl.cli.output import OutputOptions, Outputs
from egmctl.fleet.folder import Folder
from egmctl.journal import events
from egmctl.journal.events import earlier
from egmctl.model.measurement import MeasurementStatus
from egmctl.saved import load_journal
from tests.cli.private import check, planted
from tests.conftest import ROOT, RunEgmctl, command_environment
from tests.fake.node import FakeNode
from tests.fake.plugin import MakeFakeNode
from tests.journal.lines import BENCH, read, with_state


@pytest.fixture
def node(fake_node: MakeFakeNode) -> FakeNode:
    return fake_node("gb200-tray")


@pytest.fixture
def env(node: FakeNode, tmp_path: Path) -> dict[str, str | None]:
    return {**node.environment(), "EGMCTL_NO_JOURNAL": None, "XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "state/egmctl/journal"


@pytest.fixture(scope="module")
def whole(egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the journal of a run that came to its end, with all that the run measured."""
    folder = tmp_path_factory.mktemp("whole")
    env = {**fake_node("gb200-tray").environment(), "EGMCTL_NO_JOURNAL": None}
    done = egmctl(*BENCH, "--json", "-q", "--journal", folder, env=env)
    assert done.code == 0, done.err
    (path,) = earlier(folder)
    assert len(load_journal(path).report.measurements) == len(json.loads(done.out)["result"]["measurements"])
    assert path.stat().st_mode & 0o777 == 0o600
    return path


@pytest.mark.long
def test_what_was_under_way_is_named(egmctl: RunEgmctl, whole: Path, tmp_path: Path) -> None:
    lines = whole.read_bytes().splitlines(keepends=True)
    steps = [number for number, line in enumerate(lines) if b'"event":"step"' in line]
    path = tmp_path / "cut.journal"
    path.write_bytes(with_state(b"".join(lines[: steps[3] + 1])))
    kept = load_journal(path)
    (task,) = kept.under_way
    assert kept.ending == f"ended while measuring {task.path} by copy engine ({task.case})"
    assert kept.report.measurements[-1].status is MeasurementStatus.CRASHED
    shown = egmctl("show", path)
    assert shown.code == 0
    assert f"the run ended while measuring {task.path}" in " ".join(shown.out.split())
    assert json.loads(egmctl("show", path, "--json").out)["schema"].startswith("egmctl.bench/")


@pytest.mark.long
def test_the_next_bench_mentions_it_once(
    egmctl: RunEgmctl, env: dict[str, str | None], folder: Path, whole: Path
) -> None:
    folder.mkdir(parents=True)
    path = folder / whole.name
    path.write_bytes(with_state(whole.read_bytes()[:-20_000]))
    ending = load_journal(path).ending
    sentence = f"egmctl: an earlier bench {ending}; 'egmctl show {path}' shows its results\n"
    assert egmctl(*BENCH, env=env).err == sentence
    assert egmctl(*BENCH, env=env).err == ""


def test_there_is_something_to_tell_of_a_run_that_did_not_end_once(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "kept.journal"
    path.write_bytes(content)
    assert not events.is_unmentioned(path)
    path.write_bytes(with_state(content))
    assert events.is_unmentioned(path)
    events.mention(path)
    assert not events.is_unmentioned(path)
    assert "the run ended" in load_journal(path).report.problems[-1]
    assert not events.is_unmentioned(tmp_path / "not there")


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
    assert "egmctl: the run has no journal: /dev/null/egmctl/journal: Not a directory\n" in done.err
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
    for number in range(events.FILES_LIMIT + 5):
        (tmp_path / f"bench-{number + 1:06}-20261122T0000{59 - number % 60:02}Z.journal").write_text("x" * 100)
    return tmp_path


def test_the_oldest_go_and_those_at_work_stay(many: Path) -> None:
    """Oldest by their number, whatever the clock said."""
    first = events.journals(many)[0]
    with first.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        events.prune(many)
    numbers = [int(path.name.split("-")[1]) for path in events.journals(many)]
    assert numbers == [1, *range(6, events.FILES_LIMIT + 6)]


def test_a_clock_that_is_set_back_makes_no_run_the_oldest(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(events.FILES_LIMIT):
        (tmp_path / f"bench-{number + 1:06}-20991231T2359{number:02}Z.journal").write_bytes(content)
    report = read(content).report
    for _ in range(2):
        journal = events.Journal([tmp_path], lambda part: part)
        journal(events.Begin(report=dataclasses.replace(report, measurements=(), problems=()), steps=3))
        journal.close()
        assert journal.path is not None
        assert earlier(tmp_path)[-1] == journal.path, "it is the latest one, though its time is not"
        said: list[str] = []
        monkeypatch.setattr(progress, "say", said.append)
        progress.open_journal(progress.JournalOptions(journal=tmp_path), Outputs(targets=(), options=OutputOptions()))
        assert said == [f"an earlier bench ended between two steps; 'egmctl show {journal.path}' shows its results"]


def test_a_fifo_in_the_place_of_a_journal_keeps_nobody_waiting(tmp_path: Path) -> None:
    path = tmp_path / "bench-000001-20261122T000000Z.journal"
    os.mkfifo(path)
    assert not events.at_work(path)
    assert not events.is_unmentioned(path)
    assert not events.ended(path)
    events.mention(path)
    assert earlier(tmp_path) == []


@pytest.mark.long
def test_a_full_one_ends_and_the_run_goes_on(env: dict[str, str | None], folder: Path, tmp_path: Path) -> None:
    room = 12_000
    (tmp_path / "small.py").write_text(
        "import sys; from egmctl.journal import events\n"
        "class Small(events.Journal):\n"
        "    def _begin(self, *arguments):\n"
        "        super()._begin(*arguments)\n"
        f"        events.FILE_LIMIT = self._size + {room}\n"
        "events.Journal = Small\n"
        "from egmctl.cli.app import run_command; sys.exit(run_command(sys.argv[1:]))\n"
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
    first, second = earlier(folder)
    compared = egmctl("compare", "last", "--tolerance", "99", env=env).out
    assert f"{first.stem} -> {second.stem}" in compared
    listed = json.loads(egmctl("history", "--json", env=env).out)["result"]["runs"]
    assert [run["file"] for run in listed] == [str(first), str(second)]
    assert all(run["ok"] == run["measurements"] > 0 for run in listed)
    assert str(second) in egmctl("history", env=env).out
    assert egmctl("compare", first, "last", "--tolerance", "99", env=env).out == compared


def test_journals_of_others_are_never_removed(tmp_path: Path) -> None:
    for number in range(events.FILES_LIMIT + 9):
        (tmp_path / f"system@{number:03}.journal").write_text("systemd's")
    (tmp_path / "bench-mine.journal").write_text("a copy that somebody keeps")
    events.prune(tmp_path)
    assert len(list(tmp_path.iterdir())) == events.FILES_LIMIT + 10


def test_that_somebody_was_told_is_written_through_no_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    (tmp_path / "x.journal").symlink_to(victim)
    events.mention(tmp_path / "x.journal")
    assert victim.read_text() == "untouched"


def test_on_a_file_system_without_locks_it_is_kept_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    journal = events.Journal([tmp_path], str)
    journal._make()
    assert journal.failure is None
    journal.close()
    assert len(list(tmp_path.glob("bench-*.journal"))) == 1
    with Folder(tmp_path).alone():
        pass
