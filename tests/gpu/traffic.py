"""Traffic of another process, for runs beside it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def pushing() -> Iterator[None]:
    """Have another process copy from GPU 0 to GPU 1 meanwhile."""
    with subprocess.Popen([sys.executable, "-c", PUSH], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "pushing\n"
            yield
        finally:
            process.kill()


@contextmanager
def copying(way: str, seconds: float) -> Iterator[Callable[[], float]]:
    """Have another process copy from GPU 0 to pinned memory (``to-host``), back (``from-host``) or to GPU 1 (``peer``).

    Yield a function that waits for its end and returns the GB/s that it counted itself.
    """
    command = [sys.executable, "-c", PUSH, way, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "pushing\n"
            yield lambda: float(process.communicate()[0])
        finally:
            process.kill()


PUSH = """
import sys, time
from cuda.bindings import driver as cuda

def call(function, *arguments):
    error, *values = function(*arguments)
    assert error == cuda.CUresult.CUDA_SUCCESS, (function, error)
    return values[0] if values else None

SIZE = 256 << 20
call(cuda.cuInit, 0)
way = sys.argv[1] if len(sys.argv) > 1 else "peer"
with_host = way in ("to-host", "from-host")
seconds = float(sys.argv[2]) if len(sys.argv) > 2 else float("inf")
contexts = [call(cuda.cuDevicePrimaryCtxRetain, call(cuda.cuDeviceGet, gpu)) for gpu in (0, 1)[:1 if with_host else 2]]
buffers = []
for context in contexts:
    call(cuda.cuCtxSetCurrent, context)
    buffers.append(call(cuda.cuMemAlloc, SIZE))
call(cuda.cuCtxSetCurrent, contexts[0])
if with_host:
    buffers.append(call(cuda.cuMemHostAlloc, SIZE, 1))
else:
    call(cuda.cuCtxEnablePeerAccess, contexts[1], 0)
if way == "from-host":
    buffers.reverse()
streams = [call(cuda.cuStreamCreate, 1) for _ in range(2)]
print("pushing", flush=True)
begun, copied = time.monotonic(), 0
while time.monotonic() < begun + seconds:
    for stream in streams:
        for _ in range(8):
            call(cuda.cuMemcpyAsync, int(buffers[1]), int(buffers[0]), SIZE, stream)
            copied += SIZE
    for stream in streams:
        call(cuda.cuStreamSynchronize, stream)
print(copied / (time.monotonic() - begun) / 1e9)
"""
"""Copies from GPU 0 to GPU 1, or with "to-host" to pinned memory, with "from-host" from there: for some seconds, or
until it is killed."""
