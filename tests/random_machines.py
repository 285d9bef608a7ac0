"""Random machines for property tests, made from the model's types: a new field is in them from its first day."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from hypothesis import strategies as st

from egmctl.model.codec import field_types
from egmctl.model.host import Host
from egmctl.model.machine import Machine
from egmctl.model.record import Share, Spelling

Strings = Callable[[Share | None], st.SearchStrategy[str]]
"""From a string's share mark (``None``: unmarked) to what it may be."""

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)


def machines(strings: Strings = lambda _share: TEXT) -> st.SearchStrategy[Machine]:
    """Return random machines whose parts fit together (bus ids, indices, nodes) and whose values are anything."""
    return _values(Machine, strings).map(_consistent)


def _values(kind: Any, strings: Strings) -> st.SearchStrategy[Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _strings(arguments[1:], strings)
    if kind is str:
        return strings(None)
    if origin in (typing.Union, types.UnionType):
        (only,) = [option for option in arguments if option is not type(None)]
        return st.none() | _values(only, strings)
    if origin is tuple and arguments[1:] == (Ellipsis,):
        return st.lists(_values(arguments[0], strings), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*(_values(argument, strings) for argument in arguments))
    if origin is Mapping:
        return st.dictionaries(_values(arguments[0], strings), _values(arguments[1], strings), max_size=2)
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return st.builds(kind, **{name: _values(hint, strings) for name, hint in field_types(kind).items()})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return st.sampled_from(list(kind))
    return {
        bool: st.booleans(),
        int: st.integers(-(2**63), 2**64 - 1),
        float: st.floats(allow_nan=False, allow_infinity=False),
    }[kind]


def _strings(marks: tuple[Any, ...], strings: Strings) -> st.SearchStrategy[str]:
    for mark in marks:
        if isinstance(mark, Spelling):
            if mark.example.count(":") == 2:
                return st.from_regex(mark.pattern, fullmatch=True)
            return st.sampled_from(("", "0", "0-3,8", "71"))
    (share,) = [mark for mark in marks if isinstance(mark, Share)]
    return strings(share)


def _consistent(machine: Machine) -> Machine:
    gpus = tuple(dataclasses.replace(gpu, index=i) for i, gpu in enumerate(_unique(machine.gpus, "bus_id")))
    pairs = tuple(
        dataclasses.replace(pair, source=source, target=target)
        for pair, (source, target) in zip(
            machine.pairs or (), [(a.bus_id, b.bus_id) for a in gpus for b in gpus if a is not b], strict=False
        )
    )
    return dataclasses.replace(
        machine,
        gpus=gpus if machine.gpus is not None else None,
        pairs=pairs if machine.pairs is not None else None,
        nics=_unique(machine.nics, "name") if machine.nics is not None else None,
        host=_consistent_host(machine.host) if machine.host is not None else None,
    )


def _consistent_host(host: Host) -> Host:
    if host.numa_nodes is None:
        return host
    count = len(host.numa_nodes)
    nodes = (dataclasses.replace(node, id=i, distances=(10,) * count) for i, node in enumerate(host.numa_nodes))
    return dataclasses.replace(host, numa_nodes=tuple(nodes))


def _unique(records: tuple[Any, ...] | None, name: str) -> tuple[Any, ...]:
    return tuple({getattr(record, name): record for record in records or ()}.values())
