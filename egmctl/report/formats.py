"""The formats of results, and the file suffixes that ask for them."""

from __future__ import annotations

from collections.abc import Mapping

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
