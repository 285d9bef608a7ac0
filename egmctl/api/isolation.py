"""``egmctl doctor --isolation``: where it may be tried, and the diagnosis of what it has shown."""

from __future__ import annotations

from egmctl.api.doctor import ALWAYS, Doctor
from egmctl.bench.plan.flows import gpu_use
from egmctl.doctor.check import Scope
from egmctl.doctor.isolation import planned, tried
from egmctl.doctor.isolation_findings import ISOLATION_CHECKS
from egmctl.doctor.runner import diagnose
from egmctl.errors import NothingToDo
from egmctl.facts.redact import redact
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.host import System
from egmctl.model.machine import Machine
from egmctl.verdict.answers import answered

SECTIONS = (*ALWAYS, "system")
"""The sections that the refusals and the findings need."""
_MPS_DAEMON = "nvidia-cuda-mps-control"


def announced(asked: Doctor, machine: Machine) -> str:
    """Return the sentence that is said before the trials.

    Raises
    ------
    NothingToDo
        They must not be made here: no GPU, a GPU that others use or whose use is unknown, or MPS.
    """
    scope = asked.scope(machine)
    _refuse(machine, scope)
    trials = planned(machine, scope)
    gpu = next(f"GPU{gpu.index}" for gpu in machine.gpus or () if gpu.bus_id == trials[0].reader)
    return (
        f"{len(trials)} processes of this test will read on {gpu} what was not shared with them, and end "
        "with error 700: each leaves an Xid 31 in the kernel log, which monitoring may report"
    )


def isolation(asked: Doctor, machine: Machine) -> Machine:
    """Make the trials and return the machine with them; ends processes that it starts, and nothing else."""
    scope = asked.scope(machine)
    _refuse(machine, scope)
    return tried(machine, scope)


def diagnosis(asked: Doctor, machine: Machine, *, redacted: bool = False) -> Diagnosis:
    """Return the findings of the trials as the record of the schema ``egmctl.doctor/1``."""
    node = redact(machine) if redacted else machine
    return answered(diagnose(node, asked.scope(machine), ISOLATION_CHECKS, strict=asked.strict))


def _refuse(machine: Machine, scope: Scope) -> None:
    trials = planned(machine, scope)
    if not trials:
        raise NothingToDo("--isolation: CUDA has no usable GPU here")
    ends = {bus_id for trial in trials for bus_id in (trial.owner, trial.reader)}
    for gpu in (gpu for gpu in machine.gpus or () if gpu.bus_id in ends):
        if gpu.nvml is None or gpu.nvml.processes is None:
            raise NothingToDo(f"--isolation needs idle GPUs, and who uses GPU{gpu.index} cannot be read from NVML")
        if (use := gpu_use(gpu)) is not None:
            raise NothingToDo(f"--isolation needs idle GPUs, because it makes GPU errors: {use}")
        if gpu.cuda is not None and gpu.cuda.attributes.get("MPS_ENABLED"):
            raise NothingToDo(_UNDER_MPS)
    if _MPS_DAEMON in ((machine.system or System()).daemons or ()):
        raise NothingToDo(_UNDER_MPS)


_UNDER_MPS = (
    "--isolation makes GPU errors, and an MPS server passes them on to its other clients: stop it first (echo quit | "
    "nvidia-cuda-mps-control)"
)
