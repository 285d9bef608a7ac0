"""What came back from a node, taken apart and judged; and nodes that are alike, put together."""

from __future__ import annotations

import gzip
import json
import re
import shlex
import subprocess
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egmctl.documents import FILE_LIMIT, packed
from egmctl.errors import UsageError
from egmctl.fleet.folder import Folder, groups, new_folder, old_folder
from egmctl.fleet.judge import Ended, judge_node, read_output, remote_words
from egmctl.fleet.run import ERRORS_KEPT, STANDARD_ERROR, Launch, Progress, _Fleet
from egmctl.model.answer import TABLE, State
from egmctl.model.fleet import GroupLine, Launcher, NodeCommand, NodeResult, Reach
from egmctl.model.record import Command

ASKED = NodeCommand(command=Command.DOCTOR, nodes=("node01",), remote_command="egmctl", version="egmctl 0.1.0")


def document(state: State) -> str:
    """Return a document as a node sends it, with this answer."""
    answer = {"state": state, "word": state.upper()}
    code = int(TABLE[state].exit_code)
    return json.dumps({"schema": "egmctl.doctor/1", "exit_code": code, "answer": answer, "errors": [], "result": {}})


DOCUMENT, PARTIAL = document(State.BAD), document(State.INTERRUPTED)
ERROR = json.dumps(
    {"schema": "egmctl.error/1", "exit_code": 2, "errors": [{"code": "usage", "message": "no"}], "result": None}
)


LACKS = "\negmctl-fleet begin\negmctl-fleet lacks\n\negmctl-fleet end 127\n"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return new_folder(tmp_path / "out", Command.DOCTOR, datetime.now(timezone.utc))


def sent(version: str = "egmctl 0.1.0", document: str = DOCUMENT, end: int | None = 0) -> str:
    output = f"\negmctl-fleet begin\negmctl-fleet version {version}\n{document}\n"
    return output if end is None else f"{output}\negmctl-fleet end {end}\n"


def judged(folder: Folder, output: str, errors: str = "", **ended: object) -> NodeResult:
    folder.part("node01").write_text(output)
    usual = {"node": "node01", "code": 0, "duration_s": 1.0, "errors": errors}
    return judge_node(ASKED, folder, Ended(**(usual | ended)), timeout_s=60)[0]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("output", "errors", "ended", "reach", "reason", "code"),
    [
        (sent(end=1), "", {}, Reach.ANSWERED, "", 1),
        (sent(document=ERROR, end=2), "", {}, Reach.FAILED, "no", 4),
        (sent(document="", end=3), "egmctl: no GPU\n", {}, Reach.FAILED, "no GPU", 4),
        (sent(document="", end=130), "", {}, Reach.FAILED, "the command ended with 130 without a message", 4),
        (sent(document="", end=0), "", {}, Reach.FAILED, "the command ended with 0 without a message", 4),
        (sent(document="{}"), "", {}, Reach.GARBAGE, "what it sent is not a result of egmctl: it states no schema", 4),
        (sent(document='{"schema": "egmctl.topo/2"}'), "", {}, Reach.GARBAGE, "egmctl.doctor/1", 4),
        (sent("1.0"), "", {}, Reach.GARBAGE, "'egmctl --version' says '1.0'", 4),
        (sent("egmctl 9"), "", {}, Reach.WRONG_VERSION, "egmctl 9, not egmctl 0.1.0; nothing was run", 4),
        (sent(end=None), "", {}, Reach.LOST, "the connection ended before the command", 4),
        (sent(end=124), "", {}, Reach.TIMED_OUT, "the command did not end in 60 s and was stopped", 4),
        (sent(end=137), "", {"duration_s": 70.0}, Reach.TIMED_OUT, "did not end in 60 s", 4),
        (sent(document="", end=137), "", {"duration_s": 5.0}, Reach.FAILED, "ended with 137", 4),
        (sent(end=None), "", {"out_of_time": True, "duration_s": 85.0}, Reach.TIMED_OUT, "did not end in 85 s", 4),
        ("", "", {"out_of_time": True}, Reach.TIMED_OUT, "no command was started there in 1 s", 4),
        ("", "ssh: no route\n", {"code": 255}, Reach.UNREACHABLE, "ssh: no route", 4),
        ("", "", {"code": 255}, Reach.UNREACHABLE, "the launcher ended with 255 without a message", 4),
        (
            LACKS,
            "",
            {},
            Reach.NO_EGMCTL,
            "there is no egmctl in the PATH of a session without a login; give its path",
            4,
        ),
        ("\negmctl-fleet begin\n\negmctl-fleet end 127\n", "sh: timeout: not found", {}, Reach.GARBAGE, "timeout", 4),
        (sent(document=PARTIAL, end=130), "", {"interrupted": True}, Reach.INTERRUPTED, "are kept", 130),
        (sent(document=PARTIAL, end=130), "", {}, Reach.INTERRUPTED, "interrupted there; its results so far", 4),
        (sent(document=PARTIAL, end=124), "", {}, Reach.TIMED_OUT, "stopped; its results so far are kept", 4),
        (sent(end=0), "", {"interrupted": True}, Reach.ANSWERED, "", 1),
        (sent(document="", end=130), "", {"interrupted": True}, Reach.INTERRUPTED, "stopped", 130),
        ("", "", {"flooded": True}, Reach.FLOODED, "more than 64 MiB", 4),
        (sent(document=packed(DOCUMENT), end=1), "", {}, Reach.ANSWERED, "", 1),
        (sent(document=packed(PARTIAL), end=124), "", {}, Reach.TIMED_OUT, "stopped; its results so far are kept", 4),
        (sent(document=packed(ERROR), end=2), "", {}, Reach.FAILED, "no", 4),
        (sent(document=packed(DOCUMENT)[:60]), "", {}, Reach.GARBAGE, "is packed by gzip and is truncated", 4),
        (sent(document=f"H4sI{DOCUMENT}"), "", {}, Reach.GARBAGE, "is packed by gzip and cannot be unpacked", 4),
        (sent(document=packed(" " * (FILE_LIMIT + 1))), "", {}, Reach.GARBAGE, "is larger than 64 MiB", 4),
        ("", "\x1b[31mred\u202e", {"code": 255}, Reach.UNREACHABLE, "\\x1b[31mred\\u202e", 4),
    ],
)
def test_how_asking_a_node_ended(
    folder: Folder, output: str, errors: str, ended: dict[str, object], reach: Reach, reason: str, code: int
) -> None:
    answer = judged(folder, output, errors, **ended)
    assert (answer.reach, TABLE[answer.state].exit_code) == (reach, code)
    assert reason in answer.reason
    kept = [path.name for path in (folder.path / "nodes").iterdir()]
    stopped = reach in (Reach.TIMED_OUT, Reach.INTERRUPTED) and ("result" in output or "H4sI" in output)
    assert kept == (["node01.json.gz"] if reach is Reach.ANSWERED or stopped else [])
    assert answer.file == "".join(f"nodes/{name}" for name in kept)
    sent_documents = (json.loads(DOCUMENT), json.loads(PARTIAL))
    assert all(json.loads(gzip.decompress((folder.path / answer.file).read_bytes())) in sent_documents for _ in kept)


def test_a_path_that_was_given_is_named_where_it_is_not(folder: Folder) -> None:
    folder.part("node01").write_text(LACKS)
    asked = replace(ASKED, remote_command="/opt/egmctl")
    answer, _ = judge_node(asked, folder, Ended(node="node01", code=0, duration_s=1.0, errors=""), timeout_s=60)
    assert answer.reason == "there is no /opt/egmctl there; give its path with --remote-command"


def test_of_a_nodes_errors_the_end_is_kept(folder: Folder) -> None:
    launch = Launch(launcher=Launcher.SSH, options=(), fanout=1, connect_timeout_s=1, timeout_s=1)
    fleet = _Fleet(ASKED, launch, folder, lambda answer, _: answer, lambda _: None, [], Progress(1))
    talk = fleet.begin("node01")
    assert talk is not None
    for number in range(100):
        talk.pipe_data_received(STANDARD_ERROR, b"%65535d\n" % number)
    fleet.drop("node01")
    assert (len(talk.errors), talk.errors.split()) == (ERRORS_KEPT, [b"99"])


def test_the_document_is_found_between_whatever_else_was_printed() -> None:
    output = read_output(f"Welcome\negmctl-fleet begin?\n{sent()}".encode())
    assert (output.begun, output.version, output.code) == (True, "egmctl 0.1.0", 0)
    assert output.document.decode() == DOCUMENT


@given(st.binary(max_size=2000))
def test_nothing_that_is_sent_breaks_the_reading(noise: bytes) -> None:
    for output in (noise, b"\negmctl-fleet begin\n" + noise, sent().encode() + noise):
        read_output(output)


@pytest.mark.processes
def test_the_line_for_the_node_is_its_words_for_any_posix_shell() -> None:
    """A node's login shell makes the words of the line; the scripts hold nothing that csh or fish would read."""
    asked = NodeCommand(
        command=Command.TOPO, arguments=("--gpus", "a b'c$(d)"), nodes=(), remote_command="x y", version="v"
    )
    line = shlex.join(remote_words(asked, 60))
    words = subprocess.run(["sh", "-c", f"printf '%s\\n' {line}"], capture_output=True, text=True, check=True)
    assert words.stdout.splitlines() == shlex.split(line)
    assert shlex.split(line)[-5:] == ["x y", "topo", "--json", "--gpus", "a b'c$(d)"]
    scripts = [word for word in remote_words(ASKED, 60) if "\n" in word or ";" in word]
    assert len(scripts) == 2
    for script in scripts:
        subprocess.run(["sh", "-n", "-c", script], check=True)
    assert not re.search(r"\n|\\|!(?! )", shlex.join(remote_words(ASKED, 60)))
    assert remote_words(replace(ASKED, command=Command.SNAPSHOT), 5)[-2:] == ["egmctl", "snapshot"], "is JSON by itself"


def test_alike_nodes_are_together_and_those_without_an_answer_last() -> None:
    """Why there is no answer is told without the node's own address, unless it is alone with it."""
    down, refused = "ssh: connect to host {} port 22: timed out", "ssh: connect to host 10.0.0.11 port 22: refused"
    answers = [NodeResult(node=f"node{n:02}", reach=Reach.ANSWERED, state=State.GOOD) for n in range(1, 6)]
    reasons = {n: down.format(f"10.0.0.{n}") for n in range(6, 11)} | {11: refused}
    answers += [
        NodeResult(node=f"node{n:02}", reach=Reach.UNREACHABLE, state=State.BROKE, reason=reason)
        for n, reason in reasons.items()
    ]
    usual, other = (GroupLine(key="checks", value="40 pass"),), (GroupLine(key="egm.cgroup-route", value="no"),)
    made = groups(answers, {f"node{n:02}": other if n == 3 else usual for n in range(1, 6)})
    assert [group.folded for group in made] == ["node[01-02,04-05]", "node03", "node[06-10]", "node11"]
    silent = [line.value for group in made[2:] for line in group.lines]
    assert silent == [down.format("NODE"), refused]


def test_a_folder_that_holds_something_is_not_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
    (tmp_path / "empty").mkdir()
    assert new_folder(tmp_path / "empty", Command.TOPO, now).path == tmp_path / "empty"
    with pytest.raises(UsageError, match="exists; give a new folder, or --resume"):
        new_folder(tmp_path / "empty", Command.TOPO, now)
    with pytest.raises(UsageError, match="cannot be made: No such file or directory"):
        new_folder(tmp_path / "no" / "folder", Command.TOPO, now)
    monkeypatch.chdir(tmp_path)
    names = [new_folder(None, Command.TOPO, now).path.name for _ in range(2)]
    assert names == ["egmctl-fleet-topo-20260102T030405Z", "egmctl-fleet-topo-20260102T030405Z-2"]
    with pytest.raises(UsageError, match=r"has no readable fleet\.json"):
        old_folder(tmp_path / "empty")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be made: Not a directory"):
        new_folder(tmp_path / "file", Command.TOPO, now)
