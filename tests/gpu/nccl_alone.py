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

WARM_UP, ITERATIONS, SAMPLES = 5, 20, 7


def rank(number: int, ranks: int, size_bytes: int, folder: Path) -> None:
    """Measure as one rank; rank 0 prints the result."""
    import torch
    import torch.distributed as dist

    torch.cuda.set_device(number)
    dist.init_process_group("nccl", init_method=f"file://{folder}/store", rank=number, world_size=ranks)
    buffer = torch.zeros(size_bytes // 4, dtype=torch.float32, device="cuda")
    for _ in range(WARM_UP):
        dist.all_reduce(buffer)
    times = []
    for _ in range(SAMPLES):
        dist.all_reduce(buffer)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(ITERATIONS):
            dist.all_reduce(buffer)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end) / ITERATIONS)
    slowest = torch.tensor(times, device="cuda")
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if number == 0:
        seconds = statistics.median(slowest.tolist()) / 1e3
        sys.stdout.write(f"{2 * (ranks - 1) / ranks * size_bytes / seconds / 1e9}\n")
        sys.stdout.flush()
    dist.destroy_process_group()


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
