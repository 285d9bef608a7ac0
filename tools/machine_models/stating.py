"""Builds the records of a model from the facts of its sources, and marks everything else as not stated."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

from egmctl.facts.system_calls import PROBES
from egmctl.model.codec import to_json
from egmctl.model.gpu import Gpu, GpuPair
from egmctl.model.host import Confinement, DeviceNode, Driver, Host, Nic, NumaKind, NumaNode, Process, System
from egmctl.model.machine import SECTION_VERSIONS, Machine, Origin, OriginKind, SectionStatus
from egmctl.model.record import Reason, Record, Unread

R = TypeVar("R", bound=Record)

MIB = 1 << 20

NOT_STATED = Unread(reason=Reason.NOT_STATED)
ONE_PARTS_OWN = Unread(reason=Reason.NOT_STATED, detail="belongs to one real part")

NVIDIA = 0x10DE
MELLANOX = 0x15B3
CLASS_3D = 0x030200
"""PCI class of NVIDIA's data center GPUs in every lspci output quoted in docs/machines.md: 3D controller."""

NVLINK_4, NVLINK_5 = 6, 7
"""``nvmlNvLinkVersion``: NVML_NVLINK_VERSION_4_0 and _5_0 (nvml.h)."""
NVLINK_MB_S = {NVLINK_4: 26562, NVLINK_5: 53125}
"""Speed of a link (NVIDIA Health Validation, NVLink checks: ``expected_speed_mbytes_per_sec``)."""
NVLINKS = 18
"""Links of an H100, GH200 or GB200 GPU (the same page: ``expected_link_count``)."""

NVIDIA_MAJOR = 195
"""Character device major of ``/dev/nvidia<minor>`` (open-gpu-kernel-modules, nv-chardev-numbers.h)."""


def stated(cls: type[R], **values: Any) -> R:
    """Return a record in which every nullable field is stated or says why it is null.

    Parameters
    ----------
    cls
        The record.
    **values
        The known values. A value of :class:`Unread` becomes null for that reason, also inside a mapping; ``None`` is
        null because null is the fact. Nullable fields that are not given are null because no source states them, or,
        for properties of one real part such as a serial number, because a model has none.
    """
    unread: dict[str, Unread] = {}
    for name in (f.name for f in dataclasses.fields(cast(Any, cls)) if f.default is None):
        values.setdefault(name, ONE_PARTS_OWN if name in _ONE_PARTS_OWN else NOT_STATED)
    for name, value in list(values.items()):
        if isinstance(value, Unread):
            values[name], unread[name] = None, value
        elif isinstance(value, Mapping):
            missing = {key: item for key, item in value.items() if isinstance(item, Unread)}
            values[name] = {key: None if key in missing else item for key, item in value.items()}
            unread |= {f"{name}.{key}": reason for key, reason in missing.items()}
    return cls(**values, unread=unread)


_ONE_PARTS_OWN = ("uuid", "serial", "chassis_serial", "node_guid", "hostname")


def among(names: Iterable[str], known: Mapping[str, int]) -> dict[str, int | Unread]:
    """Return ``known`` with every other name not stated, in the order of ``names``.

    Raises
    ------
    ValueError
        If ``known`` has a name that the tool does not read.
    """
    names = tuple(names)
    if strange := set(known) - set(names):
        raise ValueError(f"not among the names that are read: {sorted(strange)}")
    return {name: known.get(name, NOT_STATED) for name in names}


def numa_node(node: int, kind: NumaKind, **values: Any) -> NumaNode:
    """Return a NUMA node; one without memory has 0 bytes."""
    if kind is NumaKind.EMPTY:
        values = {"memory_total_bytes": 0, "memory_free_bytes": 0, **values}
    return stated(NumaNode, id=node, kind=kind, **values)


def gpu_device_node(minor: int) -> DeviceNode:
    """Return the device node of a GPU as an unconfined process sees it, which every model assumes."""
    return stated(
        DeviceNode, path=f"/dev/nvidia{minor}", exists=True, major=NVIDIA_MAJOR, minor=minor, access="ok", nodev=False
    )


def unconfined_process() -> Process:
    """Return a process that no container, cgroup or variable confines, which every model assumes."""
    return stated(Process, container_signs=(), environment={})


def no_confinement() -> Confinement:
    """Return the confinement of :func:`unconfined_process`."""
    return stated(
        Confinement,
        uid_map=((0, 0, 2**32 - 1),),
        seccomp="none",
        no_new_privileges=False,
        device_programs=(),
        system_calls=dict.fromkeys(PROBES, "ok"),
    )


def machine(
    name: str,
    description: str,
    sources: tuple[str, ...],
    *,
    host: Host,
    gpus: tuple[Gpu, ...],
    pairs: tuple[GpuPair, ...] | Unread,
    nics: tuple[Nic, ...] | Unread,
    driver: Driver,
    switches: tuple[()] | Unread,
) -> Machine:
    """Return a modelled machine. A section that is ``Unread`` is missing for that reason; others are not stated."""
    values: dict[str, Any] = {
        "host": host,
        "gpus": gpus,
        "pairs": pairs,
        "switches": switches,
        "nics": nics,
        "driver": driver,
        "process": unconfined_process(),
        "confinement": no_confinement(),
        "system": stated(System),
        "kernel_log": Unread(reason=Reason.NOT_STATED, detail="a model has no kernel log"),
        "probes": Unread(reason=Reason.NOT_ASKED, detail="on a model nothing can be tried"),
    }
    missing = {
        section: value for section in SECTION_VERSIONS if isinstance(value := values.get(section, NOT_STATED), Unread)
    }
    return Machine(
        origin=Origin(
            kind=OriginKind.MODELLED,
            name=name,
            tool="tools/model_machines.py",
            description=description,
            sources=sources,
        ),
        sections={
            section: SectionStatus(version=version, unread=missing.get(section))
            for section, version in SECTION_VERSIONS.items()
        },
        **{section: value for section, value in values.items() if section not in missing},
    )


def leave_out(data: Any) -> Any:
    """Return JSON data without the nulls that mean not stated; :mod:`egmctl.model.codec` restores them."""
    if isinstance(data, list):
        return [leave_out(item) for item in data]
    if not isinstance(data, dict):
        return data
    kept = {key: leave_out(value) for key, value in data.items()}
    for name in _not_stated(kept.get("unread")):
        owner, _, key = name.partition(".")
        (kept[owner] if key else kept).pop(key or owner, None)
        kept["unread"].pop(name)
    if kept.get("unread") == {}:
        del kept["unread"]
    sections = {name: status.get("unread") for name, status in kept.get("sections", {}).items()}
    for name in _not_stated(sections):
        del kept["sections"][name], kept[name]
    return kept


def _not_stated(reasons: Any) -> list[str]:
    return [name for name, why in reasons.items() if why == to_json(NOT_STATED)] if isinstance(reasons, dict) else []
