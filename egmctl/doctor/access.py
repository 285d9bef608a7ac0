"""Which GPUs are lost on their way to this process, and whether somebody wants them."""

from __future__ import annotations

from collections.abc import Iterable

from egmctl.doctor.scope import Scope
from egmctl.model.machine import Gpu, Machine, Reason
from egmctl.topology.access import Block, Step, classify, elsewhere
from egmctl.topology.health import C2c, c2c
from egmctl.topology.routes import owners


def loss(machine: Machine, gpu: Gpu) -> Block | None:
    """Return what keeps a GPU from this process, ``None`` where nothing does."""
    found = classify(machine, gpu)
    return None if found is None else found.block


def lost(machine: Machine, *blocks: Block) -> list[Gpu]:
    """Return the GPUs that are lost in one of these ways."""
    return [gpu for gpu in machine.gpus or () if loss(machine, gpu) in blocks]


def _listed_others(gpu: Gpu, library: str) -> bool:
    """Say whether the library was asked, and answered without this GPU."""
    why = gpu.unread.get(library)
    return why is not None and why.reason is Reason.NOT_PRESENT


def funnel(machine: Machine, gpus: Iterable[Gpu]) -> dict[Step, int | None]:
    """Return how many GPUs get how far; ``None`` for a library that was not asked or did not answer."""
    reached = [found.step if (found := classify(machine, gpu)) else Step.WHOLE for gpu in gpus]
    counts: dict[Step, int | None] = {
        step: sum(lost > step or step is Step.PCI for lost in reached)
        for step in (Step.PCI, Step.DRIVER, Step.NODE, Step.ACCESS)
    }
    for step, library in ((Step.NVML, "nvml"), (Step.CUDA, "cuda")):
        asked = any(getattr(gpu, library) is not None or _listed_others(gpu, library) for gpu in gpus)
        listed = sum(getattr(gpu, library) is not None for gpu in gpus)
        counts[step] = listed if asked and not elsewhere(machine) else None
    return counts


def requested(machine: Machine, scope: Scope, gpu: Gpu) -> bool:
    """Say whether the user wants this GPU: by ``--gpus``, or by ``--expect``."""
    if scope.asked_for(gpu):
        return True
    expected = scope.expectation
    if expected is None:
        return False
    if expected.reference is not None:
        return any(
            other.bus_id == gpu.bus_id and loss(expected.reference, other) is None
            for other in expected.reference.gpus or ()
        )
    return expected.gpus is not None and sum(loss(machine, one) is None for one in machine.gpus or ()) < expected.gpus


def routers(machine: Machine, scope: Scope) -> dict[int, tuple[Gpu, ...]]:
    """Return the GPUs that EGM traffic to each CPU NUMA node in scope can be routed through: those that sit on it."""
    return {node: found for node in scope.numa_of(machine) if (found := owners(machine, node))}


def may_have_egm(machine: Machine) -> bool:
    """Say whether EGM is or may be on: a GPU says so, or only GPUs that cannot be asked sit on a Grace CPU."""
    listed = [gpu for gpu in machine.gpus or () if gpu.nvml is not None]
    bits = [gpu.nvml.egm_capable for gpu in listed if gpu.nvml is not None and gpu.nvml.egm_capable is not None]
    if bits:
        return any(bits)
    if any(c2c(machine, gpu) is C2c.UP for gpu in listed):
        return True
    return not listed and "Grace" in ((machine.host and machine.host.cpu_model) or "")
