"""The situation of the process: the platform, the GPUs it can use, and checks that run once per GPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from egmctl.doctor.check import Check, Scope, Verdicts, check, end, findings_on, known, skip
from egmctl.doctor.findings import unknown
from egmctl.model.finding import Guard
from egmctl.model.gpu import Fabric, Gpu, GpuNvml
from egmctl.model.host import INITIAL_NAMESPACES, Confinement, Driver, Host, System
from egmctl.model.machine import Machine
from egmctl.model.remedy import todo
from egmctl.topology.access import Block, classify, obstacle, without_nvml
from egmctl.topology.egm_mode import in_guest
from egmctl.topology.platform import C2c, c2c, multi_node
from egmctl.topology.routes import possible_owners

_NVLINK_5, _BLACKWELL = 7, 10
"""``NVML_NVLINK_VERSION_5_0`` of nvml.h, and the major compute capability of Blackwell."""

NOT_EGM = "not an EGM platform: no GPU has NVLink-C2C"
NO_GPU = "no required GPU can be used from here; the dev.* checks say why"
NOT_COHERENT = "no GPU has NVLink-C2C"
NO_VERBS = "this process may not use the NIC's verbs device"
NO_NVIDIA_GPU = "there is no NVIDIA GPU"
NO_DOMAIN = "the GPUs are in no multi-node NVLink domain"
IN_A_GUEST = todo("Run egmctl inside a virtual machine that has these GPUs: this host cannot test them.")
"""What to do on a host that gives its GPUs to virtual machines."""
NO_COHERENT_GPU = "none of these GPUs has NVLink-C2C, though others of this node have"


def coherent(machine: Machine) -> bool | None:
    """Return whether a GPU has NVLink-C2C, up or down; ``None`` if none is known to have it and some are unknown."""
    states = [c2c(machine, gpu) for gpu in machine.gpus or ()]
    if any(state in (C2c.UP, C2c.DOWN) for state in states):
        return True
    return None if C2c.UNKNOWN in states else False


def coherent_gpus(machine: Machine, gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs that have NVLink-C2C or may have it.

    GPUs of a node can differ: a DGX Station has a GB300 on its Grace CPU and may have another card on PCIe
    (https://github.com/NVIDIA/dgx-spark-playbooks).
    """
    return tuple(gpu for gpu in gpus if c2c(machine, gpu) is not C2c.ABSENT)


def usable(machine: Machine, gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs that NVML lists and this process can access. The ``dev.*`` checks report the others."""
    return tuple(gpu for gpu in gpus if gpu.nvml is not None and obstacle(machine, gpu) is None)


def shared_by_processes(gpus: Iterable[Gpu]) -> bool:
    """Return whether each GPU may have contexts of several processes at a time: its compute mode is known to allow it.

    "Default means multiple contexts are allowed per device" (nvidia-smi(1), Compute Mode).
    """
    return {gpu.nvml.compute_mode if gpu.nvml else None for gpu in gpus} == {"default"}


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


def fabric(gpu: Gpu) -> Fabric | None:
    """Return NVML's fabric information of a GPU; ``None`` if there is none."""
    return gpu.nvml.fabric if gpu.nvml else None


def in_domain(machine: Machine) -> bool:
    """Return whether a GPU of this node is in a multi-node NVLink domain."""
    return any(multi_node(machine, gpu) for gpu in machine.gpus or ())


def manages_nvlink5(machine: Machine) -> bool:
    """Return whether services on this node manage an NVLink 5 fabric: HGX B200 and newer, with switches on the board.

    The switches of a tray with NVLink-C2C are in the rack. NVLink 5 is detected by NVML's version of a link, or by the
    compute capability (10.x), in case no link is up.
    """
    return any(
        gpu.nvml is not None and _has_nvlink5(gpu.nvml) and c2c(machine, gpu) is C2c.ABSENT
        for gpu in machine.gpus or ()
    )


def _has_nvlink5(nvml: GpuNvml) -> bool:
    links = nvml.nvlinks or ()
    versions = (link.version for link in links if link.version is not None)
    is_blackwell = (nvml.compute_capability or (0, 0))[0] == _BLACKWELL
    return bool(links) and (is_blackwell or any(version >= _NVLINK_5 for version in versions))


def in_container(machine: Machine) -> bool:
    """Return whether there are signs of a container."""
    return bool(machine.process and machine.process.container_signs)


def services_hidden(machine: Machine) -> bool:
    """Return whether services of the host may be invisible: in another PID namespace or, if unknown, a container."""
    namespaces = (machine.confinement or Confinement()).namespaces or {}
    number = namespaces.get("pid")
    return in_container(machine) if number is None else number != INITIAL_NAMESPACES["pid"]


def driver_parameters(machine: Machine) -> Mapping[str, str]:
    """Return the parameters of the driver's kernel module; end the check if they were not read."""
    return known((machine.driver or Driver()).module_parameters, "the driver's parameters were not read")


def peer_memory_modules(machine: Machine) -> tuple[str, ...]:
    """Return the loaded kernel modules through which NICs reach GPU memory without dma-buf."""
    versions = (machine.system or System()).module_versions or {}
    return tuple(name for name in ("nvidia_peermem", "nv_peer_mem") if name in versions)


def peer_memory_registered(machine: Machine) -> bool | None:
    """Return whether a loaded module of :func:`peer_memory_modules` has registered with the RDMA stack.

    ``None`` if it is unknown: some stacks (DOCA-OFED) list no clients, so that an empty list tells something only of a
    module that does not use the stack, or of which that was not recorded.
    """
    system = machine.system or System()
    if system.peer_memory_clients is None:
        return None
    if any(name.startswith("nv_mem") for name in system.peer_memory_clients):
        return True
    return None if system.peermem_linked else False


def virtual(machine: Machine) -> bool:
    """Return whether a GPU is passed through to a virtual machine or is a vGPU."""
    return in_guest(machine) is True


def loss(machine: Machine, gpu: Gpu) -> Block | None:
    """Return why this process cannot use a GPU; ``None`` if it can."""
    obstacle = classify(machine, gpu)
    return None if obstacle is None else obstacle.block


def lost(machine: Machine, *blocks: Block) -> list[Gpu]:
    """Return the GPUs that are lost for one of these reasons."""
    return [gpu for gpu in machine.gpus or () if loss(machine, gpu) in blocks]


def requested(machine: Machine, scope: Scope, gpu: Gpu) -> bool:
    """Return whether the user requires this GPU, with ``--gpus`` or ``--expect``.

    If ``--expect`` states more GPUs than are usable, all are required.
    """
    if scope.names_gpu(gpu):
        return True
    expected = scope.expectation
    if expected.reference is not None:
        expected_gpus = (other for other in expected.reference.gpus or () if loss(expected.reference, other) is None)
        return any(other.bus_id == gpu.bus_id for other in expected_gpus)
    return expected.gpus is not None and expected.gpus > sum(loss(machine, gpu) is None for gpu in machine.gpus or ())


def routers(machine: Machine, scope: Scope) -> dict[int, tuple[Gpu, ...]]:
    """Return, by CPU NUMA node in scope, the GPUs on it, which can route EGM to it; nodes without GPUs are left out."""
    return {node: gpus for node in scope.numa_of(machine) if (gpus := possible_owners(machine, node))}


def may_have_egm(machine: Machine) -> bool:
    """Return whether EGM is or may be on: NVML reports it; else a GPU has C2C up, or all GPUs of a Grace are lost."""
    listed = [gpu for gpu in machine.gpus or () if gpu.nvml is not None]
    bits = [gpu.nvml.egm_capable for gpu in listed if gpu.nvml is not None and gpu.nvml.egm_capable is not None]
    if bits:
        return any(bits)
    if any(c2c(machine, gpu) is C2c.UP for gpu in listed):
        return True
    return not listed and "Grace" in ((machine.host and machine.host.cpu_model) or "")


Version = tuple[int, ...]


def numbers(text: str | None) -> Version | None:
    """Return ``570.86.15`` as numbers; ``None`` if the text is not a version."""
    if text is None or not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}", text, re.ASCII):
        return None
    return tuple(map(int, text.split(".")))


def kernel(machine: Machine) -> Version | None:
    """Return the first two numbers of the kernel release, if known."""
    match = re.match(r"([0-9]{1,3})\.([0-9]{1,3})", (machine.host or Host()).kernel or "", re.ASCII)
    return (int(match[1]), int(match[2])) if match else None


def dotted(version: Version | None) -> str:
    """Return a version as text."""
    return "not read" if version is None else ".".join(map(str, version))


GpuRule = Callable[[Machine, Scope, Gpu], Verdicts]


def usable_gpus(machine: Machine, scope: Scope) -> tuple[Gpu, ...]:
    """Return the GPUs in scope that this process can use; skip the check if there are none."""
    return usable(machine, scope.gpus_of(machine)) or skip(NO_GPU)


def answering_gpus(machine: Machine, scope: Scope) -> tuple[Gpu, ...]:
    """Return as :func:`usable_gpus`, for what only NVML reports: if NVML failed, end the check as unknown."""
    if any(loss(machine, gpu) is Block.NVML_FAILED for gpu in scope.gpus_of(machine)):
        end(unknown(without_nvml(machine, "the GPUs")))
    return usable_gpus(machine, scope)


def usable_coherent_gpus(machine: Machine, scope: Scope) -> tuple[Gpu, ...]:
    """Return the usable GPUs in scope that have NVLink-C2C or may have it; skip the check if there are none."""
    if coherent(machine) is False:
        skip(NOT_COHERENT)
    return coherent_gpus(machine, usable_gpus(machine, scope)) or skip(NO_COHERENT_GPU)


def check_gpus(
    check_id: str,
    *guards: Guard,
    sections: tuple[str, ...] = ("gpus",),
    gpus_of: Callable[[Machine, Scope], Iterable[Gpu]] = usable_gpus,
) -> Callable[[GpuRule], Check]:
    """Return a decorator that turns a rule for one GPU into a check.

    Parameters
    ----------
    gpus_of
        A function that returns the GPUs to check, or ends the check.
    """

    def decorate(rule: GpuRule) -> Check:
        @check(check_id, *guards, sections=sections)
        def judge(machine: Machine, scope: Scope) -> Verdicts:
            for gpu in gpus_of(machine, scope):
                yield from findings_on(gpu, rule(machine, scope, gpu))

        return judge

    return decorate


def need_c2c(machine: Machine, reason: str = NOT_COHERENT) -> None:
    """Skip the check if no GPU is known to have NVLink-C2C."""
    if not coherent(machine):
        skip(reason)


def need_domain(machine: Machine) -> None:
    """Skip the check if the machine is not in a multi-node NVLink domain."""
    if not in_domain(machine):
        skip(NO_DOMAIN)
