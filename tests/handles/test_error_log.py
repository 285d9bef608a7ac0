"""A failed call carries the driver's own reason, where CUDA's error log has one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from egmctl.driver import cuda
from egmctl.errors import DriverCallError
from tests.fake.machines import nvl4
from tests.fake.plugin import MakeFakeNode
from tests.fake.process import run_on

pytestmark = pytest.mark.processes

REASON = "Failed to allocate physical memory"


def failures(*calls: str) -> list[tuple[str, str]]:
    """Initialise CUDA, make calls that fail, and return the text and the driver's words of each failure."""
    cuda.initialise()
    device = cuda.call("cuDeviceGet", 0)
    cuda.call("cuCtxSetCurrent", cuda.call("cuDevicePrimaryCtxRetain", device))
    result = []
    for name in calls:
        given: tuple[Any, ...] = (4096,)
        if name == "cuMemCreate":
            given = (2 << 20, cuda.bindings().CUmemAllocationProp(), 0)
        try:
            cuda.call(name, *given)
        except DriverCallError as error:
            result.append((str(error), error.log))
    return result


def test_the_reason_is_that_of_the_call_that_failed_last(fake_node: MakeFakeNode) -> None:
    faults = "cuMemCreate@1=error:800; cuMemAlloc=error:2"
    assert run_on(fake_node(nvl4()), failures, "cuMemCreate", "cuMemAlloc", faults=faults) == [
        [f"cuMemCreate failed: CUDA_ERROR_NOT_PERMITTED (800: {REASON})", REASON],
        ["cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY (2)", ""],
    ]


@pytest.mark.unit
def test_a_driver_without_a_log_gives_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda _name: SimpleNamespace())
    assert cuda._words("cuMemCreate") == ""


LOG = "[03:06:38.965]{}[CUDA][E] {}\n"


@pytest.mark.unit
@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([(1, REASON), (1, "Returning 800 (CUDA_ERROR_NOT_PERMITTED) from cuMemCreate_v2")], REASON),
        ([(2, REASON), (1, "Returning 800 (CUDA_ERROR_NOT_PERMITTED) from cuMemCreate")], ""),
        (
            [
                (1, "Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuGetProcAddress_v2"),
                (1, "Returning 2 (X) from cuMemCreate"),
            ],
            "",
        ),
        ([(1, REASON), (1, "Returning 2 (CUDA_ERROR_OUT_OF_MEMORY) from cuMemAlloc_v2")], ""),
        ([(1, REASON), (1, "Returning 2 (X) from cuMemCreate"), (2, "Returning 1 (X) from cuMemFree")], REASON),
        ([], ""),
    ],
)
def test_only_the_words_before_this_threads_own_failure_count(
    monkeypatch: pytest.MonkeyPatch, lines: list[tuple[int, str]], reason: str
) -> None:
    text = "".join(LOG.format(f"[{thread}]", message) for thread, message in lines).encode()

    def dump(_iterator: None, buffer: Any, size: Any, _flags: int) -> int:
        buffer.value, size._obj.value = text, len(text)
        return 0

    monkeypatch.setattr("ctypes.CDLL", lambda _name: SimpleNamespace(cuLogsDumpToMemory=dump))
    monkeypatch.setattr("threading.get_ident", lambda: 1)
    assert cuda._words("cuMemCreate") == reason
