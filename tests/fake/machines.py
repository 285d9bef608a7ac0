"""Small machines for the fake driver's own tests."""

from __future__ import annotations

from dataclasses import replace

from egmctl.model.gpu import Fabric, Gpu, GpuCuda, GpuNvml, GpuProcess, NvLink, NvLinkCounters, Platform
from egmctl.model.host import DeviceNode, Driver, PcieLink
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from tests.fake.node import load


def nvl4() -> Machine:
    """Return two Grace CPUs (NUMA nodes 0 and 1) with two GPUs each, all joined by NVLink; modelled."""
    return load("gb200-tray")


def everything_stated() -> Machine:
    """Return the same machine with a value, of no meaning, wherever NVML would have one on real hardware."""
    machine = nvl4()
    gpus = [replace(gpu, nvml=_stated(gpu), cuda=_with_refusals(gpu)) for gpu in machine.gpus or ()]
    pairs = tuple(replace(pair, atomics=_ATOMICS) for pair in machine.pairs or ())
    driver = replace(
        _driver(machine), confidential_compute="protected-pcie", confidential_ready=True, nvlink_bandwidth_mode="half"
    )
    return replace(machine, gpus=tuple(gpus), pairs=pairs, driver=driver)


_WHOLE = ("signed", "unsigned", "reduction", "scalar-32", "scalar-64")
_ATOMICS = {
    **dict.fromkeys(("integer-add", "integer-min", "integer-max", "and", "or", "xor"), _WHOLE),
    **dict.fromkeys(("integer-increment", "integer-decrement"), ("unsigned", "scalar-32")),
    **dict.fromkeys(("exchange", "cas"), ("unsigned", "scalar-32", "scalar-64", "scalar-128")),
    "float-add": ("reduction", "scalar-32", "vector-32x4"),
    **dict.fromkeys(("float-min", "float-max"), ()),
}
"""Of no meaning: every capability that CUDA 13.0 has a bit for, somewhere."""


def _with_refusals(gpu: Gpu) -> GpuCuda:
    """Return CUDA's facts with an attribute for each of the reasons that a driver can give."""
    assert gpu.cuda is not None
    reasons = {
        "MULTICAST_SUPPORTED": Reason.NOT_SUPPORTED,
        "DMA_BUF_SUPPORTED": Reason.NO_PERMISSION,
        "ATOMIC_REDUCTION_SUPPORTED": Reason.DRIVER_TOO_OLD,
    }
    unread = {f"attributes.{name}": Unread(reason=reason) for name, reason in reasons.items()}
    return replace(
        gpu.cuda,
        attributes={**gpu.cuda.attributes, **dict.fromkeys(reasons)},
        host_atomics=_ATOMICS,
        unread={**gpu.cuda.unread, **unread},
    )


def _stated(gpu: Gpu) -> GpuNvml:
    assert gpu.nvml is not None
    return replace(
        gpu.nvml,
        serial="1650000000001",
        board_part_number="900-2G548-0001-000",
        vbios="97.00.B9.00.76",
        inforom_image="G548.0201.00.06",
        memory_used_bytes=626_000_000,
        bar1_total_bytes=2**38,
        link=PcieLink(speed_gt_s=32.0, width=16, max_speed_gt_s=64.0, max_width=8),
        fabric=_fabric(),
        platform=Platform(
            chassis_serial="1820000000002", slot=7, tray=3, host_id=1, peer_type="switch", module_id=gpu.index
        ),
        c2c_links=tuple(
            replace(link, errors=1, replays=2, replays_back_to_back=3, power_state=0, unread={})
            for link in gpu.nvml.c2c_links or ()
        ),
        nvlinks=tuple(_nvlink(link) for link in gpu.nvml.nvlinks or ()),
        mig_mode=False,
        mig_mode_pending=True,
        virtualization="passthrough",
        persistence_mode=True,
        compute_mode="exclusive-process",
        ecc_mode=True,
        ecc_uncorrected_volatile=2**40,
        remapped_rows_correctable=1,
        remapped_rows_uncorrectable=2,
        remapped_rows_pending=True,
        remapped_rows_failure=False,
        performance_state=2,
        sm_clock_mhz=345,
        memory_clock_mhz=2619,
        memory_clock_max_mhz=3201,
        throttle_reasons=("idle", "hw-thermal-slowdown"),
        power_limit_mw=600_000,
        power_limit_default_mw=700_000,
        temperature_c=31,
        recovery_action="drain-p2p",
        nvlink_bandwidth_mode="12-links",
        nvlink_bandwidth_best=False,
        processes=(
            GpuProcess(pid=4711, name="python3", used_memory_bytes=528_482_304),
            GpuProcess(pid=4712, unread={"name": Unread(reason=Reason.FAILED)}, used_memory_bytes=1),
        ),
        unread={},
    )


def _fabric() -> Fabric:
    return Fabric(
        state="completed",
        status=0,
        cluster_uuid="3ac9e5a1-0b64-4f57-8e5c-5a1de7ac1b9d",
        clique_id=32766,
        cliques={"unicast-pointer": (32766,), "multicast-pointer": (7, 9)},
        health_mask=0x56A,
        health={
            "degraded_bandwidth": "false",
            "route_recovery": "false",
            "route_unhealthy": "false",
            "access_timeout_recovery": "true",
            "incorrect_configuration": "insufficient-nvlinks",
            "partition_assigned": "not-supported",
            "fabric_manager": "not-supported",
        },
        health_summary="limited-capacity",
    )


def _nvlink(link: NvLink) -> NvLink:
    masked = Unread(reason=Reason.NOT_SUPPORTED, detail="masked by the virtual machine")
    return replace(
        link,
        active=link.link != 5,
        remote_bus_id=None if link.link % 2 else "0010:c1:00.0",
        remote_link=link.link + 1,
        crc_errors=1,
        replay_errors=2,
        recovery_errors=3,
        link_state="sleep" if link.link == 4 else "active",
        counters=_counters(),
        unread={"remote_bus_id": masked} if link.link % 2 else {},
    )


def _counters() -> NvLinkCounters:
    return NvLinkCounters(
        malformed_packets=1,
        buffer_overruns=2,
        receive_errors=3,
        remote_errors=4,
        general_receive_errors=5,
        integrity_errors=6,
        discarded_packets=7,
        recoveries=9,
        successful_recoveries=8,
        failed_recoveries=1,
        effective_errors=10,
        effective_ber=3e-15,
        symbol_errors=11,
        symbol_ber=0.0,
        fec_history=(10**12, 5 * 10**6, 300, *[0] * 13),
    )


def with_imex_channel(machine: Machine) -> Machine:
    """Return the machine with one IMEX channel that this process may use."""
    channel = DeviceNode(path="/dev/nvidia-caps-imex-channels/channel0", exists=True, access="ok")
    return replace(machine, driver=replace(_driver(machine), imex_channels=(channel,)))


def with_cuda_version(machine: Machine, version: int) -> Machine:
    """Return the machine with an older or newer driver."""
    return replace(machine, driver=replace(_driver(machine), cuda_driver_version=version))


def with_access(machine: Machine, path: str, access: str) -> Machine:
    """Return the machine as it is when access(2) says ``access`` of one device node."""
    node = DeviceNode(path=path, exists=access != "ENOENT", access=access)
    if path == "/dev/nvidiactl":
        return replace(machine, driver=replace(_driver(machine), nodes=(node,)))
    gpus = [replace(gpu, node=node) if _is_at(gpu, path) else gpu for gpu in machine.gpus or ()]
    return replace(machine, gpus=tuple(gpus))


def without_peer_access(machine: Machine, source: str, target: str) -> Machine:
    """Return the machine where the GPU at bus id ``source`` has no peer access to the one at ``target``."""
    pairs = tuple(
        replace(pair, can_access_peer=False) if (pair.source, pair.target) == (source, target) else pair
        for pair in machine.pairs or ()
    )
    return replace(machine, pairs=pairs)


def _is_at(gpu: Gpu, path: str) -> bool:
    return gpu.node is not None and gpu.node.path == path


def _driver(machine: Machine) -> Driver:
    assert machine.driver is not None
    return machine.driver
