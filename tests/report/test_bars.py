"""The main rates of a bench: which, under what names, as bars in text and on the page, and painted links."""

from __future__ import annotations

import io
import sys
from collections.abc import Sequence
from dataclasses import replace

import pytest

from egmctl.cli.output import emit
from egmctl.model.answer import Gap, GapKind, State
from egmctl.model.measurement import Measurement, RunReport
from egmctl.model.verdict import Grade, Judged, Judgement, RunVerdict, Yardstick
from egmctl.report import document as doc
from egmctl.report.document import Bar, Bars, Document, Dot, Tone
from egmctl.report.render.figures import track
from egmctl.report.render.text import text, track_text
from egmctl.report.views.bench import painted
from egmctl.report.views.bench_classes import main_rates, plain_name
from egmctl.report.views.node_drawing import node_drawing, phone_drawings
from egmctl.topology.topology import topology
from egmctl.units import grouped
from egmctl.verdict.judge import judge
from tests.report.pages import elements, words
from tests.report.runs import run

WRITE = "device_to_device_memcpy_write_ce"
MAIN = (
    WRITE,
    "host_numa_to_device_memcpy_ce",
    "device_to_host_numa_memcpy_ce",
    "device_to_device_latency_sm",
    "device_local_copy",
)


def bar(median: float = 300.0, **changed: object) -> Bar:
    """Return a bar whose link carries 400 GB/s."""
    worst = Dot(label="GPU1 -> GPU0", value=median)
    made = Bar(
        name="GPU -> GPU", unit="GB/s", median=median, worst=worst, limit=400.0, state=doc.Span("12 ok"), dots=(worst,)
    )
    return replace(made, **changed)  # type: ignore[arg-type]


def slow(made: RunReport, *paths: str) -> RunReport:
    """Return the run judged, with these paths of it too slow."""

    def judged(number: int, m: Measurement) -> Judged:
        grade = Grade.FAIL if m.path in paths else Grade.PASS
        judgement = Judgement(yardstick=Yardstick.PROFILE, grade=grade, reason="made up", value=1.0)
        return Judged(measurement=number, judgements=(judgement,))

    verdict: RunVerdict = judge(made, None)
    bad = tuple(judged(number, m) for number, m in enumerate(made.measurements))
    return replace(made, verdict=replace(verdict, judged=bad))


def test_what_others_excuse_is_not_red() -> None:
    made = slow(run(cases=(WRITE,), gpus=2), "GPU0 -> GPU1", "GPU1 -> GPU0")
    assert made.verdict is not None
    classes = tuple(replace(each, grade=Grade.FAIL) for each in made.verdict.classes)
    made = replace(made, verdict=replace(made.verdict, classes=classes))
    both = [n for n, m in enumerate(made.measurements) if m.path in ("GPU0 -> GPU1", "GPU1 -> GPU0")]

    def shown(excused: Sequence[int]) -> tuple[Bar, set[Tone]]:
        gap = Gap(kind=GapKind.EXCUSED, measurements=tuple(excused))
        answer = replace(made.answer, state=State.INCOMPLETE, gaps=(gap,))
        ((_, (only,)),) = main_rates(replace(made, answer=answer)).groups
        return only, {dot.tone for dot in painted(replace(made, answer=answer)).values()}

    bar_of_class, links = shown(both)
    assert (bar_of_class.mark, bar_of_class.worst.tone, links) == ("?", Tone.UNKNOWN, {Tone.UNKNOWN})
    assert bar_of_class.state == doc.Span("2 of 2 slow beside others", Tone.UNKNOWN)
    bar_of_class, links = shown(both[:1])
    assert (bar_of_class.mark, bar_of_class.worst.tone) == ("!", Tone.BAD), "one path has no excuse"
    assert links == {Tone.BAD, Tone.UNKNOWN}


@pytest.mark.parametrize(
    ("machine", "names"),
    [
        (
            "dgx-h100",
            [
                "GPU -> GPU",
                "CPU memory -> GPU, PCIe",
                "other CPU's memory -> GPU",
                "GPU -> CPU memory, PCIe",
                "GPU -> other CPU's memory",
                "GPU -> GPU latency",
            ],
        ),
        (
            "gb200-tray",
            [
                "GPU -> GPU",
                "own CPU's EGM -> GPU",
                "other CPU's EGM -> GPU",
                "GPU -> own CPU's EGM",
                "GPU -> other CPU's EGM",
                "GPU -> GPU latency",
            ],
        ),
    ],
)
def test_the_main_rates_have_plain_names_and_latencies_come_last(machine: str, names: list[str]) -> None:
    bars = main_rates(run(machine, cases=MAIN)).bars
    assert [one.name for one in bars] == names
    assert [one.less for one in bars] == [name.endswith("latency") for name in names]


def test_a_latency_comes_after_every_bandwidth() -> None:
    made = run("dgx-h100", cases=("device_to_device_latency_sm", "device_to_device_bidirectional_memcpy_write_ce"))
    assert [one.name for one in main_rates(made).bars] == ["GPU <-> GPU", "GPU -> GPU latency"]


def test_pinned_memory_answers_where_no_other_host_memory_was_measured() -> None:
    cases = ("host_numa_to_device_memcpy_ce", "host_to_device_memcpy_ce")
    both, pinned = (main_rates(run("dgx-h100", cases=chosen)).bars for chosen in (cases, cases[1:]))
    assert [one.name for one in both] == ["CPU memory -> GPU, PCIe", "other CPU's memory -> GPU"]
    assert [one.name for one in pinned] == ["pinned CPU memory -> GPU, PCIe", "other CPU's pinned memory -> GPU"]


@pytest.mark.parametrize(
    ("case", "name"),
    [
        (WRITE, "GPU -> GPU, push, copy engine"),
        ("device_to_device_memcpy_read_sm", "GPU -> GPU, pull, kernel"),
        ("device_local_copy", "inside one GPU, copy engine"),
        ("device_to_device_bidirectional_memcpy_write_ce", "GPU <-> GPU, push, both directions at once, copy engine"),
        ("host_numa_read_sm", "own CPU's EGM -> GPU, kernel that only reads"),
        ("host_to_device_memcpy_ce", "own CPU's pinned memory -> GPU, copy engine"),
    ],
)
def test_every_case_has_a_plain_name(case: str, name: str) -> None:
    assert plain_name(run("gb200-tray", cases=(case,)).measurements[0]) == name


@pytest.mark.parametrize(
    ("median", "expected", "drawn"),
    [(400, 380, "██████████▕"), (200, 300, "█████··│··▕"), (205, None, "█████▏····▕"), (0, 0, "··········▕")],
)
def test_a_bar_has_eighths_a_stroke_where_more_is_expected_and_one_at_the_link_rate(
    median: float, expected: float | None, drawn: str
) -> None:
    assert track_text(bar(median, expected=expected), 11).plain == drawn


def test_the_key_of_bars_names_memory_only_where_it_limits_one() -> None:
    for made, key in ((bar(limit_of="LPDDR5X"), "▕ link or memory rate  !"), (bar(), "▕ link rate  !")):
        shown = text(Document(command="x", subject="y", body=(Bars(caption="c", groups=(("", (made,)),)),)))
        assert key in shown.plain


def test_a_share_of_memory_is_marked_beside_its_link() -> None:
    rates = painted(run("gh200", cases=("host_numa_to_device_memcpy_ce",)))
    assert rates["NUMA0", "GPU0"].label == "26 %#"  # 100 of LPDDR5X's 384 GB/s, whose link has 447


def test_the_number_of_dots_at_the_end_of_a_track_is_to_their_left() -> None:
    late = [Dot(label=f"GPU0 -> GPU{n}", value=390.0, tone=Tone.BAD) for n in range(2)]
    (count,) = elements(track(bar(dots=tuple(late))), "text")
    assert (count.get("dx"), count.get("class")) == ("-8", "bad end")


def test_a_latency_has_no_link_rate_and_fits_its_track() -> None:
    made = bar(900.0, limit=None, less=True, worst=Dot(label="GPU1 -> GPU0", value=1360.0))
    assert made.end == pytest.approx(1496)
    assert track_text(made, 21).plain == "████████████········ "


def test_only_a_slow_bar_names_its_worst_path_on_a_narrow_terminal() -> None:
    bad = bar(100.0, mark="!", state=doc.Span("1 of 12 slow", Tone.BAD))
    document = Document(command="x", subject="y", body=(Bars(caption="c", groups=(("", (bar(), bad)),)),))
    narrow, wide = text(document).plain, text(document, width=120).plain
    assert narrow.count("worst GPU1 -> GPU0") == 1
    assert "100.0!" in narrow
    assert wide.count("worst GPU1 -> GPU0") == 2
    assert max(map(len, narrow.splitlines())) <= 80
    assert max(map(len, wide.splitlines())) <= 120


def test_a_table_of_classes_has_plain_names_beside_the_cases_on_a_wide_terminal() -> None:
    classes = Bars(caption="c", groups=(("NV18", (bar(case="case_a"), bar(case="case_b", name="GPU <-> GPU"))),))
    document = Document(command="x", subject="y", body=(classes,))
    assert "GPU" not in text(document).plain
    assert text(document, width=120).plain.splitlines()[2:] == [
        "NV18",
        " case_a  1   300.0  300.0       -  75 %  GPU -> GPU",
        " case_b  1   300.0  300.0       -  75 %  GPU <-> GPU",
    ]


def test_output_that_cannot_encode_bars_has_signs_of_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    emit(track_text(bar(200.0, expected=300.0), 11))
    assert stream.buffer.getvalue() == b"#####..|..|\n"


def test_the_track_of_a_page_is_in_percent_and_says_in_words_what_it_shows() -> None:
    drawn = track(bar(200.0, expected=300.0))
    widths = {one.get("class"): one.get("width") for one in elements(drawn, "rect")}
    assert (widths["track"], widths["data"]) == ("100%", "50.00%")
    assert {one.get("class"): one.get("x1") for one in elements(drawn, "line")} == {
        "rate-end": "100.00%",
        "expected": "75.00%",
    }
    assert words(drawn[0]) == "GPU → GPU: median 200.0 GB/s, worst 200.0 GPU1 → GPU0, expected 300.0, link 400"


def test_dots_near_each_other_are_one_with_their_number_and_slow_ones_never_hide() -> None:
    well = [Dot(label=f"GPU{n} -> GPU9", value=300.0 + 0.01 * n) for n in range(10)]
    bad = [Dot(label=f"GPU9 -> GPU{n}", value=300.0, tone=Tone.BAD) for n in range(2)]
    dots = list(elements(track(bar(dots=(*bad, *well))), "circle"))
    assert [one.get("class") for one in dots] == ["dot", "dot bad"]
    assert "GPU9 → GPU1 300.0" in words(dots[1])


def test_a_slow_pair_is_an_arrow_and_a_gpu_with_slow_pairs_alone_is_red_itself() -> None:
    made = run(cases=(WRITE,))
    node = topology(made.machines[0])
    others = [f"GPU{n}" for n in (0, 1, 3)]
    gpu2 = [path for other in others for path in (f"GPU2 -> {other}", f"{other} -> GPU2")]
    for paths, arrows, cards in ((["GPU0 -> GPU3"], 1, 0), (gpu2, 0, 1)):
        drawn = node_drawing(node, painted(slow(made, *paths)))
        assert len(list(elements(drawn, "polygon"))) == arrows
        assert [one.get("class") for one in elements(drawn, "rect")].count("card slow") == cards
        red = [path for path in elements(drawn, "path") if path.get("class") == "link bad"]
        assert len(red) == arrows + 2 * cards


def test_a_link_that_a_run_did_not_measure_is_dotted() -> None:
    made = run(cases=(WRITE,))
    drawn = node_drawing(topology(made.machines[0]), painted(made))
    looks = [path.get("class") for path in elements(drawn, "path")]
    assert (looks.count("link unmeasured"), looks.count("link")) == (4, 8)


@pytest.mark.parametrize(("machine", "gpus"), [("gb200-tray", 4), ("dgx-h100", 8)])
def test_a_phone_has_rows_of_four_gpus(machine: str, gpus: int) -> None:
    made = run(machine, cases=(WRITE,))
    (drawn,) = elements(phone_drawings(topology(made.machines[0]), painted(made)), "svg")
    assert float(drawn.get("width", "")) <= 340
    names = [text for text in elements(drawn, "text") if words(text).startswith("GPU")]
    by_height = grouped((text.get("y"), words(text)) for text in names)
    assert [len(row) for row in by_height.values()] == [4] * (gpus // 4)
    assert not any(words(text).startswith("CPU,") for text in elements(drawn, "text"))
