"""Which cases are measured, and at which points: what ``--case``, ``--suite`` and ``--sweep`` choose."""

from __future__ import annotations

from collections import Counter
from fnmatch import fnmatch

import pytest

from egmctl.bench.case import Processes
from egmctl.bench.suites import CASES, SUITES, SWEPT, select_cases
from egmctl.errors import UsageError
from egmctl.model.task import Axis, Pattern, Point
from tests.bench.plans import plan_of

NAMES = [case.name for case in CASES]
ONE_PROCESS = {case.name for case in CASES if case.processes is Processes.ONE}


def names(*patterns: str, suites: tuple[str, ...] = (), sweep: Axis | None = None) -> list[str]:
    """Return the names of the cases that are chosen."""
    return [case.name for case in select_cases(patterns, suites, sweep)]


def test_names_are_unique_each_pattern_has_a_case_and_each_counterpart_is_one() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert {case.pattern for case in CASES} >= set(Pattern) - {Pattern.LOADED}
    assert {case.in_process for case in CASES} <= {None, *ONE_PROCESS}


def test_globs_select_in_the_order_of_the_registry() -> None:
    chosen = ["device_to_device_memcpy_read_ce", "host_numa_*_ce"]
    assert names(*chosen) == [name for name in NAMES if any(fnmatch(name, pattern) for pattern in chosen)]


def test_without_a_choice_it_is_the_standard_suite_and_globs_choose_from_all() -> None:
    assert select_cases([]) == select_cases([], ["standard"])
    assert len(names()) < len(NAMES)
    assert names("*") == names(suites=("full",)) == NAMES


def test_a_glob_within_a_suite_chooses_from_it() -> None:
    assert {case.family for case in select_cases(["*_ce"], ["p2p"])} == {"p2p"}


@pytest.mark.parametrize(
    ("patterns", "suites", "words"),
    [
        (["rdma_*"], ["p2p", "host"], "matches no case; 'egmctl bench --list --suite p2p,host' shows all"),
        (["host_*", "h2d"], [], "--case 'h2d' matches no case; 'egmctl bench --list --suite full' shows all"),
        (["device_to_device_memcpy_write_sn"], [], "no case; did you mean device_to_device_memcpy_write_sm, "),
    ],
)
def test_a_glob_that_fits_nothing_is_refused_with_what_is_alike_or_shows_all(
    patterns: list[str], suites: list[str], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        select_cases(patterns, suites)


@pytest.mark.parametrize("name", SUITES)
def test_every_pattern_of_a_suite_fits_some_case(name: str) -> None:
    assert names(suites=(name,))
    for pattern in SUITES[name].cases:
        assert any(fnmatch(case, pattern) for case in NAMES), pattern


@pytest.mark.parametrize(("name", "without"), [("standard", {"rdma", "egm_shared"}), ("full", set[str]())])
def test_a_large_suite_has_every_family_that_needs_nothing_beside(name: str, without: set[str]) -> None:
    assert {case.family for case in select_cases([], [name])} == {case.family for case in CASES} - without


@pytest.mark.parametrize(
    ("suites", "patterns", "paths"),
    [
        (("standard",), (), (1, 4)),
        (("standard", "quick"), (), (1, 4)),
        (("standard", "host"), (), (4, 4)),
        ((), ("registered_to_device_memcpy_ce", "host_numa_to_device_memcpy_ce"), (4, 4)),
    ],
)
def test_the_standard_suite_tells_kinds_of_host_memory_apart_over_one_path(
    suites: tuple[str, ...], patterns: tuple[str, ...], paths: tuple[int, int]
) -> None:
    found = Counter(task.name for task in plan_of(*patterns, suites=suites, gpus=4, nodes=(0,)).tasks)
    assert (found["registered_to_device_memcpy_ce"], found["host_numa_to_device_memcpy_ce"]) == paths


def test_what_is_set_beside_other_paths_is_measured_over_all_of_them() -> None:
    found = Counter(task.case for task in plan_of(suites=("standard", "ipc"), gpus=4, nodes=(0,)).tasks)
    assert found["ipc_pool_host_numa_read_ce"] == found["host_numa_pool_to_device_memcpy_ce"] == 4


def test_a_suite_has_few_further_points() -> None:
    for name in SUITES:
        streams = {case.name: [p for p in case.points if p.streams] for case in select_cases([], [name])}
        four = {case: points for case, points in streams.items() if points}
        assert four in ({}, {name: [Point(streams=4)] for name in SWEPT[Axis.STREAMS]})
        assert bool(four) == (name in ("standard", "full", "egm"))


@pytest.mark.parametrize("axis", Axis)
def test_any_case_that_has_the_axis_can_be_swept(axis: Axis) -> None:
    having = [case.name for case in CASES if axis in case.axes]
    assert names("*", sweep=axis) == having
    usual = select_cases([], sweep=axis)
    assert {case.name for case in usual} <= set(having)
    for case in usual:
        assert axis is Axis.SIZE or all(point.at(axis) is not None for point in case.points)
        assert len(set(case.points)) == len(case.points)


def test_what_lacks_the_axis_is_refused() -> None:
    with pytest.raises(UsageError, match="--sweep load: none of the chosen cases has that axis"):
        select_cases(["device_local_copy"], sweep=Axis.LOAD)
