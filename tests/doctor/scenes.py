"""The cases that matter, each a machine and what is asked of it; ``corpus/<name>/`` holds what the doctor says.

A folder with a ``machine.json.gz`` was recorded on real hardware. The others are a shipped machine with one thing about
it changed as the documents or measurements named in ``why`` say; they are marked as modelled, and named after it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from egmctl.facts import replay
from egmctl.model.host import Cgroup, DeviceNode, DeviceProgram, LibraryFailure
from egmctl.model.machine import Machine, OriginKind
from egmctl.model.record import Reason, Unread
from tests.doctor.faults import HEALTHY_FABRIC, changed, faults, healthy, hgx_b200, without_umad
from tests.doctor.machines import patched, shipped, with_card, with_gpu_denied

CORPUS = Path(__file__).parent / "corpus"


@dataclasses.dataclass(frozen=True)
class Scene:
    """A machine and the options that ``egmctl doctor`` is given."""

    machine: Callable[[], Machine]
    options: tuple[str, ...] = ()
    why: str = ""


def scenes() -> Mapping[str, Scene]:
    """Return all of them by name, in order: shipped, recorded, modelled."""
    return {**{name: Scene(machine=_load(name)) for name in replay.machine_names()}, **RECORDED, **named(MODELLED)}


def named(found: Mapping[str, Scene]) -> Mapping[str, Scene]:
    """Return scenes whose machines are called after them, and say that they are models."""
    return {name: dataclasses.replace(scene, machine=_named(name, scene)) for name, scene in found.items()}


def _load(name: str) -> Callable[[], Machine]:
    return lambda: shipped(name)


def _recorded(name: str) -> Callable[[], Machine]:
    return _load(str(CORPUS / name / "machine.json.gz"))


def _named(name: str, scene: Scene) -> Callable[[], Machine]:
    modelled = {"kind": OriginKind.MODELLED, "name": name, "description": scene.why}
    return lambda: patched(scene.machine(), "origin", **modelled)


def _healthy(path: str, /, **changes: object) -> Callable[[], Machine]:
    return changed(path, **changes).machine


def slurm(*indices: int) -> Machine:
    """GB200 in a Slurm task that was not given some GPUs."""
    machine = with_gpu_denied(healthy(), *indices)
    task = "/system.slice/slurmstepd.scope/job_42/step_0/user/task_0"
    machine = patched(
        machine,
        "process",
        cgroups=(Cgroup(version=2, path=task),),
        environment={"SLURM_JOB_ID": "42", "SLURM_GPUS_PER_TASK": str(4 - len(indices))},
        effective_uid=0,
    )
    program = DeviceProgram(id=98, name="Slurm_Cgroup_v2", cgroup=task)
    return patched(machine, "confinement", device_programs=(program,))


def nvml_error(name: str) -> dict[str, Any]:
    """The driver's fields where nvmlInit returns an error."""
    return {"nvml_error": name, "nvml_failure": LibraryFailure(how="error", call="nvmlInit", name=name)}


def daemon_reload() -> Machine:
    """A container on HGX H200 whose device rules were lost when systemd reloaded its units."""
    machine = with_gpu_denied(shipped("hgx-h200x4"), *range(4))
    machine = patched(machine, "driver", driver_version=None, nvml_version=None, **nvml_error("NVML_ERROR_UNKNOWN"))
    paths = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools")
    nodes = tuple(DeviceNode(path=path, exists=True, access="EPERM") for path in paths)
    machine = patched(machine, "driver", nodes=nodes)
    return patched(machine, "process", container_signs=("/.dockerenv", "overlay root"))


def not_passed_in() -> Machine:
    """A container on HGX H200 that was given two of four GPUs."""
    machine = with_gpu_denied(shipped("hgx-h200x4"), 2, 3, access="ENOENT")
    signs = ("/.dockerenv", "overlay root", "tmpfs /proc/driver/nvidia")
    return patched(machine, "process", container_signs=signs, environment={"NVIDIA_VISIBLE_DEVICES": "0,1"})


def cdmm() -> Machine:
    """GB200 whose driver manages the GPUs' memory itself: it is no NUMA node."""
    machine = patched(
        healthy(), "driver", module_parameters={"CoherentGPUMemoryMode": '"driver"', "RegistryDwords": '""'}
    )
    machine = patched(machine, "gpus[*].nvml", numa_node=None)
    machine = patched(machine, "gpus[*].proc", numa_status=None, numa_node=None)
    nodes = tuple(node for node in (machine.host and machine.host.numa_nodes) or () if node.id < 2)
    return patched(machine, "host", numa_nodes=nodes, allowed_numa_nodes="0-1")


def default_seccomp() -> Machine:
    """GB200 in a container with Docker's default seccomp profile and without CAP_SYS_NICE."""
    machine = patched(healthy(), "process", container_signs=("/.dockerenv", "overlay root"))
    answers = {"get_mempolicy": "EPERM", "mbind": "EPERM", "set_mempolicy": "EPERM", "pidfd_open": "ok"}
    return patched(machine, "confinement", seccomp="filter", capabilities=0xA80425FB, system_calls=answers)


def untuned() -> Machine:
    """GB200 as distributions deliver it: NUMA balancing on, memory cleared, IMEX channels for root only."""
    machine = patched(healthy(), "host", numa_balancing=1, kernel_command_line={"init_on_alloc": "1"})
    return patched(machine, "driver.imex_channels[0]", access="EACCES", mode=0o600, uid=0)


def port_down() -> Machine:
    """NVL72 tray with a NIC whose cable is out, and one that came up slow."""
    machine = patched(healthy(), "nics[1].ports[0]", state="DOWN", physical_state="Polling")
    return patched(machine, "nics[3].ports[0]", rate_gbit_s=100.0)


def driver_updated() -> Machine:
    """HGX H200 whose driver was updated while the old kernel module stayed loaded: NVML does not start."""
    why = Unread(reason=Reason.FAILED, detail="nvmlInit: 18 (Driver/library version mismatch)")
    machine = patched(shipped("hgx-h200x4"), "gpus[*]", nvml=None, cuda=None, unread={"nvml": why, "cuda": why})
    mismatch = "NVML_ERROR_LIB_RM_VERSION_MISMATCH"
    machine = patched(machine, "driver", driver_version=None, nvml_version=None, **nvml_error(mismatch))
    return patched(machine, "driver", unread={"driver_version": why, "nvml_version": why})


def gb300(machine: Machine) -> Machine:
    """A Grace tray with the GPUs of a GB300 instead of its own: name, compute capability and memory."""
    named = {"name": "NVIDIA GB300", "compute_capability": (10, 3), "memory_total_bytes": 284208 << 20}
    machine = patched(machine, "gpus[*].nvml", **named)
    machine = patched(machine, "gpus[*].proc", model="NVIDIA GB300")
    return patched(machine, "gpus[*].cuda", name="NVIDIA GB300", memory_total_bytes=None)


def gb300_cdmm_old_gdrdrv() -> Machine:
    """GB300 tray under CDMM, by the older of its two parameters, with a gdrdrv that does not know that mode."""
    machine = patched(gb300(cdmm()), "driver", module_parameters={"EnableUserNUMAManagement": "0"})
    machine = patched(machine, "host", kernel="6.8.0-1034-nvidia-64k")
    return patched(machine, "system", module_versions={"mlx5_core": "", "nvidia_peermem": "", "gdrdrv": "2.4.4"})


def station() -> Machine:
    """DGX Station GB300 with an RTX PRO 6000 in a PCIe slot."""
    return with_card(gb300(shipped("gh200")))


def gh200_pair() -> Machine:
    """Two GH200 in one node without NVLink between them: P2P is NS, by design."""
    machine = shipped("gh200x4")
    gpus = (machine.gpus or ())[:2]
    ends = {gpu.bus_id for gpu in gpus}
    nodes = tuple(node for node in (machine.host and machine.host.numa_nodes) or () if node.id in (0, 1, *range(4, 20)))
    machine = patched(
        machine, "", gpus=gpus, pairs=tuple(p for p in machine.pairs or () if {p.source, p.target} == ends)
    )
    machine = patched(machine, "host", numa_nodes=nodes, allowed_numa_nodes="0-1,4,12", allowed_cpus="0-143")
    machine = patched(machine, "gpus[*].nvml", nvlinks=(), nvlink_count=0)
    none = {"read": "NS", "write": "NS", "nvlink": "NS", "atomics": "NS", "pci": "NS"}
    return patched(machine, "pairs[*]", nvlink_count=0, nvlink_through=None, p2p_status=none, can_access_peer=False)


def weak_signal() -> Machine:
    """GB200 of which one NVLink has a bit error rate above DCGM's limit, and another was retrained."""
    machine = patched(healthy(), "gpus[2].nvml.nvlinks[7].counters", effective_ber=4e-11, effective_errors=912)
    return patched(machine, "gpus[1].nvml.nvlinks[0].counters", recoveries=3, successful_recoveries=3)


def mixed_modes() -> Machine:
    """GB200 whose GPU 3 is in another NVLink bandwidth mode, so that the driver refuses P2P with it."""
    machine = patched(healthy(), "gpus[3].nvml", nvlink_bandwidth_mode="12-links", nvlink_bandwidth_best=False)
    other = (machine.gpus or ())[3].bus_id
    pairs = tuple(
        patched(pair, "", p2p_status={"read": "NS", "write": "NS", "nvlink": "NS"})
        if other in (pair.source, pair.target)
        else pair
        for pair in machine.pairs or ()
    )
    return patched(machine, "", pairs=pairs)


def no_egm_fabric_address() -> Machine:
    """NVL72 tray with EGM on whose fabric manager has it off: no EGM fabric address, and so no P2P at all."""
    status = {"read": "NS", "write": "NS", "nvlink": "NS"}
    bits = {"HANDLE_TYPE_FABRIC_SUPPORTED": 1, "HOST_NUMA_MULTINODE_IPC_SUPPORTED": 0}
    return patched(patched(healthy(), "pairs[*]", p2p_status=status), "gpus[*].cuda", attributes=bits)


def b200_without_nvlsm() -> Machine:
    """HGX B200 whose fabric is in progress forever, because nvlsm does not run; CUDA ends with 802."""
    machine = patched(hgx_b200(), "gpus[*].nvml.fabric", state="in-progress", status=None)
    failure = LibraryFailure(how="error", call="cuInit", name="CUDA_ERROR_SYSTEM_NOT_READY")
    machine = patched(machine, "driver", cuda_error=failure.name, cuda_failure=failure)
    return patched(machine, "system", daemons=("nv-fabricmanager",))


H200_DENIED = "0000:00:09.0"
"""The GPU that the cgroups of the recordings deny: minor 3."""

RECORDED: Mapping[str, Scene] = {
    "h200-no-imex-channel": Scene(_load("hgx-h200x4"), ("--for", "fabric")),
    "h200-imex-channel": Scene(_recorded("h200-imex-channel"), ("--for", "fabric")),
    "h200-cuda-visible-devices": Scene(_recorded("h200-cuda-visible-devices")),
    "h200-v1-cgroup": Scene(_recorded("h200-v1-cgroup"), ("--gpus", H200_DENIED)),
    "h200-v2-cgroup": Scene(_recorded("h200-v2-cgroup"), ("--gpus", H200_DENIED)),
    "h200-v2-cgroup-all-asked-for": Scene(_recorded("h200-v2-cgroup"), ("--gpus", "all")),
    "h200-v2-cgroup-not-asked-for": Scene(_recorded("h200-v2-cgroup")),
    "h200-v2-cgroup-expected": Scene(_recorded("h200-v2-cgroup"), ("--expect", "gpus=4")),
}
"""On four H200 of an HGX board, 2026-11-20 (docs/hardware-notes.md)."""

DENIED_BUS_ID = [gpu.bus_id for gpu in healthy().gpus or ()][3]

MODELLED: Mapping[str, Scene] = {
    "gb200-egm-on": Scene(healthy, why="Nothing is wrong with it."),
    "gb200-egm-off": Scene(faults()["egm.preconditions"].machine, why="EGM guide: EGM is a setting of the firmware."),
    "gb200-slurm-denies-one": Scene(lambda: slurm(3), why="Measured on H200: what a denied GPU looks like."),
    "gb200-slurm-denies-the-one-asked-for": Scene(
        lambda: slurm(3), ("--gpus", DENIED_BUS_ID), why="Measured on H200: what a denied GPU looks like."
    ),
    "gb200-slurm-denies-all-of-a-node": Scene(
        lambda: slurm(2, 3), ("--for", "egm"), why="Measured on H200: what a denied GPU looks like."
    ),
    "gb200-cuda-visible-devices": Scene(
        _healthy("process", environment={"CUDA_VISIBLE_DEVICES": "0"}), why="EGM guide: use CUDA_VISIBLE_DEVICES."
    ),
    "gb200-cdmm": Scene(cdmm, why="NVreg_CoherentGPUMemoryMode=driver (open-gpu-kernel-modules, nv-reg.h)."),
    "gb200-default-seccomp": Scene(default_seccomp, ("--for", "egm"), why="NCCL user guide: Docker's seccomp profile."),
    "gb200-cpuset": Scene(
        _healthy("host", allowed_numa_nodes="0", allowed_cpus="0-71"),
        ("--numa", "1"),
        why="cpuset(7): Mems_allowed_list.",
    ),
    "gb200-egm-mixed": Scene(
        _healthy("gpus[1].nvml", capabilities=0),
        ("--for", "egm"),
        why="open-gpu-kernel-modules, p2p_api.c: EGM of both peers.",
    ),
    "gb200-untuned": Scene(untuned, why="NVIDIA Grace Performance Tuning Guide; IMEX guide: channels."),
    "nvl72-stale-imex-channel": Scene(
        _healthy("driver.imex_channels[0]", major=240), ("--for", "fabric"), why="IMEX guide: channels."
    ),
    "nvl72-port-down": Scene(port_down, ("--for", "rdma"), why="rdma(8): the state of a port without a cable."),
    "nvl72-no-imex-channel": Scene(
        _healthy("driver", imex_channels=()), ("--for", "fabric"), why="IMEX guide: channels."
    ),
    "nvl72-imex-down": Scene(
        _healthy("system.imex", daemon_state="WAITING_FOR_PEERS", domain_status="DOWN"),
        ("--for", "fabric"),
        why="IMEX guide: nvidia-imex-ctl.",
    ),
    "nvl72-route-unhealthy": Scene(
        _healthy(
            "gpus[2].nvml.fabric", health=HEALTHY_FABRIC | {"route_unhealthy": "true"}, health_summary="unhealthy"
        ),
        ("--for", "fabric"),
        why="nvml.h: the fabric's health mask.",
    ),
    "h200-daemon-reload": Scene(daemon_reload, why="NVIDIA Container Toolkit issue 48."),
    "h200-container-of-two": Scene(not_passed_in, ("--expect", "gpus=4"), why="libnvidia-container, nvc_mount.c."),
    "h200-links-down": Scene(_load("h200-links-down"), ("--for", "p2p"), why="nvml.h: state and errors of NVLinks."),
    "h200-sick-gpus": Scene(_load("h200-sick-gpus"), why="nvml.h: rows, recovery action, clocks."),
    "h200-mig": Scene(
        lambda: patched(
            shipped("hgx-h200x4"),
            "gpus[*].nvml",
            mig_mode=True,
            mig_mode_pending=True,
            compute_mode="exclusive-process",
        ),
        ("--for", "p2p,ipc"),
        why="NVIDIA MIG user guide: no P2P, no CUDA IPC.",
    ),
    "h200-driver-updated": Scene(driver_updated, why="nvml.h: NVML_ERROR_LIB_RM_VERSION_MISMATCH."),
    "gb300-healthy": Scene(lambda: gb300(healthy()), why="OCI GB300 quickstart: names, memory; else the GB200 tray."),
    "gb300-cdmm-old-gdrdrv": Scene(gb300_cdmm_old_gdrdrv, why="os-registry.c: CDMM; GDRCopy's changelog: 2.5.1."),
    "station-gb300-card": Scene(station, why="NVIDIA/dgx-spark-playbooks: a GB300 and an RTX PRO 6000 in one machine."),
    "gh200-pair": Scene(gh200_pair, why="dnhkng.github.io, 2026-04-25: two GH200, nvidia-smi topo -p2p n says NS."),
    "gb200-nvlink-ber": Scene(weak_signal, ("--for", "p2p"), why="DCGM 4.6, DcgmHealthWatch.cpp: effective BER 1e-12."),
    "gb200-nvlink-modes": Scene(mixed_modes, ("--for", "p2p"), why="open-gpu-kernel-modules, mem_fabric_import_v2.c."),
    "nvl72-no-egm-fabric-address": Scene(
        no_egm_fabric_address, ("--for", "p2p"), why="open-gpu-kernel-modules, kernel_nvlink.c: P2P on NVSwitches."
    ),
    "b200": Scene(hgx_b200, why="An HGX H200 with NVLink 5: gpu-driver-container, NVIDIA's Fabric Manager guide."),
    "b200-no-ib-umad": Scene(without_umad, ("--for", "fabric"), why="NVIDIA/gpu-operator issue 2781."),
    "b200-no-nvlsm": Scene(b200_without_nvlsm, ("--for", "fabric"), why="siderolabs/extensions issue 717."),
    "h200-off-the-bus": Scene(
        lambda: patched(with_gpu_denied(shipped("hgx-h200x4"), 1, access="ok"), "gpus[3].pci", responds=False),
        why="nvml.h: NVML_ERROR_GPU_IS_LOST; Xid 79.",
    ),
}
