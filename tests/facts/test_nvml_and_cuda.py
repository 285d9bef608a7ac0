"""Both children on fake nodes: every value of a machine comes back, and whatever goes wrong is a reason."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from egmctl import launch
from egmctl.driver import cuda
from egmctl.facts.collect import collect
from egmctl.model.gpu import NvLink
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from tests.doctor.machines import patched
from tests.fake.node import FakeNode, load
from tests.invariants import broken_invariants, differences
from tests.known import known
from tests.launch.start import wait_until

if TYPE_CHECKING:
    from tests.fake.plugin import MakeFakeNode

SECTIONS = ("gpus", "pairs", "driver", "process")
SHIPPED = ("gh200", "gh200x4", "gb200-tray", "gb200-nvl72")

Collect = Callable[..., Machine]


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Collect:
    """Collect this process' facts on a fake node: ``on(node, faults="cuInit=error:100")``."""

    def run(node: FakeNode, faults: str = "", **environment: str) -> Machine:
        for name, value in {**node.environment(faults), **environment}.items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)
        return collect(SECTIONS)

    return run


# --- what is there ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED)
def test_every_value_of_a_shipped_machine_comes_back(
    fake_node: MakeFakeNode, on: Collect, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(f"{__name__}.SECTIONS", (*SECTIONS, "host", "nics"))
    # With an older driver than the bindings are for, CUDA is not asked.
    node = fake_node(patched(load(name), "driver", cuda_driver_version=cuda.bindings().CUDA_VERSION))

    found = on(node)

    assert broken_invariants(found) == []
    for expected, gpu in zip(known(node.machine.gpus), known(found.gpus), strict=True):
        assert gpu.sources == ("pci", "proc", "node", "nvml", "cuda")
        for source in ("proc", "nvml", "cuda"):
            assert differences(getattr(expected, source), getattr(gpu, source), source) == []
    for section in ("host", "nics", "pairs"):
        assert differences(getattr(node.machine, section), getattr(found, section), section) == []
    driver = known(found.driver)
    assert (driver.cuda_error, driver.nvml_error) == (None, None)


def test_links_masked_by_a_virtual_machine_and_values_kept_from_us_come_back_with_their_reasons(
    fake_node: MakeFakeNode, on: Collect
) -> None:
    unread = {
        "remote_bus_id": Unread(reason=Reason.NOT_SUPPORTED, detail="masked by the virtual machine"),
        "remote_link": Unread(reason=Reason.NOT_SUPPORTED),
    }
    counters: dict[str, Any] = {"crc_errors": 0, "replay_errors": 0, "recovery_errors": 3, "speed_mb_s": 26562}
    links = tuple(
        NvLink(link=i, active=i != 2, version=6, remote_type="switch", **counters, unread=unread) for i in range(3)
    )
    hidden = {"serial": Unread(reason=Reason.NO_PERMISSION)}
    machine = patched(
        load("gb200-tray"),
        "gpus[*].nvml",
        serial=None,
        virtualization="passthrough",
        nvlinks=links,
        nvlink_count=3,
        unread=hidden,
    )

    found = on(fake_node(machine))

    nvml = known(known(found.gpus)[0].nvml)
    assert (nvml.virtualization, nvml.nvlink_count) == ("passthrough", 3)
    assert (nvml.serial, nvml.unread["serial"].reason) == (None, Reason.NO_PERMISSION)
    assert differences(links, nvml.nvlinks, "links") == []
    for link in nvml.nvlinks or ():
        assert link.remote_bus_id is None
        assert "masked by the virtual machine" in link.unread["remote_bus_id"].detail
        assert link.unread["remote_link"].reason is Reason.NOT_SUPPORTED
    pair = known(found.pairs)[0]
    assert (pair.nvlink_count, pair.nvlink_through) == (2, "switch")


def test_an_attribute_that_the_driver_does_not_know_is_null_and_the_others_are_there(
    fake_node: MakeFakeNode, on: Collect
) -> None:
    newer, machine = "HOST_NUMA_MULTINODE_IPC_SUPPORTED", load("gb200-tray")
    stated = known(known(machine.gpus)[0].cuda).attributes
    older = {name: value for name, value in stated.items() if name != newer}

    found = known(known(on(fake_node(patched(machine, "gpus[0].cuda", attributes=older, unread={}))).gpus)[0].cuda)

    assert (found.attributes[newer], found.attributes["HOST_NUMA_ID"]) == (None, 0)
    assert found.unread[f"attributes.{newer}"] == Unread(
        reason=Reason.DRIVER_TOO_OLD, detail="cuDeviceGetAttribute: 1 (CUDA_ERROR_INVALID_VALUE)"
    )


@pytest.mark.parametrize("hidden", ["1", "", "GPU-none"])
def test_cuda_visible_devices_hides_no_facts(fake_node: MakeFakeNode, on: Collect, hidden: str) -> None:
    found = on(fake_node("gb200-tray"), CUDA_VISIBLE_DEVICES=hidden, CUDA_DEVICE_ORDER="FASTEST_FIRST")

    assert [gpu.cuda and gpu.cuda.ordinal for gpu in found.gpus or ()] == [0, 1, 2, 3]
    assert known(known(found.process).environment)["CUDA_VISIBLE_DEVICES"] == hidden


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


def test_a_command_that_needs_no_pairs_does_not_ask_for_them(
    fake_node: MakeFakeNode, on: Collect, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = fake_node("gb200-tray")
    monkeypatch.setattr(f"{__name__}.SECTIONS", ("gpus",))

    assert on(node).pairs is None
    assert not {"nvmlDeviceGetP2PStatus", "cuDeviceGetP2PAttribute"} & {call.name for call in node.calls()}


@pytest.mark.processes
def test_the_children_import_nothing_heavy() -> None:
    code = (
        "import sys, egmctl.facts.nvml, egmctl.facts.cuda\n"
        "print(*{'rich', 'typer', 'numpy', 'jsonschema', 'egmctl.model.machine'} & set(sys.modules))"
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

    found = on(fake_node("gb200-tray"), LD_LIBRARY_PATH=str(tmp_path))

    assert broken_invariants(found) == []
    for gpu in found.gpus or ():
        assert gpu.sources == ("pci", "proc", "node")
        assert gpu.unread["nvml"].reason is gpu.unread["cuda"].reason is Reason.MISSING_LIBRARY
    driver = known(found.driver)
    assert driver.nvml_error == "NVML_ERROR_LIBRARY_NOT_FOUND"
    assert driver.unread["cuda_error"].reason is Reason.MISSING_LIBRARY
    assert found.pairs == ()


def test_nvml_without_its_kernel_module_is_the_drivers_word_and_cuda_is_still_there(
    fake_node: MakeFakeNode, on: Collect
) -> None:
    found = on(fake_node("gb200-tray"), "nvmlInit=error:9")

    failed = Unread(reason=Reason.FAILED, detail="nvmlInit: 9 (Driver Not Loaded)")
    assert known(found.driver).nvml_error == "NVML_ERROR_DRIVER_NOT_LOADED"
    assert all(gpu.unread["nvml"] == failed and gpu.cuda is not None for gpu in known(found.gpus))
    pair = known(found.pairs)[0]
    assert pair.can_access_peer is not None
    assert pair.unread["nvlink_count"] == pair.unread["common_ancestor"] == failed


def test_cuda_without_a_device_is_the_drivers_word_and_nvml_is_still_there(
    fake_node: MakeFakeNode, on: Collect
) -> None:
    found = on(fake_node("gb200-tray"), "cuInit=error:100")

    driver = known(found.driver)
    assert (driver.cuda_error, driver.cuda_driver_version) == ("CUDA_ERROR_NO_DEVICE", 13000)
    none = Unread(reason=Reason.NOT_PRESENT, detail="cuInit: 100 (CUDA_ERROR_NO_DEVICE)")
    assert all(gpu.unread["cuda"] == none and gpu.nvml is not None for gpu in known(found.gpus))


def test_functions_that_an_older_driver_lacks_cost_only_their_values(fake_node: MakeFakeNode, on: Collect) -> None:
    found = on(
        fake_node("gb200-tray"),
        "nvmlDeviceGetCapabilities=missing;nvmlDeviceGetPlatformInfo=missing;cuDeviceGetP2PAttribute=missing",
    )

    assert broken_invariants(found) == []
    nvml = known(known(found.gpus)[0].nvml)
    platform, pair = known(nvml.platform), known(found.pairs)[0]
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

    found = on(fake_node(patched(load("gb200-tray"), "driver", cuda_driver_version=older)))

    why, driver = known(found.gpus)[0].unread["cuda"], known(found.driver)
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

    found = on(node, faults)

    assert broken_invariants(found) == []
    for gpu in known(found.gpus):
        assert gpu.unread[source] == Unread(
            reason=Reason(reason), detail=f"the child that reads {source.upper()} {detail}"
        )
        assert set(gpu.sources) == {"pci", "proc", "node", other}


def test_a_gpu_that_fell_off_the_bus_keeps_its_place_and_says_so(fake_node: MakeFakeNode, on: Collect) -> None:
    node = fake_node("gb200-tray")

    found = on(node, "nvmlDeviceGetHandleByIndex@2=error:15")

    lost = found.gpu(known(node.machine.gpus)[1].bus_id)
    assert lost.unread["nvml"] == Unread(
        reason=Reason.FAILED, detail="GPU 1: nvmlDeviceGetHandleByIndex: 15 (GPU is lost)"
    )
    # What people call a GPU does not move because another one is gone.
    assert lost.index == 1
    assert [gpu.index for gpu in known(found.gpus)] == [0, 1, 2, 3]


def test_a_gpu_that_the_device_cgroup_denies_is_known_to_files_only(fake_node: MakeFakeNode, on: Collect) -> None:
    machine = patched(load("gb200-tray"), "gpus[0].node", exists=True, access="EPERM")

    found = on(fake_node(machine))

    gpu = found.gpu(known(machine.gpus)[0].bus_id)
    assert {name: gpu.unread[name].detail for name in ("nvml", "cuda")} == {
        "nvml": "NVML lists 3 GPUs, not this one",
        "cuda": "CUDA lists 3 GPUs, not this one",
    }
    assert gpu.index == 0
    assert len(known(found.pairs)) == 3 * 2
