"""A process: its cgroups, signs of a container, limits of GPU memory and the environment variables that affect drivers
and libraries."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping

from egmctl.driver.reading import BUS_ID, Reasons, Unreadable, if_present, normal_bus_id, read_or
from egmctl.facts import inside
from egmctl.facts.inside import cgroups, device_cgroup, mount_points
from egmctl.facts.root import Root
from egmctl.model.host import DeviceMemoryLimit, Process
from egmctl.model.record import Reason

ENVIRONMENT_KEYS = (
    # CUDA: visible GPUs and their order, MPS, execution
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"),
    *("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MODULE_LOADING"),
    *("CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "CUDA_DISABLE_PTX_JIT"),
    *("CUDA_DISABLE_IOMMU_ACS_P2P_CAPABILITY_CHECK", "CUDA_FORCE_PTX_JIT"),
    *("CUDA_INJECTION64_PATH", "CUDA_AUTO_BOOST", "GPU_DEVICE_ORDINAL", "LD_LIBRARY_PATH"),
    # devices of a container
    *("NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_IMEX_CHANNELS"),
    *("NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"),
    # resources of a job
    *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS"),
    *("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND"),
    *("OMPI_COMM_WORLD_LOCAL_RANK", "LSB_JOBID", "ENROOT_RESTRICT_DEV"),
    # transports of NCCL and UCX
    *("NCCL_P2P_DISABLE", "NCCL_P2P_LEVEL", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE", "NCCL_IB_HCA", "NCCL_NET_GDR_LEVEL"),
    *(
        "NCCL_NET_GDR_C2C",
        "NCCL_NVLS_ENABLE",
        "NCCL_MNNVL_ENABLE",
        "NCCL_CUMEM_ENABLE",
        "NCCL_CUMEM_HOST_ENABLE",
        "NCCL_DMABUF_ENABLE",
    ),
    *("UCX_TLS", "UCX_NET_DEVICES", "UCX_CUDA_COPY_DMABUF"),
)
"""The environment variables to record. No others are recorded."""

_CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv", "/run/systemd/container", "/.singularity.d")
# libnvidia-container's legacy mode mounts a tmpfs to hide GPUs that were not requested.
_MOUNT_SIGNS = {("/", "overlay"): "overlay root", ("/proc/driver/nvidia", "tmpfs"): "tmpfs /proc/driver/nvidia"}
CONTAINER_VARIABLES = ("KUBERNETES_SERVICE_HOST", "container", "SINGULARITY_CONTAINER", "APPTAINER_CONTAINER")
"""Variables that container managers set. Only their names are recorded, as signs of a container."""


def process(root: Root, pid: int = 0) -> Process:
    """Read the cgroups, the container signs and the environment of a process.

    Parameters
    ----------
    pid
        The process; 0 is this one.
    """
    folder = f"/proc/{pid or 'self'}"
    reasons = Reasons()
    environment = reasons.read("environment", lambda: _environment(root, pid))
    return reasons.record(
        Process,
        pid=pid,
        # Real, effective, saved and file system uid.
        effective_uid=lambda: root.numbers(f"{folder}/status", "Uid", least=4)[1] if pid else os.geteuid(),
        cgroups=lambda: cgroups(root, folder),
        device_memory=lambda: device_memory_limits(root, folder),
        device_memory_capacity=lambda: device_memory_capacity(root, folder),
        container_signs=_container_signs(root, pid, environment or {}),
        cuda_processes=Unreadable(Reason.NOT_ASKED, "NVML lists them with the GPUs"),
        cuda_processes_unread=Unreadable(Reason.NOT_ASKED, "NVML lists them with the GPUs"),
        environment=environment and {key: environment[key] for key in ENVIRONMENT_KEYS if key in environment},
    )


def start_time(root: Root, pid: int) -> int:
    """Return the start time of a process in clock ticks since boot, which differs for a later process with the same id.

    Raises
    ------
    Unreadable
        The process does not exist.
    """
    path = f"/proc/{pid}/stat"
    # proc_pid_stat(5): field 2 is the program's name in brackets, with any characters; field 22 is the start time.
    fields = root.read(path).rpartition(")")[2].split()
    if len(fields) < 20 or not re.fullmatch("[0-9]{1,20}", fields[19], re.ASCII):
        raise Unreadable(Reason.FAILED, f"{path}: no start time")
    return int(fields[19])


def _environment(root: Root, pid: int) -> Mapping[str, str]:
    """Return the values of the known variables that are set. Bytes that are not UTF-8 become U+FFFD."""
    if not pid:
        variables = {os.fsencode(name): os.fsencode(value) for name, value in os.environ.items()}
    else:
        # The environment at the start of the process. Later changes are only in its memory.
        words = (word.partition(b"=") for word in root.read_bytes(f"/proc/{pid}/environ").split(b"\0"))
        variables = {name: value for name, equals, value in words if equals}
    known = {name.encode(): name for name in (*ENVIRONMENT_KEYS, *CONTAINER_VARIABLES)}
    return {known[name]: value.decode(errors="replace") for name, value in variables.items() if name in known}


def _container_signs(root: Root, pid: int, environment: Mapping[str, str]) -> tuple[str, ...]:
    folder = f"/proc/{pid or 'self'}"
    present = _CONTAINER_FILES if not pid else read_or((), lambda: inside.files(root, pid, _CONTAINER_FILES))
    kinds = {mount.path: mount.kind for mount in mount_points(read_or("", lambda: root.read(f"{folder}/mountinfo")))}
    # The initial user namespace maps all ids to themselves.
    all_ids = ["0", "0", "4294967295"]
    id_map = read_or(all_ids, lambda: root.read(f"{folder}/uid_map").split())
    namespaces = ("user namespace",) if id_map != all_ids else ()
    return (
        *(path for path in present if pid or root.exists(path)),
        *(name for name in CONTAINER_VARIABLES if name in environment),
        *(sign for mount, sign in _MOUNT_SIGNS.items() if mount in kinds.items()),
        *namespaces,
    )


# --- memory of GPUs ---------------------------------------------------------------------------------------------------

_REGION = re.compile(
    rf"nvidia/(?P<bus_id>{BUS_ID.pattern})/vidmem (?P<limit>[0-9]{{1,20}}|max)", re.ASCII | re.IGNORECASE
)
"""A region of the controller ``dmem`` of Linux 6.14, by which cgroups limit the memory of GPUs. Its files have a line
for each, ``REGION BYTES`` or ``REGION max``. The driver's region of a GPU's memory is ``nvidia/BUS_ID/vidmem``
(NVIDIA's guide to MPS v3 memory partitioning; not seen on hardware). Whether memory of HOST_NUMA is charged is not
documented."""


def device_memory_cgroup(root: Root, pid: int) -> str:
    """Return the directory of a process' cgroup of version 2, ``pid`` 0 for this process.

    Raises
    ------
    Unreadable
        The process is in no such cgroup, or the hierarchy is not mounted here.
    """
    return root.path(device_cgroup(root, f"/proc/{pid or 'self'}", 2)[-1])


def device_memory_limits(root: Root, folder: str) -> tuple[DeviceMemoryLimit, ...]:
    """Return what the cgroups of a process state about the memory of each GPU, the outermost cgroup first.

    Parameters
    ----------
    folder
        The ``/proc`` folder of the process.

    Raises
    ------
    Unreadable
        The process is in no cgroup of version 2, or the hierarchy is not mounted here, or a file that is there cannot
        be read or says something else of an NVIDIA GPU.
    """
    places = device_cgroup(root, folder, 2)
    return tuple(limit for place in places for limit in _limits_in(root, place, place.removeprefix(places[0]) or "/"))


def device_memory_capacity(root: Root, folder: str) -> dict[str, int]:
    """Return the memory of each GPU by bus id, as the root cgroup states it.

    Raises
    ------
    Unreadable
        As for :func:`device_memory_limits`, or the kernel lacks the controller, or a cgroup namespace hides the root.
    """
    return _regions(root, f"{device_cgroup(root, folder, 2)[0]}/dmem.capacity")


def _limits_in(root: Root, place: str, cgroup: str) -> tuple[DeviceMemoryLimit, ...]:
    names = ("max", "min", "low", "current")
    # The root cgroup has none of the first three, and a cgroup whose parent did not turn the controller on has no file.
    files: dict[str, dict[str, int]] = {
        f"{name}_bytes": if_present({}, functools.partial(_regions, root, f"{place}/dmem.{name}")) for name in names
    }
    bus_ids = dict.fromkeys(bus_id for regions in files.values() for bus_id in regions)
    absent = Unreadable(Reason.NOT_PRESENT, f"{place}: no dmem file names it")
    return tuple(
        Reasons().record(
            DeviceMemoryLimit,
            cgroup=cgroup,
            bus_id=bus_id,
            **{name: regions.get(bus_id, absent) for name, regions in files.items()},
        )
        for bus_id in bus_ids
    )


def _regions(root: Root, path: str) -> dict[str, int]:
    regions = {}
    for line in root.lines(path):
        if not line.startswith("nvidia/"):
            continue
        if (match := _REGION.fullmatch(line)) is None:
            raise Unreadable(Reason.FAILED, f"{path}: an unknown line of a region of nvidia")
        limit = match["limit"]
        regions[normal_bus_id(match["bus_id"])] = -1 if limit == "max" else int(limit)
    return regions
