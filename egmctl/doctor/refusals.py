"""Reasons why the driver refuses P2P between GPUs with NVLink."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from egmctl.doctor.findings import as_root, fact, todo
from egmctl.doctor.situation import fabric
from egmctl.model.finding import Confidence, Evidence, Remedy
from egmctl.model.gpu import Gpu, Pair
from egmctl.model.host import Driver
from egmctl.model.kernel_log import DriverMessage
from egmctl.model.machine import Machine
from egmctl.topology.platform import egm

_NOT_TRIED = "(open-gpu-kernel-modules, kernel_nvlink.c)"
_EGM_ADDRESS = as_root(
    "Turn EGM on in the fabric manager (NMX-C) of the NVLink domain, or off in the firmware of this node, then "
    "reset the GPUs.",
    "dmesg | grep 'EGM fabric address'",
)


@dataclass(frozen=True, slots=True)
class P2pRefusal:
    """The reason that matches the facts."""

    cause: str
    remedy: Remedy
    confidence: Confidence = Confidence.HIGH
    evidence: tuple[Evidence, ...] = ()
    chosen: bool = False
    """Whether a deliberately set mode is the reason; without ``--for p2p`` that is only a warning."""


def refusal(machine: Machine, gpu: Gpu, other: Gpu, pair: Pair) -> P2pRefusal | None:
    """Return why P2P between two GPUs with NVLink is refused; ``None`` if the facts do not explain it."""
    if pair.nvlink_count == 0:
        return None
    gpus = gpu, other
    if (mode := mode_without_peers(machine, gpus)) is not None:
        return P2pRefusal(mode, todo("See gpu.mig, gpu.cc-mode and gpu.vgpu."), chosen=True)
    system = (machine.driver or Driver()).nvlink_bandwidth_mode
    modes = {(gpu.nvml.nvlink_bandwidth_mode if gpu.nvml else None) or system for gpu in gpus}
    remedy = todo("See nvlink.bw-mode: give all GPUs one mode that is not OFF, then reset them.")
    if "off" in modes:
        return P2pRefusal(f"NVLink's bandwidth mode is OFF {_NOT_TRIED}", remedy)
    if None not in modes and len(modes) == 2:
        cause = f"their NVLinks are in different bandwidth modes ({' and '.join(sorted(map(str, modes)))})"
        return P2pRefusal(cause, remedy, Confidence.MEDIUM)
    fabrics = [info for gpu in gpus if (info := fabric(gpu)) is not None]
    remedy = todo("See fabric.state and fabric.domain.")
    if any(info.state in ("not-started", "in-progress") for info in fabrics):
        return P2pRefusal("the fabric has not registered them yet", remedy)
    if any(info.health_summary == "unhealthy" for info in fabrics):
        return P2pRefusal(f"the fabric calls one of them unhealthy {_NOT_TRIED}", remedy)
    if len({(info.cluster_uuid, info.clique_id) for info in fabrics}) == 2:
        return P2pRefusal(f"they are in different cliques {_NOT_TRIED}", remedy)
    return _egm_address(machine, gpus, pair)


def mode_without_peers(machine: Machine, gpus: Iterable[Gpu]) -> str | None:
    """Return the configured mode that disables peer access for one of these GPUs; ``None`` if there is none."""
    listed = [gpu.nvml for gpu in gpus if gpu.nvml is not None]
    if any(nvml.mig_mode for nvml in listed):
        return "MIG is on, and its instances have no peers"
    if (machine.driver or Driver()).confidential_compute == "on":
        return "confidential computing is on for single GPUs, which have no peers"
    if any(nvml.virtualization == "vgpu" for nvml in listed):
        return "a vGPU has peers with some profiles only"
    return None


def _egm_address(machine: Machine, gpus: tuple[Gpu, Gpu], pair: Pair) -> P2pRefusal | None:
    """Return the refusal if a GPU may lack the EGM fabric address, which P2P over NVSwitches needs if EGM is on.

    The GPU gets it only if EGM is on in the fabric manager too (gpu_fabric_probe.c). Neither NVML nor CUDA reports it:
    the kernel log shows its lack, as does HOST_NUMA memory that CUDA cannot share across the domain.
    """
    if pair.nvlink_through != "switch" or not any(egm(machine, gpu).able for gpu in gpus):
        return None
    events = () if machine.kernel_log is None else machine.kernel_log.events
    cause = "a GPU on NVSwitches with EGM on and without an EGM fabric address has no P2P at all " + _NOT_TRIED
    if any(event.message is DriverMessage.EGM_NO_FABRIC_ADDRESS for event in events):
        evidence = fact("kernel log", DriverMessage.EGM_NO_FABRIC_ADDRESS.value)
        return P2pRefusal(cause, _EGM_ADDRESS, evidence=(evidence,))
    names = ("HANDLE_TYPE_FABRIC_SUPPORTED", "HOST_NUMA_MULTINODE_IPC_SUPPORTED")
    bits = [tuple(gpu.cuda.attributes.get(name) for name in names) for gpu in gpus if gpu.cuda]
    if (1, 0) in bits:
        evidence = fact("cuDeviceGetAttribute", f"{names[0]} 1, {names[1]} 0")
        return P2pRefusal(cause, _EGM_ADDRESS, Confidence.MEDIUM, (evidence,))
    if (1, 1) in bits:
        return None
    return P2pRefusal(f"possibly: {cause}; whether these GPUs have one was not read", _EGM_ADDRESS, Confidence.LOW)
