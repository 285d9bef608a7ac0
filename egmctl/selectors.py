"""The values of ``--gpus`` and ``--numa``: ``0-3,5``, ``0-7/2``, ``all``, ``local``, UUID prefixes, PCI bus ids.

The given order is kept and duplicates are dropped. A part that names nothing raises
:class:`~egmctl.errors.UsageError`: its message names the part, then lists what exists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from egmctl.errors import UsageError
from egmctl.model.gpu import Gpu
from egmctl.model.machine import Machine
from egmctl.units import format_kernel_list, printable

T = TypeVar("T")

_NUMBERS = re.compile(r"(?P<first>[0-9]{1,18})(?:-(?P<last>[0-9]{1,18})(?:/(?P<step>[0-9]{1,18}))?)?")
_BUS_ID = re.compile(
    r"(?:(?P<domain>[0-9a-f]{1,8}):)?(?P<bus>[0-9a-f]{1,2}):(?P<device>[0-9a-f]{1,2})(?:\.(?P<function>[0-7]))?"
)


def select_gpus(text: str, gpus: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs that ``text`` names, in its order.

    Parameters
    ----------
    text
        A comma-separated list of ``all``, indices (``0``, ``0-3``, ``0-7/2``), UUIDs or unique prefixes of a UUID
        (``GPU-4c1f``), and PCI bus ids with or without the domain (``0000:1b:00.0``).
    gpus
        The GPUs of the machine.

    Raises
    ------
    UsageError
        A part of ``text`` is malformed or names no GPU, or nothing is selected.
    """
    by_index = {gpu.index: gpu for gpu in gpus}
    exist = f"the GPUs here are {format_kernel_list(set(by_index))}" if by_index else "there is no GPU here"

    def find(part: str) -> Iterable[Gpu]:
        if part.lower().startswith("gpu-"):
            named = [gpu for gpu in gpus if gpu.uuid is not None and gpu.uuid.lower().startswith(part.lower())]
        elif ":" in part:
            named = [gpu for gpu in gpus if _is_at(gpu.bus_id, part)]
        else:
            return _numbered(part, by_index, "--gpus", "GPU", exist)
        if len(named) != 1:
            fits = (
                f"fits {', '.join(f'GPU{gpu.index}' for gpu in named)}" if named else "is no GPU's UUID or PCI bus id"
            )
            raise UsageError(f"--gpus {_quote(part)} {fits}; {exist} (egmctl topo -v shows their UUIDs and bus ids)")
        return named

    return _select(text, "--gpus", find, tuple(gpus), exist)


def select_numa(text: str, machine: Machine, gpus: Sequence[Gpu] | None = None) -> tuple[int, ...]:
    """Return the ids of the NUMA nodes that ``text`` names, in its order.

    Parameters
    ----------
    text
        A comma-separated list of ``all``, ``local`` (the host nodes of ``gpus``) and ids (``1``, ``0-1``). Only nodes
        with CPUs can be selected: a GPU's own memory is not host memory.
    machine
        The machine that has the nodes.
    gpus
        The GPUs of ``local``; by default all GPUs of the machine.

    Raises
    ------
    UsageError
        A part of ``text`` is malformed or names no such node, or nothing is selected.
    """
    ids = {node: node for node in machine.cpu_nodes}
    listed = format_kernel_list(set(ids))
    exist = f"the CPU NUMA nodes here are {listed}" if ids else "no CPU NUMA node was found here"

    def find(part: str) -> Iterable[int]:
        if part == "local":
            return _local(machine.gpus or () if gpus is None else gpus, ids, exist)
        return _numbered(part, ids, "--numa", "CPU NUMA node", exist)

    return _select(text, "--numa", find, tuple(ids), exist)


def _select(
    text: str, option: str, find: Callable[[str], Iterable[T]], everything: tuple[T, ...], exist: str
) -> tuple[T, ...]:
    if not text.strip():
        raise UsageError(f"{option} is empty; {exist}")
    chosen: list[T] = []
    for part in (part.strip() for part in text.split(",")):
        if not part:
            raise UsageError(f"{option} {_quote(text)} has an empty part; {exist}")
        if part == "all" and not everything:
            raise UsageError(f"{option} all selects nothing: {exist}")
        chosen += (item for item in (everything if part == "all" else find(part)) if item not in chosen)
    return tuple(chosen)


def _numbered(part: str, items: Mapping[int, T], option: str, noun: str, exist: str) -> Iterator[T]:
    match = _NUMBERS.fullmatch(part)
    if match is None:
        raise UsageError(f"{option} {_quote(part)} is not a {noun}; {exist}")
    first, step = int(match["first"]), int(match["step"] or 1)
    last = int(match["last"] or first)
    if last < first or step == 0:
        raise UsageError(f"{option} {_quote(part)} {'has a step of 0' if step == 0 else 'runs backwards'}; {exist}")
    for number in range(first, last + 1, step):
        if number not in items:
            raise UsageError(f"{option} {_quote(part)}: there is no {noun} {number}; {exist}")
        yield items[number]


def _is_at(bus_id: str, part: str) -> bool:
    """Return whether ``part`` is this bus id, perhaps without leading zeros, domain and function."""
    match = _BUS_ID.fullmatch(part.lower())
    if match is None:
        return False
    place = f"{int(match['bus'], 16):02x}:{int(match['device'], 16):02x}.{match['function'] or 0}"
    domain, _, at = bus_id.partition(":")
    return at == place and (match["domain"] is None or domain == f"{int(match['domain'], 16):04x}")


def _local(gpus: Sequence[Gpu], ids: Mapping[int, int], exist: str) -> tuple[int, ...]:
    local = [node for gpu in gpus if (node := gpu.host_numa_id) in ids and node is not None]
    if not local:
        raise UsageError(f"--numa local: no GPU here says which NUMA node it belongs to; {exist}")
    return tuple(dict.fromkeys(local))


def _quote(part: str) -> str:
    shown = printable(part)
    return f"'{shown}'" if len(shown) <= 40 else f"'{shown[:37]}...'"
