"""What a change of a fact of a machine is worth: one table of the facts of which more, less or one value is better.

A fact that is not in the table is only different: of two driver versions, kernels or NUMA layouts neither is known to
be worse. The same change the other way round has the opposite worth.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from egmctl.comparison.facts import PRESENT, UNREAD, Subject
from egmctl.dataclass import dataclass
from egmctl.model.comparison import Outcome


@dataclass(frozen=True, slots=True)
class More:
    """A number of which more is better, or worse."""

    better: bool = True
    tolerance: float = 0.0
    """The part of the larger number by which the two may differ and be only different."""


@dataclass(frozen=True, slots=True)
class Good:
    """A fact with one healthy value."""

    value: str


Worth = More | Good

_MORE, _ALMOST = More(), More(tolerance=0.01)
"""Each driver version keeps another part of a GPU's memory for itself: 1 % is our choice."""
_FEWER = More(better=False)

WORTH: Mapping[str, Worth] = {
    # what a GPU is, and how fast it may run
    "ecc_mode": Good("yes"),
    "memory_total_bytes": _ALMOST,
    "bar1_total_bytes": _ALMOST,
    "sm_clock_max_mhz": _MORE,
    "memory_clock_max_mhz": _MORE,
    "persistence_mode": Good("yes"),
    # how it is connected
    "nvlink_count": _MORE,
    "active": Good("yes"),
    "nvlink_bandwidth_best": Good("yes"),
    "c2c_enabled": Good("yes"),
    "addressing_mode": Good("ats"),
    "can_access_peer": Good("yes"),
    **dict.fromkeys(("p2p_status read", "p2p_status write", "p2p_status nvlink", "p2p_status atomics"), Good("OK")),
    "width": _MORE,
    "max_width": _MORE,
    "max_speed_gt_s": _MORE,
    "rate_gbit_s": _MORE,
    "port state": Good("ACTIVE"),
    # whether it is healthy
    "fabric state": Good("completed"),
    "fabric status": Good("0"),
    "fabric health_summary": Good("healthy"),
    "health route_unhealthy": Good("false"),
    "health degraded_bandwidth": Good("false"),
    "health route_recovery": Good("false"),
    "responds": Good("yes"),
    "remapped_rows_pending": Good("no"),
    "remapped_rows_failure": Good("no"),
    "remapped_rows_correctable": _FEWER,
    "remapped_rows_uncorrectable": _FEWER,
    "ecc_uncorrected_volatile": _FEWER,
    "recovery_action": Good("none"),
    "daemon_state": Good("READY"),
    "domain_status": Good("UP"),
}
"""The worth of facts, by the last or the last two words of their names."""

_ERRORS = re.compile(r".*errors|replays.*|(failed_)?recoveries")
"""Counters of errors, of which there are many."""
_COUNTED = ("GPU", "NIC", "NVSwitch")
"""The kinds of things that a node must not lose."""
_PASSED_OVER = ("device node", "mount", "bridge", "NUMA")
"""The kinds of things of which nothing is known to be worse: what this process was given, the layout of the node."""


def outcome_of(subject: Subject, before: Any, after: Any) -> Outcome:
    """Return whether a changed fact is better, worse or merely different."""
    if subject.kind in _PASSED_OVER or any(str(value).startswith(UNREAD) for value in (before, after)):
        return Outcome.DIFFERENT
    match worth_of(subject):
        case Good(value=good) if good in (str(before), str(after)):
            return Outcome.BETTER if str(after) == good else Outcome.WORSE
        case More(better=more_is_better, tolerance=tolerance):
            old, new = number_of(before), number_of(after)
            if old is None or new is None or abs(new - old) <= tolerance * max(abs(old), abs(new)):
                return Outcome.DIFFERENT
            return Outcome.BETTER if (new > old) is more_is_better else Outcome.WORSE
    return Outcome.DIFFERENT


def worth_of(subject: Subject) -> Worth | None:
    """Return the worth of a fact; ``None`` if neither value of it is known to be worse."""
    words = subject.what.split(" ")
    if words == [PRESENT]:
        return Good("yes") if subject.kind in _COUNTED else None
    # Only the memory of a GPU is a property of a part: a node's depends on what the kernel has plugged in.
    if words[-1] == "memory_total_bytes" and subject.kind != "GPU":
        return None
    if _ERRORS.fullmatch(words[-1]):
        return _FEWER
    if len(words) > 2 and words[-1] == "state" and subject.kind == "NIC":
        return WORTH["port state"]
    return WORTH.get(" ".join(words[-2:])) or WORTH.get(words[-1])


def number_of(value: Any) -> float | None:
    """Return the number of a fact; ``None`` if it is none."""
    try:
        return float(getattr(value, "number", value))
    except (TypeError, ValueError):
        return None
