"""The formats of a result, and the one table of which kind of result has which."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from egmctl.compat import StrEnum


class Format(StrEnum):
    """The formats of results; the values are the words of ``--format``."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"
    HTML = "html"
    """One page that needs nothing else: no network, no script."""
    SVG = "svg"
    """A picture: a bench's matrices, the drawing of a topology, the text of a doctor."""
    MARKDOWN = "md"
    """For tickets and pull requests, as GitHub reads it."""
    PROM = "prom"
    """Metrics for the textfile collector of Prometheus' node_exporter."""
    NAGIOS = "nagios"
    JUNIT = "junit"


SUFFIXES: Mapping[str, Format] = {
    ".txt": Format.TEXT,
    ".json": Format.JSON,
    ".csv": Format.CSV,
    ".html": Format.HTML,
    ".svg": Format.SVG,
    ".md": Format.MARKDOWN,
    ".prom": Format.PROM,
    ".xml": Format.JUNIT,
}
"""The format that the suffix of ``-o FILE`` asks for."""

_TABLES = (Format.TEXT, Format.JSON, Format.CSV, Format.HTML, Format.SVG, Format.MARKDOWN)
"""Of what can be written as rows too."""

BENCH: Sequence[Format] = (*_TABLES, Format.PROM, Format.JUNIT)
TOPO: Sequence[Format] = _TABLES
CHECKS: Sequence[Format] = tuple(one for one in _TABLES if one is not Format.CSV)
DOCTOR: Sequence[Format] = (*CHECKS, Format.PROM, Format.NAGIOS, Format.JUNIT)
COMPARISON: Sequence[Format] = _TABLES
BRINGUP: Sequence[Format] = DOCTOR
HISTORY: Sequence[Format] = _TABLES
PROFILES: Sequence[Format] = _TABLES
MACHINES: Sequence[Format] = _TABLES
MATCH: Sequence[Format] = CHECKS
FLEET: Sequence[Format] = _TABLES
