"""What does not fit together in a bring-up that was read: a cause of what is not there, an answer without a reason."""

from __future__ import annotations

from egmctl.model.bringup import Answer, Bringup
from egmctl.model.finding import Status


def bringup_fault(found: Bringup) -> str | None:
    """Return what in a bring-up does not fit together, as half a sentence that names the place; ``None``: all fits."""
    counts_of = {
        "findings": len(found.diagnosis.findings),
        "slow": 0 if found.run is None else len(found.run.measurements),
        "waived": 0 if found.run is None else len(found.run.measurements),
    }
    if not found.diagnosis.machines:
        return "result.diagnosis.machines: there is none"
    for place, cause in enumerate(found.causes):
        for name, count in counts_of.items():
            if any(not 0 <= number < count for number in getattr(cause, name)):
                return f"result.causes[{place}].{name}: one of them is not there"
        causes = () if found.run is None else found.run.causes
        if cause.run_cause is not None and not 0 <= cause.run_cause < len(causes):
            return f"result.causes[{place}].run_cause: it is not there"
    gaps = [number for gap in found.gaps for number in gap.causes]
    if any(not 0 <= number < len(found.causes) for number in gaps):
        return "result.gaps: one is of a cause that is not there"
    if not found.gaps and found.answer is Answer.INCOMPLETE:
        return "result.gaps: there is none"
    if found.answer is Answer.NO_GO and not any(cause.status is Status.FAIL for cause in found.causes):
        return "result.causes: none failed"
    return None
