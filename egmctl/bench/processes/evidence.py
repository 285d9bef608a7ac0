"""What the processes have seen of their GPUs, put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from egmctl.bench.evidence import Watch, gpus_of, route
from egmctl.bench.processes.exchange import Item
from egmctl.gpu.counters import Traffic
from egmctl.model.codec import from_json, to_json
from egmctl.model.evidence import Evidence, GpuEvidence
from egmctl.model.measurement import Task
from egmctl.model.rank import Rank

if TYPE_CHECKING:
    from egmctl.bench.processes.context import WorkerContext


def told(watch: Watch, worker: WorkerContext) -> dict[str, Any]:
    """Return what this process has seen of its GPUs, as JSON data."""
    return {
        "gpus": [to_json(gpu) for gpu in watch.seen(worker.gpus)],
        "traffic": {bus_id: [dict(of.sent_bytes), dict(of.received_bytes)] for bus_id, of in watch.traffic.items()},
        "unread": watch.unread,
    }


def gathered(
    task: Task, samples: int, ranks: Sequence[Rank], items: Sequence[Item], key: str | None = None
) -> Evidence:
    """Return what ranks have told (:func:`told`; under a key, if there is one) of the GPUs of a task.

    The route is confirmed by link counters on one node only: GPUs of several nodes may have the same bus id.
    """
    parts = [item.data[key] if key else item.data for item in items]
    gpus = [
        replace(gpu, label=ranks[number].label) if ranks else gpu
        for number, part in enumerate(parts)
        if number in (task.ranks or (0,))
        for gpu in _of(task, [from_json(GpuEvidence, gpu) for gpu in part["gpus"]])
    ]
    traffic = {bus_id: Traffic(*rises) for part in parts for bus_id, rises in part["traffic"].items()}
    one_node = len({rank.host for rank in ranks}) <= 1
    return Evidence(
        gpus=tuple(gpus),
        route=route(task, samples, traffic) if one_node else None,
        unread=next((part["unread"] for part in parts if part["unread"]), None),
    )


def _of(task: Task, seen: Sequence[GpuEvidence]) -> list[GpuEvidence]:
    """Return those of a task in the order of its flows; a process of several has one GPU, of one task at a time."""
    if len(seen) == 1:
        return list(seen)
    by_bus_id = {gpu.bus_id: gpu for gpu in seen}
    return [by_bus_id[bus_id] for bus_id in gpus_of([task]) if bus_id in by_bus_id]
