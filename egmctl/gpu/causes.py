"""Which errors of the CUDA driver have a known cause in the environment: the one table of error signatures.

An error number alone says little: 1 is "invalid value" everywhere, and from ``cuIpcOpenMemHandle`` it means that the
importer may not use the GPU that owns the memory. So a signature is a call and a number.
"""

from __future__ import annotations

from dataclasses import dataclass

from egmctl.errors import DriverCallError


@dataclass(frozen=True, slots=True)
class Cause:
    """What in the environment makes a call fail."""

    cause: str
    """A clause."""
    remedy: str
    """What to do, one sentence."""

    def __str__(self) -> str:
        return f"{self.cause}: {self.remedy[0].lower()}{self.remedy[1:].rstrip('.')}"


OWNER_DENIED = Cause(
    "the importing process cannot use the GPU that owns the memory: its device cgroup or container denies it",
    "Give every process all GPUs of the node and choose with CUDA_VISIBLE_DEVICES, under which such imports work.",
)
"""Measured on H200 under a device cgroup: 1 from a legacy handle, 101 from a file descriptor, 801 from a fabric handle,
also for host memory. With CUDA_VISIBLE_DEVICES hiding the owner all of them work."""
_NO_CHANNEL = Cause(
    "there is no IMEX channel that this process may read and write",
    "Make one (nvidia-modprobe -c 0) or give the container one; the node needs multi-node NVLink or NVSwitch.",
)
_PID_NAMESPACE = Cause(
    "the process is in a PID namespace whose /proc is another one's", "Mount a /proc of its own (unshare --mount-proc)."
)
_IMPORT = "cuMemImportFromShareableHandle"

_BY_CALL: dict[tuple[str, int], Cause] = {
    ("cuIpcOpenMemHandle", 1): OWNER_DENIED,
    ("cuIpcOpenMemHandle", 201): Cause(
        "the two processes are in different PID namespaces, which legacy handles do not cross",
        "Share the PID namespace (docker --pid, hostPID), or use file descriptors.",
    ),
    (_IMPORT, 101): OWNER_DENIED,
    (_IMPORT, 801): OWNER_DENIED,
    ("cuMemPoolImportFromShareableHandle", 101): OWNER_DENIED,
    (_IMPORT, 400): Cause(
        "the IMEX domain is broken, or the two processes' device cgroups have no GPU in common",
        "Look at nvidia-imex-ctl -N, and give both processes all GPUs of the node.",
    ),
    (_IMPORT, 800): _NO_CHANNEL,
    ("cuMemCreate", 800): _NO_CHANNEL,
    ("cuMemPoolCreate", 800): _NO_CHANNEL,
    ("cuInit", 3): Cause(
        "on Grace, the kernel is built without CONFIG_ARM_SMMU_V3_SVA",
        "Boot a kernel with CONFIG_ARM_SMMU_V3_SVA=y.",
    ),
    ("cuInit", 100): Cause(
        "no GPU can be opened from this process; a device cgroup that denies /dev/nvidiactl looks like this",
        "Look at what doctor says of device nodes.",
    ),
    ("cuInit", 304): _PID_NAMESPACE,
}
"""Measured on H200 (docs/hardware-notes.md); cuda.h on 800; Open MPI issue 11949, vLLM issue 52607 (1 and 201);
kubernetes-sigs/dra-driver-nvidia-gpu issues 294 and 1417 (400); Talos issue 14087 (3)."""

_ANYWHERE: dict[int, Cause] = {
    2: Cause("there is not enough free memory", "End what else uses it; in a bench, a smaller --size."),
    46: Cause(
        "the GPU is in exclusive use by another process, or its compute mode forbids it",
        "End what uses it, or nvidia-smi -c DEFAULT as root.",
    ),
    800: Cause("the driver does not permit it to this process", "Look at what doctor says of this node."),
    802: Cause(
        "the fabric or confidential computing is not ready yet", "Wait, then look at nvidia-fabricmanager's state."
    ),
    803: Cause("the driver's libraries are not of the kernel module's version", "Reload the kernel module, or reboot."),
    804: Cause(
        "the CUDA forward compatibility libraries do not support these GPUs",
        "Take their folder out of LD_LIBRARY_PATH.",
    ),
}


def cause_of(call: str | None, number: int | None) -> Cause | None:
    """Return what makes this call return this CUresult; ``None`` if that is not known."""
    if number is None:
        return None
    return _BY_CALL.get((call or "", number)) or _ANYWHERE.get(number)


def known_cause(error: DriverCallError) -> str | None:
    """Return what in the environment causes an error and what to do; ``None`` if that is not known."""
    cause = cause_of(error.call, error.number)
    return None if cause is None else str(cause)
