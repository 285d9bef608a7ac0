"""Who uses GPUs and how much of their memory, as nvidia-smi shows it."""

from __future__ import annotations

import subprocess


def used_memory_mib() -> list[int]:
    """Return what nvidia-smi shows as used on each GPU."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return [int(line) for line in subprocess.check_output(query, text=True).split()]


def compute_processes() -> list[str]:
    """Return the processes that nvidia-smi shows on the GPUs."""
    query = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    return subprocess.check_output(query, text=True).split()


def is_given_back(before_mib: list[int], *, more_mib: int = 0) -> bool:
    """Say whether nobody computes and each GPU's memory is as before, or at most so much more."""
    used_mib = used_memory_mib()
    within = all(now <= then + more_mib for now, then in zip(used_mib, before_mib, strict=True))
    return not compute_processes() and (within if more_mib else used_mib == before_mib)
