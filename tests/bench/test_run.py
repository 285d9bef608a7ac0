"""The bench from the command to the driver and back, on fake nodes: its calls, its options and what it writes."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

from egmctl.bench.suites import CASES
from egmctl.gpu.program import KERNELS
from egmctl.model.machine import Machine
from tests.bench.conftest import FEW, SMALL, TWO_GPUS, Bench, Run
from tests.bench.four import OPTIONS
from tests.bench.plans import with_attributes
from tests.conftest import RunEgmctl
from tests.doctor.machines import patched
from tests.fake.build import CUDA
from tests.fake.node import load
from tests.fake.plugin import MakeFakeNode

MIB = 1 << 20


def dgx_h100(cuda_version: int) -> Machine:
    """Return the DGX H100 with a driver for this version of CUDA, and memory, which its public sources do not state."""
    machine = patched(load("dgx-h100"), "driver", cuda_driver_version=cuda_version)
    return patched(machine, "host.numa_nodes[*]", memory_total_bytes=1 << 40, memory_free_bytes=1 << 39)


class TestOnAnEgmNode:
    """``egmctl bench --numa 1 --gpus 0-3`` on a node with two Grace CPUs and four GPUs."""

    pytestmark = pytest.mark.long

    @pytest.fixture(scope="class")
    @classmethod
    def run(cls, bench: Bench) -> Run:
        """Run it once, with a size that is no multiple of the granularity."""
        return bench(
            "bench", "--numa", "1", "--gpus", "0-3", "--size", "3000K", "--samples", "5", "--copies", "2", *OPTIONS
        )

    def test_every_path_is_measured_and_verified(self, run: Run) -> None:
        assert run.code == 0
        assert run.statuses() == ["ok"] * (2 * 4 + 2 * 12)
        for measurement in run.measurements:
            assert len(measurement["samples"]) == 5
            assert (measurement["gating"], measurement["verification"]) == ("kernel", "gpu-every-sample")
        assert {gpu["name"] for gpu in run.result["gpus"]} == {"FAKE NVIDIA GB200"}

    def test_host_memory_is_created_on_the_chosen_node_padded_to_the_granularity(self, run: Run) -> None:
        created = run.node.calls("cuMemCreate")
        assert {call.arguments["location"] for call in created} == {"HOST_NUMA:1"}
        # 44 times 3000 KiB: a size below 64 MiB rotates over 128 MiB.
        assert {int(call.arguments["size"]) for call in created} == {130 * MIB}
        assert {call.arguments["handle"] for call in created} == {"NONE"}
        asked = run.node.calls("cuMemGetAllocationGranularity")
        assert {(call.arguments["location"], call.arguments["option"]) for call in asked} == {
            ("HOST_NUMA:1", option) for option in ("MINIMUM", "RECOMMENDED")
        }

    def test_the_node_itself_and_each_gpu_get_access(self, run: Run) -> None:
        (access,) = {call.arguments["access"] for call in run.node.calls("cuMemSetAccess")}
        assert access.split(",") == ["HOST_NUMA:1:RW", *(f"DEVICE:{ordinal}:RW" for ordinal in range(4))]

    def test_rows_are_called_egm_with_the_way_they_take(self, run: Run) -> None:
        routes = {
            (flow["initiator_label"], flow["route"]["symbol"], flow["route"]["egm"])
            for m in run.measurements
            for flow in m["flows"]
            if "numa" in m["case"]
        }
        through_a_peer = {(gpu, "NV18>C2C", "yes") for gpu in ("GPU0", "GPU1")}
        assert routes == through_a_peer | {(gpu, "C2C", "yes") for gpu in ("GPU2", "GPU3")}

    def test_contexts_kernels_and_buffers_are_made_once_and_given_back(self, run: Run) -> None:
        assert len(run.node.calls("cuDevicePrimaryCtxRetain")) == 4
        # The destination of the second case takes over the memory of the first one's source.
        assert len(run.node.calls("cuMemCreate")) == 1
        # A source and a destination for each GPU, and a page for what kernels find.
        sizes = [int(call.arguments["size"]) for call in run.node.calls("cuMemAlloc")]
        assert sorted(sizes) == [4096] * 4 + [44 * 3000 * 1024] * 8
        assert run.node.leaks() == []

    def test_every_kernel_is_loaded_on_every_gpu_before_the_first_gate(self, run: Run) -> None:
        names = [call.name for call in run.worker_calls()]
        first_launch = names.index("cuLaunchKernel")
        kernels = sum(len(names) for names in KERNELS.values())
        assert names[:first_launch].count("cuModuleGetFunction") == 4 * kernels
        assert "cuModuleGetFunction" not in names[first_launch:]

    def test_a_sample_is_poison_gate_event_copies_event_check(self, run: Run) -> None:
        calls = run.worker_calls()
        words = {"cuMemsetD32Async": "set", "cuEventRecord": "event", "cuMemcpyAsync": "copy"}
        steps = [
            words.get(call.name) or call.arguments["kernel"]
            for call in calls
            if call.name in words or (call.name == "cuLaunchKernel" and "fill" not in call.arguments["kernel"])
        ]
        first = steps.index("set")
        # The ends of the stream, of the flow and of the task are marked. The check clears its result, looks, and
        # fetches it.
        timed = ["gate", "event", "copy", "copy", "event", "event", "event"]
        sample = ["set", *timed, "set", "verify_pattern", "copy"]
        assert steps[first : first + 5 * len(sample)] == sample * 5


def test_the_gpu_that_issues_a_copy_is_the_source_in_a_write_and_the_destination_in_a_read(bench: Bench) -> None:
    run = bench("bench", "--numa", "1", "--gpus", "0-1", *FEW, "--case", "device_to_device_memcpy_*_ce")
    assert run.code == 0
    measurements = run.measurements
    issued = [
        (m["case"].split("_")[4], flow["source"]["label"], flow["initiator_label"])
        for m in measurements
        for flow in m["flows"]
    ]
    assert issued == [
        ("write", "GPU0", "GPU0"),
        ("write", "GPU1", "GPU1"),
        ("read", "GPU1", "GPU0"),
        ("read", "GPU0", "GPU1"),
    ]
    assert len(run.node.calls("cuCtxEnablePeerAccess")) == 2


def test_bindings_for_a_newer_cuda_than_the_drivers_are_one_sentence_that_names_the_extra(bench: Bench) -> None:
    run = bench("bench", "--gpus", "0", *SMALL, machine=dgx_h100(12040))
    assert run.code == 1, "bindings and driver that do not fit are a proven fault"
    (reason,) = run.reasons()
    assert re.search(r"needs a driver for CUDA 13 and this one is for CUDA 12\.4: pip install 'egmctl\[cu12\]'", reason)


def test_on_a_pcie_node_the_same_calls_are_not_called_egm(bench: Bench) -> None:
    run = bench("bench", "--numa", "0", "--gpus", "0", *SMALL, machine=dgx_h100(13000))
    assert run.code == 0
    assert {(m["flows"][0]["route"]["symbol"], m["flows"][0]["route"]["egm"]) for m in run.measurements} == {
        ("PCIe", "no")
    }


def test_without_nvml_copies_are_measured_and_nobody_claims_egm(egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
    node = fake_node("gb200-tray", libraries=(CUDA,))
    ended = egmctl(*TWO_GPUS, "--json", env=node.environment())
    measurements = json.loads(ended.out)["result"]["measurements"]
    assert ended.code == 1, "a missing library of the driver is a proven fault"
    assert {m["status"] for m in measurements} == {"ok"}
    routes = [flow["route"] for m in measurements for flow in m["flows"]]
    assert {route["egm"] for route in routes} == {None, "unknown"}
    assert "NVML is missing: the library cannot be loaded" in {route["egm_reason"] for route in routes}
    assert {hop["nominal_gb_s"] for route in routes for hop in route["hops"]} == {None}, "and no rate is invented"


class TestKernels:
    """Where kernels come from: the user's cache is empty, and nothing ships with a checkout."""

    @pytest.fixture
    def cache(self, tmp_path: Path) -> Path:
        return tmp_path / "egmctl"

    @pytest.fixture(scope="class")
    @classmethod
    def compiled(cls, bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """Return the cache of a run that compiled its kernels."""
        folder = tmp_path_factory.mktemp("cache")
        assert bench(*TWO_GPUS, env={"XDG_CACHE_HOME": str(folder)}).code == 0
        return folder / "egmctl"

    @staticmethod
    def gb200(*capabilities: tuple[int, int]) -> Machine:
        """Return the node with GPUs of these compute capabilities."""
        machine = load("gb200-tray")
        for index, (major, minor) in enumerate(capabilities):
            attributes = {"COMPUTE_CAPABILITY_MAJOR": major, "COMPUTE_CAPABILITY_MINOR": minor}
            machine = with_attributes(machine, index, **attributes)
        return machine

    def test_without_cache_and_nvrtc_everything_is_waived_and_says_why(self, bench: Bench, tmp_path: Path) -> None:
        run = bench(*TWO_GPUS, env={"EGMCTL_NO_NVRTC": "1", "XDG_CACHE_HOME": str(tmp_path)})
        assert run.code == 3
        assert set(run.statuses()) == {"waived"}
        assert run.reasons() == {
            "kernels for this GPU are not in the cache, and NVRTC is not installed: pip install 'egmctl[cu13]'"
        }
        assert not run.node.calls("cuMemcpyAsync")
        assert run.node.leaks() == []

    def test_what_one_run_has_compiled_the_next_finds_without_nvrtc(self, bench: Bench, compiled: Path) -> None:
        assert {path.suffix for path in compiled.iterdir()} == {".cubin"}
        assert len(list(compiled.iterdir())) == len(KERNELS)
        assert bench(*TWO_GPUS, env={"EGMCTL_NO_NVRTC": "1", "XDG_CACHE_HOME": str(compiled.parent)}).code == 0

    def test_a_gpu_that_is_newer_gets_ptx(self, bench: Bench, cache: Path) -> None:
        machine = self.gb200((13, 0), (13, 0))
        run = bench(*TWO_GPUS, machine=machine, env={"XDG_CACHE_HOME": str(cache.parent)})
        assert run.code == 0
        suffixes = Counter(path.suffix for path in cache.iterdir())
        assert suffixes[".ptx"] == len(KERNELS)

    def test_ptx_that_the_driver_refuses_is_a_waiver(self, bench: Bench, cache: Path) -> None:
        """As of a driver that is older than the NVRTC that made it: CUDA_ERROR_UNSUPPORTED_PTX_VERSION."""
        env = {"XDG_CACHE_HOME": str(cache.parent)}
        run = bench(*TWO_GPUS, machine=self.gb200((13, 0), (13, 0)), faults="cuModuleLoadData=error:222", env=env)
        assert run.code == 3
        assert all("this egmctl has no kernels for sm_130, and the driver refuses" in why for why in run.reasons())

    def test_a_gpu_without_kernels_does_not_cost_the_others(self, bench: Bench, compiled: Path) -> None:
        env = {"EGMCTL_NO_NVRTC": "1", "XDG_CACHE_HOME": str(compiled.parent)}
        run = bench(*TWO_GPUS, machine=self.gb200((7, 5)), env=env)
        found = {("GPU0" in json.dumps(m["flows"]), m["status"]) for m in run.measurements}
        assert found == {(True, "waived"), (False, "ok")}
        assert run.node.leaks() == []


class TestSelection:
    def test_all_waived_exits_3(self, bench: Bench) -> None:
        run = bench("bench", *SMALL, env={"CUDA_VISIBLE_DEVICES": ""})
        assert run.code == 3
        assert set(run.statuses()) == {"waived"}
        assert not run.node.calls("cuDevicePrimaryCtxRetain")

    @pytest.mark.parametrize(
        ("arguments", "sentence"),
        [
            (["--gpus", "9"], "there is no GPU 9"),
            (["--numa", "7"], "there is no CPU NUMA node 7"),
            (["--size", "0"], "--size 0: it must be a multiple of 16 bytes above 0"),
            (["--size", "12X"], "--size: '12X' is not a size"),
            (["--size", "1000"], "--size 1000: it must be a multiple of 16 bytes above 0"),
            (["--size", "100T"], "more than half of the"),
            (["--samples", "0"], "--samples 0: it must be from 1 to 1000"),
            (["--copies", "129"], "--copies 129: it must be from 1 to 128"),
            (["--timeout", "0"], "--timeout 0: it must be from 0.001 to"),
            (["--timeout", "nan"], "--timeout nan: it must be from 0.001 to"),
            (["--case", "h2d"], "--case 'h2d' matches no case"),
            (["--json", "--csv"], "--json and --csv exclude each other"),
            (["--list", "--csv"], "--csv: no such format here; valid are text"),
            (["--dry-run", "--csv"], "--csv: no such format here; valid are text, json"),
            (["--dry-run", "--list"], "--list and --dry-run exclude each other"),
            (["--dry-run", "--profile", "nosuch"], "there is no profile 'nosuch'"),
            (["--quick", "--full"], "--suite, --quick and --full exclude each other"),
            (["--suite", "fast"], "--suite 'fast': there are standard, quick, full, egm"),
            (["--sweep", "copies"], "--sweep 'copies': there are size, sms, footprint, load, streams"),
            (["--sweep", "size", "--size", "1K"], "--size 1024: a sweep begins at 4096 bytes"),
            (["--duration", "0"], "--duration 0: it must be from 0.001 to"),
            (["--machine", "gh200"], "--machine: a recorded machine cannot be measured"),
        ],
    )
    def test_what_makes_no_sense_is_one_sentence_and_exit_2(
        self, egmctl: RunEgmctl, fake_node: MakeFakeNode, arguments: list[str], sentence: str
    ) -> None:
        node = fake_node("gb200-tray")
        ended = egmctl("bench", *arguments, env=node.environment())
        assert ended.code == 2
        assert sentence in ended.err
        assert ended.err.count("\n") == 1
        assert not node.calls("cuDevicePrimaryCtxRetain")

    def test_the_list_measures_nothing(self, egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
        node = fake_node("gb200-tray")
        ended = egmctl("bench", "--list", "--full", "--gpus", "0", env=node.environment())
        assert ended.code == 0
        lines = {line.split()[0]: line.split()[1:] for line in ended.out.splitlines() if " of " in line}
        names = [case.name for case in CASES]
        assert [name for name in lines if name in names] == names
        assert lines["host_numa_to_device_memcpy_ce"] == ["4", "of", "4", "size,", "streams"]
        assert "needs two GPUs" in " ".join(ended.out.split())
        assert not node.calls("cuDevicePrimaryCtxRetain")

    def test_a_node_without_gpus_exits_3_with_what_is_missing(self, egmctl: RunEgmctl, tmp_path: Path) -> None:
        ended = egmctl("bench", env={"EGMCTL_SYSROOT": str(tmp_path)})
        assert ended.code == 3
        assert "there is no GPU to measure" in ended.err
        assert "--machine" not in ended.err
        planned = egmctl("bench", "--dry-run", env={"EGMCTL_SYSROOT": str(tmp_path)})
        assert planned.code == 3
        assert planned.err == ended.err


class TestForms:
    @pytest.mark.long
    def test_files_get_the_form_of_their_suffix_and_progress_is_for_terminals(
        self, egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path: Path
    ) -> None:
        beginnings = {"txt": "FAKE GPUs, nothing of this is hardware", "csv": "node,started_at,", "json": "{\n"}
        files = [word for suffix in beginnings for word in ("-o", tmp_path / f"out.{suffix}")]
        done = egmctl(*TWO_GPUS, *files, env=fake_node("gb200-tray").environment())
        assert (done.code, done.err) == (0, "")
        for suffix, beginning in beginnings.items():
            assert (tmp_path / f"out.{suffix}").read_text().startswith(beginning)

    def test_an_existing_file_is_refused_before_anything_runs(
        self, egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path: Path
    ) -> None:
        node = fake_node("gb200-tray")
        (tmp_path / "out.json").write_text("mine")
        ended = egmctl(*TWO_GPUS, "-o", tmp_path / "out.json", env=node.environment())
        assert ended.code == 2
        assert (tmp_path / "out.json").read_text() == "mine"
        assert not node.calls()
