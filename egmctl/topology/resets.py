"""Which GPUs must be reset together."""

from __future__ import annotations

from collections.abc import Iterable

from egmctl.model.gpu import Gpu
from egmctl.model.host import System
from egmctl.model.machine import Machine

_AMPERE, _HOPPER = (8, 0), (9, 0)
"""The compute capabilities from which GPUs with NVLink are reset one by one: on Ampere with NVSwitches only if the
fabric manager runs (https://docs.nvidia.com/deploy/nvidia-smi, --gpu-reset)."""
_FABRIC_MANAGER = "nv-fabricmanager"


def reset_together(machine: Machine, gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """Return these GPUs and all others that a reset of them includes, in the order of the machine.

    A GPU that NVML does not describe is taken for one that is not reset alone.
    """
    together = {gpu.bus_id for gpu in gpus}
    waiting = [gpu for gpu in machine.gpus or () if gpu.bus_id in together]
    while waiting:
        gpu = waiting.pop()
        if _resets_alone(machine, gpu):
            continue
        joined = [other for other in _joined(machine, gpu) if other.bus_id not in together]
        together.update(other.bus_id for other in joined)
        waiting += joined
    return tuple(gpu for gpu in machine.gpus or () if gpu.bus_id in together)


def _resets_alone(machine: Machine, gpu: Gpu) -> bool:
    capability = gpu.nvml.compute_capability if gpu.nvml else None
    if capability is None or capability < _AMPERE:
        return False
    if capability >= _HOPPER or not machine.switches:
        return True
    return _FABRIC_MANAGER in ((machine.system or System()).daemons or ())


def _joined(machine: Machine, gpu: Gpu) -> list[Gpu]:
    """Return the GPUs that NVLink joins to this one, or may join."""
    others = [other for other in machine.gpus or () if other is not gpu]
    if machine.pairs is None:
        return [other for other in others if other.name == gpu.name]
    counts = {other.bus_id: machine.pair(gpu.bus_id, other.bus_id) for other in others}
    return [other for other in others if (pair := counts[other.bus_id]) is None or pair.nvlink_count != 0]
