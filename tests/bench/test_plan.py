"""What would be measured on a node, and why the rest would not: from facts alone."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egmctl.bench.plan import Plan
from egmctl.bench.plan.budget import LEAST_BYTES, fitted, memory_of
from egmctl.bench.plan.make import make_plan
from egmctl.bench.plan.paths import cuda_visible
from egmctl.bench.suites import CASES, SUITES, select_cases
from egmctl.errors import UsageError
from egmctl.model.gpu import Gpu
from egmctl.model.host import Process
from egmctl.model.listing import PlannedTask
from egmctl.model.machine import Machine
from egmctl.model.measurement import Settings
from egmctl.model.record import Reason, Unread
from egmctl.model.route import Egm, MemoryKind
from egmctl.model.task import Flow
from egmctl.units import GIB, MIB
from tests.bench.four import FOUR
from tests.doctor.machines import shipped

GB200 = shipped("gb200-tray")
DGX = shipped("dgx-h100")
SETTINGS = Settings(size_bytes=512 * MIB, copies=16, samples=5, timeout_s=60)


def plan_of(
    machine: Machine, gpus: Sequence[int] = (0, 1, 2, 3), nodes: Sequence[int] = (0, 1), settings: Settings = SETTINGS
) -> Plan:
    """Plan every case for GPUs by index and NUMA nodes."""
    assert machine.gpus is not None
    return make_plan(machine, [machine.gpus[index] for index in gpus], nodes, FOUR, settings)


def with_gpu(machine: Machine, index: int, gpu: Gpu) -> Machine:
    """Return the machine with one GPU in place of another."""
    assert machine.gpus is not None
    return replace(machine, gpus=tuple(gpu if g.index == index else g for g in machine.gpus))


def flow_of(planned: PlannedTask) -> Flow:
    """Return the one flow of a task."""
    (flow,) = planned.flows
    return flow


def waivers(plan: Plan) -> set[str]:
    """Return the reasons why tasks of a plan will not run."""
    return {task.waiver for task in plan.tasks if task.waiver}


class TestPaths:
    @given(st.lists(st.integers(0, 7), min_size=1, unique=True), st.lists(st.integers(0, 1), min_size=1, unique=True))
    def test_every_combination_once(self, gpus: list[int], nodes: list[int]) -> None:
        plan = plan_of(DGX, gpus, nodes)
        paths = Counter((p.case, flow_of(p).source.label, flow_of(p).destination.label) for p in plan.tasks)
        expected = {
            *(("host_numa_to_device_memcpy_ce", f"NUMA{n}", f"GPU{g}") for n in nodes for g in gpus),
            *(("device_to_host_numa_memcpy_ce", f"GPU{g}", f"NUMA{n}") for n in nodes for g in gpus),
            *(
                (f"device_to_device_memcpy_{way}_ce", f"GPU{a}", f"GPU{b}")
                for way in ("write", "read")
                for a in gpus
                for b in gpus
                if a != b
            ),
        }
        assert set(paths) == expected
        assert set(paths.values()) == {1}

    def test_a_write_is_issued_by_the_source_and_a_read_by_the_destination(self) -> None:
        ends = {"write": "source", "read": "destination"}
        for planned in (p for p in plan_of(DGX).tasks if p.case.startswith("device_to_device")):
            way = planned.case.split("_")[4]
            assert flow_of(planned).initiator == getattr(flow_of(planned), ends[way]).bus_id

    def test_host_memory_is_always_worked_by_the_gpu(self) -> None:
        for flow in map(flow_of, plan_of(GB200).tasks):
            device = next(end for end in (flow.source, flow.destination) if end.memory is MemoryKind.DEVICE)
            if MemoryKind.HOST_NUMA in (flow.source.memory, flow.destination.memory):
                assert flow.initiator == device.bus_id

    def test_one_gpu_makes_no_pair_and_the_plan_says_so(self) -> None:
        plan = plan_of(DGX, gpus=[3])
        assert {p.case for p in plan.tasks} == {"host_numa_to_device_memcpy_ce", "device_to_host_numa_memcpy_ce"}
        assert plan.notes == (
            "these cases need two GPUs: device_to_device_memcpy_write_ce, device_to_device_memcpy_read_ce",
        )


class TestRoute:
    def test_egm_where_the_bit_and_c2c_say_so_local_and_through_a_peer(self) -> None:
        routes = {
            (flow_of(p).source.label, flow_of(p).destination.label): (flow_of(p).route.symbol, flow_of(p).route.egm)
            for p in plan_of(GB200).tasks
            if p.case == "host_numa_to_device_memcpy_ce"
        }
        assert routes["NUMA0", "GPU0"] == ("C2C", Egm.YES)
        assert routes["NUMA1", "GPU0"] == ("NV18>C2C", Egm.YES)

    def test_the_same_calls_on_a_pcie_node_are_not_called_egm(self) -> None:
        flows = [flow for flow in map(flow_of, plan_of(DGX).tasks) if flow.source.memory is MemoryKind.HOST_NUMA]
        assert {flow.route.egm for flow in flows} == {Egm.NO}
        assert {flow.route.symbol for flow in flows} == {"PCIe", "PCIe>SMP"}

    def test_between_gpus_it_is_no_question(self) -> None:
        tasks = [p for p in plan_of(DGX).tasks if p.case.startswith("device_to_device")]
        assert {(flow_of(task).route.symbol, flow_of(task).route.egm) for task in tasks} == {("NV18", None)}


class TestWaivers:
    def test_a_gpu_that_cuda_does_not_see_takes_its_paths_with_it_and_no_others(self) -> None:
        hidden = replace(
            DGX.gpus[1],  # type: ignore[index]
            cuda=None,
            unread={"cuda": Unread(reason=Reason.NOT_PRESENT, detail="CUDA does not list this bus id")},
        )
        plan = plan_of(with_gpu(DGX, 1, hidden), gpus=[0, 1, 2])
        assert waivers(plan) == {"GPU1: CUDA does not see it (CUDA does not list this bus id)"}
        for planned in plan.tasks:
            touches = "GPU1" in (flow_of(planned).source.label, flow_of(planned).destination.label)
            assert (planned.waiver is not None) is touches

    def test_a_gpu_that_nothing_but_pci_sees_is_waived_with_what_stands_in_the_way(self) -> None:
        gpu = DGX.gpus[1]  # type: ignore[index]
        assert gpu.node is not None
        denied = replace(gpu, nvml=None, cuda=None, node=replace(gpu.node, access="EPERM"))
        assert any("device cgroup" in why for why in waivers(plan_of(with_gpu(DGX, 1, denied))))

    def test_cuda_visible_devices_hides_a_gpu(self) -> None:
        machine = replace(DGX, process=Process(environment={"CUDA_VISIBLE_DEVICES": "0,2"}))
        assert waivers(plan_of(machine, gpus=[0, 1, 2])) == {"CUDA_VISIBLE_DEVICES hides GPU1"}

    def test_a_gpu_too_old_for_bulk_copies_is_waived_with_what_it_has_and_what_is_needed(self) -> None:
        gpu = DGX.gpus[0]  # type: ignore[index]
        assert gpu.cuda is not None
        ampere = {**gpu.cuda.attributes, "COMPUTE_CAPABILITY_MAJOR": 8, "COMPUTE_CAPABILITY_MINOR": 0}
        machine = with_gpu(DGX, 0, replace(gpu, cuda=replace(gpu.cuda, attributes=ampere)))
        cases = [case for case in CASES if case.name == "device_local_bulk"]
        plan = make_plan(machine, (machine.gpus or ())[:2], [0], cases, SETTINGS)
        assert [task.waiver for task in plan.tasks] == [
            "GPU0 has compute capability 8.0, and memcpy bulk needs 9.0",
            None,
        ]

    def test_mig(self) -> None:
        gpu = DGX.gpus[0]  # type: ignore[index]
        assert gpu.nvml is not None
        machine = with_gpu(DGX, 0, replace(gpu, nvml=replace(gpu.nvml, mig_mode=True)))
        assert waivers(plan_of(machine)) == {"GPU0: MIG is on: it can only be used in parts"}

    def test_a_pair_without_peer_access_is_staged_and_says_what_nvml_says(self) -> None:
        first, second = (gpu.bus_id for gpu in DGX.gpus[:2])  # type: ignore[index]
        pairs = tuple(
            replace(pair, can_access_peer=False, p2p_status={"read": "CNS", "write": "OK", "pci": None})
            if (pair.source, pair.target) == (first, second)
            else pair
            for pair in DGX.pairs or ()
        )
        plan = plan_of(replace(DGX, pairs=pairs), gpus=[0, 1])
        why = "GPU0 has no peer access to GPU1: P2P read is CNS"
        staged = [flow_of(p) for p in plan.tasks if flow_of(p).route.staged_reason == why]
        assert [(flow.initiator_label, flow.source.label) for flow in staged] == [("GPU0", "GPU0"), ("GPU0", "GPU1")]
        assert sum(flow_of(p).route.staged for p in plan.tasks) == 2
        assert len(plan.runnable) == len(plan.tasks)

    def test_a_node_that_the_cpuset_does_not_allow(self) -> None:
        assert DGX.host is not None
        plan = plan_of(replace(DGX, host=replace(DGX.host, allowed_numa_nodes="0")))
        assert {p.case.count("numa") for p in plan.tasks if p.waiver} == {1}
        assert all("NUMA1" in (flow_of(p).source.label, flow_of(p).destination.label) for p in plan.tasks if p.waiver)
        assert any("Mems_allowed" in why for why in waivers(plan))

    def test_a_driver_without_host_numa_memory(self) -> None:
        name = "HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"
        gpu = DGX.gpus[0]  # type: ignore[index]
        assert gpu.cuda is not None
        old = replace(gpu, cuda=replace(gpu.cuda, attributes={**gpu.cuda.attributes, name: 0}))
        plan = plan_of(with_gpu(DGX, 0, old), gpus=[0, 1])
        assert waivers(plan) == {f"GPU0 cannot use HOST_NUMA memory: CU_DEVICE_ATTRIBUTE_{name} is 0"}
        assert len(plan.runnable) == 8


@pytest.mark.parametrize(
    ("value", "visible"),
    [
        ("", []),
        ("-1", []),
        ("0", [0]),
        ("3,1", [1, 3]),
        ("1,9,2", [1]),
        ("1,-1,2", [1]),
        ("GPU-nonsense", []),
        (" 2 , 0 ", [0, 2]),
    ],
)
def test_cuda_visible_devices_ends_at_its_first_invalid_entry(value: str, visible: list[int]) -> None:
    machine = replace(DGX, process=Process(environment={"CUDA_VISIBLE_DEVICES": value}))
    assert DGX.gpus is not None
    assert cuda_visible(machine) == frozenset(DGX.gpus[index].bus_id for index in visible)


def test_cuda_visible_devices_takes_uuids_and_their_beginnings() -> None:
    assert DGX.gpus is not None
    gpu = replace(DGX.gpus[2], nvml=replace(DGX.gpus[2].nvml, uuid="GPU-4c1f0000-1111"))  # type: ignore[type-var]
    machine = replace(with_gpu(DGX, 2, gpu), process=Process(environment={"CUDA_VISIBLE_DEVICES": "GPU-4c1f"}))
    assert cuda_visible(machine) == frozenset({gpu.bus_id})


def test_without_the_variable_everything_is_visible() -> None:
    assert cuda_visible(replace(DGX, process=Process(environment={}))) is None


class TestMemory:
    def node_with(self, *, gpu_free: int = 80 * GIB, node_free: int = 500 * GIB, available: int = 900 * GIB) -> Machine:
        """Return the DGX with this much free on GPU 0, on NUMA node 0 and on the host."""
        assert DGX.gpus is not None
        assert DGX.host is not None
        assert DGX.host.numa_nodes is not None
        gpus = tuple(
            replace(
                gpu,
                nvml=replace(
                    gpu.nvml,  # type: ignore[type-var]
                    memory_total_bytes=gpu_free if gpu.index == 0 else 80 * GIB,
                    memory_used_bytes=0,
                ),
            )
            for gpu in DGX.gpus
        )
        nodes = tuple(
            replace(node, memory_free_bytes=node_free if node.id == 0 else 500 * GIB) for node in DGX.host.numa_nodes
        )
        return replace(DGX, gpus=gpus, host=replace(DGX.host, numa_nodes=nodes, memory_available_bytes=available))

    def test_half_of_what_is_free_is_enough(self) -> None:
        machine = self.node_with(gpu_free=2 * GIB, node_free=1 * GIB, available=1 * GIB)
        fitted(plan_of(machine), memory_of(machine))

    @pytest.mark.parametrize(
        ("free", "taken"),
        [
            ({"gpu_free": 2 * GIB - 1}, "1 GiB on GPU0"),
            # One buffer at a time: those of one direction are given back before the other's are made.
            ({"node_free": GIB - 1}, "512 MiB on NUMA0"),
            ({"available": GIB - 1}, "512 MiB on the host"),
        ],
    )
    def test_less_is_refused_with_the_place_and_what_would_fit(self, free: dict[str, int], taken: str) -> None:
        machine = self.node_with(**free)
        with pytest.raises(UsageError, match=rf"--size 512 MiB takes {taken}, .*; --size 256M fits"):
            fitted(plan_of(machine), memory_of(machine))

    @pytest.mark.parametrize("free", [{"gpu_free": 2 * GIB - 1}, {"node_free": 400 * MIB}, {"available": GIB - 1}])
    def test_a_size_that_nobody_chose_gives_way_to_what_is_free(self, free: dict[str, int]) -> None:
        machine = self.node_with(**free)
        chosen = self.fitted(machine)
        size = chosen.settings.size_bytes
        assert f"buffers of {size // MIB} MiB, not of the usual 512 MiB" in chosen.notes[-1]
        fitted(chosen, memory_of(machine))
        with pytest.raises(UsageError):
            fitted(plan_of(machine, settings=replace(SETTINGS, size_bytes=2 * size)), memory_of(machine))

    def test_where_the_usual_size_fits_nothing_changes(self) -> None:
        machine = self.node_with()
        assert self.fitted(machine) == plan_of(machine)

    def test_where_the_least_size_does_not_fit_what_has_no_room_is_waived(self) -> None:
        machine = self.node_with(gpu_free=0)
        chosen = self.fitted(machine)
        assert chosen.settings.size_bytes == LEAST_BYTES
        assert any("more than half of the 0 B free there" in why for why in waivers(chosen))
        assert {flow.path for task in chosen.runnable for flow in task.flows}, "other GPUs are measured"
        assert all("GPU0" not in task.path for task in chosen.runnable)

    def fitted(self, machine: Machine) -> Plan:
        """Return the plan that fits."""
        return fitted(
            plan_of(machine),
            memory_of(machine),
            lambda size: plan_of(machine, settings=replace(SETTINGS, size_bytes=size)),
        )

    def test_the_limit_of_the_cgroup_counts_for_the_host(self) -> None:
        machine = self.node_with()
        fitted(plan_of(machine), memory_of(machine, GIB))
        with pytest.raises(UsageError, match="512 MiB on the host, more than half of the 1023 MiB"):
            fitted(plan_of(machine), memory_of(machine, 1023 * MIB))

    def test_a_larger_share_can_be_allowed(self) -> None:
        machine = self.node_with(gpu_free=2 * GIB - 1)
        fitted(plan_of(machine, settings=replace(SETTINGS, memory_percent=60)), memory_of(machine))

    def test_a_soak_holds_everything_at_the_same_time(self) -> None:
        machine = self.node_with(node_free=2 * GIB - 1)
        with pytest.raises(UsageError, match="takes 1 GiB on NUMA0"):
            fitted(plan_of(machine, settings=replace(SETTINGS, duration_s=60)), memory_of(machine))

    def test_a_latency_whose_footprint_does_not_fit_is_waived_and_the_others_are_measured(self) -> None:
        machine = self.node_with(gpu_free=40 * GIB)
        assert machine.gpus is not None
        plan = make_plan(machine, machine.gpus[:1], [0], select_cases(["device_local_footprint"]), SETTINGS)
        assert waivers(fitted(plan, memory_of(machine))) == {
            f"it takes {size} GiB on GPU0, more than half of the 40 GiB free there" for size in (32, 64)
        }

    def test_what_the_facts_do_not_know_is_no_reason_to_refuse(self) -> None:
        assert DGX.host is not None
        machine = replace(DGX, host=replace(DGX.host, numa_nodes=None, memory_available_bytes=None))
        fitted(plan_of(machine), memory_of(machine))

    def test_waived_tasks_take_nothing(self) -> None:
        machine = replace(self.node_with(gpu_free=0), process=Process(environment={"CUDA_VISIBLE_DEVICES": "1"}))
        fitted(plan_of(machine, gpus=[0, 1]), memory_of(machine))


@pytest.mark.parametrize("size", [0, 8, 1000])
def test_a_size_that_is_no_whole_number_of_the_widest_words_is_refused(size: int) -> None:
    with pytest.raises(UsageError, match=rf"--size {size}: it must be a multiple of 16 bytes above 0"):
        plan_of(DGX, settings=replace(SETTINGS, size_bytes=size))


class TestCases:
    def test_names_are_unique_and_in_nvbandwidths_words(self) -> None:
        names = [case.name for case in CASES]
        assert len(set(names)) == len(names)
        assert {"device_to_device_memcpy_write_ce", "device_to_device_memcpy_read_ce"} < set(names)

    def test_globs_select_in_the_order_of_the_registry(self) -> None:
        assert [case.name for case in select_cases(["device_to_device_memcpy_read_ce", "host_numa_*_ce"])] == [
            case.name
            for case in CASES
            if case.name == "device_to_device_memcpy_read_ce"
            or (case.name.startswith("host_numa_") and case.name.endswith("_ce"))
        ]

    def test_without_a_choice_it_is_the_standard_suite_and_globs_choose_from_all(self) -> None:
        assert select_cases([]) == select_cases([], ["standard"])
        assert len(select_cases([])) < len(select_cases(["*"])) == len(CASES)
        assert [case.name for case in select_cases([], ["full"])] == [case.name for case in CASES]

    @pytest.mark.parametrize(
        ("suites", "patterns", "paths"),
        [
            (("standard",), (), (1, 4)),
            (("standard", "quick"), (), (1, 4)),
            (("standard", "host"), (), (4, 4)),
            (("full",), (), (4, 4)),
            ((), ("registered_to_device_memcpy_ce", "host_numa_to_device_memcpy_ce"), (4, 4)),
        ],
    )
    def test_the_standard_suite_tells_kinds_of_host_memory_apart_over_one_path(
        self, suites: tuple[str, ...], patterns: tuple[str, ...], paths: tuple[int, int]
    ) -> None:
        plan = make_plan(DGX, (DGX.gpus or ())[:4], [0], select_cases(patterns, suites), SETTINGS)
        found = Counter(planned.name for planned in plan.tasks)
        assert (found["registered_to_device_memcpy_ce"], found["host_numa_to_device_memcpy_ce"]) == paths

    @pytest.mark.parametrize("suites", [("ipc",), ("standard", "ipc")])
    def test_what_is_set_beside_other_paths_is_measured_over_all_of_them(self, suites: tuple[str, ...]) -> None:
        plan = make_plan(DGX, (DGX.gpus or ())[:4], [0], select_cases((), suites), SETTINGS)
        found = Counter(planned.case for planned in plan.tasks)
        between, within = "ipc_pool_host_numa_read_ce", "host_numa_pool_to_device_memcpy_ce"
        assert (found[between], found[within]) == (4, 4)

    def test_a_glob_within_a_suite_chooses_from_it(self) -> None:
        assert {case.family for case in select_cases(["*_ce"], ["p2p"])} == {"p2p"}
        with pytest.raises(UsageError, match="matches no case; 'egmctl bench --list --suite p2p,host' shows all"):
            select_cases(["rdma_*"], ["p2p", "host"])

    @pytest.mark.parametrize("name", SUITES)
    def test_every_pattern_of_a_suite_fits_some_case(self, name: str) -> None:
        for pattern in SUITES[name].cases:
            assert fnmatch.filter([case.name for case in CASES], pattern), pattern
        assert select_cases([], [name])

    @pytest.mark.parametrize("name", ["standard", "full"])
    def test_a_large_suite_has_every_family(self, name: str) -> None:
        # What needs a package beside, and a series of many points, is measured where it is asked for.
        extra = {"rdma"} if name == "standard" else set()
        assert {case.family for case in select_cases([], [name])} == {case.family for case in CASES} - extra

    def test_a_glob_that_fits_nothing_is_refused_with_what_is_alike_or_shows_all(self) -> None:
        with pytest.raises(
            UsageError, match=r"--case 'h2d' matches no case; 'egmctl bench --list --suite full' shows all"
        ):
            select_cases(["host_*", "h2d"])
        with pytest.raises(UsageError, match="matches no case; did you mean device_to_device_memcpy_write_sm or "):
            select_cases(["device_to_device_memcpy_write_sn"])
