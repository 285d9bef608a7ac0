"""Checks of NUMA: placement of host memory, memory of each node, and GPU memory as NUMA nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from egmctl.doctor import situation
from egmctl.doctor.check import Scope, Verdicts, check, known, skip
from egmctl.doctor.findings import fact, failed, noted, passed, unknown, warned
from egmctl.model.finding import Evidence, Finding, Guard, Place, on_gpus, on_numa
from egmctl.model.gpu import Gpu
from egmctl.model.host import Confinement, Driver, Host, HugePages, NumaKind, NumaNode, System
from egmctl.model.machine import Machine
from egmctl.model.record import Reason
from egmctl.model.remedy import Need, as_root, todo
from egmctl.topology.platform import PARAMETERS, MemoryMode, memory_mode, own_node
from egmctl.units import format_size, listed, parse_kernel_list, several

CALLS = ("get_mempolicy", "mbind", "set_mempolicy")


@check("numa.mempolicy-syscalls", Guard.EGM, Guard.PERF, sections=("confinement",))
def _mempolicy(machine: Machine, _scope: Scope) -> Verdicts:
    confinement = machine.confinement or Confinement()
    answers = {name: (confinement.system_calls or {}).get(name) for name in CALLS}
    for name, answer in answers.items():
        yield fact(f"{name}(2)", answer, None if answer in (None, "ok", "killed") else answer)
    yield fact("/proc/self/status: Seccomp", confinement.seccomp)
    blocked = [name for name, answer in answers.items() if answer not in (None, "ok")]
    if blocked:
        remedy = todo("Remove the system call filter of this process (systemd: SystemCallFilter=).")
        if situation.in_container(machine):
            remedy = todo(
                "Give the container CAP_SYS_NICE (docker run --cap-add SYS_NICE; in Kubernetes "
                "securityContext.capabilities.add), or a seccomp profile that allows these calls."
            )
        yield failed(
            f"{listed(blocked)} {'are' if len(blocked) > 1 else 'is'} refused, so HOST_NUMA memory cannot be allocated",
            remedy,
            cause="a system call filter: the default ones of Docker and Kubernetes ask for CAP_SYS_NICE",
        )
    elif None in answers.values():
        yield unknown(f"not tried: {', '.join(name for name, answer in answers.items() if answer is None)}")
    else:
        yield passed("memory policy system calls are allowed")


@check("numa.cpuset-mems", Guard.EGM, Guard.PERF, sections=("host",))
def _cpuset(machine: Machine, scope: Scope) -> Verdicts:
    host, required, in_scope = machine.host or Host(), scope.numa is not None, scope.numa_of(machine)
    empty = {node.id for node in host.numa_nodes or () if node.kind is NumaKind.CPU_ONLY}.intersection(in_scope)
    nodes = [node for node in in_scope if node not in empty]
    if required and empty:
        remedy = todo("Leave it out of --numa, or look for its memory: the firmware's setup, and its DIMMs.")
        yield failed("this NUMA node is required (--numa), but it has no memory", remedy, on_numa(empty))
        if not nodes:
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
        not_allowed = "memory of this NUMA node is required (--numa), but the cpuset does not allow it"
        yield failed(not_allowed, remedy, on_numa(denied), cause="cpuset.mems of the cgroup")
    elif denied:
        yield passed(
            "the cpuset does not allow memory of this NUMA node: HOST_NUMA memory cannot be allocated there",
            on_numa(denied),
            note="usual for a job with some of the NUMA nodes; --for egm or --numa makes that a fault",
            remedy=remedy,
            blocks=(Guard.EGM,),
        )
    elif nodes:
        yield passed("the cpuset allows the memory of every CPU NUMA node", on_numa(nodes))
    else:
        yield unknown("no NUMA node with CPUs was read")


def _all_gpus(machine: Machine, scope: Scope) -> tuple[Gpu, ...]:
    return scope.gpus_of(machine) or skip(situation.NO_NVIDIA_GPU)


def _has_c2c(machine: Machine, gpu: Gpu) -> bool:
    return bool(situation.coherent(machine) and situation.coherent_gpus(machine, [gpu]))


@situation.check_gpus("numa.gpu-affinity", Guard.EGM, Guard.PERF, sections=("host", "gpus"), gpus_of=_all_gpus)
def _gpu_affinity(machine: Machine, _scope: Scope, gpu: Gpu) -> Verdicts:
    node = known(gpu.pci.numa_node if gpu.pci else None, "the NUMA node of these GPUs was not read")
    yield fact(f"/sys/bus/pci/devices/{gpu.bus_id}/numa_node", node)
    remedy = as_root("Update the system firmware: ACPI (_PXM) must report it.", Need.REBOOT)
    silent = "the firmware does not report the NUMA node of these GPUs"
    if node >= 0:
        yield passed("the NUMA node of each GPU is known")
    elif _has_c2c(machine, gpu):
        cause = "UVM uses EGM only where the GPU's closest CPU node is known (open-gpu-kernel-modules, uvm_gpu.c)"
        yield failed(f"{silent}, and EGM needs it", remedy, cause=cause)
    elif len(Scope().numa_of(machine)) <= 1:
        yield passed(f"{silent}; there is only one node", note="usual in virtual machines")
    else:
        yield warned(silent, remedy, cause="NCCL, MPI and job managers place processes by it")


@check("numa.mode", Guard.EGM, Guard.PERF, sections=("gpus", "driver"))
def _mode(machine: Machine, scope: Scope) -> Verdicts:
    situation.need_c2c(machine, "only memory of GPUs with NVLink-C2C can be a NUMA node")
    gpus = situation.usable_coherent_gpus(machine, scope)
    broken = [gpu for gpu in gpus if gpu.proc and (gpu.proc.numa_status or "").startswith("online_failed")]
    without_node = [gpu for gpu in gpus if own_node(gpu) is None]
    yield from mode_evidence(machine)
    for gpu in gpus:
        yield fact(f"GPU NUMA id of GPU{gpu.index}", "none" if gpu in without_node else own_node(gpu))
    if broken:
        yield failed(
            "the kernel failed to bring the GPU's memory online as a NUMA node",
            as_root("See numa.auto-online, then look for driver messages.", look="dmesg | grep -i NVRM"),
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
    elif not without_node:
        yield passed("each GPU's memory is a NUMA node", gpus)
    elif len(without_node) == len(gpus):
        yield unknown("whether GPU memory is a NUMA node is unknown")
    else:
        yield warned(
            "their memory is no NUMA node, while that of the other GPUs is",
            as_root(
                "Look for driver messages about onlining memory, and reload the driver.",
                Need.DRIVER_RELOAD,
                look="dmesg | grep -i NVRM",
            ),
            without_node,
        )


def mode_evidence(machine: Machine) -> tuple[Evidence, ...]:
    """Return as evidence the module parameters that control the memory mode of coherent GPUs."""
    parameters = (machine.driver or Driver()).module_parameters
    return tuple(
        fact(f"NVreg_{name}", None if parameters is None else parameters.get(name, "").strip('"') or "unset")
        for name in PARAMETERS
    )


@situation.check_gpus("uvm.addressing-mode", Guard.EGM, Guard.PERF, sections=("gpus", "driver", "system"))
def _addressing(machine: Machine, _scope: Scope, gpu: Gpu) -> Verdicts:
    has_c2c = _has_c2c(machine, gpu)
    mode = known(
        gpu.nvml.addressing_mode if gpu.nvml else None, "NVML does not report how the GPUs address host memory"
    )
    yield fact("nvmlDeviceGetAddressingMode", mode)
    shared_addressing = ((machine.system or System()).kernel_configuration or {}).get("ARM_SMMU_V3_SVA")
    if has_c2c:
        yield fact("uvm_ats_mode", ((machine.driver or Driver()).uvm_parameters or {}).get("uvm_ats_mode"))
        yield fact("CONFIG_ARM_SMMU_V3_SVA", shared_addressing)
    if mode == "ats":
        yield passed("the GPUs use the CPU's page tables (ATS)")
    elif has_c2c:
        cause = "GPUs with NVLink-C2C need ATS to reach malloc'ed memory"
        text = "Boot a kernel with CONFIG_ARM_SMMU_V3_SVA, without iommu.passthrough, uvm_ats_mode at 1."
        if shared_addressing == "n":
            cause = "the kernel is built without CONFIG_ARM_SMMU_V3_SVA, which ATS needs"
            text = "Boot a kernel with CONFIG_ARM_SMMU_V3_SVA=y: no setting of this one helps."
        no_ats = f"the GPUs do not use the CPU's page tables (addressing mode {mode})"
        yield failed(no_ats, as_root(text, Need.REBOOT), cause=cause)
    else:
        notes = {"none": "memory must be allocated with CUDA", "hmm": "pageable memory is migrated as it is touched"}
        yield passed(f"addressing mode {mode}", note=notes.get(mode, ""))


SMALL, FULL, SCARCE = 0.75, 0.02, 0.25
"""Our choice of thresholds. A node is reported if it has less than ``SMALL`` of the largest sibling's memory, less than
``FULL`` of its memory available, or less available than ``SCARCE`` of a sibling's free memory."""
_NODES_OF_A_GPU = 8
"""The number of NUMA nodes that a coherent GPU reserves for MIG."""

_FIND_CPUS = as_root(
    "Look for the CPUs: firmware setup (sub-NUMA clustering, NPS) and event log, the kernel's maxcpus= and numa=off.",
    look="lsmem",
)
FIND_MEMORY = as_root(
    "Look for its memory: firmware setup and event log, the kernel's mem=, offline blocks.", look="lsmem"
)


@check("numa.memory", Guard.EGM, Guard.PERF, sections=("host",), wants=("gpus", "driver"))
def _memory(machine: Machine, scope: Scope) -> Verdicts:
    nodes, in_scope = known((machine.host or Host()).numa_nodes, "the NUMA nodes were not read"), scope.numa_of(machine)
    wanted = scope.expectation.numa_nodes or 0
    if len(machine.cpu_nodes) < wanted:
        here = f"{len(machine.cpu_nodes)} of the {several(wanted, 'expected NUMA node')} with CPUs are here"
        yield failed(here, _FIND_CPUS)
    # numa.cpuset-mems reports a node without memory that --numa requires.
    bare = [node for node in nodes if node.kind is NumaKind.CPU_ONLY and node.id in in_scope and scope.numa is None]
    siblings = [node for node in nodes if node.kind is NumaKind.CPU]
    candidates = [node for node in siblings if node.id in in_scope]
    largest = max((node.memory_total_bytes or 0 for node in siblings), default=0)
    version = (machine.driver or Driver()).driver_version
    crash = ""
    if (situation.numbers(version) or (595,)) < (595,):
        crash = "before driver 595 cuMemCreate crashes on nodes of unequal memory (NVIDIA/nccl, issue 2106)"
    if bare:
        report, evidence = failed if crash else warned, (*_sizes(bare), fact("driver", version))
        no_memory = "CPUs without memory: no HOST_NUMA memory can be allocated here"
        yield report(no_memory, FIND_MEMORY, _on(*bare), evidence=evidence, cause=crash)
    yield from _without_cpus(machine, scope, nodes)
    for node in candidates:
        if node.memory_total_bytes is None:
            yield unknown("how much memory these NUMA nodes have was not read", _on(node))
        elif node.memory_total_bytes < SMALL * largest:
            text, evidence = "less memory than the other NUMA nodes have", (*_sizes(siblings), fact("driver", version))
            yield warned(text, FIND_MEMORY, _on(node), evidence=evidence, cause=crash)
        else:
            yield _available(node, node.memory_total_bytes, siblings)
            yield from idle_pools(node.huge_pages or (), node.memory_total_bytes, _on(node))
    if not candidates and not bare:
        yield unknown("no NUMA node with CPUs and memory was read")


def _on(*nodes: NumaNode) -> Place:
    return on_numa(node.id for node in nodes)


def _without_cpus(machine: Machine, scope: Scope, nodes: Iterable[NumaNode]) -> Iterator[Finding]:
    gpus = machine.gpus or ()
    unowned = []
    for node in nodes:
        local = [gpu for gpu in gpus if gpu.pci is not None and gpu.pci.numa_node == node.id]
        if node.kind not in (NumaKind.MEMORY_ONLY, NumaKind.EMPTY):
            continue
        if not local and node.kind is NumaKind.MEMORY_ONLY and not any(_owns(gpu, node.id) for gpu in gpus):
            unowned.append(node)
        elif local and (scope.numa is None or node.id in scope.numa):
            yield failed(
                f"no CPUs on the node of {on_gpus(local).label}: the driver refuses HOST_NUMA memory there",
                as_root("Bring its CPUs online (see /sys/devices/system/cpu/offline, maxcpus=, nr_cpus=)."),
                _on(node),
                evidence=_sizes([node]),
                cause="HOST_NUMA memory needs a node with CPUs (https://github.com/NVIDIA/nccl, issue 2190)",
            )
    if not unowned:
        return
    may_own = () if memory_mode(machine) is MemoryMode.CDMM else situation.coherent_gpus(machine, gpus)
    if len([gpu for gpu in may_own if own_node(gpu) is None]) >= len(unowned):
        yield unknown("whether this is a GPU's memory is unknown", _on(*unowned))
        return
    yield (warned if situation.coherent(machine) else noted)(
        "memory without CPUs, and no GPU's: CUDA allocates nothing there",
        remedy=todo("Find out what it is (lsmem, dmesg), and bind no process to it alone."),
        place=_on(*unowned),
        evidence=_sizes(unowned),
        cause="see https://github.com/NVIDIA/open-gpu-kernel-modules, issue 885",
    )


def _owns(gpu: Gpu, node: int) -> bool:
    own, has_mig = own_node(gpu), gpu.nvml is not None and gpu.nvml.mig_mode is True
    return own is not None and own <= node < own + (_NODES_OF_A_GPU if has_mig else 1)


def _available(node: NumaNode, total: int, siblings: list[NumaNode]) -> Finding:
    """Return the finding on the free memory of a node or, if that is low, free and reclaimable memory."""
    place, free = _on(node), node.memory_free_bytes
    enough = max(FULL * total, SCARCE * max(sibling.memory_free_bytes or 0 for sibling in siblings))
    if free is not None and free < enough:
        # The kernel reclaims the page cache when memory is allocated.
        free = None if node.memory_reclaimable_bytes is None else free + node.memory_reclaimable_bytes
    remedy = todo("Find what holds it (numastat -m, /dev/shm, huge pages, processes), and free it.", look="numastat -m")
    if free is None:
        return unknown("how much memory is available was not read", place, evidence=_sizes([node]))
    if free < FULL * total:
        summary = "hardly any memory is available: HOST_NUMA memory of this node fails"
        return warned(summary, remedy, place, evidence=_sizes(siblings))
    if free < enough:
        summary = "much less memory is available than on another NUMA node"
        return noted(summary, place, remedy=remedy, evidence=_sizes(siblings))
    return passed("memory is available", place, evidence=_sizes([node]))


_IDLE_POOL = 0.25
"""The share of a node's memory from which unused huge pages are noted. Our choice: programs take pages of a pool by
request only, so that what a pool has is missing everywhere else."""
_SHRINK = as_root(
    "Where no program is to take them, make the pool smaller (vm.nr_hugepages, hugepages= of the kernel).",
    look="grep -i huge /proc/meminfo",
)


def idle_pools(pools: Iterable[HugePages], total: int, place: Place) -> Iterator[Finding]:
    """Yield a note if unused huge pages hold much of the memory of a node, or of the host.

    See https://github.com/sgl-project/sglang/pull/38208.
    """
    filled = [pool for pool in pools if pool.total and pool.free]
    unused = sum((pool.free or 0) * pool.page_size_bytes for pool in filled)
    if unused < _IDLE_POOL * total:
        return
    held = sum((pool.total or 0) * pool.page_size_bytes for pool in filled)
    counts = {format_size(pool.page_size_bytes): f"{pool.total}, {pool.free} free" for pool in filled}
    evidence = tuple(fact(f"huge pages of {size}", count) for size, count in counts.items())
    yield noted(
        f"a pool of huge pages holds {format_size(held)} of {format_size(total)}, {format_size(unused)} of it unused",
        place,
        remedy=_SHRINK,
        cause="only programs that ask for huge pages get memory of the pool",
        evidence=evidence,
    )


def _sizes(nodes: list[NumaNode]) -> tuple[Evidence, ...]:
    def size(value: int | None) -> str:
        return "not read" if value is None else format_size(value)

    return tuple(
        fact(
            f"/sys/devices/system/node/node{node.id}",
            f"CPUs {node.cpus or 'none'}; MemTotal {size(node.memory_total_bytes)}, MemFree "
            f"{size(node.memory_free_bytes)}, reclaimable {size(node.memory_reclaimable_bytes)}",
        )
        for node in nodes
    )


@check("numa.policy", Guard.EGM, Guard.PERF, sections=("host",))
def _policy(machine: Machine, scope: Scope) -> Verdicts:
    host, nodes = machine.host or Host(), scope.numa_of(machine)
    if host.memory_policy is None and host.reason_of("memory_policy") in (Reason.NOT_PRESENT, Reason.NOT_STATED):
        skip("no memory policy is stated of this process (no numa_maps)")
    policy = known(host.memory_policy, "the memory policy of this process was not read")
    yield fact("/proc/self/numa_maps", policy)
    bound = re.fullmatch(r"bind(?:=\w+)*:([0-9,-]+)", policy)
    denied = [node for node in nodes if bound and node not in parse_kernel_list(bound[1])]
    not_allowed = "the memory policy of this process does not allow memory of this NUMA node"
    remedy = todo("Start it without numactl --membind (Slurm: --mem-bind=none), or with all nodes.")
    if not nodes:
        yield unknown("no NUMA node with CPUs was read")
    elif not denied:
        yield passed("no memory policy keeps this process off a NUMA node", on_numa(nodes))
    elif scope.numa is not None:
        yield warned(not_allowed, remedy, on_numa(denied), blocks=(Guard.EGM,))
    else:
        note = "--for egm makes that a fault, --numa a warning"
        yield passed(not_allowed, on_numa(denied), note=note, remedy=remedy, blocks=(Guard.EGM,))
