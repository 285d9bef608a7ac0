"""Golden files: ``EGMCTL_WRITE_GOLDEN=1 pytest ...`` writes them anew; look at the difference before committing it."""

from __future__ import annotations

import os
from pathlib import Path


def compare(found: str, golden: Path) -> None:
    """Fail unless the file holds this text, byte for byte."""
    if os.environ.get("EGMCTL_WRITE_GOLDEN"):
        golden.parent.mkdir(parents=True, exist_ok=True)
        golden.write_text(found)
    assert golden.exists(), f"{golden} is not there: EGMCTL_WRITE_GOLDEN=1 writes it"
    assert found == golden.read_text()
