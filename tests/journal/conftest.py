"""A journal that tests damage."""

from __future__ import annotations

import pytest

from egmctl.journal.events import BEGIN_LINES
from tests.fuzz.documents import original
from tests.journal.lines import changed, ended


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the journal of a run that came to its end, whose lines are all as short as most are."""
    lines = original("journal", tmp_path_factory.mktemp("original")).splitlines(keepends=True)
    for number in BEGIN_LINES:
        lines[number] = changed(lines[number], lambda entry: entry["result"].update(machines=[]))
    return ended(b"".join(lines))
