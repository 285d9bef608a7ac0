"""The project's kernels on the fake driver: the same names, the same parameters, the same bytes."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from egmctl.gpu.pattern import pattern_words
from egmctl.gpu.program import KERNELS
from tests.fake.machines import nvl4
from tests.fake.memory import launch
from tests.fake.plugin import MakeFakeNode
from tests.fake.process import code, cu, run_on, use_device

NOT_FOUND = 500
WORDS = 1000
VECTORS = WORDS // 2


def functions(names: list[str]) -> list[int]:
    use_device(0)
    module = cu("cuModuleLoadData", b"any bytes")
    return [code("cuModuleGetFunction", module, name.encode()) for name in names]


def test_every_kernel_of_the_project_is_known_and_no_other(fake_node: MakeFakeNode) -> None:
    names = [name for kernels in KERNELS.values() for name in kernels]
    assert run_on(fake_node(nvl4()), functions, [*names, "no_such_kernel"]) == [0] * len(names) + [NOT_FOUND]


def launch_every_kernel(parameters: dict[str, int]) -> list[int]:
    """Launch each with a closed gate's worth of zeros: what counts is the log of their arguments."""
    use_device(0)
    module = cu("cuModuleLoadData", b"any bytes")
    results = []
    for name, count in parameters.items():
        function = cu("cuModuleGetFunction", module, name.encode())
        arguments = tuple(range(1, count + 1)), (ctypes.c_ulonglong,) * count
        results.append(code("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, 0, arguments, 0))
    return results


def test_kernels_take_the_parameters_that_the_project_passes(fake_node: MakeFakeNode) -> None:
    parameters = {name: count for kernels in KERNELS.values() for name, count in kernels.items()}
    node = fake_node(nvl4())
    assert run_on(node, launch_every_kernel, parameters) == [0] * len(parameters)
    for call in node.calls("cuLaunchKernel"):
        passed = [value for key, value in call.arguments.items() if key.startswith("argument")]
        assert passed == [hex(number + 1) for number in range(parameters[call.arguments["kernel"]])]


def filled(seed: int) -> list[int]:
    use_device(0)
    address = int(cu("cuMemAlloc", 8 * WORDS))
    launch("fill_pattern", address, VECTORS, seed, 1, 1)
    words = (ctypes.c_uint64 * WORDS)()
    cu("cuMemcpyDtoH", words, address, 8 * WORDS)
    return list(words)


@pytest.mark.long
def test_fill_pattern_writes_what_the_project_s_pattern_is(fake_node: MakeFakeNode) -> None:
    node = fake_node(nvl4())
    for seed in (0, 1, 2**64 - 1):
        assert run_on(node, filled, seed) == _numbers(pattern_words(seed, 0, WORDS))


def _numbers(words: Any) -> list[int]:
    return [int(word) for word in np.asarray(words)]


def verified(damaged: list[int]) -> list[int]:
    """Fill, damage single words, verify; return the number of words that differ and the first of them."""
    use_device(0)
    address, result = int(cu("cuMemAlloc", 8 * WORDS)), int(cu("cuMemAlloc", 16))
    launch("fill_pattern", address, VECTORS, 3, 1, 1)
    for index in damaged:
        cu("cuMemsetD8", address + 8 * index, 0, 8)
    cu("cuMemsetD32", result, 0, 4)
    launch("verify_pattern", address, VECTORS, 3, result)
    found = (ctypes.c_uint64 * 2)()
    cu("cuMemcpyDtoH", found, result, 16)
    return [found[0], found[1] ^ 2**64 - 1]


def test_verify_pattern_counts_the_words_that_differ_and_names_the_first(fake_node: MakeFakeNode) -> None:
    node = fake_node(nvl4())
    assert run_on(node, verified, []) == [0, 2**64 - 1]
    assert run_on(node, verified, [999, 17, 500]) == [3, 17]


def rotated(passes: int) -> list[list[int]]:
    """Write, copy and sum, ten slots in turn; return the words at the destination, and the sums."""
    use_device(0)
    source, destination, sums = (int(cu("cuMemAlloc", 8 * WORDS)) for _ in range(3))
    cu("cuMemsetD32", destination, 0, 2 * WORDS)
    cu("cuMemsetD32", sums, 0, 4)
    launch("fill_pattern", source, VECTORS // 10, 5, 10, 10)
    launch("copy_vectors", destination, source, VECTORS // 10, passes, 10)
    launch("sum_vectors", source, VECTORS // 10, passes, 10, sums)
    launch("sum_pattern", WORDS // 10, 2 * WORDS // 10, 5, sums + 8)
    words, found = (ctypes.c_uint64 * WORDS)(), (ctypes.c_uint64 * 2)()
    cu("cuMemcpyDtoH", words, destination, 8 * WORDS)
    cu("cuMemcpyDtoH", found, sums, 16)
    return [list(words), list(found)]


def test_passes_take_slots_in_turn(fake_node: MakeFakeNode) -> None:
    node = fake_node(nvl4())
    pattern = _numbers(pattern_words(5, 0, WORDS))
    slots = [pattern[first : first + WORDS // 10] for first in range(0, WORDS, WORDS // 10)]
    second_and_third = sum(map(sum, slots[1:3])) % 2**64
    words, sums = run_on(node, rotated, 3)
    assert words == [*pattern[: 3 * WORDS // 10], *[0] * (7 * WORDS // 10)]
    assert sums == [sum(map(sum, slots[:3])) % 2**64, second_and_third]
    words, sums = run_on(node, rotated, 12)
    assert words == pattern
    assert sums == [(sum(pattern) + sum(map(sum, slots[:2]))) % 2**64, second_and_third]
