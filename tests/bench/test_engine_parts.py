"""Every engine has its properties in one table, and code in a file that the registry names."""

from __future__ import annotations

import pytest

from egmctl.bench.case import End
from egmctl.bench.engine import ENGINES
from egmctl.bench.engines import engine_for
from egmctl.bench.suites import CASES, FABRIC_CASES
from egmctl.model.route import MemoryKind
from egmctl.model.task import Engine, Quantity

ALL_CASES = (*CASES, *FABRIC_CASES)


@pytest.mark.parametrize("engine", Engine)
def test_every_engine_is_there_and_says_what_it_counts_if_it_measures_a_bandwidth(engine: Engine) -> None:
    assert ENGINES[engine].caption
    assert callable(engine_for(engine))
    bandwidths = [case.name for case in ALL_CASES if case.engine is engine and case.quantity is Quantity.BANDWIDTH]
    assert bool(ENGINES[engine].counted) == bool(bandwidths)


def test_every_case_says_what_it_does() -> None:
    assert all(case.description for case in ALL_CASES)


def test_the_cases_have_memory_where_their_engine_moves_bytes() -> None:
    for case in ALL_CASES:
        if carries := ENGINES[case.engine].carries:
            kinds = {End.SOURCE: case.source, End.DESTINATION: case.destination}
            assert {end for end, kind in kinds.items() if kind is not MemoryKind.REGISTERS} == carries, case.name
