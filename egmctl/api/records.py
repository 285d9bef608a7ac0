"""The records that the functions of the library return and take, under one roof: ``egmctl.RunReport``."""

from __future__ import annotations

from egmctl.bench.plan import Plan
from egmctl.model.bringup import Bringup
from egmctl.model.comparison import Comparison
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.explanation import Explanations
from egmctl.model.fleet import FleetReport
from egmctl.model.machine import Machine
from egmctl.model.measurement import RunReport
from egmctl.saved import Saved
from egmctl.topology.topology import Topology

__all__ = [
    "Bringup",
    "Comparison",
    "Diagnosis",
    "Explanations",
    "FleetReport",
    "Machine",
    "Plan",
    "RunReport",
    "Saved",
    "Topology",
]
