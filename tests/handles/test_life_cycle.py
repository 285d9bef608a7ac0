"""Memory that two processes share, where calls fail: what is told, and that nothing is left in either.

That every kind arrives and is given back, and what a death costs, is in tests/gpu/test_handles.py for all nodes.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from egmctl.bench.engines import life_cycle
from egmctl.bench.processes.context import Stopwatch
from egmctl.model.measurement import MeasurementStatus
from egmctl.model.task import HandleKind
from tests.fake.machines import nvl4, with_imex_channel, without_peer_access
from tests.fake.node import FakeNode
from tests.fake.plugin import MakeFakeNode
from tests.handles.conftest import RANKS, Launch, nothing_left
from tests.handles.ranks import MIB, SETTINGS, ask, finish, life_cycle_task, ranks_on

FABRIC, LEGACY, POOL, POSIX_FD = HandleKind.FABRIC, HandleKind.LEGACY, HandleKind.POOL, HandleKind.POSIX_FD
POOL_FABRIC = HandleKind.POOL_FABRIC


def test_a_rank_that_has_opened_a_pool_of_host_memory_can_make_one(fake_node: MakeFakeNode, launch: Launch) -> None:
    node = fake_node(nvl4())
    group = launch(node)
    with nothing_left(node, group):
        tasks = [life_cycle_task(RANKS, POOL, 1, owner=owner, importer=1 - owner) for owner in (0, 1, 0)]
        lives = [ask(group, RANKS, task).measurements[0] for task in tasks]
    assert [life.status for life in lives] == [MeasurementStatus.OK] * 3
    refused = [call for call in node.calls("cuMemAllocFromPoolAsync") if call.result]
    assert len(refused) == 2, "as by driver 580, in each of the processes once"


def test_addresses_that_the_driver_has_mapped_already_are_not_taken(fake_node: MakeFakeNode, launch: Launch) -> None:
    node = fake_node(nvl4())
    group = launch(node, "cuMemSetAccess@2=error:208")
    (life,) = ask(group, RANKS, life_cycle_task(RANKS, POSIX_FD), lives=3).measurements
    finish(group)
    assert life.status is MeasurementStatus.OK
    refused = {(call.pid, call.arguments["address"]) for call in node.calls("cuMemSetAccess") if call.result == 208}
    assert len(refused) == 2
    assert sorted(node.leaks()) == sorted(f"process {pid}: reserved addresses {address}" for pid, address in refused)


def test_addresses_that_are_always_mapped_already_are_an_error(fake_node: MakeFakeNode, launch: Launch) -> None:
    group = launch(fake_node(nvl4()), "cuMemSetAccess=error:208")
    (life,) = ask(group, RANKS, life_cycle_task(RANKS, POSIX_FD)).measurements
    assert (life.status, life.last_call) == (MeasurementStatus.FAILED, "cuMemSetAccess")
    finish(group)


def test_legacy_memory_is_whole_multiples_of_two_mib(fake_node: MakeFakeNode, launch: Launch) -> None:
    node = fake_node(nvl4())
    ask(launch(node), RANKS, life_cycle_task(RANKS, LEGACY, size_bytes=2 * MIB + 16), lives=1)
    sizes = {int(call.arguments["size"]) for call in node.calls("cuMemAlloc")}
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
        (life,) = ask(group, THREE, life_cycle_task(THREE, handle, numa_node, importer=2), lives=1).measurements
    assert life.status is MeasurementStatus.OK, life.reason
    # The importer's own GPU is the first, and the others need no context there.
    assert opened_to(node) == [["DEVICE:2:RW", "DEVICE:0:RW", "DEVICE:1:RW"]] * 2
    assert "import-access" in [stage.name for stage in life.stages]


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
    (life,) = ask(group, THREE, life_cycle_task(THREE, POSIX_FD, importer=2), lives=1).measurements
    assert life.status is MeasurementStatus.OK, life.reason
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
        answer = ask(group, ranks, *tasks)
    assert [life.status for life in answer.measurements] == [MeasurementStatus.OK, MeasurementStatus.OK]
    assert answer.before == answer.after


def test_bytes_that_do_not_arrive_are_seen_by_the_owner(fake_node: MakeFakeNode, launch: Launch) -> None:
    node = fake_node(nvl4())
    # The importer fills by a kernel, the owner checks by one: the first launch of both; the damage is the importer's.
    group = launch(node, "cuLaunchKernel@1=corrupt:4096")
    with nothing_left(node, group):
        (life,) = ask(group, RANKS, life_cycle_task(RANKS, POSIX_FD)).measurements
    assert life.status is MeasurementStatus.CORRUPT
    assert life.mismatch is not None
    assert (life.mismatch.sample, life.mismatch.first_offset_bytes) == (0, 4096)
    assert "what the other GPU wrote in life 1 did not arrive: 1 words differ" in (life.reason or "")


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
        answer = ask(group, RANKS, life_cycle_task(RANKS, handle), lives=3)
        (life,) = answer.measurements
        again = ask(group, RANKS, life_cycle_task(RANKS, handle)).measurements[0]
    assert life.status is MeasurementStatus.FAILED, life
    assert life.last_call == call
    assert re.match(r"rank [01] \(GPU[01]\): ", life.reason or "")
    assert answer.before == answer.after
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
    (life,) = ask(group, RANKS, life_cycle_task(RANKS, handle), lives=3).measurements
    finish(group)
    assert (life.status, life.last_call) == (MeasurementStatus.FAILED, call)
    (leak,) = {re.sub(r"0x\w+", "it", line.partition(": ")[2]) for line in node.leaks()} or {""}
    assert leak, "what could not be given back is still there, and nothing else"


def test_the_first_life_initializes_the_driver_and_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def live(_collective: object, _worker: object, seed: int) -> dict[str, float]:
        return {"allocate": 1000.0 if seed == 1 else float(seed)}

    monkeypatch.setattr(life_cycle, "_live", live)
    worker: Any = SimpleNamespace(exchange=SimpleNamespace(rank=0), ranks=RANKS, stopwatch=Stopwatch())
    (measured,) = life_cycle.measure_life_cycles(worker, [life_cycle_task(RANKS, POSIX_FD)], SETTINGS, least=3)
    (stage,) = measured.stages
    assert (stage.name, stage.ms.min, stage.ms.max) == ("allocate", 2.0, 4.0)
