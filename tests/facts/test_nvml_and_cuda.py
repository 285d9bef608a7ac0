"""Both children on fake nodes: every value of a machine comes back, and whatever goes wrong is a reason."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from egmctl.driver import cuda
from egmctl.facts.collect import collect
from egmctl.model.gpu import Gpu, GpuNvml, NvLink, Pair
from egmctl.model.host import DeviceNode, Driver
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from tests.fake.node import FakeNode, load
from tests.invariants import broken_invariants, differences

if TYPE_CHECKING:
    from tests.fake.plugin import MakeFakeNode

SECTIONS = ("gpus", "pairs", "driver", "process")
SHIPPED = ("gh200", "gh200x4", "gb200-tray", "gb200-nvl72")

Collect = Callable[..., Machine]


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Collect:
    """Collect this process' facts on a fake node: ``on(node, faults="cuInit=error:100")``."""

    def run(node: FakeNode, faults: str = "", deadline_s: float = 60.0, **environment: str) -> Machine:
        for name, value in {**node.environment(faults), **environment}.items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)
        monkeypatch.setattr("egmctl.facts.collect.DEADLINE_S", deadline_s)
        return collect(SECTIONS)

    return run


def gpus_of(machine: Machine) -> tuple[Gpu, ...]:
    assert machine.gpus
    return machine.gpus


def driver_of(machine: Machine) -> Driver:
    assert machine.driver is not None
    return machine.driver


def with_cuda_version(machine: Machine, version: int) -> Machine:
    """Return the machine with a driver for this CUDA: older than the bindings, and CUDA is not asked."""
    return dataclasses.replace(machine, driver=dataclasses.replace(driver_of(machine), cuda_driver_version=version))


def changed(machine: Machine, index: int, **nvml: Any) -> Machine:
    """Return the machine with other NVML facts on one of its GPUs."""
    gpus = list(gpus_of(machine))
    before = gpus[index].nvml
    assert before is not None
    reasons = {name: why for name, why in before.unread.items() if name not in nvml}
    nvml["unread"] = {**reasons, **nvml.get("unread", {})}
    gpus[index] = dataclasses.replace(gpus[index], nvml=dataclasses.replace(before, **nvml))
    return dataclasses.replace(machine, gpus=tuple(gpus))


# --- what is there ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SHIPPED)
def test_every_value_of_a_shipped_machine_comes_back(fake_node: MakeFakeNode, on: Collect, name: str) -> None:
    node = fake_node(with_cuda_version(load(name), cuda.bindings().CUDA_VERSION))

    found = on(node)

    assert broken_invariants(found) == []
    for expected, gpu in zip(gpus_of(node.machine), gpus_of(found), strict=True):
        assert gpu.sources == ("pci", "proc", "node", "nvml", "cuda")
        assert differences(expected.nvml, gpu.nvml, "nvml") == []
        assert differences(expected.cuda, gpu.cuda, "cuda") == []
    assert differences(node.machine.pairs, found.pairs, "pairs") == []
    assert driver_of(found).cuda_error is None
    assert driver_of(found).nvml_error is None


def test_links_masked_by_a_virtual_machine_and_values_kept_from_us_come_back_with_their_reasons(
    fake_node: MakeFakeNode, on: Collect
) -> None:
    masked = {"remote_bus_id": Unread(reason=Reason.NOT_SUPPORTED, detail="masked by the virtual machine")}
    no_answer = {"remote_link": Unread(reason=Reason.NOT_SUPPORTED)}
    counters: dict[str, Any] = {"crc_errors": 0, "replay_errors": 0, "recovery_errors": 3, "speed_mb_s": 26562}
    links = tuple(
        NvLink(link=i, active=i != 2, version=6, remote_type="switch", **counters, unread={**masked, **no_answer})
        for i in range(3)
    )
    machine = load("gb200-tray")
    for index in (0, 1):
        machine = changed(
            machine,
            index,
            serial=None,
            virtualization="passthrough",
            nvlinks=links,
            nvlink_count=3,
            unread={"serial": Unread(reason=Reason.NO_PERMISSION)},
        )

    found = on(fake_node(machine))

    nvml = gpus_of(found)[0].nvml
    assert nvml is not None
    assert (nvml.virtualization, nvml.nvlink_count) == ("passthrough", 3)
    assert (nvml.serial, nvml.unread["serial"].reason) == (None, Reason.NO_PERMISSION)
    for expected, link in zip(links, nvml.nvlinks or (), strict=True):
        assert differences(expected, link, "link") == []
        assert link.remote_bus_id is None
        assert "masked by the virtual machine" in link.unread["remote_bus_id"].detail
        assert link.unread["remote_link"].reason is Reason.NOT_SUPPORTED
    pair = first_pair(found)
    assert (pair.nvlink_count, pair.nvlink_through) == (2, "switch")


def first_pair(machine: Machine) -> Pair:
    assert machine.pairs
    return machine.pairs[0]


def test_an_attribute_that_the_driver_does_not_know_is_null_and_the_others_are_there(
    fake_node: MakeFakeNode, on: Collect
) -> None:
    machine = load("gb200-tray")
    gpu = gpus_of(machine)[0]
    assert gpu.cuda is not None
    older = {name: value for name, value in gpu.cuda.attributes.items() if name != "HOST_NUMA_MULTINODE_IPC_SUPPORTED"}
    cuda = dataclasses.replace(gpu.cuda, attributes=older, unread={})
    machine = dataclasses.replace(machine, gpus=(dataclasses.replace(gpu, cuda=cuda), *gpus_of(machine)[1:]))

    found = gpus_of(on(fake_node(machine)))[0].cuda

    assert found is not None
    assert found.attributes["HOST_NUMA_MULTINODE_IPC_SUPPORTED"] is None
    why = found.unread["attributes.HOST_NUMA_MULTINODE_IPC_SUPPORTED"]
    assert (why.reason, why.detail) == (
        Reason.DRIVER_TOO_OLD,
        "cuDeviceGetAttribute: 1 (CUDA_ERROR_INVALID_VALUE)",
    )
    assert found.attributes["HOST_NUMA_ID"] == 0


@pytest.mark.parametrize("hidden", ["1", "", "GPU-none"])
def test_cuda_visible_devices_hides_no_facts(fake_node: MakeFakeNode, on: Collect, hidden: str) -> None:
    node = fake_node("gb200-tray")

    found = on(node, CUDA_VISIBLE_DEVICES=hidden, CUDA_DEVICE_ORDER="FASTEST_FIRST")

    assert [gpu.cuda and gpu.cuda.ordinal for gpu in gpus_of(found)] == [0, 1, 2, 3]
    assert found.process is not None
    assert found.process.environment is not None
    assert found.process.environment["CUDA_VISIBLE_DEVICES"] == hidden


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
    assert len(node.calls("nvmlDeviceGetFieldValues")) <= 3 * len(gpus_of(node.machine))


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
    for gpu in gpus_of(found):
        assert gpu.sources == ("pci", "proc", "node")
        assert gpu.unread["nvml"].reason is Reason.MISSING_LIBRARY
        assert gpu.unread["cuda"].reason is Reason.MISSING_LIBRARY
    assert driver_of(found).nvml_error == "NVML_ERROR_LIBRARY_NOT_FOUND"
    assert driver_of(found).unread["cuda_error"].reason is Reason.MISSING_LIBRARY
    assert found.pairs == ()


def test_nvml_without_its_kernel_module_is_the_drivers_word_and_cuda_is_still_there(
    fake_node: MakeFakeNode, on: Collect
) -> None:
    found = on(fake_node("gb200-tray"), "nvmlInit=error:9")

    assert driver_of(found).nvml_error == "NVML_ERROR_DRIVER_NOT_LOADED"
    for gpu in gpus_of(found):
        assert gpu.unread["nvml"] == Unread(reason=Reason.FAILED, detail="nvmlInit: 9 (Driver Not Loaded)")
        assert gpu.cuda is not None
    pair = first_pair(found)
    assert pair.can_access_peer is not None
    assert pair.unread["nvlink_count"] == pair.unread["common_ancestor"] == gpus_of(found)[0].unread["nvml"]


def test_cuda_without_a_device_is_the_drivers_word_and_nvml_is_still_there(
    fake_node: MakeFakeNode, on: Collect
) -> None:
    found = on(fake_node("gb200-tray"), "cuInit=error:100")

    assert driver_of(found).cuda_error == "CUDA_ERROR_NO_DEVICE"
    assert driver_of(found).cuda_driver_version == 13000
    for gpu in gpus_of(found):
        assert gpu.unread["cuda"] == Unread(reason=Reason.NOT_PRESENT, detail="cuInit: 100 (CUDA_ERROR_NO_DEVICE)")
        assert gpu.nvml is not None


def test_functions_that_an_older_driver_lacks_cost_only_their_values(fake_node: MakeFakeNode, on: Collect) -> None:
    found = on(
        fake_node("gb200-tray"),
        "nvmlDeviceGetCapabilities=missing;nvmlDeviceGetPlatformInfo=missing;cuDeviceGetP2PAttribute=missing",
    )

    assert broken_invariants(found) == []
    nvml = gpus_of(found)[0].nvml
    assert nvml is not None
    assert nvml.platform is not None
    assert nvml.unread["capabilities"].reason is Reason.DRIVER_TOO_OLD
    assert nvml.platform.unread["slot"].reason is Reason.DRIVER_TOO_OLD
    assert nvml.platform.module_id is not None
    pair = first_pair(found)
    assert pair.can_access_peer is True
    assert {pair.unread[f"cuda_attributes.{name}"].reason for name in pair.cuda_attributes} == {Reason.DRIVER_TOO_OLD}


def test_bindings_newer_than_the_driver_are_one_sentence_and_the_version_is_kept(
    fake_node: MakeFakeNode, on: Collect
) -> None:
    ours = cuda.bindings().CUDA_VERSION // 1000
    older = (ours - 1) * 1000 + 80

    found = on(fake_node(with_cuda_version(load("gb200-tray"), older)))

    why = gpus_of(found)[0].unread["cuda"]
    assert why.reason is Reason.DRIVER_TOO_OLD
    assert f"needs a driver for CUDA {ours} and this one is for CUDA {ours - 1}.8: " in why.detail
    assert driver_of(found).cuda_driver_version == older
    assert driver_of(found).unread["cuda_error"] == why


@pytest.mark.long
@pytest.mark.parametrize(
    ("faults", "source", "other", "reason", "detail"),
    [
        (
            "nvmlDeviceGetNvLinkState@3=hang",
            "nvml",
            "cuda",
            Reason.TIMED_OUT,
            "the child that reads NVML timed out in nvmlDeviceGetNvLinkState",
        ),
        ("cuInit=hang", "cuda", "nvml", Reason.TIMED_OUT, "the child that reads CUDA timed out in cuInit"),
        (
            "cuDeviceGetAttribute@5=kill:11",
            "cuda",
            "nvml",
            Reason.CRASHED,
            "the child that reads CUDA crashed in cuDeviceGetAttribute",
        ),
        ("nvmlInit=exit:3", "nvml", "cuda", Reason.CRASHED, "the child that reads NVML crashed in nvmlInit"),
    ],
)
def test_a_library_that_hangs_or_dies_costs_its_own_facts_and_names_the_last_call(
    fake_node: MakeFakeNode, on: Collect, faults: str, source: str, other: str, reason: Reason, detail: str
) -> None:
    found = on(fake_node("gb200-tray"), faults, deadline_s=12.0 if "hang" in faults else 60.0)

    assert broken_invariants(found) == []
    for gpu in gpus_of(found):
        assert gpu.unread[source] == Unread(reason=reason, detail=detail)
        assert set(gpu.sources) == {"pci", "proc", "node", other}


def test_a_gpu_that_fell_off_the_bus_keeps_its_place_and_says_so(fake_node: MakeFakeNode, on: Collect) -> None:
    node = fake_node("gb200-tray")

    found = on(node, "nvmlDeviceGetHandleByIndex@2=error:15")

    lost = gpus_of(node.machine)[1].bus_id
    assert found.gpu(lost).unread["nvml"] == Unread(
        reason=Reason.FAILED, detail="GPU 1: nvmlDeviceGetHandleByIndex: 15 (GPU is lost)"
    )
    # What people call a GPU does not move because another one is gone.
    assert [gpu.index for gpu in gpus_of(found)] == [0, 1, 2, 3]
    assert found.gpu(lost).index == 1


def test_a_gpu_that_the_device_cgroup_denies_is_known_to_files_only(fake_node: MakeFakeNode, on: Collect) -> None:
    machine = load("gb200-tray")
    first, *others = gpus_of(machine)
    denied = dataclasses.replace(first, node=DeviceNode(path="/dev/nvidia0", exists=True, access="EPERM"))

    found = on(fake_node(dataclasses.replace(machine, gpus=(denied, *others))))

    gpu = found.gpu(first.bus_id)
    assert gpu.unread["nvml"].detail == "NVML lists 3 GPUs, not this one"
    assert gpu.unread["cuda"].detail == "CUDA lists 3 GPUs, not this one"
    assert gpu.index == 0
    assert len(found.pairs or ()) == 3 * 2


def test_the_records_of_the_children_name_fields_of_the_model(fake_node: MakeFakeNode, on: Collect) -> None:
    """The decoder passes over keys that it does not know: a misspelt field would be a value lost in silence."""
    nvml = gpus_of(on(fake_node("gb200-tray")))[0].nvml

    assert isinstance(nvml, GpuNvml)
    nulls = {f.name for f in dataclasses.fields(nvml) if getattr(nvml, f.name) is None}
    assert nulls == set(nvml.unread)
