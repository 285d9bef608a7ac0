"""One table says which kind of result has which formats, and every command and suffix keeps to it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from rich.text import Text

from egmctl.doctor.check import Scope
from egmctl.doctor.runner import CHECKS, check_list
from egmctl.model.listing import History, KeptRun
from egmctl.model.machine import Machine, Origin, OriginKind
from egmctl.model.profile import MatchResult, ProfileFile, ProfileList
from egmctl.report import kinds
from egmctl.report.document import Better, Cell, Matrix, Tone
from egmctl.report.exports.json import dump
from egmctl.report.kinds import Format, rendered
from egmctl.report.render.tables import best, shade
from egmctl.report.render.text import STYLES
from egmctl.report.views.lists import machine_list, match_document
from egmctl.topology.topology import Topology, topology
from egmctl.verdict.bringup import bringup_answer
from egmctl.verdict.profiles import all_profiles, match_profile
from tests.answers import diagnose, render
from tests.doctor.machines import shipped
from tests.fleet.racks import REPORT as RACK
from tests.in_process import run as answered
from tests.report import comparisons
from tests.report.runs import run
from tests.report.texts import tables_of

STARTS = {
    Format.TEXT: "",
    Format.JSON: "{\n",
    Format.CSV: "",
    Format.HTML: "<!doctype html>\n",
    Format.SVG: "<svg ",
    Format.MARKDOWN: "## ",
    Format.PROM: "# HELP egmctl_",
    Format.NAGIOS: "EGMCTL ",
    Format.JUNIT: "<?xml ",
}


GH200 = shipped("gh200")
HISTORY = History(
    runs=(
        KeptRun(
            file="/kept/a.journal",
            started_at="2026-11-20T22:00:00+00:00",
            gpus=("GPU0", "GPU1"),
            measurements=9,
            ok=8,
            exit_code=None,
            ending="did not end",
        ),
    )
)
PROFILES = ProfileList(profiles=tuple(ProfileFile(file=str(path), profile=one) for one, path in all_profiles()))
MATCHED = MatchResult(
    origin=GH200.origin, profile=None, reason="why", matches=(match_profile(GH200, PROFILES.profiles[0].profile),)
)


def results() -> list[tuple[object, Format, bool]]:
    bench = run(cases=("device_to_device_memcpy_write_ce",), gpus=2)
    topo = topology(GH200)
    doctor = diagnose(GH200, Scope(), CHECKS)
    compared = comparisons.two_runs()
    by_kind: list[tuple[object, kinds.Kind]] = [
        (bench, kinds.BENCH),
        (topo, kinds.TOPO),
        (doctor, kinds.DOCTOR),
        (compared, kinds.COMPARISON),
        (bringup_answer(doctor, None, not_measured="why"), kinds.BRINGUP),
        (RACK, kinds.FLEET),
        (HISTORY, kinds.HISTORY),
        (History(runs=()), kinds.HISTORY),
        (PROFILES, kinds.PROFILES),
        (MATCHED, kinds.MATCH),
        (machine_list([GH200]), kinds.MACHINES),
        (check_list(CHECKS), kinds.CHECKS),
        (check_list(CHECKS[:1]), kinds.CHECKS),
    ]
    return [(result, format, format in valid.formats) for result, valid in by_kind for format in Format]


@pytest.mark.parametrize(("result", "format", "valid"), results(), ids=lambda value: str(value)[:20])
def test_a_result_has_exactly_the_forms_of_its_kind(result: object, format: Format, valid: bool) -> None:
    if not valid:
        with pytest.raises(ValueError, match=f"has no format {format}"):
            render(result, format)
        return
    made = render(result, format)
    assert str(made).startswith(STARTS[format])
    assert isinstance(made, Text) is (format is Format.TEXT)
    if format is Format.JSON:
        json.loads(str(made))


@pytest.mark.parametrize(
    "text",
    [
        render(topology(GH200), Format.TEXT),
        render(diagnose(GH200, Scope(), CHECKS), Format.TEXT),
        rendered(match_document(MATCHED), Format.TEXT),
    ],
    ids=["topo", "doctor", "profile match"],
)
def test_the_banner_of_a_modelled_machine_colours_no_line_but_its_own(text: Text) -> None:
    banner, platform = [line for line in text.split("\n") if line][:2]
    assert banner.plain.startswith("MODEL of")
    warn = STYLES[Tone.WARN]
    assert warn in [span.style for span in banner.spans]
    assert warn not in [platform.style, *(span.style for span in platform.spans)]


@pytest.mark.parametrize("kind", [kinds.TOPO, kinds.DOCTOR], ids=["topo", "doctor"])
def test_the_suffix_and_the_option_give_the_same(tmp_path: Path, kind: kinds.Kind) -> None:
    asked = ("topo" if kind is kinds.TOPO else "doctor", "--machine", "gh200", "-q")
    for suffix, format in kinds.SUFFIXES.items():
        if format in kind.formats:
            file = tmp_path / f"found{suffix}"
            written, printed = answered(*asked, "-o", file), answered(*asked, "--format", format)
            assert (written.code, file.read_text()) == (printed.code, printed.out)


COMMANDS = {
    ("bringup",): kinds.BRINGUP.formats,
    ("topo",): kinds.TOPO.formats,
    ("bench",): kinds.BENCH.formats,
    ("doctor",): kinds.DOCTOR.formats,
    ("explain",): kinds.EXPLAIN.formats,
    ("compare",): kinds.COMPARISON.formats,
    ("history",): kinds.HISTORY.formats,
    ("profile", "list"): kinds.PROFILES.formats,
    ("profile", "show"): kinds.PROFILES.formats,
    ("profile", "match"): kinds.MATCH.formats,
}


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_offers_the_formats_that_the_command_takes_and_no_other(command: tuple[str, ...]) -> None:
    told = " ".join(answered(*command, "--help").out.split())
    if COMMANDS[command] != kinds.HISTORY.formats:
        assert f"Output format: {', '.join(COMMANDS[command])}." in told
    offered = re.findall(
        r"(\.[a-z]+)\b(?: \(JUnit\))?[,.]", told.partition("format by its suffix: ")[2].partition(" Can")[0]
    )
    assert offered == [suffix for suffix, format in kinds.SUFFIXES.items() if format in COMMANDS[command]]


@pytest.mark.parametrize(
    ("command", "form", "valid"),
    [
        (("topo", "--machine", "gh200"), "junit", kinds.TOPO.formats),
        (("topo", "--machine", "gh200"), "yaml", kinds.TOPO.formats),
        (("doctor", "--machine", "list"), "prom", kinds.MACHINES.formats),
        (("compare", "a", "b"), "yaml", kinds.COMPARISON.formats),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else value,
)
def test_a_form_that_a_command_has_not_is_refused_with_those_it_has(
    command: tuple[str, ...], form: str, valid: tuple[Format, ...]
) -> None:
    done = answered(*command, "--format", form)
    refusal = f"egmctl: --format {form}: no such format here; valid are {', '.join(valid)}\n"
    assert (done.code, done.out, done.err) == (2, "", refusal)


class TestHeat:
    @pytest.mark.parametrize(("value", "place"), [(100, 3), (96, 3), (94, 2), (84, 1), (66, 0), (10, 0)])
    @pytest.mark.parametrize(("tone", "look"), [(Tone.PLAIN, "fine"), (Tone.BAD, "bad"), (Tone.WARN, "warn")])
    def test_a_cell_has_the_colour_of_its_grade_stronger_the_farther_it_is_from_the_best(
        self, value: float, place: int, tone: Tone, look: str
    ) -> None:
        for better, number in ((Better.HIGH, value), (Better.LOW, 1e4 / value)):
            matrix = Matrix(rows=("row",), groups=(), better=better)
            assert shade(Cell(text="x", tone=tone, value=number), matrix, {"": 100}) == f"heat-{look}-{place}"

    def test_each_link_is_set_against_its_own_best(self) -> None:
        made = run("gb200-tray", cases=("host_numa_to_device_memcpy_ce",))
        (grid,) = tables_of(made)
        assert isinstance(grid, Matrix)
        assert best(grid) == {"C2C": 107.0, "NV18>C2C": 105.0}


@pytest.mark.parametrize("format", [Format.HTML, Format.SVG, Format.MARKDOWN])
def test_a_machine_of_which_little_is_known_has_every_form(format: Format) -> None:
    node = shipped("hgx-h200x4")
    for little in (
        replace(node, gpus=()),
        replace(node, gpus=None, pairs=None),
        Machine(origin=Origin(kind=OriginKind.LIVE)),
    ):
        assert render(topology(little), format)
        assert render(diagnose(little, Scope(), CHECKS), format)
    empty = replace(run(cases=("ring_write_ce",)), measurements=(), machines=(), gpus=())
    assert render(empty, format)


@pytest.mark.parametrize("kind", kinds.KINDS, ids=lambda kind: kind.record.rpartition(":")[2])
def test_all_that_a_kind_names_exists(kind: kinds.Kind) -> None:
    record = resolve_name(kind.record)
    assert record is Topology or record.SCHEMA.startswith("egmctl.")
    for function in (kind.view, *filter(None, map(kind.export, kind.formats))):
        assert callable(resolve_name(function)), function


def test_json_is_written_as_python_writes_it() -> None:
    document: dict[str, Any] = {"a": (), "b": (1, "\u00f6", (None, {})), "c": [[], {"d": (0.5,)}]}
    assert dump(document) == json.dumps(document, indent=2) + "\n"
