"""CUDA's facts about the GPUs and their pairs, read in a child process without creating a context.

The child ignores CUDA_VISIBLE_DEVICES, so it reads every GPU that its device cgroup permits.
"""

from __future__ import annotations

import itertools
import os
from pathlib import Path, PurePosixPath
from typing import Any

from egmctl.driver import cuda
from egmctl.driver.reading import Reasons, Unreadable, normal_bus_id, uuid_text
from egmctl.errors import DriverCallError, DriverLibraryMissing, DriverTooOld
from egmctl.facts.libraries import is_compat, mapped, version_of
from egmctl.model.codec import to_json
from egmctl.model.record import Reason

ATTRIBUTES = (
    # properties of the GPU
    *("COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR", "MULTIPROCESSOR_COUNT", "L2_CACHE_SIZE"),
    *("ASYNC_ENGINE_COUNT", "INTEGRATED", "ECC_ENABLED", "COMPUTE_MODE", "MPS_ENABLED"),
    # NUMA and EGM
    *("HOST_NUMA_ID", "NUMA_CONFIG", "NUMA_ID", "HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"),
    *("HOST_NUMA_MEMORY_POOLS_SUPPORTED", "HOST_NUMA_MULTINODE_IPC_SUPPORTED", "LOCALITY_DOMAIN_COUNT"),
    # virtual memory management and pools
    *("UNIFIED_ADDRESSING", "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED", "HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED"),
    *("GENERIC_COMPRESSION_SUPPORTED", "MULTICAST_SUPPORTED", "MEMORY_POOLS_SUPPORTED"),
    *("HOST_MEMORY_POOLS_SUPPORTED", "MEMPOOL_SUPPORTED_HANDLE_TYPES"),
    # handles and IPC
    *("HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED", "HANDLE_TYPE_FABRIC_SUPPORTED", "IPC_EVENT_SUPPORTED"),
    # RDMA
    *("GPU_DIRECT_RDMA_SUPPORTED", "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED"),
    *("GPU_DIRECT_RDMA_WITH_LOCALIZED_MEMORY_SUPPORTED", "GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS"),
    *("GPU_DIRECT_RDMA_WRITES_ORDERING", "DMA_BUF_SUPPORTED", "DMA_BUF_MMAP_SUPPORTED", "HOST_ALLOC_DMA_BUF_SUPPORTED"),
    # host memory: pageable, managed, registered
    *("PAGEABLE_MEMORY_ACCESS", "PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES", "DIRECT_MANAGED_MEM_ACCESS_FROM_HOST"),
    *("MANAGED_MEMORY", "CONCURRENT_MANAGED_ACCESS", "CAN_MAP_HOST_MEMORY", "HOST_REGISTER_SUPPORTED"),
    *("READ_ONLY_HOST_REGISTER_SUPPORTED", "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM"),
    # atomics and stream memory operations
    *("HOST_NATIVE_ATOMIC_SUPPORTED", "ONLY_PARTIAL_HOST_NATIVE_ATOMIC_SUPPORTED", "ATOMIC_REDUCTION_SUPPORTED"),
    *("CAN_USE_64_BIT_STREAM_MEM_OPS", "CAN_USE_STREAM_WAIT_VALUE_NOR", "CAN_FLUSH_REMOTE_WRITES"),
)
"""The names of the CUdevice_attributes to read, without ``CU_DEVICE_ATTRIBUTE_``."""

P2P_ATTRIBUTES = (
    *("PERFORMANCE_RANK", "ACCESS_SUPPORTED", "NATIVE_ATOMIC_SUPPORTED"),
    *("CUDA_ARRAY_ACCESS_SUPPORTED", "ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED"),
)
"""The names of the CUdevice_P2PAttributes to read, without ``CU_DEVICE_P2P_ATTRIBUTE_``."""

ATOMIC_OPERATIONS = (
    *("INTEGER_ADD", "INTEGER_MIN", "INTEGER_MAX", "INTEGER_INCREMENT", "INTEGER_DECREMENT"),
    *("AND", "OR", "XOR", "EXCHANGE", "CAS", "FLOAT_ADD", "FLOAT_MIN", "FLOAT_MAX"),
)
"""The names of the CUatomicOperations of CUDA 13.0, without ``CU_ATOMIC_OPERATION_``. No newer ones, because the whole
query fails if the driver does not know one."""

ATOMIC_CAPABILITIES = ("signed", "unsigned", "reduction", "scalar-32", "scalar-64", "scalar-128", "vector-32x4")
"""The names of the bits of CUatomicOperationCapability (cuda.h, CUDA 13.0), lowest first. Others go by number."""

_MOST_GPUS = 256
"""The largest plausible number of GPUs, as in :mod:`egmctl.facts.nvml`."""
_INVALID_VALUE = 1
_REASONS = {100: Reason.NOT_PRESENT, 800: Reason.NO_PERMISSION, 801: Reason.NOT_SUPPORTED}
"""The reason for each CUresult; every other error is ``failed``."""


def read(_parent: object, arguments: dict[str, Any]) -> Any:
    """Return ``egmctl.facts.gpus.CudaFacts`` as JSON data.

    Parameters
    ----------
    arguments
        ``pairs``: whether to read the pairs (default true).
    """
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    facts: dict[str, Any] = {}
    try:
        facts["driver_version"] = cuda.call("cuDriverGetVersion")
        cuda.initialise()
        devices = dict(_device(ordinal) for ordinal in range(_count()))
    except DriverCallError as error:
        failed = _unreadable(error)
        libcuda = _libcuda()
        facts |= libcuda | {
            "absent": failed.unread,
            "error": failed.name,
            "failure": failed.library_failure(error.call),
        }
        unread = libcuda["unread"] | ({} if "driver_version" in facts else {"driver_version": failed.unread})
        return to_json({**facts, "unread": unread})
    facts |= _libcuda()
    facts["gpus"] = {bus_id: _gpu(ordinal, device) for ordinal, (bus_id, device) in enumerate(devices.items())}
    if arguments.get("pairs", True):
        facts["pairs"] = [_pair(*pair) for pair in itertools.permutations(devices.items(), 2)]
    return to_json(facts)


_MAPS = "/proc/self/maps"


def _libcuda() -> dict[str, Any]:
    """Return which libcuda this process has loaded: its version, and whether it is of CUDA's compat package.

    That of the package comes first where its folder is in LD_LIBRARY_PATH or the linker's configuration.
    """
    return Reasons().record(
        dict, libcuda_version=lambda: version_of(_loaded()), libcuda_compat=lambda: is_compat(_loaded())
    )


def _loaded() -> PurePosixPath:
    """Return the file of the libcuda in this process."""
    try:
        files = mapped(Path(_MAPS).read_bytes())
    except OSError as error:
        raise Unreadable.from_os_error(error, _MAPS) from None
    if "cuda" not in files:
        raise Unreadable(Reason.NOT_PRESENT, f"{_MAPS}: no libcuda")
    return files["cuda"]


def _count() -> int:
    count: int = cuda.call("cuDeviceGetCount")
    if not 0 <= count <= _MOST_GPUS:
        raise DriverCallError("cuDeviceGetCount", None, f"{count} GPUs, a node has at most {_MOST_GPUS}")
    return count


def _device(ordinal: int) -> tuple[str, Any]:
    device = cuda.call("cuDeviceGet", ordinal)
    call = "cuDeviceGetPCIBusId"
    try:
        return normal_bus_id(_text(cuda.call(call, 32, device))), device
    except ValueError as error:
        raise DriverCallError(call, None, str(error)) from None


def _gpu(ordinal: int, device: Any) -> dict[str, Any]:
    reasons = Reasons()
    gpu: dict[str, Any] = reasons.record(
        dict,
        ordinal=ordinal,
        uuid=lambda: f"GPU-{uuid_text(_ask('cuDeviceGetUuid', device).bytes)}",
        name=lambda: _text(_ask("cuDeviceGetName", 256, device)),
        memory_total_bytes=lambda: _ask("cuDeviceTotalMem", device),
    )
    gpu["attributes"] = _attributes(reasons, "attributes", ATTRIBUTES, _OF_GPU, device)
    claim = (gpu["attributes"], "HOST_NATIVE_ATOMIC_SUPPORTED")
    gpu["host_atomics"] = reasons.read(
        "host_atomics", lambda: _atomics("cuDeviceGetHostAtomicCapabilities", claim, device)
    )
    return gpu


def _pair(source: tuple[str, Any], target: tuple[str, Any]) -> dict[str, Any]:
    reasons = Reasons()
    ends = source[1], target[1]
    pair: dict[str, Any] = reasons.record(
        dict, source=source[0], target=target[0], can_access_peer=lambda: bool(_ask("cuDeviceCanAccessPeer", *ends))
    )
    pair["cuda_attributes"] = _attributes(reasons, "cuda_attributes", P2P_ATTRIBUTES, _OF_PAIR, *ends)
    claim = (pair["cuda_attributes"], "NATIVE_ATOMIC_SUPPORTED")
    pair["atomics"] = reasons.read("atomics", lambda: _atomics("cuDeviceGetP2PAtomicCapabilities", claim, *ends))
    return pair


_OF_GPU = ("CUdevice_attribute", "CU_DEVICE_ATTRIBUTE_", "cuDeviceGetAttribute")
_OF_PAIR = ("CUdevice_P2PAttribute", "CU_DEVICE_P2P_ATTRIBUTE_", "cuDeviceGetP2PAttribute")
"""The enum of a kind of attributes, the prefix of its names, and the function that reads them."""


def _attributes(
    reasons: Reasons, field: str, names: tuple[str, ...], kind: tuple[str, str, str], *devices: Any
) -> dict[str, int | None]:
    enum, prefix, function = kind

    def get(name: str) -> int:
        attribute = getattr(getattr(cuda.bindings(), enum), prefix + name, None)
        if attribute is None:
            raise _not_in_bindings(name)
        try:
            value: int = _ask(function, attribute, *devices)
            return value
        except Unreadable as error:
            if error.number == _INVALID_VALUE:
                # The driver returns this for an attribute that is newer than itself.
                raise Unreadable(Reason.DRIVER_TOO_OLD, str(error)) from None
            raise

    return reasons.mapping(field, names, get)


def _atomics(function: str, claim: tuple[dict[str, int | None], str], *devices: Any) -> dict[str, list[str]]:
    """Return a link's native capabilities for each atomic operation, from a function of CUDA 13.0.

    Parameters
    ----------
    claim
        The attributes, and the name of the one that reports native atomics. If it is set, 0 for every operation is
        taken as no answer: driver 580 returns that between GPUs with native atomics (H100 and H200 over NVLink).

    Raises
    ------
    Unreadable
        The driver does not report it.
    """
    enum = getattr(cuda.bindings(), "CUatomicOperation", None)
    if enum is None:
        raise _not_in_bindings(function)
    operations = [getattr(enum, f"CU_ATOMIC_OPERATION_{operation}") for operation in ATOMIC_OPERATIONS]
    masks = [int(mask) for mask in _ask(function, operations, len(operations), *devices)]
    attributes, name = claim
    if attributes[name] and not any(masks):
        raise Unreadable(Reason.FAILED, f"{function}: 0 for every operation, though {name} is 1")
    return {
        operation.lower().replace("_", "-"): _capabilities(mask)
        for operation, mask in zip(ATOMIC_OPERATIONS, masks, strict=True)
    }


def _capabilities(mask: int) -> list[str]:
    names = dict(enumerate(ATOMIC_CAPABILITIES))
    return [names.get(place, f"bit-{place}") for place in range(mask.bit_length()) if mask >> place & 1]


def _ask(function: str, *arguments: Any) -> Any:
    try:
        return cuda.call(function, *arguments)
    except DriverCallError as error:
        raise _unreadable(error) from None
    except Exception as error:
        # What the bindings raise for one call costs its value only.
        raise Unreadable(Reason.FAILED, f"{function}: cuda-bindings raised {type(error).__name__}") from error


def _not_in_bindings(name: str) -> Unreadable:
    return Unreadable(Reason.DRIVER_TOO_OLD, f"{name} is not in cuda-bindings {cuda.bindings_version()}")


def _unreadable(error: DriverCallError) -> Unreadable:
    if error.number is not None:
        reason = _REASONS.get(error.number, Reason.FAILED)
        return Unreadable(reason, f"{error.call}: {error.number} ({error.name})", error.name, error.number)
    # The library or the function is missing, or the answer is implausible.
    reasons = {DriverLibraryMissing: Reason.MISSING_LIBRARY, DriverTooOld: Reason.DRIVER_TOO_OLD}
    return Unreadable(reasons.get(type(error), Reason.FAILED), f"{error.call}: {error.name}")


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode(errors="replace")
