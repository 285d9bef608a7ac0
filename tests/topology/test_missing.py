"""A node whose GPUs cannot be asked: what was found anyway, what is missing, what to do."""

from __future__ import annotations

from dataclasses import replace

from egmctl.model.machine import DeviceNode, Driver, Gpu, Machine, OriginKind, Reason, Unread
from egmctl.report.kinds import Format
from egmctl.report.rendering import render
from egmctl.topology.notes import missing
from egmctl.topology.topology import topology
from tests.topology import builders
from tests.topology.builders import gpu, hgx, nic, out_of_sight

NO_NVML = Unread(reason=Reason.MISSING_LIBRARY, detail="nvmlInit: 12 (NVML Shared Library Not Found)")
NO_CUDA = Unread(reason=Reason.MISSING_LIBRARY, detail="cuInit: libcuda.so.1 not found")
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
    driver = Driver(
        nvml_error="NVML_ERROR_LIBRARY_NOT_FOUND", unread={"module_version": NOT_LOADED, "cuda_error": NO_CUDA}
    )
    text = text_of(builders.machine([], driver=driver))
    assert text.startswith("there is no NVIDIA GPU on this machine Next: If it should have one: 'lspci -d 10de:'")
    assert "kernel driver: not loaded (/proc/driver/nvidia/version: ENOENT)" in text
    assert "NVML is missing: the library cannot be loaded" in text
    assert "CUDA is missing: the library cannot be loaded" in text
    assert text.endswith("Found NUMA 0 cpu, CPUs 0-55, 512 GiB")
    assert "'egmctl topo --machine list' names machines to try without a GPU. Missing" in text


def test_gpus_without_a_driver_and_the_nics_beside_them() -> None:
    driver = Driver(modules=(), nvml_error="NVML_ERROR_LIBRARY_NOT_FOUND", unread={"module_version": NOT_LOADED})
    text = text_of(builders.machine(unlisted(2, ""), driver=driver, nics=(nic(0),)))
    assert text.startswith("2 NVIDIA GPUs are on the PCI bus, but the NVIDIA driver is not loaded")
    assert "GPU1 0000:11:00.0, NUMA 0, driver none" in text
    assert "NIC0 mlx5_0, 0000:80:00.0, NUMA 0" in text
    assert "Load the driver with 'modprobe nvidia', or install it." in text


def test_nouveau_in_the_way() -> None:
    driver = Driver(modules=("nouveau",), unread={"module_version": NOT_LOADED})
    assert "The nouveau driver is loaded: block it" in text_of(builders.machine(unlisted(1, "nouveau"), driver=driver))


def test_a_container_without_the_library() -> None:
    driver = Driver(module_version="580.1", nvml_error="NVML_ERROR_LIBRARY_NOT_FOUND")
    text = text_of(builders.machine(unlisted(1), driver=driver))
    assert text.startswith("1 NVIDIA GPU is on the PCI bus and the driver is loaded, but its library NVML is missing")
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in text


def test_a_cgroup_that_denies_nvidiactl() -> None:
    nodes = (DeviceNode(path="/dev/nvidiactl", exists=True, access="EPERM"),)
    driver = Driver(module_version="580.1", nvml_error="NVML_ERROR_UNKNOWN", nodes=nodes)
    text = text_of(builders.machine(unlisted(1), driver=driver))
    assert "NVML does not work" in text
    assert "NVML fails (nvmlInit: NVML_ERROR_UNKNOWN)" in text
    assert "/dev/nvidiactl: EPERM" in text
    assert "This process was not given /dev/nvidiactl" in text
    assert "'egmctl doctor' says who set that" in text


def test_every_gpu_denied() -> None:
    gpus = [out_of_sight(gpu(i)) for i in range(2)]
    text = text_of(builders.machine(gpus, driver=Driver(module_version="580.1")))
    assert text.startswith("2 NVIDIA GPUs are on the PCI bus, but none can be used from here")
    assert "GPU0: denied by the device cgroup (/dev/nvidia0: EPERM)" in text


def test_a_library_of_another_version_than_the_driver() -> None:
    driver = Driver(module_version="580.1", nvml_error="NVML_ERROR_LIB_RM_VERSION_MISMATCH")
    assert "reload the driver, or reboot" in text_of(builders.machine(unlisted(1), driver=driver))


def test_a_child_that_hung_says_so() -> None:
    hung = Unread(reason=Reason.TIMED_OUT, detail="the child that reads NVML timed out in nvmlInit")
    driver = Driver(module_version="580.1", unread={"nvml_error": hung})
    text = text_of(builders.machine(unlisted(1), driver=driver))
    assert "NVML does not work" in text
    assert "NVML did not answer in time" in text


def test_a_modelled_machine_says_so_here_too() -> None:
    assert text_of(builders.machine([], origin=OriginKind.MODELLED)).startswith("MODEL of")


def test_a_cgroup_that_denies_the_gpus() -> None:
    """NVML answers then and lists nothing: the kernel's log would say nothing of it."""
    node = DeviceNode(path="/dev/nvidia0", exists=True, major=195, minor=0, access="EPERM")
    denied = replace(unlisted(1)[0], node=node)
    text = text_of(builders.machine([denied], driver=Driver(module_version="580.1")))
    assert "denied by the device cgroup (/dev/nvidia0: EPERM)" in text
    assert "This process was not given these GPUs" in text
    assert "dmesg" not in text
