"""What counts of a task that is measured more than once: what broke stays broken, else the steadiest result counts.

A step is repeated whose samples differ too much; a task of several that ran at the same time is also measured alone.
"""

from __future__ import annotations

from dataclasses import replace

from egmctl.model.measurement import BROKEN, Measurement, Status

_STEADINESS = {Status.CORRUPT: 0, Status.OK: 1, Status.UNSTABLE: 2}
"""Which of two outcomes of the same task counts: corrupt data does, whatever else was seen."""


def of_both(before: Measurement | None, now: Measurement) -> Measurement:
    """Return what counts of a task after it was measured, once more where there is a result from before."""
    if before is not None and before.status in BROKEN:
        # Measured again, alone or because others were unstable: what broke once is broken.
        kept = now if now.graver_than(before) else before
        return replace(kept, attempts=before.attempts + 1)
    if before is not None and before.status is Status.UNSTABLE and now.status in _STEADINESS:
        better = min(before, now, key=lambda m: _STEADINESS[m.status])
        return replace(better, attempts=before.attempts + 1)
    return now


def with_proof(among: Measurement, proof: Measurement) -> tuple[Measurement, float | None]:
    """Return what counts of a task that was measured among others and then alone, and how much the two differ.

    That it breaks alone counts. The difference is a part of the median alone, ``None`` where one of them has no figure.
    """
    if proof.graver_than(among):
        return proof, None
    summary, alone = among.timed, proof.timed
    found = replace(among, alone=alone.median if alone else None)
    if not summary or not alone:
        return found, None
    # What lies between the samples does not differ from them: a latency depends on the SM by a percent or two.
    return found, max(summary.min / alone.median - 1, 1 - summary.max / alone.median, 0)
