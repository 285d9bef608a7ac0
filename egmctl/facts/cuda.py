"""What CUDA says of the GPUs and their pairs: the target of a child process. No context is created.

The child sees every GPU that the device cgroup lets it see, whatever CUDA_VISIBLE_DEVICES says: hidden GPUs keep
their facts.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

from egmctl.driver import cuda, ids
from egmctl.driver.ids import (
    DRIVER_TOO_OLD,
    FAILED,
    MISSING_LIBRARY,
    NO_PERMISSION,
    NOT_PRESENT,
    NOT_SUPPORTED,
    Reading,
    Unavailable,
)
from egmctl.errors import DriverCallError, DriverLibraryMissing, DriverTooOld

ATTRIBUTES = (
    # what the GPU is
    "COMPUTE_CAPABILITY_MAJOR",
    "COMPUTE_CAPABILITY_MINOR",
    "MULTIPROCESSOR_COUNT",
    "L2_CACHE_SIZE",
    "ASYNC_ENGINE_COUNT",
    "INTEGRATED",
    "ECC_ENABLED",
    "COMPUTE_MODE",
    "MPS_ENABLED",
    # NUMA and EGM
    "HOST_NUMA_ID",
    "NUMA_CONFIG",
    "NUMA_ID",
    "HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
    "HOST_NUMA_MEMORY_POOLS_SUPPORTED",
    "HOST_NUMA_MULTINODE_IPC_SUPPORTED",
    "LOCALITY_DOMAIN_COUNT",
    # virtual memory management and pools
    "UNIFIED_ADDRESSING",
    "VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
    "HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED",
    "GENERIC_COMPRESSION_SUPPORTED",
    "MULTICAST_SUPPORTED",
    "MEMORY_POOLS_SUPPORTED",
    "HOST_MEMORY_POOLS_SUPPORTED",
    "MEMPOOL_SUPPORTED_HANDLE_TYPES",
    # handles and IPC
    "HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED",
    "HANDLE_TYPE_FABRIC_SUPPORTED",
    "IPC_EVENT_SUPPORTED",
    # RDMA
    "GPU_DIRECT_RDMA_SUPPORTED",
    "GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED",
    "GPU_DIRECT_RDMA_WITH_LOCALIZED_MEMORY_SUPPORTED",
    "GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS",
    "GPU_DIRECT_RDMA_WRITES_ORDERING",
    "DMA_BUF_SUPPORTED",
    "DMA_BUF_MMAP_SUPPORTED",
    "HOST_ALLOC_DMA_BUF_SUPPORTED",
    # host memory: pageable, managed, registered
    "PAGEABLE_MEMORY_ACCESS",
    "PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES",
    "DIRECT_MANAGED_MEM_ACCESS_FROM_HOST",
    "MANAGED_MEMORY",
    "CONCURRENT_MANAGED_ACCESS",
    "CAN_MAP_HOST_MEMORY",
    "HOST_REGISTER_SUPPORTED",
    "READ_ONLY_HOST_REGISTER_SUPPORTED",
    "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM",
    # atomics and stream memory operations
    "HOST_NATIVE_ATOMIC_SUPPORTED",
    "ONLY_PARTIAL_HOST_NATIVE_ATOMIC_SUPPORTED",
    "ATOMIC_REDUCTION_SUPPORTED",
    "CAN_USE_64_BIT_STREAM_MEM_OPS",
    "CAN_USE_STREAM_WAIT_VALUE_NOR",
    "CAN_FLUSH_REMOTE_WRITES",
)
"""CUdevice_attribute names that are read, without ``CU_DEVICE_ATTRIBUTE_``."""

P2P_ATTRIBUTES = (
    "PERFORMANCE_RANK",
    "ACCESS_SUPPORTED",
    "NATIVE_ATOMIC_SUPPORTED",
    "CUDA_ARRAY_ACCESS_SUPPORTED",
    "ONLY_PARTIAL_NATIVE_ATOMIC_SUPPORTED",
)
"""CUdevice_P2PAttribute names that are read, without ``CU_DEVICE_P2P_ATTRIBUTE_``."""

ATOMIC_OPERATIONS = (
    "INTEGER_ADD",
    "INTEGER_MIN",
    "INTEGER_MAX",
    "INTEGER_INCREMENT",
    "INTEGER_DECREMENT",
    "AND",
    "OR",
    "XOR",
    "EXCHANGE",
    "CAS",
    "FLOAT_ADD",
    "FLOAT_MIN",
    "FLOAT_MAX",
)
"""CUatomicOperation names of CUDA 13.0, without ``CU_ATOMIC_OPERATION_``: one that a driver did not know would cost the
answer to all."""

ATOMIC_CAPABILITIES = (
    (1, "signed"),
    (2, "unsigned"),
    (4, "reduction"),
    (8, "scalar-32"),
    (16, "scalar-64"),
    (32, "scalar-128"),
    (64, "vector-32x4"),
)
"""Bits of CUatomicOperationCapability (cuda.h, CUDA 13.0) and their words; a further bit is told by its number."""

_MOST_GPUS = 256
"""As NVML is believed (:mod:`egmctl.facts.nvml`)."""
_INVALID_VALUE = 1
_REASONS = {100: NOT_PRESENT, 800: NO_PERMISSION, 801: NOT_SUPPORTED}
"""CUresults that say why, by number; every other error is ``failed``."""


def read(_parent: object, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return ``egmctl.facts.gpus.CudaFacts`` as JSON.

    Parameters
    ----------
    arguments
        ``pairs``: false leaves the pairs out.
    """
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    facts = Reading(driver_version=None)
    try:
        facts.values["driver_version"] = cuda.call("cuDriverGetVersion")
        cuda.initialise()
        devices = dict(_device(ordinal) for ordinal in range(_count()))
    except DriverCallError as error:
        why = _why(error)
        if facts.values["driver_version"] is None:
            facts.miss("driver_version", why)
        how = {MISSING_LIBRARY: "missing", DRIVER_TOO_OLD: "too-old"}.get(why.reason, "error")
        name = None if error.number is None else error.name
        failure = {"how": how, "call": error.call, "number": error.number, "name": name, "detail": why.detail}
        return {**facts.json(), "absent": why.json(), "error": name, "failure": failure}
    facts.values["gpus"] = {bus_id: _gpu(ordinal, device) for ordinal, (bus_id, device) in enumerate(devices.items())}
    if arguments.get("pairs", True):
        facts.values["pairs"] = [_pair(*pair) for pair in itertools.permutations(devices.items(), 2)]
    return facts.json()


def _count() -> int:
    count: int = cuda.call("cuDeviceGetCount")
    if not 0 <= count <= _MOST_GPUS:
        raise DriverCallError("cuDeviceGetCount", None, f"{count} GPUs, a node has at most {_MOST_GPUS}")
    return count


def _device(ordinal: int) -> tuple[str, Any]:
    device = cuda.call("cuDeviceGet", ordinal)
    call = "cuDeviceGetPCIBusId"
    try:
        return ids.bus_id(_text(cuda.call(call, 32, device))), device
    except ValueError as error:
        raise DriverCallError(call, None, str(error)) from None


def _gpu(ordinal: int, device: Any) -> dict[str, Any]:
    gpu = Reading(ordinal=ordinal)
    _take(gpu, "uuid", lambda: f"GPU-{ids.uuid_text(cuda.call('cuDeviceGetUuid', device).bytes)}")
    _take(gpu, "name", lambda: _text(cuda.call("cuDeviceGetName", 256, device)))
    _take(gpu, "memory_total_bytes", lambda: cuda.call("cuDeviceTotalMem", device))
    enum = cuda.bindings().CUdevice_attribute
    gpu.values["attributes"] = _attributes(
        gpu,
        "attributes",
        {name: getattr(enum, f"CU_DEVICE_ATTRIBUTE_{name}", None) for name in ATTRIBUTES},
        lambda attribute: cuda.call("cuDeviceGetAttribute", attribute, device),
    )
    claim = "HOST_NATIVE_ATOMIC_SUPPORTED"
    claimed = gpu.values["attributes"].get(claim)
    _take_atomics(gpu, "host_atomics", "cuDeviceGetHostAtomicCapabilities", device, claim=claim if claimed else None)
    return gpu.json()


def _pair(source: tuple[str, Any], target: tuple[str, Any]) -> dict[str, Any]:
    pair = Reading(source=source[0], target=target[0])
    _take(pair, "can_access_peer", lambda: bool(cuda.call("cuDeviceCanAccessPeer", source[1], target[1])))
    enum = cuda.bindings().CUdevice_P2PAttribute
    pair.values["cuda_attributes"] = _attributes(
        pair,
        "cuda_attributes",
        {name: getattr(enum, f"CU_DEVICE_P2P_ATTRIBUTE_{name}", None) for name in P2P_ATTRIBUTES},
        lambda attribute: cuda.call("cuDeviceGetP2PAttribute", attribute, source[1], target[1]),
    )
    claim = "NATIVE_ATOMIC_SUPPORTED"
    claimed = pair.values["cuda_attributes"].get(claim)
    ends = source[1], target[1]
    _take_atomics(pair, "atomics", "cuDeviceGetP2PAtomicCapabilities", *ends, claim=claim if claimed else None)
    return pair.json()


def _attributes(
    reading: Reading, field: str, attributes: dict[str, Any], get: Callable[[Any], int]
) -> dict[str, int | None]:
    values: dict[str, int | None] = {}
    for name, attribute in attributes.items():
        values[name] = None
        try:
            if attribute is None:
                raise Unavailable(DRIVER_TOO_OLD, f"{name} is not in cuda-bindings {cuda.bindings_version()}")
            values[name] = get(attribute)
        except DriverCallError as error:
            # The driver answers INVALID_VALUE to the number of an attribute that is newer than itself.
            why = _why(error)
            reason = DRIVER_TOO_OLD if error.number == _INVALID_VALUE else why.reason
            reading.unread[f"{field}.{name}"] = Unavailable(reason, why.detail).json()
        except Unavailable as why:
            reading.unread[f"{field}.{name}"] = why.json()
    return values


def _take_atomics(reading: Reading, field: str, name: str, *devices: Any, claim: str | None) -> None:
    """Take what a link does natively of each atomic operation, by a function of CUDA 13.0.

    Parameters
    ----------
    claim
        The attribute by which the driver says that there are native atomics, if it does: driver 580 answers 0 for every
        operation between GPUs that have them (H100 and H200 over NVLink), so that answer says nothing.
    """
    enum = getattr(cuda.bindings(), "CUatomicOperation", None)
    if enum is None:
        reading.miss(field, Unavailable(DRIVER_TOO_OLD, f"{name} is not in cuda-bindings {cuda.bindings_version()}"))
        return
    operations = [getattr(enum, f"CU_ATOMIC_OPERATION_{operation}") for operation in ATOMIC_OPERATIONS]

    def get() -> dict[str, list[str]]:
        masks = cuda.call(name, operations, len(operations), *devices)
        return {
            operation.lower().replace("_", "-"): _capabilities(int(mask))
            for operation, mask in zip(ATOMIC_OPERATIONS, masks, strict=True)
        }

    _take(reading, field, get)
    if claim is not None and reading.values[field] is not None and not any(reading.values[field].values()):
        reading.miss(field, Unavailable(FAILED, f"{name}: 0 for every operation, though {claim} is 1"))


def _capabilities(mask: int) -> list[str]:
    known = [word for bit, word in ATOMIC_CAPABILITIES if mask & bit]
    rest = mask & ~sum(bit for bit, _ in ATOMIC_CAPABILITIES)
    return [*known, *(f"bit-{place}" for place in range(rest.bit_length()) if rest >> place & 1)]


def _take(reading: Reading, field: str, get: Callable[[], Any]) -> None:
    try:
        reading.values[field] = get()
    except DriverCallError as error:
        reading.miss(field, _why(error))


def _why(error: DriverCallError) -> Unavailable:
    if isinstance(error, DriverLibraryMissing):
        return Unavailable(MISSING_LIBRARY, f"{error.call}: {error.name}")
    if isinstance(error, DriverTooOld):
        return Unavailable(DRIVER_TOO_OLD, f"{error.call}: {error.name}")
    if error.number is None:
        # An answer that is not believed.
        return Unavailable(FAILED, f"{error.call}: {error.name}")
    return Unavailable(_REASONS.get(error.number, FAILED), f"{error.call}: {error.number} ({error.name})")


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode(errors="replace")
