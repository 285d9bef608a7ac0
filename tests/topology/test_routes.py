"""EGM routes: which GPU reaches which CPU's memory, how, and what blocks it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egmctl.model.machine import Gpu, GpuProc, Machine, NumaKind, PcieLink, Reason, Unread
from egmctl.model.route import LinkKind
from egmctl.topology import links as rates
from egmctl.topology.access import Block
from egmctl.topology.links import cpu_node_ids
from egmctl.topology.routes import HostRoute, RouteKind, route
from egmctl.topology.topology import topology
from tests.topology import builders
from tests.topology.builders import bus_id, gpu, grace, grace_gpu, hgx, node, out_of_sight, pairs


def from_gpu(machine: Machine, index: int, to_node: int) -> HostRoute:
    assert machine.gpus is not None
    return route(machine, machine.gpus[index], to_node)


def on_arm(gpus: list[Gpu], **options: object) -> Machine:
    return builders.machine(gpus, architecture="aarch64", **options)  # type: ignore[arg-type]


def words(machine: Machine) -> list[str]:
    return [note.words for note in topology(machine).notes]


class TestEgm:
    def test_local_over_the_gpus_own_c2c(self) -> None:
        found = from_gpu(grace(count=2, per_node=1), 0, 0)
        assert (found.kind, found.symbol, found.egm, found.via) == (RouteKind.LOCAL, "C2C", True, ())
        assert found.nominal_gb_s == pytest.approx(450.0)
        assert (found.siblings, found.to_sibling) == ((), None)

    def test_on_a_cpu_with_two_gpus_the_owner_of_the_memory_decides(self) -> None:
        found = from_gpu(grace(), 1, 0)
        assert (found.kind, found.symbol, found.siblings) == (RouteKind.LOCAL, "C2C|NV18>C2C", (bus_id(0),))
        assert found.nominal_gb_s == pytest.approx(450.0)
        assert any("not measured" in note for note in words(grace()))

    def test_a_gpu_that_cannot_be_used_owns_nothing(self) -> None:
        gpus = [grace_gpu(i, node=0) for i in range(2)]
        assert from_gpu(on_arm([gpus[0], out_of_sight(gpus[1])]), 0, 0).symbol == "C2C"
        assert from_gpu(on_arm([gpus[0], grace_gpu(1, node=0, egm=False)]), 0, 0).symbol == "C2C"
        assert not any("belongs to" in note for note in words(grace(count=2, per_node=1)))

    def test_remote_over_nvlink_to_the_gpus_of_the_node_and_their_c2c(self) -> None:
        found = from_gpu(grace(), 0, 1)
        assert (found.kind, found.symbol, found.egm) == (RouteKind.REMOTE, "NV18>C2C", True)
        assert found.via == (bus_id(2), bus_id(3))
        assert [hop.nominal_gb_s for hop in found.hops] == [pytest.approx(900.0), pytest.approx(450.0)]
        assert found.limited_by is LinkKind.C2C

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


class TestBlocked:
    def owner_gone(self, gone: Gpu, **options: object) -> HostRoute:
        return from_gpu(on_arm([grace_gpu(0, node=0), gone], **options), 0, 1)

    @pytest.mark.parametrize(
        ("access", "exists", "container", "block", "words"),
        [
            ("EPERM", True, (), Block.DEVICE_CGROUP, "GPU1: denied by the device cgroup (/dev/nvidia1: EPERM)"),
            ("EACCES", True, (), Block.NO_PERMISSION, "GPU1: denied by mode bits or a security module"),
            ("ENOENT", False, ("/.dockerenv",), Block.NOT_IN_CONTAINER, "GPU1: not passed into this container"),
            ("ENOENT", False, (), Block.NO_DEVICE_NODE, "GPU1: no device node (/dev/nvidia1: ENOENT)"),
            ("ok", True, (), Block.NOT_LISTED, "GPU1: NVML does not list it"),
        ],
    )
    def test_by_an_owner_out_of_sight(
        self, access: str, exists: bool, container: tuple[str, ...], block: Block, words: str
    ) -> None:
        gone = out_of_sight(grace_gpu(1, node=1), access=access, exists=exists)
        found = self.owner_gone(gone, container_signs=container)
        assert (found.kind, found.blocked_by, found.symbol) == (RouteKind.BLOCKED, block, "blocked")
        assert found.reason.startswith(words)
        assert found.nominal_gb_s is None

    def test_by_an_owner_whose_node_is_not_there_at_all(self) -> None:
        gone = replace(out_of_sight(grace_gpu(1, node=1)), node=None, proc=GpuProc(minor=1))
        found = self.owner_gone(gone, container_signs=("/.dockerenv",))
        assert found.reason == "GPU1: not passed into this container (/dev/nvidia1: ENOENT)"

    def test_by_an_owner_bound_to_another_driver(self) -> None:
        gone = out_of_sight(grace_gpu(1, node=1))
        assert gone.pci is not None
        found = self.owner_gone(replace(gone, pci=replace(gone.pci, driver="vfio-pci")))
        assert (found.blocked_by, found.reason) == (Block.NOT_BOUND, "GPU1: bound to vfio-pci")

    def test_by_an_owner_off_the_bus(self) -> None:
        gone = out_of_sight(grace_gpu(1, node=1))
        assert gone.pci is not None
        found = self.owner_gone(replace(gone, pci=replace(gone.pci, responds=False)))
        assert found.blocked_by is Block.OFF_THE_BUS

    def test_by_mems_allowed(self) -> None:
        found = from_gpu(grace(allowed="0"), 0, 1)
        assert found.blocked_by is Block.MEMS_ALLOWED
        assert from_gpu(grace(allowed="0"), 0, 0).kind is RouteKind.LOCAL

    def test_by_a_node_without_memory(self) -> None:
        machine = grace(nodes=[node(0), node(1, NumaKind.CPU_ONLY)])
        assert from_gpu(machine, 0, 1).blocked_by is Block.NO_MEMORY

    def test_by_nvlinks_that_are_down(self) -> None:
        found = from_gpu(grace(2, per_node=1, nvlinks=0), 0, 1)
        assert (found.blocked_by, found.reason) == (Block.NVLINK_DOWN, "GPU1: no NVLink to it is up")

    def test_by_p2p_that_the_driver_refuses(self) -> None:
        gpus = [grace_gpu(i, node=i) for i in range(2)]
        refused = pairs(gpus, nvlinks=18, p2p_status={"read": "OK", "write": "DR", "nvlink": "OK"})
        found = from_gpu(on_arm(gpus, pairs=refused), 0, 1)
        assert (found.blocked_by, found.reason) == (Block.NO_P2P, "GPU1: P2P write to it is DR")

    def test_every_route_of_a_gpu_that_is_denied_itself(self) -> None:
        machine = on_arm([grace_gpu(0, node=0), out_of_sight(grace_gpu(1, node=1))])
        assert from_gpu(machine, 1, 1).blocked_by is Block.DEVICE_CGROUP


class TestNotEgm:
    def test_x86_has_pcie_only(self) -> None:
        found = from_gpu(hgx(), 0, 0)
        assert (found.kind, found.symbol, found.egm) == (RouteKind.PCIE, "PCIe", False)
        assert found.nominal_gb_s == pytest.approx(63.0, abs=0.1)
        assert found.reason == "no NVLink-C2C"

    def test_across_sockets_pcie_is_the_most_it_can_be(self) -> None:
        found = from_gpu(hgx(), 0, 1)
        assert (found.symbol, found.nominal_gb_s) == ("PCIe>SMP", None)
        assert found.at_most_gb_s == pytest.approx(63.0, abs=0.1)
        assert found.rate_reason == "smp: nothing reports the rate between NUMA nodes"

    def test_a_clear_egm_bit_leaves_c2c_as_ordinary_system_memory(self) -> None:
        machine = on_arm([grace_gpu(i, node=i, egm=False) for i in range(2)])
        near, far = from_gpu(machine, 0, 0), from_gpu(machine, 0, 1)
        assert (near.kind, near.symbol, near.egm) == (RouteKind.C2C, "C2C-sys", False)
        assert near.reason == "the EGM capability bit is clear"
        assert (far.symbol, far.nominal_gb_s) == ("C2C-sys>SMP", None)
        assert far.at_most_gb_s == pytest.approx(450.0)

    def test_a_clear_egm_bit_of_the_owner_does_too(self) -> None:
        machine = on_arm([grace_gpu(0, node=0), grace_gpu(1, node=1, egm=False)])
        found = from_gpu(machine, 0, 1)
        assert (found.kind, found.reason) == (RouteKind.C2C, "GPU1: the EGM capability bit is clear")

    def test_a_node_without_gpu_has_no_owner(self) -> None:
        machine = on_arm([grace_gpu(0, node=0)], nodes=[node(0), node(1)])
        found = from_gpu(machine, 0, 1)
        assert (found.kind, found.reason) == (RouteKind.C2C, "no GPU sits on NUMA node 1")

    def test_c2c_down_leaves_pcie(self) -> None:
        machine = on_arm([grace_gpu(0, c2c_up=False)])
        found = from_gpu(machine, 0, 0)
        assert (found.kind, found.reason) == (RouteKind.PCIE, "NVLink-C2C is down")


class TestUnknown:
    def test_nvml_too_old_for_the_egm_bit(self) -> None:
        old = grace_gpu(0, egm=None)
        assert old.nvml is not None
        why = {"capabilities": Unread(reason=Reason.DRIVER_TOO_OLD)}
        found = from_gpu(on_arm([replace(old, nvml=replace(old.nvml, unread=why))]), 0, 0)
        assert (found.kind, found.symbol, found.egm) == (RouteKind.UNKNOWN, "?", None)
        assert found.reason == "NVML is too old for nvmlDeviceGetCapabilities"

    def test_a_gpu_whose_numa_node_nobody_knows(self) -> None:
        lost = grace_gpu(0, node=-1)
        machine = on_arm([lost], nodes=[node(0)])
        assert from_gpu(machine, 0, 0).reason == "the GPU's host NUMA node is not known"

    def test_a_pcie_gpu_whose_numa_node_nobody_knows_may_be_on_either(self) -> None:
        found = from_gpu(builders.machine([gpu(0, node=-1)], nodes=[node(0), node(1)]), 0, 1)
        assert (found.kind, found.symbol, found.nominal_gb_s) == (RouteKind.PCIE, "PCIe>?", None)
        assert found.rate_reason == "unknown: the GPU's host NUMA node is not known"

    def test_a_rate_that_nobody_reports(self) -> None:
        found = from_gpu(on_arm([grace_gpu(0, node=0), grace_gpu(1, node=1, speed=None)]), 1, 0)
        assert found.nominal_gb_s is None
        assert found.at_most_gb_s == pytest.approx(450.0)
        assert found.rate_reason == "nvlink: NVML does not report the NVLink speed"


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    count = draw(st.integers(1, 4))
    gpus = []
    for index in range(count):
        found = grace_gpu(
            index,
            node=draw(st.integers(-1, 2)),
            c2c=draw(st.sampled_from([0, 10])),
            c2c_up=draw(st.booleans()),
            egm=draw(st.sampled_from([True, False, None])),
            speed=draw(st.sampled_from([53125, None])),
        )
        if draw(st.booleans()):
            access = draw(st.sampled_from(["ok", "EPERM", "EACCES", "ENOENT", None]))
            found = out_of_sight(found, access=access, exists=access != "ENOENT")
        gpus.append(found)
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
    ends = [(found.gpu, found.numa_node) for found in judged.routes]
    assert ends == [(g.bus_id, n) for g in machine.gpus or () for n in cpu_node_ids(machine)]
    for found in judged.routes:
        assert (found.blocked_by is not None) == (found.kind is RouteKind.BLOCKED)
        assert bool(found.via) == (found.kind is RouteKind.REMOTE)
        assert bool(found.hops) == (found.kind not in (RouteKind.BLOCKED, RouteKind.UNKNOWN))
        assert found.reason or found.egm
        assert found.nominal_gb_s is not None or found.rate_reason


class TestRates:
    def test_h200_nvlink(self) -> None:
        assert rates.nvlink(gpu(0), 18).nominal_gb_s == pytest.approx(450.0, abs=0.02)

    @pytest.mark.parametrize("speed", [0, -5])
    def test_an_active_link_without_speed_has_no_rate_and_topo_says_so(self, speed: int) -> None:
        found = rates.nvlink(gpu(0, speed=speed), 18)
        assert (found.nominal_gb_s, found.reason) == (None, f"NVML reports an active NVLink of {speed} MB/s")
        stopped = gpu(0, speed=0)
        said = [note.words for note in topology(hgx(2), [stopped]).notes]
        assert "GPU0: NVML calls NVLinks 0-17 active at 0 MB/s, so their rate is unknown" in said

    def test_gb200_nvlink(self) -> None:
        assert rates.nvlink(grace_gpu(0), 18).nominal_gb_s == pytest.approx(900.0, abs=0.02)

    def test_a_generation_without_a_published_rule_stays_unknown(self) -> None:
        assert rates.nvlink(gpu(0, nvlink_version=5), 12).nominal_gb_s is None
        assert "no published rule" in rates.nvlink(gpu(0, nvlink_version=5), 12).reason

    @pytest.mark.parametrize(
        ("gt_s", "width", "gb_s"),
        [(2.5, 16, 4.0), (8.0, 16, 15.75), (16.0, 8, 15.75), (32.0, 16, 63.02), (64.0, 16, 121.0)],
    )
    def test_pcie(self, gt_s: float, width: int, gb_s: float) -> None:
        link = PcieLink(speed_gt_s=2.5, width=width, max_speed_gt_s=gt_s, max_width=16)
        assert rates.pcie(gpu(0, link=link)).nominal_gb_s == pytest.approx(gb_s, abs=0.01)
