"""The facts of a machine, one by one: which of them a check reads, a machine without some, or with another value."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import re
import typing
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path as File
from typing import Any

import pytest

from egmctl.doctor.check import EVERYTHING, Check
from egmctl.doctor.runner import _findings
from egmctl.facts import replay
from egmctl.model.codec import field_types
from egmctl.model.finding import Finding, PlaceKind, Status
from egmctl.model.machine import SECTION_VERSIONS, Machine, SectionStatus
from egmctl.model.record import Reason, Unread
from tests.doctor.faults import faults
from tests.doctor.machines import shipped
from tests.mutation import NUMBERS

Path = tuple[str | int, ...]
"""Names of fields, indices of tuples and keys of mappings: ``("gpus", 0, "nvml", "nvlinks", 3, "active")``."""

WHY = Unread(reason=Reason.FAILED, detail="999 (Unknown Error)")
_NO_FACT = ("unread", "origin", "sections")


def shape(path: Path) -> str:
    """Return a path without its indices: ``gpus.*.nvml.nvlinks.*.active``."""
    return ".".join("*" if isinstance(part, int) else part for part in path)


def facts(record: Any, at: Path = ()) -> Iterator[tuple[Path, Any, bool]]:
    """Yield the place of every value that is stated, the value, and whether it may be null."""
    cls: Any = type(record)
    for name, kind in field_types(cls).items():
        if name in _NO_FACT or not hasattr(record, name) or (value := getattr(record, name)) is None:
            continue
        yield (*at, name), value, _may_be_null(kind)
        if dataclasses.is_dataclass(value):
            yield from facts(value, (*at, name))
        elif isinstance(value, tuple):
            for number, item in enumerate(value):
                if dataclasses.is_dataclass(item):
                    yield from facts(item, (*at, name, number))
        elif isinstance(value, Mapping):
            options = [kind, *typing.get_args(kind)]
            (mapping,) = [option for option in options if typing.get_origin(option) is Mapping]
            null = _may_be_null(typing.get_args(mapping)[1])
            yield from (((*at, name, key), item, null) for key, item in value.items() if item is not None)


def _may_be_null(kind: Any) -> bool:
    return type(None) in typing.get_args(typing.get_args(kind)[0] if hasattr(kind, "__metadata__") else kind)


def value_at(record: Any, path: Path) -> Any:
    for part in path:
        record = getattr(record, part) if isinstance(part, str) and not isinstance(record, Mapping) else record[part]
    return record


def without(machine: Machine, paths: Iterable[Path]) -> Machine:
    """Return the machine as it is where these facts could not be read: null, each with the reason."""
    changed: Machine = _changed(machine, paths, None)
    statuses = {
        name: SectionStatus(version=version, unread=WHY)
        for name, version in SECTION_VERSIONS.items()
        if getattr(changed, name) is None and getattr(machine, name) is not None
    }
    return dataclasses.replace(changed, sections={**machine.sections, **statuses})


def having(machine: Machine, paths: Iterable[Path], value: object) -> Machine:
    """Return the machine with one value at all of these places."""
    changed: Machine = _changed(machine, paths, value)
    return changed


def _changed(value: Any, paths: Iterable[Path], new: Any) -> Any:
    inner: dict[str | int, list[Path]] = {}
    for head, *rest in paths:
        inner.setdefault(head, []).append(tuple(rest))
    parts: dict[Any, Any] = {
        head: new if () in rests else _changed(value_at(value, (head,)), rests, new) for head, rests in inner.items()
    }
    if isinstance(value, Mapping):
        return {**value, **parts}
    if isinstance(value, tuple):
        return tuple(parts.get(number, item) for number, item in enumerate(value))
    if new is None and hasattr(value, "unread"):
        keys = [".".join(map(str, (head, *rest))) for head, rests in inner.items() for rest in rests if len(rest) < 2]
        null = [key for key in keys if "." not in key or isinstance(getattr(value, key.partition(".")[0]), Mapping)]
        parts["unread"] = {**value.unread, **dict.fromkeys(null, WHY)}
    return dataclasses.replace(value, **parts)


class Readings:
    """Notes which facts of a machine are read.

    Parameters
    ----------
    patch
        Takes back, at the end of the test, that every record of the model notes it.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._seen: set[tuple[int, str]] = set()
        self._noting = False
        names = ("gpu", "host", "machine", "probes", "record")
        modules = [importlib.import_module(f"egmctl.model.{name}") for name in names]
        kinds = {kind for module in modules for kind in vars(module).values() if isinstance(kind, type)}
        for kind in filter(dataclasses.is_dataclass, kinds):
            patch.setattr(kind, "__getattribute__", self._noted(), raising=False)

    def _noted(self) -> Callable[[object, str], object]:
        def attribute(record: object, name: str) -> object:
            if self._noting:
                self._seen.add((id(record), name))
            return object.__getattribute__(record, name)

        return attribute

    def of(self, machine: Machine, use: Callable[[Machine], object]) -> list[Path]:
        """Return the facts that may be null and that a function reads; of a mapping that it reads, all."""
        self._seen.clear()
        self._noting = True
        try:
            use(machine)
        finally:
            self._noting = False
        return [path for path, _, may_be_null in facts(machine) if may_be_null and self._was_read(machine, path)]

    def _was_read(self, machine: Machine, path: Path) -> bool:
        owner = value_at(machine, path[:-1])
        if isinstance(owner, Mapping):
            return (id(value_at(machine, path[:-2])), path[-2]) in self._seen
        return (id(owner), path[-1]) in self._seen


_LISTED_BY_NVML = "NVML and CUDA list the GPU, so it answers; dev.fell-off-bus says that this was not read"
_X86 = "there is no NVLink-C2C on x86-64"
SUFFICES: Mapping[tuple[str, str], str] = {
    ("*", "gpus.*.nvml"): "of one: a GPU that NVML lost is told once, by dev.count-consistency or drv.libraries",
    ("dev.count-consistency", "gpus.*.pci"): _LISTED_BY_NVML,
    ("dev.count-consistency", "gpus.*.pci.responds"): _LISTED_BY_NVML,
    ("egm.cgroup-route", "gpus.*.pci"): _LISTED_BY_NVML,
    ("egm.cgroup-route", "gpus.*.pci.responds"): _LISTED_BY_NVML,
    ("drv.flavour", "gpus.*.pci"): "NVML has the compute capability",
    ("drv.flavour", "gpus.*.pci.device_id"): "NVML has the compute capability",
    ("drv.flavour", "gpus.*.nvml"): "sysfs has the PCI id",
    ("drv.flavour", "gpus.*.nvml.compute_capability"): "sysfs has the PCI id",
    ("drv.nouveau", "gpus.*.pci"): "a module that is not loaded is bound to nothing",
    ("drv.nouveau", "gpus.*.pci.driver"): "a module that is not loaded is bound to nothing",
    ("numa.gpu-affinity", "gpus.*.nvml"): _X86,
    ("numa.gpu-affinity", "gpus.*.nvml.c2c_enabled"): _X86,
    ("fabric.domain", "gpus.*.nvml.c2c_enabled"): _X86,
    ("uvm.addressing-mode", "gpus.*.nvml.c2c_enabled"): _X86,
    **{
        ("egm.peer-route", f"pairs.*.{name}"): "of one pair: another GPU of that NUMA node owns EGM memory too"
        for name in ("nvlink_count", "p2p_status.read", "p2p_status.write", "p2p_status.nvlink")
    },
    ("numa.memory", "host.numa_nodes.*.memory_total_bytes"): "of one: a node of a GPU's memory is not judged",
    ("numa.memory", "host.numa_nodes.*.memory_free_bytes"): "of one: a node of a GPU's memory is not judged",
    ("numa.memory", "gpus.*.nvml"): "procfs has the node of the GPU's memory",
    ("numa.memory", "gpus.*.nvml.numa_node"): "procfs has the node of the GPU's memory",
    ("numa.memory", "gpus.*.pci"): "all nodes without CPUs are known as GPUs' memory",
    ("numa.memory", "gpus.*.pci.numa_node"): "all nodes without CPUs are known as GPUs' memory",
    ("pcie.link", "gpus.*.pci.link"): "NVML reads the same link",
    ("pcie.link", "gpus.*.pci.link.width"): "NVML reads the same link",
    ("pcie.link", "gpus.*.nvml.throttle_reasons"): "a GPU that may be idle slows its link down: its width is judged",
    ("fabric.manager", "gpus.*.nvml"): "this node has the switches itself",
    ("fabric.manager", "gpus.*.nvml.fabric"): "this node has the switches itself",
    ("fabric.manager", "gpus.*.nvml.fabric.cluster_uuid"): "this node has the switches itself",
    ("rdma.affinity", "gpus.*.cuda"): "sysfs has the GPU's NUMA node",
    ("rdma.affinity", "gpus.*.cuda.attributes.HOST_NUMA_ID"): "sysfs has the GPU's NUMA node",
    ("rdma.affinity", "nics.*.pci"): "of one NIC: another one is near",
    ("rdma.affinity", "nics.*.pci.numa_node"): "of one NIC: another one is near",
    ("rdma.coherent-dmabuf", "driver.driver_version"): "the kernel module has the version; drv.versions compares them",
}
"""By check and fact: what makes up for it. "Of one" holds for one or the last, and not for all of them at once."""


@functools.cache
def known_values() -> dict[str, list[Any]]:
    """Return the values at each place of shipped and recorded machines, and of those with a fault."""
    machines = [fault.machine() for fault in faults().values()] + [shipped(name) for name in replay.machine_names()]
    machines += [shipped(str(path)) for path in sorted((File(__file__).parent / "corpus").glob("*/machine.json.gz"))]
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for machine in machines:
        for path, value, _ in facts(machine):
            if not _is_record(value):
                found[shape(path)][repr(value)] = value
    return {place: list(values.values())[:40] for place, values in found.items()}


@functools.cache
def words_of(module: str) -> tuple[str, ...]:
    """Words in quotes in the source of a check."""
    source = inspect.getsource(importlib.import_module(module))
    return tuple(dict.fromkeys(re.findall(r'"([A-Za-z0-9_-]{1,30})"', source)))


def _is_record(value: object) -> bool:
    return is_dataclass(value) or (isinstance(value, tuple) and any(map(is_dataclass, value)))


def other_values(check: Check, path: Path, value: object) -> Iterator[object]:
    words = words_of(check.judge.__module__)
    yield from known_values().get(shape(path), ())
    match value:
        case bool():
            yield not value
        case int():
            yield from NUMBERS
        case float():
            yield from (0.0, 1.0, 2.5, 1e300)
        case str():
            yield from ("", *words)
        case tuple():
            yield ()
        case Mapping() if all(isinstance(item, str) for item in value.values()):
            yield from (dict.fromkeys(value, word) for word in words)


def decides(check: Check, machine: Machine, paths: Sequence[Path], well: tuple[Finding, ...]) -> bool:
    """Say whether some value of a fact, of one thing or of all, makes the check fail or warn."""
    value = value_at(machine, paths[0])
    if _is_record(value):
        return False
    for other in other_values(check, paths[0], value):
        for places in (paths[:1], paths):
            findings = _findings(check, having(machine, places, other), EVERYTHING)
            if any(finding.status in (Status.FAIL, Status.WARN) and finding not in well for finding in findings):
                return True
    return False


def is_told(machine: Machine, path: Path, well: tuple[Finding, ...], found: tuple[Finding, ...]) -> bool:
    """Say whether a finding that is no pass, and is new, is about the thing that the fact is of."""
    assert not any("the check itself failed" in finding.summary for finding in found)
    return any(
        finding.status is not Status.PASS and finding not in well and _is_about(machine, path, finding)
        for finding in found
    )


def _is_about(machine: Machine, path: Path, finding: Finding) -> bool:
    place = finding.place
    if len(path) > 1 and path[0] == "gpus" and place.gpus is not None:
        return value_at(machine, path[:2]).bus_id in place.gpus
    if len(path) > 1 and path[0] == "pairs" and place.gpus is not None:
        pair = value_at(machine, path[:2])
        return bool({pair.source, pair.target} & place.gpus)
    if len(path) > 1 and path[0] == "nics" and place.kind is PlaceKind.NIC:
        return value_at(machine, path[:2]).name in place.ids
    return True


def suffices(check: Check, name: str, number: int) -> bool:
    """Say whether :data:`SUFFICES` has a fact, taken from ``number`` things."""
    unread = SUFFICES.get((check.id, name)) or SUFFICES.get(("*", name))
    return unread is not None and (number == 1 or not unread.startswith("of one"))
