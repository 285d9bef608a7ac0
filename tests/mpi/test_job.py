"""One command's part of a job's group; tests/mpi/test_fabric.py has real jobs, with ranks and commands that fail."""

from __future__ import annotations

from typing import cast

from egmctl.bench.processes.group import Coordinator, LocalRank, MessageKind, RankMessage
from egmctl.launch import Child
from egmctl.mpi.world import RanksMissing, World


def test_what_was_measured_is_not_lost_where_a_command_is_gone_at_the_very_end() -> None:
    class Gone:
        rank = 0

        def all_gather(self, *_: object) -> list[object]:
            raise RanksMissing((1,))

    coordinator = Coordinator(cast(World, Gone()), cast(Child, None), str)
    coordinator.finish()
    assert coordinator.lost == (1,)


def test_a_message_comes_out_of_the_job_as_it_went_in() -> None:
    class Two:
        """A world whose other rank gives what this one gives."""

        rank = 0

        def all_gather(self, given: object, _timeout_s: float) -> list[object]:
            return [given, given]

    sent = RankMessage(rank=0, kind=MessageKind.CONTRIBUTE, call="exchange 3", data=[{"a": 1.5}, None])
    here, other = LocalRank(cast(World, Two()), cast(Child, object())).join([sent], 1.0)
    assert here == sent
    assert (other.rank, other.kind, other.call, other.data) == (1, sent.kind, sent.call, sent.data)
