"""egmctl as a rank of a job, whose command waits for the others a few seconds longer than for its own rank, not 25.

Its bench measures as little as that of ``tests/little.py``.
"""

from __future__ import annotations

from egmctl.api import rack
from egmctl.bench.processes import group
from tests.little import measure_little
from tests.mpi.rank import run

group.MARGIN_S = 4.0
rack.NODE_S = 4.0
measure_little()
run()
