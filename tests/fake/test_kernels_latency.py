"""The kernels of latency on the fake driver, worked by the code that works real ones."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from egmctl.driver.cuda import call, initialise
from egmctl.gpu import chase
from egmctl.gpu.chase import FLAG_BYTES, LAPS_LIMIT, Chain, Reader, clear, place
from egmctl.gpu.context import Context
from egmctl.gpu.memory import DeviceMemory
from egmctl.gpu.program import Kernels
from egmctl.gpu.timing import Stream
from tests.fake.machines import nvl4
from tests.fake.plugin import MakeFakeNode
from tests.fake.process import run_on

LINES, STRIDE = 1000, 128


def readers(count: int) -> list[tuple[Context, Stream, Kernels]]:
    """Set up the first GPUs, each with access to all others."""
    initialise()
    contexts = [Context(f"000{domain}:01:00.0") for domain in (8, 9)[:count]]
    for context in contexts:
        for peer in contexts:
            if peer is not context:
                context.enable_access_to(peer)
    return [(context, Stream(context), Kernels(context)) for context in contexts]


def chain_in_memory(seed: int) -> list[int]:
    """Make a chain on a GPU and return every word of its lines."""
    ((context, stream, kernels),) = readers(1)
    memory = DeviceMemory(context, LINES * STRIDE)
    Chain(memory.address, memory.size_bytes, STRIDE, seed).make(stream, kernels)
    words = (ctypes.c_uint64 * (LINES * STRIDE // 8))()
    call("cuMemcpyDtoH", ctypes.addressof(words), memory.address, LINES * STRIDE)
    return list(words)


@pytest.mark.parametrize("seed", [0, 5])
def test_make_chain_links_the_lines_in_the_order_of_place(fake_node: MakeFakeNode, seed: int) -> None:
    words = run_on(fake_node(nvl4()), chain_in_memory, seed)
    order = [place(step, LINES, seed) for step in range(LINES)]
    links = dict(zip(order, [*order[1:], order[0]], strict=True))
    assert [words[line * STRIDE // 8] for line in range(LINES)] == [links[line] * STRIDE for line in range(LINES)]


def walks(damaged_line: int | None) -> list[Any]:
    """Walk along a peer's chain three times, once under load; return what was found of each."""
    (_, stream, kernels), (there, other, others_kernels) = readers(2)
    memory = DeviceMemory(there, LINES * STRIDE)
    chain = Chain(memory.address, memory.size_bytes, STRIDE, 3)
    chain.make(other, others_kernels)
    if damaged_line is not None:
        call("cuMemsetD8", memory.address + damaged_line * STRIDE, 0, 8)
    reader = Reader(stream, kernels)
    found = []
    for loads in (100, 900):
        reader.start_walk(chain, loads, warm=10)
        found.append(reader.end_walk(chain, loads))
    reader.start_loaded_walk(chain, 500, warm=0, data=memory, load_blocks=4)
    found.append(reader.end_loaded_walk(chain, 500))
    reader.close()
    return [(walk.latency_ns > 0, walk.wrong_offset, walk.load_gb_s > 0, walk.expired) for walk in found]


def test_walks_end_where_the_chain_leads(fake_node: MakeFakeNode) -> None:
    right = [True, None, False, False]
    assert run_on(fake_node(nvl4()), walks, None) == [right, right, [True, None, True, False]]


def test_a_walk_over_a_damaged_line_ends_elsewhere(fake_node: MakeFakeNode) -> None:
    found = run_on(fake_node(nvl4()), walks, place(500, LINES, 3))
    assert found[0][1] is None
    assert found[1][1] is not None


def ping_pong(deaf: bool) -> Any:
    """Send a flag to and fro; with ``deaf`` the other side never starts, and is soon given up."""
    chase.TIMEOUT_NS = 300_000_000 if deaf else chase.TIMEOUT_NS
    (here, stream, kernels), (there, other, others_kernels) = readers(2)
    mine, theirs = DeviceMemory(here, FLAG_BYTES), DeviceMemory(there, FLAG_BYTES)
    clear(stream, mine.address, FLAG_BYTES)
    clear(other, theirs.address, FLAG_BYTES)
    serving, answering = Reader(stream, kernels), Reader(other, others_kernels)
    if not deaf:
        answering.start_laps(theirs.address, mine.address, LAPS_LIMIT, serves=False)
    serving.start_laps(mine.address, theirs.address, LAPS_LIMIT, serves=True)
    laps = serving.end_laps(LAPS_LIMIT)
    return [len(laps), all(lap > 0 for lap in laps)]


def test_both_sides_of_a_ping_pong_see_every_lap(fake_node: MakeFakeNode) -> None:
    assert run_on(fake_node(nvl4()), ping_pong, False) == [LAPS_LIMIT, True]


def test_a_side_that_waits_in_vain_gives_up(fake_node: MakeFakeNode) -> None:
    assert run_on(fake_node(nvl4()), ping_pong, True) == [0, True]
