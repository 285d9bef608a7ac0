"""What counters prove, and what a witness keeps of what it sees."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from egmctl.bench.evidence import LinkCounters, Watch, link_evidence
from egmctl.gpu.telemetry import ClockState, Telemetry, Traffic
from egmctl.model.measurement import LinkEvidence, LinkProof
from egmctl.model.route import Carrier, Egm, Hop, LinkKind, MemoryKind, Route
from egmctl.model.task import Endpoint, Engine, Flow, Pattern, Quantity, Task
from tests.bench.routes import C2C, PCIE, PHB, SMP, nv, over, to_host
from tests.conftest import RunEgmctl
from tests.fake.plugin import MakeFakeNode

A, B = "0000:1b:00.0", "0000:2c:00.0"
SIZE = 512 << 20


def gpu(bus_id: str) -> Endpoint:
    return Endpoint(memory=MemoryKind.DEVICE, label=f"GPU{'AB'.index('A' if bus_id == A else 'B')}", bus_id=bus_id)


NODE = Endpoint(memory=MemoryKind.HOST_NUMA, label="NUMA0", numa_node=0)


def flow(source: Endpoint, destination: Endpoint, route: Route, initiator: str | None = A) -> Flow:
    return Flow(source=source, destination=destination, initiator=initiator, initiator_label="GPU0", route=route)


def task(*flows: Flow, quantity: Quantity = Quantity.BANDWIDTH) -> Task:
    return Task(
        case="a_case",
        family="p2p",
        quantity=quantity,
        engine=Engine.COPY_ENGINE,
        pattern=Pattern.PAIR,
        flows=flows,
        counted="each byte copied, once",
        size_bytes=SIZE,
        copies=2,
    )


P2P = flow(gpu(A), gpu(B), over(nv(18)))
MOVED = 3 * 2 * SIZE


def evidence(task: Task, samples: int, rises: Mapping[str, Traffic]) -> LinkEvidence:
    """Return what the counters of the GPUs tell of a task's route."""
    found = link_evidence(task, samples, rises)
    assert found is not None
    return found


class TestRoute:
    """Three samples of two copies."""

    @pytest.mark.parametrize(
        ("initiator", "seen"),
        [(A, {A: Traffic({"nvlink": MOVED}, {"nvlink": 0})}), (B, {B: Traffic({"nvlink": 0}, {"nvlink": MOVED})})],
        ids=["push", "pull"],
    )
    def test_nvlink_that_counts_what_was_moved_is_proven(self, initiator: str, seen: dict[str, Traffic]) -> None:
        found = evidence(task(flow(gpu(A), gpu(B), over(nv(18)), initiator)), 3, seen)
        assert (found.link, found.verdict) == ("nvlink", LinkProof.PROVEN)
        assert (found.expected_bytes, found.carried_bytes) == (MOVED, MOVED)

    @pytest.mark.parametrize(
        ("hops", "seen"),
        [
            ((C2C, nv(18), C2C), Traffic({"nvlink": MOVED, "pcie": 0}, {"nvlink": 0, "pcie": 0})),
            ((nv(18), C2C, C2C), Traffic({"nvlink": 0}, {"nvlink": MOVED})),
        ],
        ids=["to another node", "from another node"],
    )
    def test_from_egm_to_egm_the_nvlinks_between_tell(self, hops: tuple[Hop, ...], seen: Traffic) -> None:
        one, other = NODE, replace(NODE, label="NUMA1", numa_node=1)
        through = flow(one, other, to_host(*hops, egm=Egm.YES))
        found = evidence(task(through), 3, {A: seen})
        assert (found.link, found.verdict, found.carried_bytes) == ("nvlink", LinkProof.PROVEN, MOVED)
        still = evidence(task(through), 3, {A: Traffic({"nvlink": 0, "pcie": 0}, {"nvlink": 0, "pcie": 0})})
        assert still.verdict is LinkProof.REFUTED

    def test_a_gpu_that_only_reads_receives_and_one_that_only_writes_sends(self) -> None:
        registers = Endpoint(memory=MemoryKind.REGISTERS, label="GPU0", bus_id=A)
        seen = {A: Traffic({"nvlink": 0}, {"nvlink": MOVED})}
        read = evidence(task(flow(gpu(B), registers, over(nv(18)))), 3, seen)
        write = evidence(task(flow(registers, gpu(B), over(nv(18)))), 3, seen)
        assert (read.verdict, write.verdict) == (LinkProof.PROVEN, LinkProof.REFUTED)

    def test_nvlink_that_stood_still_is_refuted(self) -> None:
        found = evidence(task(P2P), 3, {A: Traffic({"nvlink": 4096}, {"nvlink": MOVED})})
        assert found.verdict is LinkProof.REFUTED

    def test_without_counters_nothing_is_known(self) -> None:
        found = evidence(task(P2P), 3, {B: Traffic({"nvlink": MOVED})})
        assert (found.verdict, found.carried_bytes) == (LinkProof.UNKNOWN, None)

    @pytest.mark.parametrize(
        ("pcie", "verdict"), [(1 << 20, LinkProof.BY_EXCLUSION), (MOVED, LinkProof.REFUTED), (None, LinkProof.UNKNOWN)]
    )
    def test_c2c_has_no_counter_so_the_other_kinds_of_links_tell(self, pcie: int | None, verdict: LinkProof) -> None:
        egm = flow(NODE, gpu(A), to_host(C2C, egm=Egm.YES))
        received = {"nvlink": 0} | ({} if pcie is None else {"pcie": pcie})
        found = evidence(task(egm), 3, {A: Traffic({}, received)})
        assert (found.link, found.verdict) == ("c2c", verdict)

    def test_egm_of_the_other_gpu_of_a_cpu_goes_over_nvlink_and_is_no_misroute(self) -> None:
        seen = {A: Traffic({}, {"nvlink": MOVED, "pcie": 0})}
        for egm, link, verdict in ((Egm.YES, "nvlink", LinkProof.PROVEN), (Egm.NO, "c2c", LinkProof.REFUTED)):
            found = evidence(task(flow(NODE, gpu(A), to_host(C2C, egm=egm))), 3, seen)
            assert (found.link, found.verdict) == (link, verdict)

    @pytest.mark.parametrize(
        ("received", "link", "verdict"),
        [
            ({"nvlink": MOVED, "pcie": 0}, "nvlink", LinkProof.PROVEN),
            ({"nvlink": 0, "pcie": 0}, "c2c", LinkProof.BY_EXCLUSION),
            ({"nvlink": 0, "pcie": MOVED}, "nvlink", LinkProof.REFUTED),
            ({"nvlink": MOVED * 3 // 4, "pcie": 0}, "nvlink", LinkProof.REFUTED),
            ({"pcie": 0}, "nvlink", LinkProof.UNKNOWN),
        ],
    )
    def test_egm_allocated_under_the_other_gpu_is_expected_over_nvlink_and_may_be_the_readers_own(
        self, received: dict[str, int], link: str, verdict: LinkProof
    ) -> None:
        by_other = replace(NODE, label="NUMA0 (by GPUB)", allocated_by=B, allocated_by_label="GPUB")
        read = flow(by_other, gpu(A), to_host(nv(18), C2C, egm=Egm.YES))
        found = evidence(task(read), 3, {A: Traffic({}, received)})
        assert (found.link, found.verdict) == (link, verdict)

    def test_host_memory_counts_at_the_gpu_in_the_direction_of_the_bytes(self) -> None:
        seen = {A: Traffic({"pcie": MOVED}, {"pcie": 5})}
        there = evidence(task(flow(gpu(A), NODE, to_host(PCIE))), 3, seen)
        back = evidence(task(flow(NODE, gpu(A), to_host(PCIE))), 3, seen)
        assert (there.verdict, back.verdict) == (LinkProof.PROVEN, LinkProof.REFUTED)

    def test_both_directions_add_up(self) -> None:
        back = flow(gpu(B), gpu(A), over(nv(18)), initiator=B)
        seen = {bus_id: Traffic({"nvlink": MOVED}, {"nvlink": MOVED}) for bus_id in (A, B)}
        found = evidence(task(P2P, back), 3, seen)
        assert (found.expected_bytes, found.verdict) == (2 * MOVED, LinkProof.PROVEN)

    def test_nothing_is_said_of_what_leaves_no_gpu_or_is_too_little(self) -> None:
        local = flow(gpu(A), gpu(A), over())
        assert link_evidence(task(local), 3, {}) is None
        assert link_evidence(task(P2P, quantity=Quantity.LATENCY), 3, {}) is None
        assert link_evidence(task(P2P), 0, {}) is None


@pytest.mark.parametrize(
    ("route", "expected"),
    [
        (over(nv(18)), "nvlink"),
        (over(PHB), "pcie"),
        (to_host(C2C, egm=Egm.YES), "c2c"),
        (to_host(nv(18), C2C, egm=Egm.YES), "nvlink"),
        (to_host(PCIE), "pcie"),
        (to_host(C2C, SMP), "c2c"),
        (to_host(C2C, SMP, memory=MemoryKind.PINNED), "c2c"),
        (over(), None),
        (over(Hop(link=LinkKind.UNKNOWN)), None),
        (Route(carrier=Carrier.UCX), None),
        (Route(carrier=Carrier.SOCKET), None),
        (Route(carrier=Carrier.CPU, memory=MemoryKind.PINNED, hops=(SMP,)), None),
    ],
)
def test_the_link_at_the_gpu_is_the_first_one_of_the_route(route: Route, expected: str | None) -> None:
    assert route.first_link == expected


@pytest.mark.parametrize(
    ("sent", "carried", "verdict", "fields"),
    [
        ({"nvlink": MOVED}, MOVED, LinkProof.PROVEN, "138/139"),
        ({"nvlink-count": MOVED}, MOVED, LinkProof.PROVEN, "202/204"),
        ({"nvlink-count": 4096}, 4096, LinkProof.UNKNOWN, "202/204"),
        ({"nvlink": 4096, "nvlink-count": 0}, 4096, LinkProof.REFUTED, "138/139"),
        ({"nvlink": MOVED, "nvlink-count": 0}, None, LinkProof.UNKNOWN, None),
        ({"nvlink": MOVED, "nvlink-count": MOVED * 9 // 8}, MOVED, LinkProof.PROVEN, "138/139"),
        ({"nvlink": 0, "nvlink-count": MOVED}, None, LinkProof.UNKNOWN, None),
        ({"nvlink": MOVED, "nvlink-count": 2 * MOVED}, None, LinkProof.UNKNOWN, None),
        ({}, None, LinkProof.UNKNOWN, None),
    ],
)
def test_of_two_kinds_of_nvlink_counters_either_proves_and_both_must_agree(
    sent: dict[str, int], carried: int | None, verdict: LinkProof, fields: str | None
) -> None:
    found = evidence(task(P2P), 3, {A: Traffic(sent, {"nvlink": 0, "nvlink-count": 0})})
    assert (found.carried_bytes, found.verdict, found.fields) == (carried, verdict, fields)


@pytest.mark.processes
@pytest.mark.parametrize(
    ("machine", "answering", "names", "fields"),
    [
        ("gb200-tray", "older", {"nvlink"}, "138/139"),
        ("gb200-tray", "newer", {"nvlink-count"}, "202/204"),
        ("gb200-tray", "newer of links", {"nvlink-count"}, "202/204"),
        ("gb200-tray", "both", {"nvlink", "nvlink-count"}, "138/139"),
        ("gb200-tray", "both apart", {"nvlink", "nvlink-count"}, None),
        # Before NVLink 5 the newer ones are not asked, whatever they would answer.
        ("hgx-h200x4", "both apart", {"nvlink"}, "138/139"),
    ],
)
def test_a_run_reads_the_nvlink_counters_that_answer_of_all_links_or_of_each(
    machine: str, answering: str, names: set[str], fields: str | None, fake_node: MakeFakeNode, egmctl: RunEgmctl
) -> None:
    node = fake_node(machine)
    options = ("--pair", "0:1", "--case", "device_to_device_memcpy_write_ce", "--size", "64M", "--copies", "2")
    environment = node.environment() | {"EGMCTL_FAKE_COUNTERS": answering}
    done = egmctl("bench", *options, "--samples", "2", "--json", env=environment)
    (measurement,) = json.loads(done.out)["result"]["measurements"]
    (sent,) = (gpu["sent_bytes"] for gpu in measurement["evidence"]["gpus"] if gpu["sent_bytes"])
    assert set(sent) == names
    assert measurement["evidence"]["route"]["fields"] == fields
    assert measurement["evidence"]["route"]["verdict"] == ("proven" if fields else "unknown")


class StubTelemetry(Telemetry):
    """Counters that rise by a step at each reading."""

    def __init__(self, errors: dict[str, int]) -> None:
        self.why_not = None
        self._errors_to_tell = errors
        self._readings = 0

    def knows(self, bus_id: str) -> bool:
        return bus_id == A

    def traffic(self, _bus_id: str, links: Iterable[str]) -> Traffic:
        self._readings += 1
        return Traffic(dict.fromkeys(links, 1000 * self._readings), dict.fromkeys(links, 0))

    def state(self, _bus_id: str) -> ClockState:
        return ClockState(1980, 3201, ("idle", "sw-power-cap"), 40)

    def new_errors(self, _bus_id: str, _links: Iterable[str]) -> dict[str, int]:
        return self._errors_to_tell

    def process_ids(self, _bus_id: str) -> tuple[int, ...]:
        return (os.getpid(), 4711)


def test_the_link_counters_keep_clocks_errors_and_other_processes_of_the_gpus_it_knows() -> None:
    with LinkCounters(StubTelemetry({"nvlink-replays": 2})).watch([task(P2P)]) as watch:
        pass
    known, unknown = watch.seen([A, B])
    assert (known.sm_clock_mhz, known.memory_clock_mhz, known.temperature_c) == (1980, 3201, 40)
    assert known.throttle_reasons == ("sw-power-cap",)
    assert known.sent_bytes == {"nvlink": 1000}
    assert known.errors == {"nvlink-replays": 2}
    assert known.other_processes == (4711,)
    assert (unknown.sm_clock_mhz, unknown.sent_bytes, unknown.other_processes) == (None, {}, None)


def test_the_gpu_under_which_egm_was_allocated_is_counted_beside_the_one_that_reads_it() -> None:
    by_other = replace(NODE, label="NUMA0 (by GPU1)", allocated_by=B, allocated_by_label="GPU1")

    class Both(StubTelemetry):
        def knows(self, _bus_id: str) -> bool:
            return True

    for route, counted in ((to_host(nv(18), C2C, egm=Egm.YES), {A, B}), (to_host(PCIE), {A})):
        with LinkCounters(Both({})).watch([task(flow(by_other, gpu(A), route))]) as watch:
            pass
        seen = watch.seen([A, B])
        assert {one.bus_id for one in seen if one.sent_bytes} == counted
        assert [one.label for one in seen] == ["GPU0", "GPU1"]


def test_without_nvml_the_reason_is_told() -> None:
    telemetry: Any = StubTelemetry({})
    telemetry.why_not = "nvmlInit: 12 (NVML Shared Library Not Found)"
    with LinkCounters(telemetry).watch([]) as watch:
        pass
    assert watch.unread == "nvmlInit: 12 (NVML Shared Library Not Found)"


def test_the_pcie_counter_goes_round_at_32_bits() -> None:
    before, after = Traffic({"pcie": (1 << 32) - 100}), Traffic({"pcie": 50})
    assert after.since(before).sent_bytes == {"pcie": 150}


def test_what_is_counted_after_each_sample_is_not_lost_when_the_counter_goes_round() -> None:
    class Counter(StubTelemetry):
        carried = 0

        def traffic(self, _bus_id: str, links: Iterable[str]) -> Traffic:
            return Traffic(dict.fromkeys(links, 0), dict.fromkeys(links, self.carried % (1 << 32)))

    telemetry = Counter({})
    of = task(flow(NODE, gpu(A), to_host(PCIE)))
    watch = Watch(telemetry, [of], ())
    watch.begin()
    for _ in range(5):
        telemetry.carried += 3 << 30
        watch.count()
    watch.end()
    (seen,) = watch.seen([A])
    assert seen.received_bytes == {"pcie": 15 << 30}


def test_a_counter_that_was_reset_tells_nothing() -> None:
    assert Traffic({"nvlink": 5}).since(Traffic({"nvlink": 100})).sent_bytes == {}
