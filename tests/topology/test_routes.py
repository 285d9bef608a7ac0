"""EGM routes: which GPU reaches which CPU's memory, how, and what blocks it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egmctl.model.gpu import Gpu
from egmctl.model.host import NumaKind, PcieLink
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from egmctl.topology import links
from egmctl.topology.access import Block
from egmctl.topology.routes import HostRoute, RouteKind, route
from egmctl.topology.topology import topology
from tests.doctor.machines import patched
from tests.known import known
from tests.topology import builders
from tests.topology.builders import bus_id, gpu, grace, grace_gpu, hgx, node, out_of_sight, pairs


def from_gpu(machine: Machine, index: int, to_node: int) -> HostRoute:
    return route(machine, known(machine.gpus)[index], to_node)


def on_arm(gpus: list[Gpu], **options: object) -> Machine:
    return builders.machine(gpus, architecture="aarch64", **options)  # type: ignore[arg-type]


def words(machine: Machine) -> list[str]:
    return [note.words for note in topology(machine).notes]


class TestEgm:
    def test_local_over_the_gpus_own_c2c(self) -> None:
        way = from_gpu(grace(count=2, per_node=1), 0, 0)
        assert (way.kind, way.symbol, way.egm, way.via) == (RouteKind.LOCAL, "C2C", True, ())
        assert way.nominal_gb_s == pytest.approx(450.0)
        assert (way.siblings, way.to_sibling) == ((), None)

    def test_on_a_cpu_with_two_gpus_the_owner_of_the_memory_decides(self) -> None:
        way = from_gpu(grace(), 1, 0)
        assert (way.kind, way.symbol, way.siblings) == (RouteKind.LOCAL, "C2C|NV18>C2C", (bus_id(0),))
        assert way.nominal_gb_s == pytest.approx(450.0)
        assert any("not measured" in note for note in words(grace()))

    def test_a_gpu_that_cannot_be_used_owns_nothing(self) -> None:
        gpus = [grace_gpu(i, node=0) for i in range(2)]
        assert from_gpu(on_arm([gpus[0], out_of_sight(gpus[1])]), 0, 0).symbol == "C2C"
        assert from_gpu(on_arm([gpus[0], grace_gpu(1, node=0, egm=False)]), 0, 0).symbol == "C2C"
        assert not any("belongs to" in note for note in words(grace(count=2, per_node=1)))

    def test_remote_over_nvlink_to_the_gpus_of_the_node_and_their_c2c(self) -> None:
        way = from_gpu(grace(), 0, 1)
        assert (way.kind, way.symbol, way.egm) == (RouteKind.REMOTE, "NV18>C2C", True)
        assert way.via == (bus_id(2), bus_id(3))
        assert [hop.nominal_gb_s for hop in way.hops] == [pytest.approx(900.0), pytest.approx(450.0)]

    def test_with_unequal_owners_the_one_with_more_nvlinks_is_taken(self) -> None:
        machine = grace(nvlinks={(0, 1): 18, (0, 2): 6, (0, 3): 18})
        assert from_gpu(machine, 0, 1).via == (bus_id(3),)

    def test_an_owner_denied_by_the_cgroup_is_passed_over_while_another_is_left(self) -> None:
        gpus = [grace_gpu(i, node=i // 2) for i in range(4)]
        machine = on_arm([*gpus[:2], out_of_sight(gpus[2]), gpus[3]])
        assert from_gpu(machine, 0, 1).via == (bus_id(3),)

    def test_memory_of_the_gpu_that_is_no_numa_node_is_no_obstacle(self) -> None:
        """In CDMM the GPU's own memory is not onlined; the CPU's memory is reached all the same."""
        machine = on_arm([grace_gpu(i, node=i, numa_node=None) for i in range(2)])
        assert from_gpu(machine, 0, 0).kind is RouteKind.LOCAL
        assert from_gpu(machine, 0, 1).kind is RouteKind.REMOTE


def owner_gone(gone: Gpu, **options: object) -> Machine:
    return on_arm([grace_gpu(0, node=0), gone], **options)


def unseen(**gpu: object) -> Gpu:
    """GPU1, whose device node is denied."""
    return patched(out_of_sight(grace_gpu(1, node=1)), "", **gpu)


def refused() -> Machine:
    gpus = [grace_gpu(i, node=i) for i in range(2)]
    return on_arm(gpus, pairs=pairs(gpus, nvlinks=18, p2p_status={"read": "OK", "write": "DR", "nvlink": "OK"}))


MISSING = out_of_sight(grace_gpu(1, node=1), access="ENOENT", exists=False)
CONTAINER = ("/.dockerenv",)
BLOCKED: dict[str, tuple[Machine, Block]] = {
    "GPU1: denied by the device cgroup (/dev/nvidia1: EPERM)": (owner_gone(unseen()), Block.DEVICE_CGROUP),
    "GPU1: denied by mode bits or a security module (/dev/nvidia1: EACCES)": (
        owner_gone(out_of_sight(grace_gpu(1, node=1), access="EACCES")),
        Block.NO_PERMISSION,
    ),
    "GPU1: not passed into this container (/dev/nvidia1: ENOENT)": (
        owner_gone(MISSING, container_signs=CONTAINER),
        Block.NOT_IN_CONTAINER,
    ),
    "GPU1: not passed into this container": (
        owner_gone(unseen(node=None), container_signs=CONTAINER),
        Block.NOT_IN_CONTAINER,
    ),
    "GPU1: no device node (/dev/nvidia1: ENOENT)": (owner_gone(MISSING), Block.NO_DEVICE_NODE),
    "GPU1: NVML does not list it": (owner_gone(out_of_sight(grace_gpu(1, node=1), access="ok")), Block.NOT_LISTED),
    "GPU1: bound to vfio-pci": (owner_gone(patched(unseen(), "pci", driver="vfio-pci")), Block.NOT_BOUND),
    "GPU1: fell off the PCI bus": (owner_gone(patched(unseen(), "pci", responds=False)), Block.OFF_THE_BUS),
    "this process may use memory of NUMA node 0 only (Mems_allowed)": (grace(allowed="0"), Block.MEMS_ALLOWED),
    "NUMA node 1 has no memory": (grace(nodes=[node(0), node(1, NumaKind.CPU_ONLY)]), Block.NO_MEMORY),
    "GPU1: no NVLink to it is up": (grace(2, per_node=1, nvlinks=0), Block.NVLINK_DOWN),
    "GPU1: P2P write to it is DR": (refused(), Block.NO_P2P),
}


@pytest.mark.parametrize("reason", BLOCKED)
def test_a_route_to_another_cpu_is_blocked_with_its_reason(reason: str) -> None:
    machine, block = BLOCKED[reason]
    way = from_gpu(machine, 0, 1)
    assert (way.kind, way.blocked_by, way.reason) == (RouteKind.BLOCKED, block, reason)
    assert (way.symbol, way.nominal_gb_s) == ("blocked", None)


def test_what_blocks_one_route_leaves_others() -> None:
    assert from_gpu(grace(allowed="0"), 0, 0).kind is RouteKind.LOCAL
    assert from_gpu(owner_gone(unseen()), 1, 1).blocked_by is Block.DEVICE_CGROUP, "of a GPU that is denied itself none"


CLEAR = "the EGM capability bit is clear"
C2C, PCIE = pytest.approx(450.0), pytest.approx(63.0, abs=0.1)


@pytest.mark.parametrize(
    ("machine", "to_node", "kind", "symbol", "reason", "at_most"),
    [
        (hgx(), 0, RouteKind.PCIE, "PCIe", "no NVLink-C2C", PCIE),
        (hgx(), 1, RouteKind.PCIE, "PCIe>SMP", "no NVLink-C2C", PCIE),
        (on_arm([grace_gpu(i, node=i, egm=False) for i in range(2)]), 0, RouteKind.C2C, "C2C-sys", CLEAR, C2C),
        (on_arm([grace_gpu(i, node=i, egm=False) for i in range(2)]), 1, RouteKind.C2C, "C2C-sys>SMP", CLEAR, C2C),
        (owner_gone(grace_gpu(1, node=1, egm=False)), 1, RouteKind.C2C, "C2C-sys>SMP", f"GPU1: {CLEAR}", C2C),
        (
            on_arm([grace_gpu(0, node=0)], nodes=[node(0), node(1)]),
            1,
            RouteKind.C2C,
            "C2C-sys>SMP",
            "no GPU sits on NUMA node 1",
            C2C,
        ),
        (on_arm([grace_gpu(0, c2c_up=False)]), 0, RouteKind.PCIE, "PCIe", "NVLink-C2C is down", PCIE),
    ],
)
def test_what_is_not_egm_says_why(
    machine: Machine, to_node: int, kind: RouteKind, symbol: str, reason: str, at_most: float
) -> None:
    way = from_gpu(machine, 0, to_node)
    assert (way.kind, way.symbol, way.egm, way.reason) == (kind, symbol, False, reason)
    assert way.at_most_gb_s == at_most
    if symbol.endswith("SMP"):
        assert (way.nominal_gb_s, way.hops[-1].reason) == (None, "nothing reports the rate between NUMA nodes")
    else:
        assert way.nominal_gb_s == at_most


class TestUnknown:
    def test_nvml_too_old_for_the_egm_bit(self) -> None:
        old = patched(grace_gpu(0, egm=None), "nvml", unread={"capabilities": Unread(reason=Reason.DRIVER_TOO_OLD)})
        way = from_gpu(on_arm([old]), 0, 0)
        assert (way.kind, way.symbol, way.egm) == (RouteKind.UNKNOWN, "?", None)
        assert way.reason == "NVML is too old for nvmlDeviceGetCapabilities"

    def test_a_gpu_whose_numa_node_nobody_knows(self) -> None:
        lost = grace_gpu(0, node=-1)
        machine = on_arm([lost], nodes=[node(0)])
        assert from_gpu(machine, 0, 0).reason == "the GPU's host NUMA node is not known"

    def test_a_pcie_gpu_whose_numa_node_nobody_knows_may_be_on_either(self) -> None:
        way = from_gpu(builders.machine([gpu(0, node=-1)], nodes=[node(0), node(1)]), 0, 1)
        assert (way.kind, way.symbol, way.nominal_gb_s) == (RouteKind.PCIE, "PCIe>?", None)
        assert way.hops[-1].reason == "the GPU's host NUMA node is not known"

    def test_a_rate_that_nobody_reports(self) -> None:
        way = from_gpu(on_arm([grace_gpu(0, node=0), grace_gpu(1, node=1, speed=None)]), 1, 0)
        assert way.nominal_gb_s is None
        assert way.at_most_gb_s == pytest.approx(450.0)
        assert way.hops[0].reason == "NVML does not report the NVLink speed"


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    count = draw(st.integers(1, 4))
    gpus = []
    for index in range(count):
        drawn = grace_gpu(
            index,
            node=draw(st.integers(-1, 2)),
            c2c=draw(st.sampled_from([0, 10])),
            c2c_up=draw(st.booleans()),
            egm=draw(st.sampled_from([True, False, None])),
            speed=draw(st.sampled_from([53125, None])),
        )
        if draw(st.booleans()):
            access = draw(st.sampled_from(["ok", "EPERM", "EACCES", "ENOENT", None]))
            drawn = out_of_sight(drawn, access=access, exists=access != "ENOENT")
        gpus.append(drawn)
    numbers = draw(st.sets(st.integers(0, 2), min_size=1))
    kinds = st.sampled_from(list(NumaKind))
    return builders.machine(
        gpus,
        nodes=[node(number, draw(kinds)) for number in sorted(numbers)],
        nvlinks={(a, b): draw(st.sampled_from([0, 18])) for a in range(count) for b in range(a + 1, count)},
        architecture=draw(st.sampled_from(["aarch64", "x86_64"])),
        allowed=draw(st.sampled_from([None, "0", "0-1", "0-2"])),
    )


@pytest.mark.long
@given(machines())
def test_every_gpu_has_exactly_one_route_to_every_cpu_node_and_each_says_all(machine: Machine) -> None:
    judged = topology(machine)
    ends = [(way.gpu, way.numa_node) for way in judged.routes]
    assert ends == [(g.bus_id, n) for g in machine.gpus or () for n in machine.cpu_nodes]
    for way in judged.routes:
        assert (way.blocked_by is not None) == (way.kind is RouteKind.BLOCKED)
        assert bool(way.via) == (way.kind is RouteKind.REMOTE)
        assert bool(way.hops) == (way.kind not in (RouteKind.BLOCKED, RouteKind.UNKNOWN))
        assert way.reason or way.egm
        assert way.nominal_gb_s is not None or way.reason or any(hop.reason for hop in way.hops)


class TestRates:
    @pytest.mark.parametrize(("part", "gb_s"), [(gpu(0), 450.0), (grace_gpu(0), 900.0)], ids=["H200", "GB200"])
    def test_nvlink(self, part: Gpu, gb_s: float) -> None:
        assert links.nvlink_hop(part, 18).nominal_gb_s == pytest.approx(gb_s, abs=0.02)

    @pytest.mark.parametrize("speed", [0, -5])
    def test_an_active_link_without_speed_has_no_rate_and_topo_says_so(self, speed: int) -> None:
        hop = links.nvlink_hop(gpu(0, speed=speed), 18)
        assert (hop.nominal_gb_s, hop.reason) == (None, f"NVML reports an active NVLink of {speed} MB/s")
        stopped = gpu(0, speed=0)
        said = [note.words for note in topology(hgx(2), [stopped]).notes]
        assert "GPU0: NVML calls NVLinks 0-17 active at 0 MB/s, so their rate is unknown" in said

    def test_a_generation_without_a_published_rule_stays_unknown(self) -> None:
        hop = links.nvlink_hop(gpu(0, nvlink_version=5), 12)
        assert (hop.nominal_gb_s, "no published rule" in hop.reason) == (None, True)

    @pytest.mark.parametrize(
        ("gt_s", "width", "gb_s"),
        [(2.5, 16, 4.0), (8.0, 16, 15.75), (16.0, 8, 15.75), (32.0, 16, 63.02), (64.0, 16, 121.0)],
    )
    def test_pcie(self, gt_s: float, width: int, gb_s: float) -> None:
        link = PcieLink(speed_gt_s=2.5, width=width, max_speed_gt_s=gt_s, max_width=16)
        assert links.pcie_hop(gpu(0, link=link)).nominal_gb_s == pytest.approx(gb_s, abs=0.01)
