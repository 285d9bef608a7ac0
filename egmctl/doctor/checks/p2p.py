"""GPU to GPU: what the driver says of each pair."""

from __future__ import annotations

from egmctl.doctor.check import Scope, Verdicts, check, skip
from egmctl.doctor.findings import fact, failed, passed, skipped, todo, unknown, warned, without_option
from egmctl.doctor.situation import P2pRefusal, refusal, usable
from egmctl.model.finding import Finding, Guard, on_gpus, on_pairs
from egmctl.model.machine import Gpu, Machine, Pair, Reason

P2P_STATUS = "nvmlDeviceGetP2PStatus"
MEANINGS = {
    "CNS": "the chipset does not support it",
    "GNS": "the GPU does not support it",
    "TNS": "their PCIe positions do not allow it",
    "DR": "a registry key of the driver turns it off",
    "NS": "not supported",
    "U": "the driver does not know",
}
"""nvidia-smi's words for NVML_P2P_STATUS_*."""


_Wrong = tuple[tuple[str, str], ...]
"""The kinds of P2P that are not OK, each with NVML's word for it."""
_BY_CUDA_ALONE: _Wrong = (("cuda", "0"),)
"""NVML allows all of it, and CUDA does not."""
_SILENT_CUDA: _Wrong = (("cuda", "?"),)
"""NVML allows all of it, and CUDA was asked and gave no answer."""


@check("p2p.status", Guard.P2P, Guard.IPC, Guard.EGM, sections=("gpus", "pairs"))
def _status(machine: Machine, scope: Scope) -> Verdicts:
    gpus = usable(machine, scope.gpus_of(machine))
    if len(gpus) < 2:
        skip("fewer than two GPUs can be used from here")
    answers: dict[tuple[_Wrong, P2pRefusal | None], list[tuple[Gpu, Gpu, Pair]]] = {}
    for source in gpus:
        for target in gpus:
            pair = machine.pair(source.bus_id, target.bus_id)
            if pair is not None and source is not target:
                wrong = _wrong(pair)
                reason = refusal(machine, source, target, pair) if wrong else None
                answers.setdefault((wrong, reason), []).append((source, target, pair))
    if not answers:
        yield unknown("no pair of these GPUs was read")
    for (wrong, reason), pairs in answers.items():
        yield _verdict(wrong, reason, pairs, scope)


def _wrong(pair: Pair) -> _Wrong:
    names = ("read", "write", "nvlink") if pair.nvlink_count else ("read", "write")
    words = {name: pair.p2p_status.get(name) or "?" for name in names}
    wrong = tuple((name, word) for name, word in words.items() if word != "OK")
    if wrong or pair.can_access_peer is True:
        return wrong
    if pair.can_access_peer is False:
        return _BY_CUDA_ALONE
    unread = pair.unread.get("can_access_peer")
    not_asked = unread is None or unread.reason in (Reason.NOT_ASKED, Reason.NOT_STATED, Reason.NOT_PRESENT)
    return () if not_asked else _SILENT_CUDA


def _verdict(wrong: _Wrong, refused: P2pRefusal | None, pairs: list[tuple[Gpu, Gpu, Pair]], scope: Scope) -> Finding:
    ends, nvlinks = [(source, target) for source, target, _ in pairs], [pair.nvlink_count for *_, pair in pairs]
    gpus = {gpu.bus_id: gpu for pair in ends for gpu in pair}
    everywhere = len(ends) == len(gpus) * (len(gpus) - 1)
    place = on_gpus(gpus.values()) if everywhere else on_pairs(ends)
    joined = any(nvlinks)
    if not wrong:
        return passed(
            f"the driver allows P2P, read and write, over {'NVLink' if all(nvlinks) else 'PCIe or NVLink'}", place
        )
    if wrong == _SILENT_CUDA:
        return unknown("NVML allows P2P, and cuDeviceCanAccessPeer did not answer", place)
    # What NVML did not report does not excuse what it did.
    words = [(name, word) for name, word in wrong if word != "?"]
    evidence = tuple(fact(f"{P2P_STATUS}({name})", f"{word}: {MEANINGS.get(word, 'not read')}") for name, word in wrong)
    reasons = "; ".join(dict.fromkeys(MEANINGS.get(word, word) for _, word in words))
    summary = f"no P2P {' and '.join(name for name, _ in words)}: {reasons}"
    if wrong == _BY_CUDA_ALONE:
        evidence = (fact(f"{P2P_STATUS}(read, write)", "OK"), fact("cuDeviceCanAccessPeer", "0"))
        summary = "CUDA refuses P2P that NVML allows: copies are staged in host memory"
    elif not words:
        return unknown("NVML did not report the state of P2P", place, evidence=evidence)
    elif any(word == "DR" for _, word in words):
        remedy = without_option("RMDisableP2P or PeerMappingOverride (in NVreg_RegistryDwords)")
        return failed(summary, remedy, place, evidence=evidence)
    elif not joined and scope.asked_purpose(Guard.P2P):
        remedy = todo("Use GPUs below one PCIe switch or with NVLink, or let the library copy through host memory.")
        return failed(summary, remedy, place, evidence=evidence)
    elif not joined:
        return skipped(f"these GPUs have no P2P over PCIe: {reasons}", place, evidence=evidence)
    by_nvlink = "these GPUs are joined by NVLink" if joined else ""
    if joined and refused is not None:
        # A mode that somebody set is a fault only for who wants P2P.
        return (warned if refused.chosen and not scope.asked_purpose(Guard.P2P) else failed)(
            summary,
            refused.remedy,
            place,
            evidence=(*evidence, *refused.evidence),
            cause=f"{by_nvlink}; {refused.cause}",
            confidence=refused.confidence,
        )
    remedy = todo("See nvlink.links, gpu.mig, gpu.vgpu, gpu.cc-mode and the kernel log.", "nvidia-smi topo -p2p r")
    return (failed if joined else warned)(summary, remedy, place, evidence=evidence, cause=by_nvlink)
