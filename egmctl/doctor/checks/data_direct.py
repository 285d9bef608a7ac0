"""Checks of Data Direct, through which a NIC accesses the memory of the GPU beside it over PCIe."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from dataclasses import replace

from egmctl.doctor.check import Scope, Verdicts, check, end
from egmctl.doctor.checks.active import HANGING, NOT_ASKED, NOT_EXPORTED, ending_of, participants
from egmctl.doctor.findings import noted, passed, skipped, unknown, warned
from egmctl.doctor.registration import evidence_of, summary_of
from egmctl.model.finding import Evidence, Finding, Guard, on_nics
from egmctl.model.host import System
from egmctl.model.machine import Machine
from egmctl.model.probes import Probe, ProbeKind, ProbeOutcome, Registration
from egmctl.model.remedy import todo
from egmctl.units import group_by

_ASKED = "mlx5dv_get_data_direct_sysfs_path"
_REGISTERED = "mlx5dv_reg_dmabuf_mr"
_OWN_CALLS = (_ASKED, _REGISTERED, "cuMemGetHandleForAddressRange")
"""The calls that differ from those of the default mapping; rdma.dmabuf-active reports the others."""
_ENOTSUPP = 524
"""The kernel's ENOTSUPP, which C has no name for."""
_CAUSES = {
    **dict.fromkeys((errno.EOPNOTSUPP, errno.EPROTONOSUPPORT), "the NIC's driver or the kernel has no Data Direct"),
    errno.EINVAL: "the kernel's driver has bound no Data Direct function to the NIC",
    _ENOTSUPP: "the Data Direct function is beside another GPU, or ACS keeps it from this one; see pcie.acs",
}
"""By errno of ``mlx5dv_reg_dmabuf_mr``: reg_user_mr_dmabuf_by_data_direct of Linux (drivers/infiniband/hw/mlx5/mr.c),
nv-dmabuf.c of open-gpu-kernel-modules, and https://github.com/NVIDIA/nodewright-packages/issues/111."""


_WITHOUT = "or go on without Data Direct (NCCL: NCCL_IB_DATA_DIRECT=0)."
_REMEDIES = {
    **dict.fromkeys((errno.EOPNOTSUPP, errno.EPROTONOSUPPORT, errno.EINVAL), todo(f"Look at rdma.ofed, {_WITHOUT}")),
    _ENOTSUPP: todo(f"Look at pcie.acs, {_WITHOUT}"),
}


@check("rdma.data-direct-active", Guard.RDMA, sections=("gpus", "nics", "system"))
def _data_direct(machine: Machine, _scope: Scope) -> Verdicts:
    if machine.probes is None:
        end(skipped(NOT_ASKED))
    probes = [probe for probe in machine.probes if probe.kind is ProbeKind.DMA_BUF and probe.nic]
    tried = [probe for probe in probes if probe.registration is Registration.DATA_DIRECT]
    if not tried:
        functions = (machine.system or System()).data_direct
        if functions is None:
            end(unknown("whether a NIC here has a Data Direct function was not read"))
        end(skipped("no GPU and NIC to try it on" if functions else "no NIC here has a Data Direct function"))
    ran = [p for p in probes if p.registration is Registration.DEFAULT and p.outcome is not ProbeOutcome.NOT_RUN]
    default = {_pair(probe): _works(probe) for probe in ran}
    for _, group in group_by(tried, lambda probe: (*_ending(probe), default.get(_pair(probe)))):
        unaligned = [probe for probe in probes if probe.registration is Registration.DATA_DIRECT_UNALIGNED]
        pairs = {_pair(probe) for probe in group}
        yield from _verdicts(machine, group, [probe for probe in unaligned if _pair(probe) in pairs], default)


def _verdicts(
    machine: Machine,
    probes: Sequence[Probe],
    unaligned: Sequence[Probe],
    default: Mapping[tuple[str, str | None], bool],
) -> Verdicts:
    first, place = probes[0], on_nics(dict.fromkeys(probe.nic for probe in probes if probe.nic))
    default_works = default.get(_pair(first))
    connection = summary_of(machine, probes)
    hung = [probe for probe in unaligned if probe.outcome in _HUNG]
    if first.outcome is ProbeOutcome.OK and hung:
        text = f"GPU memory through Data Direct: with a base that is not page aligned it {ending_of(hung[0])}"
        failures = tuple(Evidence(source=participants(machine, probe), value=probe.detail) for probe in hung[:4])
        yield _with(warned(text, HANGING, place), (*failures, *evidence_of(machine, probes)))
        return
    if first.outcome is ProbeOutcome.OK:
        other = {True: "the default mapping works too", False: "the default mapping fails", None: ""}[default_works]
        bases = "; ".join(dict.fromkeys(filter(None, map(_unaligned, unaligned))))
        note = "; ".join(filter(None, (connection, other, bases)))
        yield _with(passed("GPU memory through Data Direct: works", place, note=note), evidence_of(machine, probes))
        return
    failures = tuple(Evidence(source=participants(machine, probe), value=probe.detail) for probe in probes[:4])
    evidence = (*failures, *evidence_of(machine, probes))
    if first.outcome is ProbeOutcome.NOT_RUN:
        yield skipped(first.detail, place)
    elif first.call not in _OWN_CALLS:
        yield _with(skipped("not reached: rdma.dmabuf-active has the reason", place), evidence)
    elif (first.call, first.error_number) == (_ASKED, errno.ENODEV):
        yield _with(skipped("no Data Direct function belongs to the NIC", place), evidence)
    elif (first.call, first.error_number) in NOT_EXPORTED:
        # A driver without this mapping, which comes with CUDA 12.8, answers alike.
        yield _with(skipped("the driver exports no dma-buf with a mapping over PCIe", place), evidence)
    elif first.outcome is ProbeOutcome.ERROR and first.error_number is None:
        yield _with(unknown(f"GPU memory through Data Direct: {first.detail}", place), evidence)
    elif first.outcome is ProbeOutcome.ERROR:
        other = {True: "the default mapping works", False: "the default mapping fails too", None: ""}[default_works]
        text = f"GPU memory through Data Direct: {first.call} failed: {first.error_name} ({first.error_number})"
        number = first.error_number or 0 if first.call == _REGISTERED else 0
        note = "; ".join(filter(None, (connection, other)))
        yield _with(
            noted(text, place, remedy=_REMEDIES.get(number), cause=_CAUSES.get(number, ""), note=note), evidence
        )
    else:
        text = f"GPU memory through Data Direct: {ending_of(first)}"
        yield _with(warned(text, HANGING, place), evidence)


_HUNG = (ProbeOutcome.TIMED_OUT, ProbeOutcome.CRASHED)


def _unaligned(probe: Probe) -> str:
    """Return what a NIC answers at a base that is not page aligned, if the registration itself works."""
    if _works(probe):
        return "a base that is not page aligned works as well"
    refused = probe.call == _REGISTERED and probe.error_number is not None
    return f"a base that is not page aligned: {probe.error_name} ({probe.error_number})" if refused else ""


def _pair(probe: Probe) -> tuple[str, str | None]:
    """Return the GPU and the NIC of a probe of GPU memory; host memory has the pair of no GPU."""
    return (probe.gpus[0] if probe.numa_node is None and probe.gpus else "", probe.nic)


def _works(probe: Probe) -> bool:
    return probe.outcome is ProbeOutcome.OK


def _ending(probe: Probe) -> tuple[object, ...]:
    detail = probe.detail if probe.outcome is ProbeOutcome.NOT_RUN else ""
    return probe.outcome, probe.call, probe.error_number, detail


def _with(finding: Finding, evidence: tuple[Evidence, ...]) -> Finding:
    return replace(finding, evidence=evidence)
