"""Checks of the active probes: HOST_NUMA memory, copies between GPUs, memory shared between processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from egmctl.doctor.check import Check, Scope
from egmctl.doctor.findings import failed, passed, skipped, unknown
from egmctl.doctor.situation import by_value, coherent, coherent_gpus, in_domain, numbers
from egmctl.driver.signatures import Cause, cause_of, cause_of_crash
from egmctl.model.finding import NODE, Confidence, Evidence, Finding, Guard, Place, Remedy, on_gpus, on_numa, on_pairs
from egmctl.model.machine import Confinement, Driver, Gpu, Host, Machine, Outcome, Probe, ProbeKind
from egmctl.units import parse_kernel_list

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

_SUBJECTS = {
    ProbeKind.HOST_NUMA: "{memory}, by {gpus}",
    ProbeKind.P2P: "copies between peers",
    ProbeKind.LEGACY_IPC: "{memory} by legacy IPC handle",
    ProbeKind.POSIX_FD: "{memory} by file descriptor",
    ProbeKind.POOL: "{memory} of a shared pool",
    ProbeKind.FABRIC: "{memory} by fabric handle",
    ProbeKind.IPC_EVENT: "interprocess events",
    ProbeKind.PIDFD: "a descriptor by pidfd_getfd",
}
_WORKS = {ProbeKind.IPC_EVENT: "one process waits for another one's", ProbeKind.PIDFD: "works"}
"""The results of probes that move no bytes."""


def kinds_of(checks: Iterable[Check]) -> tuple[ProbeKind, ...]:
    """Return the probes that these checks judge."""
    return tuple(kind for check in checks for kind in KINDS.get(check.id, ()))


def _judge(kinds: tuple[ProbeKind, ...], machine: Machine, scope: Scope) -> Iterator[Finding]:
    if machine.probes is None:
        yield skipped(NOT_ASKED)
        return
    probes = [probe for probe in machine.probes if probe.kind in kinds and _is_whole(probe)]
    if not probes:
        yield skipped("no GPU to try it on")
    for _, group in by_value(probes, _sameness):
        yield replace(_verdict(machine, scope, group), place=_place(machine, group, probes))


def _is_whole(probe: Probe) -> bool:
    """Say whether the probe names its ends: a document from elsewhere may lack them."""
    if probe.kind is ProbeKind.HOST_NUMA:
        return len(probe.gpus) == 1 and probe.numa_node is not None
    return len(probe.gpus) == 2


def _sameness(probe: Probe) -> tuple[object, ...]:
    """Return what probes have in common that share a finding."""
    detail = probe.detail if probe.outcome is Outcome.NOT_RUN else ""
    host = probe.numa_node if probe.kind is ProbeKind.HOST_NUMA else probe.numa_node is not None
    return probe.kind, host, probe.outcome, probe.call, probe.error_number, detail


def _verdict(machine: Machine, scope: Scope, probes: Sequence[Probe]) -> Finding:
    first = probes[0]
    memory = "GPU memory" if first.numa_node is None else "HOST_NUMA memory"
    gpus = _label(machine, [probe.gpus[0] for probe in probes])
    subject = _SUBJECTS[first.kind].format(memory=memory, gpus=gpus)
    evidence = tuple(Evidence(source=_participants(machine, probe), value=probe.detail) for probe in probes[:4])
    match first.outcome:
        case Outcome.OK:
            note = _without_c2c(machine, probes) if first.numa_node is not None else ""
            return passed(f"{subject}: {_WORKS.get(first.kind, 'every byte arrived, both ways')}", note=note)
        case Outcome.NOT_RUN:
            return skipped(first.detail)
        case Outcome.CORRUPT:
            return failed(f"{subject}: bytes are wrong, though every call succeeded", SILENT, evidence=evidence)
        case Outcome.ERROR:
            return _error(machine, scope, first, subject, evidence)
    cause = _cause_of_crash(machine, first) if first.outcome is Outcome.CRASHED else None
    end = "did not end in time" if first.outcome is Outcome.TIMED_OUT else "killed its process"
    return failed(
        f"{subject}: {end}{f' in {first.call}' if first.call else ''}",
        Remedy(text=cause.remedy) if cause else HANGING,
        evidence=evidence,
        cause=cause.cause if cause else "",
    )


def _error(machine: Machine, scope: Scope, probe: Probe, subject: str, evidence: tuple[Evidence, ...]) -> Finding:
    number = probe.error_number
    if number is None:
        # No call returned an error: the library, or the function in it, is missing.
        return unknown(f"{subject}: {probe.detail}")
    if number == PEER_UNSUPPORTED:
        return skipped(f"{subject}: the driver allows these GPUs no peer access; see p2p.status", evidence=evidence)
    if number == NOT_SUPPORTED and probe.call in _MAKING:
        return skipped(f"{subject}: the driver does not support it here", evidence=evidence)
    no_channel = probe.kind is ProbeKind.FABRIC and number == NOT_PERMITTED
    if no_channel and not in_domain(machine) and not scope.asked_purpose(Guard.FABRIC):
        return skipped(
            f"{subject}: no IMEX channel, and the GPUs are in no multi-node NVLink domain; --for fabric tries it "
            "anyway",
            evidence=evidence,
        )
    cause = _cause_of_error(machine, probe)
    return failed(
        f"{subject}: {probe.call} failed: {probe.error_name} ({number})",
        Remedy(text=cause.remedy) if cause else FAILING,
        evidence=evidence,
        cause=cause.cause if cause else "",
        confidence=Confidence.MEDIUM if cause else Confidence.LOW,
    )


def _cause_of_crash(machine: Machine, probe: Probe) -> Cause | None:
    driver = machine.driver or Driver()
    version = numbers(driver.driver_version or driver.module_version)
    if probe.kind is ProbeKind.HOST_NUMA and version is not None and version < _SAFE_HOST_NUMA_DRIVER:
        return Cause(
            "drivers before r595 crash where a NUMA node has no CPUs or no memory "
            "(https://github.com/NVIDIA/nccl/issues/2106)",
            "Use driver 595 or newer, or leave this NUMA node out (--numa).",
        )
    return cause_of_crash(probe.call)


def _cause_of_error(machine: Machine, probe: Probe) -> Cause | None:
    if probe.kind is ProbeKind.PIDFD:
        return _PTRACE if probe.error_name == "EPERM" else None
    if probe.numa_node is not None and probe.call in ("cuMemCreate", "cuMemPoolCreate"):
        allowed = (machine.host or Host()).allowed_numa_nodes
        if allowed is not None and probe.numa_node not in parse_kernel_list(allowed):
            return Cause(
                f"the cpuset of this process allows the memory of NUMA {allowed} only", "See numa.cpuset-mems."
            )
        answers = (machine.confinement or Confinement()).system_calls or {}
        if any(answers.get(name) not in ("ok", None) for name in ("get_mempolicy", "mbind")):
            return Cause(
                "get_mempolicy or mbind is forbidden to this process, and the driver needs them for HOST_NUMA memory",
                "See numa.mempolicy-syscalls.",
            )
    return cause_of(probe.call, probe.error_number)


_PTRACE = Cause(
    "taking descriptors of another process needs ptrace(2) rights: Yama or a missing CAP_SYS_PTRACE denies it",
    "Let the other process allow it (PR_SET_PTRACER), add CAP_SYS_PTRACE, or pass descriptors over a socket.",
)


def _without_c2c(machine: Machine, probes: Sequence[Probe]) -> str:
    """Name the GPUs that reached the host memory over PCIe, if any did."""
    if coherent(machine) is False:
        return "over PCIe, not EGM: no GPU here has NVLink-C2C"
    gpus = _known(machine, [bus_id for probe in probes for bus_id in probe.gpus])
    with_c2c = coherent_gpus(machine, gpus)
    without = [gpu for gpu in gpus if gpu not in with_c2c]
    return f"{on_gpus(without).label}: over PCIe, not EGM, without NVLink-C2C" if without else ""


def _known(machine: Machine, bus_ids: Iterable[str]) -> list[Gpu]:
    """Return the GPUs that the machine has of these."""
    wanted = set(bus_ids)
    return [gpu for gpu in machine.gpus or () if gpu.bus_id in wanted]


def _label(machine: Machine, bus_ids: Iterable[str]) -> str:
    wanted = list(dict.fromkeys(bus_ids))
    known = _known(machine, wanted)
    return on_gpus(known).label if len(known) == len(wanted) else ", ".join(wanted)


def _participants(machine: Machine, probe: Probe) -> str:
    """Return who took part, and the side that failed."""
    nodes = "" if probe.numa_node is None else f" on NUMA {probe.numa_node}"
    ends = ">".join(_label(machine, [bus_id]) for bus_id in probe.gpus)
    by = f", seen by {_label(machine, [probe.by])}" if probe.by and len(probe.gpus) > 1 else ""
    return f"{probe.kind} {ends}{nodes}{by}"


def _place(machine: Machine, probes: Sequence[Probe], every: Sequence[Probe]) -> Place:
    """Return the place of a finding: its pairs, or where they are all pairs that were tried, their GPUs."""
    node = probes[0].numa_node
    if probes[0].kind is ProbeKind.HOST_NUMA and node is not None:
        return on_numa([node])
    pairs = _pairs(probes)
    known = {gpu.bus_id: gpu for gpu in _known(machine, [bus_id for pair in pairs for bus_id in pair])}
    if known and pairs == _pairs(every):
        return on_gpus(known.values())
    known_pairs = [(known[user], known[owner]) for user, owner in pairs if user in known and owner in known]
    return on_pairs(known_pairs) if known_pairs else NODE


def _pairs(probes: Iterable[Probe]) -> set[tuple[str, str]]:
    """Return who accesses and whose memory it is."""
    ends = ((probe.kind, *probe.gpus) for probe in probes)
    return {(first, second) if kind is ProbeKind.P2P else (second, first) for kind, first, second in ends}


def _check(check_id: str, *guards: Guard, sections: tuple[str, ...] = ("gpus",)) -> Check:
    return Check(check_id, partial(_judge, KINDS[check_id]), guards=guards, sections=sections)


CHECKS = (
    _check("egm.alloc-active", Guard.EGM, sections=("gpus", "host")),
    _check("p2p.verify", Guard.P2P),
    _check("fabric.alloc-active", Guard.FABRIC),
    _check("ipc.legacy-active", Guard.IPC),
    _check("ipc.vmm-active", Guard.IPC, Guard.EGM),
    _check("ipc.pool-active", Guard.IPC),
    _check("ipc.event-active", Guard.IPC),
    _check("ipc.pidfd-active", Guard.IPC),
)
