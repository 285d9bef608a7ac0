"""Joins what the sources say of each GPU, and of each pair of GPUs, into the model's records.

The identity of a GPU is its PCI bus id. A source that does not know a GPU leaves its reason there: where in the
funnel PCI > driver > device node > NVML > CUDA a GPU was lost is what people come to see.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from egmctl.driver import ids
from egmctl.errors import ChildFailed, ChildNotStarted, DriverLibraryMissing, DriverTooOld
from egmctl.model.codec import DecodeError, JsonValue, from_json
from egmctl.model.machine import (
    BusId,
    DeviceNode,
    Driver,
    Gpu,
    GpuCuda,
    GpuNvml,
    GpuProc,
    LibraryFailure,
    Machine,
    NvLink,
    Pair,
    PciFunction,
    Plain,
    Reason,
    Record,
    Unread,
)
from egmctl.wording import several


def join(
    *,
    pci: Mapping[BusId, PciFunction] | Unread,
    proc: Mapping[BusId, GpuProc] | Unread,
    nodes: Mapping[int, DeviceNode] | Unread,
    nvml: NvmlFacts,
    cuda: CudaFacts,
) -> tuple[Gpu, ...]:
    """Return every GPU that any source knows, in the order of their indices.

    A GPU's number is its place among the node's GPUs in the order of bus ids, which is nvidia-smi's on the whole node:
    it does not move because another GPU is lost or denied, as NVML's does. GPUs of another kernel driver, which
    nvidia-smi never counts, come last. Only where NVML numbers in another order are its numbers taken as they are.

    Parameters
    ----------
    pci, proc
        NVIDIA's GPUs in sysfs and in ``/proc/driver/nvidia/gpus``, or why there is no such list.
    nodes
        ``/dev/nvidia<minor>`` by minor, as they were before NVML and CUDA ran, or why they could not be looked at.
    """
    sources: dict[str, Mapping[str, Any] | Unread] = {
        "pci": pci,
        "proc": proc,
        "nvml": nvml.absent or nvml.gpus,
        "cuda": cuda.absent or _by_known_bus_id(cuda, nvml),
    }
    missing = {
        "pci": Unread(reason=Reason.NOT_PRESENT, detail="/sys/bus/pci/devices: not there"),
        "proc": Unread(reason=Reason.NOT_PRESENT, detail="/proc/driver/nvidia/gpus: not there"),
        "nvml": _lost(nvml),
        "cuda": Unread(reason=Reason.NOT_PRESENT, detail=f"CUDA lists {several(len(cuda.gpus), 'GPU')}, not this one"),
    }
    known = {bus_id for source in sources.values() if not isinstance(source, Unread) for bus_id in source}
    numbers = _numbers(known, {} if isinstance(pci, Unread) else pci, nvml)
    gpus = []
    for bus_id, index in numbers.items():
        found = {
            name: source if isinstance(source, Unread) else source.get(bus_id, missing[name])
            for name, source in sources.items()
        }
        found["node"] = _node(found, nodes)
        values = {name: None if isinstance(value, Unread) else value for name, value in found.items()}
        unread = {name: value for name, value in found.items() if isinstance(value, Unread)}
        gpus.append(Gpu(bus_id=bus_id, index=index, unread=unread, **values))
    return tuple(sorted(gpus, key=lambda gpu: gpu.index))


def _numbers(known: Iterable[str], pci: Mapping[BusId, PciFunction], nvml: NvmlFacts) -> dict[str, int]:
    """Return each GPU's number by its bus id."""
    in_order = sorted(known, key=ids.bus_order)
    listed = sorted(nvml.gpus, key=lambda bus_id: nvml.gpus[bus_id].index)
    if listed == sorted(listed, key=ids.bus_order):
        foreign = {
            bus_id
            for bus_id, function in pci.items()
            if function.driver not in (None, "", "nvidia") and bus_id not in nvml.gpus
        }
        return {bus_id: index for index, bus_id in enumerate(sorted(in_order, key=foreign.__contains__))}
    first_free = max(gpu.index for gpu in nvml.gpus.values()) + 1
    rest = (bus_id for bus_id in in_order if bus_id not in nvml.gpus)
    numbers = {bus_id: gpu.index for bus_id, gpu in nvml.gpus.items()}
    return numbers | {bus_id: first_free + place for place, bus_id in enumerate(rest)}


def join_pairs(gpus: tuple[Gpu, ...], nvml: NvmlFacts, cuda: CudaFacts) -> tuple[Pair, ...]:
    """Return every ordered pair of the GPUs that NVML or CUDA knows, by the indices of source and target.

    Parameters
    ----------
    gpus
        What :func:`join` returned for the same facts.
    """
    usable = [gpu for gpu in gpus if gpu.nvml is not None or gpu.cuda is not None]
    names = _known_bus_ids(cuda, nvml)
    nvml_pairs = {(pair.source, pair.target): pair for pair in nvml.pairs}
    cuda_pairs = {(names[pair.source], names[pair.target]): pair for pair in cuda.pairs}
    return tuple(
        _pair(source, target, nvml_pairs, nvml.absent, cuda_pairs, cuda.absent)
        for source in usable
        for target in usable
        if source is not target
    )


def reread(machine: Machine, pci: Mapping[BusId, PciFunction], nvml: NvmlFacts) -> Machine:
    """Return a machine with what sysfs and NVML say of its GPUs now; who uses them stays what it was.

    A GPU that NVML has lost has lost CUDA too, which was not asked again.
    """
    gpus = tuple(_reread(gpu, pci.get(gpu.bus_id), nvml) for gpu in machine.gpus or ())
    by_bus_id = {gpu.bus_id: gpu for gpu in gpus}
    values, unread = driver_values(nvml, no_cuda_facts(_NOT_ASKED_AGAIN))
    of_nvml = {name: value for name, value in values.items() if not name.startswith("cuda_")}
    driver = machine.driver or Driver()
    kept = {name: why for name, why in driver.unread.items() if name not in of_nvml}
    now = {name: why for name, why in unread.items() if name in of_nvml}
    return replace(
        machine,
        gpus=gpus,
        pairs=machine.pairs and tuple(_reread_pair(pair, by_bus_id) for pair in machine.pairs),
        driver=replace(driver, **of_nvml, unread={**kept, **now}),
    )


_NOT_ASKED_AGAIN = Unread(reason=Reason.NOT_ASKED, detail="CUDA was not queried again")


def _reread(gpu: Gpu, pci: PciFunction | None, nvml: NvmlFacts) -> Gpu:
    now = nvml.gpus.get(gpu.bus_id)
    if now is None and gpu.nvml is not None:
        unread = {**gpu.unread, "nvml": nvml.absent or _lost(nvml), "cuda": _NOT_ASKED_AGAIN}
        return replace(gpu, pci=pci or gpu.pci, nvml=None, cuda=None, unread=unread)
    if now is not None and gpu.nvml is not None:
        used = ("processes", "memory_used_bytes")
        kept = {name: why for name, why in gpu.nvml.unread.items() if name in used}
        unread = {**{name: why for name, why in now.unread.items() if name not in used}, **kept}
        now = replace(now, **{name: getattr(gpu.nvml, name) for name in used}, unread=unread)
        return replace(gpu, pci=pci or gpu.pci, nvml=now)
    return replace(gpu, pci=pci or gpu.pci)


def _reread_pair(pair: Pair, gpus: Mapping[BusId, Gpu]) -> Pair:
    if not {pair.source, pair.target} <= gpus.keys():
        return pair
    count, through, unread = _nvlinks(gpus[pair.source], gpus[pair.target])
    kept = {name: why for name, why in pair.unread.items() if not name.startswith("nvlink_")}
    return replace(pair, nvlink_count=count, nvlink_through=through, unread={**kept, **unread})


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlFacts(Record):
    """What the child ``egmctl.facts.nvml:read`` hands back; without GPUs where ``absent`` says why."""

    absent: Unread | None = None
    error: Plain | None = None
    """The name of nvmlInit's error."""
    failure: LibraryFailure | None = None
    driver_version: Plain | None = None
    nvml_version: Plain | None = None
    confidential_compute: Plain | None = None
    nvlink_bandwidth_mode: Plain | None = None
    gpus: Mapping[BusId, GpuNvml] = field(default_factory=dict)
    lost: tuple[Unread, ...] = ()
    """Why GPUs that NVML counts do not tell their bus ids."""
    pairs: tuple[Pair, ...] = ()


_NVML_VALUES = ("driver_version", "nvml_version", "confidential_compute", "nvlink_bandwidth_mode")
"""Fields of :class:`egmctl.model.machine.Driver` that have the same name here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaFacts(Record):
    """What the child ``egmctl.facts.cuda:read`` hands back; without GPUs where ``absent`` says why."""

    absent: Unread | None = None
    error: Plain | None = None
    """The name of cuInit's error."""
    failure: LibraryFailure | None = None
    driver_version: int | None = None
    gpus: Mapping[BusId, GpuCuda] = field(default_factory=dict)
    pairs: tuple[Pair, ...] = ()


def nvml_facts(outcome: JsonValue | ChildFailed) -> NvmlFacts:
    """Return the NVML child's facts from its result, or from the error it ended with."""
    try:
        if not isinstance(outcome, ChildFailed):
            return from_json(NvmlFacts, outcome)
        absent, failure = _absent("NVML", outcome)
    except DecodeError as error:
        absent, failure = _garbage("NVML", error)
    return NvmlFacts(absent=absent, failure=failure, unread=dict.fromkeys((*_NVML_VALUES, "error"), absent))


def cuda_facts(outcome: JsonValue | ChildFailed) -> CudaFacts:
    """Return the CUDA child's facts from its result, or from the error it ended with."""
    try:
        if not isinstance(outcome, ChildFailed):
            return from_json(CudaFacts, outcome)
        absent, failure = _absent("CUDA", outcome)
    except DecodeError as error:
        absent, failure = _garbage("CUDA", error)
    return replace(no_cuda_facts(absent), failure=failure)


def no_cuda_facts(why: Unread) -> CudaFacts:
    """Return CUDA's facts where there are none."""
    return CudaFacts(absent=why, unread=dict.fromkeys(("driver_version", "error"), why))


def driver_values(nvml: NvmlFacts, cuda: CudaFacts) -> tuple[dict[str, Any], dict[str, Unread]]:
    """Return the fields of :class:`egmctl.model.machine.Driver` that come from the libraries, and their reasons."""
    values = {
        **{name: getattr(nvml, name) for name in _NVML_VALUES},
        "nvml_error": nvml.error,
        "nvml_failure": nvml.failure,
        "cuda_failure": cuda.failure,
        "cuda_driver_version": cuda.driver_version,
        "cuda_error": cuda.error,
    }
    sources = {
        **{name: nvml.unread.get(name) for name in _NVML_VALUES},
        "nvml_error": nvml.absent,
        "cuda_driver_version": cuda.unread.get("driver_version"),
        "cuda_error": cuda.absent,
    }
    return values, {name: why for name, why in sources.items() if why is not None and values[name] is None}


def _absent(library: str, error: ChildFailed) -> tuple[Unread, LibraryFailure]:
    """Return why a library says nothing: as the reason of each value, and as what happened."""
    where = f" in {error.last_call}" if error.last_call else ""
    child = f"the child that reads {library}"
    if error.how != "raised":
        reason = Reason.TIMED_OUT if error.how == "timed-out" else Reason.CRASHED
        detail = f"{child} {error.how.replace('-', ' ')}{where}"
        how = error.how
        if isinstance(error, ChildNotStarted):
            reason, how, detail = Reason.FAILED, "not-started", str(error)
        failure = LibraryFailure(how=how, call=error.last_call, gpu=error.last_subject, detail=detail)
        return Unread(reason=reason, detail=detail), failure
    reasons = {DriverLibraryMissing.__name__: Reason.MISSING_LIBRARY, DriverTooOld.__name__: Reason.DRIVER_TOO_OLD}
    detail = f"{child} raised {error.kind}"
    if "call" in error.details:
        detail = f"{error.details['call']}: {error.details['name']}"
    reason = reasons.get(error.kind or "", Reason.FAILED)
    how = {Reason.MISSING_LIBRARY: "missing", Reason.DRIVER_TOO_OLD: "too-old"}.get(reason, "error")
    return Unread(reason=reason, detail=detail), LibraryFailure(how=how, call=error.details.get("call"), detail=detail)


def _garbage(library: str, error: DecodeError) -> tuple[Unread, LibraryFailure]:
    detail = f"the answer of the child that reads {library}: {error}"
    return Unread(reason=Reason.FAILED, detail=detail), LibraryFailure(how="error", detail=detail)


def _known_bus_ids(cuda: CudaFacts, nvml: NvmlFacts) -> dict[str, str]:
    """Return the bus id under which each of CUDA's GPUs is known.

    CUDA's text has room for a domain of four digits only; where it does not fit, the UUID still does.
    """
    by_uuid = {gpu.uuid: bus_id for bus_id, gpu in nvml.gpus.items() if gpu.uuid is not None}
    return {
        bus_id: bus_id if bus_id in nvml.gpus or gpu.uuid is None else by_uuid.get(gpu.uuid, bus_id)
        for bus_id, gpu in cuda.gpus.items()
    }


def _by_known_bus_id(cuda: CudaFacts, nvml: NvmlFacts) -> dict[str, GpuCuda]:
    names = _known_bus_ids(cuda, nvml)
    return {names[bus_id]: gpu for bus_id, gpu in cuda.gpus.items()}


def _lost(nvml: NvmlFacts) -> Unread:
    if nvml.lost:
        return replace(nvml.lost[0], detail="; ".join(why.detail for why in nvml.lost))
    return Unread(reason=Reason.NOT_PRESENT, detail=f"NVML lists {several(len(nvml.gpus), 'GPU')}, not this one")


def _node(found: Mapping[str, Any], nodes: Mapping[int, DeviceNode] | Unread) -> DeviceNode | Unread:
    if isinstance(nodes, Unread):
        return nodes
    minors = [source.minor for source in (found["proc"], found["nvml"]) if not isinstance(source, Unread)]
    minor = next((minor for minor in minors if minor is not None), None)
    if minor is None:
        return Unread(reason=Reason.NOT_PRESENT, detail="the minor of the device node is not known")
    return nodes.get(minor) or Unread(reason=Reason.NOT_PRESENT, detail=f"/dev/nvidia{minor}: not there")


Pairs = Mapping[tuple[str, str], Pair]


def _pair(
    source: Gpu, target: Gpu, nvml: Pairs, nvml_absent: Unread | None, cuda: Pairs, cuda_absent: Unread | None
) -> Pair:
    key = source.bus_id, target.bus_id
    values: dict[str, Any] = {}
    unread: dict[str, Unread] = {}
    for library, pairs, absent, names in (
        ("NVML", nvml, nvml_absent, ("common_ancestor", "p2p_status")),
        ("CUDA", cuda, cuda_absent, ("can_access_peer", "cuda_attributes", "atomics")),
    ):
        if (pair := pairs.get(key)) is not None:
            values.update({name: getattr(pair, name) for name in names})
            unread.update(pair.unread)
        else:
            why = absent or Unread(reason=Reason.NOT_PRESENT, detail=f"{library} does not list both GPUs")
            unread.update(dict.fromkeys(names, why))
    values["nvlink_count"], values["nvlink_through"], why_not = _nvlinks(source, target)
    unread.update(why_not)
    return Pair(source=key[0], target=key[1], unread=unread, **values)


def _nvlinks(source: Gpu, target: Gpu) -> tuple[int | None, str | None, dict[str, Unread]]:
    """Return how many active links join two GPUs, through what, and the reasons where that is not known."""
    active: list[list[NvLink]] = []
    for gpu in (source, target):
        links = None if gpu.nvml is None else gpu.nvml.nvlinks
        if links is None:
            reasons = gpu.unread.get("nvml") or (gpu.nvml and gpu.nvml.unread.get("nvlinks"))
            return _unknown(reasons or Unread(reason=Reason.FAILED))
        for link in links:
            if link.active is None:
                return _unknown(link.unread["active"])
        active.append([link for link in links if link.active])
    ours, theirs = active
    direct = sum(link.remote_bus_id == target.bus_id for link in ours)
    if direct:
        return direct, "direct", {}
    for link in ours:
        if link.remote_type == "gpu" and link.remote_bus_id is None:
            return _unknown(link.unread["remote_bus_id"])
    switched = min(sum(link.remote_type == "switch" for link in links) for links in (ours, theirs))
    if switched:
        return switched, "switch", {}
    return 0, None, {}


def _unknown(why: Unread) -> tuple[None, None, dict[str, Unread]]:
    return None, None, {"nvlink_count": why, "nvlink_through": why}
