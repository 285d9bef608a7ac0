"""The topology of a machine, derived once for all output formats.

Below it are why no matrix can be drawn, and the notes on what the matrices cannot show.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import combinations, product
from typing import ClassVar

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.model.answer import UNANSWERED, Answer
from egmctl.model.gpu import Gpu
from egmctl.model.host import Driver, Nic
from egmctl.model.machine import Machine
from egmctl.model.record import BusId, Shown
from egmctl.model.route import LinkClass, LinkKind
from egmctl.topology.access import DENIED, Block, cuda_failure, not_loaded, nvml_failure, obstacle
from egmctl.topology.egm_mode import all_handed_over
from egmctl.topology.links import (
    Link,
    P2pMatrix,
    active_nvlinks,
    device_link,
    nvlink_joins,
    nvlinks_of,
    p2p_matrices,
    without_speed,
)
from egmctl.topology.platform import C2c, EgmCapability, PlatformKind, PlatformVerdict, c2c, egm, own_node, platform
from egmctl.topology.routes import HostRoute, RouteKind, route
from egmctl.units import format_kernel_list, grouped, several, shortened

SECTIONS = ("host", "gpus", "pairs", "switches", "nics", "driver", "process")
"""The sections of a machine that a topology shows, and that its answer rests on, also if a recording has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuState:
    """The state of one GPU; ``machines`` has its facts."""

    label: str
    """The label of the GPU in ``links``: ``GPU0``."""
    bus_id: BusId
    """The bus id of the GPU in ``routes`` and ``machines``."""
    own_node: int | None
    """The NUMA node of the GPU's own memory."""
    c2c: C2c
    egm: EgmCapability
    blocked_by: Block | None
    """The obstacle to using the GPU from this process; null if there is none."""
    blocked_reason: str


@dataclass(frozen=True, kw_only=True, repr=False)
class Topology(Shown):
    """The topology of a machine, for a selection of its GPUs and CPU NUMA nodes."""

    SCHEMA: ClassVar[str] = "egmctl.topo/2"

    platform: PlatformVerdict
    """The platform of the whole machine, regardless of the selection."""
    gpu_states: tuple[GpuState, ...]
    numa_nodes: tuple[int, ...]
    """The CPU NUMA nodes that are destinations of routes."""
    links: tuple[Link, ...]
    """The link between each pair of GPUs and NICs, once; ``NIC0`` is the first of the machine's NICs."""
    routes: tuple[HostRoute, ...]
    """The routes, by GPU and then by node, in the order of both."""
    notes: tuple[TopologyNote, ...]
    missing: MissingTopology | None
    """The reason why no matrix could be drawn; null if one could."""
    machines: tuple[Machine, ...]
    """The whole node, from which the other fields are derived; in a document with pseudonyms for private data."""
    strict: bool = False
    """Whether what doctor finds to be wrong with the connections makes the answer bad."""
    answer: Answer = UNANSWERED
    """What the command answers (:mod:`egmctl.verdict.answers`)."""

    @property
    def machine(self) -> Machine:
        """The whole node."""
        return self.machines[0]

    @cached_property
    def gpus(self) -> Mapping[str, Gpu]:
        """The selected GPUs by label: ``GPU0``."""
        return {state.label: self.machine.gpu(state.bus_id) for state in self.gpu_states}

    @cached_property
    def nics(self) -> Mapping[str, Nic]:
        """The NICs by label: ``NIC0``, numbered in the order of the machine's list, as nvidia-smi does."""
        return _nics(self.machine)

    @cached_property
    def p2p(self) -> tuple[P2pMatrix, ...]:
        """The P2P capabilities between the selected GPUs that NVML lists."""
        return p2p_matrices(self.machine, {label: gpu for label, gpu in self.gpus.items() if gpu.nvml is not None})

    def link(self, first: str, second: str) -> Link:
        """Return the link between two labels, in either order."""
        return self._link_by_ends[frozenset((first, second))]

    @cached_property
    def _link_by_ends(self) -> Mapping[frozenset[str], Link]:
        return {frozenset((link.source, link.target)): link for link in self.links}

    def label(self, bus_id: str) -> str:
        """Return the label of a GPU of the machine, selected or not."""
        return gpu_label(self.machine.gpu(bus_id))

    def judged_again(self, machine: Machine) -> Topology:
        """Return the topology of another machine record, for the same selection of GPUs and nodes."""
        gpus = {gpu.bus_id: gpu for gpu in machine.gpus or ()}
        chosen = dict.fromkeys(state.bus_id for state in self.gpu_states if state.bus_id in gpus)
        again = topology(machine, [gpus[bus_id] for bus_id in chosen], list(dict.fromkeys(self.numa_nodes)))
        return replace(again, strict=self.strict)


def topology(machine: Machine, gpus: Sequence[Gpu] | None = None, nodes: Sequence[int] | None = None) -> Topology:
    """Return the topology of a machine.

    Parameters
    ----------
    gpus, nodes
        The selection in the order of display; by default all GPUs and all NUMA nodes with CPUs. GPUs outside of the
        selection still count: a route may lead over them.
    """
    chosen = {gpu_label(gpu): gpu for gpu in ((machine.gpus or ()) if gpus is None else gpus)}
    nics = _nics(machine)
    numa_nodes = machine.cpu_nodes if nodes is None else tuple(nodes)
    devices: dict[str, Gpu | Nic] = {**chosen, **nics}
    links = tuple(
        replace(device_link(machine, devices[source], devices[target]), source=source, target=target)
        for source, target in (*combinations(chosen, 2), *product(chosen, nics), *combinations(nics, 2))
    )
    routes = tuple(route(machine, gpu, node) for gpu, node in product(chosen.values(), numa_nodes))
    verdict = platform(machine)
    return Topology(
        platform=verdict,
        gpu_states=tuple(_state(machine, gpu) for gpu in chosen.values()),
        numa_nodes=numa_nodes,
        links=links,
        routes=routes,
        notes=notes(machine, tuple(chosen.values()), links, routes, verdict),
        missing=missing(machine),
        machines=(machine,),
    )


def _state(machine: Machine, gpu: Gpu) -> GpuState:
    stopped = obstacle(machine, gpu)
    return GpuState(
        label=gpu_label(gpu),
        bus_id=gpu.bus_id,
        own_node=own_node(gpu),
        c2c=c2c(machine, gpu),
        egm=egm(machine, gpu),
        blocked_by=stopped.block if stopped else None,
        blocked_reason=stopped.cause if stopped else "",
    )


def _nics(machine: Machine) -> Mapping[str, Nic]:
    return {f"NIC{place}": nic for place, nic in enumerate(machine.nics or ())}


def gpu_label(gpu: Gpu) -> str:
    """Return the display label of a GPU: ``GPU0``, numbered on the whole node."""
    return f"GPU{gpu.index}"


# --- without a matrix, and beside the matrices ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MissingTopology:
    """The reason why there is no matrix."""

    sentence: str
    missing: tuple[str, ...]
    """The missing parts, each with its reason."""
    advice: tuple[str, ...]
    """Instructions, one sentence each."""


def missing(machine: Machine) -> MissingTopology | None:
    """Return why a machine's topology is unknown; ``None`` if NVML lists at least one GPU."""
    if any(gpu.nvml is not None for gpu in machine.gpus or ()):
        return None
    sentence, advice = _what_stops(machine)
    return MissingTopology(
        sentence=sentence,
        missing=tuple(_parts(machine)),
        advice=(advice, "'egmctl topo --machine list' names machines to try without a GPU."),
    )


def _what_stops(machine: Machine) -> tuple[str, str]:
    """Return the first obstacle for this process and its remedy."""
    gpus, driver, failure = machine.gpus or (), machine.driver or Driver(), nvml_failure(machine)
    if not gpus:
        return (
            "There is no NVIDIA GPU on this machine.",
            "If it should have one: 'lspci -d 10de:' lists those on its bus; in a container, ask for its GPUs.",
        )
    on_bus = f"{several(len(gpus), 'NVIDIA GPU')} {'is' if len(gpus) == 1 else 'are'} on the PCI bus"
    if all_handed_over(machine):
        return (
            f"{on_bus}, and this node gives them to virtual machines.",
            "Run egmctl inside a virtual machine that has them.",
        )
    if not_loaded(machine):
        load = "Load the driver with 'modprobe nvidia', or install it."
        block = "The nouveau driver is loaded: block it and load NVIDIA's."
        nouveau = "nouveau" in (driver.modules or ())
        return f"{on_bus}, but the NVIDIA driver is not loaded.", block if nouveau else load
    if failure is not None and failure.how == "missing":
        return (
            f"{on_bus} and the driver is loaded, but its library NVML is missing.",
            f"Install the libraries of driver {driver.module_version or '(version unknown)'}. In a container, start it "
            "with NVIDIA_DRIVER_CAPABILITIES=compute,utility.",
        )
    denied = [node.path for node in driver.nodes or () if node.access == "EPERM" and node.path.endswith("nvidiactl")]
    if any((stopped := obstacle(machine, gpu)) is not None and stopped.block in DENIED for gpu in gpus):
        denied.append("these GPUs")
    if denied:
        advice = (
            f"This process was not given {' and '.join(denied)}: start it in a cgroup or container with all GPUs, and "
            "choose among them with CUDA_VISIBLE_DEVICES. 'egmctl doctor' says who set that, and how to ask for all."
        )
    elif failure is not None and failure.name == "NVML_ERROR_LIB_RM_VERSION_MISMATCH":
        advice = "The library and the loaded driver are of different versions: reload the driver, or reboot."
    else:
        advice = "'egmctl doctor' has each GPU and the libraries; the kernel log has more (dmesg | grep NVRM)."
    if failure is not None:
        return f"{on_bus} and the driver is loaded, but NVML does not work.", advice
    return f"{on_bus}, but none can be used from here.", advice


def _parts(machine: Machine) -> Iterator[str]:
    """Yield each missing part of the driver, and each unusable GPU, with its reason."""
    driver = machine.driver or Driver()
    if not_loaded(machine):
        unread = driver.unread.get("module_version")
        yield f"kernel driver: not loaded ({unread.detail if unread and unread.detail else 'no version to read'})"
    for library, failure in (("NVML", nvml_failure(machine)), ("CUDA", cuda_failure(machine))):
        if failure is not None:
            yield f"{library} {failure.words}"
    if not_loaded(machine):
        return
    for node in driver.nodes or ():
        if node.access not in (None, "ok") and node.path.endswith(("nvidiactl", "nvidia-uvm")):
            yield f"{node.path}: {node.access}"
    stops = [(gpu.index, stopped) for gpu in machine.gpus or () if (stopped := obstacle(machine, gpu)) is not None]
    # A failure of NVML as a whole is already listed.
    indices = grouped((stopped.cause, index) for index, stopped in stops if stopped.block is not Block.NVML_FAILED)
    yield from (f"GPU{format_kernel_list(set(gpus))}: {cause}" for cause, gpus in indices.items())


class NoteKind(StrEnum):
    """The kinds of notes."""

    HIDDEN = "hidden"
    """This process cannot use a GPU."""
    DEGRADED = "degraded"
    """A GPU works with fewer links or lanes than expected."""
    REMARK = "remark"
    """Any other fact."""


@dataclass(frozen=True, slots=True)
class TopologyNote:
    """A fact that the matrices cannot show."""

    kind: NoteKind
    words: str
    """One sentence without a full stop."""


def notes(
    machine: Machine, gpus: Sequence[Gpu], links: Sequence[Link], routes: Sequence[HostRoute], platform: PlatformVerdict
) -> tuple[TopologyNote, ...]:
    """Return the notes in order of display."""
    failed = cuda_failure(machine)
    kinds: tuple[tuple[NoteKind, Iterable[str]], ...] = (
        (NoteKind.HIDDEN, _unusable(machine, gpus)),
        (NoteKind.REMARK, [f"CUDA {failed.words}: what only CUDA knows is missing"] if failed else ()),
        (NoteKind.REMARK, _routes(machine, routes, platform)),
        (NoteKind.REMARK, _owners(machine, routes)),
        (NoteKind.DEGRADED, _fewer_nvlinks(machine, gpus, links)),
        (NoteKind.REMARK, _without_speed(gpus)),
        (NoteKind.DEGRADED, [f"GPU{gpu.index}: {words}" for gpu in gpus if (words := narrow_pcie(gpu))]),
        (NoteKind.REMARK, _unknown_links(links)),
        (NoteKind.REMARK, _hidden(machine)),
        (NoteKind.REMARK, _numbered_otherwise(gpus)),
    )
    return tuple(TopologyNote(kind, words) for kind, sentences in kinds for words in sentences)


def _unusable(machine: Machine, gpus: Sequence[Gpu]) -> Iterable[str]:
    for gpu in gpus:
        stopped = obstacle(machine, gpu)
        if stopped is not None:
            yield f"GPU{gpu.index}: {stopped.cause}; it is at {gpu.bus_id}, but cannot be used from here"


def _routes(machine: Machine, routes: Sequence[HostRoute], platform: PlatformVerdict) -> Iterable[str]:
    """Yield one sentence per cause, with the routes that are blocked, unknown or not EGM because of it."""
    unusable = {gpu.bus_id for gpu in machine.gpus or () if obstacle(machine, gpu) is not None}
    by_platform = {RouteKind.PCIE} if platform.kind is PlatformKind.NO_EGM else set()
    stated = (route for route in routes if route.reason and route.gpu not in unusable)
    causes = grouped(((route.kind, route.reason), route) for route in stated if route.kind not in by_platform)
    words = {RouteKind.BLOCKED: "blocked", RouteKind.UNKNOWN: "unknown"}
    for (kind, reason), alike in causes.items():
        gpus = "GPU" + format_kernel_list({machine.gpu(route.gpu).index for route in alike})
        nodes = "NUMA " + format_kernel_list({route.numa_node for route in alike})
        yield f"{gpus} to {nodes}: {words.get(kind, 'not EGM')}; {reason}"


def _owners(machine: Machine, routes: Sequence[HostRoute]) -> Iterable[str]:
    """Yield the ownership rule for EGM memory of CPUs with several GPUs."""
    groups = grouped((frozenset((route.gpu, *route.siblings)), route.numa_node) for route in routes if route.siblings)
    if groups:
        named = (
            f"NUMA {nodes[0]}: GPU{format_kernel_list({machine.gpu(gpu).index for gpu in gpus})}"
            for gpus, nodes in groups.items()
        )
        yield (
            f"EGM memory of cuMemCreate and of pools belongs to one GPU of its CPU ({'; '.join(named)}), and every "
            "other GPU goes over NVLink to that one's C2C; managed and plain memory each reaches over its own C2C "
            "(read in the driver's source, not measured)"
        )


def _fewer_nvlinks(machine: Machine, gpus: Sequence[Gpu], links: Sequence[Link]) -> Iterable[str]:
    """Yield the GPUs with inactive NVLinks, or the pairs with too few if NVML does not report each link's state."""
    short = [link for link in links if link.nvlinks_expected]
    named = {f"GPU{gpu.index}": fewer for gpu in gpus if (fewer := fewer_nvlinks(machine, gpu, links))}
    yield from (f"* {label}: {active} of {expected} NVLinks are active" for label, (active, expected) in named.items())
    for link in short:
        if not named.keys() & {link.source, link.target}:
            yield f"* {link.source} to {link.target}: {link.nvlinks} of {link.nvlinks_expected} NVLinks"


def fewer_nvlinks(machine: Machine, gpu: Gpu, links: Sequence[Link]) -> tuple[int, int] | None:
    """Return the number of a GPU's active NVLinks and of the expected ones; ``None`` unless some are missing.

    All links of a part lead to its switches. Elsewhere links that are down are missing only where a pair lacks them, or
    all that join it: a card without a bridge has none.
    """
    active, part = active_nvlinks(gpu), gpu.nvml.nvlink_count if gpu.nvml else None
    short = [link for link in links if link.nvlinks_expected and f"GPU{gpu.index}" in (link.source, link.target)]
    expected = max([part or 0, *(link.nvlinks_expected or 0 for link in short if link.through == "switch")])
    cut = any(link.remote_type == "switch" for link in nvlinks_of(gpu)) or (
        active == 0 and any(nvlink_joins(machine, gpu, other) for other in machine.gpus or () if other is not gpu)
    )
    return (active, expected) if active is not None and (short or cut) and active < expected else None


def _without_speed(gpus: Sequence[Gpu]) -> Iterable[str]:
    names = {LinkKind.NVLINK: "NVLink", LinkKind.C2C: "NVLink-C2C"}
    for gpu in gpus:
        for kind, links in without_speed(gpu).items():
            which = f"{names[kind]}s {format_kernel_list(set(links))}"
            yield f"GPU{gpu.index}: NVML calls {which} active at 0 MB/s, so their rate is unknown"


def narrow_pcie(gpu: Gpu) -> str:
    """Return the words for missing PCIe lanes of a GPU; empty if it may have all of them."""
    link = (gpu.nvml and gpu.nvml.link) or (gpu.pci and gpu.pci.link)
    if link and link.width and link.max_width and link.width < link.max_width and not link.sheds_lanes:
        return f"PCIe x{link.width} of x{link.max_width}"
    return ""


def _unknown_links(links: Sequence[Link]) -> Iterable[str]:
    unknown = (link for link in links if link.kind is LinkClass.UNKNOWN and not link.unlisted)
    ends = grouped((link.reason, f"{link.source} to {link.target}") for link in unknown)
    yield from (f"{shortened(pairs, 1)}: unknown link, {reason}" for reason, pairs in ends.items())


def _numbered_otherwise(gpus: Sequence[Gpu]) -> Iterable[str]:
    """Yield the numbers that nvidia-smi gives to the GPUs, if it counts only those that this process may open."""
    moved = [f"GPU{gpu.index} is its {gpu.nvml.index}" for gpu in gpus if gpu.nvml and gpu.nvml.index != gpu.index]
    if moved:
        yield f"nvidia-smi counts from here only the GPUs that it may open: {shortened(moved, 4)}"


def _hidden(machine: Machine) -> Iterable[str]:
    environment = machine.process.environment if machine.process else None
    if environment and "CUDA_VISIBLE_DEVICES" in environment:
        yield "CUDA_VISIBLE_DEVICES is set; like nvidia-smi, this shows all GPUs in NVML's order"
    if machine.gpus and not machine.cpu_nodes:
        yield "no NUMA node with CPUs was read, so there are no routes to host memory"
