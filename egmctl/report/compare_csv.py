"""A comparison as CSV: tidy, one row a path, finding or fact that differs; of two runs every path."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from egmctl.model.command import Command
from egmctl.model.comparison import Comparison, PathDifference, WordDifference
from egmctl.report.origin import compared_banners
from egmctl.units import printable

COLUMNS = (
    "node",
    "subject",
    "about",
    "what",
    "wire",
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
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    warning = printable("; ".join(compared_banners(comparison)))
    writer.writerows({**row, "warning": warning} for row in _rows(comparison))
    return text.getvalue()


def _rows(comparison: Comparison) -> Iterator[dict[str, object]]:
    yield from map(_path, comparison.paths)
    subject = "finding" if comparison.kind is Command.DOCTOR else "fact"
    for one in comparison.words:
        yield from _words(one, subject)
    for one in comparison.machines:
        yield from _words(one, "machine")


def _path(one: PathDifference) -> dict[str, object]:
    return {
        "node": printable(one.node),
        "subject": "path",
        "about": printable(one.path),
        "what": f"{one.case} {one.stage}".rstrip(),
        "wire": printable(one.wire),
        "size_bytes": one.size_bytes,
        "unit": one.unit,
        "reference": one.reference,
        "value": one.value,
        "change": one.change,
        "bound": one.bound,
        "outcome": one.outcome,
        "reason": printable(one.reason),
    }


def _words(one: WordDifference, subject: str) -> Iterator[dict[str, object]]:
    for node in one.nodes:
        yield {
            "node": printable(node),
            "subject": subject,
            "about": printable(one.about),
            "what": printable(one.what),
            "reference": printable(one.reference),
            "value": printable(one.value),
            "outcome": one.outcome,
        }
