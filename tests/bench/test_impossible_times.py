"""A time that cannot be one is never made a bandwidth: the measurement fails and names what measured it."""

from __future__ import annotations

import math

import pytest

from egmctl.gpu.context import ImpossibleTime, possible_ms
from tests.bench.conftest import FEW, Bench

PAIR = ("bench", "--numa", "1", "--gpus", "0-1", *FEW, "--case", "device_to_device_memcpy_write_ce")


@pytest.mark.long
@pytest.mark.parametrize("answer", ["-1", "0", "1e-38", "nan", "inf", "1e9"])
def test_what_the_driver_says_in_place_of_a_time_is_a_failure_that_names_the_call(bench: Bench, answer: str) -> None:
    run = bench(*PAIR, faults=f"cuEventElapsedTime@1=answer:{answer}")
    failed = [m for m in run.measurements if m["status"] == "failed"]
    assert failed
    for measurement in failed:
        assert measurement["last_call"] == "cuEventElapsedTime"
        assert "cuEventElapsedTime said that the work took" in measurement["reason"]
        assert measurement["bandwidth_gb_s"] is None
    assert run.code == 4
    assert run.node.leaks() == []


def test_between_processes_too(bench: Bench) -> None:
    run = bench(*PAIR[:-1], "ipc_posix_fd_device_write_ce", faults="cuEventElapsedTime@1=answer:-1")
    failed = [m for m in run.measurements if m["status"] == "failed" and m["failed_rank"] is not None]
    assert failed
    assert {m["last_call"] for m in failed} == {"cuEventElapsedTime"}


@pytest.mark.parametrize("ms", [-1.0, 0.0, 1e-38, math.nan, math.inf, 10.2])
def test_impossible(ms: float) -> None:
    with pytest.raises(ImpossibleTime, match=r"took .* ms, and the host saw all of it take 10\.000 ms"):
        possible_ms("cuEventElapsedTime", ms, host_ms=10)


@pytest.mark.parametrize("ms", [1e-5, 5.0, 10.0, 10.05])
def test_possible(ms: float) -> None:
    assert possible_ms("cuEventElapsedTime", ms, host_ms=10) == ms
