"""What the drivers say of every pair of GPUs as peers, folded where it is the same for all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import permutations

from egmctl.model.machine import Gpu, Machine, Pair

NVML_INDICES = ("read", "write", "nvlink", "atomics", "pci")
"""The capabilities of ``nvidia-smi topo -p2p``, by their names in :attr:`Pair.p2p_status`."""

CUDA_ATTRIBUTES = {
    "access": "ACCESS_SUPPORTED",
    "native atomics": "NATIVE_ATOMIC_SUPPORTED",
    "array access": "CUDA_ARRAY_ACCESS_SUPPORTED",
    "performance rank": "PERFORMANCE_RANK",
}
"""What people call the CUdevice_P2PAttributes, and their names."""


@dataclass(frozen=True, slots=True)
class P2pMatrix:
    """One capability, or several that are equal for each pair."""

    source: str
    """``NVML`` or ``CUDA``."""
    names: tuple[str, ...]
    cells: Mapping[tuple[str, str], str]
    """By the labels of the GPU that accesses and of the GPU that is accessed; ``?`` where it was not read."""

    @property
    def uniform(self) -> bool:
        """Whether all pairs have the same value."""
        return len(set(self.cells.values())) == 1

    @property
    def value(self) -> str:
        """The value of a uniform matrix."""
        return next(iter(self.cells.values()))


def matrices(machine: Machine, gpus: Mapping[str, Gpu]) -> tuple[P2pMatrix, ...]:
    """Return the P2P capabilities of some GPUs, by label, those with equal matrices together; none for a single GPU."""
    pairs = {
        (source, target): machine.pair(gpus[source].bus_id, gpus[target].bus_id)
        for source, target in permutations(gpus, 2)
    }
    found: list[P2pMatrix] = []
    for source, names in (("NVML", NVML_INDICES), ("CUDA", tuple(CUDA_ATTRIBUTES))):
        for name in names if pairs else ():
            cells = {ends: _value(pair, name) for ends, pair in pairs.items()}
            twin = next((matrix for matrix in found if (matrix.source, matrix.cells) == (source, cells)), None)
            if twin is None:
                found.append(P2pMatrix(source, (name,), cells))
            else:
                found[found.index(twin)] = replace(twin, names=(*twin.names, name))
    return tuple(found)


def _value(pair: Pair | None, name: str) -> str:
    if pair is None:
        return "?"
    if name in NVML_INDICES:
        return pair.p2p_status.get(name) or "?"
    value = pair.cuda_attributes.get(CUDA_ATTRIBUTES[name])
    if value is None:
        return "?"
    return str(value) if name == "performance rank" else ("yes" if value else "no")
