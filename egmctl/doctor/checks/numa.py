"""NUMA: may host memory be placed where it is asked for, and where is the GPUs' own?"""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.doctor.check import Check, Scope, failed, needing, passed, skipped, unknown, warned
from egmctl.doctor.situation import (
    NO_NVIDIA_GPU,
    by_value,
    coherent,
    coherent_gpus,
    in_container,
    needs_coherence,
    needs_coherent_gpu,
    needs_gpu,
    usable,
)
from egmctl.model.finding import Evidence, Finding, Guard, Remedy, on_gpus, on_numa
from egmctl.model.machine import Confinement, Driver, Host, Machine, NumaKind, System
from egmctl.topology.platform import PARAMETERS, MemoryMode, memory_mode, own_node
from egmctl.units import format_size, parse_kernel_list

CALLS = ("get_mempolicy", "mbind", "set_mempolicy")


def _mempolicy(machine: Machine, scope: Scope) -> Iterator[Finding]:
    confinement = machine.confinement or Confinement()
    answers = confinement.system_calls or {}
    told = {name: answer for name in CALLS if (answer := answers.get(name)) is not None}
    evidence = tuple(
        Evidence(source=f"{name}(2)", value=answer, errno=None if answer in ("ok", "killed") else answer)
        for name, answer in told.items()
    )
    blocked = [name for name, answer in told.items() if answer != "ok"]
    if blocked:
        tell = warned if scope.purposes is not None and not scope.asked_purpose(Guard.EGM) else failed
        container = in_container(machine)
        yield tell(
            f"{_words(blocked)} refused, so HOST_NUMA memory cannot be allocated",
            Remedy(
                text="Give the container CAP_SYS_NICE (docker run --cap-add SYS_NICE; in Kubernetes "
                "securityContext.capabilities.add), or a seccomp profile that allows these calls."
                if container
                else "Remove the system call filter of this process (systemd: SystemCallFilter=).",
            ),
            evidence=(
                *evidence,
                Evidence(source="/proc/self/status: Seccomp", value=confinement.seccomp or "not read"),
            ),
            cause="the default seccomp profiles of Docker and Kubernetes allow them with CAP_SYS_NICE only"
            if container
            else "a system call filter",
        )
    elif len(told) == len(CALLS):
        yield passed("memory policy system calls are allowed", evidence=evidence)
    else:
        yield unknown(f"not tried: {', '.join(name for name in CALLS if name not in told)}", evidence=evidence)


def _words(names: list[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last} are" if others else f"{last} is"


def _cpuset(machine: Machine, scope: Scope) -> Iterator[Finding]:
    host = machine.host or Host()
    nodes = scope.numa_of(machine)
    empty = [one for one in host.numa_nodes or () if one.kind is NumaKind.CPU_ONLY and one.id in nodes]
    nodes = tuple(node for node in nodes if node not in {one.id for one in empty})
    if empty and scope.numa is not None:
        yield failed(
            "this NUMA node is required (--numa), but it has no memory",
            Remedy(text="Leave it out of --numa, or look for its memory: the firmware's setup, and its DIMMs."),
            place=on_numa(one.id for one in empty),
            evidence=tuple(
                Evidence(
                    source=f"/sys/devices/system/node/node{one.id}/meminfo: MemTotal",
                    value="not read" if one.memory_total_bytes is None else format_size(one.memory_total_bytes),
                )
                for one in empty
            ),
        )
        if not nodes:
            return
    if host.allowed_numa_nodes is None:
        yield unknown("Mems_allowed_list could not be read")
        return
    allowed = set(parse_kernel_list(host.allowed_numa_nodes))
    evidence = (
        Evidence(source="/proc/self/status: Mems_allowed_list", value=host.allowed_numa_nodes),
        Evidence(source="/proc/self/status: Cpus_allowed_list", value=host.allowed_cpus or "not read"),
    )
    denied = [node for node in nodes if node not in allowed]
    if denied and scope.numa is not None:
        yield failed(
            "memory of this NUMA node is required (--numa), but the cpuset does not allow it",
            _ALLOW,
            place=on_numa(denied),
            evidence=evidence,
            cause="cpuset.mems of the cgroup; an allocation with HOST_NUMA on that node fails",
        )
    elif denied and scope.asked_purpose(Guard.EGM):
        yield warned(
            "the cpuset does not allow memory of this NUMA node", _ALLOW, place=on_numa(denied), evidence=evidence
        )
    elif denied:
        yield passed(
            "the cpuset allows only some NUMA nodes",
            evidence=evidence,
            note=f"HOST_NUMA memory on NUMA {', '.join(map(str, denied))} cannot be allocated here; --for egm makes "
            "that a warning, --numa a fault",
        )
    elif nodes:
        yield passed("the cpuset allows the memory of every CPU NUMA node", place=on_numa(nodes), evidence=evidence)
    else:
        yield unknown("no NUMA node with CPUs was read", evidence=evidence)


_ALLOW = Remedy(
    text="Request memory of that node from the resource manager (Slurm: --mem-bind=none and whole nodes; Kubernetes: "
    "memory manager policy; systemd: AllowedMemoryNodes=; docker: --cpuset-mems), or name only other nodes with --numa."
)


def _gpu_affinity(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus = scope.gpus_of(machine)
    told = [(gpu, gpu.pci.numa_node) for gpu in gpus if gpu.pci is not None and gpu.pci.numa_node is not None]
    if unread := [gpu for gpu in gpus if gpu not in [one for one, _ in told]]:
        yield unknown("the NUMA node of these GPUs was not read", place=on_gpus(unread))
    if not told:
        if not gpus:
            yield skipped(NO_NVIDIA_GPU)
        return
    without = tuple(gpu for gpu, node in told if node < 0)
    cut_off = coherent_gpus(machine, without) if coherent(machine) else ()
    others = tuple(gpu for gpu in without if gpu not in cut_off)
    evidence = tuple(
        Evidence(source=f"/sys/bus/pci/devices/{gpu.bus_id}/numa_node", value=str(node)) for gpu, node in told
    )
    remedy = Remedy(text="Update the system firmware: ACPI (_PXM) must report it.", needs_root=True, needs_reboot=True)
    if not without:
        yield passed(
            "the NUMA node of each GPU is known",
            place=on_gpus(gpu for gpu, _ in told),
            evidence=evidence,
        )
        return
    if cut_off:
        yield failed(
            "the firmware does not report the NUMA node of these GPUs, and EGM needs it",
            remedy,
            place=on_gpus(cut_off),
            evidence=evidence,
            cause="UVM uses EGM only where the GPU's closest CPU node is known (open-gpu-kernel-modules, uvm_gpu.c)",
        )
    if others and len(Scope().numa_of(machine)) > 1:
        yield warned(
            "the firmware does not report the NUMA node of these GPUs",
            remedy,
            place=on_gpus(others),
            evidence=evidence,
            cause="NCCL, MPI and job managers place processes by it",
        )
    elif others:
        yield passed(
            "the firmware does not report the NUMA node of the GPUs; there is only one node",
            place=on_gpus(others),
            evidence=evidence,
            note="usual in virtual machines",
        )


@needing(needs_coherence("only memory of GPUs with NVLink-C2C can be a NUMA node"), needs_coherent_gpu)
def _mode(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus = coherent_gpus(machine, usable(machine, scope.gpus_of(machine)))
    mode = memory_mode(machine)
    nodes = [(gpu, own_node(gpu)) for gpu in gpus]
    evidence = (
        *mode_evidence(machine),
        *(
            Evidence(source=f"GPU NUMA id of GPU{gpu.index}", value="none" if node is None else str(node))
            for gpu, node in nodes
        ),
    )
    broken = [gpu for gpu in gpus if gpu.proc and (gpu.proc.numa_status or "").startswith("online_failed")]
    with_node = [gpu for gpu, node in nodes if node is not None]
    without = [gpu for gpu in gpus if gpu not in with_node]
    if broken:
        yield failed(
            "the kernel failed to bring the GPU's memory online as a NUMA node",
            Remedy(
                text="See numa.auto-online, then look for driver messages.",
                command="dmesg | grep -i NVRM",
                needs_root=True,
            ),
            place=on_gpus(broken),
            evidence=(*evidence, Evidence(source="/proc/driver/nvidia/gpus/*/numa_status", value="online_failed")),
        )
    elif mode is MemoryMode.CDMM:
        yield passed(
            "the driver manages the GPUs' memory itself (CDMM)",
            place=on_gpus(gpus),
            evidence=evidence,
            note="GPU memory is no NUMA node: numactl and mbind cannot place anything there, malloc'ed memory stays "
            "with the CPU, and the CPU loads and stores GPU memory through GDRCopy only (rdma.gdrcopy). EGM is the "
            "CPUs' memory and does not depend on it",
        )
    elif with_node and without:
        yield warned(
            f"their memory is no NUMA node, while that of {on_gpus(with_node).label} is",
            Remedy(
                text="Reload the driver, and look for driver messages about onlining memory.",
                command="dmesg | grep -i NVRM",
                needs_root=True,
            ),
            place=on_gpus(without),
            evidence=evidence,
        )
    elif with_node:
        yield passed("each GPU's memory is a NUMA node", place=on_gpus(with_node), evidence=evidence)
    else:
        yield unknown("whether GPU memory is a NUMA node is unknown", evidence=evidence)


def mode_evidence(machine: Machine) -> tuple[Evidence, ...]:
    """What the module parameters say of the memory of coherent GPUs."""
    parameters = (machine.driver or Driver()).module_parameters
    return tuple(
        Evidence(
            source=f"/proc/driver/nvidia/params: {name}",
            value="not read" if parameters is None else parameters.get(name, "").strip('"') or "unset",
        )
        for name in PARAMETERS
    )


@needing(needs_gpu)
def _addressing(machine: Machine, scope: Scope) -> Iterator[Finding]:
    driver = machine.driver or Driver()
    gpus = usable(machine, scope.gpus_of(machine))
    configuration = (machine.system or System()).kernel_configuration or {}
    settings = (
        Evidence(source="uvm_ats_mode", value=(driver.uvm_parameters or {}).get("uvm_ats_mode", "not read")),
        Evidence(source="CONFIG_ARM_SMMU_V3_SVA", value=configuration.get("ARM_SMMU_V3_SVA", "not read")),
    )
    with_c2c = coherent_gpus(machine, gpus) if coherent(machine) else ()
    for (mode, able), group in by_value(
        gpus, lambda gpu: (gpu.nvml.addressing_mode if gpu.nvml else None, gpu in with_c2c)
    ):
        evidence = (
            Evidence(source="nvmlDeviceGetAddressingMode", value=mode or "not read"),
            *(settings if able else ()),
        )
        if mode is None:
            yield unknown(
                "NVML does not report how the GPUs address host memory", place=on_gpus(group), evidence=evidence
            )
        elif mode == "ats":
            yield passed("the GPUs use the CPU's page tables (ATS)", place=on_gpus(group), evidence=evidence)
        elif able:
            yield failed(
                f"the GPUs do not use the CPU's page tables (addressing mode {mode})",
                Remedy(
                    text="Boot a kernel with CONFIG_ARM_SMMU_V3_SVA, without iommu.passthrough, and leave "
                    "uvm_ats_mode at 1.",
                    needs_root=True,
                    needs_reboot=True,
                ),
                place=on_gpus(group),
                evidence=evidence,
                cause="GPUs with NVLink-C2C need ATS to reach malloc'ed memory",
            )
        else:
            words = {
                "none": "memory must be allocated with CUDA",
                "hmm": "pageable memory is migrated as it is touched",
            }
            yield passed(f"addressing mode {mode}", place=on_gpus(group), evidence=evidence, note=words.get(mode, ""))


CHECKS = (
    Check("numa.mempolicy-syscalls", _mempolicy, guards=(Guard.EGM, Guard.PERF), sections=("confinement",)),
    Check("numa.cpuset-mems", _cpuset, guards=(Guard.EGM, Guard.PERF), sections=("host",)),
    Check("numa.gpu-affinity", _gpu_affinity, guards=(Guard.EGM, Guard.PERF), sections=("host", "gpus")),
    Check("numa.mode", _mode, guards=(Guard.EGM, Guard.PERF), sections=("gpus", "driver")),
    Check("uvm.addressing-mode", _addressing, guards=(Guard.EGM, Guard.PERF), sections=("gpus", "driver", "system")),
)
