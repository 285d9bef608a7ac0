"""NUMA: may host memory be placed where it is asked for, and where is the GPUs' own?"""

from __future__ import annotations

from egmctl.doctor.check import Scope, Verdicts, about, check, known, skip
from egmctl.doctor.findings import PARAMS, as_root, fact, failed, passed, todo, unknown, warned
from egmctl.doctor.situation import NO_NVIDIA_GPU, coherent, coherent_gpus, in_container
from egmctl.doctor.subject import need_c2c, usable_coherent_gpus, usable_gpus
from egmctl.model.finding import Evidence, Guard, on_numa
from egmctl.model.machine import Confinement, Driver, Gpu, Host, Machine, NumaKind, System
from egmctl.topology.platform import PARAMETERS, MemoryMode, memory_mode, own_node
from egmctl.units import listed, parse_kernel_list

CALLS = ("get_mempolicy", "mbind", "set_mempolicy")


@check("numa.mempolicy-syscalls", Guard.EGM, Guard.PERF, sections=("confinement",))
def _mempolicy(machine: Machine, scope: Scope) -> Verdicts:
    confinement = machine.confinement or Confinement()
    answers = {name: (confinement.system_calls or {}).get(name) for name in CALLS}
    for name, answer in answers.items():
        yield fact(f"{name}(2)", answer, None if answer in (None, "ok", "killed") else answer)
    yield fact("/proc/self/status: Seccomp", confinement.seccomp)
    blocked = [name for name, answer in answers.items() if answer not in (None, "ok")]
    if blocked:
        in_docker = in_container(machine)
        yield (warned if scope.purposes is not None and not scope.asked_purpose(Guard.EGM) else failed)(
            f"{listed(blocked)} {'are' if len(blocked) > 1 else 'is'} refused, so HOST_NUMA memory cannot be allocated",
            todo(
                "Give the container CAP_SYS_NICE (docker run --cap-add SYS_NICE; in Kubernetes "
                "securityContext.capabilities.add), or a seccomp profile that allows these calls."
                if in_docker
                else "Remove the system call filter of this process (systemd: SystemCallFilter=)."
            ),
            cause="the default seccomp profiles of Docker and Kubernetes allow them with CAP_SYS_NICE only"
            if in_docker
            else "a system call filter",
        )
    elif None in answers.values():
        yield unknown(f"not tried: {', '.join(name for name, answer in answers.items() if answer is None)}")
    else:
        yield passed("memory policy system calls are allowed")


@check("numa.cpuset-mems", Guard.EGM, Guard.PERF, sections=("host",))
def _cpuset(machine: Machine, scope: Scope) -> Verdicts:
    host, required = machine.host or Host(), scope.numa is not None
    empty = [node.id for node in host.numa_nodes or () if node.kind is NumaKind.CPU_ONLY]
    nodes = [node for node in scope.numa_of(machine) if node not in empty]
    if required:
        for node in scope.numa_of(machine):
            if node in empty:
                yield failed(
                    "this NUMA node is required (--numa), but it has no memory",
                    todo("Leave it out of --numa, or look for its memory: the firmware's setup, and its DIMMs."),
                    on_numa([node]),
                )
        if not nodes and scope.numa_of(machine):
            return
    allowed = known(host.allowed_numa_nodes, "Mems_allowed_list could not be read")
    yield fact("/proc/self/status: Mems_allowed_list", allowed)
    yield fact("/proc/self/status: Cpus_allowed_list", host.allowed_cpus)
    denied = [node for node in nodes if node not in parse_kernel_list(allowed)]
    remedy = todo(
        "Request memory of that node (Slurm: --mem-bind=none and whole nodes; Kubernetes: memory manager policy; "
        "systemd: AllowedMemoryNodes=; docker: --cpuset-mems), or name only other nodes with --numa."
    )
    if denied and required:
        yield failed(
            "memory of this NUMA node is required (--numa), but the cpuset does not allow it",
            remedy,
            on_numa(denied),
            cause="cpuset.mems of the cgroup; an allocation with HOST_NUMA on that node fails",
        )
    elif denied and scope.asked_purpose(Guard.EGM):
        yield warned("the cpuset does not allow memory of this NUMA node", remedy, on_numa(denied))
    elif denied:
        yield passed(
            "the cpuset allows only some NUMA nodes",
            note=f"HOST_NUMA memory on NUMA {', '.join(map(str, denied))} cannot be allocated here; --for egm makes "
            "that a warning, --numa a fault",
        )
    elif nodes:
        yield passed("the cpuset allows the memory of every CPU NUMA node", on_numa(nodes))
    else:
        yield unknown("no NUMA node with CPUs was read")


@check("numa.gpu-affinity", Guard.EGM, Guard.PERF, sections=("host", "gpus"))
def _gpu_affinity(machine: Machine, scope: Scope) -> Verdicts:
    single = len(Scope().numa_of(machine)) <= 1
    for gpu in scope.gpus_of(machine) or skip(NO_NVIDIA_GPU):
        yield from about(gpu, _node_of(gpu, single, bool(coherent(machine) and coherent_gpus(machine, [gpu]))))


def _node_of(gpu: Gpu, single: bool, has_c2c: bool) -> Verdicts:
    node = known(gpu.pci.numa_node if gpu.pci else None, "the NUMA node of these GPUs was not read")
    yield fact(f"/sys/bus/pci/devices/{gpu.bus_id}/numa_node", node)
    remedy = as_root("Update the system firmware: ACPI (_PXM) must report it.", reboot=True)
    silent = "the firmware does not report the NUMA node of these GPUs"
    if node >= 0:
        yield passed("the NUMA node of each GPU is known")
    elif has_c2c:
        cause = "UVM uses EGM only where the GPU's closest CPU node is known (open-gpu-kernel-modules, uvm_gpu.c)"
        yield failed(f"{silent}, and EGM needs it", remedy, cause=cause)
    elif single:
        yield passed(f"{silent}; there is only one node", note="usual in virtual machines")
    else:
        yield warned(silent, remedy, cause="NCCL, MPI and job managers place processes by it")


@check("numa.mode", Guard.EGM, Guard.PERF, sections=("gpus", "driver"))
def _mode(machine: Machine, scope: Scope) -> Verdicts:
    need_c2c(machine, "only memory of GPUs with NVLink-C2C can be a NUMA node")
    gpus = usable_coherent_gpus(machine, scope)
    broken = [gpu for gpu in gpus if gpu.proc and (gpu.proc.numa_status or "").startswith("online_failed")]
    without = [gpu for gpu in gpus if own_node(gpu) is None]
    yield from mode_evidence(machine)
    for gpu in gpus:
        yield fact(f"GPU NUMA id of GPU{gpu.index}", "none" if gpu in without else own_node(gpu))
    if broken:
        yield failed(
            "the kernel failed to bring the GPU's memory online as a NUMA node",
            as_root("See numa.auto-online, then look for driver messages.", "dmesg | grep -i NVRM"),
            broken,
            evidence=(fact("/proc/driver/nvidia/gpus/*/numa_status", "online_failed"),),
        )
    elif memory_mode(machine) is MemoryMode.CDMM:
        yield passed(
            "the driver manages the GPUs' memory itself (CDMM)",
            gpus,
            note="GPU memory is no NUMA node: numactl and mbind cannot place anything there, malloc'ed memory stays "
            "with the CPU, and the CPU loads and stores GPU memory through GDRCopy only (rdma.gdrcopy). EGM is the "
            "CPUs' memory and does not depend on it",
        )
    elif not without:
        yield passed("each GPU's memory is a NUMA node", gpus)
    elif len(without) == len(gpus):
        yield unknown("whether GPU memory is a NUMA node is unknown")
    else:
        yield warned(
            "their memory is no NUMA node, while that of the other GPUs is",
            as_root("Reload the driver, and look for driver messages about onlining memory.", "dmesg | grep -i NVRM"),
            without,
        )


def mode_evidence(machine: Machine) -> tuple[Evidence, ...]:
    """Return as evidence the module parameters that decide over the memory of coherent GPUs."""
    parameters = (machine.driver or Driver()).module_parameters
    return tuple(
        fact(f"{PARAMS}: {name}", None if parameters is None else parameters.get(name, "").strip('"') or "unset")
        for name in PARAMETERS
    )


@check("uvm.addressing-mode", Guard.EGM, Guard.PERF, sections=("gpus", "driver", "system"))
def _addressing(machine: Machine, scope: Scope) -> Verdicts:
    for gpu in usable_gpus(machine, scope):
        has_c2c = bool(coherent(machine) and coherent_gpus(machine, [gpu]))
        mode = gpu.nvml.addressing_mode if gpu.nvml else None
        yield from about(gpu, _addressing_of(machine, mode, has_c2c))


def _addressing_of(machine: Machine, mode: str | None, has_c2c: bool) -> Verdicts:
    mode = known(mode, "NVML does not report how the GPUs address host memory")
    yield fact("nvmlDeviceGetAddressingMode", mode)
    if has_c2c:
        yield fact("uvm_ats_mode", ((machine.driver or Driver()).uvm_parameters or {}).get("uvm_ats_mode"))
        options = (machine.system or System()).kernel_configuration or {}
        yield fact("CONFIG_ARM_SMMU_V3_SVA", options.get("ARM_SMMU_V3_SVA"))
    if mode == "ats":
        yield passed("the GPUs use the CPU's page tables (ATS)")
    elif has_c2c:
        yield failed(
            f"the GPUs do not use the CPU's page tables (addressing mode {mode})",
            as_root("Boot with CONFIG_ARM_SMMU_V3_SVA, without iommu.passthrough, uvm_ats_mode at 1.", reboot=True),
            cause="GPUs with NVLink-C2C need ATS to reach malloc'ed memory",
        )
    else:
        notes = {"none": "memory must be allocated with CUDA", "hmm": "pageable memory is migrated as it is touched"}
        yield passed(f"addressing mode {mode}", note=notes.get(mode, ""))
