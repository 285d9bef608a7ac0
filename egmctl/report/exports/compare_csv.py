"""A comparison as CSV: tidy, one row per path, finding or fact that differs; of two runs every path."""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.model.command import Command
from egmctl.model.comparison import AttributeDifference, Comparison, PathDifference
from egmctl.report.exports.csv_text import csv_text
from egmctl.report.views.compare import banners

COLUMNS = (
    "node",
    "subject",
    "about",
    "what",
    "link",
    "size_bytes",
    "unit",
    "reference",
    "value",
    "change",
    "bound",
    "outcome",
    "reason",
    "warning",
)
"""The columns, in order. New ones are added at the end."""


def compare_csv(comparison: Comparison) -> str:
    """Return the table's text.

    ``subject`` is ``path``, ``finding``, ``fact`` or ``machine``: a fact beside those. ``warning`` says which of the
    files are of no hardware, in every row, so that none can pass for hardware once it is cut out.
    """
    warning = "; ".join(banners(comparison))
    return csv_text(COLUMNS, ({**row, "warning": warning} for row in _rows(comparison)))


def _rows(comparison: Comparison) -> Iterator[dict[str, object]]:
    yield from map(_path, comparison.paths)
    subject = "finding" if comparison.kind is Command.DOCTOR else "fact"
    for one in comparison.words:
        yield from _words(one, subject)
    for one in comparison.machines:
        yield from _words(one, "machine")


def _path(one: PathDifference) -> dict[str, object]:
    return {
        "node": one.node,
        "subject": "path",
        "about": one.path,
        "what": f"{one.case} {one.stage}".rstrip(),
        "link": one.link,
        "size_bytes": one.size_bytes,
        "unit": one.unit,
        "reference": one.reference,
        "value": one.value,
        "change": one.change,
        "bound": one.bound,
        "outcome": one.outcome,
        "reason": one.reason,
    }


def _words(one: AttributeDifference, subject: str) -> Iterator[dict[str, object]]:
    for node in one.nodes:
        yield {
            "node": node,
            "subject": subject,
            "about": one.about,
            "what": one.what,
            "reference": one.reference,
            "value": one.value,
            "outcome": one.outcome,
        }
