"""What a finding means for a purpose: only here does ``--for`` change a status.

A check judges a machine alike for every purpose, and its findings declare what they block. So one finding cannot be
graver for a purpose that it leaves alone, and a new check needs no rule of its own.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from egmctl.model.finding import Finding, Guard, Status


def for_purposes(
    finding: Finding, blocks: tuple[Guard, ...], purposes: Collection[Guard] | None, *, whole_node: bool = False
) -> Finding:
    """Return a finding with what it blocks, as it counts for some purposes.

    Parameters
    ----------
    blocks
        What a fault of its check blocks. A finding that fails blocks that unless it says itself what it blocks; any
        other finding blocks only what it says.
    purposes
        The purposes that the user named. A finding that blocks one of them fails. One that fails and blocks none of
        them is a warning: something is broken, and it is not what was asked about. ``None``: no purpose was named.
    whole_node
        Whether the node is asked about as well, so that every fault counts.
    """
    if finding.status is Status.FAIL and not finding.blocks:
        finding = replace(finding, blocks=blocks)
    if purposes is None:
        return _as_choice(finding)
    if not set(finding.blocks).isdisjoint(purposes):
        return replace(finding, status=Status.FAIL)
    return replace(finding, status=Status.WARN) if finding.status is Status.FAIL and not whole_node else finding


def _as_choice(finding: Finding) -> Finding:
    """Return a note of a setting without the command that would undo it: that somebody chose it is no fault."""
    if finding.status is not Status.NOTE or finding.remedy is None or finding.remedy.run is None:
        return finding
    return replace(finding, remedy=replace(finding.remedy, run=None))
