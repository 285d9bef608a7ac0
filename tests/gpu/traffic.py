"""Traffic of another process, for runs beside it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
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


PUSH = """
import sys
from cuda.bindings import driver as cuda

def call(function, *arguments):
    error, *values = function(*arguments)
    assert error == cuda.CUresult.CUDA_SUCCESS, (function, error)
    return values[0] if values else None

SIZE = 256 << 20
call(cuda.cuInit, 0)
contexts = [call(cuda.cuDevicePrimaryCtxRetain, call(cuda.cuDeviceGet, gpu)) for gpu in (0, 1)]
buffers = []
for context in contexts:
    call(cuda.cuCtxSetCurrent, context)
    buffers.append(call(cuda.cuMemAlloc, SIZE))
call(cuda.cuCtxSetCurrent, contexts[0])
call(cuda.cuCtxEnablePeerAccess, contexts[1], 0)
streams = [call(cuda.cuStreamCreate, 1) for _ in range(2)]
print("pushing", flush=True)
while True:
    for stream in streams:
        for _ in range(8):
            call(cuda.cuMemcpyAsync, buffers[1], buffers[0], SIZE, stream)
    for stream in streams:
        call(cuda.cuStreamSynchronize, stream)
"""
"""Copies from GPU 0 to GPU 1 until it is killed."""
