"""A fleet's answers as CSV: one row per node."""

from __future__ import annotations

from egmctl.model.fleet import FleetReport
from egmctl.report.exports.csv_text import csv_text

COLUMNS = ("node", "state", "reach", "exit_code", "duration_s", "version", "file", "causes", "reason")
"""The columns, in order. New ones are added at the end."""


def fleet_csv(report: FleetReport) -> str:
    """Return the table's text; ``causes`` are what is wrong on the node, each behind its status."""
    causes = {
        node: "; ".join(f"{one.status} {one.key} {one.value}".strip() for one in group.lines if one.status)
        for group in report.groups
        for node in group.nodes
    }
    return csv_text(
        COLUMNS,
        (
            {
                "node": one.node,
                "state": one.state.value,
                "reach": one.reach.value,
                "exit_code": one.exit_code,
                "duration_s": one.duration_s,
                "version": one.version,
                "file": one.file,
                "causes": causes.get(one.node, ""),
                "reason": one.reason,
            }
            for one in report.answers
        ),
    )
