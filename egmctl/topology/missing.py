"""What is missing on a node whose GPUs cannot be asked, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from egmctl.model.machine import Driver, Gpu, Machine, Reason
from egmctl.topology.access import DENIED, Block, obstacle
from egmctl.units import format_kernel_list


@dataclass(frozen=True, slots=True)
class Missing:
    """Why there is no matrix to draw."""

    sentence: str
    missing: tuple[str, ...]
    """Each missing part with its reason."""
    advice: tuple[str, ...]
    """What to do, a sentence each."""


def missing(machine: Machine) -> Missing | None:
    """Return what keeps a machine's topology from being known; ``None`` where NVML lists at least one GPU."""
    gpus = machine.gpus or ()
    if any(gpu.nvml is not None for gpu in gpus):
        return None
    driver = machine.driver or Driver()
    return Missing(
        sentence=_sentence(gpus, driver),
        missing=tuple(_parts(machine, gpus, driver)),
        advice=(*_advice(machine, gpus, driver), "'egmctl topo --machine list' names machines to try without a GPU."),
    )


def _sentence(gpus: tuple[Gpu, ...], driver: Driver) -> str:
    if not gpus:
        return "There is no NVIDIA GPU on this machine."
    are = "1 NVIDIA GPU is" if len(gpus) == 1 else f"{len(gpus)} NVIDIA GPUs are"
    if not _loaded(driver):
        return f"{are} on the PCI bus, but the NVIDIA driver is not loaded."
    if driver.nvml_error == "NVML_ERROR_LIBRARY_NOT_FOUND":
        return f"{are} on the PCI bus and the driver is loaded, but its library NVML is missing."
    if driver.nvml_error is not None or "nvml_error" in driver.unread:
        return f"{are} on the PCI bus and the driver is loaded, but NVML does not work."
    return f"{are} on the PCI bus, but none can be used from here."


def _parts(machine: Machine, gpus: tuple[Gpu, ...], driver: Driver) -> Iterator[str]:
    if not _loaded(driver):
        unread = driver.unread.get("module_version")
        yield f"kernel driver: not loaded ({unread.detail if unread and unread.detail else 'no version to read'})"
    for library, file, error, field in (
        ("NVML", "libnvidia-ml.so.1", driver.nvml_error, "nvml_error"),
        ("CUDA", "libcuda.so.1", driver.cuda_error, "cuda_error"),
    ):
        unread = driver.unread.get(field)
        if error == "NVML_ERROR_LIBRARY_NOT_FOUND" or (unread and unread.reason is Reason.MISSING_LIBRARY):
            yield f"{library}: {file} was not found"
        elif error:
            yield f"{library}: {error}"
        elif unread and unread.reason is not Reason.NOT_STATED:
            yield f"{library}: {unread.reason.value}" + (f" ({unread.detail})" if unread.detail else "")
    for node in (driver.nodes or ()) if _loaded(driver) else ():
        if node.access not in (None, "ok") and node.path.endswith(("nvidiactl", "nvidia-uvm")):
            yield f"{node.path}: {node.access}"
    causes: dict[str, set[int]] = {}
    for gpu in gpus if _loaded(driver) else ():
        stopped = obstacle(machine, gpu)
        # That NVML fails as a whole is told already.
        if stopped is not None and stopped.block is not Block.NVML_FAILED:
            causes.setdefault(stopped.cause, set()).add(gpu.index)
    for cause, indices in causes.items():
        yield f"GPU{format_kernel_list(indices)}: {cause}"


def _advice(machine: Machine, gpus: tuple[Gpu, ...], driver: Driver) -> Iterator[str]:
    closed = [node.path for node in driver.nodes or () if node.access == "EPERM" and node.path.endswith("nvidiactl")]
    stopped = {found.block for gpu in gpus if (found := obstacle(machine, gpu)) is not None}
    if not gpus:
        yield "If it should have one: 'lspci -d 10de:' lists those on its bus; in a container, ask for its GPUs."
    elif not _loaded(driver):
        if "nouveau" in (driver.modules or ()):
            yield "The nouveau driver is loaded: block it and load NVIDIA's."
        else:
            yield "Load the driver with 'modprobe nvidia', or install it."
    elif driver.nvml_error == "NVML_ERROR_LIBRARY_NOT_FOUND":
        version = f" {driver.module_version}" if driver.module_version else ""
        yield f"Install the libraries of driver{version}."
        yield "In a container, start it with NVIDIA_DRIVER_CAPABILITIES=compute,utility."
    elif closed or stopped & DENIED:
        what = " and ".join((*closed, *(["these GPUs"] if stopped & DENIED else [])))
        yield (
            f"This process was not given {what}: start it in a cgroup or container with all GPUs, and choose among "
            "them with CUDA_VISIBLE_DEVICES. 'egmctl doctor' says who set that, and how to ask for all."
        )
    elif driver.nvml_error == "NVML_ERROR_LIB_RM_VERSION_MISMATCH":
        yield "The library and the loaded driver are of different versions: reload the driver, or reboot."
    else:
        yield "'egmctl doctor' has each GPU and the libraries; the kernel log has more (dmesg | grep NVRM)."


def _loaded(driver: Driver) -> bool:
    return driver.module_version is not None or "nvidia" in (driver.modules or ())
