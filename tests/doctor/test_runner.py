"""Running checks: their order, what a check cannot do to the others, and what the whole amounts to."""

from __future__ import annotations

import dataclasses

import pytest

from egmctl.errors import ExitCode
from egmctl.model.finding import Finding, Guard, Status
from egmctl.model.machine import SectionStatus
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
        assert (result.exit_code, result.nagios_state) == (code, nagios)
        assert result.undetermined == (code is ExitCode.NOTHING)

    def test_without_a_gpu_nothing_was_determined(self) -> None:
        result = diagnosis(check("a.one", FINE), machine=dataclasses.replace(NODE, gpus=()))
        assert (result.exit_code, result.nothing) == (ExitCode.NOTHING, "There is no NVIDIA GPU on this machine.")

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
