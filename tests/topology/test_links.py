"""The link between two devices, in nvidia-smi's words."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egmctl.model.gpu import GpuPair
from egmctl.model.host import Driver, LibraryFailure, PciFunction
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from egmctl.model.route import LinkClass
from egmctl.topology.links import device_link, gpu_link
from tests.doctor.machines import patched
from tests.known import known
from tests.topology import builders
from tests.topology.builders import gpu, hgx, nic, node, out_of_sight, pairs

RC, PORT, UP = "pci0000:15", "0000:15:01.0", "0000:16:00.0"
"""A root complex, its root port, and a switch's upstream port below it."""
OTHER = ("pci0000:97", "0000:97:01.0")
"""A port of another root complex."""


def link_of(machine: Machine, first: int = 0, second: int = 1) -> str:
    gpus = known(machine.gpus)
    return gpu_link(machine, gpus[first], gpus[second]).symbol


@pytest.mark.parametrize(
    ("ancestor", "symbol"),
    [
        ("internal", "PIX"),
        ("single", "PIX"),
        ("multiple", "PXB"),
        ("hostbridge", "PHB"),
        ("node", "NODE"),
        ("system", "SYS"),
        (None, "SYS"),
    ],
)
def test_without_nvlink_nvmls_common_ancestor_counts_and_else_the_pci_paths(ancestor: str | None, symbol: str) -> None:
    gpus = [gpu(0, node=0), gpu(1, node=1)]
    assert link_of(builders.machine(gpus, pairs=pairs(gpus, nvlinks=0, common_ancestor=ancestor))) == symbol


def test_the_lesser_of_two_directions_counts() -> None:
    gpus = [gpu(0), gpu(1)]
    there, back = pairs(gpus, nvlinks=18)
    machine = builders.machine(gpus, pairs=(there, replace(back, nvlink_count=17)))
    assert link_of(machine) == link_of(machine, 1, 0) == "NV17"


def test_active_nvlinks_are_counted_and_the_pcie_class_is_kept_beside_them() -> None:
    machine = hgx(2, nvlinks=18)
    link = gpu_link(machine, *known(machine.gpus))
    assert (link.symbol, link.pci) == ("NV18", LinkClass.SYS)


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (None, "NVML does not list GPU1"),
        (LibraryFailure(how="crashed", call="nvmlDeviceGetUUID"), "NVML crashed in nvmlDeviceGetUUID"),
    ],
)
def test_a_gpu_out_of_sight_may_have_nvlinks_nobody_can_count(failure: LibraryFailure | None, reason: str) -> None:
    machine = builders.machine([gpu(0), out_of_sight(gpu(1))], driver=Driver(nvml_failure=failure))
    link = gpu_link(machine, *known(machine.gpus))
    assert (link.kind, link.reason) == (LinkClass.UNKNOWN, reason)


def test_a_part_without_nvlink_is_joined_by_pcie() -> None:
    none = {"nvlinks": None, "unread": {"nvlinks": Unread(reason=Reason.NOT_SUPPORTED)}}
    gpus = [patched(gpu(i, nvlinks=0), "nvml", **none) for i in (0, 1)]
    unread = pairs(gpus, nvlinks=0, nvlink_count=None, common_ancestor="node")
    assert link_of(builders.machine(gpus, pairs=unread)) == "NODE"


class TestFewerNvlinks:
    def expected(self, machine: Machine, first: int, second: int) -> int | None:
        gpus = known(machine.gpus)
        return gpu_link(machine, gpus[first], gpus[second]).nvlinks_expected

    def test_one_link_down_behind_a_switch_marks_every_pair_of_that_gpu(self) -> None:
        gpus = [gpu(i, active=17 if i == 3 else None) for i in range(8)]
        machine = builders.machine(
            gpus, nvlinks={(a, b): 17 if 3 in (a, b) else 18 for a in range(8) for b in range(8)}
        )
        assert self.expected(machine, 0, 3) == 18
        assert self.expected(machine, 3, 7) == 18
        assert self.expected(machine, 0, 1) is None

    def test_all_gpus_short_alike_are_measured_by_the_part(self) -> None:
        machine = builders.machine([gpu(i, active=16) for i in range(4)], nvlinks=16)
        assert self.expected(machine, 0, 1) == 18

    def test_direct_links_shared_out_unevenly_by_design_are_no_fault(self) -> None:
        """A DGX-1 has six links a GPU: two to one neighbour, one to others."""
        gpus = [gpu(i, nvlinks=6) for i in range(3)]
        direct = pairs(gpus, nvlinks={(0, 1): 1, (0, 2): 2, (1, 2): 2}, nvlink_through="direct")
        machine = builders.machine(gpus, pairs=direct)
        assert self.expected(machine, 0, 1) is None

    def test_a_direct_pair_of_a_gpu_with_a_link_down_is_marked(self) -> None:
        gpus = [gpu(i, nvlinks=18, active=17 if i < 2 else None) for i in range(4)]
        counts = {(a, b): 5 if (a, b) == (0, 1) else 6 for a in range(4) for b in range(4)}
        machine = builders.machine(gpus, pairs=pairs(gpus, nvlinks=counts, nvlink_through="direct"))
        assert self.expected(machine, 0, 1) == 6
        assert self.expected(machine, 0, 2) is None


NEAR = (RC, PORT, UP, "0000:17:00.0")
FAR = (RC, PORT, UP, "0000:17:01.0", "0000:19:00.0", "0000:1a:00.0")


class TestPciPaths:
    """``nvidia-smi topo -m``: PIX at most a single bridge, PXB several, PHB a host bridge, NODE two of them, SYS."""

    @pytest.mark.parametrize(
        ("first", "second", "nodes", "symbol"),
        [
            # In sysfs a switch is its upstream port and a downstream port for each device.
            pytest.param(NEAR, (RC, PORT, UP, "0000:17:01.0"), (0, 0), "PIX", id="two ports of one switch"),
            pytest.param(NEAR, FAR, (0, 0), "PXB", id="a switch below a port of the first"),
            pytest.param((RC, PORT), (RC, PORT), (0, 0), "PIX", id="two devices on one bus"),
            pytest.param((RC, PORT), (RC, "0000:15:02.0"), (0, 0), "PHB", id="two root ports of one complex"),
            pytest.param((RC,), (RC,), (0, 0), "PHB", id="two devices on the root bus"),
            pytest.param((RC, PORT), OTHER, (1, 1), "NODE", id="two host bridges of a NUMA node"),
            pytest.param((RC, PORT), OTHER, (0, 1), "SYS", id="two NUMA nodes"),
            pytest.param((RC, PORT), OTHER, (-1, -1), "?", id="no NUMA nodes to tell them apart"),
        ],
    )
    def test_where_two_paths_meet(
        self, first: tuple[str, ...], second: tuple[str, ...], nodes: tuple[int, int], symbol: str
    ) -> None:
        ends = (nic(0, path=first, node=nodes[0]), nic(1, path=second, node=nodes[1]))
        machine = builders.machine([], nodes=[node(0), node(1)], nics=ends)
        assert device_link(machine, *ends).symbol == device_link(machine, *ends[::-1]).symbol == symbol

    def test_two_functions_of_one_device_are_at_most_one_bridge_apart_even_on_the_root_bus(self) -> None:
        ends = nic(0, bus="0000:15:02.0", path=(RC,)), nic(1, bus="0000:15:02.1", path=(RC,))
        assert device_link(builders.machine([], nics=ends), *ends).kind is LinkClass.PIX

    def test_on_a_machine_with_one_numa_node_everything_is_in_it(self) -> None:
        ends = nic(0, node=-1), nic(1, node=-1)
        machine = builders.machine([], nodes=[node(0)], nics=ends)
        assert device_link(machine, *ends).kind is LinkClass.NODE

    def test_a_path_that_was_not_read_is_unknown(self) -> None:
        gone = replace(nic(1), pci=None)
        machine = builders.machine([gpu(0)], nics=(gone,))
        assert device_link(machine, known(machine.gpus)[0], gone).reason == "the PCI path was not read"

    @pytest.mark.long
    @given(st.data())
    def test_it_has_no_direction(self, data: st.DataObject) -> None:
        bridges = [f"0000:{bus:02x}:00.0" for bus in range(3)]
        paths = st.lists(st.sampled_from(bridges), max_size=4).map(lambda below: (RC, *below))
        roots = st.one_of(paths, paths.map(lambda path: ("pci0000:97", *path[1:])))
        numbers = st.integers(-1, 1)
        ends = [
            replace(
                nic(i),
                pci=PciFunction(
                    bus_id=f"0000:{0x40 + i:02x}:00.0", path=data.draw(roots), numa_node=data.draw(numbers)
                ),
            )
            for i in range(2)
        ]
        machine = builders.machine([], nodes=[node(0), node(1)], nics=tuple(ends))
        there, back = device_link(machine, *ends), device_link(machine, ends[1], ends[0])
        assert there == back
        assert (there.kind is LinkClass.UNKNOWN) == bool(there.reason)


@given(
    st.lists(
        st.tuples(st.sampled_from([None, 0, 1, 18]), st.sampled_from([None, "system", "node"])), min_size=2, max_size=2
    )
)
def test_two_gpus_have_one_link(directions: list[tuple[int | None, str | None]]) -> None:
    gpus = [gpu(0), gpu(1)]
    ends = ((gpus[0], gpus[1]), (gpus[1], gpus[0]))
    seen = tuple(
        GpuPair(source=a.bus_id, target=b.bus_id, nvlink_count=count, common_ancestor=ancestor)
        for (a, b), (count, ancestor) in zip(ends, directions, strict=True)
    )
    machine = builders.machine(gpus, pairs=seen)
    there, back = gpu_link(machine, *gpus), gpu_link(machine, gpus[1], gpus[0])
    assert there.symbol == back.symbol
