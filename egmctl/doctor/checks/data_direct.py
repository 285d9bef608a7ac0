"""Checks of Data Direct, through which a NIC accesses the memory of the GPU beside it over PCIe."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import replace

from egmctl.doctor.check import Scope, Verdicts, check, end
from egmctl.doctor.checks.active import HANGING, NOT_ASKED, participants
from egmctl.doctor.findings import noted, passed, skipped, todo, unknown, warned
from egmctl.doctor.registration import evidence_of, summary_of
from egmctl.doctor.situation import group_by
from egmctl.model.finding import Evidence, Finding, Guard, on_nics
from egmctl.model.machine import Machine
from egmctl.model.probes import Outcome, Probe, ProbeKind, Registration

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


_REMEDY = todo("Look at pcie.acs and rdma.ofed, or go on without Data Direct (NCCL: NCCL_IB_DATA_DIRECT=0).")


@check("rdma.data-direct-active", Guard.RDMA, sections=("gpus", "nics", "system"))
def _data_direct(machine: Machine, _scope: Scope) -> Verdicts:
    if machine.probes is None:
        end(skipped(NOT_ASKED))
    probes = [probe for probe in machine.probes if probe.kind is ProbeKind.DMA_BUF and probe.nic]
    tried = [probe for probe in probes if probe.registration is Registration.DATA_DIRECT]
    if not tried:
        end(skipped("no NIC here has a Data Direct function"))
    default = {_pair(probe) for probe in probes if _works(probe) and probe.registration is Registration.DEFAULT}
    for _, group in group_by(tried, lambda probe: (*_ending(probe), _pair(probe) in default)):
        unaligned = [probe for probe in probes if probe.registration is Registration.DATA_DIRECT_UNALIGNED]
        pairs = {_pair(probe) for probe in group}
        yield from _verdicts(machine, group, [probe for probe in unaligned if _pair(probe) in pairs], default)


def _verdicts(
    machine: Machine, probes: Sequence[Probe], unaligned: Sequence[Probe], default: set[tuple[str, str | None]]
) -> Verdicts:
    first, place = probes[0], on_nics(dict.fromkeys(probe.nic for probe in probes if probe.nic))
    other = "so does the default mapping" if _pair(first) in default else "the default mapping does not"
    connection = summary_of(machine, probes)
    if first.outcome is Outcome.OK:
        bases = "; ".join(dict.fromkeys(filter(None, map(_unaligned, unaligned))))
        note = "; ".join(filter(None, (connection, other, bases)))
        yield _with(passed("GPU memory through Data Direct: works", place, note=note), evidence_of(machine, probes))
        return
    failures = tuple(Evidence(source=participants(machine, probe), value=probe.detail) for probe in probes[:4])
    evidence = (*failures, *evidence_of(machine, probes))
    if first.outcome is Outcome.NOT_RUN:
        yield skipped(first.detail, place)
    elif first.call not in _OWN_CALLS:
        yield _with(skipped("not reached: rdma.dmabuf-active has the reason", place), evidence)
    elif (first.call, first.error_number) == (_ASKED, errno.ENODEV):
        yield _with(skipped("no Data Direct function belongs to the NIC", place), evidence)
    elif first.outcome is Outcome.ERROR and first.error_number is None:
        yield _with(unknown(f"GPU memory through Data Direct: {first.detail}", place), evidence)
    elif first.outcome is Outcome.ERROR:
        works = "the default mapping works" if _pair(first) in default else "the default mapping does not work either"
        text = f"GPU memory through Data Direct: {first.call} failed: {first.error_name} ({first.error_number})"
        cause = _CAUSES.get(first.error_number or 0, "") if first.call == _REGISTERED else ""
        note = "; ".join(filter(None, (connection, works)))
        yield _with(noted(text, place, remedy=_REMEDY, cause=cause, note=note), evidence)
    else:
        ending = "did not end in time" if first.outcome is Outcome.TIMED_OUT else "killed its process"
        text = f"GPU memory through Data Direct: {ending} in {first.call}"
        yield _with(warned(text, HANGING, place), evidence)


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
    return probe.outcome is Outcome.OK


def _ending(probe: Probe) -> tuple[object, ...]:
    detail = probe.detail if probe.outcome is Outcome.NOT_RUN else ""
    return probe.outcome, probe.call, probe.error_number, detail


def _with(finding: Finding, evidence: tuple[Evidence, ...]) -> Finding:
    return replace(finding, evidence=evidence)
