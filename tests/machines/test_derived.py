"""A machine that is another one with a change differs from it by nothing else: who corrects one corrects both."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from egmctl.files import machines_dir


class Derived(NamedTuple):
    """What a machine is derived from."""

    base: str
    differs: set[str]
    """The values that differ, are there in one of both, or are null in one: ``*`` stands for any item of a list."""


PART = {
    "gpus.*.pci.device_id",
    "gpus.*.proc.model",
    "gpus.*.nvml.name",
    "gpus.*.nvml.compute_capability",
    "gpus.*.nvml.memory_total_bytes",
    "gpus.*.nvml.sm_clock_max_mhz",
    "gpus.*.cuda.name",
}
"""What another part than the base's is known by, or is not known to share with it."""

LIKE: dict[str, Derived] = {
    "gb200-nvl72": Derived(
        "gb200-tray",
        {
            "driver.imex_channels",
            "gpus.*.cuda.attributes.HANDLE_TYPE_FABRIC_SUPPORTED",
            "gpus.*.cuda.attributes.HOST_NUMA_MULTINODE_IPC_SUPPORTED",
            "gpus.*.nvml.fabric",
            "gpus.*.nvml.platform.host_id",
            "gpus.*.nvml.platform.peer_type",
            "gpus.*.nvml.platform.slot",
            "gpus.*.nvml.platform.tray",
            "gpus.*.nvml.unread.fabric",
            "nics",
            "sections.nics.unread",
        },
    ),
    "gb300-nvl72": Derived("gb200-nvl72", PART | {"gpus.*.cuda.attributes.COMPUTE_CAPABILITY_MINOR"}),
    "gb200-nvl72-cdmm": Derived(
        "gb200-nvl72",
        {
            "driver.module_parameters",
            "gpus.*.cuda.attributes.NUMA_ID",
            "gpus.*.nvml.numa_node",
            "gpus.*.nvml.unread.numa_node",
            "gpus.*.proc.numa_node",
            "gpus.*.proc.unread.numa_node",
            "gpus.*.proc.unread.numa_status",
            "host.allowed_numa_nodes",
            "host.numa_nodes.*",
        },
    ),
    "gh200x2": Derived(
        "gh200x4",
        {
            "gpus.*",
            "gpus.*.nvml.nvlink_count",
            "gpus.*.nvml.nvlinks.*",
            "host.allowed_cpus",
            "host.allowed_numa_nodes",
            "host.cpu_count",
            "host.numa_nodes.*",
            "pairs.*",
            "pairs.*.can_access_peer",
            "pairs.*.cuda_attributes.ACCESS_SUPPORTED",
            "pairs.*.cuda_attributes.NATIVE_ATOMIC_SUPPORTED",
            "pairs.*.nvlink_count",
            "pairs.*.nvlink_through",
            "pairs.*.p2p_status.atomics",
            "pairs.*.p2p_status.nvlink",
            "pairs.*.p2p_status.pci",
            "pairs.*.p2p_status.read",
            "pairs.*.p2p_status.write",
        },
    ),
    "dgx-station-gb300": Derived(
        "gh200",
        PART
        | {
            "gpus.*",
            "gpus.*.cuda.attributes.ASYNC_ENGINE_COUNT",
            "gpus.*.cuda.attributes.COMPUTE_CAPABILITY_MAJOR",
            "gpus.*.cuda.attributes.COMPUTE_CAPABILITY_MINOR",
            "gpus.*.cuda.attributes.L2_CACHE_SIZE",
            "gpus.*.cuda.attributes.MULTIPROCESSOR_COUNT",
            "gpus.*.cuda.memory_total_bytes",
            "gpus.*.nvml.memory_clock_max_mhz",
            "gpus.*.nvml.nvlink_count",
            "gpus.*.nvml.nvlinks",
            "gpus.*.nvml.unread.nvlinks",
            "pairs.*",
        },
    ),
    "hgx-b200": Derived(
        "dgx-h100",
        PART
        | {
            "driver.cuda_driver_version",
            "driver.driver_version",
            "driver.module_version",
            "gpus.*.cuda.attributes.ASYNC_ENGINE_COUNT",
            "gpus.*.cuda.attributes.COMPUTE_CAPABILITY_MAJOR",
            "gpus.*.cuda.attributes.L2_CACHE_SIZE",
            "gpus.*.cuda.attributes.MULTIPROCESSOR_COUNT",
            "gpus.*.nvml.memory_clock_max_mhz",
            "gpus.*.nvml.nvlinks.*.speed_mb_s",
            "gpus.*.nvml.nvlinks.*.version",
            "sections.switches.unread",
            "switches",
        },
    ),
}


def stated(name: str) -> dict[str, Any]:
    """Return what the file of a machine states, without where it comes from."""
    document: dict[str, Any] = json.loads((machines_dir() / f"{name}.json").read_text())
    return {key: value for key, value in document.items() if key not in ("egmctl", "origin")}


def differences(one: Any, other: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of values that differ. Items of a list are the same by what names them, wherever they stand."""
    if isinstance(one, list) and isinstance(other, list) and all(isinstance(item, dict) for item in (*one, *other)):
        one, other = ({named(item): item for item in items} for items in (one, other))
        for key in one.keys() | other.keys():
            yield from differences(one.get(key), other.get(key), f"{path}.*")
    elif isinstance(one, dict) and isinstance(other, dict):
        for key in one.keys() | other.keys():
            yield from differences(one.get(key), other.get(key), f"{path}.{key}".removeprefix("."))
    elif one != other:
        yield path


def named(item: dict[str, Any]) -> tuple[Any, ...]:
    """Return what names an item of a list: a GPU's bus id, the ends of a pair, the number of a node or link."""
    found = tuple(
        item[key] for key in ("bus_id", "source", "target", "id", "link", "name", "number", "path") if key in item
    )
    assert found, item
    return found


@pytest.mark.parametrize("name", LIKE)
def test_a_derived_machine_differs_from_its_base_by_what_is_told_and_nothing_else(name: str) -> None:
    base, differs = LIKE[name]
    assert set(differences(stated(base), stated(name))) == differs


def test_every_machine_whose_description_names_another_one_is_held_to_it() -> None:
    shipped = {path.stem: json.loads(path.read_text())["origin"] for path in machines_dir().glob("*.json")}
    named_bases = {
        name: base
        for name, origin in shipped.items()
        for base in shipped.keys() - {name}
        if re.search(rf"(?<![\w-]){base}(?![\w-])", origin.get("description", ""))
    }
    assert named_bases == {name: derived.base for name, derived in LIKE.items() if name != "gb200-nvl72"}


def test_a_correction_of_a_base_alone_is_seen() -> None:
    """Of a value, of one GPU's value, and of a whole item."""
    corrected = stated("dgx-h100")
    corrected["host"]["cpu_count"] += 1
    corrected["gpus"][5]["pci"]["numa_node"] = 0
    del corrected["nics"][3]
    seen = set(differences(corrected, stated("hgx-b200"))) - LIKE["hgx-b200"].differs
    assert seen == {"host.cpu_count", "gpus.*.pci.numa_node", "nics.*"}
