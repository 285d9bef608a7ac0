"""One rank of NCCL by PyTorch: the target of a process per GPU, and the only file that imports torch.

The processes find each other by a file (``torch.distributed``'s FileStore), so they need no port. Collectives run on
NCCL's own stream; the current stream waits for them, so events on it enclose them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib import import_module
from typing import Any

from egmctl.launch import Channel

BLOCK = 1024
"""The number of values after which the pattern in a buffer repeats; sizes are multiples of it for each rank."""
VALUE_BYTES = 4
WARM_UP = 5
"""The number of collectives before the first sample: NCCL connects the ranks in the first one."""
_POISON = -1.0


def run(parent: Channel, arguments: dict[str, Any]) -> None:
    """Measure the collectives of a plan as one rank, and report each to the parent.

    Parameters
    ----------
    arguments
        ``rank``, ``ranks``, ``device`` (the CUDA device), ``store`` (the file by which the ranks find each other),
        ``collectives``, ``size_bytes``, ``iterations``, ``samples``, ``timeout_s``.
    """
    torch: Any = import_module("torch")
    dist: Any = import_module("torch.distributed")
    rank, ranks = arguments["rank"], arguments["ranks"]
    torch.cuda.set_device(arguments["device"])
    version = ".".join(map(str, torch.cuda.nccl.version()))
    parent.send({"event": "started", "versions": {"torch": torch.__version__, "nccl": version}})
    dist.init_process_group(
        "nccl",
        init_method=f"file://{arguments['store']}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=arguments["timeout_s"]),
    )
    for name in arguments["collectives"]:
        buffers = _MAKE[name](torch, dist, rank, ranks, arguments["size_bytes"] // VALUE_BYTES)
        for _ in range(WARM_UP):
            buffers.call()
        measured = []
        for _ in range(arguments["samples"]):
            measured.append(_sample(torch, buffers, arguments["iterations"]))
            # Many samples take longer than it takes to be sure that something hangs.
            parent.send({"event": "sampled"})
        parent.send(
            {
                "event": "measured",
                "collective": name,
                "elapsed_ms": [elapsed_ms for elapsed_ms, _ in measured],
                "right": all(right for _, right in measured),
            }
        )
        del buffers
    dist.destroy_process_group()


class _Buffers:
    """The buffers of one collective, and what their contents must be after it."""

    def __init__(self, call: Callable[[], object], fill: Callable[[], object], is_right: Callable[[], bool]) -> None:
        self.call = call
        self.fill = fill
        """Writes the source, and poison where the result will be."""
        self.is_right = is_right


def _sample(torch: Any, buffers: _Buffers, iterations: int) -> tuple[float, bool]:
    """Return the milliseconds of one collective on this GPU, and whether one more left the right values."""
    buffers.fill()
    # One more before the first event: all ranks leave it at the same time, however late one of them has come.
    buffers.call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(iterations):
        buffers.call()
    end.record()
    torch.cuda.synchronize()
    elapsed_ms = begin.elapsed_time(end) / iterations
    # A sum in place is not the sum of the first buffers after several rounds, so one more round is checked alone.
    buffers.fill()
    buffers.call()
    torch.cuda.synchronize()
    return elapsed_ms, buffers.is_right()


def _pattern(torch: Any, rank: int) -> Any:
    """Return the values of a block of a rank: small whole numbers, whose sums are exact."""
    return torch.arange(BLOCK, dtype=torch.float32, device="cuda") + rank


def _all_reduce(torch: Any, dist: Any, rank: int, ranks: int, values: int) -> _Buffers:
    buffer = torch.empty((values // BLOCK, BLOCK), dtype=torch.float32, device="cuda")
    own = _pattern(torch, rank)
    total = _pattern(torch, 0) * ranks + ranks * (ranks - 1) // 2
    return _Buffers(
        lambda: dist.all_reduce(buffer),
        lambda: buffer.copy_(own),
        lambda: bool(torch.equal(buffer, total.expand_as(buffer))),
    )


def _all_gather(torch: Any, dist: Any, rank: int, ranks: int, values: int) -> _Buffers:
    gathered = torch.empty((values // BLOCK, BLOCK), dtype=torch.float32, device="cuda")
    parts = gathered.chunk(ranks)
    part = torch.empty_like(parts[0])
    own = _pattern(torch, rank)

    def fill() -> None:
        part.copy_(own)
        gathered.fill_(_POISON)

    def is_right() -> bool:
        return all(bool(torch.equal(piece, _pattern(torch, of).expand_as(piece))) for of, piece in enumerate(parts))

    return _Buffers(lambda: dist.all_gather_into_tensor(gathered, part), fill, is_right)


def _sendrecv(torch: Any, dist: Any, rank: int, ranks: int, values: int) -> _Buffers:
    """Return the buffers of a ring: each rank sends to the next one and receives from the one before it."""
    sent = torch.empty((values // BLOCK, BLOCK), dtype=torch.float32, device="cuda")
    received = torch.empty_like(sent)
    own, previous = _pattern(torch, rank), _pattern(torch, (rank - 1) % ranks)

    def call() -> None:
        both = (
            dist.P2POp(dist.isend, sent, (rank + 1) % ranks),
            dist.P2POp(dist.irecv, received, (rank - 1) % ranks),
        )
        for request in dist.batch_isend_irecv(list(both)):
            request.wait()

    def fill() -> None:
        sent.copy_(own)
        received.fill_(_POISON)

    return _Buffers(call, fill, lambda: bool(torch.equal(received, previous.expand_as(received))))


_MAKE: Mapping[str, Callable[[Any, Any, int, int, int], _Buffers]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "sendrecv": _sendrecv,
}
