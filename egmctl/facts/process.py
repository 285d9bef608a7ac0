"""What confines this process: its cgroups, signs of a container, and the environment that steers drivers."""

from __future__ import annotations

import os

from egmctl.facts.root import Reasons, Root, Unreadable
from egmctl.model.machine import Cgroup, Process

ENVIRONMENT_KEYS = (
    # which GPUs CUDA shows, and in which order
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_MPS_PIPE_DIRECTORY",
    "CUDA_MPS_LOG_DIRECTORY",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MODULE_LOADING",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_DISABLE_PTX_JIT",
    "CUDA_FORCE_PTX_JIT",
    "CUDA_INJECTION64_PATH",
    "CUDA_AUTO_BOOST",
    "GPU_DEVICE_ORDINAL",
    "LD_LIBRARY_PATH",
    # what a container was given
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
    # what a job was given
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_LOCALID",
    "SLURM_NTASKS",
    "SLURM_JOB_GPUS",
    "SLURM_STEP_GPUS",
    "SLURM_GPUS_ON_NODE",
    "SLURM_GPUS_PER_NODE",
    "SLURM_GPUS_PER_TASK",
    "SLURM_GPU_BIND",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    # which transports libraries may use
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_SHM_DISABLE",
    "NCCL_IB_DISABLE",
    "NCCL_IB_HCA",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_NVLS_ENABLE",
    "NCCL_MNNVL_ENABLE",
    "NCCL_CUMEM_ENABLE",
    "NCCL_CUMEM_HOST_ENABLE",
    "NCCL_DMABUF_ENABLE",
    "UCX_TLS",
    "UCX_NET_DEVICES",
    "UCX_CUDA_COPY_DMABUF",
)
"""The environment variables that are recorded; no other is looked at."""

_CONTAINER_FILES = ("/.dockerenv", "/run/.containerenv", "/run/systemd/container", "/.singularity.d")
CONTAINER_VARIABLES = ("KUBERNETES_SERVICE_HOST", "container", "SINGULARITY_CONTAINER", "APPTAINER_CONTAINER")
"""Variables that container managers set; only whether they are set is recorded."""


def process(root: Root) -> Process:
    """Read all of it."""
    why = Reasons()
    return Process(
        effective_uid=os.geteuid(),
        cgroups=why.read("cgroups", lambda: _cgroups(root.read("/proc/self/cgroup"))),
        container_signs=_container_signs(root),
        environment={key: _text(os.environ[key]) for key in ENVIRONMENT_KEYS if key in os.environ},
        unread=why.unread,
    )


def _text(value: str) -> str:
    """Return an environment value as Unicode: bytes that are not UTF-8 become U+FFFD."""
    return os.fsencode(value).decode(errors="replace")


def _cgroups(text: str) -> tuple[Cgroup, ...]:
    # "5:devices:/path" is a hierarchy of version 1 with its controllers; "0::/path" is version 2.
    found = []
    for line in text.splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon:
            names = tuple(controllers.split(",")) if controllers else ()
            found.append(Cgroup(version=2 if hierarchy == "0" else 1, controllers=names, path=path))
    return tuple(found)


def _container_signs(root: Root) -> tuple[str, ...]:
    return (
        *(path for path in _CONTAINER_FILES if root.exists(path)),
        *(name for name in CONTAINER_VARIABLES if name in os.environ),
        *_mount_signs(root),
        *(("user namespace",) if _in_user_namespace(root) else ()),
    )


def _mount_signs(root: Root) -> tuple[str, ...]:
    try:
        mounts = [line.split() for line in root.read("/proc/self/mountinfo").splitlines()]
    except Unreadable:
        return ()
    # proc_pid_mountinfo(5): the fifth field is where, the one after "-" the type of file system.
    types = {fields[4]: fields[fields.index("-") + 1] for fields in mounts if "-" in fields[5:-1]}
    return (
        *(("overlay root",) if types.get("/") == "overlay" else ()),
        # libnvidia-container's legacy mode hides the GPUs that were not asked for in this way.
        *(("tmpfs /proc/driver/nvidia",) if types.get("/proc/driver/nvidia") == "tmpfs" else ()),
    )


def _in_user_namespace(root: Root) -> bool:
    try:
        # The first namespace maps all ids to themselves.
        return root.read("/proc/self/uid_map").split() != ["0", "0", "4294967295"]
    except Unreadable:
        return False
