"""A case with a name of nvbandwidth does what nvbandwidth 0.8 does by that name (its testcase.h), and so does 0.10.

The cases of TMA and within a GPU are those that 0.10 lists (``nvbandwidth --list``).
"""

from __future__ import annotations

import pytest

from egmctl.bench.case import End
from egmctl.bench.suites import CASES
from egmctl.model.route import MemoryKind
from egmctl.model.task import USUAL, ChaseOrder, Engine, Pattern, Quantity

CE, SM, TMA = Engine.COPY_ENGINE, Engine.SM_COPY, Engine.BULK
HOST, GPU = MemoryKind.PINNED, MemoryKind.DEVICE
PUSH, PULL = End.SOURCE, End.DESTINATION

COPIES = {
    "host_to_device_memcpy": (HOST, GPU, Pattern.PAIR, None),
    "device_to_host_memcpy": (GPU, HOST, Pattern.PAIR, None),
    "host_to_device_bidirectional_memcpy": (HOST, GPU, Pattern.BOTH_DIRECTIONS, None),
    # One GPU is measured while all others are busy with the host: here each of them is, in the same sample.
    "host_to_all_memcpy": (HOST, GPU, Pattern.OWN_NODE, None),
    "all_to_host_memcpy": (GPU, HOST, Pattern.OWN_NODE, None),
    "host_to_all_bidirectional_memcpy": (HOST, GPU, Pattern.OWN_NODE_BOTH, None),
    # Who launches the copy: "write" the context of the source, "read" that of the destination.
    "device_to_device_memcpy_read": (GPU, GPU, Pattern.PAIR, PULL),
    "device_to_device_memcpy_write": (GPU, GPU, Pattern.PAIR, PUSH),
    "device_to_device_bidirectional_memcpy_read": (GPU, GPU, Pattern.BOTH_DIRECTIONS, PULL),
    "device_to_device_bidirectional_memcpy_write": (GPU, GPU, Pattern.BOTH_DIRECTIONS, PUSH),
    "all_to_one_write": (GPU, GPU, Pattern.ALL_TO_ONE, PUSH),
    "all_to_one_read": (GPU, GPU, Pattern.ALL_TO_ONE, PULL),
    "one_to_all_write": (GPU, GPU, Pattern.ONE_TO_ALL, PUSH),
    "one_to_all_read": (GPU, GPU, Pattern.ONE_TO_ALL, PULL),
}
BY_NAME = {case.name: case for case in CASES}


@pytest.mark.parametrize(
    ("name", "suffix", "engine"),
    [
        *((name, suffix, engine) for name in COPIES for suffix, engine in (("ce", CE), ("sm", SM))),
        *((name, "tma", TMA) for name in COPIES if name.startswith("device_to_device_")),
    ],
)
def test_a_copy_has_the_same_ends_engine_and_launcher(name: str, suffix: str, engine: Engine) -> None:
    source, destination, pattern, launcher = COPIES[name]
    case = BY_NAME[f"{name}_{suffix}"]
    assert (case.source, case.destination, case.engine, case.pattern) == (source, destination, engine, pattern)
    assert launcher in (None, case.initiator)
    assert (case.quantity, case.points, case.staged) == (Quantity.BANDWIDTH, (USUAL,), False)


@pytest.mark.parametrize(
    ("name", "memory", "engine"),
    [
        ("host_device_latency_sm", HOST, Engine.CHASE),
        ("device_to_device_latency_sm", GPU, Engine.CHASE),
        ("device_to_device_latency_tma", GPU, Engine.CHASE_BULK),
    ],
)
def test_a_latency_is_a_chain_of_neighbouring_lines_in_two_mib(name: str, memory: MemoryKind, engine: Engine) -> None:
    case = BY_NAME[name]
    assert (case.source, case.engine, case.pattern) == (memory, engine, Pattern.PAIR)
    assert case.chase is not None
    assert case.footprint is not None
    assert (case.chase.order, case.chase.stride_bytes) == (ChaseOrder.SEQUENTIAL, 128)
    assert (case.footprint.least_bytes, case.footprint.l2_times) == (2 << 20, 0)


@pytest.mark.parametrize(
    ("suffix", "source", "destination", "engine"),
    [
        ("copy", GPU, GPU, CE),
        ("copy_sm", GPU, GPU, SM),
        ("copy_tma", GPU, GPU, TMA),
        ("read_sm", GPU, MemoryKind.REGISTERS, Engine.SM_READ),
        ("write_sm", MemoryKind.REGISTERS, GPU, Engine.SM_WRITE),
    ],
)
def test_a_local_case_stays_within_one_gpu(
    suffix: str, source: MemoryKind, destination: MemoryKind, engine: Engine
) -> None:
    case = BY_NAME[f"device_local_{suffix}"]
    assert (case.source, case.destination, case.engine, case.pattern) == (source, destination, engine, Pattern.LOCAL)
