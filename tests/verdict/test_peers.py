"""Who is out of line in a matrix: a GPU's egress or ingress first, a pair only where it alone is slow."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egmctl.model.verdict import Direction, Grade
from egmctl.verdict.yardsticks import BANDWIDTH, HOST, LATENCY, Bounds, Fit, PeerCell, fit

EGRESS, INGRESS = Direction.EGRESS, Direction.INGRESS

H100 = """
2494.51 364.13 375.99 378.03 376.77 376.71 374.85 375.66
375.18 2533.95 376.08 374.98 376.21 375.96 375.76 375.12
363.43 393.28 2532.67 376.35 377.14 376.47 375.76 375.48
369.90 375.92 393.63 2525.38 376.58 375.88 376.13 377.01
376.20 376.28 375.20 393.52 2526.02 375.82 375.05 376.10
376.26 376.60 375.54 375.52 376.81 2521.18 376.37 376.60
374.31 376.19 376.80 376.32 376.83 376.44 2529.85 376.39
376.17 376.49 376.53 374.95 376.30 376.82 375.71 2519.78
"""
A100 = """
1581.48 274.55 275.92 272.02 275.35 275.28 273.62 273.20
274.70 1581.48 275.33 272.83 275.38 273.70 273.45 273.70
274.81 276.90 1594.39 272.66 275.39 275.79 273.97 273.94
273.25 274.87 272.12 1545.50 274.38 274.37 274.22 274.38
274.24 275.15 273.44 271.57 1584.69 275.76 275.04 273.49
274.37 275.77 273.53 270.84 274.59 1583.08 276.04 273.74
275.61 274.86 275.47 273.19 272.58 275.69 1586.29 274.76
275.26 275.46 275.49 273.61 275.50 273.28 272.24 1591.14
"""
GB200 = """
5714.94 746.74 746.56 748.08
743.89 5820.72 747.18 746.83
746.16 750.28 5814.63 746.71
744.82 749.00 747.16 5816.66
"""
"""Matrices of healthy nodes that others have published (docs/profiles.md): row to column, GB/s."""


def matrix(
    size: int, noise: list[float], weak: dict[tuple[int | None, int | None], float] | None = None
) -> list[PeerCell]:
    """Return cells around 396; ``weak`` has factors of rows (i, None), columns (None, j) and pairs (i, j)."""
    cells: list[PeerCell] = []
    for i, j in itertools.permutations(range(size), 2):
        factors = [part for (row, column), part in (weak or {}).items() if row in (None, i) and column in (None, j)]
        value = 396 * math.prod(factors) * noise[len(cells) % len(noise)]
        cells.append(PeerCell(len(cells), f"g{i}", f"g{j}", value))
    return cells


def named(found: Fit) -> set[tuple[tuple[str, ...], Direction | None]]:
    """Return who is out of line."""
    return {(outlier.gpus, outlier.direction) for outlier in found.outliers}


sizes = st.integers(4, 8)
weakness = st.floats(0.1, 0.85)
noises = st.lists(st.floats(0.985, 1.015), min_size=7, max_size=56)


@pytest.mark.long
@given(sizes, noises)
def test_nobody_is_named_for_a_spread_of_three_percent(size: int, noise: list[float]) -> None:
    assert fit(matrix(size, noise), BANDWIDTH).outliers == ()


@pytest.mark.parametrize("published", [H100, A100, GB200])
def test_nobody_is_named_in_the_published_matrices_of_healthy_nodes(published: str) -> None:
    rows = [line.split() for line in published.strip().split("\n")]
    pairs = itertools.permutations(range(len(rows)), 2)
    assert fit([PeerCell(0, f"g{i}", f"g{j}", float(rows[i][j])) for i, j in pairs], BANDWIDTH).outliers == ()


@given(sizes, noises, weakness, st.data())
def test_one_weak_row_is_that_gpus_egress(size: int, noise: list[float], part: float, data: st.DataObject) -> None:
    gpu = data.draw(st.integers(0, size - 1))
    found = fit(matrix(size, noise, {(gpu, None): part}), BANDWIDTH)
    assert named(found) == {((f"g{gpu}",), EGRESS)}
    assert found.outliers[0].ratio == pytest.approx(part, rel=0.04)


@given(sizes, noises, weakness, st.data())
def test_one_weak_column_is_that_gpus_ingress(size: int, noise: list[float], part: float, data: st.DataObject) -> None:
    gpu = data.draw(st.integers(0, size - 1))
    assert named(fit(matrix(size, noise, {(None, gpu): part}), BANDWIDTH)) == {((f"g{gpu}",), INGRESS)}


@pytest.mark.long
@given(sizes, noises, weakness, st.data())
def test_one_weak_cell_is_a_pair(size: int, noise: list[float], part: float, data: st.DataObject) -> None:
    i, j = data.draw(st.permutations(range(size)))[:2]
    assert named(fit(matrix(size, noise, {(i, j): part}), BANDWIDTH)) == {((f"g{i}", f"g{j}"), None)}


@pytest.mark.long
@given(sizes, noises, st.data())
def test_traffic_from_one_gpu_to_another_is_the_egress_of_one_and_the_ingress_of_the_other(
    size: int, noise: list[float], data: st.DataObject
) -> None:
    i, j = data.draw(st.permutations(range(size)))[:2]
    found = fit(matrix(size, noise, {(i, None): 0.5, (None, j): 0.5}), BANDWIDTH)
    assert named(found) == {((f"g{i}",), EGRESS), ((f"g{j}",), INGRESS)}


def test_a_pair_that_is_slow_within_a_slow_row_is_named_too() -> None:
    found = fit(matrix(8, [1.0], {(2, None): 0.8, (2, 5): 0.5}), BANDWIDTH)
    assert [(one.gpus, one.direction) for one in found.outliers] == [(("g2",), EGRESS), (("g2", "g5"), None)]


def test_half_of_four_gpus_are_the_odd_ones_if_they_are_slow() -> None:
    found = fit(matrix(4, [1.0], {(0, None): 0.5, (1, None): 0.5}), BANDWIDTH)
    assert named(found) == {(("g0",), EGRESS), (("g1",), EGRESS)}


def test_two_slow_cells_of_three_are_pairs_not_a_gpu() -> None:
    found = fit(matrix(4, [1.0], {(0, 1): 0.5, (0, 2): 0.5}), BANDWIDTH)
    assert named(found) == {(("g0", "g1"), None), (("g0", "g2"), None)}


OFF = {
    BANDWIDTH: {0.96: None, 0.94: Grade.WARN, 0.86: Grade.WARN, 0.84: Grade.FAIL, 1.3: None},
    LATENCY: {1.14: None, 1.2: Grade.WARN, 1.6: Grade.FAIL, 0.5: None},
}


@pytest.mark.parametrize(("bounds", "part"), [(bounds, part) for bounds, parts in OFF.items() for part in parts])
def test_how_far_off_is_how_bad_and_of_a_latency_more_is_worse(bounds: Bounds, part: float) -> None:
    grade = OFF[bounds][part]
    outliers = fit(matrix(8, [1.0], {(3, None): part}), bounds).outliers
    assert [outlier.grade for outlier in outliers] == ([grade] if grade else [])


@pytest.mark.parametrize("bounds", [BANDWIDTH, LATENCY])
def test_three_gpus_have_no_siblings(bounds: Bounds) -> None:
    assert fit(matrix(3, [1.0], {(0, None): 0.1}), bounds).typical is None


@pytest.mark.parametrize(
    ("source", "destination", "direction"), [("", "g{}", INGRESS), ("g{}", "", EGRESS), ("g{}", "g{}", None)]
)
def test_where_one_end_is_a_gpu_it_is_named_with_the_direction_and_its_own_memory_has_none(
    source: str, destination: str, direction: Direction | None
) -> None:
    values = enumerate([57.0, 14.2, 57.1, 56.9])
    cells = [PeerCell(n, source.format(n) or None, destination.format(n) or None, value) for n, value in values]
    assert named(fit(cells, BANDWIDTH)) == {(("g1",), direction)}


@pytest.mark.parametrize("weak", [3, 4, 5])
@given(noises)
def test_most_of_eight_gpus_are_the_odd_ones_if_they_are_far_slower(weak: int, noise: list[float]) -> None:
    cells = matrix(8, noise, {(gpu, None): 0.4 for gpu in range(weak)})
    outliers = fit(cells, BANDWIDTH)
    assert named(outliers) == {((f"g{gpu}",), EGRESS) for gpu in range(weak)}
    assert outliers.typical == pytest.approx(396, rel=0.02)


def test_most_of_eight_copies_to_the_host_are_the_odd_ones_if_they_are_far_slower() -> None:
    cells = [PeerCell(gpu, f"g{gpu}", None, 22.0 if gpu < 5 else 55.0 + gpu / 100) for gpu in range(8)]
    outliers = fit(cells, HOST)
    assert named(outliers) == {((f"g{gpu}",), EGRESS) for gpu in range(5)}


def test_one_number_far_above_all_others_is_no_group_to_judge_by() -> None:
    cells = [PeerCell(gpu, f"g{gpu}", None, 900.0 if gpu == 3 else 55.0) for gpu in range(8)]
    assert fit(cells, HOST).outliers == ()


@given(st.lists(st.floats(0.82, 1.0), min_size=4, max_size=8))
def test_copies_to_the_host_within_a_fifth_are_one_group(parts: list[float]) -> None:
    cells = [PeerCell(gpu, f"g{gpu}", None, 55.0 * part) for gpu, part in enumerate(parts)]
    assert fit(cells, HOST).outliers == ()
