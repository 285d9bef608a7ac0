"""What ``egmctl topo`` says of each shipped machine, compared with the file beside it, byte for byte.

After a change that is meant, ``EGMCTL_WRITE_GOLDEN=1 pytest tests/replay/test_golden.py`` writes the files anew; look
at the difference before committing it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from egmctl.facts import replay
from tests.golden import compare
from tests.in_process import run

FOLDER = Path(__file__).parent


@pytest.mark.parametrize("machine", replay.names())
def test_text(machine: str) -> None:
    done = run("topo", "--machine", machine)
    assert done.code == 0
    compare(done.out, FOLDER / machine / "topo.txt")


def test_verbose_text() -> None:
    done = run("topo", "--machine", "gb200-tray", "-v", "--gpus", "0")
    assert done.code == 0
    compare(done.out, FOLDER / "gb200-tray" / "topo-v-gpu0.txt")
