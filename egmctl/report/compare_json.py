"""A comparison as one JSON document: ``egmctl.comparison/1``. Schema: ``docs/schemas/comparison.schema.json``."""

from __future__ import annotations

from egmctl.model.codec import to_json
from egmctl.model.comparison import COMPARISON_SCHEMA, Comparison
from egmctl.report.exports.json import dump, envelope


def compare_json(comparison: Comparison) -> str:
    """Return the document's text."""
    return dump(envelope(COMPARISON_SCHEMA, comparison.exit_code, to_json(comparison), machine=None))
