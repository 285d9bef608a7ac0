"""Nothing that was not read passes: of every check, each fact that it reads, taken away from healthy machines.

**The rule.** A fact *decides* over a check where some value of it makes the check fail or warn on a machine that is
healthy otherwise. Where such a fact could not be read, of one thing, of the last one, of all of them at once, and
where all of them could not, the check says something else than a pass of that thing: unknown, a fault, or a skip with
the reason. What a check reads only to show it, or to name a thing, decides over nothing.

The values that are tried are those that any machine of these tests has at that place, the faulty ones among them,
plus the ends of each type and the words that the checks' source knows. Facts that another source makes up for stand
in :data:`SUFFICES`.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path as File
from typing import Any

import pytest

from egmctl.doctor.check import EVERYTHING, Check
from egmctl.doctor.runner import CHECKS, _findings
from egmctl.facts import replay
from egmctl.model.finding import Finding, PlaceKind, Status
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from tests.doctor.faults import PASSES, faults, healthy
from tests.doctor.machines import patched, run_one, shipped
from tests.doctor.unread import Path, Readings, facts, having, shape, value_at, without
from tests.mutation import NUMBERS

MACHINES = ("healthy", "hgx-h200x4", "dgx-h100", "gb200-tray")

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
def machine_of(name: str, check: str) -> Machine:
    if name != "healthy":
        return shipped(name)
    return PASSES[check]() if check in PASSES else healthy()


@functools.cache
def known_values() -> dict[str, list[Any]]:
    """Return the values at each place of shipped and recorded machines, and of those with a fault."""
    machines = [fault.machine() for fault in faults().values()] + [shipped(name) for name in replay.machine_names()]
    machines += [shipped(str(path)) for path in sorted((File(__file__).parent / "corpus").glob("*/machine.json"))]
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


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.id))
def test_what_decides_and_was_not_read_does_not_pass(check: Check, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = machine_of(name, check.id)
    well = tuple(_findings(check, machine, EVERYTHING))
    if not any(finding.status is Status.PASS for finding in well):
        return
    places: dict[str, list[Path]] = defaultdict(list)
    with monkeypatch.context() as patch:
        for path in Readings(patch).of(machine, lambda read: tuple(_findings(check, read, EVERYTHING))):
            places[shape(path)].append(path)
    deciding = {place for place, paths in places.items() if decides(check, machine, paths, well)}
    silent = []
    for place, paths in places.items():
        if not any(one == place or one.startswith(f"{place}.") for one in deciding):
            continue
        for taken in dict.fromkeys((tuple(paths[:1]), tuple(paths[-1:]), tuple(paths))):
            findings = tuple(_findings(check, without(machine, taken), EVERYTHING))
            if not is_told(machine, taken[0], well, findings) and not suffices(check, place, len(taken)):
                silent.append(
                    (
                        place,
                        len(taken),
                        [(finding.status.value, finding.place.label, finding.summary) for finding in findings],
                    )
                )
    assert silent == []
    if any(not suffices(check, place, 2) for place in deciding):
        everything = [path for place in deciding if not suffices(check, place, 2) for path in places[place]]
        findings = tuple(_findings(check, without(machine, everything), EVERYTHING))
        assert not all(finding.status is Status.PASS for finding in findings), "all at once"


class TestHealth:
    """``gpu.health`` claims what was read, and no more."""

    def test_what_a_gpu_does_not_have_is_not_claimed(self) -> None:
        unread = dict.fromkeys(("remapped_rows_pending", "remapped_rows_failure"), Unread(reason=Reason.NOT_SUPPORTED))
        machine = patched(healthy(), "gpus[*].nvml", **dict.fromkeys(unread), unread=unread)
        assert run_one("gpu.health", machine).summary == "no uncorrected errors, no recovery action"


def test_a_gpu_that_cuda_lists_and_nvml_does_not_is_no_pass() -> None:
    finding = run_one("dev.count-consistency", without(healthy(), [("gpus", 1, "nvml")]))
    assert (finding.status, finding.place.label) == (Status.FAIL, "GPU1")
