"""Which profile a machine is of, and why: never by one string alone. Pure.

A GPU that cannot be used from here, as one that a device cgroup denies, says little of itself. What is not known of it
is passed over as long as the others say it: the node is of the same kind, whoever may use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from egmctl.model.machine import Gpu, Machine
from egmctl.model.profile import Match, MatchPoint, Profile, Signature
from egmctl.model.route import LinkClass
from egmctl.topology.health import C2c, c2c
from egmctl.topology.links import gpu_link
from egmctl.topology.platform import platform
from egmctl.wording import counted, gpu_name


def choose(machine: Machine, profiles: Sequence[Profile]) -> tuple[Profile | None, str]:
    """Return the first profile that fits, and why it does; or none, and why none does."""
    for profile in profiles:
        if (match := match_profile(machine, profile)).fits:
            return profile, match.reason
    if not machine.gpus:
        return None, "there is no GPU"
    found = counted(map(gpu_kind, machine.gpus))
    near = [m for p in profiles if (m := match_profile(machine, p)).points[0].fits]
    why = "".join(f"; {match.profile} does not match: {match.reason}" for match in near)
    return None, f"no profile matches {found}{why}"


def match_profile(machine: Machine, profile: Profile) -> Match:
    """Ask of a machine everything that the profile's signature states."""
    signature, gpus = profile.match, machine.gpus or ()
    points = [
        _all("GPU name", [gpu.name for gpu in gpus], signature.gpu_names),
        _all("PCI device id", [pci_id(gpu) for gpu in gpus], signature.device_ids),
        _count(len(gpus), signature),
        _nvlinks(gpus, signature),
        _link(machine, gpus, signature),
        _c2c(machine, gpus, signature),
        _domain(machine, signature),
    ]
    return Match(profile=profile.name, points=tuple(point for point in points if point is not None))


def _all(what: str, found: Sequence[str | None], expected: Sequence[str]) -> MatchPoint:
    known = [one for one in found if one is not None]
    words = ", ".join(dict.fromkeys(known or ["unknown" if found else "no GPU"]))
    fits = bool(known) and all(one in expected for one in known)
    return _point(what, fits, words, " or ".join(expected))


def _count(found: int, signature: Signature) -> MatchPoint:
    least, most = signature.least_gpus, signature.most_gpus
    expected = str(most) if least == most else f"{least} to {most}"
    return _point("GPUs", least <= found <= most, str(found), expected)


def _nvlinks(gpus: Sequence[Gpu], signature: Signature) -> MatchPoint | None:
    if signature.nvlinks is None:
        return None
    listed = [gpu.nvml for gpu in gpus if gpu.nvml is not None]
    counts = {nvml.nvlink_count for nvml in listed}
    found = sorted("unknown" if count is None else str(count) for count in counts)
    words = ", ".join(found) or ("unknown" if gpus else "no GPU")
    return _point("NVLinks per GPU", counts == {signature.nvlinks}, words, str(signature.nvlinks))


def _link(machine: Machine, gpus: Sequence[Gpu], signature: Signature) -> MatchPoint | None:
    """Compare the best link between two GPUs: one whose links are down is still of its kind, and no faster."""
    if signature.link is None or len(gpus) < 2:
        return None
    links = [gpu_link(machine, one, other) for one, other in combinations(gpus, 2)]
    joined = [link.nvlinks or 0 for link in links if link.kind is LinkClass.NVLINK]
    if not joined:
        return _point("link", True, f"{links[0].symbol} (no NVLink is up)", signature.link)
    most = signature.nvlinks_between or 0
    return _point("link", max(joined) <= most, f"NV{max(joined)}", signature.link)


def _c2c(machine: Machine, gpus: Sequence[Gpu], signature: Signature) -> MatchPoint:
    states = {c2c(machine, gpu) for gpu in gpus}
    found = states - {C2c.UNKNOWN} or states
    expected = "NVLink-C2C" if signature.c2c else "no NVLink-C2C"
    fits = found <= ({C2c.UP, C2c.DOWN} if signature.c2c else {C2c.ABSENT})
    reason = expected if fits else f"NVLink-C2C {', '.join(sorted(found))}, expected {expected}"
    return MatchPoint(what="C2C", fits=fits, reason=reason)


def _domain(machine: Machine, signature: Signature) -> MatchPoint | None:
    if signature.nvlink_domain is None:
        return None
    found = platform(machine).clique_id is not None
    words = {True: "a multi-node NVLink domain", False: "no multi-node NVLink domain"}
    fits = found is signature.nvlink_domain
    reason = words[found] if fits else f"{words[found]}, expected {words[signature.nvlink_domain]}"
    return MatchPoint(what="NVLink domain", fits=fits, reason=reason)


def _point(what: str, fits: bool, found: str, expected: str) -> MatchPoint:
    reason = f"{what} {found}" if fits else f"{what} {found}, not {expected}"
    return MatchPoint(what=what, fits=fits, reason=reason)


def gpu_kind(gpu: Gpu) -> str:
    """Return what a GPU is, in words: its name and its PCI id."""
    return f"{gpu_name(gpu.name)} ({pci_id(gpu) or 'PCI id unknown'})"


def pci_id(gpu: Gpu) -> str | None:
    """Return vendor and device, ``10de:2335``; ``None`` where they were not read."""
    return None if gpu.pci is None else gpu.pci.pci_id
