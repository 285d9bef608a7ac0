"""NCCL's all_reduce by PyTorch alone, as a user measures it: ``python nccl_alone.py BYTES``, with nothing of egmctl.

One process per GPU; prints the median bus bandwidth of seven samples of 20 in GB/s, each as long as the slowest rank's.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WARM_UP, ITERATIONS, SAMPLES = 5, 20, 7


def rank(number: int, ranks: int, size_bytes: int, folder: Path) -> None:
    """Measure as one rank; rank 0 prints the result."""
    import torch  # type: ignore[import-not-found, unused-ignore]
    import torch.distributed as dist  # type: ignore[import-not-found, unused-ignore]

    torch_any: Any = torch
    torch_any.cuda.set_device(number)
    dist_any: Any = dist
    dist_any.init_process_group("nccl", init_method=f"file://{folder}/store", rank=number, world_size=ranks)
    buffer = torch_any.zeros(size_bytes // 4, dtype=torch_any.float32, device="cuda")
    for _ in range(WARM_UP):
        dist_any.all_reduce(buffer)
    times = []
    for _ in range(SAMPLES):
        dist_any.all_reduce(buffer)
        begin, end = (torch_any.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(ITERATIONS):
            dist_any.all_reduce(buffer)
        end.record()
        torch_any.cuda.synchronize()
        times.append(begin.elapsed_time(end) / ITERATIONS)
    slowest = torch_any.tensor(times, device="cuda")
    dist_any.all_reduce(slowest, op=dist_any.ReduceOp.MAX)
    if number == 0:
        seconds = statistics.median(slowest.tolist()) / 1e3
        sys.stdout.write(f"{2 * (ranks - 1) / ranks * size_bytes / seconds / 1e9}\n")
        sys.stdout.flush()
    dist_any.destroy_process_group()


def main() -> None:
    """Start the ranks, or be one."""
    if len(sys.argv) > 2:
        rank(int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[1]), Path(sys.argv[4]))
        return
    ranks = 2
    with tempfile.TemporaryDirectory() as folder:
        words = [sys.executable, __file__, sys.argv[1]]
        environment = {**os.environ, "NCCL_NVLS_ENABLE": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        started = [
            subprocess.Popen([*words, str(number), str(ranks), folder], env=environment) for number in range(ranks)
        ]
        codes = [process.wait(120) for process in started]
    sys.exit(max(map(abs, codes)))


if __name__ == "__main__":
    main()
