"""egmctl as a rank of a job, whose command waits for the others a few seconds longer than for its own rank, not 25.

Its bench measures as little as that of ``tests/little.py``.
"""

from __future__ import annotations

import runpy

from egmctl.bench.processes import group
from egmctl.cli import rack
from tests.little import measure_little

group.MARGIN_S = 4.0
rack.NODE_S = 4.0
measure_little()
runpy.run_module("egmctl", run_name="__main__", alter_sys=True)
