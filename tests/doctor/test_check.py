"""The frame of every check: facts go with the findings after them, one verdict on several GPUs is one finding."""

from __future__ import annotations

from dataclasses import replace

from egmctl.doctor.check import EVERYTHING, Verdicts, check, findings_on, known, skip
from egmctl.doctor.findings import fact, failed, passed, unknown
from egmctl.model.finding import Finding, Guard, Place, PlaceKind, Status, on_nics, on_numa, on_pairs
from egmctl.model.record import Reason, Unread
from egmctl.model.remedy import todo
from tests.doctor.builders import GPUS, NODE_MACHINE

FIX = todo("Replace it.")


def judged(*verdicts: Finding) -> tuple[Finding, ...]:
    def rule(_machine: object, _scope: object) -> Verdicts:
        yield from verdicts

    return tuple(check("a.one", Guard.EGM)(rule).judge(NODE_MACHINE, EVERYTHING))


def test_findings_have_the_facts_that_came_before_them() -> None:
    def rule() -> Verdicts:
        yield fact("/a", None)
        yield passed("first")
        yield fact("/b", 2)
        yield passed("second", evidence=(fact("/c", "x"),))

    values = [[item.value for item in finding.evidence] for finding in findings_on(GPUS[0], rule())]
    assert values == [["not read"], ["not read", "2", "x"]]


def test_what_was_not_read_ends_a_rule_with_the_reason() -> None:
    def rule() -> Verdicts:
        yield fact("/a", 1)
        yield failed("before", FIX)
        known(None, "it was not read", Unread(reason=Reason.FAILED, detail="EIO"))
        yield passed("never")

    before, last = findings_on(GPUS[0], rule())
    assert (before.status, last.status, last.summary) == (Status.FAIL, Status.UNKNOWN, "it was not read (EIO)")
    assert (last.place.label, last.evidence) == ("GPU0", before.evidence)


def test_a_rule_for_one_gpu_ends_alone() -> None:
    def rule(index: int) -> Verdicts:
        yield passed("good") if index else skip("not here")

    findings = [finding for gpu in GPUS[:2] for finding in findings_on(gpu, rule(gpu.index))]
    assert [(finding.status, finding.place.label) for finding in findings] == [
        (Status.SKIP, "GPU0"),
        (Status.PASS, "GPU1"),
    ]


def test_the_same_verdict_is_one_finding_with_all_evidence() -> None:
    findings = judged(*(failed("broken", FIX, gpu, evidence=(fact("index", gpu.index),)) for gpu in GPUS))
    assert [(finding.place.label, len(finding.evidence)) for finding in findings] == [("GPU0-3", 4)]
    numa = judged(*(passed("good", on_numa([node])) for node in (1, 0)))
    nics = judged(*(passed("good", on_nics([name])) for name in ("mlx5_1", "mlx5_0", "mlx5_1")))
    assert [finding.place.label for finding in (*numa, *nics)] == ["NUMA 0-1", "mlx5_1, mlx5_0"]


def test_another_cause_pairs_and_gpus_that_are_gone_stay_apart() -> None:
    gone = Place(kind=PlaceKind.GPU, ids=("0000:99:00.0",))
    pairs = [on_pairs([(GPUS[0], GPUS[1])]), on_pairs([(GPUS[1], GPUS[0])])]
    findings = judged(
        failed("broken", FIX, GPUS[0]),
        failed("broken", FIX, GPUS[1], cause="heat"),
        failed("broken", FIX, gone),
        *(failed("broken", FIX, pair) for pair in pairs),
    )
    assert len(findings) == 5


def test_the_gravest_is_first() -> None:
    findings = judged(passed("good"), unknown("?"), failed("broken", FIX), replace(passed("on"), status=Status.NOTE))
    assert [finding.status for finding in findings] == [Status.FAIL, Status.UNKNOWN, Status.NOTE, Status.PASS]
