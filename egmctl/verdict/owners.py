"""Which GPU HOST_NUMA memory belongs to, by the links that carried it: pure.

EGM memory belongs to one GPU: its owner reads it over its own NVLink-C2C, every other GPU over NVLink to the owner
(:mod:`egmctl.topology.routes`: read in the driver's source, not measured). So a GPU that needed NVLink does not own
what it read, one that did not may, and one that sent over NVLink what another one read does. NVML counts the bytes of
NVLink and of PCIe and none of NVLink-C2C: that a GPU used its own is inferred by exclusion.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from egmctl.model.evidence import COUNTED_AT_LEAST, STRAY_AT_MOST, Verdict
from egmctl.model.measurement import Measurement, Quantity
from egmctl.model.route import Egm, LinkKind
from egmctl.model.verdict import MemoryOwner, OwnerUnknown


def owners(measurements: Sequence[Measurement]) -> tuple[MemoryOwner, ...]:
    """Return for each case the owner of the memory of each NUMA node and GPU under which some was allocated and copied.

    That of other processes than the one that copies it is told of where it is EGM.
    """
    labels: dict[str, str] = {}
    reads: dict[tuple[str, int, str], list[int]] = {}
    for number, measurement in enumerate(measurements):
        flow = measurement.flows[0]
        end = flow.source if flow.source.allocated_by is not None else flow.destination
        if end.allocated_by is None or end.numa_node is None or flow.initiator is None:
            continue
        alone = measurement.quantity is Quantity.BANDWIDTH and len(measurement.flows) == 1
        told = end.rank is None or flow.route.egm is Egm.YES
        if not (measurement.measured and alone and told):
            continue
        reads.setdefault((measurement.case, end.numa_node, end.allocated_by), []).append(number)
        labels[flow.initiator] = flow.initiator_label
        labels[end.allocated_by] = end.allocated_by_label or end.allocated_by
    found = []
    for (case, node, allocated_by), numbers in reads.items():
        found_owner = _owner([_read(measurements[number], allocated_by) for number in numbers])
        owner = None if isinstance(found_owner, OwnerUnknown) else found_owner
        found.append(
            MemoryOwner(
                case=case,
                numa_node=node,
                allocated_by=allocated_by,
                allocated_by_label=labels[allocated_by],
                owner=owner,
                owner_label=None if owner is None else labels[owner],
                unknown=found_owner if isinstance(found_owner, OwnerUnknown) else None,
                measurements=tuple(numbers),
            )
        )
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Read:
    """What the counters showed of one GPU's read or write."""

    reader: str
    allocated_by: str
    egm: bool
    link: LinkKind | None
    """Over which it came; ``None`` where nothing shows that."""
    sent: bool | None
    """Whether the GPU under which the memory was allocated sent it over NVLink, or received what was written; ``None``
    where nothing shows that."""


def _owner(reads: Iterable[_Read]) -> str | OwnerUnknown:
    of_egm = [read for read in reads if read.egm]
    if not of_egm:
        return OwnerUnknown.NOT_EGM
    told = [read for read in of_egm if read.link is not None]
    if not told:
        return OwnerUnknown.NO_COUNTERS
    own = {read.reader for read in told if read.link is LinkKind.C2C}
    across = {read.reader for read in told if read.link is LinkKind.NVLINK}
    if not across:
        return OwnerUnknown.OWN_LINK_EACH if len(own) > 1 else OwnerUnknown.TOO_FEW
    sent = {read.allocated_by for read in told if read.sent}
    not_sent = {read.allocated_by for read in told if read.sent is False}
    possible = own | sent
    if len(possible) > 1 or possible & (across | not_sent):
        return OwnerUnknown.CONTRADICTORY
    return possible.pop() if possible else OwnerUnknown.TOO_FEW


def _read(measurement: Measurement, allocated_by: str) -> _Read:
    flow = measurement.flows[0]
    reader = flow.initiator or ""
    egm = flow.route.egm is Egm.YES
    evidence = measurement.evidence
    route = evidence.route if evidence is not None else None
    if evidence is None or route is None or route.verdict in (Verdict.UNKNOWN, Verdict.REFUTED):
        return _Read(reader, allocated_by, egm, None, None)
    sent = None
    if route.link is LinkKind.NVLINK and reader != allocated_by:
        gpu = next((gpu for gpu in evidence.gpus if gpu.bus_id == allocated_by), None)
        if gpu is not None:
            counted = gpu.received_bytes if flow.sent else gpu.sent_bytes
            sent = _has_sent(counted.get(LinkKind.NVLINK), route.expected_bytes)
    return _Read(reader, allocated_by, egm, route.link, sent)


def _has_sent(sent_bytes: int | None, expected_bytes: int) -> bool | None:
    """Say whether a GPU sent what was read; ``None`` where its counter shows neither all of it nor stray bytes only."""
    if sent_bytes is None or STRAY_AT_MOST * expected_bytes < sent_bytes < COUNTED_AT_LEAST * expected_bytes:
        return None
    return sent_bytes >= COUNTED_AT_LEAST * expected_bytes
