"""The numbers of each GPU of a node that a picture of many nodes shows: its NVLinks, and its slowest path."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from egmctl.dataclass import dataclass
from egmctl.model.bringup import Bringup
from egmctl.model.machine import Machine
from egmctl.model.measurement import Measurement, RunReport
from egmctl.model.verdict import Yardstick


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuNumbers:
    """What was read or measured on one GPU."""

    share: float | None = None
    """The speed of its slowest path that no other GPU explains, as a share of what the profile expects."""
    links_active: int | None = None
    """The number of its NVLinks that are active, if some are not."""
    links: int | None = None
    """The number of its NVLinks, if some are not active."""


def numbers_of(machine: Machine, result: object) -> Mapping[str, GpuNumbers]:
    """Return the numbers of the GPUs of a node by bus id, without those that nothing is known of.

    Parameters
    ----------
    result
        What doctor, bench or bringup found on the node.
    """
    measured = result.run if isinstance(result, Bringup) else result
    run = measured if isinstance(measured, RunReport) else None
    shares = {} if run is None else _slowest(run)
    numbers = {}
    for gpu in machine.gpus or ():
        links = [link.active for link in (gpu.nvml.nvlinks if gpu.nvml else None) or ()]
        some = False in links and None not in links
        numbers[gpu.bus_id] = GpuNumbers(
            share=shares.get(gpu.bus_id),
            links_active=sum(map(bool, links)) if some else None,
            links=len(links) if some else None,
        )
    return numbers


def slot_of(machine: Machine) -> int | None:
    """Return the slot of a rack that a node is in; ``None`` if its GPUs do not agree on one."""
    slots = {gpu.nvml.platform.slot if gpu.nvml and gpu.nvml.platform else None for gpu in machine.gpus or ()}
    return slots.pop() if len(slots) == 1 else None


def answerable(run: RunReport) -> Callable[[int], Collection[str]]:
    """Return the function that names the GPUs, by bus id, which a measurement says something about.

    They are those of its causes, else those that are outliers among their peers, else all on the path. So one bad GPU
    does not mark those that exchange data with it.
    """
    outliers = {gpu for culprit in (run.verdict.culprits if run.verdict else ()) for gpu in culprit.gpus}
    causes = [(cause.measurements, cause.finding.place.gpus or frozenset()) for cause in run.causes]

    def gpus(number: int) -> Collection[str]:
        ends = _ends(run.measurements[number])
        known = {gpu for explains, places in causes if number in explains for gpu in places}
        return ends & known or ends & outliers or ends

    return gpus


def _ends(measurement: Measurement) -> set[str]:
    return {
        end
        for flow in measurement.flows
        for end in (flow.source.bus_id, flow.destination.bus_id, flow.initiator)
        if end is not None
    }


def _slowest(run: RunReport) -> dict[str, float]:
    """Return the least share of an expected speed that the paths of each GPU reach."""
    gpus, least = answerable(run), dict[str, float]()
    for entry in run.verdict.judged if run.verdict else ():
        quantity = run.measurements[entry.measurement].quantity
        by_profile = (judged for judged in entry.judgements if judged.yardstick is Yardstick.PROFILE)
        shares = [share for judged in by_profile if (share := judged.speed_share(quantity)) is not None]
        for gpu in gpus(entry.measurement) if shares else ():
            least[gpu] = min(least.get(gpu, shares[0]), *shares)
    return least
