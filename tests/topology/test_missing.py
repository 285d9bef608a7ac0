"""A node whose GPUs cannot be asked: what was found anyway, what is missing, what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from egmctl.model.gpu import Gpu
from egmctl.model.host import DeviceNode, Driver, LibraryFailure
from egmctl.model.machine import Machine, OriginKind
from egmctl.model.record import Reason, Unread
from egmctl.report.kinds import Format
from egmctl.topology.topology import missing, topology
from tests.answers import render
from tests.topology import builders
from tests.topology.builders import gpu, hgx, nic, out_of_sight

NO_CUDA = LibraryFailure(how="missing", call="cuInit")
NO_LIBRARY = LibraryFailure(how="missing", call="nvmlInit", name="NVML_ERROR_LIBRARY_NOT_FOUND")
NOT_LOADED = Unread(reason=Reason.NOT_PRESENT, detail="/proc/driver/nvidia/version: ENOENT")


def unlisted(count: int, driver_name: str = "nvidia") -> list[Gpu]:
    found = [out_of_sight(gpu(i), access=None) for i in range(count)]
    return [replace(g, node=None, pci=g.pci and replace(g.pci, driver=driver_name)) for g in found]


def text_of(machine: Machine) -> str:
    what = missing(machine)
    assert what is not None
    return " ".join(str(render(topology(machine), Format.TEXT)).replace("NOT DETERMINED: ", "").split())


def test_nothing_is_missing_where_nvml_lists_a_gpu() -> None:
    assert missing(hgx(2)) is None
    assert missing(builders.machine([gpu(0), out_of_sight(gpu(1))])) is None


def test_no_gpu_at_all() -> None:
    unread = {"module_version": NOT_LOADED}
    driver = Driver(modules=(), nvml_failure=NO_LIBRARY, cuda_failure=NO_CUDA, unread=unread)
    text = text_of(builders.machine([], driver=driver))
    assert text.startswith("there is no NVIDIA GPU on this machine Next: If it should have one: 'lspci -d 10de:'")
    assert "kernel driver: not loaded (/proc/driver/nvidia/version: ENOENT)" in text
    assert "NVML is missing: the library cannot be loaded" in text
    assert "CUDA is missing: the library cannot be loaded" in text
    assert text.endswith("Found NUMA 0 cpu, CPUs 0-55, 512 GiB")
    assert "'egmctl topo --machine list' names machines to try without a GPU. Missing" in text


CONTROL_DENIED = (DeviceNode(path="/dev/nvidiactl", exists=True, access="EPERM"),)
DENIED = DeviceNode(path="/dev/nvidia0", exists=True, major=195, minor=0, access="EPERM")
HUNG = LibraryFailure(how="timed-out", detail="the child that reads NVML timed out in nvmlInit")
MISMATCH = LibraryFailure(how="error", call="nvmlInit", name="NVML_ERROR_LIB_RM_VERSION_MISMATCH")
BROKEN = LibraryFailure(how="error", call="nvmlInit", name="NVML_ERROR_UNKNOWN")
SAID: dict[str, tuple[Machine, tuple[str, ...]]] = {
    "no driver, and the NICs beside the GPUs": (
        builders.machine(
            unlisted(2, ""),
            driver=Driver(modules=(), nvml_failure=NO_LIBRARY, unread={"module_version": NOT_LOADED}),
            nics=(nic(0),),
        ),
        (
            "2 NVIDIA GPUs are on the PCI bus, but the NVIDIA driver is not loaded",
            "GPU1 0000:11:00.0, NUMA 0, driver none",
            "NIC0 mlx5_0, 0000:80:00.0, NUMA 0",
            "Load the driver with 'modprobe nvidia', or install it.",
        ),
    ),
    "nouveau": (
        builders.machine(
            unlisted(1, "nouveau"), driver=Driver(modules=("nouveau",), unread={"module_version": NOT_LOADED})
        ),
        ("1 NVIDIA GPU is on the PCI bus", "The nouveau driver is loaded: block it"),
    ),
    "a container without the library": (
        builders.machine(unlisted(1), driver=Driver(module_version="580.1", nvml_failure=NO_LIBRARY)),
        (
            "1 NVIDIA GPU is on the PCI bus and the driver is loaded, but its library NVML is missing",
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        ),
    ),
    "a cgroup that denies nvidiactl": (
        builders.machine(unlisted(1), driver=Driver(module_version="580.1", nvml_failure=BROKEN, nodes=CONTROL_DENIED)),
        (
            "1 NVIDIA GPU is on the PCI bus and the driver is loaded, but NVML does not work",
            "NVML fails (nvmlInit: NVML_ERROR_UNKNOWN)",
            "/dev/nvidiactl: EPERM",
            "This process was not given /dev/nvidiactl",
            "'egmctl doctor' says who set that",
        ),
    ),
    "every GPU denied": (
        builders.machine([out_of_sight(gpu(i)) for i in range(2)], driver=Driver(module_version="580.1")),
        (
            "2 NVIDIA GPUs are on the PCI bus, but none can be used from here",
            "GPU0: denied by the device cgroup (/dev/nvidia0: EPERM)",
        ),
    ),
    "a library of another version": (
        builders.machine(unlisted(1), driver=Driver(module_version="580.1", nvml_failure=MISMATCH)),
        ("1 NVIDIA GPU", "reload the driver, or reboot"),
    ),
    "a child that hung, and a GPU of which the bus was not read": (
        builders.machine([replace(unlisted(1)[0], pci=None)], driver=Driver(module_version="580.1", nvml_failure=HUNG)),
        (
            "1 NVIDIA GPU is on the PCI bus and the driver is loaded, but NVML does not work",
            "NVML did not answer in time",
            "512 GiB GPU0 0000:10:00.0",
        ),
    ),
    "a model": (builders.machine([], origin=OriginKind.MODELLED), ("MODEL of",)),
    # NVML answers then and lists nothing: the kernel's log would say nothing of it.
    "a cgroup that denies the GPUs": (
        builders.machine([replace(unlisted(1)[0], node=DENIED)], driver=Driver(module_version="580.1")),
        ("1 NVIDIA GPU", "denied by the device cgroup (/dev/nvidia0: EPERM)", "This process was not given these GPUs"),
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_what_stops_a_process_is_said_first_then_what_is_missing_and_what_to_do(name: str) -> None:
    machine, (first, *others) = SAID[name]
    text = text_of(machine)
    assert text.startswith(first)
    assert [words for words in others if words not in text] == []
    assert "dmesg" not in text or not name.startswith("a cgroup")
