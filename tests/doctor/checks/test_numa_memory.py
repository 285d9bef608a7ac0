"""A NUMA node with less memory than its siblings, without CPUs or memory, or that this process may not use."""

from __future__ import annotations

from pathlib import Path

import pytest

from egmctl.doctor.check import EVERYTHING, Scope
from egmctl.facts.host import NODES, host
from egmctl.facts.root import Root
from egmctl.model.finding import Guard, Status
from egmctl.model.host import HugePages, NumaKind, NumaNode
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from egmctl.units import GIB, MIB
from tests.doctor.changed import node1, with_node
from tests.doctor.faults import Fault, changed, healthy
from tests.doctor.machines import patched, run, shipped
from tests.fake.sysroot import Tree

EGM = Scope(purposes=(Guard.EGM,))
NUMA_1 = Scope(numa=(1,))


def well(machine: Machine) -> Machine:
    machine = patched(machine, "host", memory_policy="default")
    for node in (0, 1):
        machine = patched(
            machine, f"host.numa_nodes[{node}]", memory_free_bytes=400 * GIB, memory_reclaimable_bytes=20 * GIB
        )
    return machine


def statuses(machine: Machine, scope: Scope = EVERYTHING, check: str = "numa.memory") -> set[tuple[str, str]]:
    return {
        (finding.place.label, finding.status.value)
        for finding in run(check, machine, scope)
        if finding.status is not Status.PASS
    }


FAULTS: dict[str, Fault] = {
    "numa.memory": Fault(lambda: node1(memory_free_bytes=64 * MIB, memory_reclaimable_bytes=0)),
    "numa.policy": Fault(changed("host", memory_policy="bind:0").machine, EGM),
}


def pool(total: int, free: int | None) -> HugePages:
    """Huge pages of 1 GiB."""
    return HugePages(page_size_bytes=GIB, total=total, free=free)


SCARCE: dict[str, object] = {"memory_free_bytes": 60 * GIB, "memory_reclaimable_bytes": 0}
NODE_1: dict[str, tuple[dict[str, object], Scope, str | None]] = {
    "64 MiB free": ({"memory_free_bytes": 64 * MIB, "memory_reclaimable_bytes": 0}, EVERYTHING, "warn"),
    "full of files": ({"memory_free_bytes": 64 * MIB, "memory_reclaimable_bytes": 400 * GIB}, EGM, None),
    "60 GiB free": (SCARCE, EVERYTHING, "note"),
    "60 GiB free, for EGM": (SCARCE, EGM, "note"),
    "60 of 478 GiB": ({"memory_total_bytes": 60 * GIB, "memory_free_bytes": 50 * GIB}, EVERYTHING, "warn"),
    "no CPUs, and GPUs that are local to it": ({"kind": NumaKind.MEMORY_ONLY, "cpus": ""}, EVERYTHING, "fail"),
    "neither": ({"kind": NumaKind.EMPTY, "cpus": "", "memory_total_bytes": 0}, EVERYTHING, "fail"),
    "a pool of huge pages, half of it unused": ({"huge_pages": (pool(400, 200),)}, EVERYTHING, "note"),
    "a pool that is used": ({"huge_pages": (pool(400, 20),)}, EVERYTHING, None),
    "a pool that was not read": ({"huge_pages": (pool(400, None),)}, EVERYTHING, None),
    "no memory": ({"kind": NumaKind.CPU_ONLY, "memory_total_bytes": 0}, EVERYTHING, "fail"),
}


@pytest.mark.parametrize(("changes", "scope", "status"), NODE_1.values(), ids=NODE_1)
def test_a_node_is_judged_beside_its_siblings(changes: dict[str, object], scope: Scope, status: str | None) -> None:
    assert statuses(node1(**changes), scope) == ({("NUMA 1", status)} if status else set())


@pytest.mark.parametrize("number", [40, 3], ids=["of nothing", "beside a GPU's"])
def test_memory_without_cpus_that_is_no_gpus_is_told(number: int) -> None:
    assert statuses(with_node(number)) == {(f"NUMA {number}", "warn")}


def test_unequal_nodes_are_a_crash_only_before_driver_595() -> None:
    bare = node1(kind=NumaKind.CPU_ONLY, memory_total_bytes=0)
    assert statuses(patched(bare, "driver", driver_version="595.45.04")) == {("NUMA 1", "warn")}


def test_memory_without_cpus_on_a_machine_without_c2c_is_somebodys_choice() -> None:
    machine = shipped("hgx-h200x4")
    assert machine.host is not None
    expander = NumaNode(id=1, kind=NumaKind.MEMORY_ONLY, memory_total_bytes=256 * GIB)
    machine = patched(machine, "host", numa_nodes=(*(machine.host.numa_nodes or ()), expander))
    assert statuses(machine) == {("NUMA 1", "note")}


def test_memory_of_a_gpu_that_does_not_say_its_node_is_unknown() -> None:
    machine = patched(patched(healthy(), "gpus[0].nvml", numa_node=None), "gpus[0].proc", numa_node=None)
    assert statuses(machine) == {("NUMA 2", "unknown")}


@pytest.mark.parametrize(
    ("check", "scope", "status"),
    [("numa.cpuset-mems", EGM, "fail"), ("numa.policy", EGM, "fail"), ("numa.policy", NUMA_1, "warn")],
)
def test_a_forbidden_node_is_a_fault_for_who_needs_it_and_ordinary_otherwise(
    check: str, scope: Scope, status: str
) -> None:
    machine = patched(healthy(), "host", allowed_numa_nodes="0", memory_policy="bind:0")
    assert statuses(machine, scope, check) == {("NUMA 1", status)}
    assert statuses(machine, EVERYTHING, check) == set()


def test_other_policies_forbid_nothing() -> None:
    for policy in ("default", "interleave:0", "prefer:0", "bind:0-1", "bind=static:0-1"):
        assert statuses(patched(healthy(), "host", memory_policy=policy), NUMA_1, "numa.policy") == set()
    assert statuses(patched(healthy(), "host", memory_policy="bind=static:0"), NUMA_1, "numa.policy") == {
        ("NUMA 1", "warn")
    }


def test_policy_and_reclaimable_memory_are_read(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.write("/proc/self/numa_maps", "aaaac0000000 bind:0 file=/usr/bin/python3 mapped=1\nffff00000000 default")
    tree.write(f"{NODES}/online", "0")
    tree.write(f"{NODES}/node0/cpulist", "0-71")
    lines = ("MemTotal: 1000", "MemFree: 10", "Active(file): 20", "Inactive(file): 30", "SReclaimable: 40")
    tree.write(f"{NODES}/node0/meminfo", "\n".join(f"Node 0 {line} kB" for line in lines))
    facts = host(Root(str(tmp_path)))
    assert facts.memory_policy == "bind:0"
    assert [node.memory_reclaimable_bytes for node in facts.numa_nodes or ()] == [90 * 1024]
    (tmp_path / "proc/self/numa_maps").unlink()
    assert host(Root(str(tmp_path))).unread["memory_policy"].reason is Reason.NOT_PRESENT


@pytest.mark.parametrize(
    ("reason", "status"), [(Reason.NO_PERMISSION, "unknown"), (Reason.NOT_PRESENT, "skip"), (Reason.NOT_STATED, "skip")]
)
def test_a_policy_that_was_not_read_does_not_pass(reason: Reason, status: str) -> None:
    machine = patched(healthy(), "host", memory_policy=None, unread={"memory_policy": Unread(reason=reason)})
    assert {status for _, status in statuses(machine, EGM, "numa.policy")} == {status}
