"""What explains what among the findings of doctor."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egmctl.doctor.causes import ON_FINDINGS, explained
from egmctl.doctor.check import EVERYTHING
from egmctl.doctor.runner import CHECKS, diagnose
from egmctl.model.finding import TOLD, Cause, Finding, Place, PlaceKind, Status, causes, on_gpus, on_pairs
from tests.doctor.machines import shipped
from tests.doctor.scenes import scenes

GPUS = shipped("hgx-h200x4").gpus or ()
IDS = [check.id for check in CHECKS]


def finding(check: str, status: Status = Status.FAIL, place: Place | None = None) -> Finding:
    return Finding(status=status, summary="", check=check, place=place or Place(kind=PlaceKind.NODE))


def judged(*findings: Finding) -> tuple[Cause, ...]:
    return causes(explained(shipped("hgx-h200x4"), findings))


def checks_of(found: tuple[Cause, ...]) -> list[tuple[str, list[tuple[str, str]]]]:
    return [(one.finding.check, [(other.check, other.place.label) for other in one.explains]) for one in found]


def test_every_check_of_the_table_exists_and_only_an_xid_explains_another_finding_of_its_check() -> None:
    assert {check for rule in ON_FINDINGS for check in (*rule.causes, *rule.effects)} <= set(IDS)
    assert [rule.causes for rule in ON_FINDINGS if set(rule.causes) & set(rule.effects)] == [("kernel.xid",)]


def test_a_denied_gpu_explains_the_route_that_it_would_carry() -> None:
    denied = finding("dev.cgroup-restricted", Status.WARN, on_gpus(GPUS[3:]))
    route = finding("egm.cgroup-route", Status.FAIL, Place(kind=PlaceKind.NUMA, ids=("1",), label="NUMA 1"))
    (cause,) = judged(route, denied)
    assert checks_of((cause,)) == [("dev.cgroup-restricted", [("egm.cgroup-route", "NUMA 1")])]
    assert (cause.status, cause.finding.status) == (Status.FAIL, Status.FAIL), "as grave as what it explains"


def test_another_gpus_problem_stays_its_own() -> None:
    links = finding("nvlink.links", Status.FAIL, on_gpus(GPUS[:1]))
    same, other = (finding("nvlink.errors", Status.WARN, on_gpus([gpu])) for gpu in GPUS[:2])
    assert checks_of(judged(links, same, other)) == [
        ("nvlink.links", [("nvlink.errors", "GPU0")]),
        ("nvlink.errors", []),
    ]


def test_what_a_gpus_problem_explains_is_told_there() -> None:
    """Also where the same check found the same of another GPU first."""
    links = [finding("nvlink.links", Status.FAIL, on_gpus([gpu])) for gpu in GPUS[:2]]
    retrained = finding("nvlink.errors", Status.WARN, on_gpus(GPUS[1:2]))
    told = {one.finding.place.label: [other.check for other in one.explains] for one in judged(*links, retrained)}
    assert told == {"GPU0": [], "GPU1": ["nvlink.errors"]}


def test_one_gpus_problem_does_not_explain_pairs_of_others() -> None:
    links = finding("nvlink.links", Status.FAIL, on_gpus(GPUS[:1]))
    refused = finding("p2p.status", Status.FAIL, on_pairs([(GPUS[0], GPUS[1]), (GPUS[2], GPUS[3])]))
    assert checks_of(judged(links, refused)) == [("nvlink.links", []), ("p2p.status", [])]
    both = finding("nvlink.links", Status.FAIL, on_gpus([GPUS[0], GPUS[3]]))
    assert checks_of(judged(both, refused)) == [("nvlink.links", [("p2p.status", "GPU0>GPU1, GPU2>GPU3")])]


@pytest.mark.parametrize(
    ("scene", "root", "explained"),
    [
        ("gb200-slurm-denies-one", "dev.cgroup-restricted", {"dev.count-consistency", "egm.cgroup-route", "pcie.link"}),
        ("gb200-egm-mixed", "egm.capability", {"egm.preconditions"}),
        ("nvl72-imex-down", "imex.daemon", {"imex.domain"}),
        ("h200-off-the-bus", "dev.fell-off-bus", {"dev.count-consistency"}),
    ],
)
def test_sick_machines_have_one_root_cause(scene: str, root: str, explained: set[str]) -> None:
    found = causes(diagnose(scenes()[scene].machine(), EVERYTHING, CHECKS).findings)
    assert [(one.finding.check, {other.check for other in one.explains}) for one in found] == [(root, explained)]


FINDINGS = st.lists(
    st.builds(
        finding,
        st.sampled_from(IDS),
        st.sampled_from(Status),
        st.one_of(st.none(), st.lists(st.sampled_from(GPUS), min_size=1, unique_by=id).map(on_gpus)),
    ),
    max_size=12,
)


@pytest.mark.long
@given(FINDINGS)
def test_every_problem_is_in_exactly_one_cause_and_the_gravest_come_first(findings: list[Finding]) -> None:
    told = explained(shipped("hgx-h200x4"), findings)
    found = causes(told)
    listed = [one for cause in found for one in (cause.finding, *cause.explains)]
    problems = [one for one in told if one.status in TOLD]
    assert sorted(map(id, (one for one in listed if one.status is not Status.UNKNOWN))) == sorted(map(id, problems))
    gravity = [list(Status).index(cause.status) for cause in found]
    assert gravity == sorted(gravity)
