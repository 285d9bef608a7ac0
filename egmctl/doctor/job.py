"""Which GPUs belong to this process' job although this process may not use them.

A GPU of somebody else is none of its business. A GPU of its own job that the device cgroup denies is: the job's other
processes allocate there, and imports of that memory fail. Two processes with one H200 each, as Slurm gives a GPU to a
task, ended in NCCL's transport/p2p.cc with CUDA error 101 or 1 (measured; see docs/slurm.md).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from egmctl.dataclass import dataclass
from egmctl.doctor.findings import fact
from egmctl.doctor.restrictions import gpu_numbers, minor_of
from egmctl.doctor.situation import in_container, loss, lost
from egmctl.model.finding import Evidence
from egmctl.model.gpu import Gpu
from egmctl.model.host import Process
from egmctl.model.machine import Machine
from egmctl.topology.access import Block

_IDS = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS")
"""The numbers of the GPUs of a job and of a step, those of the device nodes whatever the cgroup allows (sbatch(1),
srun(1)). A step on another node may have inherited the list of the node where the job began, and a list may be of one
task only (observed with Slurm 22.05)."""
_COUNTS = ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE")
"""The number of GPUs of a step on this node, and that of the option ``--gpus-per-node``: ``4`` or ``h200:4``."""
_REQUEST = "NVIDIA_VISIBLE_DEVICES"
"""The GPUs that a container asks its runtime for: numbers in the order of the bus, UUIDs, or ``all``, which images of
CUDA set by themselves (NVIDIA Container Toolkit, "Environment variables")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnJob:
    """GPUs that this process may not use and that its job has."""

    gpus: tuple[Gpu, ...] = ()
    number: int = 0
    """How many of them are the job's: fewer than all if it is not known which."""
    sign: Evidence | None = None
    """What says which or how many GPUs the job has; ``None`` if nothing does. Then no GPU is known to be others'."""

    @property
    def words(self) -> str:
        """A clause that follows the names of the GPUs; empty if there are none."""
        if self.sign is None or not self.gpus:
            return ""
        which = "of this job" if self.number == len(self.gpus) else f"{self.number} of them of this job"
        return f"{which} ({self.sign.source}={self.sign.value})"


def own_job(machine: Machine, withheld: Sequence[Gpu]) -> OwnJob:
    """Return which of the GPUs that this process may not use are of its job; none if nothing says so."""
    environment = (machine.process or Process()).environment or {}
    usable = [gpu for gpu in machine.gpus or () if loss(machine, gpu) is None]
    nothing_withheld = OwnJob()
    for name in _IDS:
        numbers = gpu_numbers(environment.get(name, ""))
        # A list of another node, or of a job around this one, does not have what this process may use.
        if numbers and {minor_of(gpu) for gpu in usable} <= numbers:
            gpus = tuple(gpu for gpu in withheld if minor_of(gpu) in numbers)
            job = OwnJob(gpus=gpus, number=len(gpus), sign=fact(name, environment[name]))
            if gpus:
                return job
            nothing_withheld = job
    for name in _COUNTS:
        match = re.fullmatch(r"(?:.*:)?([0-9]{1,4})", environment.get(name, ""), re.ASCII)
        if match is None:
            continue
        sign = fact(name, environment[name])
        missing = min(int(match[1]) - len(usable), len(withheld))
        if missing > 0:
            return OwnJob(gpus=tuple(withheld), number=missing, sign=sign)
        nothing_withheld = replace(nothing_withheld, sign=nothing_withheld.sign or sign)
    # A job is closer than the container around its node: its list of GPUs decides.
    if nothing_withheld.sign is not None or not in_container(machine) or not environment.get(_REQUEST):
        return nothing_withheld
    gpus = tuple(_requested(machine, environment[_REQUEST], withheld))
    return OwnJob(gpus=gpus, number=len(gpus), sign=fact(_REQUEST, environment[_REQUEST]))


def of_others(machine: Machine) -> frozenset[str]:
    """Return the bus ids of the GPUs that are withheld from this process and known to be not of its job."""
    # By a resource manager or by a container runtime.
    withheld = lost(machine, Block.DEVICE_CGROUP, Block.NOT_IN_CONTAINER)
    job = own_job(machine, withheld)
    return frozenset(gpu.bus_id for gpu in withheld if job.sign is not None and gpu not in job.gpus)


def _requested(machine: Machine, request: str, withheld: Sequence[Gpu]) -> Iterator[Gpu]:
    """Yield the GPUs that this container asked for and that it may not use."""
    named = [part.strip() for part in request.split(",")]
    by_number = {str(number): bus_id for number, bus_id in enumerate(sorted(gpu.bus_id for gpu in machine.gpus or ()))}
    bus_ids = {by_number.get(part) for part in named}
    for gpu in withheld:
        # The node of a GPU is in the container only if the runtime was to give it.
        was_given = request == "all" and loss(machine, gpu) is Block.DEVICE_CGROUP
        by_uuid = gpu.uuid is not None and any(part and gpu.uuid.startswith(part) for part in named)
        if was_given or by_uuid or gpu.bus_id in bus_ids:
            yield gpu
