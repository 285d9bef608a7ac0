"""Which measurements are comparable, and what bounds them: facts about a measurement, whatever is judged of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from egmctl.bench.engine import ENGINES
from egmctl.dataclass import dataclass
from egmctl.model.measurement import Measurement, MeasurementStatus, RunReport
from egmctl.model.profile import Unit
from egmctl.model.route import Carrier, Hop, MemoryKind, PublishedRate, hop_symbol
from egmctl.model.task import Flow, Pattern, Point, Quantity, named
from egmctl.units import gpu_name, grouped


@dataclass(frozen=True, slots=True)
class PathClass:
    """A class of comparable paths: same case, point, links and, on a node with several kinds of GPUs, kinds of GPUs."""

    case: str
    point: Point
    link: str
    """The symbol of the route."""
    gpus: str = ""
    """The kinds of the GPUs at the ends, ``A100 -> H200``; empty if all GPUs of the run are of one kind."""

    @property
    def name(self) -> str:
        """The name of the class for people."""
        name = f"{named(self.case, self.point)} over {self.link}"
        return f"{name}, {self.gpus}" if self.gpus else name


SEVERAL = "several routes at once"
"""The symbol of a class whose flows use different routes at the same time."""


GpuKinds = Mapping[str, str]
"""The kind of each GPU by its label; empty if all GPUs of a run are of one kind."""


def gpu_kinds(report: RunReport) -> GpuKinds:
    """Return the kinds of a run's GPUs by product name; empty if they are all of one kind."""
    kinds = {gpu.label: gpu_name(gpu.name).removeprefix("NVIDIA ") for gpu in report.gpus}
    return kinds if len(set(kinds.values())) > 1 else {}


def class_of(measurement: Measurement, kinds: GpuKinds | None = None) -> PathClass:
    """Return the class of a measurement. Measurements with flows over different routes form a class of their own.

    Parameters
    ----------
    kinds
        The result of :func:`gpu_kinds`, so that unlike GPUs are not compared with each other.
    """
    link = common_symbol(flow.route.symbol for flow in measurement.flows)
    return PathClass(measurement.case, measurement.point, link, _kinds_at_ends(measurement, kinds or {}))


def _kinds_at_ends(measurement: Measurement, kinds: GpuKinds) -> str:
    """Return the kinds of the GPUs at the ends of all flows, ``A100 -> H200``; empty without a GPU at either end."""
    ends = {(kinds.get(flow.source.label, ""), kinds.get(flow.destination.label, "")) for flow in measurement.flows}
    names = sorted({" -> ".join(dict.fromkeys(kind for kind in end if kind)) for end in ends} - {""})
    return ", ".join(names)


def common_symbol(symbols: Iterable[str]) -> str:
    """Return the symbol of all flows, or :data:`SEVERAL` if they differ."""
    different = set(symbols)
    return different.pop() if len(different) == 1 else SEVERAL


def unit_of(measurement: Measurement) -> Unit:
    """Return the unit of a measurement's value."""
    return Unit.NS if measurement.quantity is Quantity.LATENCY else Unit.GB_S


def is_lost(measurement: Measurement) -> bool:
    """Return whether a measurement crashed, timed out or failed without a known cause; the exit status is then 4."""
    unexplained = measurement.status is MeasurementStatus.FAILED and not measurement.known_cause
    # A status that only a newer version knows is no success.
    is_known = measurement.status in set(MeasurementStatus)
    return unexplained or not is_known or measurement.status in (MeasurementStatus.CRASHED, MeasurementStatus.TIMED_OUT)


def is_degraded(measurement: Measurement) -> bool:
    """Return whether an EGM route was blocked and another one was used."""
    return any(flow.route.degraded for flow in measurement.flows)


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The rate that all flows of a measurement together cannot exceed."""

    gb_s: float
    limit: Hop | PublishedRate
    """The link or the memory that limits them; of several alike, one."""

    @property
    def name(self) -> str:
        """The symbol of the link or the name of the memory."""
        return hop_symbol(self.limit) if isinstance(self.limit, Hop) else self.limit.name


ONE_GPU = (Pattern.ONE_TO_ALL, Pattern.ALL_TO_ONE)


def ceiling(measurement: Measurement) -> Ceiling | None:
    """Return the least of the links' nominal rates and of the memory's published rate; ``None`` if it is not known.

    Memory carries reads and writes together: both directions share it, as do all GPUs that use one NUMA node, and a
    copy within a GPU crosses it twice. What GPUs reach together over shared links is not known.
    """
    pattern, flows = measurement.pattern, measurement.flows
    atomics = pattern is Pattern.LOCAL and ENGINES[measurement.engine].atomics
    # Each node of a run over several has a NUMA node 0; parts of one allocation are on one.
    one_node = not measurement.ranks or any(end.parts for end in (flows[0].source, flows[0].destination))
    unknown = not one_node or any(flow.route.memory_rate is None for flow in flows)
    several = len(flows) > 1 and pattern not in ONE_GPU
    if measurement.quantity is not Quantity.BANDWIDTH or atomics or (several and unknown):
        return None
    if pattern in ONE_GPU and not all(hop.direct for flow in flows for hop in flow.route.hops):
        flows = flows[:1]
    by_node = grouped((max(flow.source.numa_node or 0, flow.destination.numa_node or 0), flow) for flow in flows)
    parts = [part for alike in by_node.values() if (part := _shared(alike, pattern)) is not None]
    if len(parts) < len(by_node):
        return None
    return Ceiling(sum(part.gb_s for part in parts), parts[0].limit)


def _shared(flows: Sequence[Flow], pattern: Pattern) -> Ceiling | None:
    """Return the ceiling of flows that share the memory of one NUMA node or GPU."""
    memory, hops = flows[0].route.memory_rate, [flow.route.slowest for flow in flows]
    by_own_cpus = flows[0].route.carrier is Carrier.CPU and not flows[0].route.hops
    if pattern is Pattern.LOCAL or by_own_cpus:
        crossings = sum(end.memory is not MemoryKind.REGISTERS for end in (flows[0].source, flows[0].destination))
        return None if memory is None else Ceiling(memory.gb_s / max(1, crossings), memory)
    if hops[0] is None or None in hops:
        return None
    links = sum(hop.nominal_gb_s or 0 for hop in hops if hop is not None)
    return Ceiling(links, hops[0]) if memory is None or links <= memory.gb_s else Ceiling(memory.gb_s, memory)
