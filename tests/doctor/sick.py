"""More machines of the corpus, with one fault each: what ``faults()`` has for single checks, as a person meets it.

Each is a model, built of a shipped machine and the document that ``why`` names; nothing of it was captured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from egmctl.facts.kernel_log import event
from egmctl.model.gpu import Fabric
from egmctl.model.host import FabricManager, Imex, NumaKind
from egmctl.model.kernel_log import KernelLog
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from tests.doctor.changed import b300, gb200, gb300, node1, virtualization_host, with_carve_out, with_node
from tests.doctor.faults import OUTSIDE, faults, healthy, weak_switch, with_switches
from tests.doctor.machines import patched, shipped, with_gpu_denied
from tests.doctor.scenes import Scene


def _of(check: str) -> Callable[[], Machine]:
    return lambda: faults()[check].machine()


def _h200(index: int, path: str, access: str = "ok", **changes: object) -> Callable[[], Machine]:
    return lambda: patched(
        with_gpu_denied(shipped("hgx-h200x4"), index, access=access), f"gpus[{index}].{path}", **changes
    )


def without_uvm() -> Machine:
    """A process that may not open /dev/nvidia-uvm (measured on H200)."""
    machine = patched(healthy(), "driver.nodes[1]", access="EPERM")
    return patched(machine, "gpus[*]", cuda=None, unread={"cuda": Unread(reason=Reason.NOT_ASKED)})


def two_faults() -> Machine:
    """HGX H200 with a GPU off the bus, and NVLinks of another one down."""
    machine = _h200(3, "pci", responds=False)()
    machine = patched(machine, "gpus[1].nvml.nvlinks[4]", active=False)
    return patched(machine, "gpus[1].nvml.nvlinks[11]", active=False)


def with_cluster() -> Machine:
    """HGX H200 whose fabric has a cluster UUID, as HGX H100 boards were seen to have."""
    fabric = Fabric(state="completed", status=0, cluster_uuid="3ac9e5a1-0b64-4f57-8e5c-5a1de7ac1b9d", clique_id=0)
    machine = patched(shipped("hgx-h200x4"), "gpus[*].nvml", fabric=fabric)
    return patched(machine, "system", daemons=("nv-fabricmanager",))


def kubernetes(mode: str | None, *runs_in: str) -> Machine:
    """A tray in a Kubernetes cluster with ComputeDomains, on which nvidia-imex runs in these places, or nowhere."""
    imex = Imex(runs_in=runs_in, kubelet=True, compute_domains=True, compute_domain_mode=mode, session_in_use=False)
    return patched(healthy(), "system", imex=imex, daemons=("nvidia-imex",) if runs_in else ())


def gsp_silent() -> Machine:
    """A GPU whose GSP firmware does not answer, and what the driver logs next, in its words."""
    lines = (
        "NVRM: Xid (PCI:0008:01:00): 119, Timeout after 6s of waiting for RPC response from GPU0 GSP!",
        "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
    )
    events = tuple(found for line in lines if (found := event(80_000.0, line)) is not None)
    return patched(healthy(), "", kernel_log=KernelLog(source="/dev/kmsg", now_s=80_100.0, first_s=0.0, events=events))


_DENIED_NOTE = "Measured on H200: what a GPU that cannot be used looks like."
_PARAMETERS = "open-gpu-kernel-modules, nv-reg.h: the driver's parameters."
_IMEX = "IMEX guide: channels, service and domain."
_FABRIC = "nvml.h: the fabric's state, clique and health."
_XID = "NVIDIA Xid catalog."
_ACS = "rdma-core, kernel-boot/rdma_topo: topologies and their ACS bits."
_DRA = "dra-driver-nvidia-gpu 0.5: who manages IMEX."

SICK: Mapping[str, Scene] = {
    "h200-handed-to-a-guest": Scene(
        _h200(3, "pci", "ENOENT", driver="vfio-pci"), ("--gpus", "all"), why="vfio(7): devices that a guest has."
    ),
    "h200-excluded": Scene(_h200(3, "proc", excluded=True), why="NVIDIA driver README: NVreg_ExcludedGpus."),
    "h200-no-device-node": Scene(
        lambda: with_gpu_denied(shipped("hgx-h200x4"), 3, access="ENOENT"), ("--gpus", "all"), why=_DENIED_NOTE
    ),
    "h200-node-mode": Scene(lambda: with_gpu_denied(shipped("hgx-h200x4"), 3, access="EACCES"), why=_DENIED_NOTE),
    "h200-nvml-hangs": Scene(lambda: shipped("h200-nvml-hangs"), why="open-gpu-kernel-modules: rm locks."),
    "h200-two-faults": Scene(two_faults, why="Xid 79 on one GPU, links down on another: two causes."),
    "gb200-uvm-denied": Scene(without_uvm, why=_DENIED_NOTE),
    "gb200-nvml-crashes": Scene(_of("drv.libraries"), why="A library that ends its process."),
    "gb200-two-drivers": Scene(_of("drv.versions"), why="nvml.h: NVML_ERROR_LIB_RM_VERSION_MISMATCH."),
    "gb200-nouveau": Scene(_of("drv.nouveau"), why="NVIDIA driver README: nouveau has to be turned off."),
    "gb200-rows-left": Scene(_of("gpu.health"), why="nvml.h: remapped rows."),
    "gb200-hot": Scene(_of("gpu.throttle"), why="nvml.h: clocks event reasons."),
    "gb200-confidential": Scene(_of("gpu.cc-mode"), why="nvml.h: confidential computing."),
    "gb200-prohibited": Scene(_of("gpu.compute-mode"), why="nvml.h: compute mode."),
    "gb200-no-persistence": Scene(_of("gpu.persistence"), why="NVIDIA driver README: persistence daemon."),
    "gb200-mig-on-one": Scene(_of("gpu.mig"), ("--for", "p2p"), why="NVIDIA MIG user guide."),
    "gb200-vgpu": Scene(_of("gpu.vgpu"), why="nvml.h: virtualization mode."),
    "gb200-xid-79": Scene(_of("kernel.xid"), why=_XID),
    "gb200-xid-154": Scene(gsp_silent, why="NVIDIA Xid catalog; open-gpu-kernel-modules, gpu.c: Xid 154."),
    "gb200-fatal-sxid": Scene(_of("kernel.sxid"), why="Fabric Manager guide: SXids."),
    "gb200-fatal-aer": Scene(_of("kernel.aer"), why="Documentation/PCI/pcieaer-howto.rst."),
    "gb200-egm-address": Scene(_of("kernel.driver-messages"), why="open-gpu-kernel-modules, mem_mgr.c: its messages."),
    "gb200-egm-hv": Scene(with_carve_out, ("--for", "egm"), why="edk2-nvidia, TH500ResourceConfig.c: EGM With HV."),
    "gb200-egm-host": Scene(
        virtualization_host, ("--for", "egm"), why="NVIDIA/NV-Kernels, pull requests 119 and 559: nvgrace-egm."
    ),
    "gb200-egm-override": Scene(_of("egm.override-key"), why="open-gpu-kernel-modules, nvrm_registry.h."),
    "gb200-no-peer-route": Scene(_of("egm.peer-route"), why="nvml.h: nvmlDeviceGetP2PStatus."),
    "gb200-memory-offline": Scene(_of("numa.mode"), why="NVIDIA driver README: NUMA status of GPU memory."),
    "gb200-no-affinity": Scene(_of("numa.gpu-affinity"), why="sysfs-bus-pci: numa_node."),
    "gb200-slow-cpus": Scene(_of("cpu.governor"), why="Documentation/admin-guide/pm/cpufreq.rst."),
    "gb200-c2c-down": Scene(_of("c2c.link"), why="nvml.h: C2C link state."),
    "gb200-nvlink-off": Scene(_of("nvlink.disabled"), why=_PARAMETERS),
    "gb200-p2p-disabled": Scene(_of("p2p.status"), ("--for", "p2p"), why="nvml.h: NVML_P2P_STATUS_DISABLED_BY_REGKEY."),
    "gb200-p2p-corrupt": Scene(_of("p2p.verify"), why="NCCL user guide: ACS and IOMMU corrupt silently."),
    "gb200-nccl-without-p2p": Scene(_of("env.bad-cuda-env"), why="NCCL user guide: NCCL_P2P_DISABLE."),
    "gb200-ninth-gpu": Scene(_of("env.visible-devices"), why="CUDA programming guide: CUDA_VISIBLE_DEVICES."),
    "gb200-small-shm": Scene(_of("ipc.shm"), why="NCCL user guide: /dev/shm of containers."),
    "gb200-low-limits": Scene(_of("ipc.limits"), why="NCCL user guide: memlock."),
    "gb200-no-ptrace": Scene(_of("ipc.ptrace"), ("--for", "ipc"), why="Documentation/admin-guide/LSM/Yama.rst."),
    "nvl72-imex-off": Scene(_of("imex.module"), ("--for", "fabric"), why=_PARAMETERS),
    "nvl72-imex-recovery": Scene(_of("imex.recovery"), why=_IMEX),
    "nvl72-two-cliques": Scene(_of("fabric.domain"), ("--for", "fabric"), why=_FABRIC),
    "nvl72-outside": Scene(lambda: patched(healthy(), "gpus[*].nvml", fabric=OUTSIDE), why="Azure/azhpc-images, 506."),
    "nvl72-outside-expected": Scene(
        lambda: patched(healthy(), "gpus[*].nvml", fabric=OUTSIDE), ("--expect", "domain"), why=_FABRIC
    ),
    "nvl72-in-progress": Scene(_of("fabric.state"), ("--for", "fabric"), why=_FABRIC),
    "nvl72-manager-on-a-tray": Scene(_of("fabric.manager"), ("--for", "fabric"), why="IMEX guide: trays."),
    "nvl72-verbs-denied": Scene(_of("rdma.devices-cgroup"), ("--for", "rdma"), why="rdma-core: uverbs devices."),
    "gb200-acs-off": Scene(lambda: gb200(0), ("--for", "rdma"), why=_ACS),
    "gb300-acs-default": Scene(_of("pcie.acs"), ("--for", "rdma"), why=_ACS),
    "gb300-acs-right": Scene(gb300, ("--for", "rdma"), why=_ACS),
    "b300-acs": Scene(lambda: b300(ats=False, nic_side=0x1D, others=0x1D), ("--for", "rdma"), why=_ACS),
    "h200-cluster-uuid": Scene(with_cluster, why="meta-pytorch/torchcomms, issue 1315."),
    "nvl72-dra-driver-managed": Scene(lambda: kubernetes("driverManaged"), ("--for", "fabric"), why=_DRA),
    "nvl72-dra-and-service": Scene(
        lambda: kubernetes("driverManaged", "host"), ("--for", "fabric"), why="NVIDIA/aicr, pull request 2520."
    ),
    "nvl72-dra-host-managed": Scene(lambda: kubernetes("hostManaged"), ("--for", "fabric"), why=_DRA),
    "nvl72-kubernetes": Scene(lambda: kubernetes(None), ("--for", "fabric"), why=_DRA),
    "gb200-numa1-full": Scene(_of("numa.memory"), ("--for", "egm"), why="NCCL, issue 2190."),
    "gb200-numa1-small": Scene(
        lambda: node1(memory_total_bytes=60 << 30, memory_free_bytes=50 << 30), why="NCCL, issue 2106."
    ),
    "gb200-numa1-without-cpus": Scene(lambda: node1(kind=NumaKind.MEMORY_ONLY, cpus=""), why="NCCL, issue 2190."),
    "gb200-memory-only-node": Scene(lambda: with_node(40), why="open-gpu-kernel-modules, issue 885."),
    "gb200-cpuset-for-egm": Scene(
        lambda: patched(healthy(), "host", allowed_numa_nodes="0"), ("--for", "egm"), why="cpuset(7)."
    ),
    "gb200-membind": Scene(_of("numa.policy"), ("--for", "egm"), why="numactl(8): --membind."),
    "dgx-h100-acs": Scene(
        lambda: patched(weak_switch(), "system", iommu_domains={}), ("--for", "rdma"), why="NCCL user guide: ACS."
    ),
    "dgx-h100-iommu": Scene(
        lambda: patched(weak_switch(), "system.bridges[*]", acs_control=0), ("--for", "rdma"), why="NCCL guide: IOMMU."
    ),
}


def board(version: str | None, *, runs: bool, driver: str = "580.178.04", library: str | None = None) -> Machine:
    """DGX H100 whose GPUs are not in the fabric yet."""
    manager = FabricManager(version=version)
    daemons = ("nv-fabricmanager",) if runs else ()
    machine = patched(with_switches(), "system", daemons=daemons, fabric_manager=manager)
    machine = patched(machine, "driver", module_version=driver, driver_version=library or driver)
    return patched(machine, "gpus[*].nvml.fabric", state="in-progress", status=None)
