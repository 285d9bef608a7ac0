"""The check of limits on GPU memory that a cgroup or MPS sets."""

from __future__ import annotations

from egmctl.doctor.check import Scope, Verdicts, skip
from egmctl.doctor.findings import fact, noted, passed, unknown
from egmctl.doctor.situation import check_gpus, in_container
from egmctl.model.finding import Guard
from egmctl.model.gpu import Gpu
from egmctl.model.host import Process
from egmctl.model.machine import Machine
from egmctl.model.record import Reason
from egmctl.model.remedy import todo
from egmctl.topology.access import gpu_memory_bytes, memory_limit
from egmctl.units import format_size

_ASK = todo(
    "Ask for more GPU memory where the limit was set: the resources of a pod (NVIDIA_GPU_MEMORY_LIMIT), a job or a "
    "systemd unit; root reads and sets it with nvidia-smi memory-limits."
)
_FAILED = (Reason.FAILED, Reason.NO_PERMISSION, Reason.TIMED_OUT)
_UNREAD = (Reason.NOT_PRESENT, Reason.NOT_STATED)


@check_gpus("gpu.memory-limit", Guard.PERF, sections=("gpus", "process"))
def _memory_limit(machine: Machine, _scope: Scope, gpu: Gpu) -> Verdicts:
    process, nvml = machine.process or Process(), gpu.nvml
    limit = memory_limit(machine, gpu)
    for entry in process.device_memory or ():
        if entry.bus_id == gpu.bus_id:
            yield fact(f"dmem.max of {entry.cgroup}", _size(entry.max_bytes))
            yield fact(f"dmem.current of {entry.cgroup}", _size(entry.current_bytes))
    yield fact("dmem.capacity", _size((process.device_memory_capacity or {}).get(gpu.bus_id)))
    yield fact("nvmlDeviceGetMemoryLimits_v1", _size(nvml.memory_limit_bytes if nvml else None))
    if limit is not None:
        own = gpu_memory_bytes(machine, gpu)
        of_all = "" if own is None else f" of {format_size(own)}"
        # In a container its own cgroup is the visible root. The real root has no limits.
        names = {None: "by its cgroup or MPS (NVML)", "/": "by the cgroup of this process"}
        by = names.get(limit.cgroup, f"by cgroup {limit.cgroup}")
        yield noted(
            f"GPU memory is limited to {format_size(limit.max_bytes)}{of_all} {by}",
            remedy=_ASK,
            cause="CUDA ends with CUDA_ERROR_OUT_OF_MEMORY above it, and NVML and CUDA may report it as the total",
        )
        return
    by_nvml = nvml.reason_of("memory_limit_bytes") if nvml and nvml.memory_limit_bytes is None else None
    if process.device_memory is None and process.reason_of("device_memory") in _UNREAD:
        skip("the limits of this process' cgroups are not stated")
    if process.device_memory is None or by_nvml in _FAILED:
        yield unknown("whether a cgroup limits the GPU's memory was not read")
        return
    if in_container(machine) and by_nvml is Reason.DRIVER_TOO_OLD:
        skip("the driver, or nvidia-ml-py, cannot be asked for limits that are set above this container")
    if in_container(machine) and (nvml is None or nvml.memory_limit_bytes is None):
        yield unknown("the cgroups above this container are invisible, and NVML does not state their limits")
        return
    yield passed("no cgroup limits the memory of a GPU")


def _size(value: int | None) -> str | None:
    if value is None:
        return None
    return "max" if value < 0 else format_size(value)
