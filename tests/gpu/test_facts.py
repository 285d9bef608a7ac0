"""On real hardware, the facts agree with nvidia-smi and with the driver asked directly."""

from __future__ import annotations

import csv
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from egmctl.driver.reading import normal_bus_id
from egmctl.facts.collect import collect
from egmctl.model.gpu import Gpu, GpuNvml
from egmctl.model.machine import Machine
from egmctl.topology.platform import C2c, c2c
from tests.invariants import broken_invariants

pytestmark = pytest.mark.gpu

SECTIONS = ("gpus", "pairs", "driver")

DIRECT = """
import json, os, time
os.environ.pop("CUDA_VISIBLE_DEVICES", None)
os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
import pynvml
from cuda.bindings import driver
started = time.perf_counter()
pynvml.nvmlInit()
assert not driver.cuInit(0)[0]
init_s = time.perf_counter() - started
def attributes(enum, prefix, ask):
    values = {}
    for name in dir(enum):
        if name.startswith(prefix):
            code, value = ask(getattr(enum, name))
            values[name.removeprefix(prefix)] = None if code else value
    return values
devices, pairs = [], []
for i in range(driver.cuDeviceGetCount()[1]):
    bus_id = driver.cuDeviceGetPCIBusId(32, i)[1].split(b"\\0")[0].decode()
    devices.append([bus_id, attributes(driver.CUdevice_attribute, "CU_DEVICE_ATTRIBUTE_",
                                       lambda a: driver.cuDeviceGetAttribute(a, i))])
for i in range(len(devices)):
    for j in range(len(devices)):
        if i != j:
            pairs.append([devices[i][0], devices[j][0], driver.cuDeviceCanAccessPeer(i, j)[1],
                          attributes(driver.CUdevice_P2PAttribute, "CU_DEVICE_P2P_ATTRIBUTE_",
                                     lambda a: driver.cuDeviceGetP2PAttribute(a, i, j))])
print(json.dumps({"init_s": init_s, "devices": devices, "pairs": pairs}))
"""
"""The same questions without the tool, in a process of their own."""


@pytest.fixture(scope="module")
def machine() -> Machine:
    return collect(SECTIONS)


@pytest.fixture(scope="module")
def direct() -> Any:
    done = subprocess.run([sys.executable, "-c", DIRECT], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def nvidia_smi(*arguments: str) -> str:
    return subprocess.run(["nvidia-smi", *arguments], check=True, capture_output=True, text=True).stdout


def nvml_of(machine: Machine) -> Iterator[tuple[Gpu, GpuNvml]]:
    for gpu in machine.gpus or ():
        assert gpu.nvml is not None
        yield gpu, gpu.nvml


def test_every_null_has_its_reason(machine: Machine) -> None:
    assert broken_invariants(machine) == []


def test_bar1_agrees_with_nvidia_smi_and_covers_the_memory_of_a_gpu_without_c2c(machine: Machine) -> None:
    printed = re.findall(r"BAR1 Memory Usage\s+Total\s+: (\d+) MiB", nvidia_smi("-q", "-d", "MEMORY"))
    sizes = [(gpu, nvml.bar1_total_bytes or 0, nvml.memory_total_bytes or 0) for gpu, nvml in nvml_of(machine)]
    assert [str(bar1 >> 20) for _, bar1, _ in sizes] == printed
    assert [gpu.name for gpu, bar1, memory in sizes if c2c(machine, gpu) is C2c.ABSENT and bar1 < memory] == []


def test_gpus_agree_with_nvidia_smi(machine: Machine) -> None:
    generations = {2.5: "1", 5.0: "2", 8.0: "3", 16.0: "4", 32.0: "5", 64.0: "6"}
    modes = {"default": "Default", "exclusive-process": "Exclusive_Process", "prohibited": "Prohibited"}
    switch = {True: "Enabled", False: "Disabled", None: "[N/A]"}

    def text_or_na(value: object) -> str:
        return "[N/A]" if value is None else str(value)

    ours = [
        {
            "index": str(nvml.index),
            "pci.bus_id": f"{int(gpu.bus_id.split(':')[0], 16):08X}:{gpu.bus_id.split(':', 1)[1].upper()}",
            "uuid": nvml.uuid,
            "name": nvml.name,
            "serial": text_or_na(nvml.serial),
            "vbios_version": nvml.vbios,
            "memory.total": str((nvml.memory_total_bytes or 0) >> 20),
            "pcie.link.gen.gpumax": generations.get((nvml.link and nvml.link.max_speed_gt_s) or 0),
            "pcie.link.width.current": str(nvml.link and nvml.link.width),
            "pcie.link.width.max": str(nvml.link and nvml.link.max_width),
            "persistence_mode": switch[nvml.persistence_mode],
            "compute_mode": modes[nvml.compute_mode or ""],
            "mig.mode.current": switch[nvml.mig_mode],
            "ecc.mode.current": switch[nvml.ecc_mode],
            "ecc.errors.uncorrected.volatile.total": text_or_na(nvml.ecc_uncorrected_volatile),
            "clocks.max.sm": str(nvml.sm_clock_max_mhz),
            "clocks.max.memory": str(nvml.memory_clock_max_mhz),
        }
        for gpu, nvml in nvml_of(machine)
    ]
    fields = tuple(ours[0])
    text = nvidia_smi(f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")

    assert ours == [dict(zip(fields, row, strict=True)) for row in csv.reader(text.splitlines(), skipinitialspace=True)]


def test_nvlink_encryption_and_power_profiles_agree_with_nvidia_smi(machine: Machine) -> None:
    done = subprocess.run(["nvidia-smi", "nvlink", "--info"], check=False, capture_output=True, text=True)
    shown = re.findall(r"^\s*NVLE: (\w+)", done.stdout, re.MULTILINE)
    words = {True: "enabled", False: "disabled"}
    ours = [words[nvml.nvlink_encryption] for _, nvml in nvml_of(machine) if nvml.nvlink_encryption is not None]
    assert ours == [word.lower() for word in shown] or not shown, done.stdout
    enforced = re.findall(r"<power_profile_enforced_profiles>(.*?)<", nvidia_smi("-q", "-x"))
    profiles = [nvml.power_profiles for _, nvml in nvml_of(machine)]
    assert [text == "N/A" for text in enforced] == [not names for names in profiles] or not enforced, enforced


def test_nvlinks_agree_with_nvidia_smi(machine: Machine) -> None:
    expected: dict[int, dict[int, str]] = {}
    for line in nvidia_smi("nvlink", "-s").splitlines():
        if match := re.match(r"GPU (\d+):", line):
            links = expected[int(match[1])] = {}
        elif match := re.match(r"\s+Link (\d+): (.+)", line):
            links[int(match[1])] = match[2]

    # nvidia-smi leaves out a GPU without NVLinks.
    ours = {
        nvml.index: {
            link.link: f"{(link.speed_mb_s or 0) / 1000:.3f} GB/s" if link.active else "<inactive>"
            for link in nvml.nvlinks
        }
        for _, nvml in nvml_of(machine)
        if nvml.nvlinks
    }

    assert ours == expected


def test_fabric_platform_and_egm_agree_with_nvidia_smi(machine: Machine) -> None:
    def value(text: str, key: str) -> str | None:
        match = re.search(rf"^ +{key} +: (.+)$", text, re.MULTILINE)
        return match[1].strip().lower() if match else None

    for gpu, nvml in nvml_of(machine):
        text = nvidia_smi("-q", "-i", gpu.bus_id)
        assert nvml.platform is not None
        in_fabric = nvml.fabric if nvml.fabric and nvml.fabric.state == "completed" else None
        assert value(text, "CliqueId") == (str(in_fabric.clique_id) if in_fabric else "n/a")
        assert value(text, "Module Id") == ("n/a" if nvml.platform.module_id is None else str(nvml.platform.module_id))
        assert value(text, "Slot Number") == ("n/a" if nvml.platform.slot is None else str(nvml.platform.slot))
        assert value(text, "EGM") == ("enabled" if nvml.egm_capable else "disabled")
        assert value(text, "GPU C2C Mode") == {True: "enabled", False: "disabled", None: "n/a"}[nvml.c2c_enabled]
        assert value(text, "Addressing Mode") == ("n/a" if nvml.addressing_mode is None else nvml.addressing_mode)


def test_cuda_attributes_equal_what_the_driver_says_when_asked_directly(machine: Machine, direct: Any) -> None:
    expected = {normal_bus_id(bus_id): values for bus_id, values in direct["devices"]}

    for gpu in machine.gpus or ():
        assert gpu.cuda is not None
        for name, value in gpu.cuda.attributes.items():
            assert value == expected[gpu.bus_id].get(name), name


def test_pairs_equal_what_the_driver_says_when_asked_directly(machine: Machine, direct: Any) -> None:
    ours = {(pair.source, pair.target): pair for pair in machine.pairs or ()}
    assert len(ours) == len(direct["pairs"])

    for source, target, can_access, attributes in direct["pairs"]:
        pair = ours[normal_bus_id(source), normal_bus_id(target)]
        assert pair.can_access_peer == bool(can_access)
        assert pair.cuda_attributes == {name: attributes.get(name) for name in pair.cuda_attributes}


def test_cuda_visible_devices_hides_no_facts(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")

    hidden = collect(SECTIONS)

    def facts(of: Machine) -> list[Any]:
        return [(gpu.bus_id, gpu.sources, gpu.cuda) for gpu in of.gpus or ()]

    assert facts(hidden) == facts(machine)


def test_reading_costs_little_more_than_starting_the_libraries(direct: Any) -> None:
    started = time.perf_counter()
    collect(SECTIONS)
    took = time.perf_counter() - started

    assert took < direct["init_s"] + 0.6, f"{took:.2f} s against {direct['init_s']:.2f} s of nvmlInit and cuInit"


def test_what_links_do_of_atomic_operations_is_read_or_has_its_reason() -> None:
    machine = collect(("gpus", "pairs", "driver"))
    version = (machine.driver.cuda_driver_version if machine.driver else None) or 0
    read = [("host_atomics", gpu.cuda.host_atomics, gpu.cuda.unread) for gpu in machine.gpus or () if gpu.cuda]
    read += [("atomics", pair.atomics, pair.unread) for pair in machine.pairs or ()]
    assert read
    for field, atomics, unread in read:
        if atomics is None:
            # From CUDA 13.0 on the driver has the calls, but the bindings may be older; and between GPUs driver 580
            # answers 0 for everything, though its attribute says that there are native atomics.
            silent = "0 for every operation, though NATIVE_ATOMIC_SUPPORTED is 1" in unread[field].detail
            older = unread[field].reason in ("driver-too-old", "not-supported")
            assert silent or (older and (version < 13000 or "cuda-bindings" in unread[field].detail)), unread[field]
        else:
            assert len(atomics) == 13
    for pair in machine.pairs or ():
        if pair.atomics is not None and pair.cuda_attributes.get("NATIVE_ATOMIC_SUPPORTED"):
            assert any(pair.atomics.values())
