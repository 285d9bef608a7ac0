"""For every check that can find a fault: a machine that has it. And one machine that has none.

The machines are modelled: a shipped one with the fault in it, as the check's own texts describe it.

The test of a check's area states them beside its own: a ``FAULTS`` in ``tests/doctor/checks/test_AREA.py`` is one of
:func:`faults`, and what its ``well(machine)`` changes is so on the healthy machine.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from egmctl.doctor.check import EVERYTHING, Expectation, Scope
from egmctl.doctor.checks.active import KINDS
from egmctl.doctor.probes import plan
from egmctl.facts.kernel_log import event
from egmctl.model.codec import field_types
from egmctl.model.finding import Guard
from egmctl.model.gpu import Fabric, NvLinkCounters
from egmctl.model.host import (
    Bridge,
    DeviceNode,
    FirmwareEgm,
    Imex,
    Mount,
    Nic,
    NicPort,
    NvSwitch,
    PcieLink,
    PciFunction,
    VerbsNode,
)
from egmctl.model.kernel_log import KernelLog
from egmctl.model.machine import Machine
from egmctl.model.probes import Peer, PeerPort, PeerProbe, Peers, Probe, ProbeKind, ProbeOutcome, Registration
from egmctl.model.record import Reason, Unread
from tests.doctor.machines import patched, shipped, with_gpu_denied

OUTSIDE = Fabric(
    state="completed",
    status=0,
    clique_id=0,
    unread={"cluster_uuid": Unread(reason=Reason.NOT_SUPPORTED, detail="all zero: in no multi-node NVLink domain")},
)
"""What NVML reports of a GPU that fell out of its rack's domain."""


@dataclass(frozen=True)
class Fault:
    """A machine, and what is asked of it."""

    machine: Callable[[], Machine]
    scope: Scope = EVERYTHING


def tried(machine: Machine) -> tuple[Probe, ...]:
    """All that ``--active`` tries, and it works."""
    gpus = [gpu.bus_id for gpu in machine.gpus or ()]
    return tuple(_as_on_a_healthy_node(probe) for probe in plan(gpus, (0, 1), tuple(ProbeKind)))


def _as_on_a_healthy_node(probe: Probe) -> Probe:
    if probe.kind is ProbeKind.MANAGED_IPC:
        return dataclasses.replace(probe, outcome=ProbeOutcome.ERROR, call="cuIpcGetMemHandle", error_number=1)
    return dataclasses.replace(probe, outcome=ProbeOutcome.OK)


def logged(line: str) -> Machine:
    """The healthy machine, whose kernel logged a line ten minutes ago."""
    logged_event = event(400.0, line)
    assert logged_event is not None
    assert healthy().kernel_log is not None
    return patched(healthy(), "kernel_log", events=(logged_event,))


@functools.cache
def healthy() -> Machine:
    """A tray of a GB200 NVL72 rack on which everything that checks ask for is stated, and is as it should be."""
    machine = shipped("gb200-nvl72")
    machine = patched(machine, "origin", name="nvl72-healthy", description="What is not stated is made up.")
    machine = patched(machine, "", probes=tried(machine))
    machine = patched(machine, "", kernel_log=KernelLog(source="/dev/kmsg", now_s=1000.0, first_s=0.0))
    machine = patched(
        machine,
        "driver",
        modules=("nvidia", "nvidia_uvm", "nvidia_peermem"),
        module_flavour="open",
        module_parameters={
            "CoherentGPUMemoryMode": '""',
            "RegistryDwords": '""',
            "NvLinkDisable": "0",
            "ImexChannelCount": "2048",
        },
        majors={"nvidia": 195, "nvidia-uvm": 511, "nvidia-caps-imex-channels": 242},
        confidential_compute="off",
        nvlink_bandwidth_mode="full",
        nodes=tuple(
            DeviceNode(path=f"/dev/{name}", exists=True, access="ok", major=major, minor=minor)
            for name, major, minor in (
                ("nvidiactl", 195, 255),
                ("nvidia-uvm", 511, 0),
                ("nvidia-uvm-tools", 511, 1),
                ("nvidia-caps/nvidia-cap1", 236, 1),
                ("nvidia-caps/nvidia-cap2", 236, 2),
            )
        ),
        imex_channels=(
            DeviceNode(
                path="/dev/nvidia-caps-imex-channels/channel0", exists=True, access="ok", major=242, minor=0, mode=0o666
            ),
        ),
    )
    machine = patched(
        machine,
        "gpus[*].nvml",
        recovery_action="none",
        remapped_rows_failure=False,
        remapped_rows_pending=False,
        ecc_uncorrected_volatile=0,
        mig_mode=False,
        mig_mode_pending=False,
        virtualization="none",
        compute_mode="default",
        persistence_mode=True,
        power_limit_mw=1_200_000,
        power_limit_default_mw=1_200_000,
        nvlink_bandwidth_mode="full",
        nvlink_bandwidth_best=True,
        throttle_reasons=("idle",),
        performance_state=0,
        link=PcieLink(speed_gt_s=2.5, width=1, max_speed_gt_s=32.0, max_width=1),
    )
    machine = patched(machine, "gpus[*].nvml.nvlinks[*]", link_state="active", counters=NO_NVLINK_ERRORS)
    machine = patched(machine, "gpus[*].nvml.c2c_links[*]", errors=0, power_state=0)
    machine = patched(machine, "gpus[*].nvml.fabric", health=HEALTHY_FABRIC, health_summary="healthy")
    machine = patched(
        machine, "nics[*].pci", link=PcieLink(speed_gt_s=32.0, width=16, max_speed_gt_s=32.0, max_width=16)
    )
    machine = patched(
        machine,
        "nics[*]",
        ports=(NicPort(number=1, state="ACTIVE", physical_state="LinkUp", link_layer="InfiniBand", rate_gbit_s=400.0),),
    )
    verbs = tuple(
        VerbsNode(nic=nic.name, node=DeviceNode(path=f"/dev/infiniband/uverbs{i}", exists=True, access="ok"))
        for i, nic in enumerate(machine.nics or ())
    )
    machine = patched(
        machine,
        "host",
        auto_online_blocks="online_movable",
        numa_balancing=0,
        kernel_command_line={"init_on_alloc": "0"},
        page_size_bytes=65536,
    )
    machine = patched(
        machine,
        "confinement",
        namespaces={"ipc": 0xEFFFFFFF, "user": 0xEFFFFFFD, "pid": 0xEFFFFFFC, "cgroup": 0xEFFFFFFB, "mnt": 1, "net": 2},
        pid_namespace_depth=1,
        capabilities=(1 << 41) - 1,
        limits={"memlock": -1, "nofile": 1 << 20, "stack": 8 << 20},
        mounts=(Mount(path="/dev", kind="devtmpfs"), Mount(path="/dev/shm", kind="tmpfs")),  # noqa: S108
        shm_total_bytes=400 << 30,
        shm_free_bytes=400 << 30,
        ptrace_scope=0,
    )
    machine = patched(
        machine,
        "system",
        uptime_s=86400.0,
        kernel_configuration={"NUMA": "y", "ACPI_NUMA": "y", "ARM_SMMU_V3_SVA": "y", "IOMMU_SVA": "y"},
        acpi_egm=True,
        firmware_egm=tuple(FirmwareEgm(proximity_domain=node, size_bytes=480 << 30) for node in (0, 1)),
        egm_regions=(),
        egm_region_bytes={},
        max_map_count=1 << 20,
        remove_ipc=False,
        iommu_domains={},
        bridges=(),
        daemons=("nvidia-imex", "nvidia-persistenced"),
        imex=Imex(configured_nodes=18, duplicate_nodes=0, daemon_state="READY", domain_status="UP"),
        module_versions={"mlx5_core": "", "ib_core": "", "mlx5_ib": "", "nvidia_peermem": "580.126.16"},
        peer_memory_clients=("nv_mem",),
        verbs=verbs,
    )
    for area in _areas():
        machine = area.well(machine) if hasattr(area, "well") else machine
    return machine


@functools.cache
def faults() -> dict[str, Fault]:
    """The fault of every check that can find one."""
    return FAULTS | {check: fault for area in _areas() for check, fault in area.FAULTS.items()}


def _areas() -> list[ModuleType]:
    files = sorted((Path(__file__).parent / "checks").glob("test_*.py"))
    return [importlib.import_module(f"tests.doctor.checks.{file.stem}") for file in files]


_NONE: dict[str, Any] = dict.fromkeys(set(field_types(NvLinkCounters)) - {"unread", "fec_history"}, 0)
NO_NVLINK_ERRORS = NvLinkCounters(**_NONE, fec_history=(10**12, 10**6, *[0] * 14))
"""Counters of a healthy NVLink 5: forward error correction has something to do on every link."""

HEALTHY_FABRIC = {
    "degraded_bandwidth": "false",
    "route_recovery": "false",
    "route_unhealthy": "false",
    "access_timeout_recovery": "false",
    "incorrect_configuration": "none",
}


def changed(path: str, /, **changes: object) -> Fault:
    """The healthy machine with fields of something inside it changed."""
    return Fault(lambda: patched(healthy(), path, **changes))


def excluded() -> Machine:
    machine = patched(healthy(), "gpus[1].proc", excluded=True)
    return patched(machine, "gpus[1]", nvml=None, cuda=None)


def no_control_node() -> Machine:
    """Return a machine with a denied nvidiactl, as seen on H200: NVML and CUDA list nothing."""
    return patched(patched(healthy(), "gpus[*]", nvml=None, cuda=None), "driver.nodes[0]", access="EPERM")


def by_nouveau() -> Machine:
    machine = patched(healthy(), "gpus[*].pci", driver="nouveau")
    machine = patched(machine, "gpus[*]", nvml=None, cuda=None, proc=None)
    return patched(machine, "driver", modules=("nouveau",))


def weak_switch() -> Machine:
    """DGX H100 whose PCIe switches redirect what goes between devices, and whose IOMMU translates."""
    machine = patched(shipped("dgx-h100"), "gpus[*].nvml", virtualization="none")
    domains = {gpu.bus_id: "DMA-FQ" for gpu in machine.gpus or ()}
    return patched(machine, "system", bridges=bridges(machine, 0b1101), data_direct=(), iommu_domains=domains)


def bridges(machine: Machine, acs_control: int, vendor_id: int = 0x1000, device_id: int = 0xC030) -> tuple[Bridge, ...]:
    """Return the bridges above a machine's GPUs and NICs, all alike: ports of a Broadcom switch by default."""
    functions = [*(gpu.pci for gpu in machine.gpus or ()), *(nic.pci for nic in machine.nics or ())]
    above = {port for function in functions if function is not None for port in (function.path or ())[1:]}
    return tuple(
        Bridge(bus_id=port, vendor_id=vendor_id, device_id=device_id, acs_control=acs_control) for port in sorted(above)
    )


def without_dma_buf() -> Machine:
    """No nvidia_peermem, and a CUDA that cannot make dma-bufs."""
    machine = patched(healthy(), "gpus[*].cuda", attributes={"DMA_BUF_SUPPORTED": 0})
    return patched(machine, "system", module_versions={"mlx5_core": ""})


FAULTS: dict[str, Fault] = {
    "dev.count-consistency": Fault(healthy, Scope(expectation=Expectation(gpus=8))),
    "dev.fell-off-bus": changed("gpus[2].pci", responds=False),
    "dev.driver-binding": Fault(by_nouveau),
    "dev.excluded": Fault(excluded),
    "dev.cgroup-restricted": Fault(lambda: with_gpu_denied(healthy(), 2, 3)),
    "dev.nodes-missing": Fault(lambda: with_gpu_denied(healthy(), 3, access="ENOENT")),
    "dev.permissions": Fault(lambda: with_gpu_denied(healthy(), 3, access="EACCES")),
    "dev.control-nodes": Fault(no_control_node),
    "env.visible-devices": changed("process", environment={"CUDA_VISIBLE_DEVICES": "0,9"}),
    "env.bad-cuda-env": changed("process", environment={"NCCL_P2P_DISABLE": "1"}),
    "drv.versions": changed("driver", module_version="575.57.08"),
    "drv.params": changed("driver", module_parameters={"GrdmaPciTopoCheckOverride": "2"}),
    "drv.nouveau": Fault(by_nouveau),
    **{
        check: Fault(functools.partial(logged, line))
        for check, line in (
            ("kernel.xid", "NVRM: Xid (PCI:0008:01:00): 79, GPU has fallen off the bus."),
            ("kernel.sxid", "nvidia-nvswitch0: SXid (PCI:0008:01:00.0): 20034, Fatal, Link 30 LTSSM Fault Up"),
            (
                "kernel.aer",
                "nvidia 0008:01:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Transaction Layer",
            ),
            ("kernel.driver-messages", "NVRM: GPU0 x: SBIOS allocated EGM address is incorrect."),
        )
    },
    "egm.capability": Fault(changed("gpus[*].nvml", capabilities=0).machine, Scope(purposes=(Guard.EGM,))),
    "egm.preconditions": Fault(
        lambda: patched(patched(healthy(), "gpus[*].nvml", capabilities=0), "system", acpi_egm=False),
        Scope(purposes=(Guard.EGM,)),
    ),
    "egm.cgroup-route": Fault(lambda: with_gpu_denied(healthy(), 2, 3)),
    "egm.peer-route": Fault(
        lambda: patched(healthy(), "pairs[*]", p2p_status={"read": "OK", "write": "OK", "nvlink": "NS"})
    ),
    "egm.fabric-address": Fault(
        lambda: patched(
            healthy(),
            "gpus[*].cuda",
            attributes={"HANDLE_TYPE_FABRIC_SUPPORTED": 1, "HOST_NUMA_MULTINODE_IPC_SUPPORTED": 0},
        )
    ),
    "egm.override-key": changed("driver", module_parameters={"RegistryDwords": '"RMEnableLocalEgmPeerId=1"'}),
    "gpu.health": changed("gpus[0].nvml", remapped_rows_failure=True),
    "gpu.mig": Fault(lambda: patched(healthy(), "gpus[0].nvml", mig_mode=True), Scope(purposes=(Guard.P2P,))),
    "gpu.cc-mode": changed("driver", confidential_compute="on"),
    "gpu.vgpu": changed("gpus[*].nvml", virtualization="vgpu"),
    "gpu.compute-mode": changed("gpus[0].nvml", compute_mode="prohibited"),
    "gpu.persistence": changed("gpus[*].nvml", persistence_mode=False),
    "gpu.power-limit": changed("gpus[*].nvml", power_limit_mw=600_000),
    "gpu.throttle": changed("gpus[1].nvml", throttle_reasons=("idle", "hw-thermal-slowdown")),
    "numa.mempolicy-syscalls": changed(
        "confinement",
        seccomp="filter",
        system_calls={"get_mempolicy": "EPERM", "mbind": "EPERM", "set_mempolicy": "ok"},
    ),
    "numa.cpuset-mems": Fault(lambda: patched(healthy(), "host", allowed_numa_nodes="0"), Scope(numa=(1,))),
    "numa.gpu-affinity": changed("gpus[*].pci", numa_node=-1),
    "numa.mode": changed("gpus[1].proc", numa_status="online_failed"),
    "numa.auto-online": Fault(
        lambda: patched(
            patched(patched(healthy(), "host", auto_online_blocks="online"), "gpus[*].nvml", numa_node=None),
            "gpus[*].proc",
            numa_node=None,
        )
    ),
    "numa.balancing": changed("host", numa_balancing=1),
    "numa.page-size": changed("host", page_size_bytes=4096),
    "numa.cmdline": changed("host", kernel_command_line={"init_on_alloc": "1"}),
    "uvm.addressing-mode": changed("gpus[*].nvml", addressing_mode="none"),
    "nvlink.links": changed("gpus[1].nvml.nvlinks[3]", active=False),
    "nvlink.errors": changed("gpus[1].nvml.nvlinks[3].counters", recoveries=2, successful_recoveries=2),
    "nvlink.bw-mode": changed("gpus[2].nvml", nvlink_bandwidth_mode="12-links", nvlink_bandwidth_best=False),
    "nvlink.disabled": changed("driver", module_parameters={"NvLinkDisable": "1"}),
    "c2c.link": changed("gpus[1].nvml.c2c_links[0]", active=False),
    "p2p.status": changed("pairs[0]", p2p_status={"read": "DR", "write": "DR", "nvlink": "OK"}),
    "fabric.state": changed("gpus[2].nvml.fabric", state="in-progress"),
    "fabric.domain": changed("gpus[3].nvml.fabric", clique_id=2),
    "fabric.manager": changed("system", daemons=("nv-fabricmanager", "nvidia-imex")),
    "fabric.same-node-isolation": Fault(
        lambda: patched(with_gpu_denied(healthy(), 3), "process", environment={"SLURM_JOB_GPUS": "0-3"}),
        Scope(purposes=(Guard.FABRIC,)),
    ),
    "imex.module": changed("driver", module_parameters={"ImexChannelCount": "0"}),
    "imex.channel": changed("driver.imex_channels[0]", access="EACCES", mode=0o600),
    "imex.domain": changed("system.imex", domain_status="DOWN"),
    "imex.recovery": changed("gpus[0].nvml", recovery_action="recover-imex-domain"),
    "ipc.ptrace": Fault(
        lambda: patched(healthy(), "confinement", ptrace_scope=3, capabilities=0), Scope(purposes=(Guard.IPC,))
    ),
    "ipc.shm": changed("confinement", shm_total_bytes=32 << 20, shm_free_bytes=32 << 20),
    "ipc.limits": changed("confinement", limits={"memlock": 65536, "nofile": 1024, "stack": -1}),
    "rdma.ports": changed("nics[*].ports[*]", state="DOWN"),
    "rdma.gdr-path": Fault(lambda: patched(without_dma_buf(), "driver", module_flavour="proprietary")),
    "rdma.affinity": changed("nics[*].pci", numa_node=1),
    "rdma.coherent-dmabuf": changed("driver", driver_version="565.57.01", module_version="565.57.01"),
    "rdma.gdrcopy": Fault(
        lambda: patched(
            patched(healthy(), "driver", module_parameters={"CoherentGPUMemoryMode": "driver"}),
            "system",
            module_versions={"gdrdrv": "2.4.4"},
        )
    ),
    "rdma.devices-cgroup": changed("system.verbs[*].node", access="EPERM"),
    "pcie.link": changed("nics[0].pci", link=PcieLink(speed_gt_s=16.0, width=8, max_speed_gt_s=32.0, max_width=16)),
    "pcie.iommu": Fault(weak_switch),
    # Not of the healthy machine, which needs the areas whose tests may be importing this file.
    **{
        check: changed(
            f"probes[{[probe.kind for probe in tried(shipped('gb200-nvl72'))].index(kind)}]",
            outcome=ProbeOutcome.CORRUPT,
            detail="1 of 262144 words differ",
        )
        for check, kind in KINDS.items()
    },
}


def with_switches() -> Machine:
    """DGX H100 with its NVSwitches and a fabric manager."""
    switch = NvSwitch(pci=PciFunction(bus_id="0000:07:00.0", vendor_id=0x10DE, class_code=0x068000))
    return patched(patched(shipped("dgx-h100"), "system", daemons=("nv-fabricmanager",)), "", switches=(switch,))


def hgx_b200() -> Machine:
    """HGX B200: four GPUs with NVLink 5 whose switches are no PCI devices; its fabric manager and nvlsm run."""
    machine = patched(shipped("hgx-h200x4"), "gpus[*].proc", model="NVIDIA B200")
    machine = patched(machine, "gpus[*]", cuda=None)
    machine = patched(
        machine, "gpus[*].nvml", name="NVIDIA B200", compute_capability=(10, 0), virtualization="none", uuid=None
    )
    machine = patched(machine, "gpus[*].nvml.nvlinks[*]", version=7, speed_mb_s=53125)
    ports = (NicPort(number=1, state="ACTIVE", link_layer="InfiniBand"),)
    return patched(
        machine,
        "system",
        uptime_s=86400.0,
        daemons=("nv-fabricmanager", "nvlsm"),
        module_versions={"mlx5_core": "", "mlx5_ib": "", "ib_umad": "", "ib_core": ""},
        nvlink_management=(Nic(name="mlx5_8", ports=ports),),
    )


def without_umad() -> Machine:
    """HGX B200 whose fabric is in progress forever, because ib_umad is not loaded."""
    machine = patched(hgx_b200(), "gpus[*].nvml.fabric", state="in-progress", status=None)
    return patched(machine, "system", module_versions={"mlx5_core": "", "mlx5_ib": "", "ib_core": ""})


def in_job() -> Machine:
    """The healthy machine, as it is in an MPI job with another node that is like it."""
    ports = (PeerPort(nic="mlx5_0", number=1, state="ACTIVE", link_layer="InfiniBand", rate_gbit_s=400),)
    node = Peer(
        host="node1",
        ranks=(0,),
        tool="0.1.0",
        driver_version="580.95.05",
        clusters=("00000000-0000-0000-0000-000000000072",),
        cliques=(1,),
        imex_channel=True,
        imex_daemon="READY",
        imex_domain="UP",
        ports=ports,
    )
    probe = PeerProbe(
        owner=0,
        importer=1,
        hosts=("node1", "node2"),
        labels=("node1:GPU0", "node2:GPU0"),
        host_memory=False,
        outcome=ProbeOutcome.OK,
    )
    peers = Peers(nodes=(node, replace(node, host="node2", ranks=(1,))), probes=(probe,))
    return patched(healthy(), "", peers=peers)


def peer_changed(**changes: Any) -> Fault:
    """That machine in a job whose second node differs."""
    return Fault(lambda: patched(in_job(), "peers.nodes[1]", **changes))


def through_data_direct(
    outcome: ProbeOutcome = ProbeOutcome.OK, call: str | None = None, number: int | None = None
) -> Machine:
    """A NIC has registered the memory of a GPU by the default mapping, and through Data Direct with this outcome."""
    probes = tried(healthy())
    (gpu, *_), (nic, *_) = healthy().gpus or (), healthy().nics or ()
    default = Probe(kind=ProbeKind.DMA_BUF, gpus=(gpu.bus_id,), nic=nic.name, outcome=ProbeOutcome.OK)
    ending = {"outcome": outcome, "call": call, "error_number": number, "error_name": "EIO" if number else None}
    direct = dataclasses.replace(default, registration=Registration.DATA_DIRECT, **ending)  # type: ignore[arg-type]
    return patched(healthy(), "", probes=(*probes, default, direct))


FAULTS |= {
    "rdma.data-direct-active": Fault(
        functools.partial(through_data_direct, ProbeOutcome.ERROR, "mlx5dv_reg_dmabuf_mr", 524)
    ),
    "fabric.management": Fault(without_umad),
    "peers.versions": peer_changed(driver_version="590.10"),
    "peers.clique": peer_changed(cliques=(2,)),
    "peers.imex": peer_changed(imex_domain="DEGRADED"),
    "peers.nics": peer_changed(ports=(PeerPort(nic="mlx5_0", number=1, state="DOWN"),)),
    "peers.nodes": peer_changed(failed=("imex.channel",)),
    "peers.fabric-active": Fault(
        lambda: patched(
            in_job(),
            "peers.probes[0]",
            outcome=ProbeOutcome.ERROR,
            by=1,
            call="cuMemImportFromShareableHandle",
            error_number=801,
            detail="cuMemImportFromShareableHandle failed: CUDA_ERROR_NOT_SUPPORTED (801)",
        )
    ),
}

PASSES: Mapping[str, Callable[[], Machine]] = {
    **dict.fromkeys((name for name in FAULTS if name.startswith("peers.")), in_job),
    "fabric.manager": with_switches,
    "fabric.management": hgx_b200,
    "kernel.sxid": lambda: patched(with_switches(), "", kernel_log=healthy().kernel_log),
    "rdma.bar1": lambda: patched(shipped("dgx-h100"), "gpus[*].nvml", bar1_total_bytes=1 << 37),
    "rdma.data-direct-active": through_data_direct,
    "pcie.iommu": lambda: patched(weak_switch(), "system", iommu_domains={}),
}
"""By check that does not concern the healthy machine: a machine that passes."""

ONLY_TOLD = frozenset(
    {"egm.platform", "ipc.ipc-namespace", "ipc.pid-namespace", "mps.env", "ns.container", "rdma.ofed"}
)
"""Checks that tell what is so, and never that it is a fault."""

NOTED = frozenset(
    {"gpu.memory-limit", "gpu.power-limit", "numa.huge-pages", "numa.page-size", "rdma.bar1", "rdma.data-direct-active"}
)
"""Checks whose fault is a setting that stops nothing by itself, so that they only note it."""
