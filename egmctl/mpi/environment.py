"""Whether this process was started by mpirun or srun as one of several: from the environment alone, before MPI itself.

A launcher says so in variables of its own, and importing mpi4py without one would cost time, or end the process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Launched:
    """This process as its launcher describes it."""

    rank: int
    size: int
    """How many processes the job has: 2 or more."""
    by: str
    """The launcher, for people."""
    first_of_node: bool
    """Whether it is the first one on its node."""


_NUMBER = re.compile("[0-9]{1,9}", re.ASCII)


def launched(environment: Mapping[str, str]) -> Launched | None:
    """Return what the launcher says of this process; ``None`` if it was started alone, or as the only one."""
    for rank_name, size_name, local_names, by in _VARIABLES:
        rank, size = environment.get(rank_name, ""), environment.get(size_name, "")
        if _NUMBER.fullmatch(rank) and _NUMBER.fullmatch(size):
            local = next((environment[name] for name in local_names if name in environment), rank)
            return Launched(int(rank), int(size), by, local == "0") if int(size) > 1 else None
    return None


_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("OMPI_COMM_WORLD_LOCAL_RANK",), "Open MPI's mpirun"),
    (
        "PMI_RANK",
        "PMI_SIZE",
        ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID"),
        "a PMI launcher (mpiexec of MPICH or Intel MPI, srun --mpi=pmi2)",
    ),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", ("MV2_COMM_WORLD_LOCAL_RANK",), "mpirun of MVAPICH"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS", ("SLURM_LOCALID",), "srun --mpi=pmix"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ("SLURM_LOCALID",), "srun"),
)
"""Rank, size, rank on the node: Open MPI's manual (mpirun, "Environment Variables"), Hydra's and Slurm's PMI-1 and
PMI-2 servers, MVAPICH's user guide, Slurm's srun(1), "OUTPUT ENVIRONMENT VARIABLES". srun sets its own with any
``--mpi``, also with none."""
