"""Known causes of CUDA driver errors in the environment.

The error number alone does not identify the cause: 1 is "invalid value" in general, but from ``cuIpcOpenMemHandle`` it
means that the importer cannot use the GPU that owns the memory. So a signature is a call and a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from egmctl.errors import DriverCallError


def cause_of(call: str | None, number: int | None) -> Cause | None:
    """Return the known cause of a call's CUresult, or ``None``."""
    if number is None:
        return None
    return SIGNATURES.get((call, number)) or SIGNATURES.get((None, number))


def cause_of_crash(call: str | None) -> Cause | None:
    """Return the known cause if a process dies in this call, or ``None``."""
    return OWNER_DENIED if call == _IMPORT_POOL else None


def known_cause(error: DriverCallError) -> str | None:
    """Return the known cause of an error in the environment and its remedy, as text; ``None`` if unknown."""
    cause = cause_of(error.call, error.number)
    return None if cause is None else str(cause)


@dataclass(frozen=True, slots=True)
class Cause:
    """A condition of the environment that makes a call fail."""

    cause: str
    """The condition, as a clause."""
    remedy: str
    """The fix, as one sentence."""

    def __str__(self) -> str:
        return f"{self.cause}: {self.remedy[0].lower()}{self.remedy[1:].rstrip('.')}"


OWNER_DENIED = Cause(
    "the importing process cannot use the GPU that owns the memory: its device cgroup or container denies it",
    "Give every process all GPUs of the node and choose with CUDA_VISIBLE_DEVICES, under which such imports work.",
)
_NO_CHANNEL = Cause(
    "there is no IMEX channel that this process may read and write",
    "Make one (nvidia-modprobe -c 0) or give the container one; the node needs multi-node NVLink or NVSwitch.",
)
_IMPORT, _IMPORT_POOL = "cuMemImportFromShareableHandle", "cuMemPoolImportFromShareableHandle"

SIGNATURES: Mapping[tuple[str | None, int], Cause] = {
    # Measured on H200, driver 580 (docs/hardware-notes.md); the first is also in open-mpi/ompi issue 11949.
    ("cuIpcOpenMemHandle", 1): OWNER_DENIED,
    (_IMPORT, 101): OWNER_DENIED,  # a file descriptor, for host memory too
    (_IMPORT, 801): OWNER_DENIED,  # a fabric handle, for host memory too
    (_IMPORT_POOL, 101): OWNER_DENIED,  # expected as for _IMPORT; driver 580 ends the process instead
    ("cuMemPoolImportPointer", 101): OWNER_DENIED,  # a pool of host memory
    # Measured; cuda.h documents it too.
    (_IMPORT, 800): _NO_CHANNEL,
    ("cuMemCreate", 800): _NO_CHANNEL,
    ("cuMemPoolCreate", 800): _NO_CHANNEL,
    ("cuInit", 100): Cause(
        "no GPU can be opened from this process; a device cgroup that denies /dev/nvidiactl looks like this",
        "Look at what doctor says of device nodes.",
    ),
    ("cuInit", 304): Cause(
        "the process is in a PID namespace whose /proc is another one's",
        "Mount a /proc of its own (unshare --mount-proc).",
    ),
    # vllm-project/vllm issue 52607
    ("cuIpcOpenMemHandle", 201): Cause(
        "the two processes are in different PID namespaces, which legacy handles do not cross",
        "Share the PID namespace (docker --pid, hostPID), or use file descriptors.",
    ),
    # kubernetes-sigs/dra-driver-nvidia-gpu issues 294 and 1417
    (_IMPORT, 400): Cause(
        "the IMEX domain is broken, or the two processes' device cgroups have no GPU in common",
        "Look at nvidia-imex-ctl -N, and give both processes all GPUs of the node.",
    ),
    # siderolabs/talos issue 14087
    ("cuInit", 3): Cause(
        "on Grace, the kernel is built without CONFIG_ARM_SMMU_V3_SVA",
        "Boot a kernel with CONFIG_ARM_SMMU_V3_SVA=y.",
    ),
    # cuda.h
    (None, 2): Cause("there is not enough free memory", "End what else uses it; in a bench, a smaller --size."),
    (None, 46): Cause(
        "the GPU is in exclusive use by another process, or its compute mode forbids it",
        "End what uses it, or nvidia-smi -c DEFAULT as root.",
    ),
    (None, 800): Cause("the driver does not permit it to this process", "Look at what doctor says of this node."),
    (None, 802): Cause(
        "the fabric or confidential computing is not ready yet", "Wait, then look at nvidia-fabricmanager's state."
    ),
    (None, 803): Cause(
        "the driver's libraries are not of the kernel module's version", "Reload the kernel module, or reboot."
    ),
    (None, 804): Cause(
        "the CUDA forward compatibility libraries do not support these GPUs",
        "Take their folder out of LD_LIBRARY_PATH.",
    ),
}
"""Causes by call and CUresult; a call of ``None`` matches any call."""
