"""What a network file system says only when a file is closed: nothing of it passes for written, nothing else is lost.

NFS takes what is written, and answers for it at close(2) ("Dealing with error returns from close()" there). No such
file system is here: the error is put where the command closes.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from egmctl.cli.output import emit
from egmctl.errors import EgmctlError
from egmctl.files import write_all, write_whole
from egmctl.fleet.folder import new_folder
from egmctl.fleet.run import STANDARD_OUTPUT, Launch, Progress, _Fleet
from egmctl.journal import events
from egmctl.journal.events import Note
from egmctl.model.answer import Answer, State
from egmctl.model.fleet import Launcher, NodeCommand, Reach
from egmctl.model.record import Command


class LateFile(io.FileIO):
    """A file that took all, and could not keep it."""

    number = 0

    def close(self) -> None:
        closed = self.closed
        super().close()
        if not closed:
            raise OSError(self.number, os.strerror(self.number))


@pytest.fixture(params=[errno.EIO, errno.ENOSPC, errno.EDQUOT], ids=errno.errorcode.get)
def number(request: pytest.FixtureRequest) -> int:
    """What the system says at last."""
    return int(request.param)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch, number: int) -> Callable[[], None]:
    """Return what has every file that is opened for writing from then on fail when it is closed."""

    def fail() -> None:
        def opened(descriptor: int, mode: str) -> Any:
            raw = LateFile(descriptor, mode.replace("b", ""))
            raw.number = number
            return io.BufferedWriter(raw)

        monkeypatch.setattr(os, "fdopen", opened)

    return fail


def test_a_result_is_not_in_its_file_and_the_earlier_one_is(
    tmp_path: Path, late: Callable[[], None], number: int
) -> None:
    path = tmp_path / "a.json"
    path.write_text("earlier")
    late()
    with pytest.raises(EgmctlError, match=f"cannot write .*a.json: {os.strerror(number)}"):
        write_whole(path, b"new")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.json", "earlier")]


def test_a_result_that_its_disk_lost_goes_to_standard_output(
    tmp_path: Path, late: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    late()
    with pytest.raises(EgmctlError, match="the result is on standard output"):
        emit("the result", tmp_path / "a.txt")
    assert capsys.readouterr().out == "the result\n"
    assert list(tmp_path.iterdir()) == []


def test_a_nodes_document_is_not_kept(tmp_path: Path, late: Callable[[], None], number: int) -> None:
    folder = new_folder(tmp_path / "out", Command.DOCTOR, datetime.now(timezone.utc))
    with folder.spool("node01") as file:
        file.write(b"noise {}")
    late()
    with pytest.raises(EgmctlError, match=os.strerror(number)):
        folder.keep("node01", b"{}")
    assert not (folder.path / "nodes/node01.json.gz").exists()


def test_a_journal_says_that_it_ends_early_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    journal = events.Journal([tmp_path], lambda part: part)
    journal._make()
    journal(Note(text="a note"))
    file, real = journal._file, os.close

    def close(descriptor: int) -> None:
        real(descriptor)
        if descriptor == file:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "close", close)
    journal.end(Answer(state=State.GOOD, word="PASS"))
    assert journal.failure == f"{journal.path}: {os.strerror(number)}"
    journal(Note(text="nothing goes on after that"))
    assert journal.path is not None
    events.mention(journal.path)


def test_standard_output_is_settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        duplicate: list[int] = []
        dup, close = os.dup, os.close

        def duplicated(descriptor: int) -> int:
            duplicate.append(dup(descriptor))
            return duplicate[0]

        def fail(descriptor: int) -> None:
            close(descriptor)
            if duplicate == [descriptor]:
                duplicate.clear()
                raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "dup", duplicated)
        monkeypatch.setattr(os, "close", fail)
        with pytest.raises(EgmctlError, match=f"to standard output: {os.strerror(number)}"):
            emit("{}")


def test_a_disk_with_room_for_a_part_is_asked_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[bytes] = []

    def part(_: int, content: memoryview) -> int:
        if sum(map(len, taken)) >= 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken.append(bytes(content[:2]))
        return len(taken[-1])

    monkeypatch.setattr(os, "write", part)
    write_all(1, b"12345")
    assert taken == [b"12", b"34", b"5"]
    with pytest.raises(OSError, match="No space left"):
        write_all(1, b"123")


def test_what_a_node_sent_is_lost_and_no_other_nodes_answer(tmp_path: Path, number: int) -> None:
    asked = NodeCommand(command=Command.DOCTOR, nodes=(), remote_command="egmctl", version="")
    launch = Launch(launcher=Launcher.SSH, options=(), fanout=2, connect_timeout_s=1, timeout_s=1)
    folder = new_folder(tmp_path / "out", Command.DOCTOR, datetime.now(timezone.utc))
    fleet = _Fleet(asked, launch, folder, lambda answer, _: answer, lambda _: None, [], Progress(2))
    for node in ("node01", "node02"):
        talk = fleet.begin(node)
        assert talk is not None
        talk.pipe_data_received(STANDARD_OUTPUT, SENT.encode())
    with fleet.talks["node02"].file as file:
        late_file = LateFile(os.dup(file.fileno()), "w")
    late_file.number = number
    fleet.talks["node02"].file = late_file
    for node in ("node02", "node01"):
        fleet.ended(node, 0)
    lost, answered = fleet.progress.answers
    assert (lost.reach, answered.reach) == (Reach.LOST, Reach.ANSWERED)
    assert lost.reason.endswith(f"node02.part: {os.strerror(number)}")
    assert str(fleet.failure) in lost.reason
    assert [path.name for path in (folder.path / "nodes").iterdir()] == ["node01.json.gz"]


SENT = """
egmctl-fleet begin
egmctl-fleet version egmctl 0.1.0
{"schema": "egmctl.doctor/1", "exit_code": 0, "answer": {"state": "good", "word": "OK"}, "errors": [], "result": {}}

egmctl-fleet end 0
"""
