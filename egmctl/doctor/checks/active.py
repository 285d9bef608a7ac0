"""What ``--active`` tried: HOST_NUMA memory, copies between GPUs, and memory shared between processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from egmctl.doctor.check import Check, Judge, Scope, failed, passed, skipped, unknown
from egmctl.doctor.situation import coherent, coherent_gpus, in_domain, numbers
from egmctl.driver.signatures import Cause, cause_of, cause_of_crash
from egmctl.model.finding import NODE, Confidence, Evidence, Finding, Guard, Place, PlaceKind, Remedy, on_gpus, on_pairs
from egmctl.model.machine import Confinement, Driver, Gpu, Host, Machine, Outcome, Probe, ProbeKind
from egmctl.units import format_kernel_list, parse_kernel_list

NOT_ASKED = "only with --active"
NOT_PERMITTED, NOT_SUPPORTED, PEER_UNSUPPORTED = 800, 801, 217
"""CUDA_ERROR_NOT_PERMITTED, _NOT_SUPPORTED, _PEER_ACCESS_UNSUPPORTED (cuda.h)."""
_SAFE_HOST_NUMA_DRIVER = (595,)
"""The first that does not crash on NUMA nodes without CPUs or memory (https://github.com/NVIDIA/nccl/issues/2106)."""
_MAKING = ("cuMemCreate", "cuMemPoolCreate", "cuMemGetAllocationGranularity", "cuIpcGetMemHandle")

SILENT = Remedy(
    text="Look for PCIe switches that redirect (pcie.acs), an IOMMU that translates (pcie.iommu) and the GPUs' errors; "
    "do not compute over this path.",
    command="dmesg | grep -iE 'DMAR|AMD-Vi|SMMU|Xid'",
    needs_root=True,
)
HANGING = Remedy(
    text="Look for driver messages in the kernel log, and check whether another process resets or holds the GPU.",
    command="dmesg | grep -iE 'NVRM|Xid'",
    needs_root=True,
)
FAILING = Remedy(text="Look for a failed check that explains it, and for driver messages in dmesg.")

KINDS: Mapping[str, tuple[ProbeKind, ...]] = {
    "egm.alloc-active": (ProbeKind.HOST_NUMA,),
    "p2p.verify": (ProbeKind.P2P,),
    "fabric.alloc-active": (ProbeKind.FABRIC,),
    "ipc.legacy-active": (ProbeKind.LEGACY_IPC,),
    "ipc.vmm-active": (ProbeKind.POSIX_FD,),
    "ipc.pool-active": (ProbeKind.POOL,),
    "ipc.event-active": (ProbeKind.IPC_EVENT,),
    "ipc.pidfd-active": (ProbeKind.PIDFD,),
}
"""The probes that each check judges."""


def kinds_of(checks: Iterable[Check]) -> tuple[ProbeKind, ...]:
    """Return the probes that these checks judge."""
    return tuple(kind for check in checks for kind in KINDS.get(check.id, ()))


def _judging(check_id: str) -> Judge:
    kinds = KINDS[check_id]

    def judge(machine: Machine, scope: Scope) -> Iterator[Finding]:
        if machine.probes is None:
            yield skipped(NOT_ASKED)
            return
        groups: dict[tuple[object, ...], list[Probe]] = {}
        for probe in machine.probes:
            if probe.kind in kinds and _is_whole(probe):
                groups.setdefault(_sameness(probe), []).append(probe)
        if not groups:
            yield skipped("no GPU to try it on")
        for probes in groups.values():
            yield replace(_verdict(machine, scope, probes), place=_place(machine, probes))

    return judge


def _is_whole(probe: Probe) -> bool:
    """Say whether those who took part are there, as they are in what this tool wrote."""
    if probe.kind is ProbeKind.HOST_NUMA:
        return len(probe.gpus) == 1 and probe.numa_node is not None
    return len(probe.gpus) == 2


def _sameness(probe: Probe) -> tuple[object, ...]:
    """Return what probes have in common that share a finding."""
    detail = probe.detail if probe.outcome is Outcome.NOT_RUN else ""
    host = probe.numa_node if probe.kind is ProbeKind.HOST_NUMA else probe.numa_node is not None
    return probe.kind, host, probe.outcome, probe.call, probe.error_number, detail


def _verdict(machine: Machine, scope: Scope, probes: list[Probe]) -> Finding:
    first = probes[0]
    what = _subject(machine, probes)
    evidence = tuple(Evidence(source=_participants(machine, probe), value=probe.detail) for probe in probes[:4])
    match first.outcome:
        case Outcome.OK:
            note = _without_c2c(machine, probes) if first.numa_node is not None else ""
            how = _WORKS.get(first.kind, "every byte arrived, both ways")
            return passed(f"{what}: {how}", note=note)
        case Outcome.NOT_RUN:
            return skipped(first.detail)
        case Outcome.CORRUPT:
            return failed(f"{what}: bytes are wrong, though every call succeeded", SILENT, evidence=evidence)
        case Outcome.TIMED_OUT | Outcome.CRASHED:
            how = "did not end in time" if first.outcome is Outcome.TIMED_OUT else "killed its process"
            where = f" in {first.call}" if first.call else ""
            cause = _crash(machine, first) if first.outcome is Outcome.CRASHED else None
            return failed(
                f"{what}: {how}{where}",
                HANGING if cause is None else Remedy(text=cause.remedy),
                evidence=evidence,
                cause=cause.cause if cause else "",
            )
        case Outcome.ERROR:
            return _error(machine, scope, first, what, evidence)


def _crash(machine: Machine, probe: Probe) -> Cause | None:
    driver = machine.driver or Driver()
    version = numbers(driver.driver_version or driver.module_version)
    if probe.kind is ProbeKind.HOST_NUMA and version is not None and version < _SAFE_HOST_NUMA_DRIVER:
        return Cause(
            "drivers before r595 crash where a NUMA node has no CPUs or no memory "
            "(https://github.com/NVIDIA/nccl/issues/2106)",
            "Use driver 595 or newer, or leave this NUMA node out (--numa).",
        )
    return cause_of_crash(probe.call)


def _without_c2c(machine: Machine, probes: list[Probe]) -> str:
    """Name the GPUs that reached the host memory over PCIe, if any did."""
    if coherent(machine) is False:
        return "over PCIe, not EGM: no GPU here has NVLink-C2C"
    known = _known(machine)
    gpus = {bus_id: known[bus_id] for probe in probes for bus_id in probe.gpus if bus_id in known}
    with_c2c = coherent_gpus(machine, gpus.values())
    without = [gpu for gpu in gpus.values() if gpu not in with_c2c]
    return f"{on_gpus(without).label}: over PCIe, not EGM, without NVLink-C2C" if without else ""


def _error(machine: Machine, scope: Scope, probe: Probe, what: str, evidence: tuple[Evidence, ...]) -> Finding:
    if probe.error_number == PEER_UNSUPPORTED:
        return skipped(f"{what}: the driver allows these GPUs no peer access; see p2p.status", evidence=evidence)
    if probe.error_number == NOT_SUPPORTED and probe.call in _MAKING:
        return skipped(f"{what}: the driver does not support it here", evidence=evidence)
    if (
        (probe.kind, probe.error_number) == (ProbeKind.FABRIC, NOT_PERMITTED)
        and not in_domain(machine)
        and not scope.asked_purpose(Guard.FABRIC)
    ):
        return skipped(
            f"{what}: no IMEX channel, and the GPUs are in no multi-node NVLink domain; --for fabric tries it anyway",
            evidence=evidence,
        )
    if probe.error_number is None:
        # No call returned an error: the library, or the function in it, is missing.
        return unknown(f"{what}: {probe.detail}")
    cause = _cause(machine, probe)
    return failed(
        f"{what}: {probe.call} failed: {probe.error_name} ({probe.error_number})",
        FAILING if cause is None else Remedy(text=cause.remedy),
        evidence=evidence,
        cause=cause.cause if cause else "",
        confidence=Confidence.MEDIUM if cause else Confidence.LOW,
    )


def _cause(machine: Machine, probe: Probe) -> Cause | None:
    if probe.kind is ProbeKind.PIDFD:
        return _PTRACE if probe.error_name == "EPERM" else None
    if probe.numa_node is not None and probe.call in ("cuMemCreate", "cuMemPoolCreate"):
        allowed = (machine.host or Host()).allowed_numa_nodes
        if allowed is not None and probe.numa_node not in parse_kernel_list(allowed):
            return Cause(
                f"the cpuset of this process allows the memory of NUMA {allowed} only", "See numa.cpuset-mems."
            )
        answers = (machine.confinement or Confinement()).system_calls or {}
        if any(answers.get(call) not in ("ok", None) for call in ("get_mempolicy", "mbind")):
            return Cause(
                "get_mempolicy or mbind is forbidden to this process, and the driver needs them for HOST_NUMA memory",
                "See numa.mempolicy-syscalls.",
            )
    return cause_of(probe.call, probe.error_number)


_WORKS = {ProbeKind.IPC_EVENT: "one process waits for another one's", ProbeKind.PIDFD: "works"}
"""What those probes show that move no bytes."""

_PTRACE = Cause(
    "taking descriptors of another process needs ptrace(2) rights: Yama or a missing CAP_SYS_PTRACE denies it",
    "Let the other process allow it (PR_SET_PTRACER), add CAP_SYS_PTRACE, or pass descriptors over a socket.",
)


def _subject(machine: Machine, probes: list[Probe]) -> str:
    first = probes[0]
    memory = "GPU memory" if first.numa_node is None else "HOST_NUMA memory"
    match first.kind:
        case ProbeKind.HOST_NUMA:
            return f"HOST_NUMA memory, by {_label(machine, [probe.gpus[0] for probe in probes])}"
        case ProbeKind.P2P:
            return "copies between peers"
        case ProbeKind.LEGACY_IPC:
            return f"{memory} by legacy IPC handle"
        case ProbeKind.POSIX_FD:
            return f"{memory} by file descriptor"
        case ProbeKind.POOL:
            return f"{memory} of a shared pool"
        case ProbeKind.FABRIC:
            return f"{memory} by fabric handle"
        case ProbeKind.IPC_EVENT:
            return "interprocess events"
        case ProbeKind.PIDFD:
            return "a descriptor by pidfd_getfd"


def _label(machine: Machine, bus_ids: Iterable[str]) -> str:
    known = _known(machine)
    ids = list(dict.fromkeys(bus_ids))
    if all(bus_id in known for bus_id in ids):
        return f"GPU{format_kernel_list({known[bus_id].index for bus_id in ids})}"
    return ", ".join(ids)


def _known(machine: Machine) -> dict[str, Gpu]:
    return {gpu.bus_id: gpu for gpu in machine.gpus or ()}


def _participants(machine: Machine, probe: Probe) -> str:
    """Return who took part, the side that failed last."""
    nodes = "" if probe.numa_node is None else f" on NUMA {probe.numa_node}"
    ends = ">".join(_label(machine, [bus_id]) for bus_id in probe.gpus)
    by = f", seen by {_label(machine, [probe.by])}" if probe.by and len(probe.gpus) > 1 else ""
    return f"{probe.kind} {ends}{nodes}{by}"


def _place(machine: Machine, probes: list[Probe]) -> Place:
    first, known = probes[0], _known(machine)
    if first.kind is ProbeKind.HOST_NUMA:
        return Place(kind=PlaceKind.NUMA, ids=(str(first.numa_node),), label=f"NUMA {first.numa_node}")
    pairs = _pairs(probes)
    if pairs == _pairs(probe for probe in machine.probes or () if probe.kind is first.kind and _is_whole(probe)):
        gpus = [known[bus_id] for bus_id in {gpu for pair in pairs for gpu in pair} if bus_id in known]
        return on_gpus(gpus) if gpus else NODE
    here = [(known[one], known[other]) for one, other in pairs if one in known and other in known]
    return on_pairs(here) if here else NODE


def _pairs(probes: Iterable[Probe]) -> set[tuple[str, str]]:
    """Return who accesses and whose memory it is."""
    found = set()
    for probe in probes:
        first, second = probe.gpus
        found.add((first, second) if probe.kind is ProbeKind.P2P else (second, first))
    return found


CHECKS = (
    Check(
        id="egm.alloc-active",
        title="HOST_NUMA memory works on each NUMA node (--active)",
        guards=(Guard.EGM,),
        sections=("gpus", "host"),
        judge=_judging("egm.alloc-active"),
        why="EGM memory is made by cuMemCreate on a NUMA node and mapped for every GPU that is to reach it. A "
        "container's seccomp profile, a cpuset or missing memory stop that, and granularity queries succeed all the "
        "same (measured on H200).",
        read="With --active: 2 MiB on each chosen CPU NUMA node, mapped for all chosen GPUs; each GPU writes it and "
        "the CPU compares every byte, then the other way round. Where a GPU has no EGM the same calls go over PCIe.",
        fix="By the call that failed: see numa.mempolicy-syscalls and numa.cpuset-mems.",
    ),
    Check(
        id="p2p.verify",
        title="copies between GPUs deliver every byte (--active)",
        guards=(Guard.P2P,),
        sections=("gpus",),
        judge=_judging("p2p.verify"),
        why="Behind a translating IOMMU or a redirecting PCIe switch, peer writes can be dropped while every call "
        "succeeds: only comparing the bytes shows it.",
        read="With --active: each GPU writes 2 MiB into each peer's memory and reads them back, with peer access "
        "enabled; every destination is overwritten first and every byte compared.",
        fix="Look for pcie.acs, pcie.iommu and the GPUs' errors; do not compute over a path that corrupts.",
    ),
    Check(
        id="fabric.alloc-active",
        title="fabric handles work between two processes (--active)",
        guards=(Guard.FABRIC,),
        sections=("gpus",),
        judge=_judging("fabric.alloc-active"),
        why="CUDA says that it supports fabric handles also where none can be made: that needs an IMEX channel (800 "
        "without one), and importing needs access to the owner's GPU (801 without it, measured on H200).",
        read="With --active: one process makes memory on its GPU and on each NUMA node and exports it, another one on "
        "the next GPU imports it; both write, both compare every byte. Other nodes are not tried.",
        fix="Make an IMEX channel (nvidia-modprobe -c 0), and give each process all GPUs of the node.",
    ),
    Check(
        id="ipc.legacy-active",
        title="legacy CUDA IPC works between two processes (--active)",
        guards=(Guard.IPC,),
        sections=("gpus",),
        judge=_judging("ipc.legacy-active"),
        why="MPI and PyTorch share GPU memory by cuIpcGetMemHandle. Opening fails with 1 where the owner's GPU is "
        "denied to the importer (measured on H200), with 201 across PID namespaces.",
        read="With --active: along a ring of the GPUs one process opens another's memory; both write, both compare.",
        fix="Give each process all GPUs of the node and choose with CUDA_VISIBLE_DEVICES, under which it works.",
    ),
    Check(
        id="ipc.vmm-active",
        title="file descriptors work between two processes (--active)",
        guards=(Guard.IPC, Guard.EGM),
        sections=("gpus",),
        judge=_judging("ipc.vmm-active"),
        why="NCCL and NVSHMEM share memory as file descriptors of cuMemCreate. The import fails with 101 where the "
        "owner's GPU is denied to the importer, for host memory too (measured on H200).",
        read="With --active: as ipc.legacy-active, with memory of the GPU and of each NUMA node; the descriptors "
        "travel over a socket (SCM_RIGHTS).",
        fix="Give each process all GPUs of the node and choose with CUDA_VISIBLE_DEVICES, under which it works.",
    ),
    Check(
        id="ipc.pool-active",
        title="memory pools work between two processes (--active)",
        guards=(Guard.IPC,),
        sections=("gpus",),
        judge=_judging("ipc.pool-active"),
        why="Stream-ordered memory is shared by its pool and a pointer into it.",
        read="With --active: as ipc.vmm-active, with memory pools.",
        fix="As for ipc.vmm-active.",
    ),
    Check(
        id="ipc.event-active",
        title="interprocess events work between two processes (--active)",
        guards=(Guard.IPC,),
        sections=("gpus",),
        judge=_judging("ipc.event-active"),
        why="Processes that share memory by CUDA IPC signal by interprocess events when it is ready. Under "
        "a device cgroup that denies the owner's GPU these can still be opened, while its memory cannot "
        "(measured on H200): a working event says nothing about memory.",
        read="With --active: along a ring of the GPUs one process makes an event and records it, another one opens it "
        "(cuIpcOpenEventHandle) and waits for it.",
        fix="As for ipc.legacy-active; look at the PID namespaces of both processes (ipc.pid-namespace).",
    ),
    Check(
        id="ipc.pidfd-active",
        title="pidfd_getfd works between two processes (--active)",
        guards=(Guard.IPC,),
        sections=("gpus",),
        judge=_judging("ipc.pidfd-active"),
        why="UCX and PyTorch take another process' memory descriptors with pidfd_getfd(2), which needs the rights of "
        "ptrace(2): Yama denies it between unrelated processes.",
        read="With --active: one probing process takes a descriptor of the other one, both started alike.",
        fix="PR_SET_PTRACER in the process that gives, or CAP_SYS_PTRACE; descriptors over sockets need neither.",
    ),
)
