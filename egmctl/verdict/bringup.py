"""Join the diagnosis of a node with the run of its bench, and answer whether it can be handed over. Pure."""

from __future__ import annotations

from dataclasses import replace

from egmctl.model.bringup import Bringup
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.measurement import RunReport
from egmctl.verdict.answers import answered
from egmctl.verdict.answers.bringup import of_bringup


def bringup(
    diagnosis: Diagnosis,
    run: RunReport | None,
    *,
    before: Diagnosis | None = None,
    not_measured: str = "",
    no_fabric: str = "",
) -> Bringup:
    """Return the bring-up of a node with its answer.

    Parameters
    ----------
    diagnosis
        The diagnosis after the bench, if there was one.
    run
        The bench on the same node, judged and explained; ``None`` if there was none.
    before
        The diagnosis before the bench. A finding that is not in it appeared under load, and a warning then fails.
    not_measured
        The reason why there was no bench.
    no_fabric
        The reason why the fabric to other nodes was not measured; empty if only this node is asked about.
    """
    whole = answered(Bringup(diagnosis=diagnosis, run=run, not_measured=not_measured, no_fabric=no_fabric))
    return whole if before is None else replace(whole, answer=of_bringup(whole, before=before))
