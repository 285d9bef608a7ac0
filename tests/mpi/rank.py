"""egmctl as a rank of a job, whose children are forks of it: they are many. Most ranks are forks (tests/stand_in.py).

``python -m egmctl`` starts each as users have it: so it runs in ``test_start.py`` and under Slurm (``tests/habitat``).
With ``--little`` first, its bench measures as little as that of ``tests/little.py``.
"""

from __future__ import annotations

import runpy
import sys

from tests import forked
from tests.little import measure_little


def run() -> None:
    """Run the command of this process' arguments."""
    forked.import_bindings()
    with forked.children(ahead=False):
        runpy.run_module("egmctl", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--little"]:
        del sys.argv[1]
        measure_little()
    run()
