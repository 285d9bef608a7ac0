"""A real Xid: a kernel that stores out of bounds is found in the kernel's log, and blamed on the application."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from egmctl.facts.kernel_log import KernelLogWatch
from egmctl.facts.root import Root
from egmctl.model.kernel_log import EventKind
from tests.conftest import ROOT, RunEgmctl, command_environment

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK), reason="/dev/kmsg cannot be read"),
]

OUT_OF_BOUNDS = """
from egmctl.driver.cuda import call
from cuda.bindings import driver, nvrtc

source = b'extern "C" __global__ void store(int* p) { *p = 1; }'
_, program = nvrtc.nvrtcCreateProgram(source, b"store.cu", 0, [], [])
call("cuInit", 0)
device = call("cuDeviceGet", 0)
context = call("cuDevicePrimaryCtxRetain", device)
call("cuCtxSetCurrent", context)
major = call("cuDeviceGetAttribute", driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device)
minor = call("cuDeviceGetAttribute", driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device)
assert int(nvrtc.nvrtcCompileProgram(program, 1, [b"-arch=sm_%d%d" % (major, minor)])[0]) == 0
_, size = nvrtc.nvrtcGetCUBINSize(program)
cubin = b" " * size
nvrtc.nvrtcGetCUBIN(program, cubin)
module = call("cuModuleLoadData", cubin)
kernel = call("cuModuleGetFunction", module, b"store")
import ctypes
call("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, 0, ((0x40000000000,), (ctypes.c_void_p,)), 0)
print(int(driver.cuCtxSynchronize()[0]))
"""
"""Prints 700, CUDA_ERROR_ILLEGAL_ADDRESS."""


def store_out_of_bounds() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", OUT_OF_BOUNDS],
        cwd=ROOT,
        env=command_environment({}),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.stdout.strip() == "700", ended.stderr


def test_an_out_of_bounds_store_is_the_applications_fault(egmctl: RunEgmctl) -> None:
    watch = KernelLogWatch(Root())
    store_out_of_bounds()
    (xid,) = [event for event in watch.events() if event.kind is EventKind.XID]
    watch.close()
    assert (xid.number, xid.process) == (31, os.path.basename(sys.executable))

    found = egmctl("doctor", "--check", "kernel.*", "--json")
    assert found.code == 0
    findings = [one for one in json.loads(found.out)["result"]["findings"] if one["check"] == "kernel.xid"]
    assert {finding["status"] for finding in findings} == {"note", "pass"}
    # Other tests make GPUs read what they may not: an earlier Xid 31 of another GPU is a finding of its own.
    (noted,) = [
        finding
        for finding in findings
        if finding["summary"].startswith("Xid 31, ") and xid.bus_id in finding["place"]["ids"]
    ]
    assert (noted["status"], noted["place"]["kind"]) == ("note", "gpu")
    assert "application" in noted["cause"]


def test_a_bench_says_which_messages_came_while_it_ran(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "egmctl", "bench", "--quick", "--allow-busy", "--samples", "20", "--json"]
    with subprocess.Popen(
        [*command, "--journal", str(tmp_path)],
        cwd=ROOT,
        env=command_environment({"EGMCTL_NO_JOURNAL": None}),
        stdout=subprocess.PIPE,
        text=True,
    ) as bench:
        until = time.monotonic() + 60
        while not any('"event":"step"' in path.read_text() for path in tmp_path.glob("*.journal")):
            assert time.monotonic() < until
            time.sleep(0.05)
        store_out_of_bounds()
        out, _ = bench.communicate(timeout=110)
    result = json.loads(out)["result"]
    assert result["kernel_messages"].get("unread") is None
    assert 31 in [one["number"] for one in result["kernel_messages"]["events"]]
    (journal,) = tmp_path.glob("*.journal")
    kinds = [json.loads(line)["event"] for line in journal.read_text().splitlines()]
    assert "kernel" in kinds
    assert result["verdict"] is None or not any("Xid" in one for one in result["verdict"]["warnings"])
