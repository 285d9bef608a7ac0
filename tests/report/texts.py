"""Results as the text that people read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from egmctl.model.measurement import RunReport
from egmctl.report.document import Chart, Document, DocumentBlock, Level, Matrix, Section, body_of, shown
from egmctl.report.kinds import Format
from egmctl.report.render.text import WIDTH, text
from egmctl.report.views.bench_details import all_series, families, swept
from tests.answers import render

__all__ = ["WIDTH", "matrices_text", "tables_of", "text_of"]


def text_of(result: object, *, verbose: int = 0) -> str:
    """Return a result's text."""
    return str(render(result, Format.TEXT, verbose=verbose))


def tables_of(report: RunReport) -> list[Matrix | Chart]:
    """Return the tables of a run."""
    sections = [Section(title=title, body=body) for title, body in families(report)]
    sections += [Section(title="", body=partial(all_series, report, axis)) for axis in swept(report)]
    return list(_tables(shown(sections, Level.ALL)))


def _tables(blocks: Iterable[DocumentBlock]) -> Iterator[Matrix | Chart]:
    for block in blocks:
        if isinstance(block, Section):
            yield from _tables(body_of(block))
        elif isinstance(block, (Matrix, Chart)):
            yield block


def matrices_text(report: RunReport) -> str:
    """Return the tables of a run alone."""
    return text(Document(command="", subject="", body=tuple(tables_of(report)))).plain
