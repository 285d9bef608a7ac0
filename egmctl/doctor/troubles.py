"""The troubles of a run that causes explain: on which node, with what symptom, of which measurement.

Every run is looked at for troubles, and most have none. So this file imports neither checks nor the rules of causes,
whose import takes a twentieth of a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.model.finding import Waiver, WaiverKind
from egmctl.model.gpu import Gpu
from egmctl.model.machine import Machine
from egmctl.model.task import Flow

if TYPE_CHECKING:
    from egmctl.model.measurement import Measurement


@dataclass(frozen=True, slots=True)
class RunNode:
    """A node of a run and the ranks on it."""

    machine: Machine
    name: str = ""
    """The prefix of its labels in the run, e.g. ``node1``; empty if the run has one node."""
    ranks: frozenset[int] | None = None
    """The ranks on the node; ``None``: all."""

    def has(self, rank: int | None) -> bool:
        """Return whether a rank is on this node; ``None`` is the process of a run without ranks."""
        return self.ranks is None or rank in self.ranks

    def bus_ids(self, flow: Flow) -> set[str]:
        """Return the bus ids of a flow's GPUs on this node: its ends and its initiator."""
        ends = {end.bus_id for end in (flow.source, flow.destination) if self.has(end.rank)}
        issuer = {flow.initiator} if self.has(flow.initiator_rank) else set()
        return {bus_id for bus_id in ends | issuer if bus_id is not None}

    def gpus(self, flow: Flow) -> list[Gpu]:
        """Return the GPUs of :meth:`bus_ids`, in the order of their indices."""
        bus_ids = self.bus_ids(flow)
        return [gpu for gpu in self.machine.gpus or () if gpu.bus_id in bus_ids]


class Symptom(StrEnum):
    """The ways in which an attempted measurement can go wrong."""

    SLOW = "slow"
    DEGRADED = "degraded"
    """The measurement ran without EGM, whose route is blocked."""
    CORRUPT = "corrupt"
    FAILED = "failed"
    """It failed with a known cause."""
    LOST = "lost"
    """It crashed, timed out, or failed without a known cause."""
    BLIND = "blind"
    """The links that it crossed are unknown, because NVML failed as a whole."""


@dataclass(frozen=True, slots=True, eq=False)
class Trouble:
    """A symptom of a measurement, or a reason why it was waived."""

    number: int
    """The index of the measurement in the run."""
    kind: Symptom | WaiverKind
    measurement: Measurement
    """The measurement; if waived, with its planned routes."""
    waiver: Waiver | None = None


def numa_nodes(flow: Flow) -> set[int]:
    """Return the NUMA nodes of the ends of a flow that are in host memory."""
    return {end.numa_node for end in (flow.source, flow.destination) if end.numa_node is not None}


SLOWDOWNS = {
    "hw-slowdown": "hardware slowdown (heat or power)",
    "hw-thermal-slowdown": "hardware thermal slowdown",
    "sw-thermal-slowdown": "software thermal slowdown",
    "hw-power-brake-slowdown": "power brake (the power supply limits power)",
}
"""The clocks event reasons that indicate a fault of cooling or power; a power cap under load does not."""
