"""What explains that paths of a run are slow, broke or were not measured: one cause, told once."""

from __future__ import annotations

from dataclasses import dataclass

from egmctl.model.finding import Finding, Status
from egmctl.model.record import Plain


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCause:
    """A cause, and the measurements that it explains.

    What no cause of a run explains stays without one: nothing is guessed.
    """

    status: Status
    """As grave as the gravest thing that it explains."""
    finding: Finding
    """What was found: by one of doctor's checks, with the checks that it explains in ``finding.explains``, or while
    the run went on, by one of the ids in :mod:`egmctl.verdict.seen`."""
    explains: tuple[int, ...]
    """Places in ``RunReport.measurements``: what is slow, broke or was not measured because of it."""
    asked: Plain = ""
    """The GPUs that the user named and of which nothing was measured because of it, ``GPU2-3``: that is a failure."""
    node: Plain = ""
    """Which node of a run over several it was found on, as its GPUs' labels begin: ``node1``."""
