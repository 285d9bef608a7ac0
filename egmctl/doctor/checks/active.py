"""Checks of the results of active probes: HOST_NUMA memory, copies between GPUs, memory shared between processes."""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from egmctl.doctor.check import Check, Scope
from egmctl.doctor.findings import failed, noted, passed, skipped, unknown, warned
from egmctl.doctor.registration import evidence_of, summary_of
from egmctl.doctor.situation import NO_VERBS, coherent, coherent_gpus, in_domain, numbers, peer_memory_modules
from egmctl.driver.signatures import cause_of, cause_of_crash
from egmctl.model.explanation import KnownCause
from egmctl.model.finding import NODE, Confidence, Evidence, Finding, Guard, Place, on_gpus, on_nics, on_numa, on_pairs
from egmctl.model.gpu import Gpu
from egmctl.model.host import Confinement, Driver, Host
from egmctl.model.machine import Machine
from egmctl.model.probes import Probe, ProbeKind, ProbeOutcome, Registration
from egmctl.model.remedy import Remedy, todo
from egmctl.units import group_by, parse_kernel_list

NOT_ASKED = "only with --active"
NOT_PERMITTED, NOT_SUPPORTED, PEER_UNSUPPORTED = 800, 801, 217
"""CUDA_ERROR_NOT_PERMITTED, _NOT_SUPPORTED, _PEER_ACCESS_UNSUPPORTED (cuda.h)."""
_SAFE_HOST_NUMA_DRIVER = (595,)
"""The first driver that does not crash on NUMA nodes without CPUs or memory
(https://github.com/NVIDIA/nccl/issues/2106)."""
NOT_EXPORTED = [("cuMemGetHandleForAddressRange", number) for number in (1, NOT_SUPPORTED)]
"""The errors that cuda.h names for it: CUDA_ERROR_INVALID_VALUE and _NOT_SUPPORTED."""
_NO_HANDLE = [("cuIpcGetMemHandle", number) for number in (1, NOT_SUPPORTED)]
"""How the driver refuses a handle of managed memory: CUDA_ERROR_INVALID_VALUE on H200, driver 580."""
_OF_NODE = (ProbeKind.HOST_NUMA, ProbeKind.DEVICE_POOL, ProbeKind.LOCATION_POOL)
"""The kinds of probes of one GPU with host memory of one NUMA node."""
_INVALID_VALUE = 1
_NEW_CALLS = ("cuMemGetMemPool", "cuMemSetMemPool")
_BY_NAME = "an allocation that names the pool works (cuMemAllocFromPoolAsync)"
_MAKING = ("cuMemCreate", "cuMemPoolCreate", "cuMemGetAllocationGranularity", "cuIpcGetMemHandle")

SILENT = Remedy(
    text="Look for PCIe switches that redirect, an IOMMU that translates and the GPUs' errors; do not compute over "
    "this path.",
    look="dmesg | grep -iE 'DMAR|AMD-Vi|SMMU|Xid'",
)
HANGING = Remedy(
    text="Look for driver messages in the kernel log, and check whether another process resets or holds the GPU.",
    look="dmesg | grep -iE 'NVRM|Xid'",
)
FAILING = Remedy(text="Look for a failed check that explains it, and for driver messages in dmesg.")

_TRIALS: Mapping[str, tuple[ProbeKind, str, tuple[Guard, ...]]] = {
    "egm.alloc-active": (ProbeKind.HOST_NUMA, "{memory}, by {gpus}", (Guard.EGM,)),
    "egm.device-pool": (ProbeKind.DEVICE_POOL, "{memory} from the current pool of {gpus}", (Guard.EGM,)),
    "egm.location-pool": (ProbeKind.LOCATION_POOL, "{memory} from the pool set for its node", (Guard.EGM,)),
    "p2p.verify": (ProbeKind.P2P, "copies between peers", (Guard.P2P,)),
    "fabric.alloc-active": (ProbeKind.FABRIC, "{memory} by fabric handle", (Guard.FABRIC,)),
    "ipc.legacy-active": (ProbeKind.LEGACY_IPC, "{memory} by legacy IPC handle", (Guard.IPC,)),
    "ipc.vmm-active": (ProbeKind.POSIX_FD, "{memory} by file descriptor", (Guard.IPC, Guard.EGM)),
    "ipc.pool-active": (ProbeKind.POOL, "{memory} of a shared pool", (Guard.IPC,)),
    "ipc.managed-active": (ProbeKind.MANAGED_IPC, "managed memory by legacy IPC handle", (Guard.IPC,)),
    "ipc.event-active": (ProbeKind.IPC_EVENT, "an interprocess event", (Guard.IPC,)),
    "rdma.dmabuf-active": (ProbeKind.DMA_BUF, "{memory}, by {gpus}, as a dma-buf", (Guard.RDMA,)),
    "ipc.pidfd-active": (ProbeKind.PIDFD, "a descriptor by pidfd_getfd", (Guard.IPC,)),
}
"""By check: the kind of its probes, their subject in summaries, and the purposes at risk."""

_BLOCKS: Mapping[ProbeKind, tuple[Guard, ...]] = {kind: guards for kind, _, guards in _TRIALS.values()}
"""The purposes that do not work where the probes of a kind fail."""
KINDS: Mapping[str, ProbeKind] = {check_id: kind for check_id, (kind, _, _) in _TRIALS.items()}
"""The kind of probes of each check."""


def kinds_of(checks: Iterable[Check]) -> tuple[ProbeKind, ...]:
    """Return the kinds of probes that these checks need."""
    kinds = {**KINDS, "rdma.data-direct-active": ProbeKind.DMA_BUF}
    return tuple(kinds[check.id] for check in checks if check.id in kinds)


def _judge(kind: ProbeKind, subject: str, machine: Machine, _scope: Scope) -> Iterator[Finding]:
    if machine.probes is None:
        yield skipped(NOT_ASKED)
        return
    # Registrations through Data Direct are another check's.
    tried = [probe for probe in machine.probes if probe.registration is Registration.DEFAULT]
    probes = [probe for probe in tried if probe.kind is kind and _is_whole(probe)]
    if not probes:
        yield skipped("no GPU to try it on")
    for _, group in group_by(probes, _group_key):
        memory = "GPU memory" if group[0].numa_node is None else "HOST_NUMA memory"
        gpus = _label(machine, [probe.gpus[0] for probe in group])
        verdict = _verdict(machine, subject.format(memory=memory, gpus=gpus), group)
        evidence, connection = (*verdict.evidence, *evidence_of(machine, group)), summary_of(machine, group)
        note = "; ".join(filter(None, (connection, verdict.note)))
        yield replace(verdict, place=_place(machine, group, probes), evidence=evidence, note=note)


def _is_whole(probe: Probe) -> bool:
    """Return whether a probe names its ends, which a recorded document may lack."""
    ends = 1 if probe.kind in (*_OF_NODE, ProbeKind.MANAGED_IPC, ProbeKind.DMA_BUF) else 2
    return len(probe.gpus) == ends and (probe.kind not in _OF_NODE or probe.numa_node is not None)


def _group_key(probe: Probe) -> tuple[object, ...]:
    """Return the key by which probes are grouped into findings."""
    detail = probe.detail if probe.outcome is ProbeOutcome.NOT_RUN else ""
    host = probe.numa_node if probe.kind in _OF_NODE else probe.numa_node is not None
    return probe.kind, host, probe.outcome, probe.call, probe.error_number, detail


def _verdict(machine: Machine, subject: str, probes: Sequence[Probe]) -> Finding:
    """Return the finding for probes with the same outcome."""
    first = probes[0]
    evidence = tuple(Evidence(source=participants(machine, probe), value=probe.detail) for probe in probes[:4])
    match first.outcome:
        case ProbeOutcome.OK:
            return _worked(machine, subject, probes)
        case ProbeOutcome.NOT_RUN:
            return skipped(first.detail)
        case ProbeOutcome.CORRUPT:
            return failed(f"{subject}: bytes are wrong, though every call succeeded", SILENT, evidence=evidence)
        case ProbeOutcome.ERROR:
            return _refused(machine, subject, first, evidence)
        case _:
            cause = _cause_of_crash(machine, first) if first.outcome is ProbeOutcome.CRASHED else None
            return _fault(first, f"{subject}: {ending_of(first)}", HANGING, cause, evidence=evidence)


def _worked(machine: Machine, subject: str, probes: Sequence[Probe]) -> Finding:
    """Return the finding for probes that succeeded."""
    first = probes[0]
    if first.kind is ProbeKind.MANAGED_IPC:
        return noted(f"{subject}: this driver makes one, which CUDA does not document; do not rely on it")
    moves_no_bytes = first.kind in (ProbeKind.IPC_EVENT, ProbeKind.PIDFD, ProbeKind.DMA_BUF)
    note = _pcie_note(machine, probes) if first.numa_node is not None else ""
    return passed(f"{subject}: {'works' if moves_no_bytes else 'every byte arrived, both ways'}", note=note)


def _refused(machine: Machine, subject: str, first: Probe, evidence: tuple[Evidence, ...]) -> Finding:
    """Return the finding for a probe in which a call returned an error: that of the first condition that holds."""
    if first.error_number is None:
        # No call returned an error: the library or its function is missing.
        if first.call in _NEW_CALLS:
            return skipped(f"{subject}: {first.call} comes with CUDA 13.0 (driver 580)", evidence=evidence)
        return unknown(f"{subject}: {first.detail}")
    failure = f"{subject}: {first.call} failed: {first.error_name} ({first.error_number})"
    if first.kind is ProbeKind.MANAGED_IPC:
        if (first.call, first.error_number) in _NO_HANDLE:
            words = f"{subject}: the driver makes none, as CUDA documents; share memory of cudaMalloc or cuMemCreate"
            return passed(words, evidence=evidence)
        # Whether there is a handle stays open, and no program needs one.
        return unknown(failure, evidence=evidence)
    if reason := _missing_feature(machine, first):
        return skipped(f"{subject}: {reason}", evidence=evidence)
    if _takes_no_host_pool(first):
        words = f"{subject}: {first.call} takes no pool of host memory here"
        return noted(words, evidence=evidence, note=f"the chapter on EGM of NVIDIA's guide does so; {_BY_NAME}")
    cause = _cause_of_error(machine, first)
    confidence = Confidence.MEDIUM if cause else Confidence.LOW
    if note := _not_needed(machine, first):
        return skipped(
            failure,
            evidence=evidence,
            cause=cause.cause if cause else "",
            remedy=cause.remedy if cause else FAILING,
            confidence=confidence,
            note=note,
            blocks=_BLOCKS[first.kind],
        )
    if note := _other_registration(machine, first):
        return noted(failure, evidence=evidence, cause=cause.cause if cause else "", note=note)
    return _fault(first, failure, FAILING, cause, confidence, evidence=evidence)


def _fault(
    first: Probe,
    summary: str,
    remedy: Remedy,
    cause: KnownCause | None,
    confidence: Confidence = Confidence.HIGH,
    *,
    evidence: tuple[Evidence, ...],
) -> Finding:
    """Return a failure; its remedy is that of its cause, if that is known."""
    # Whether NICs reach GPU memory matters to those only who use it.
    problem = warned if first.kind is ProbeKind.DMA_BUF else failed
    return problem(
        summary,
        cause.remedy if cause else remedy,
        evidence=evidence,
        cause=cause.cause if cause else "",
        confidence=confidence,
        blocks=_BLOCKS[first.kind],
    )


def ending_of(probe: Probe) -> str:
    """Return how the process of a probe that hung or crashed ended, in words."""
    ending = "did not end in time" if probe.outcome is ProbeOutcome.TIMED_OUT else "killed its process"
    return f"{ending} in {probe.call}" if probe.call else ending


def _missing_feature(machine: Machine, probe: Probe) -> str:
    """Return the missing feature if the error means that this machine lacks it by design; else ``""``."""
    number = probe.error_number
    if _takes_no_host_pool(probe) and not coherent(machine):
        return f"the driver takes only a pool of the GPU's own memory, without EGM; {_BY_NAME}"
    if number == PEER_UNSUPPORTED:
        return "the driver allows these GPUs no peer access; see p2p.status"
    if (number == NOT_SUPPORTED and probe.call in _MAKING) or (probe.call, number) in NOT_EXPORTED:
        return "the driver does not support it here"
    return ""


def _not_needed(machine: Machine, probe: Probe) -> str:
    """Return why nothing but ``--for`` its purpose asks for what failed; else ``""``."""
    if probe.nic and probe.error_number == errno.ENODEV:
        return "libibverbs lists no such NIC; --for rdma makes that a fault"
    if probe.kind is ProbeKind.FABRIC and probe.error_number == NOT_PERMITTED and not in_domain(machine):
        return "no IMEX channel, and the GPUs are in no multi-node NVLink domain; --for fabric makes that a fault"
    return ""


def _takes_no_host_pool(probe: Probe) -> bool:
    """Return whether the driver refuses to make a pool of host memory a GPU's current one, as on H200, driver 580."""
    return (probe.call, probe.error_number) == ("cuDeviceSetMemPool", _INVALID_VALUE)


def _other_registration(machine: Machine, probe: Probe) -> str:
    """Return through what a program registers GPU memory if a NIC supports no dma-bufs; empty if through nothing.

    NCCL then uses nvidia_peermem, after these two errors only (net_ib/gdr.cc, ibDmaBufSupportInitOnce). The module has
    no part in HOST_NUMA memory.
    """
    unsupported = probe.call == "ibv_reg_dmabuf_mr" and probe.error_number in _NO_DMA_BUF
    modules = " and ".join(peer_memory_modules(machine)) if unsupported and probe.numa_node is None else ""
    return modules and f"{modules} is the way left for NICs to reach GPU memory here; dma-buf is what replaces it"


def _cause_of_crash(machine: Machine, probe: Probe) -> KnownCause | None:
    driver = machine.driver or Driver()
    version = numbers(driver.driver_version or driver.module_version)
    if probe.kind is ProbeKind.HOST_NUMA and version is not None and version < _SAFE_HOST_NUMA_DRIVER:
        return KnownCause(
            "drivers before r595 crash where a NUMA node has no CPUs or no memory "
            "(https://github.com/NVIDIA/nccl/issues/2106)",
            todo("Use driver 595 or newer, or leave this NUMA node out (--numa)."),
        )
    return cause_of_crash(probe.call)


def _cause_of_error(machine: Machine, probe: Probe) -> KnownCause | None:
    if probe.kind is ProbeKind.PIDFD:
        return _PTRACE if probe.error_name == "EPERM" else None
    if probe.numa_node is not None and probe.call in ("cuMemCreate", "cuMemPoolCreate"):
        allowed = (machine.host or Host()).allowed_numa_nodes
        if allowed is not None and probe.numa_node not in parse_kernel_list(allowed):
            cause = f"the cpuset of this process allows the memory of NUMA {allowed} only"
            return KnownCause(cause, todo("See numa.cpuset-mems."))
        answers = (machine.confinement or Confinement()).system_calls or {}
        if any(answers.get(name) not in ("ok", None) for name in ("get_mempolicy", "mbind")):
            return KnownCause(
                "get_mempolicy or mbind is forbidden to this process, and the driver needs them for HOST_NUMA memory",
                todo("See numa.mempolicy-syscalls."),
            )
    if (probe.call or "").startswith("ibv_"):
        return _REGISTRATION.get(probe.error_number or 0)
    return cause_of(probe.call, probe.error_number)


_UNSUPPORTED = KnownCause(
    "the NIC's driver or the kernel registers no dma-bufs, or ACS keeps the NIC from the GPU",
    todo("Update DOCA-OFED and the kernel, see pcie.acs, or load nvidia_peermem."),
)
_NO_DMA_BUF = (errno.EOPNOTSUPP, errno.EPROTONOSUPPORT)
_REGISTRATION = {
    **dict.fromkeys((*_NO_DMA_BUF, 524), _UNSUPPORTED),
    **dict.fromkeys((errno.EPERM, errno.EACCES, errno.ENODEV), KnownCause(NO_VERBS, todo("See rdma.devices-cgroup."))),
    errno.ENOMEM: KnownCause(
        "too little locked memory is allowed", todo("Raise the limit (ulimit -l); see env.limits.")
    ),
}
"""The causes of an error of libibverbs: drivers return EOPNOTSUPP, the kernel EPROTONOSUPPORT
(https://github.com/linux-rdma/perftest/pull/352) or 524, ENOTSUPP, as with the ACS of NVIDIA/nodewright-packages#111;
ibv_reg_mr(3)."""
_PTRACE = KnownCause(
    "taking descriptors of another process needs ptrace(2) rights: Yama or a missing CAP_SYS_PTRACE denies it",
    todo("Let the other process allow it (PR_SET_PTRACER), add CAP_SYS_PTRACE, or pass descriptors over a socket."),
)


def _pcie_note(machine: Machine, probes: Sequence[Probe]) -> str:
    """Return a note on the GPUs that accessed host memory over PCIe, if any."""
    gpus = _known(machine, [bus_id for probe in probes for bus_id in probe.gpus])
    with_c2c = coherent_gpus(machine, gpus)
    pcie_gpus = [gpu for gpu in gpus if gpu not in with_c2c]
    return f"{on_gpus(pcie_gpus).label}: over PCIe, not EGM, without NVLink-C2C" if pcie_gpus else ""


def _known(machine: Machine, bus_ids: Iterable[str]) -> list[Gpu]:
    """Return the GPUs of the machine with these bus ids."""
    wanted = set(bus_ids)
    return [gpu for gpu in machine.gpus or () if gpu.bus_id in wanted]


def _label(machine: Machine, bus_ids: Iterable[str]) -> str:
    wanted = list(dict.fromkeys(bus_ids))
    known = _known(machine, wanted)
    return on_gpus(known).label if len(known) == len(wanted) else ", ".join(wanted)


def participants(machine: Machine, probe: Probe) -> str:
    """Return the kind, GPUs, NUMA node and NIC of a probe, and the side that failed."""
    nodes = "" if probe.numa_node is None else f" on NUMA {probe.numa_node}"
    nodes += f" with {probe.nic}" if probe.nic else ""
    ends = ">".join(_label(machine, [bus_id]) for bus_id in probe.gpus)
    reporter = f", seen by {_label(machine, [probe.by])}" if probe.by and len(probe.gpus) > 1 else ""
    return f"{probe.kind} {ends}{nodes}{reporter}"


def _place(machine: Machine, probes: Sequence[Probe], all_probes: Sequence[Probe]) -> Place:
    """Return the place of a finding: the NUMA node for HOST_NUMA, the GPUs if it is about all pairs, else the pairs."""
    kind = probes[0].kind
    if probes[0].nic is not None:
        return on_nics(dict.fromkeys(probe.nic for probe in probes if probe.nic))
    if kind in (*_OF_NODE, ProbeKind.MANAGED_IPC, ProbeKind.DMA_BUF):
        nodes = [probe.numa_node for probe in probes if probe.numa_node is not None]
        return on_numa(nodes) if nodes else on_gpus(_known(machine, [probe.gpus[0] for probe in probes]))
    pairs = {probe.gpus for probe in probes}
    known = {gpu.bus_id: gpu for gpu in _known(machine, [bus_id for pair in pairs for bus_id in pair])}
    if known and pairs == {probe.gpus for probe in all_probes}:
        return on_gpus(known.values())
    known_pairs = [(known[first], known[second]) for first, second in pairs if first in known and second in known]
    # A pair names the accessing GPU first, then the owner; probes other than P2P name the owner first.
    ordered = known_pairs if kind is ProbeKind.P2P else [(importer, owner) for owner, importer in known_pairs]
    return on_pairs(ordered) if ordered else NODE


_SECTIONS = {**dict.fromkeys(_OF_NODE, ("gpus", "host")), ProbeKind.DMA_BUF: ("gpus", "host", "nics", "system")}
CHECKS = tuple(
    Check(check_id, partial(_judge, kind, subject), guards=guards, sections=_SECTIONS.get(kind, ("gpus",)))
    for check_id, (kind, subject, guards) in _TRIALS.items()
)
