"""The registry and the run of its checks: what is chosen, in which order, and what the whole amounts to."""

from __future__ import annotations

import dataclasses
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from egmctl.doctor import checks
from egmctl.doctor import runner as registry
from egmctl.doctor.check import Check
from egmctl.doctor.runner import CHECKS
from egmctl.errors import ExitCode, UsageError
from egmctl.model.finding import Finding, Guard, Status
from egmctl.model.machine import SECTION_VERSIONS, SectionStatus
from egmctl.model.record import Reason, Unread
from tests.doctor.builders import ABSENT, DENIED, FINE, PERSISTENCE, REBOOT, UNTOLD, broken, check, diagnosis
from tests.doctor.machines import shipped

NODE = shipped("gb200-tray")


def test_findings_come_in_the_order_of_the_checks_and_say_which_made_them() -> None:
    findings = diagnosis(check("b.two", FINE, DENIED, guards=[Guard.EGM]), check("a.one", FINE)).findings
    assert [finding.check for finding in findings] == ["b.two", "b.two", "a.one"]
    assert findings[0].guards == (Guard.EGM,)
    assert findings[0].docs == "docs/doctor.md#btwo"


def test_a_check_that_raises_is_unknown_and_the_others_go_on() -> None:
    findings = diagnosis(broken("a.one", ZeroDivisionError("secret")), check("b.two", FINE)).findings
    assert [finding.status for finding in findings] == [Status.UNKNOWN, Status.PASS]
    assert findings[0].summary == "the check itself failed (ZeroDivisionError); please report it"


def test_a_check_that_says_nothing_is_unknown() -> None:
    assert [finding.status for finding in diagnosis(check("a.one")).findings] == [Status.UNKNOWN]


@pytest.mark.parametrize(
    ("status", "expected", "words"),
    [
        (None, Status.UNKNOWN, "this machine was recorded without the section nics"),
        (Unread(reason=Reason.NOT_ASKED), Status.SKIP, "the section nics was not requested"),
        (Unread(reason=Reason.FAILED), Status.UNKNOWN, "the section nics could not be read (failed)"),
    ],
)
def test_a_missing_section_is_answered_for(status: Unread | None, expected: Status, words: str) -> None:
    sections = {} if status is None else {"nics": SectionStatus(version=1, unread=status)}
    machine = dataclasses.replace(NODE, nics=None, sections=sections)
    (finding,) = diagnosis(check("a.one", FINE, sections=("nics",)), machine=machine).findings
    assert (finding.status, finding.summary) == (expected, words)


class TestVerdict:
    @pytest.mark.parametrize(
        ("findings", "strict", "code", "nagios"),
        [
            ([FINE], False, ExitCode.OK, 0),
            ([FINE, ABSENT, UNTOLD], False, ExitCode.NOTHING, 3),  # NOT DETERMINED: as much is unknown as is good
            ([FINE, FINE, ABSENT, UNTOLD], False, ExitCode.OK, 0),
            ([FINE, PERSISTENCE], False, ExitCode.OK, 1),
            ([FINE, PERSISTENCE], True, ExitCode.FAILED, 2),
            ([FINE, PERSISTENCE, REBOOT], False, ExitCode.FAILED, 2),
            ([ABSENT, UNTOLD], False, ExitCode.NOTHING, 3),
            ([ABSENT, REBOOT], False, ExitCode.FAILED, 2),
        ],
    )
    def test_exit_codes(self, findings: list[Finding], strict: bool, code: ExitCode, nagios: int) -> None:
        checks = [check(f"a.{i}", finding) for i, finding in enumerate(findings)]
        result = diagnosis(*checks, strict=strict)
        assert (result.exit_code, result.answer.nagios) == (code, nagios)
        assert (result.answer.nothing is not None) == (code is ExitCode.NOTHING)

    def test_without_a_gpu_nothing_was_determined(self) -> None:
        result = diagnosis(check("a.one", FINE), machine=dataclasses.replace(NODE, gpus=()))
        assert result.exit_code is ExitCode.NOTHING
        assert result.answer.gaps[0].reason == "there is no NVIDIA GPU on this machine"

    def test_a_check_counts_once_with_its_gravest_finding(self) -> None:
        result = diagnosis(check("a.one", FINE, DENIED, PERSISTENCE), check("b.two", ABSENT, FINE))
        assert result.counts == {
            Status.FAIL: 1,
            Status.WARN: 0,
            Status.UNKNOWN: 0,
            Status.NOTE: 0,
            Status.PASS: 1,
            Status.SKIP: 0,
        }


def test_every_file_of_checks_has_some() -> None:
    files = {path.stem for path in Path(checks.__path__[0]).glob("*.py")} - {"__init__"}
    assert set(registry._ORDER) <= files == {path.stem for path in Path(checks.__path__[0]).glob("*.toml")}
    assert all(importlib.import_module(f"egmctl.doctor.checks.{name}") for name in files)
    assert all(isinstance(check, Check) for check in CHECKS)


def test_ids_are_unique() -> None:
    assert len({check.id for check in CHECKS}) == len(CHECKS)


def test_every_check_has_an_id_of_area_and_name_reads_sections_that_exist_and_guards_something() -> None:
    for shipped_check in CHECKS:
        assert re.fullmatch(r"[a-z0-9]+\.[a-z0-9-]+", shipped_check.id)
        assert set(shipped_check.sections) <= set(SECTION_VERSIONS), shipped_check.id
        assert shipped_check.guards, shipped_check.id


def test_every_check_has_its_texts_and_no_text_is_left_over() -> None:
    assert set(registry.texts()) == {check.id for check in registry.DOCUMENTED}
    for entry in registry.check_list(registry.DOCUMENTED).checks:
        assert len(entry.title) <= 60, entry.id
        assert not entry.title.endswith("."), entry.id
        for text in (entry.why, entry.read, entry.fix):
            assert text.endswith("."), text
            assert not re.match(r"(Of|Who|Whose|What)\b", text), text


class TestSelect:
    @pytest.fixture(autouse=True)
    def _three(self, monkeypatch: pytest.MonkeyPatch) -> None:
        three = (check("b.one", guards=[Guard.EGM]), check("b.two", guards=[Guard.RDMA, Guard.EGM]), check("a.one"))
        monkeypatch.setattr(registry, "CHECKS", three)

    @pytest.mark.parametrize(
        ("options", "chosen"),
        [
            ({}, ["b.one", "b.two", "a.one"]),
            ({"only": ["a.one", "b.two"]}, ["b.two", "a.one"]),
            ({"only": ["b.*"]}, ["b.one", "b.two"]),
            ({"without": ["b.one"]}, ["b.two", "a.one"]),
            ({"only": ["*.one"], "without": ["a.*"]}, ["b.one"]),
            ({"purposes": [Guard.RDMA]}, ["b.two", "a.one"]),
        ],
    )
    def test_in_the_order_of_the_registry(self, options: dict[str, Any], chosen: list[str]) -> None:
        assert [check.id for check in registry.select(**options)] == chosen

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"only": ["b.tow"]}, "--check 'b.tow': there is no such check; did you mean b.two"),
            ({"without": ["zzz"]}, "--skip 'zzz': there is no such check; 'egmctl doctor --list' shows all"),
            ({"without": ["*"]}, "--for, --check and --skip together leave no check"),
            ({"purposes": [Guard.RDMA], "only": ["b.one"]}, "leave no check"),
        ],
    )
    def test_what_cannot_be_chosen_is_one_sentence(self, options: dict[str, Any], sentence: str) -> None:
        with pytest.raises(UsageError, match=re.escape(sentence)):
            registry.select(**options)

    def test_one_to_explain(self) -> None:
        assert registry.find_check("a.one").id == "a.one"
        with pytest.raises(UsageError, match=re.escape("--explain 'a.on': there is no such check")):
            registry.find_check("a.on")
