"""The fault plan of the fake driver: each thing that can go wrong goes wrong where the plan says, and nowhere else."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.fake.build import CUDA, NVML
from tests.fake.machines import nvl4, with_cuda_version
from tests.fake.plugin import MakeFakeNode
from tests.fake.process import ABORTED, code, cu, ending_on, run_on, start_on, use_device


def three_allocations() -> list[int]:
    use_device(0)
    return [code("cuMemAlloc", 4096) for _ in range(3)]


@pytest.mark.parametrize(
    ("faults", "results"),
    [
        ("", [0, 0, 0]),
        ("cuMemAlloc@2=error:2", [0, 2, 0]),
        ("cuMemAlloc=error:999", [999, 999, 999]),
        ("cuMemAlloc@1=error:2; cuMemAlloc@3=error:46", [2, 0, 46]),
        ("cuMemFree@1=error:1", [0, 0, 0]),
    ],
)
def test_the_nth_call_returns_an_error(fake_node: MakeFakeNode, faults: str, results: list[int]) -> None:
    node = fake_node(nvl4())
    assert run_on(node, three_allocations, faults=faults) == results
    assert [call.injected for call in node.calls("cuMemAlloc")] == [result != 0 for result in results]


def test_a_call_hangs(fake_node: MakeFakeNode) -> None:
    node = fake_node(nvl4())
    with start_on(node, three_allocations, faults="cuInit@1=hang") as process:
        deadline = time.monotonic() + 30
        while not node.calls("cuInit") and time.monotonic() < deadline:
            time.sleep(0.05)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.3)
        process.kill()
        process.communicate()
    (call,) = node.calls("cuInit")
    assert (call.ending, call.result) == ("hang", None)


@pytest.mark.parametrize(
    ("action", "status", "ending"),
    [("exit:9", 9, "exit"), ("abort", ABORTED, "kill"), (f"kill:{signal.SIGKILL:d}", -signal.SIGKILL, "kill")],
)
def test_a_call_ends_the_process(fake_node: MakeFakeNode, action: str, status: int, ending: str) -> None:
    node = fake_node(nvl4())
    assert ending_on(node, three_allocations, faults=f"cuMemAlloc@2={action}") == status
    assert [call.ending for call in node.calls("cuMemAlloc")] == [None, ending]


def copies() -> list[list[int]]:
    """Copy 8 zeros three times, each time to a place of its own, and return what came."""
    use_device(0)
    source = cu("cuMemAlloc", 8)
    cu("cuMemsetD8", source, 0, 8)
    found = []
    for _ in range(3):
        to = cu("cuMemAlloc", 8)
        cu("cuMemcpyDtoDAsync", to, source, 8, 0)
        bytes_ = ctypes.create_string_buffer(8)
        cu("cuMemcpyDtoH", bytes_, to, 8)
        found.append(list(bytes_.raw))
    return found


def test_a_copy_damages_one_byte(fake_node: MakeFakeNode) -> None:
    found = run_on(fake_node(nvl4()), copies, faults="cuMemcpyDtoDAsync@2=corrupt:3")
    assert found == [[0] * 8, [0, 0, 0, 0xFF, 0, 0, 0, 0], [0] * 8]


def repeated_copies() -> list[int]:
    use_device(0)
    source, to = cu("cuMemAlloc", 8), cu("cuMemAlloc", 8)
    cu("cuMemsetD8", source, 0, 8)
    for _ in range(3):
        cu("cuMemcpyDtoDAsync", to, source, 8, 0)
    bytes_ = ctypes.create_string_buffer(8)
    cu("cuMemcpyDtoH", bytes_, to, 8)
    return list(bytes_.raw)


def test_a_later_copy_heals_what_an_earlier_one_damaged(fake_node: MakeFakeNode) -> None:
    node = fake_node(nvl4())
    assert run_on(node, repeated_copies, faults="cuMemcpyDtoDAsync@2=corrupt:3") == [0] * 8
    assert run_on(node, repeated_copies, faults="cuMemcpyDtoDAsync@3=corrupt:3")[3] == 0xFF


def test_a_fault_that_happens_once_happens_in_one_process(fake_node: MakeFakeNode) -> None:
    node = fake_node(nvl4())
    environment = {name: value for name, value in node.environment("cuMemAlloc@2=error:2,once").items() if value}
    # Processes under one plan; run_on would make a plan of its own for each.
    results = [run_on(node, three_allocations, faults="", environment=environment)]
    node_state = Path(environment["EGMCTL_FAKE_STATE"])
    (node_state / "fault-0").touch()
    results.append(_under(environment))
    assert results == [[0, 2, 0], [0, 0, 0]]


def _under(environment: dict[str, str]) -> list[int]:
    import json
    import sys

    program = "import json; from tests.fake.test_faults import *; print(json.dumps(three_allocations()))"
    variables = {**os.environ, **environment, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run([sys.executable, "-c", program], env=variables, capture_output=True, check=True)
    results: list[int] = json.loads(done.stdout)
    return results


# --- a driver that lacks something ------------------------------------------------------------------------------------


def what_is_raised(call: str) -> str:
    from cuda.bindings import driver

    try:
        getattr(driver, call)(0)
    except RuntimeError as error:
        return str(error)
    return "nothing"


def test_a_function_is_missing_from_libcuda(fake_node: MakeFakeNode) -> None:
    node = fake_node(nvl4())
    assert run_on(node, what_is_raised, "cuMemRelease", faults="cuMemRelease=missing") == (
        "function cuMemRelease is not found"
    )
    assert run_on(node, what_is_raised, "cuInit", faults="cuMemRelease=missing") == "nothing"


def test_a_driver_has_no_function_that_is_newer_than_itself(fake_node: MakeFakeNode) -> None:
    # cuMemGetInfo is of CUDA 3.2, cuMemCreate of 10.2.
    node = fake_node(with_cuda_version(nvl4(), 10010))
    assert run_on(node, what_is_raised, "cuMemRelease") == "function cuMemRelease is not found"
    assert run_on(node, what_is_raised, "cuInit") == "nothing"


def test_there_is_no_libcuda(fake_node: MakeFakeNode) -> None:
    node = fake_node(nvl4(), libraries=(NVML,))
    assert "libcuda" in run_on(node, what_is_raised, "cuInit") or "NVIDIA driver library" in run_on(
        node, what_is_raised, "cuInit"
    )


def ask_nvml() -> str:
    import pynvml

    try:
        pynvml.nvmlInit()
        first = pynvml.nvmlDeviceGetHandleByIndex(0)
        return str(pynvml.nvmlDeviceGetAddressingMode(first))
    except pynvml.NVMLError as error:
        return type(error).__name__


@pytest.mark.parametrize(
    ("faults", "answer"),
    [
        ("", "2"),
        ("nvmlInit=error:9", "NVMLError_DriverNotLoaded"),
        ("nvmlInit=error:999", "NVMLError_Unknown"),
        ("nvmlDeviceGetHandleByIndex@1=error:15", "NVMLError_GpuIsLost"),
        ("nvmlDeviceGetAddressingMode=missing", "NVMLError_FunctionNotFound"),
        ("nvmlDeviceGetHandleByIndex=missing", "NVMLError_FunctionNotFound"),
    ],
)
def test_nvml_fails(fake_node: MakeFakeNode, faults: str, answer: str) -> None:
    assert run_on(fake_node(nvl4()), ask_nvml, faults=faults) == answer


def test_there_is_no_nvml(fake_node: MakeFakeNode) -> None:
    assert run_on(fake_node(nvl4(), libraries=(CUDA,)), ask_nvml) == "NVMLError_LibraryNotFound"


@pytest.mark.long
def test_a_plan_that_makes_no_sense_is_no_plan(fake_node: MakeFakeNode) -> None:
    for plan in ("cuInit@1=explode", "cuInit", "cuInit=error:"):
        assert ending_on(fake_node(nvl4()), three_allocations, faults=plan) == ABORTED
    with pytest.raises(ValueError, match="nvmlDeviceGetNothing"):
        fake_node(nvl4()).environment("nvmlDeviceGetNothing=missing")
