"""Memory that fabric handles open on every node of an NVLink domain: one process a GPU, on one node or on many.

Handles of the other kinds end at the node's border (``cases/ipc.py``). Every ordered pair of ranks is measured, host
memory included: it lies on its owner's nearest NUMA node and is reached over the owner's GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.bench.case import Case, End
from egmctl.bench.cases.ipc import Shared, copies, latency, shared
from egmctl.model.measurement import Engine, HandleKind, MemoryKind, Pattern

FAMILY = "fabric"


def _several(of: Shared) -> Iterator[Case]:
    """Yield what more than two processes do at the same time, or two in both directions."""
    ways = [
        (Pattern.RING, "ring", "each process to the next one's, all at once"),
        (Pattern.BISECT, "bisect", "each process to that of the one half of them further on, all at once"),
        (Pattern.ONE_TO_ALL, "one_to_all", "one process to each other one's, all at once"),
        (Pattern.ALL_TO_ONE, "all_to_one", "each other process to one's, all at once"),
    ]
    if of.memory is MemoryKind.DEVICE:
        ways.insert(0, (Pattern.BOTH_DIRECTIONS, "bidirectional", "two processes to each other's at the same time"))
    for pattern, word, description in ways:
        yield Case(
            name=f"{of.word}_{word}_write_ce",
            family=FAMILY,
            source=MemoryKind.DEVICE,
            destination=of.memory,
            engine=Engine.COPY_ENGINE,
            pattern=pattern,
            initiator=End.SOURCE,
            description=f"{description}: {of.what}",
            processes=True,
            handle=of.handle,
        )


_SHARED = tuple(shared(HandleKind.FABRIC))

CASES = (
    *(case for of in _SHARED for case in copies(of, "", FAMILY)),
    *(case for of in _SHARED for case in _several(of)),
    *(latency(of, "", FAMILY) for of in _SHARED),
)
