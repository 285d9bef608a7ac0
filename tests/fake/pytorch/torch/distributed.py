"""The collectives of the fake PyTorch, and its faults. It logs what NCCL 2.28 logs (hosts and addresses changed)."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import torch

_LOG = """\
host:{pid}:{pid} [{rank}] NCCL INFO NCCL_NVLS_ENABLE set by environment to {nvls}.
host:{pid}:{pid} [{rank}] NCCL INFO NCCL version 2.28.9+cuda13.0
host:{pid}:{pid} [{rank}] NCCL INFO 24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels, 32 p2p channels per peer
host:{pid}:{pid} [{rank}] NCCL INFO Channel 00/0 : {rank}[{rank}] -> {next}[{next}] via P2P/CUMEM
host:{pid}:{pid} [{rank}] NCCL INFO Channel 01/0 : {rank}[{rank}] -> {next}[{next}] via P2P/CUMEM
"""  # noqa: E501 - as NCCL writes it
_WARNING = "host:{pid}:{pid} [{rank}] transport/p2p.cc:275 NCCL WARN Cuda failure 101 'invalid device ordinal'\n"
_FOLDER = Path()
_RANKS = 0
_ROUND = itertools.count()


class DistBackendError(RuntimeError):
    """What ``torch.distributed`` raises where NCCL fails."""


def init_process_group(backend: str, init_method: str, rank: int, world_size: int, timeout: timedelta) -> None:
    global _FOLDER, _RANKS
    assert backend == "nccl"
    assert timeout.total_seconds() > 0
    torch.RANK, _RANKS = rank, world_size
    _FOLDER = Path(f"{init_method.removeprefix('file://')}.exchange")
    _FOLDER.mkdir(exist_ok=True)
    nvls = os.environ.get("NCCL_NVLS_ENABLE", "1")
    log = Path(os.environ["NCCL_DEBUG_FILE"])
    log.write_text(_LOG.format(pid=os.getpid(), rank=rank, next=(rank + 1) % world_size, nvls=nvls))
    if torch.faulty("cuda101"):
        with log.open("a") as file:
            file.write(_WARNING.format(pid=os.getpid(), rank=rank))
        raise DistBackendError(
            "NCCL error in: ProcessGroupNCCL.cpp:94, unhandled cuda error, NCCL version 2.28.9\n"
            "ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n"
            "Cuda failure 101 'invalid device ordinal'"
        )
    if torch.faulty("raise"):
        raise DistBackendError("no reason is known")
    if torch.faulty("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    if torch.faulty("stop"):
        os._exit(0)
    while torch.faulty("hang"):
        signal.pause()


def destroy_process_group() -> None:
    pass


def _exchange(own: Any) -> list[Any]:
    """Write this rank's array, and return those of all ranks once they are there."""
    number = next(_ROUND)
    mine = _FOLDER / f"{number}.{torch.RANK}.npy"
    np.save(mine.with_suffix(".part.npy"), own)
    mine.with_suffix(".part.npy").rename(mine)
    paths = [_FOLDER / f"{number}.{rank}.npy" for rank in range(_RANKS)]
    while not all(path.exists() for path in paths):
        time.sleep(0.001)
    return [np.load(path) for path in paths]


def all_reduce(buffer: Any) -> None:
    buffer.copy_(sum(_exchange(buffer)))
    if torch.faulty("wrong"):
        buffer[0, 0] += 1


def all_gather_into_tensor(gathered: Any, part: Any) -> None:
    gathered.copy_(np.concatenate(_exchange(part)))


class P2POp(NamedTuple):
    """A send or a receive of a batch."""

    kind: str
    buffer: Any
    peer: int


isend, irecv = "send", "receive"


class _Request:
    def wait(self) -> None:
        pass


def batch_isend_irecv(operations: Sequence[P2POp]) -> list[_Request]:
    sent, received = operations
    assert (sent.kind, received.kind) == (isend, irecv)
    assert sent.peer == (torch.RANK + 1) % _RANKS
    received.buffer.copy_(_exchange(sent.buffer)[received.peer])
    return [_Request(), _Request()]
