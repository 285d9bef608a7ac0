"""What ranks tell each other through the command, and what becomes of the others when one dies, hangs or misbehaves."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

import pytest

from egmctl.bench.processes import group as group_module
from egmctl.bench.processes.group import Group, GroupFailed, RankMessage, start_rank
from egmctl.bench.processes.protocol import Request
from tests.launch.start import is_alive

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("fast_children")]

SIZE = 3


@pytest.fixture
def group() -> Iterator[Group]:
    with start() as made:
        yield made


def start() -> Group:
    """Start three ranks of :mod:`tests.bench.ranks`."""
    return Group({number: start_rank(number, SIZE, "tests.bench.ranks:run") for number in range(SIZE)})


def step(calls: int, **fault: Any) -> dict[str, Any]:
    return {"do": Request.MEASURE, "calls": calls, **fault}


def test_every_rank_hears_what_each_has_given_with_its_files(group: Group) -> None:
    events: list[dict[str, Any]] = []
    said = group.ask(step(3), 30, events.append)
    gathered, barrier, again = said[0]["said"]
    assert gathered == [[{"from": rank, "number": 0}, f"file of {rank}"] for rank in range(SIZE)]
    assert barrier is None
    assert again == [[{"from": rank, "number": 2}, f"file of {rank}"] for rank in range(SIZE)]
    assert said[2]["said"][0] == [{"from": rank, "number": 0} for rank in range(SIZE)]
    assert sorted(event["by"] for event in events) == [0, 1, 2]


def test_the_same_processes_serve_many_steps_and_no_file_stays_open(group: Group) -> None:
    def count() -> int:
        return len(os.listdir("/proc/self/fd"))

    first = group.ask(step(3), 30)
    ours = count()
    for _ in range(50):
        last = group.ask(step(3), 30)
    assert [(m["pid"], m["fds"]) for m in last] == [(m["pid"], m["fds"]) for m in first]
    assert count() == ours


@pytest.mark.parametrize(
    ("fault", "how", "reason"),
    [
        ("crash", "crashed", "died from SIGSEGV in cuIpcOpenMemHandle"),
        ("raise", "raised", "ValueError: a bug in the rank"),
        ("leave", "crashed", "out of step: it is through with the step, and rank 0 is in exchange 3"),
        ("skip", "crashed", "out of step: it is in exchange 77, and rank 0 is in exchange 3"),
        ("garbage", "crashed", "sent an invalid message"),
    ],
)
def test_a_rank_that_fails_releases_the_others_at_once_and_is_named(fault: str, how: str, reason: str) -> None:
    with start() as group:
        pids = [message["pid"] for message in group.ask(step(1), 30)]
        started = time.monotonic()
        with pytest.raises(GroupFailed) as failed:
            group.ask(step(3, who=1, at=1, fault=fault), 60)
        assert time.monotonic() - started < 30
    assert (failed.value.rank, failed.value.how) == (1, how)
    assert reason in str(failed.value)
    assert not any(map(is_alive, pids))


@pytest.mark.long
def test_a_rank_that_hangs_is_killed_when_its_time_is_up(group: Group) -> None:
    group.ask(step(1), 60)
    started = time.monotonic()
    with pytest.raises(GroupFailed) as failed:
        group.ask(step(3, who=2, at=1, fault="hang"), 1)
    assert 1 <= time.monotonic() - started < 30
    assert (failed.value.rank, failed.value.how) == (2, "timed-out")
    assert failed.value.last_call == "cuIpcOpenMemHandle"
    assert str(failed.value) == "rank 2: no response for 1 s, it is in cuIpcOpenMemHandle"


def test_a_death_explains_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_module, "RELEASE_S", 1.0)

    class HangsToo(Group):
        def join(self, messages: list[RankMessage], _timeout_s: float) -> list[RankMessage]:
            """Add rank 0 of another command, which waited in vain for the dead one."""
            hung = {"rank": 0, "how": "timed-out", "reason": "no response", "last_call": None}
            failed = any(message.kind is group_module.MessageKind.FAILED for message in messages)
            mine = RankMessage(rank=0, kind=group_module.MessageKind.FAILED, data=hung) if failed else messages[0]
            return [mine, *messages[1:]]

    members = {number: start_rank(number, SIZE, "tests.bench.ranks:run") for number in range(SIZE)}
    with HangsToo(members) as group, pytest.raises(GroupFailed) as failed:
        group.ask(step(2, who=1, at=0, fault="crash"), 30)
    assert failed.value.rank == 1
