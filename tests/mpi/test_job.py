"""Four commands under a real mpirun, each with a rank's process: words cross MPI, and who fails is named everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from egmctl.bench.processes.group import Kind, RankMessage
from egmctl.bench.processes.mpi import Coordinator, LocalRank
from egmctl.launch import Child
from egmctl.mpi.world import RanksMissing, World
from tests.mpi.jobs import mpirun

pytestmark = pytest.mark.processes

PROGRAM = "tests/mpi/job_program.py"


def run(*steps: dict[str, Any], kill: int | None = None, options: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """Have the steps carried out; return what rank 0 says of each."""
    env = {} if kill is None else {"EGMCTL_TEST_KILL": str(kill)}
    done = mpirun(4, [PROGRAM, json.dumps(steps)], env=env, options=options)
    said = [json.loads(line) for line in done.out.splitlines() if line.startswith("{")]
    assert said, done.err
    assert done.code == 0 or kill is not None, done.err
    return said


@pytest.mark.long
def test_what_each_rank_gives_reaches_all_ranks_and_their_last_words_reach_rank_0() -> None:
    (over,) = run({"calls": 2})
    assert len(set(over["pids"])) == 4
    for said in over["said"]:
        assert said == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert none_left(over["pids"])


@pytest.mark.long
@pytest.mark.parametrize(("fault", "how"), [("crash", "crashed"), ("raise", "raised")])
def test_a_rank_that_fails_is_named_and_a_new_group_goes_on(fault: str, how: str) -> None:
    failed, over = run({"calls": 3, "who": 2, "at": 1, "fault": fault}, {"calls": 1})
    assert (failed["failed"], failed["how"]) == (2, how)
    assert "rank 2" in failed["words"]
    if fault == "crash":
        assert failed["call"] == "cuIpcOpenMemHandle"
    assert len(over["said"]) == 4
    assert none_left(over["pids"])


@pytest.mark.long
def test_a_rank_that_hangs_is_killed_after_its_time_and_named() -> None:
    # After one that goes well: a busy machine takes longer to start the processes.
    hanging = {"calls": 2, "who": 3, "at": 1, "fault": "hang", "timeout_s": 2}
    _, failed, over = run({"calls": 1}, hanging, {"calls": 1})
    assert (failed["failed"], failed["how"], failed["call"]) == (3, "timed-out", "cuIpcOpenMemHandle")
    assert len(over["said"]) == 4


@pytest.mark.long
def test_a_command_that_is_killed_is_named_in_time() -> None:
    # Without the option mpirun itself ends the job.
    (failed,) = run({"calls": 1_000_000, "timeout_s": 1}, kill=2, options=("--enable-recovery",))
    assert failed["failed"] == 2
    assert "gone or does not respond: rank 2 (node1:GPU2)" in failed["words"]


def test_what_was_measured_is_not_lost_where_a_command_is_gone_at_the_very_end() -> None:
    class Gone:
        def broadcast(self, *_: object) -> bytes:
            raise RanksMissing((1,))

    coordinator = Coordinator(cast(World, Gone()), cast(Child, None), str)
    coordinator.finish()
    assert coordinator.lost == (1,)


def none_left(pids: list[int]) -> bool:
    """Say whether the ranks' processes are gone."""
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_message_comes_out_of_the_job_as_it_went_in() -> None:
    class Two:
        """A world whose other rank gives what this one gives."""

        rank = 0

        def all_gather(self, given: bytes, _timeout_s: float) -> list[bytes]:
            return [given, given]

    sent = RankMessage(rank=0, kind=Kind.CONTRIBUTE, call="all_gather, call 3", data=[{"a": 1.5}, None])
    here, other = LocalRank(cast(World, Two()), cast(Child, object()), "").join([sent])
    assert here == sent
    assert (other.rank, other.kind, other.call, other.data) == (1, sent.kind, sent.call, sent.data)
