"""Which of the EGM platforms a node is, in one line, or why it is none."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from egmctl.compat import StrEnum
from egmctl.model.machine import Gpu, Machine
from egmctl.topology.health import egm, multi_node
from egmctl.wording import gpu_name


class PlatformKind(StrEnum):
    """The platforms of the CUDA C++ Programming Guide's chapter on EGM, and the two other answers."""

    SINGLE_GPU = "single-node-single-gpu"
    MULTI_GPU = "single-node-multi-gpu"
    MULTI_NODE = "multi-node"
    NO_EGM = "no-egm"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PlatformVerdict:
    """The platform and the one line that says it."""

    kind: PlatformKind
    line: str
    clique_id: int | None = None
    """The NVLink domain's clique, for a multi-node domain."""
    what: str = ""
    """The GPUs and the CPUs' architecture."""
    cause: str = ""
    """Why there is no EGM, or why that is unknown."""
    able: int = 0
    """How many GPUs have EGM."""


def platform(machine: Machine) -> PlatformVerdict:
    """Judge the platform from all of the node's GPUs."""
    gpus = machine.gpus or ()
    if not gpus:
        return PlatformVerdict(PlatformKind.NO_EGM, "no EGM: no NVIDIA GPU", what="no NVIDIA GPU")
    answers = [egm(machine, gpu) for gpu in gpus]
    able = sum(answer.able is True for answer in answers)
    clique = _clique(machine)
    domain = "" if clique is None else f"multi-node NVLink domain (clique {clique})"
    what = _what(machine, gpus)
    if able == 0:
        kind, words = PlatformKind.NO_EGM, "no EGM"
        if any(answer.able is None for answer in answers):
            kind, words = PlatformKind.UNKNOWN, "EGM unknown"
            answers = [answer for answer in answers if answer.able is None]
        causes = "; ".join(dict.fromkeys(answer.cause for answer in answers))
        line = f"{words}: {what}, {causes}"
        return PlatformVerdict(kind, f"{line}; {domain}" if domain else line, clique, what, causes)
    line = what if able == len(gpus) else f"{what}, EGM on {able} of {len(gpus)} GPUs"
    if domain:
        return PlatformVerdict(PlatformKind.MULTI_NODE, f"EGM, {domain}: {line}", clique, what, able=able)
    if len(gpus) == 1:
        return PlatformVerdict(PlatformKind.SINGLE_GPU, f"EGM, single-node single-GPU: {line}", what=what, able=able)
    return PlatformVerdict(PlatformKind.MULTI_GPU, f"EGM, single-node multi-GPU: {line}", what=what, able=able)


def _clique(machine: Machine) -> int | None:
    """Return the clique id of a multi-node NVLink domain, ``None`` where the fabric is of one node or not ready."""
    for gpu in machine.gpus or ():
        fabric = gpu.nvml.fabric if gpu.nvml else None
        if fabric and fabric.state == "completed" and multi_node(machine, gpu):
            return fabric.clique_id
    return None


def _what(machine: Machine, gpus: Sequence[Gpu]) -> str:
    """Name the GPUs and the CPUs' architecture: ``4 NVIDIA GB200 on aarch64``."""
    names = Counter(gpu.name for gpu in gpus)
    parts = " and ".join(f"{count} {gpu_name(name, count)}" for name, count in names.items())
    architecture = machine.host.architecture if machine.host else None
    return f"{parts} on {architecture}" if architecture else parts
