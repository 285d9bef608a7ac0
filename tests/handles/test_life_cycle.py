"""Memory that two processes share, on fake nodes: every kind arrives and is given back, and each call may fail."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from egmctl.bench.engines import life_cycle
from egmctl.bench.processes.context import Stopwatch
from egmctl.bench.processes.group import Group, GroupFailed
from egmctl.model.measurement import MeasurementStatus, Verification
from egmctl.model.task import HandleKind
from tests import forked
from tests.conftest import ROOT
from tests.fake.machines import nvl4, with_access, with_imex_channel, without_peer_access
from tests.fake.node import FakeNode
from tests.fake.plugin import MakeFakeNode
from tests.handles.ranks import (
    MIB,
    SETTINGS,
    SHARED,
    ask,
    finish,
    life_cycle_task,
    ranks_on,
    stages_of,
    start,
    start_confined,
)

RANKS = ranks_on(["0008:01:00.0", "0009:01:00.0"])
FABRIC, LEGACY, POOL, POSIX_FD = HandleKind.FABRIC, HandleKind.LEGACY, HandleKind.POOL, HandleKind.POSIX_FD
POOL_FABRIC = HandleKind.POOL_FABRIC

Launch = Callable[..., Group]


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launch]:
    """Start ranks on a node; ends them."""
    groups = []

    def start_on(node: FakeNode, faults: str = "", count: int = 2, visible: str | None = None) -> Group:
        for name, value in (node.environment(faults) | {"PYTHONPATH": str(ROOT)}).items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)
        with forked.children():
            groups.append(start(count) if visible is None else start_confined(visible, count=count))
        return groups[-1]

    yield start_on
    for group in groups:
        group.close()


@contextmanager
def nothing_left(node: FakeNode, group: Group) -> Iterator[None]:
    """Expect that every rank ends by itself and has given back all that it took of the driver."""
    yield
    finish(group)
    assert node.leaks() == []


@pytest.mark.long
@pytest.mark.parametrize(("handle", "numa_node"), SHARED)
def test_a_hundred_lives_arrive_stage_by_stage_and_leave_no_file_no_mapping_and_no_memory(
    fake_node: MakeFakeNode, launch: Launch, handle: HandleKind, numa_node: int | None
) -> None:
    node = fake_node(with_imex_channel(nvl4()))
    group = launch(node)
    with nothing_left(node, group):
        task = life_cycle_task(RANKS, handle, numa_node)
        first = ask(group, RANKS, task, lives=1)
        last = ask(group, RANKS, task, lives=100)
    (found,) = last.measurements
    assert (found.status, found.reason) == (MeasurementStatus.OK, None)
    assert found.verification is Verification.GPU_EVERY_SAMPLE
    assert [stage.name for stage in found.stages] == stages_of(handle)
    assert all(0 < stage.ms.min <= stage.ms.median <= stage.ms.max for stage in found.stages)
    assert last.after == first.after == first.before


def test_a_rank_that_has_opened_a_pool_of_host_memory_can_make_one(fake_node: MakeFakeNode, launch: Launch) -> None:
    node = fake_node(nvl4())
    group = launch(node)
    with nothing_left(node, group):
        tasks = [life_cycle_task(RANKS, POOL, 1, owner=owner, importer=1 - owner) for owner in (0, 1, 0)]
        found = [ask(group, RANKS, task).measurements[0] for task in tasks]
    assert [one.status for one in found] == [MeasurementStatus.OK] * 3
    refused = [call for call in node.calls("cuMemAllocFromPoolAsync") if call.result]
    assert len(refused) == 2, "as by driver 580, in each of the processes once"


def test_addresses_that_the_driver_has_mapped_already_are_not_taken(fake_node: MakeFakeNode, launch: Launch) -> None:
    node = fake_node(nvl4())
    group = launch(node, "cuMemSetAccess@2=error:208")
    (found,) = ask(group, RANKS, life_cycle_task(RANKS, POSIX_FD), lives=3).measurements
    finish(group)
    assert found.status is MeasurementStatus.OK
    refused = {(call.pid, call.arguments["address"]) for call in node.calls("cuMemSetAccess") if call.result == 208}
    assert len(refused) == 2
    assert sorted(node.leaks()) == sorted(f"process {pid}: reserved addresses {address}" for pid, address in refused)


def test_addresses_that_are_always_mapped_already_are_an_error(fake_node: MakeFakeNode, launch: Launch) -> None:
    group = launch(fake_node(nvl4()), "cuMemSetAccess=error:208")
    (found,) = ask(group, RANKS, life_cycle_task(RANKS, POSIX_FD)).measurements
    assert (found.status, found.last_call) == (MeasurementStatus.FAILED, "cuMemSetAccess")
    finish(group)


def test_legacy_memory_is_whole_multiples_of_two_mib(fake_node: MakeFakeNode, launch: Launch) -> None:
    node = fake_node(nvl4())
    ask(launch(node), RANKS, life_cycle_task(RANKS, LEGACY, size_bytes=2 * MIB + 16), lives=1)
    sizes = {int(made.arguments["size"]) for made in node.calls("cuMemAlloc")}
    assert 4 * MIB in sizes
    assert 2 * MIB + 16 not in sizes


THREE = ranks_on(["0008:01:00.0", "0009:01:00.0", "0018:01:00.0"])


def opened_to(node: FakeNode) -> list[list[str]]:
    """Return the GPUs of each cuMemSetAccess of a process that imports."""
    importing = {call.pid for call in node.calls("cuMemImportFromShareableHandle")}
    words = (call.arguments["access"].split(",") for call in node.calls("cuMemSetAccess") if call.pid in importing)
    return [[word for word in access if word.startswith("DEVICE")] for access in words]


@pytest.mark.parametrize("handle", [POSIX_FD, FABRIC])
@pytest.mark.parametrize("numa_node", [None, 1])
def test_what_is_imported_is_mapped_for_all_gpus_of_the_node_by_one_call(
    fake_node: MakeFakeNode, launch: Launch, handle: HandleKind, numa_node: int | None
) -> None:
    node = fake_node(with_imex_channel(nvl4()))
    group = launch(node, count=3)
    with nothing_left(node, group):
        (found,) = ask(group, THREE, life_cycle_task(THREE, handle, numa_node, importer=2), lives=1).measurements
    assert found.status is MeasurementStatus.OK, found.reason
    # The importer's own GPU is the first, and the others need no context there.
    assert opened_to(node) == [["DEVICE:2:RW", "DEVICE:0:RW", "DEVICE:1:RW"]] * 2
    assert "import-access" in [stage.name for stage in found.stages]


def test_a_gpu_that_reaches_the_owner_only_through_the_host_gets_no_access_to_its_memory(
    fake_node: MakeFakeNode, launch: Launch
) -> None:
    node = fake_node(without_peer_access(nvl4(), "0009:01:00.0", "0008:01:00.0"))
    group = launch(node, count=3)
    ask(group, THREE, life_cycle_task(THREE, POSIX_FD, importer=2), lives=1)
    ask(group, THREE, life_cycle_task(THREE, POSIX_FD, 1, importer=2), lives=1)
    finish(group)
    of_gpu, of_host = ["DEVICE:2:RW", "DEVICE:0:RW"], ["DEVICE:2:RW", "DEVICE:0:RW", "DEVICE:1:RW"]
    assert opened_to(node) == [of_gpu] * 2 + [of_host] * 2


def test_gpus_that_the_importer_does_not_see_get_no_access(fake_node: MakeFakeNode, launch: Launch) -> None:
    node = fake_node(nvl4())
    group = launch(node, count=3, visible="2,1")
    (found,) = ask(group, THREE, life_cycle_task(THREE, POSIX_FD, importer=2), lives=1).measurements
    assert found.status is MeasurementStatus.OK, found.reason
    assert opened_to(node) == [["DEVICE:0:RW", "DEVICE:1:RW"]] * 2


def test_those_who_have_no_part_only_keep_step(fake_node: MakeFakeNode, launch: Launch) -> None:
    ranks = ranks_on(["0008:01:00.0", "0009:01:00.0", "0018:01:00.0"])
    node = fake_node(nvl4())
    group = launch(node, count=3)
    with nothing_left(node, group):
        tasks = [
            life_cycle_task(ranks, POSIX_FD, owner=2, importer=0),
            life_cycle_task(ranks, POOL, owner=1, importer=2),
        ]
        said = ask(group, ranks, *tasks)
    assert [found.status for found in said.measurements] == [MeasurementStatus.OK, MeasurementStatus.OK]
    assert said.before == said.after


def test_bytes_that_do_not_arrive_are_seen_by_the_owner(fake_node: MakeFakeNode, launch: Launch) -> None:
    node = fake_node(nvl4())
    # The importer fills by a kernel, the owner checks by one: the first launch of both; the damage is the importer's.
    group = launch(node, "cuLaunchKernel@1=corrupt:4096")
    with nothing_left(node, group):
        (found,) = ask(group, RANKS, life_cycle_task(RANKS, POSIX_FD)).measurements
    assert found.status is MeasurementStatus.CORRUPT
    assert found.mismatch is not None
    assert (found.mismatch.sample, found.mismatch.first_offset_bytes) == (0, 4096)
    assert "what the other GPU wrote in life 1 did not arrive: 1 words differ" in (found.reason or "")


OWNERS_CALLS = {
    LEGACY: ("cuMemAlloc", "cuIpcGetMemHandle"),
    POSIX_FD: (
        *("cuMemGetAllocationGranularity", "cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"),
        "cuMemExportToShareableHandle",
    ),
    FABRIC: ("cuMemCreate", "cuMemExportToShareableHandle"),
    POOL: (
        *("cuMemPoolCreate", "cuMemPoolSetAccess", "cuMemAllocFromPoolAsync"),
        *("cuMemPoolExportToShareableHandle", "cuMemPoolExportPointer"),
    ),
}
IMPORTERS_CALLS = {
    LEGACY: ("cuIpcOpenMemHandle",),
    POSIX_FD: ("cuMemImportFromShareableHandle",),
    FABRIC: ("cuMemImportFromShareableHandle",),
    POOL: ("cuMemPoolImportFromShareableHandle", "cuMemPoolImportPointer"),
}
for _calls in (OWNERS_CALLS, IMPORTERS_CALLS):
    _calls[POOL_FABRIC] = _calls[POOL]


@pytest.mark.long
@pytest.mark.parametrize(
    ("handle", "call"),
    [
        (handle, call)
        for handle in HandleKind
        for call in (*OWNERS_CALLS[handle], *IMPORTERS_CALLS[handle], "cuMemsetD32Async", "cuLaunchKernel")
    ],
)
def test_a_call_that_fails_ends_the_life_in_both_and_leaves_nothing(
    fake_node: MakeFakeNode, launch: Launch, handle: HandleKind, call: str
) -> None:
    node = fake_node(with_imex_channel(nvl4()))
    nth = 3 if call in ("cuMemAlloc", "cuMemsetD32Async") else 2
    group = launch(node, f"{call}@{nth}=error:999,once")
    with nothing_left(node, group):
        said = ask(group, RANKS, life_cycle_task(RANKS, handle), lives=3)
        (found,) = said.measurements
        again = ask(group, RANKS, life_cycle_task(RANKS, handle)).measurements[0]
    assert found.status is MeasurementStatus.FAILED, found
    assert found.last_call == call
    assert re.match(r"rank [01] \(GPU[01]\): ", found.reason or "")
    assert said.before == said.after
    assert again.status is MeasurementStatus.OK


@pytest.mark.long
@pytest.mark.parametrize(
    ("handle", "call"),
    [
        (POSIX_FD, "cuMemRelease"),
        (POSIX_FD, "cuMemAddressFree"),
        (LEGACY, "cuIpcCloseMemHandle"),
        (POOL, "cuMemFreeAsync"),
        (POOL, "cuMemPoolDestroy"),
        (POOL_FABRIC, "cuMemPoolDestroy"),
    ],
)
def test_a_failure_to_give_back_is_said_and_the_rest_is_given_back(
    fake_node: MakeFakeNode, launch: Launch, handle: HandleKind, call: str
) -> None:
    node = fake_node(with_imex_channel(nvl4()))
    group = launch(node, f"{call}@2=error:999,once")
    (found,) = ask(group, RANKS, life_cycle_task(RANKS, handle), lives=3).measurements
    finish(group)
    assert (found.status, found.last_call) == (MeasurementStatus.FAILED, call)
    (leak,) = {re.sub(r"0x\w+", "it", line.partition(": ")[2]) for line in node.leaks()} or {""}
    assert leak, "what could not be given back is still there, and nothing else"


@pytest.mark.long
@pytest.mark.parametrize(
    ("handle", "numa_node", "call", "number"),
    [
        (LEGACY, None, "cuIpcOpenMemHandle", 1),
        (POSIX_FD, None, "cuMemImportFromShareableHandle", 101),
        (POSIX_FD, 0, "cuMemImportFromShareableHandle", 101),
        (POOL, 0, "cuMemPoolImportPointer", 101),
    ],
)
def test_an_owner_that_a_device_cgroup_denies_to_the_importer_is_named_as_the_cause(
    fake_node: MakeFakeNode,
    launch: Launch,
    handle: HandleKind,
    numa_node: int | None,
    call: str,
    number: int,
) -> None:
    node, confined = fake_node(nvl4()), fake_node(with_access(nvl4(), "/dev/nvidia0", "EPERM"))
    owner, importer = launch(node), launch(confined)
    owner._members[1], importer._members[1] = importer._members[1], owner._members[1]
    said = ask(owner, RANKS, life_cycle_task(RANKS, handle, numa_node))
    (found,) = said.measurements
    assert (found.status, found.known_cause, found.failed_rank) == (MeasurementStatus.FAILED, True, 1)
    assert f"{call} failed" in (found.reason or "")
    assert f"({number})" in (found.reason or "")
    assert "device cgroup" in (found.reason or "")
    assert said.before == said.after


@pytest.mark.parametrize(
    ("call", "nth"),
    [
        *(("cuMemExportToShareableHandle", 2), ("cuMemImportFromShareableHandle", 2), ("cuMemMap", 2)),
        *(("cuMemsetD32Async", 3), ("cuMemUnmap", 2), ("cuMemRelease", 2)),
    ],
)
def test_a_rank_that_dies_releases_the_other(fake_node: MakeFakeNode, launch: Launch, call: str, nth: int) -> None:
    node = fake_node(nvl4())
    group = launch(node, f"{call}@{nth}=kill:9,once")
    with pytest.raises(GroupFailed) as failed:
        ask(group, RANKS, life_cycle_task(RANKS, POSIX_FD), lives=3)
    assert (failed.value.how, failed.value.last_call) == ("crashed", call)
    dead = {one.pid for one in node.calls() if one.ending}
    assert len(dead) == 1
    left = [line for line in node.leaks() if not any(line.startswith(f"process {pid}:") for pid in dead)]
    assert not [line for line in left if "mapping" in line or "allocation" in line or "addresses" in line]


def test_the_first_life_initializes_the_driver_and_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def live(_collective: object, _worker: object, seed: int) -> dict[str, float]:
        return {"allocate": 1000.0 if seed == 1 else float(seed)}

    monkeypatch.setattr(life_cycle, "_live", live)
    worker: Any = SimpleNamespace(exchange=SimpleNamespace(rank=0), ranks=RANKS, stopwatch=Stopwatch())
    (measured,) = life_cycle.measure_life_cycles(worker, [life_cycle_task(RANKS, POSIX_FD)], SETTINGS, least=3)
    (stage,) = measured.stages
    assert (stage.name, stage.ms.min, stage.ms.max) == ("allocate", 2.0, 4.0)
