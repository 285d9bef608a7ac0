"""Tables as CSV that every reader takes for data: truth in words, no control character, no formula."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping, Sequence

from egmctl.units import printable

_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?", re.ASCII)


def csv_text(columns: Sequence[str], rows: Iterable[Mapping[str, object]]) -> str:
    """Return a table with a header line.

    Parameters
    ----------
    rows
        Cells by column; one that is missing is empty.

    Raises
    ------
    ValueError
        For a cell of no column.
    """
    file = io.StringIO()
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return file.getvalue()


def _cell(value: object) -> object:
    """Return what is written for a value.

    A spreadsheet runs text that begins with ``= + - @`` as a formula; an apostrophe before it says that it is text
    (https://owasp.org/www-community/attacks/CSV_Injection).
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        shown = printable(value)
        return f"'{shown}" if shown.startswith(("=", "+", "-", "@")) and not _NUMBER.fullmatch(shown) else shown
    return value
