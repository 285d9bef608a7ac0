"""Both children on fake nodes: how they ask, and that whatever goes wrong is a reason.

That every value comes back: ``tests/fake/test_snapshot.py``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from egmctl import launch
from egmctl.driver import cuda
from egmctl.facts import collect
from egmctl.model.record import Reason, Unread
from tests.doctor.machines import patched
from tests.facts.conftest import Collect
from tests.fake.node import FakeNode, load
from tests.invariants import broken_invariants
from tests.known import known
from tests.launch.start import wait_until

if TYPE_CHECKING:
    from tests.fake.plugin import MakeFakeNode

# --- what is there ---------------------------------------------------------------------------------------------------


def test_an_nvml_that_lacks_a_versioned_function_costs_its_values_only(fake_node: MakeFakeNode, on: Collect) -> None:
    """Drivers before 510 have no nvmlDeviceGetComputeRunningProcesses_v3: nvidia-ml-py raises what is no NVMLError."""
    collected = on(fake_node("hgx-h200x4"), faults="nvmlDeviceGetComputeRunningProcesses=missing")

    for gpu in collected.gpus or ():
        nvml = known(gpu.nvml)
        assert (nvml.processes, nvml.unread["processes"].reason) == (None, Reason.DRIVER_TOO_OLD)
        assert (nvml.name, nvml.nvlink_count) == ("FAKE NVIDIA H200", 18)


def test_a_libcuda_that_loads_and_lacks_a_symbol_is_not_missing(fake_node: MakeFakeNode, on: Collect) -> None:
    collected = on(fake_node("hgx-h200x4"), faults="cuGetProcAddress=missing")

    failure = known(known(collected.driver).cuda_failure)
    assert (failure.how, failure.call) == ("too-old", "cuDriverGetVersion")
    assert "libcuda.so.1 lacks a function" in failure.words


@pytest.mark.parametrize("hidden", ["1", "", "GPU-none"])
def test_cuda_visible_devices_hides_no_facts(fake_node: MakeFakeNode, on: Collect, hidden: str) -> None:
    collected = on(fake_node("gb200-tray"), CUDA_VISIBLE_DEVICES=hidden, CUDA_DEVICE_ORDER="FASTEST_FIRST")

    assert [gpu.cuda and gpu.cuda.ordinal for gpu in collected.gpus or ()] == [0, 1, 2, 3]
    assert known(known(collected.process).environment)["CUDA_VISIBLE_DEVICES"] == hidden


def test_reading_makes_no_context_lets_go_of_nvml_and_asks_for_field_values_in_bulk(
    fake_node: MakeFakeNode, on: Collect
) -> None:
    node = fake_node("gb200-tray")

    on(node)

    made = {call.name for call in node.calls()}
    assert {"cuInit", "nvmlInit", "nvmlShutdown"} <= made
    assert not made & {"cuCtxCreate", "cuDevicePrimaryCtxRetain", "cuMemAlloc", "cuMemCreate"}
    assert node.leaks() == []
    # Per GPU: how many links there are, all NVLinks, all C2C links; one more where NVLinks have counters of NVLink 5.
    assert len(node.calls("nvmlDeviceGetFieldValues")) <= 3 * len(node.machine.gpus or ())


def test_a_command_that_needs_no_pairs_does_not_ask_for_them(fake_node: MakeFakeNode, on: Collect) -> None:
    node = fake_node("gb200-tray")

    assert on(node, sections=("gpus",)).pairs is None
    assert not {"nvmlDeviceGetP2PStatus", "cuDeviceGetP2PAttribute"} & {call.name for call in node.calls()}


@pytest.mark.processes
def test_the_children_import_nothing_heavy() -> None:
    code = (
        "import sys, egmctl.facts.nvml, egmctl.facts.cuda\n"
        "print(*{'rich', 'typer', 'numpy', 'jsonschema', 'logging', 'egmctl.model.machine'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# --- what goes wrong -------------------------------------------------------------------------------------------------


def test_without_the_libraries_the_gpus_are_there_and_each_source_says_why_not(
    fake_node: MakeFakeNode, on: Collect, tmp_path: Path
) -> None:
    # Files that are no libraries hide those that the system may have.
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        Path(tmp_path, name).touch()

    collected = on(fake_node("gb200-tray"), LD_LIBRARY_PATH=str(tmp_path))

    assert broken_invariants(collected) == []
    for gpu in collected.gpus or ():
        assert gpu.sources == ("pci", "proc", "node")
        assert gpu.unread["nvml"].reason is gpu.unread["cuda"].reason is Reason.MISSING_LIBRARY
    driver = known(collected.driver)
    assert driver.nvml_error == "NVML_ERROR_LIBRARY_NOT_FOUND"
    assert driver.unread["cuda_error"].reason is Reason.MISSING_LIBRARY
    assert collected.pairs == ()


def test_nvml_without_its_kernel_module_is_the_drivers_word_and_cuda_is_still_there(
    fake_node: MakeFakeNode, on: Collect
) -> None:
    collected = on(fake_node("gb200-tray"), "nvmlInit=error:9")

    failed = Unread(reason=Reason.FAILED, detail="nvmlInit: 9 (Driver Not Loaded)")
    assert known(collected.driver).nvml_error == "NVML_ERROR_DRIVER_NOT_LOADED"
    assert all(gpu.unread["nvml"] == failed and gpu.cuda is not None for gpu in known(collected.gpus))
    pair = known(collected.pairs)[0]
    assert pair.can_access_peer is not None
    assert pair.unread["nvlink_count"] == pair.unread["common_ancestor"] == failed


def test_cuda_without_a_device_is_the_drivers_word_and_nvml_is_still_there(
    fake_node: MakeFakeNode, on: Collect
) -> None:
    collected = on(fake_node("gb200-tray"), "cuInit=error:100")

    driver = known(collected.driver)
    assert (driver.cuda_error, driver.cuda_driver_version) == ("CUDA_ERROR_NO_DEVICE", 13000)
    none = Unread(reason=Reason.NOT_PRESENT, detail="cuInit: 100 (CUDA_ERROR_NO_DEVICE)")
    assert all(gpu.unread["cuda"] == none and gpu.nvml is not None for gpu in known(collected.gpus))


def test_functions_that_an_older_driver_lacks_cost_only_their_values(fake_node: MakeFakeNode, on: Collect) -> None:
    collected = on(
        fake_node("gb200-tray"),
        "nvmlDeviceGetCapabilities=missing;nvmlDeviceGetPlatformInfo=missing;cuDeviceGetP2PAttribute=missing",
    )

    assert broken_invariants(collected) == []
    nvml = known(known(collected.gpus)[0].nvml)
    platform, pair = known(nvml.platform), known(collected.pairs)[0]
    lacking = {nvml.unread["capabilities"], platform.unread["slot"]}
    lacking |= {pair.unread[f"cuda_attributes.{name}"] for name in pair.cuda_attributes}
    assert {unread.reason for unread in lacking} == {Reason.DRIVER_TOO_OLD}
    assert platform.module_id is not None
    assert pair.can_access_peer is True


def test_bindings_newer_than_the_driver_are_one_sentence_and_the_version_is_kept(
    fake_node: MakeFakeNode, on: Collect
) -> None:
    ours = cuda.bindings().CUDA_VERSION // 1000
    older = (ours - 1) * 1000 + 80

    collected = on(fake_node(patched(load("gb200-tray"), "driver", cuda_driver_version=older)))

    why, driver = known(collected.gpus)[0].unread["cuda"], known(collected.driver)
    assert why.reason is Reason.DRIVER_TOO_OLD
    assert f"needs a driver for CUDA {ours} and this one is for CUDA {ours - 1}.8: " in why.detail
    assert (driver.cuda_driver_version, driver.unread["cuda_error"]) == (older, why)


def give_up_at_the_hang(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a child's time be over once the fault plan has made it hang, and not before."""
    result = launch.Child.result

    def until_it_hangs(child: launch.Child, timeout_s: float) -> object:
        def hangs() -> bool:
            return any(call.pid == child.pid and call.ending == "hang" for call in node.calls())

        assert wait_until(lambda: bool(launch.wait_for_any([child], 0)) or hangs())
        return result(child, 0 if hangs() else timeout_s)

    monkeypatch.setattr(launch.Child, "result", until_it_hangs)


@pytest.mark.parametrize(
    ("faults", "source", "other", "reason", "detail"),
    [
        ("nvmlDeviceGetNvLinkState@3=hang", "nvml", "cuda", "timed-out", "timed out in nvmlDeviceGetNvLinkState"),
        ("cuInit=hang", "cuda", "nvml", "timed-out", "timed out in cuInit"),
        ("cuDeviceGetAttribute@5=kill:11", "cuda", "nvml", "crashed", "crashed in cuDeviceGetAttribute"),
        ("nvmlInit=exit:3", "nvml", "cuda", "crashed", "crashed in nvmlInit"),
    ],
)
def test_a_library_that_hangs_or_dies_costs_its_own_facts_and_names_the_last_call(
    fake_node: MakeFakeNode,
    on: Collect,
    monkeypatch: pytest.MonkeyPatch,
    faults: str,
    source: str,
    other: str,
    reason: str,
    detail: str,
) -> None:
    node = fake_node("gb200-tray")
    give_up_at_the_hang(node, monkeypatch)

    collected = on(node, faults)

    assert broken_invariants(collected) == []
    for gpu in known(collected.gpus):
        assert gpu.unread[source] == Unread(
            reason=Reason(reason), detail=f"the child that reads {source.upper()} {detail}"
        )
        assert set(gpu.sources) == {"pci", "proc", "node", other}


def test_only_a_child_that_has_answered_has_time_to_release_its_library(
    fake_node: MakeFakeNode, on: Collect, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = fake_node("gb200-tray")
    give_up_at_the_hang(node, monkeypatch)
    close = launch.Child.close
    grace_s: dict[str, float] = {}

    def closed(child: launch.Child) -> None:
        grace_s[child._target] = child.grace_s
        close(child)

    monkeypatch.setattr(launch.Child, "close", closed)
    on(node, "nvmlInit=hang")
    assert grace_s["egmctl.facts.nvml:read"] == 0
    assert grace_s["egmctl.facts.cuda:read"] == collect.RELEASE_S


def test_nobody_waits_for_nvml_to_shut_down(
    fake_node: MakeFakeNode, on: Collect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collect, "RELEASE_S", 0)
    collected = on(fake_node("gb200-tray"), "nvmlShutdown=hang")
    for gpu in known(collected.gpus):
        assert known(gpu.nvml).name == "FAKE NVIDIA GB200"
        assert "nvml" not in gpu.unread


def test_a_gpu_that_fell_off_the_bus_keeps_its_place_and_says_so(fake_node: MakeFakeNode, on: Collect) -> None:
    node = fake_node("gb200-tray")

    collected = on(node, "nvmlDeviceGetHandleByIndex@2=error:15")

    lost = collected.gpu(known(node.machine.gpus)[1].bus_id)
    assert lost.unread["nvml"] == Unread(
        reason=Reason.FAILED, detail="GPU 1: nvmlDeviceGetHandleByIndex: 15 (GPU is lost)"
    )
    # What people call a GPU does not move because another one is gone.
    assert lost.index == 1
    assert [gpu.index for gpu in known(collected.gpus)] == [0, 1, 2, 3]


def test_a_gpu_that_the_device_cgroup_denies_is_known_to_files_only(fake_node: MakeFakeNode, on: Collect) -> None:
    machine = patched(load("gb200-tray"), "gpus[0].node", exists=True, access="EPERM")

    collected = on(fake_node(machine))

    gpu = collected.gpu(known(machine.gpus)[0].bus_id)
    assert {name: gpu.unread[name].detail for name in ("nvml", "cuda")} == {
        "nvml": "NVML lists 3 GPUs, not this one",
        "cuda": "CUDA lists 3 GPUs, not this one",
    }
    assert gpu.index == 0
    assert len(known(collected.pairs)) == 3 * 2
