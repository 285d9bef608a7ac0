"""Every check, in the order in which they are run and told. Adding one is one function, its texts, and one test."""

from __future__ import annotations

from egmctl.doctor.check import Check
from egmctl.doctor.checks import driver

CHECKS: tuple[Check, ...] = (*driver.CHECKS,)
