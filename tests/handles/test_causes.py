"""What errors of the driver mean: the signatures that people meet, each with its cause in words."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from egmctl.bench.processes.collective import CollectiveStep, Item
from egmctl.driver.signatures import cause_of, cause_of_crash, signatures
from egmctl.errors import DriverTooOld
from egmctl.facts.buffers import NoPages
from egmctl.gpu.program import NoKernels
from egmctl.model.finding import WaiverKind
from egmctl.model.route import Rank
from egmctl.model.task import HandleKind
from tests.handles.ranks import life_cycle_task

IMPORT = "cuMemImportFromShareableHandle"

KNOWN = [
    ("cuIpcOpenMemHandle", 1, "device cgroup or container denies it"),
    (IMPORT, 101, "device cgroup or container denies it"),
    (IMPORT, 801, "device cgroup or container denies it"),
    ("cuMemPoolImportFromShareableHandle", 101, "device cgroup or container denies it"),
    ("cuMemPoolImportPointer", 101, "device cgroup or container denies it"),
    ("cuIpcOpenMemHandle", 201, "different PID namespaces"),
    ("cuInit", 304, "PID namespace"),
    ("cuMemCreate", 800, "no IMEX channel"),
    ("cuMemPoolCreate", 800, "no IMEX channel"),
    (IMPORT, 800, "no IMEX channel"),
    (IMPORT, 400, "IMEX domain"),
    ("cuInit", 3, "CONFIG_ARM_SMMU_V3_SVA"),
    ("cuInit", 100, "no GPU can be opened"),
    ("cuMemAlloc", 2, "not enough free memory"),
    ("cuDevicePrimaryCtxRetain", 46, "exclusive use"),
    ("cuCtxSynchronize", 800, "an IMEX channel, access"),
    ("cuInit", 802, "Fabric Manager does not run"),
    ("cuInit", 803, "are of two versions"),
    ("cuInit", 804, "forward compatibility"),
]


@pytest.mark.parametrize(("call", "number", "words"), KNOWN)
def test_a_known_signature_has_its_cause_and_a_remedy(call: str, number: int, words: str) -> None:
    cause = cause_of(call, number)
    assert cause is not None
    assert words in cause.cause
    assert cause.remedy.text.endswith(".")
    assert words in str(cause)


def test_every_signature_of_the_node_is_tested() -> None:
    anywhere = {number for call, number, _ in KNOWN if cause_of(None, number) is not None}
    tested = {(call, number) for call, number, _ in KNOWN} | {(None, number) for number in anywhere}
    assert {(entry.call, entry.number) for entry in signatures().errors.values() if entry.node} <= tested


@pytest.mark.parametrize(
    ("call", "number"), [("cuMemAlloc", 1), (IMPORT, 1), ("cuIpcOpenMemHandle", 101), (None, None)]
)
def test_the_same_number_of_another_call_says_nothing(call: str | None, number: int | None) -> None:
    assert cause_of(call, number) is None


def test_a_death_in_the_import_of_a_pool_has_a_cause() -> None:
    cause = cause_of_crash("cuMemPoolImportFromShareableHandle")
    assert cause is not None
    assert "device cgroup" in cause.cause
    assert cause_of_crash("cuMemPoolImportPointer") is None
    assert cause_of_crash(None) is None


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (NoPages("NUMA0 has no free huge pages"), WaiverKind.NO_PAGES),
        (NoKernels("there is no NVRTC"), WaiverKind.UNSUPPORTED_ENGINE),
        (DriverTooOld("cuMemPoolCreate", None, "not found"), WaiverKind.REFUSED),
    ],
)
def test_a_failure_of_another_rank_is_of_the_same_kind_here(error: Exception, kind: WaiverKind) -> None:
    class OtherFails:
        """An exchange in which rank 1 gives what this one gives."""

        rank, size = 0, 2

        def all_gather(self, data: Any, _fds: object) -> list[Item]:
            return [Item([{"data": None, "fds": 0}]), Item(json.loads(json.dumps(data)))]

    def fail(_place: int) -> None:
        raise error

    ranks = tuple(Rank(number=number, label=f"GPU{number}", bus_id=f"0000:0{number}:00.0") for number in range(2))
    worker: Any = SimpleNamespace(exchange=OtherFails(), ranks=ranks)
    step = CollectiveStep(worker, [life_cycle_task(ranks, HandleKind.POSIX_FD)])
    step.do(fail)
    (outcome,) = step.outcomes
    assert outcome is not None
    assert [waiver.kind for waiver in outcome.waivers] == [kind]
    assert outcome.failed_rank == 1
