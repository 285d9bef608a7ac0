"""Brings results of older schemas into the shape of today's, before they are decoded.

``egmctl.topo/1``, ``egmctl.comparison/1`` and ``egmctl.fleet/1`` called a link a wire. A bench's first schema has a
place of its own (:mod:`egmctl.bench.schema1`), and so have profiles (:mod:`egmctl.verdict.load`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

TOPO_SCHEMA_1 = "egmctl.topo/1"
COMPARISON_SCHEMA_1 = "egmctl.comparison/1"
FLEET_SCHEMA_1 = "egmctl.fleet/1"


def upgraded(schema: str, result: Any) -> Any:
    """Return the result of a document in the shape of its newest schema.

    What is of the newest already, or has not the shape of its schema, is left as it is, for the decoder to name.
    """
    if not isinstance(result, dict):
        return result
    if schema == TOPO_SCHEMA_1:
        return _each(result, "routes", lambda route: _each(route, "hops", with_link))
    if schema == COMPARISON_SCHEMA_1:
        return _each(result, "paths", with_link)
    if schema == FLEET_SCHEMA_1 and "comparison" in result:
        return result | {"comparison": upgraded(COMPARISON_SCHEMA_1, result["comparison"])}
    return result


def _each(record: dict[str, Any], key: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Return a record in which every record of a list is changed."""
    rows = record.get(key)
    if not isinstance(rows, list):
        return record
    return record | {key: [change(row) if isinstance(row, dict) else row for row in rows]}


def with_link(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record in which a link is not called a wire."""
    return {("link" if key == "wire" else key): value for key, value in record.items()}
