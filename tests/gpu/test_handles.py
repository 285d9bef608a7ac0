"""Memory and events that processes on two real GPUs share: they arrive, are given back, and a death costs nothing else.

What the numbers were on H200 is in docs/hardware-notes.md; here they are printed (``-s``).
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from egmctl.bench.processes.group import Group, GroupFailed
from egmctl.facts.collect import collect
from egmctl.facts.host import node_memory_free
from egmctl.facts.root import Root
from egmctl.model.measurement import Measurement, MeasurementStatus, Verification
from egmctl.model.route import Rank
from egmctl.model.task import Engine, HandleKind
from tests.conftest import ROOT
from tests.doctor.cgroups import denying_v2
from tests.gpu.test_doctor_active import imex_channel
from tests.handles.ranks import (
    MIB,
    SHARED,
    ask,
    finish,
    flag_task,
    life_cycle_task,
    message_task,
    ranks_on,
    stages_of,
    start,
    start_confined,
)

__all__ = ["imex_channel"]

pytestmark = pytest.mark.gpu

FABRIC, LEGACY = HandleKind.FABRIC, HandleKind.LEGACY
POOL, POSIX_FD = HandleKind.POOL, HandleKind.POSIX_FD

STEPS = {
    "exported": (0, "cuMemExportToShareableHandle", 2),
    "imported": (1, "cuMemImportFromShareableHandle", 2),
    "mapped": (1, "cuMemSetAccess", 2),
    "copying": (1, "cuMemsetD32Async", 3),
    "closing": (1, "cuMemUnmap", 2),
}
"""Which rank dies, having made which call for the how manieth time: in the second life."""


@pytest.fixture(scope="module")
def ranks() -> list[Rank]:
    gpus = collect(("gpus",)).gpus or ()
    if len(gpus) < 2:
        pytest.skip("two GPUs are needed")
    return ranks_on([gpu.bus_id for gpu in gpus[:2]])


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)


@pytest.fixture
def group() -> Iterator[Group]:
    with start(2) as made:
        yield made


def show(found: Measurement, of: str) -> None:
    stages = ", ".join(f"{stage.name} {stage.ms.median:.3f}" for stage in found.stages)
    latency = found.latency_ns and f"{found.latency_ns.median:.0f} ns"
    print(f"{of}: {found.status} {latency or stages} {found.reason or ''}")  # noqa: T201 - with -s: what was measured


@pytest.mark.needs_root
@pytest.mark.usefixtures("imex_channel")
def test_each_kind_of_each_memory_arrives_and_leaves_nothing_behind(group: Group, ranks: list[Rank]) -> None:
    for handle, node in SHARED:
        task = life_cycle_task(ranks, handle, node)
        first = ask(group, ranks, task, lives=1)
        said = ask(group, ranks, task, lives=100)
        (found,) = said.measurements
        show(found, f"{handle} {'device' if node is None else 'HOST_NUMA'} 2 MiB, 100 lives")
        assert (found.status, found.verification) == (MeasurementStatus.OK, Verification.GPU_EVERY_SAMPLE), found.reason
        assert [stage.name for stage in found.stages] == stages_of(handle)
        assert said.after == said.before == first.after, (handle, node)
    finish(group)


def test_large_memory_after_large_memory_of_another_kind(group: Group, ranks: list[Rank]) -> None:
    kinds = ((LEGACY, None), (POSIX_FD, None), (POSIX_FD, 0), (POOL, None))
    for again in (False, True):
        for handle, node in kinds:
            said = ask(group, ranks, life_cycle_task(ranks, handle, node, size_bytes=256 * MIB), lives=1)
            (found,) = said.measurements
            show(found, f"{handle} {'device' if node is None else 'HOST_NUMA'} 256 MiB")
            assert found.status is MeasurementStatus.OK, found.reason
            # What the driver keeps for later it keeps after the first time.
            assert said.before == said.after or not again
    finish(group)


def test_pools_of_host_memory_go_both_ways_and_leave_nothing_behind(group: Group, ranks: list[Rank]) -> None:
    def both_ways() -> None:
        for size_bytes in (2 * MIB, 64 * MIB):
            for handle, node in ((POOL, 0), (POSIX_FD, 0), (POOL, None), (POSIX_FD, None)):
                for owner in (0, 1):
                    task = life_cycle_task(ranks, handle, node, size_bytes=size_bytes, owner=owner, importer=1 - owner)
                    (found,) = ask(group, ranks, task, lives=1).measurements
                    show(found, f"{handle} {'device' if node is None else 'HOST_NUMA'} {size_bytes // MIB} of {owner}")
                    assert found.status is MeasurementStatus.OK, found.reason

    both_ways()
    task = life_cycle_task(ranks, POOL, 0)
    first, free = ask(group, ranks, task, lives=1), node_memory_free(Root(), 0)
    for _ in range(3):
        both_ways()
    last = ask(group, ranks, task, lives=1)
    assert [rank["files"] for rank in last.after] == [rank["files"] for rank in first.after]
    assert node_memory_free(Root(), 0) > free - 512 * MIB
    finish(group)


def test_flags_take_less_than_events_and_events_more_than_messages(group: Group, ranks: list[Rank]) -> None:
    def latency_ns(of: str) -> float:
        (found,) = ask(group, ranks, tasks[of]).measurements
        show(found, of)
        assert found.status in (MeasurementStatus.OK, MeasurementStatus.UNSTABLE), found.reason
        assert found.latency_ns is not None
        return found.latency_ns.median

    tasks = {
        "flag in device memory": flag_task(ranks),
        "flag in HOST_NUMA memory": flag_task(ranks, node=0),
        "event": message_task(ranks, Engine.EVENT),
        "message": message_task(ranks, Engine.SOCKET),
    }
    device, host, event, message = map(latency_ns, tasks)
    assert device < host < message < event
    finish(group)


@pytest.mark.parametrize("step", STEPS)
def test_a_rank_killed_at_a_step_leaves_no_process_and_no_memory(ranks: list[Rank], step: str) -> None:
    rank, call, nth = STEPS[step]
    task = life_cycle_task(ranks, POSIX_FD)
    before = memory_used()
    with start(2) as group, pytest.raises(GroupFailed) as failed:
        ask(group, ranks, task, lives=5, death={"rank": rank, "call": call, "nth": nth})
    assert (failed.value.rank, failed.value.how, failed.value.last_call) == (rank, "crashed", call)
    assert memory_used() == before


DENIED = {
    (LEGACY, None): "cuIpcOpenMemHandle failed: CUDA_ERROR_INVALID_VALUE (1)",
    (POSIX_FD, None): "cuMemImportFromShareableHandle failed: CUDA_ERROR_INVALID_DEVICE (101)",
    (POSIX_FD, 0): "cuMemImportFromShareableHandle failed: CUDA_ERROR_INVALID_DEVICE (101)",
    (FABRIC, None): "cuMemImportFromShareableHandle failed: CUDA_ERROR_NOT_SUPPORTED (801)",
    (FABRIC, 0): "cuMemImportFromShareableHandle failed: CUDA_ERROR_NOT_SUPPORTED (801)",
}
"""What an importer meets whose device cgroup denies the owner."""


@pytest.mark.needs_root
@pytest.mark.usefixtures("imex_channel")
def test_a_denied_owner_is_named_and_with_cuda_visible_devices_the_same_passes(ranks: list[Rank]) -> None:
    owner, importer = (collect(("gpus",)).gpus or ())[:2]
    assert owner.proc is not None
    assert owner.proc.minor is not None
    before = memory_used()
    with start_confined(visible=importer.uuid) as group:
        for handle, node in (*DENIED, (POOL, None), (POOL, 0)):
            (found,) = ask(group, ranks, life_cycle_task(ranks, handle, node)).measurements
            assert found.status is MeasurementStatus.OK, found.reason
        finish(group)
    with denying_v2(owner.proc.minor) as cgroup, start_confined(cgroup=cgroup.directory) as group:
        for (handle, node), words in DENIED.items():
            # What the driver opens for a kind of handle it keeps open after the first time.
            ask(group, ranks, life_cycle_task(ranks, handle, node))
            said = ask(group, ranks, life_cycle_task(ranks, handle, node))
            (found,) = said.measurements
            show(found, f"{handle} {'device' if node is None else 'HOST_NUMA'}, owner denied")
            assert (found.failed_rank, found.known_cause) == (1, True), found
            assert words in (found.reason or "")
            assert "its device cgroup or container denies it" in (found.reason or "")
            assert said.before == said.after
        finish(group)
    assert memory_used() == before


def memory_used() -> str:
    """Return what all GPUs have in use, and by which processes."""
    used = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader"]
    processes = ["nvidia-smi", "--query-compute-apps=pid", "--format=csv,noheader"]
    return "".join(subprocess.check_output(query, text=True) for query in (used, processes))
