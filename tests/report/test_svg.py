"""Pictures are well-formed SVG that carry their own colours for light and dark, and say what they show."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from egmctl.report.document import Chart, CurvePoint
from egmctl.report.kinds import Format
from egmctl.report.render.figures import HEIGHT, WIDTH, plot, ticks
from egmctl.report.views.bench import painted
from egmctl.report.views.node_drawing import node_drawing, phone_drawings
from egmctl.report.views.nvlink_drawing import Rates
from egmctl.topology.topology import Topology, topology
from tests.answers import render
from tests.doctor.machines import shipped
from tests.doctor.scenes import scenes
from tests.report.pages import elements, words
from tests.report.runs import hostile_run, judged, run

PICTURES: Mapping[str, Callable[[], str]] = {
    "matrices": lambda: str(
        render(judged(run(cases=("device_to_device_memcpy_write_ce", "ring_write_ce"))), Format.SVG)
    ),
    "curves": lambda: str(render(run(cases=("device_to_device_latency_loaded",)), Format.SVG)),
    "hostile": lambda: str(render(hostile_run(), Format.SVG)),
    "topology": lambda: str(render(topology(shipped("dgx-h100")), Format.SVG)),
}


@pytest.fixture(scope="module", params=PICTURES)
def picture(request: pytest.FixtureRequest) -> ElementTree.Element:
    return ElementTree.fromstring(PICTURES[request.param]())  # noqa: S314


def test_it_is_svg_that_fetches_and_runs_nothing(picture: ElementTree.Element) -> None:
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    assert list(elements(picture, "script", "image", "use", "a", "foreignObject")) == []
    assert not any(name.lower().startswith("on") or "href" in name for one in picture.iter() for name in one.attrib)
    (style,) = elements(picture, "style")
    assert "prefers-color-scheme:dark" in words(style)
    assert "url(" not in words(style)


def test_all_is_within_the_picture(picture: ElementTree.Element) -> None:
    width, height = (float(picture.get(name, "0")) for name in ("width", "height"))
    for part in picture:
        if part.get("x") and part.get("width"):
            assert float(part.get("x", "0")) + float(part.get("width", "0")) <= width
            assert float(part.get("y", "0")) + float(part.get("height", "0")) <= height


def test_the_picture_of_a_run_paints_the_slow_link_and_no_other() -> None:
    made = judged(run(cases=("device_to_device_memcpy_write_ce",)))
    picture = ElementTree.fromstring(str(render(made, Format.SVG)))  # noqa: S314
    (arrow,) = [path for path in elements(picture, "path") if path.get("class") == "link bad"]
    (chip,) = [words(text) for text in elements(picture, "text") if "on-chip" in text.get("class", "")]
    slow = made.measurements[-1]
    assert slow.bandwidth_gb_s is not None
    assert chip.startswith(f"{slow.path.replace('->', '→')} {slow.bandwidth_gb_s.median:.1f}")
    assert arrow.get("d")


def drawing(judged: Topology, rates: Rates | None = None) -> ElementTree.Element:
    return node_drawing(judged, rates)


class TestTheTopology:
    def test_it_has_each_gpu_nic_and_node(self) -> None:
        node = shipped("dgx-h100")
        told = words(drawing(topology(node)))
        for label in (*(f"GPU{n}" for n in range(8)), *(f"NIC{n}" for n in range(12)), "NUMA 0", "NUMA 1"):
            assert label in told
        assert "H100 80GB HBM3" in told
        assert told.count("18 of 18 NVLinks") == told.count("450 GB/s") == 8

    def test_links_have_what_was_measured_over_them_in_both_directions(self) -> None:
        made = run(cases=("device_to_device_memcpy_write_ce", "host_numa_to_device_memcpy_ce"), gpus=2)
        found = painted(made)
        picture = drawing(topology(made.machines[0], (made.machines[0].gpus or ())[:2]), found)
        texts = [words(one) for one in elements(picture, "text")]
        out, back = found["GPU0", "GPU1"], found["GPU1", "GPU0"]
        assert f"↓ {out.value:.1f} {out.label}" in texts
        assert f"↑ {back.value:.1f} {back.label}" in texts
        assert f"↓ {found['NUMA0', 'GPU0'].value:.1f} {found['NUMA0', 'GPU0'].label}" in texts

    def test_direct_links_are_drawn_pair_by_pair(self) -> None:
        told = [words(one) for one in elements(drawing(topology(shipped("gh200x4"))), "text")]
        assert sum(text.startswith("GPU") and "NV6 150" in text for text in told) == 6
        assert (told.count("C2C"), told.count("447 GB/s EGM")) == (4, 4)

    def test_a_node_without_gpus_is_still_a_picture(self) -> None:
        node = shipped("hgx-h200x4")
        assert "NUMA 0" in words(drawing(topology(node, ())))

    def test_what_cannot_be_used_says_so_in_words(self) -> None:
        from tests.doctor.scenes import RECORDED

        node = RECORDED["h200-v2-cgroup-all-asked-for"].machine()
        drawn = drawing(topology(node))
        assert "blocked: " in words(drawn)
        assert not any("bad" in (text.get("class") or "") for text in elements(drawn, "text")), "no cause says a fault"

    def test_in_words_it_tells_who_sits_where_and_what_joins_them(self) -> None:
        (told,) = elements(drawing(topology(shipped("gb200-tray"))), "desc")
        assert "NUMA node 0 with GPU0, GPU1" in words(told)
        assert "6 x NV18 pairs of GPUs" in words(told)


class TestPlots:
    @pytest.mark.parametrize(
        ("top", "last"), [(0, 1), (0.9, 1), (1, 1), (55.4, 60), (396.4, 400), (1660.8, 2000), (5e6, 5e6)]
    )
    def test_an_axis_ends_at_a_round_number_at_or_above_the_top(self, top: float, last: float) -> None:
        found = ticks(top)
        assert found[0] == 0
        assert found[-1] == pytest.approx(last)
        assert 2 <= len(found) <= 7

    @pytest.mark.parametrize("phone", [True, False])
    @pytest.mark.parametrize("steep", [True, False])
    @pytest.mark.parametrize("sizes", [True, False])
    def test_every_point_is_within_the_axes(self, sizes: bool, steep: bool, phone: bool) -> None:
        curve = tuple(CurvePoint(x=4096.0 * 4**n, y=10.0 * n + 1, low=10.0 * n, high=10.0 * n + 5) for n in range(8))
        drawn = plot(
            Chart(
                caption="caption",
                x="x",
                y="GB/s",
                curves=(("one", curve), ("two", curve[:1])),
                sizes=sizes,
                steep=steep,
            ),
            phone=phone,
        )
        circles = [(float(one.get("cx", "")), float(one.get("cy", ""))) for one in elements(drawn, "circle")]
        rings = 2 if steep else 0
        assert len(circles) == len(curve) + 1 + rings, "a ring at half of the best of each curve"
        assert all(0 < x < WIDTH and 0 < y < HEIGHT for x, y in circles)

    @pytest.mark.parametrize(("last", "named"), [(70, ["GPU3 → GPU1 70 %"]), (90, [])])
    def test_a_path_that_leaves_its_family_is_named_in_its_small_chart(self, last: float, named: list[str]) -> None:
        ends = {"GPU0 -> GPU1": 100.0, "GPU2 -> GPU1": 100.0, "GPU3 -> GPU1": last}
        curves = tuple(
            (name, tuple(CurvePoint(x=x, y=y * x / 64, low=y, high=y) for x in (4.0, 64.0))) for name, y in ends.items()
        )
        drawn = plot(Chart(caption="caption", x="x", y="GB/s", curves=curves, sizes=True, small=True))
        assert [words(text) for text in elements(drawn, "text") if "warn" in text.get("class", "")] == named

    def test_curves_that_would_hide_each_other_take_turns_along_one_line(self) -> None:
        curves = {"one": 5.0, "two": 5.001, "other": 9.0}
        drawn = plot(
            Chart(
                caption="caption",
                x="x",
                y="GB/s",
                curves=tuple(
                    (n, tuple(CurvePoint(x=x, y=y, low=y, high=y) for x in (1.0, 2.0))) for n, y in curves.items()
                ),
            )
        )
        lines = [line for line in elements(drawn, "polyline") if "curve" in line.get("class", "")]
        dashes = [(line.get("stroke-dasharray"), line.get("stroke-dashoffset")) for line in lines]
        assert dashes == [("9 9", "0"), ("9 9", "-9"), (None, None)]

    @pytest.mark.parametrize(("limit", "is_drawn"), [(450.0, True), (30.0, False)])
    def test_a_ceiling_below_the_axis_is_not_drawn_at_its_edge(self, limit: float, is_drawn: bool) -> None:
        curve = tuple(CurvePoint(x=x, y=300 + x, low=300 + x, high=300 + x) for x in (1.0, 2.0, 4.0))
        limits = (("NV18", limit),)
        chart = Chart(
            caption="c", x="x", y="GB/s", curves=(("one", curve),), limits=limits, logarithmic=True, steep=True
        )
        drawn = plot(chart)
        assert any("limit" in line.get("class", "") for line in elements(drawn, "line")) is is_drawn
        assert ("all values are above NV18" in map(words, elements(drawn, "text"))) is not is_drawn

    def test_names_of_curves_that_end_together_do_not_meet(self) -> None:
        curves = tuple((name, (CurvePoint(x=1, y=5, low=5, high=5),)) for name in ("one", "two", "three"))
        drawn = plot(Chart(caption="caption", x="x", y="ns", curves=curves))
        ends = [text for text in elements(drawn, "text") if words(text).split()[-1] in ("one", "two", "three")]
        assert [words(text) for text in ends] == ["5.0 one", "5.0 two", "5.0 three"]
        heights = [float(text.get("y", "")) for text in ends]
        assert sorted(heights) == heights
        assert min(b - a for a, b in pairwise(heights)) >= 12


@pytest.mark.parametrize("phone", [False, True])
def test_a_gpu_with_links_down_is_drawn_so_and_its_healthy_peers_are_not(phone: bool) -> None:
    node = topology(scenes()["h200-links-down"].machine())
    drawn = phone_drawings(node) if phone else drawing(node)
    texts = [text.text or "" for text in drawn.iter("text") if text.get("class") != "warn rate"]
    unit = "" if phone else " NVLinks"
    assert (texts.count(f"16 of 18{unit}"), texts.count(f"18 of 18{unit}")) == (1, 3)
    assert [line.get("class") for line in drawn.iter("path")].count("link bad") == 1
    looks = [box.get("class") for box in drawn.iter("rect")]
    assert (looks.count("card degraded"), looks.count("lost")) == (1, 2)
    down = [words(title) for title in drawn.iter("title") if "is down" in words(title)]
    assert len(down) == 2
    assert all(title.startswith("NVLink ") for title in down)


def test_the_words_of_a_pair_of_gpus_touch_no_link_of_another_pair() -> None:
    picture = drawing(topology(shipped("gh200x4")))
    links = [path.get("d", "") for path in picture.iter("path") if path.get("d", "").count("L") == 3]
    names = [text for text in picture.iter("text") if "halo" in text.get("class", "") and "NV6" in words(text)]
    assert len(names) == len(links) == 6
    for name in names:
        x, y = float(name.get("x", "")), float(name.get("y", ""))
        for link in links:
            (left, top), (_, bottom), *_ = (map(float, point.split()) for point in link.removeprefix("M").split("L"))
            assert abs(left - x) > 3.2 * len(words(name)) or not top < y < bottom, words(name)


@pytest.mark.parametrize("draw", [node_drawing, phone_drawings])
def test_no_name_is_cut(draw: Callable[[Topology], ElementTree.Element]) -> None:
    """A name that is wider than its box goes on in the next line."""
    station = " ".join(words(text) for text in elements(draw(topology(shipped("dgx-station-gb300"))), "text"))
    assert "RTX PRO 6000 Blackwell Workstation Edition" in station
    dgx = [words(text) for text in elements(draw(topology(shipped("dgx-h100"))), "text")]
    assert all(any(name in text.split() for text in dgx) for name in (f"mlx5_{number}" for number in range(12)))


def test_on_a_phone_eight_gpus_meet_at_one_box_of_switches() -> None:
    (picture,) = elements(phone_drawings(topology(shipped("dgx-h100"))), "svg")
    boxes = {box.get("class"): float(box.get("y", "")) for box in elements(picture, "rect")}
    y = {words(text): float(text.get("y", "")) for text in elements(picture, "text")}
    assert sum(box.get("class") == "switch" for box in elements(picture, "rect")) == 1
    assert y["NUMA 0"] < y["NIC0"] < y["GPU0"] < boxes["switch"] < y["GPU4"] < y["NIC6"] < y["NUMA 1"]
