"""GPU to GPU: what the driver says of each pair."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from egmctl.doctor.check import Check, Scope, failed, passed, skipped, unknown, warned
from egmctl.doctor.situation import P2pRefusal, refusal, usable
from egmctl.model.finding import Confidence, Evidence, Finding, Guard, Place, Remedy, on_gpus, on_pairs
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


def _status(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus = usable(machine, scope.gpus_of(machine))
    if len(gpus) < 2:
        yield skipped("fewer than two GPUs can be used from here")
        return
    pairs = [
        (one, other, pair)
        for one in gpus
        for other in gpus
        if one is not other and (pair := machine.pair(one.bus_id, other.bus_id)) is not None
    ]
    answers: dict[tuple[_Wrong, P2pRefusal | None], list[tuple[Gpu, Gpu]]] = {}
    for one, other, pair in pairs:
        wrong = tuple((name, word) for name in ("read", "write", *_nvlink(pair)) if (word := _word(pair, name)) != "OK")
        if not wrong and pair.can_access_peer is not True:
            wrong = _BY_CUDA_ALONE if pair.can_access_peer is False else _SILENT_CUDA if _was_asked(pair) else ()
        why = refusal(machine, one, other, pair) if wrong else None
        answers.setdefault((wrong, why), []).append((one, other))
    if not answers:
        yield unknown("no pair of these GPUs was read")
    for (wrong, why), ends in answers.items():
        nvlinks = {pair.nvlink_count for one, other, pair in pairs if (one, other) in ends}
        yield _verdict(wrong, why, ends, nvlinks, scope)


def _nvlink(pair: Pair) -> tuple[str, ...]:
    return ("nvlink",) if pair.nvlink_count else ()


def _word(pair: Pair, name: str) -> str:
    return pair.p2p_status.get(name) or "?"


_Wrong = tuple[tuple[str, str], ...]
"""What is not OK, and NVML's word for it."""
_BY_CUDA_ALONE: _Wrong = (("cuda", "0"),)
"""NVML allows all of it, and CUDA does not."""
_SILENT_CUDA: _Wrong = (("cuda", "?"),)
"""NVML allows all of it, and CUDA was asked and gave no answer."""


def _was_asked(pair: Pair) -> bool:
    """Say whether CUDA gives no answer for a pair that it was queried for."""
    why = pair.unread.get("can_access_peer")
    return why is not None and why.reason not in (Reason.NOT_ASKED, Reason.NOT_STATED, Reason.NOT_PRESENT)


def _verdict(
    wrong: _Wrong, refused: P2pRefusal | None, ends: list[tuple[Gpu, Gpu]], nvlinks: set[int | None], scope: Scope
) -> Finding:
    gpus = {gpu.bus_id: gpu for pair in ends for gpu in pair}
    everywhere = len(ends) == len(gpus) * (len(gpus) - 1)
    place = on_gpus(gpus.values()) if everywhere else on_pairs(ends)
    if not wrong:
        through = "NVLink" if nvlinks and None not in nvlinks and 0 not in nvlinks else "PCIe or NVLink"
        return passed(f"the driver allows P2P, read and write, over {through}", place=place)
    if wrong == _BY_CUDA_ALONE:
        return _by_cuda_alone(refused, place, scope, joined=any(nvlinks))
    if wrong == _SILENT_CUDA:
        return unknown("NVML allows P2P, and cuDeviceCanAccessPeer did not answer", place=place)
    evidence = tuple(
        Evidence(source=f"{P2P_STATUS}({name})", value=f"{word}: {MEANINGS.get(word, 'not read')}")
        for name, word in wrong
    )
    # What NVML did not report does not excuse what it did.
    wrong = tuple((name, word) for name, word in wrong if word != "?")
    words = {word for _, word in wrong}
    if not wrong:
        return unknown("NVML did not report the state of P2P", place=place, evidence=evidence)
    why = "; ".join(dict.fromkeys(MEANINGS.get(word, word) for _, word in wrong))
    summary = f"no P2P {' and '.join(name for name, _ in wrong)}: {why}"
    if "DR" in words:
        remedy = Remedy(
            text="Take the key (RMDisableP2P, PeerMappingOverride, ...) out of NVreg_RegistryDwords and reload the "
            "driver.",
            needs_root=True,
        )
        return failed(summary, remedy, place=place, evidence=evidence)
    if any(nvlinks) and refused is not None:
        return _tell(refused, scope)(
            summary,
            refused.remedy,
            place=place,
            evidence=(*evidence, *refused.evidence),
            cause=f"these GPUs are joined by NVLink; {refused.cause}",
            confidence=refused.confidence,
        )
    if any(nvlinks):
        remedy = Remedy(text="See nvlink.links, gpu.mig and gpu.cc-mode.")
        return failed(summary, remedy, place=place, evidence=evidence, cause="these GPUs are joined by NVLink")
    if scope.asked_purpose(Guard.P2P):
        remedy = Remedy(
            text="Use GPUs below one PCIe switch or with NVLink, or let the library copy through host memory."
        )
        return failed(summary, remedy, place=place, evidence=evidence)
    return skipped(f"these GPUs have no P2P over PCIe: {why}", place=place, evidence=evidence)


def _tell(refused: P2pRefusal | None, scope: Scope) -> Callable[..., Finding]:
    """Return what a refusal is between GPUs with NVLink: a mode that somebody set is a fault only for who wants P2P."""
    return warned if refused is not None and refused.chosen and not scope.asked_purpose(Guard.P2P) else failed


def _by_cuda_alone(refused: P2pRefusal | None, place: Place, scope: Scope, *, joined: bool) -> Finding:
    """Judge pairs that NVML allows P2P and CUDA refuses: hardly anything that is read says why."""
    evidence = (
        Evidence(source=f"{P2P_STATUS}(read, write)", value="OK"),
        Evidence(source="cuDeviceCanAccessPeer", value="0"),
        *(refused.evidence if refused is not None else ()),
    )
    remedy = Remedy(
        text="See gpu.mig, gpu.vgpu, gpu.cc-mode and the kernel log; then report it with both answers to NVIDIA.",
        command="nvidia-smi topo -p2p r",
    )
    return (_tell(refused, scope) if joined else warned)(
        "CUDA refuses P2P that NVML allows: copies are staged in host memory",
        refused.remedy if refused is not None else remedy,
        place=place,
        evidence=evidence,
        cause=f"these GPUs are joined by NVLink{f'; {refused.cause}' if refused is not None else ''}" if joined else "",
        confidence=refused.confidence if refused is not None else Confidence.HIGH,
    )


CHECKS = (Check("p2p.status", _status, guards=(Guard.P2P, Guard.IPC, Guard.EGM), sections=("gpus", "pairs")),)
