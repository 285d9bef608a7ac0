"""What the matrices cannot show: what is missing, blocked, narrower than it should be, or unknown, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from egmctl.compat import StrEnum
from egmctl.model.machine import Gpu, Machine, Reason
from egmctl.model.route import LinkClass, LinkKind
from egmctl.topology import rates
from egmctl.topology.access import obstacle
from egmctl.topology.links import Link, active_nvlinks, cpu_node_ids
from egmctl.topology.platform import PlatformKind, PlatformVerdict
from egmctl.topology.routes import HostRoute, RouteKind
from egmctl.units import format_kernel_list


class NoteKind(StrEnum):
    """What a note is about."""

    HIDDEN = "hidden"
    """This process cannot use a GPU."""
    DEGRADED = "degraded"
    """A GPU works, with fewer links or lanes than it should have."""
    REMARK = "remark"
    """All else."""


@dataclass(frozen=True, slots=True)
class Note:
    """One thing that the matrices cannot show."""

    kind: NoteKind
    words: str
    """A sentence without its full stop."""


def notes(
    machine: Machine,
    gpus: Sequence[Gpu],
    links: Mapping[tuple[str, str], Link],
    routes: Sequence[HostRoute],
    platform: PlatformVerdict,
) -> tuple[Note, ...]:
    """Return the notes, the most severe first."""
    kinds = (
        (NoteKind.HIDDEN, _unusable(machine, gpus)),
        (NoteKind.REMARK, _driver(machine)),
        (NoteKind.REMARK, _routes(machine, routes, platform)),
        (NoteKind.REMARK, _owners(machine, routes)),
        (NoteKind.DEGRADED, _fewer_nvlinks(gpus, links)),
        (NoteKind.REMARK, _without_speed(gpus)),
        (NoteKind.DEGRADED, _narrow_pcie(gpus)),
        (NoteKind.REMARK, _unknown_links(links)),
        (NoteKind.REMARK, _hidden(machine)),
        (NoteKind.REMARK, _numbered_otherwise(gpus)),
    )
    return tuple(Note(kind, words) for kind, sentences in kinds for words in sentences)


def _unusable(machine: Machine, gpus: Sequence[Gpu]) -> Iterable[str]:
    for gpu in gpus:
        stopped = obstacle(machine, gpu)
        if stopped is not None:
            yield f"GPU{gpu.index}: {stopped.cause}; it is at {gpu.bus_id}, but cannot be used from here"


def _driver(machine: Machine) -> Iterable[str]:
    driver = machine.driver
    if driver is None:
        return
    unread = driver.unread.get("cuda_error")
    if driver.cuda_error:
        yield f"CUDA does not work here ({driver.cuda_error}): what only CUDA knows is missing"
    elif unread is not None and unread.reason is not Reason.NOT_STATED:
        yield f"CUDA did not answer ({unread.detail or unread.reason.value}): what only CUDA knows is missing"


def _routes(machine: Machine, routes: Sequence[HostRoute], platform: PlatformVerdict) -> Iterable[str]:
    """Say once for each cause which routes it blocks, leaves unknown or keeps from being EGM."""
    unusable = {gpu.bus_id for gpu in machine.gpus or () if obstacle(machine, gpu) is not None}
    indices = {gpu.bus_id: gpu.index for gpu in machine.gpus or ()}
    causes: dict[tuple[RouteKind, str], list[HostRoute]] = {}
    for route in routes:
        told = route.kind is RouteKind.PCIE and platform.kind is PlatformKind.NO_EGM
        if route.reason and not told and route.gpu not in unusable:
            causes.setdefault((route.kind, route.reason), []).append(route)
    words = {RouteKind.BLOCKED: "blocked", RouteKind.UNKNOWN: "unknown"}
    for (kind, reason), found in causes.items():
        gpus = "GPU" + format_kernel_list({indices[route.gpu] for route in found})
        nodes = "NUMA " + format_kernel_list({route.node for route in found})
        yield f"{gpus} to {nodes}: {words.get(kind, 'not EGM')}; {reason}"


def _owners(machine: Machine, routes: Sequence[HostRoute]) -> Iterable[str]:
    """Say that EGM memory of a CPU with two GPUs belongs to one of them."""
    indices = {gpu.bus_id: gpu.index for gpu in machine.gpus or ()}
    groups: dict[frozenset[str], list[int]] = {}
    for route in routes:
        if route.siblings:
            groups.setdefault(frozenset((route.gpu, *route.siblings)), []).append(route.node)
    if groups:
        named = (
            f"NUMA {nodes[0]}: GPU{format_kernel_list({indices[gpu] for gpu in gpus})}"
            for gpus, nodes in groups.items()
        )
        yield (
            f"EGM memory of cuMemCreate and of pools belongs to one GPU of its CPU ({'; '.join(named)}), and every "
            "other GPU goes over NVLink to that one's C2C; managed and plain memory each reaches over its own C2C "
            "(read in the driver's source, not measured)"
        )


def _fewer_nvlinks(gpus: Sequence[Gpu], links: Mapping[tuple[str, str], Link]) -> Iterable[str]:
    """Name the GPUs with inactive links; where NVML gives no per-link state, the pairs that fall short."""
    short = {pair: link for pair, link in links.items() if link.nvlinks_expected}
    named: set[str] = set()
    for gpu in gpus:
        label, active = f"GPU{gpu.index}", active_nvlinks(gpu)
        touching = [link for pair, link in short.items() if label in pair]
        part = gpu.nvml.nvlink_count if gpu.nvml else None
        expected = max([part or 0, *(link.nvlinks_expected or 0 for link in touching if link.through == "switch")])
        if active is not None and touching and active < expected:
            yield f"* {label}: {active} of {expected} NVLinks are active"
            named.add(label)
    for pair, link in short.items():
        if not named & set(pair):
            yield f"* {pair[0]} to {pair[1]}: {link.nvlinks} of {link.nvlinks_expected} NVLinks"


def _without_speed(gpus: Sequence[Gpu]) -> Iterable[str]:
    names = {LinkKind.NVLINK: "NVLink", LinkKind.C2C: "NVLink-C2C"}
    for gpu in gpus:
        for kind, links in rates.without_speed(gpu).items():
            which = f"{names[kind]}s {format_kernel_list(set(links))}"
            yield f"GPU{gpu.index}: NVML calls {which} active at 0 MB/s, so their rate is unknown"


def _narrow_pcie(gpus: Sequence[Gpu]) -> Iterable[str]:
    for gpu in gpus:
        link = (gpu.nvml and gpu.nvml.link) or (gpu.pci and gpu.pci.link)
        if link and link.width and link.max_width and link.width < link.max_width:
            yield f"GPU{gpu.index}: PCIe x{link.width} of x{link.max_width}"


def _unknown_links(links: Mapping[tuple[str, str], Link]) -> Iterable[str]:
    causes: dict[str, list[tuple[str, str]]] = {}
    for pair, link in links.items():
        if link.kind is LinkClass.UNKNOWN and not link.unlisted:
            causes.setdefault(link.reason, []).append(pair)
    for reason, pairs in causes.items():
        example = f"{pairs[0][0]} to {pairs[0][1]}" + (f" and {len(pairs) - 1} more" if len(pairs) > 1 else "")
        yield f"{example}: unknown link, {reason}"


def _numbered_otherwise(gpus: Sequence[Gpu]) -> Iterable[str]:
    """Say which numbers nvidia-smi gives to the GPUs where it counts only those that this process may open."""
    moved = [(gpu.index, gpu.nvml.index) for gpu in gpus if gpu.nvml is not None and gpu.nvml.index != gpu.index]
    if moved:
        numbers = ", ".join(f"GPU{index} is its {theirs}" for index, theirs in moved[:4])
        more = f" and {len(moved) - 4} more" if len(moved) > 4 else ""
        yield f"nvidia-smi counts from here only the GPUs that it may open: {numbers}{more}"


def _hidden(machine: Machine) -> Iterable[str]:
    environment = machine.process.environment if machine.process else None
    if environment and "CUDA_VISIBLE_DEVICES" in environment:
        yield "CUDA_VISIBLE_DEVICES is set; like nvidia-smi, this shows all GPUs in NVML's order"
    if machine.gpus and not cpu_node_ids(machine):
        yield "no NUMA node with CPUs was read, so there are no routes to host memory"
