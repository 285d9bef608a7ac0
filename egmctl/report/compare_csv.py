"""A comparison as CSV: tidy, one row a path, finding or fact that differs; of two runs every path."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from egmctl.model.command import Command
from egmctl.model.comparison import Comparison, PathDifference, WordDifference
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
)
"""The columns, in order. New ones are added at the end."""


def compare_csv(comparison: Comparison) -> str:
    """Return the table's text; ``subject`` is ``path``, ``finding``, ``fact`` or ``machine``: a fact beside those."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_path(one) for one in comparison.paths)
    subject = "finding" if comparison.kind is Command.DOCTOR else "fact"
    for one in comparison.words:
        writer.writerows(_words(one, subject))
    for one in comparison.machines:
        writer.writerows(_words(one, "machine"))
    return text.getvalue()


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
