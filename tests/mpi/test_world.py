"""Four real processes under mpirun: calls with deadlines, and who is named when one does not come."""

from __future__ import annotations

from array import array
from collections.abc import MutableSequence, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from egmctl.cli.options import launched
from egmctl.errors import EgmctlError
from egmctl.mpi.communicator import MESSAGE_LIMIT, Communicator
from egmctl.mpi.world import Launched
from tests.mpi.jobs import alone, mpirun

pytestmark = pytest.mark.processes

PROGRAM = "tests/mpi/world_program.py"


def test_four_ranks_gather_and_wait_for_each_other() -> None:
    done = mpirun(4, [PROGRAM, "calls"])
    assert done.code == 0, done.err
    assert sorted(done.out.split("\n"))[1:] == [f"rank {rank} of 4: all calls" for rank in range(4)]


@pytest.mark.long
def test_who_is_dead_and_who_does_not_come_are_named_and_who_is_late_overwrites_nothing() -> None:
    # Both jobs do little but wait for some seconds.
    with ThreadPoolExecutor() as beside:
        late = beside.submit(mpirun, 3, [PROGRAM, "one_is_late"])
        # Without the option mpirun itself ends the job when a process is killed.
        away = mpirun(4, [PROGRAM, "one_is_away"], options=("--enable-recovery",))
    assert "given {0: 'of rank 0', 1: 'of rank 1'}, broken: True" in away.out, away.err
    assert "missing (2, 3): ranks 2, 3 did not answer any more" in away.out, away.err
    assert "overwritten: 0" in late.result().out, late.result().err


def test_a_fault_of_the_tool_in_one_rank_is_told_and_ends_the_job() -> None:
    done = mpirun(3, [PROGRAM, "one_has_a_fault"], timeout_s=60)
    assert "ValueError: a fault" in done.err
    assert done.code == 4, "by MPI_Abort, which srun heeds too: Python alone would end with 1"


@pytest.mark.needs("mpirun")
def test_a_launcher_of_another_mpi_connects_nobody() -> None:
    # As under srun without PMIx: more were started than MPI knows of.
    done = alone([PROGRAM, "unknown_to_mpi"], env={"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "8"})
    assert "srun has started 8 processes and MPI knows 1" in done.out
    assert "--mpi=pmix" in done.out
    assert done.code == 3


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, (3, 4)),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, (0, 2)),
        ({"PMIX_RANK": "1", "SLURM_STEP_NUM_TASKS": "72", "SLURM_PROCID": "1"}, (1, 72)),
        ({"SLURM_PROCID": "7", "SLURM_STEP_NUM_TASKS": "8"}, (7, 8)),
        # An interactive shell of srun, a batch script, and a single process of mpirun, are no jobs of several.
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}, None),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, None),
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1"}, None),
        ({"PMI_RANK": "no", "PMI_SIZE": "2"}, None),
        ({"PMI_RANK": "0", "PMI_SIZE": "9" * 5000}, None),
        ({"PMI_RANK": "0", "PMI_SIZE": "\u0662"}, None),
    ],
)
def test_the_environment_says_whether_there_are_several(
    environment: dict[str, str], expected: tuple[int, int] | None
) -> None:
    found = launched(environment)
    assert (None if found is None else (found.rank, found.size)) == expected
    assert not isinstance(found, Launched) or found.by


class Claims:
    """Stands for MPI: other ranks say that so many bytes are to come."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = sizes

    def Iallgather(self, _own: object, sizes: MutableSequence[int]) -> Any:  # noqa: N802 - as mpi4py calls it
        sizes[:] = array("i", self._sizes)
        return SimpleNamespace(Test=lambda: True)


@pytest.mark.parametrize("sizes", [(MESSAGE_LIMIT + 1, 0), (-1, 5)])
def test_no_more_bytes_are_awaited_than_the_bound(sizes: tuple[int, int]) -> None:
    communicator = Communicator.__new__(Communicator)
    communicator._comm, communicator._mpi, communicator._requests = Claims(sizes), SimpleNamespace(BYTE=None), []
    communicator.rank, communicator.size = 1, 2
    with pytest.raises(EgmctlError, match=rf"bytes are more than {MESSAGE_LIMIT}, which all ranks together may give"):
        communicator.all_gather(b"", 1.0)
