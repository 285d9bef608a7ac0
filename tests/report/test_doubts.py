"""Measurements that are not believed: hollow on the page, and in a table with why, which and what it means."""

from __future__ import annotations

from dataclasses import replace

from egmctl.model.doubt import Doubt, DoubtReason, Effect
from egmctl.model.measurement import RunReport
from egmctl.report.document import Level, Matrix, Section, body_of, columns, plain, shown
from egmctl.report.kinds import Format
from egmctl.report.views.bench import bench_document
from egmctl.report.views.bench_classes import main_rates
from egmctl.report.views.causes import doubts_section
from tests.answers import render
from tests.report.pages import elements, parse, words
from tests.verdict.bringups import measured
from tests.verdict.runs import WRITE

RUN = measured(WRITE)


def doubted(*doubts: Doubt) -> RunReport:
    return replace(RUN, doubts=doubts)


def doubt(measurement: int, reason: DoubtReason, effect: Effect, detail: str = "") -> Doubt:
    return Doubt(reason=reason, effect=effect, measurement=measurement, detail=detail)


def rows(report: RunReport) -> list[list[str]]:
    (section,) = (block for block in shown((doubts_section(report),), Level.PAGE) if isinstance(block, Section))
    (table,) = (block for block in body_of(section) if isinstance(block, Matrix))
    cells = zip(*([plain(cell.text) for cell in column.cells] for column in columns(table)), strict=True)
    return [[plain(name), *row] for name, row in zip(table.rows, cells, strict=True)]


def test_a_run_without_doubts_has_no_table_of_them() -> None:
    titles = [block.title for block in bench_document(RUN).body if isinstance(block, Section)]
    assert "Warnings" in titles
    assert "Doubts" not in titles


def test_each_reason_has_one_row_with_its_paths_and_the_most_severe_is_first() -> None:
    others = [doubt(place, DoubtReason.OTHER_PROCESSES, Effect.LOW, "GPU0: process 7") for place in (0, 1)]
    apart = Doubt(
        reason=DoubtReason.ATTEMPTS_DIFFER, effect=Effect.VOID, measurement=2, lowest=112.0, highest=447.25, attempts=4
    )
    paths = [measurement.path for measurement in RUN.measurements]
    assert rows(doubted(*others, apart)) == [
        ["two attempts differ", paths[2], "112.0 to 447.2 GB/s in 4 attempts", "not the number of this path"],
        [
            "other processes used a GPU of the path",
            f"{paths[0]}, {paths[1]}",
            "GPU0: process 7",
            "may be faster than this",
        ],
    ]


def test_the_table_is_folded_only_where_each_measurement_counts_all_the_same() -> None:
    folded = [
        doubts_section(doubted(doubt(0, DoubtReason.NO_COUNTERS, effect))).folded
        for effect in (Effect.NOTE, Effect.WARN, Effect.LOW)
    ]
    assert folded == [True, False, False]


def test_the_dot_of_a_doubted_path_is_hollow_and_the_key_says_so() -> None:
    report = doubted(doubt(0, DoubtReason.UNSTABLE, Effect.WARN), doubt(1, DoubtReason.NO_COUNTERS, Effect.NOTE))
    (bar,) = main_rates(report).bars
    assert [dot.label for dot in bar.dots if dot.doubted] == [report.measurements[0].path]
    page = parse(str(render(report, Format.HTML)))
    hollow = [node for node in elements(page, "circle") if "hollow" in node.get("class", "")]
    assert hollow
    assert all(words(node).startswith("doubted: ") for node in hollow)
    assert "A hollow dot is not believed" in words(page)
