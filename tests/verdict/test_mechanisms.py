"""What a fault can do to a measurement: every check, symptom, kind of waiver and path, in both directions."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import pytest

from egmctl.doctor.causes import ON_PATHS, rules_from
from egmctl.doctor.effects_on_paths import Flows
from egmctl.doctor.runner import CHECKS
from egmctl.doctor.troubles import Symptom
from egmctl.facts.kernel_log import event
from egmctl.model.finding import NODE, OF_GPUS, Finding, Place, PlaceKind, RootCause, Status, Waiver, WaiverKind
from egmctl.model.gpu import Gpu, NvLink
from egmctl.model.kernel_log import KernelLog
from egmctl.model.machine import Machine
from egmctl.model.measurement import Measurement, MeasurementStatus, RunReport
from egmctl.model.route import Carrier, Hop, LinkKind, MemoryKind, Route
from egmctl.model.task import Flow, HandleKind
from egmctl.verdict.explain import Shortfalls, explained_by
from tests.doctor.machines import patched, shipped
from tests.doctor.machines import run as run_check
from tests.verdict.runs import H2D, H200, OF_GPU2, WRITE, run

RUN = run(WRITE, H2D)
GPU2 = "0000:00:08.0"
AT_GPU2 = Place(kind=PlaceKind.GPU, ids=(GPU2,), label="GPU2")


def of_path(path: str) -> Measurement:
    return next(m for m in RUN.measurements if m.path == path)


PEER, NUMA = of_path("GPU0 -> GPU2"), of_path("NUMA0 -> GPU2")


def changed(measurement: Measurement, **flow: object) -> Measurement:
    return replace(measurement, flows=(replace(measurement.flows[0], **flow),))  # type: ignore[arg-type]


def over(link: LinkKind, measurement: Measurement) -> Measurement:
    route = measurement.flows[0].route
    return changed(measurement, route=replace(route, hops=(Hop(link=link),)))


def of_memory(kind: MemoryKind, measurement: Measurement) -> Measurement:
    return changed(measurement, source=replace(measurement.flows[0].source, memory=kind))


PATHS = {
    "nvlink": PEER,
    "pcie-peer": over(LinkKind.PCIE, PEER),
    "staged": changed(PEER, route=replace(PEER.flows[0].route, staged=True, hops=(Hop(link=LinkKind.PCIE),) * 2)),
    "across": changed(PEER, route=Route(hops=(Hop(link=LinkKind.NVLINK),), across_nodes=True)),
    "handle": changed(PEER, destination=replace(PEER.flows[0].destination, handle=HandleKind.FABRIC)),
    "numa": NUMA,
    "egm": over(LinkKind.C2C, NUMA),
    "egm-handle": changed(over(LinkKind.C2C, NUMA), source=replace(NUMA.flows[0].source, handle=HandleKind.FABRIC)),
    "pinned": of_memory(MemoryKind.PINNED, NUMA),
    "registered": of_memory(MemoryKind.REGISTERED, NUMA),
    "system": of_memory(MemoryKind.SYSTEM, NUMA),
    "managed": of_memory(MemoryKind.MANAGED, NUMA),
    "blocked": changed(NUMA, route=Route(carrier=Carrier.NONE, memory=MemoryKind.HOST_NUMA)),
    "gpu-numa": of_memory(MemoryKind.GPU_NUMA, NUMA),
    "local": changed(PEER, source=PEER.flows[0].destination, initiator=GPU2, route=Route()),
}
"""Paths that end at GPU2."""
PEERS = "nvlink pcie-peer staged handle across"
HOST = "numa egm egm-handle pinned registered system managed blocked gpu-numa"
EVERY = " ".join(PATHS)
ON_NUMA = "numa egm egm-handle blocked"


@dataclass(frozen=True)
class Does:
    """What the faults of a check can do, and on which paths."""

    paths: str
    symptoms: str = ""
    stops: str = ""


GPU, P2P = "gpu-unusable", "no-peer-access no-atomics"
HANDLE = "unsupported-handle refused"
FABRIC = f"no-imex-channel {HANDLE}"
TAKEN = Does(EVERY, "failed", GPU)
NVLINK = Does("nvlink handle across", "slow failed", f"{P2P} no-nvlink")
BY_HANDLE = Does("handle egm-handle across", "failed", HANDLE)
NO_CHANNEL = Does("handle egm-handle across", "failed", FABRIC)
EGM_ROUTE = Does(ON_NUMA, "slow degraded failed", "egm-blocked refused")

TABLE: dict[str, tuple[Does, ...]] = {
    **{check.id: (TAKEN,) for check in CHECKS if check.id.startswith("dev.")},
    **dict.fromkeys(("drv.libraries", "drv.versions", "drv.nouveau", "gpu.compute-mode"), (TAKEN,)),
    "gpu.memory-limit": (Does(EVERY, "", "no-room"),),
    "gpu.mig": (Does(EVERY, "", f"{GPU} {P2P}"),),
    "env.limits": (Does(EVERY, "failed lost"),),
    "env.visible-devices": (Does(EVERY, "", "gpu-hidden"),),
    "gpu.health": (Does(EVERY, "failed corrupt", GPU),),
    "kernel.xid": (Does(EVERY, "failed", GPU),),
    "gpu.throttle": (Does(EVERY, "slow"),),
    "gpu.cc-mode": (Does(EVERY, "slow failed", f"{P2P} unsupported-handle"),),
    "gpu.vgpu": (Does(EVERY, "slow failed", f"{P2P} {FABRIC} unsupported-memory"),),
    **dict.fromkeys(("nvlink.links", "nvlink.errors", "kernel.sxid"), (NVLINK,)),
    **dict.fromkeys(("nvlink.bw-mode", "nvlink.disabled"), (NVLINK, Does("pcie-peer", "slow failed", P2P))),
    **dict.fromkeys(("fabric.manager", "fabric.management", "fabric.state", "fabric.domain"), (NVLINK, BY_HANDLE)),
    **dict.fromkeys(("fabric.alloc-active", "fabric.same-node-isolation"), (BY_HANDLE,)),
    **dict.fromkeys(("imex.module", "imex.channel"), (NO_CHANNEL,)),
    "imex.recovery": (BY_HANDLE,),
    **dict.fromkeys(("imex.daemon", "imex.domain"), (Does("across", "failed", HANDLE),)),
    "p2p.status": (Does(PEERS, "slow failed", P2P),),
    "p2p.verify": (Does(PEERS, "failed corrupt"),),
    "pcie.acs": (Does("pcie-peer", "slow failed"),),
    "pcie.iommu": (Does("pcie-peer", "slow failed corrupt"),),
    "pcie.link": (Does("pcie-peer staged numa pinned registered system managed blocked gpu-numa", "slow"),),
    "kernel.aer": (Does("pcie-peer staged numa pinned registered system managed blocked gpu-numa", "slow failed"),),
    "c2c.link": (Does(HOST, "slow failed", "unsupported-memory refused"),),
    **dict.fromkeys(("egm.capability", "egm.preconditions"), (Does(f"{ON_NUMA} managed", "slow"),)),
    "egm.override-key": (Does(ON_NUMA, "slow"),),
    "egm.mode": (Does(ON_NUMA, "slow failed"),),
    "egm.cgroup-route": (EGM_ROUTE, Does("managed", "slow")),
    "egm.peer-route": (Does(ON_NUMA, "degraded"), Does("blocked", "slow failed", "egm-blocked refused")),
    "egm.fabric-address": (Does("egm-handle", "failed", "unsupported-memory refused"),),
    "egm.alloc-active": (Does(ON_NUMA, "failed corrupt", "refused"),),
    "numa.cpuset-mems": (Does(HOST, "failed", "no-numa-memory"),),
    "numa.mode": (Does("gpu-numa", "", "unsupported-memory"),),
    "uvm.addressing-mode": (Does("system gpu-numa", "", "unsupported-memory"),),
    **dict.fromkeys(("numa.mempolicy-syscalls", "numa.memory"), (Does(HOST, "failed", "refused"),)),
    **dict.fromkeys(("numa.balancing", "numa.cmdline"), (Does(HOST, "slow"),)),
}

OUTCOMES = {
    Symptom.SLOW: MeasurementStatus.OK,
    Symptom.DEGRADED: MeasurementStatus.OK,
    Symptom.CORRUPT: MeasurementStatus.CORRUPT,
    Symptom.FAILED: MeasurementStatus.FAILED,
    Symptom.LOST: MeasurementStatus.CRASHED,
}


def fault(check: str, place: Place = AT_GPU2, status: Status = Status.WARN) -> RootCause:
    return RootCause(Finding(check=check, status=status, summary="", place=place), ())


def with_symptom(path: Measurement, symptom: Symptom) -> tuple[RunReport, Shortfalls]:
    flow: Flow = path.flows[0]
    degraded = replace(flow, route=replace(flow.route, degraded=symptom is Symptom.DEGRADED))
    one = replace(path, flows=(degraded,), status=OUTCOMES[symptom], known_cause=True)
    slow = frozenset({0})
    short = Shortfalls(warned=slow) if symptom is Symptom.DEGRADED else Shortfalls(failing=slow)
    if symptom is Symptom.LOST:
        short = Shortfalls(lost=slow)
    return replace(RUN, measurements=(one,)), short


def stopped(path: Measurement, kind: WaiverKind) -> tuple[RunReport, Shortfalls]:
    waiver = Waiver(kind=kind, reason="", gpus=(GPU2,) if kind in OF_GPUS else ())
    one = replace(path, status=MeasurementStatus.WAIVED, waivers=(waiver,))
    return replace(RUN, measurements=(one,)), Shortfalls(waived=frozenset({0}))


def test_the_table_has_every_check_that_explains_a_measurement() -> None:
    assert {check.id for check in CHECKS if any(rule in ON_PATHS for rule in rules_from(check.id))} == set(TABLE)


@pytest.mark.parametrize("check", TABLE)
def test_a_fault_does_and_stops_what_its_mechanism_can_and_nothing_else(check: str) -> None:
    for name, path in PATHS.items():
        there = [one for one in TABLE[check] if name in one.paths.split()]
        effects = {word for one in there for word in f"{one.symptoms} {one.stops}".split()}
        does = {symptom.value for symptom in OUTCOMES if explained_by(fault(check), *with_symptom(path, symptom))}
        stops = {kind.value for kind in WaiverKind if explained_by(fault(check), *stopped(path, kind))}
        assert does | stops == effects, name


@pytest.mark.parametrize("check", TABLE)
def test_a_fault_of_another_gpu_explains_nothing_unless_all_have_it(check: str) -> None:
    other = Place(kind=PlaceKind.GPU, ids=("0000:00:07.0",), label="GPU1")
    everywhere = check in ("drv.libraries", "drv.versions", "drv.nouveau")
    found = [
        *(explained_by(fault(check, other), *with_symptom(PEER, symptom)) for symptom in OUTCOMES),
        *(explained_by(fault(check, other), *stopped(PEER, kind)) for kind in WaiverKind),
    ]
    assert any(found) is everywhere


@pytest.mark.parametrize(
    ("check", "place", "paths"),
    [
        ("nvlink.links", AT_GPU2, OF_GPU2),
        ("p2p.status", Place(kind=PlaceKind.PAIR, ids=(f"{GPU2}>0000:00:09.0",)), {"GPU2 -> GPU3", "GPU3 -> GPU2"}),
        ("numa.balancing", NODE, {f"NUMA0 -> GPU{n}" for n in range(4)}),
        ("rdma.ports", Place(kind=PlaceKind.NIC, ids=("mlx5_0",)), set()),
    ],
)
def test_a_fault_explains_the_slow_paths_that_cross_its_place(check: str, place: Place, paths: set[str]) -> None:
    slow = Shortfalls(failing=frozenset(range(len(RUN.measurements))))
    assert {RUN.measurements[number].path for number in explained_by(fault(check, place), RUN, slow)} == paths


@pytest.mark.parametrize(("last_call", "explains"), [("cuMemCreate", True), ("cuMemcpyAsync", False)])
def test_a_limit_of_gpu_memory_explains_allocations_that_fail(last_call: str, explains: bool) -> None:
    failed = with_symptom(replace(PEER, last_call=last_call), Symptom.FAILED)
    assert bool(explained_by(fault("gpu.memory-limit"), *failed)) is explains


@pytest.mark.parametrize("check", ["kernel.xid", "kernel.aer"])
def test_an_error_of_a_device_that_is_no_gpu_of_the_node_explains_nothing(check: str) -> None:
    assert not explained_by(fault(check, NODE), *with_symptom(PATHS["pcie-peer"], Symptom.SLOW))
    assert not explained_by(fault(check, NODE), *stopped(PATHS["pcie-peer"], WaiverKind.GPU_UNUSABLE))


def on(machine: Machine, made: tuple[RunReport, Shortfalls]) -> tuple[RunReport, Shortfalls]:
    return replace(made[0], machines=(machine,)), made[1]


def test_links_explain_a_path_over_pcie_where_a_gpu_has_none_left() -> None:
    """Of two GPUs that no bridge joins, a link of one that is down is no part of the path."""
    slow = with_symptom(PATHS["pcie-peer"], Symptom.SLOW)
    some = patched(H200, "gpus[2].nvml.nvlinks[3]", active=False)
    assert not explained_by(fault("nvlink.links"), *on(some, slow))
    assert explained_by(fault("nvlink.links"), *on(patched(H200, "gpus[2].nvml.nvlinks[*]", active=False), slow))
    never = patched(H200, "gpus[2].nvml", nvlinks=())
    assert not explained_by(fault("nvlink.links"), *on(never, slow))


@pytest.mark.parametrize(
    ("number", "slow"),
    [(74, "nvlink"), (79, "nvlink pinned"), (109, "nvlink pinned"), (173, "pinned"), (94, ""), (48, ""), (167, "")],
)
def test_an_xid_slows_only_what_it_leaves_down(number: int, slow: str) -> None:
    """Clocks, or links: those that it is about, whatever else is logged of that GPU."""
    text = "NVRM: Xid (PCI:0000:00:08): {}, something"
    events = tuple(event(float(n), text.format(one)) for n, one in enumerate((74, 94, number)))
    log = KernelLog(source="/dev/kmsg", now_s=200000.0, first_s=0.0, events=tuple(one for one in events if one))
    machine = patched(H200, "", kernel_log=log)
    (found,) = [one for one in run_check("kernel.xid", machine) if f"Xid {number}," in one.summary]
    for name in ("nvlink", "pinned"):
        explained = explained_by(RootCause(found, ()), *on(machine, with_symptom(PATHS[name], Symptom.SLOW)))
        assert bool(explained) is (name in slow.split())
        assert explained_by(RootCause(found, ()), *on(machine, with_symptom(PATHS[name], Symptom.FAILED)))


def linked(*ends: tuple[int, int], down: Collection[tuple[int, int]] = ()) -> Machine:
    """HGX H200 with its GPUs on direct links in place of switches: six for each pair, and six ports that are unused.

    NVML does not say where a link leads that is down.
    """
    gpus = H200.gpus or ()
    joined = {(a, b) for a, b in ends} | {(b, a) for a, b in ends}
    dead = {(a, b) for a, b in down} | {(b, a) for a, b in down}

    def ports(gpu: Gpu) -> tuple[NvLink, ...]:
        leads = [other for other in gpus if (gpu.index, other.index) in joined for _ in range(6)]
        up = [None if (gpu.index, other.index) in dead else other.bus_id for other in leads]
        return tuple(
            NvLink(link=number, active=bus_id is not None, remote_type="gpu" if bus_id else None, remote_bus_id=bus_id)
            for number, bus_id in enumerate([*up, *[None] * 6])
        )

    made = patched(H200, "", switches=())
    for gpu in gpus:
        made = patched(made, f"gpus[{gpu.index}].nvml", nvlinks=ports(gpu), fabric=None)
    places = {gpu.bus_id: gpu.index for gpu in gpus}
    alive = {(a, b) for a, b in joined if (a, b) not in dead}
    pairs = tuple(
        replace(pair, nvlink_count=6 * there, nvlink_through="direct" if there else None)
        for pair in H200.pairs or ()
        for there in [(places[pair.source], places[pair.target]) in alive]
    )
    return patched(made, "", pairs=pairs)


REFUSED = stopped(PATHS["nvlink"], WaiverKind.NO_PEER_ACCESS)
BRIDGES, MESH = ((0, 1), (2, 3)), ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))


def test_links_that_are_down_do_not_explain_why_gpus_of_two_bridges_are_no_peers() -> None:
    """GPU0 and GPU2 never had NVLink between them; GPU2 and GPU3 had."""
    machine = linked(*BRIDGES, down=[(2, 3)])
    blocked = with_symptom(changed(PEER, route=Route(carrier=Carrier.NONE)), Symptom.SLOW)
    over_pcie = with_symptom(PATHS["pcie-peer"], Symptom.SLOW)
    for made in (REFUSED, blocked, over_pcie):
        assert not explained_by(fault("nvlink.links"), *on(machine, made))
        assert explained_by(fault("nvlink.links"), *on(linked(*MESH, down=[(0, 2), (1, 2), (2, 3)]), made))
    bridge = of_path("GPU3 -> GPU2")
    assert explained_by(fault("nvlink.links"), *on(machine, stopped(bridge, WaiverKind.NO_PEER_ACCESS)))


def test_a_direct_link_slows_the_pair_that_it_joins_and_no_other() -> None:
    slow = with_symptom(PEER, Symptom.SLOW)
    assert not explained_by(
        fault("nvlink.links"), *on(patched(linked(*MESH), "gpus[2].nvml.nvlinks[17]", active=False), slow)
    )
    errors = patched(linked(*MESH), "gpus[2].nvml.nvlinks[13]", recovery_errors=4)
    assert not explained_by(fault("nvlink.errors"), *on(errors, slow)), "its link to GPU3"
    errors = patched(linked(*MESH), "gpus[2].nvml.nvlinks[1]", recovery_errors=4)
    assert explained_by(fault("nvlink.errors"), *on(errors, slow)), "its link to GPU0"


def test_the_route_to_other_nodes_memory_is_no_part_of_the_way_to_the_gpus_own() -> None:
    """Managed memory says nothing of its route; of NUMA memory without EGM the route itself says so."""
    slow = with_symptom(PATHS["managed"], Symptom.SLOW)
    assert not explained_by(fault("egm.peer-route"), *on(H200, slow))
    assert explained_by(
        fault("egm.peer-route"), *on(patched(H200, "gpus[2].cuda", attributes={"HOST_NUMA_ID": 1}), slow)
    )
    degraded = changed(NUMA, route=replace(NUMA.flows[0].route, degraded=True))
    assert explained_by(fault("egm.peer-route"), *stopped(degraded, WaiverKind.EGM_BLOCKED))


@pytest.mark.parametrize("check", ["c2c.link", "nvlink.errors", "nvlink.bw-mode", "gpu.throttle"])
def test_links_of_the_gpu_that_owns_egm_are_on_the_way_to_it(check: str) -> None:
    """NUMA 1 is GPU1's on four GH200: GPU0 reaches it over NVLink and GPU1's C2C. Heat of GPU1 slows no link."""
    machine = shipped("gh200x4")
    machine = patched(machine, "gpus[1].nvml.nvlinks[*]", recovery_errors=3)
    made = run(H2D, machine=machine, nodes=(0, 1))
    (far,) = [one for one in made.measurements if one.path == "NUMA1 -> GPU0"]
    assert [hop.link for hop in far.flows[0].route.hops] == [LinkKind.NVLINK, LinkKind.C2C]
    slow = (replace(made, measurements=(far,)), Shortfalls(failing=frozenset({0})))
    ids = [gpu.bus_id for gpu in machine.gpus or ()]
    for index, explains in enumerate((True, check != "gpu.throttle", False, False)):
        place = Place(kind=PlaceKind.GPU, ids=(ids[index],), label=f"GPU{index}")
        assert bool(explained_by(fault(check, place), *slow)) is explains, index


@pytest.mark.parametrize("check", TABLE)
def test_what_could_not_be_determined_explains_nothing(check: str) -> None:
    root = fault("gpu.persistence").finding
    cause = RootCause(root, (fault(check, status=Status.UNKNOWN).finding,))
    for path in PATHS.values():
        assert not any(explained_by(cause, *with_symptom(path, symptom)) for symptom in OUTCOMES)


def test_memory_that_only_cpus_use_needs_no_page_tables_shared_with_a_gpu() -> None:
    (by_gpu,) = of_memory(MemoryKind.SYSTEM, NUMA).flows
    assert Flows.PAGEABLE.includes(by_gpu)
    assert not Flows.PAGEABLE.includes(replace(by_gpu, initiator=None))
