"""The cases within one GPU, and the walk by TMA, on one real GPU: every byte is compared, every walk ends right."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from egmctl.facts.collect import collect
from tests.conftest import ROOT, RunEgmctl, command_environment

pytestmark = pytest.mark.gpu

VERIFIED = {
    "device_local_copy": "gpu-every-sample",
    "device_local_copy_sm": "gpu-every-sample",
    "device_local_copy_tma": "gpu-every-sample",
    "device_local_read_sm": "checksum-every-sample",
    "device_local_write_sm": "gpu-every-sample",
}

WALKS = """
import sys
from egmctl.driver.cuda import call, initialise
from egmctl.gpu.chase import Chain, Reader, place
from egmctl.gpu.context import Context
from egmctl.gpu.memory import DeviceMemory
from egmctl.gpu.program import Kernels
from egmctl.gpu.timing import Stream
initialise()
context = Context(sys.argv[1])
kernels, stream = Kernels(context), Stream(context)
memory, reader = DeviceMemory(context, 2 << 20), Reader(stream, kernels)
for seed in (0, 3):
    for kernel in ("chase", "chase_bulk"):
        chain = Chain(memory.address, memory.size_bytes, 128, seed)
        chain.make(stream, kernels)
        for loads, blocks, block in ((1, 1, 0), (10_001, context.multiprocessors, 5), (40_000, 1, 0)):
            reader.start_walk(chain, loads, warm=1001, block=block, blocks=blocks, kernel=kernel)
            walk = reader.end_walk(chain, loads)
            assert walk.wrong_offset is None, (seed, kernel, loads)
            assert walk.elapsed_ns > 0 or loads == 1
        call("cuMemsetD8", memory.address + place(500, chain.lines, seed) * 128, 0, 8)
        chain.rewind()
        reader.start_walk(chain, 900, warm=0, kernel=kernel)
        assert reader.end_walk(chain, 900).wrong_offset is not None, (seed, kernel)
print("fine")
"""


@pytest.fixture(scope="module")
def bus_id() -> str:
    """Return the first GPU with TMA."""
    for gpu in collect(("gpus",)).gpus or ():
        if gpu.cuda is not None and (gpu.cuda.attributes.get("COMPUTE_CAPABILITY_MAJOR") or 0) >= 9:
            return gpu.bus_id
    pytest.skip("needs a GPU of compute capability 9.0")


def test_a_walk_by_tma_ends_where_one_by_loads_does_and_a_damaged_line_is_found(bus_id: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WALKS, bus_id],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=command_environment({}),
    )
    assert done.stdout == "fine\n", done.stderr


@pytest.mark.usefixtures("bus_id")
@pytest.mark.parametrize("size", ["512MiB", "70000048"])
def test_every_case_within_a_gpu_is_verified_and_crosses_no_link(egmctl: RunEgmctl, size: str) -> None:
    options = ("--gpus", "0", "--case", "device_local_*_sm", "--case", "device_local_copy*", "--size", size)
    ended = egmctl("bench", *options, "--samples", "3", "--no-verdict", "--json", timeout_s=200)
    measured: list[dict[str, Any]] = json.loads(ended.out)["result"]["measurements"]
    assert {m["case"]: m["verification"] for m in measured} == VERIFIED, ended.out[:3000]
    for m in measured:
        assert m["status"] in ("ok", "unstable"), (m["case"], m["reason"])
        assert m["bandwidth_gb_s"]["min"] > 0
        assert all(not flow["route"]["hops"] for flow in m["flows"])
