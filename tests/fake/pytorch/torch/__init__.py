"""As much of PyTorch as ``egmctl/bench/nccl/torch_rank.py`` uses, on numpy arrays: its ranks exchange them by files.

``FAKE_TORCH`` names what goes wrong, and in which rank: ``die:1``, ``hang:1``, ``raise:0``, ``stop:1``, ``talk:1``
(ranks may be joined: ``cuda101:01``). ``FAKE_TORCH_MS`` has the milliseconds of an event pair by rank: ``3.2,3.3``.
"""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

import numpy as np

__version__ = "2.11.0+fake"
float32 = np.float32
RANK = 0
"""The rank of this process, once it has joined the group."""


class Tensor(np.ndarray):
    """An array with PyTorch's names."""

    def copy_(self, other: Any) -> Tensor:
        self[...] = other
        return self

    def fill_(self, value: float) -> Tensor:
        self[...] = value
        return self

    def expand_as(self, other: Any) -> Any:
        return np.broadcast_to(self, other.shape)

    def chunk(self, parts: int) -> Any:
        return [part.view(Tensor) for part in np.split(self, parts)]


def empty(shape: tuple[int, ...], dtype: Any, device: str) -> Tensor:
    assert device == "cuda"
    return np.zeros(shape, dtype).view(Tensor)


def empty_like(other: Tensor) -> Tensor:
    return np.zeros_like(other)


def arange(count: int, dtype: Any, device: str) -> Tensor:
    assert device == "cuda"
    return np.arange(count, dtype=dtype).view(Tensor)


def equal(one: Any, other: Any) -> bool:
    return np.array_equal(one, other)


def faulty(kind: str) -> bool:
    """Return whether this rank has a fault of a kind."""
    named, _, ranks = os.environ.get("FAKE_TORCH", "").partition(":")
    return named == kind and str(RANK) in ranks


class _Event:
    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        pass

    def elapsed_time(self, _end: _Event) -> float:
        if faulty("talk"):
            return -1.0
        return float(os.environ.get("FAKE_TORCH_MS", "3,3,3,3").split(",")[RANK])


def _set_device(number: int) -> None:
    assert number < len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))


cuda = SimpleNamespace(
    set_device=_set_device,
    synchronize=lambda: time.sleep(0),
    Event=_Event,
    nccl=SimpleNamespace(version=lambda: (2, 28, 9)),
)
