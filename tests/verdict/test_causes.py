"""What explains what among the findings of doctor."""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from egmctl.doctor.registry import CHECKS
from egmctl.doctor.runner import diagnose
from egmctl.doctor.scope import EVERYTHING
from egmctl.facts import replay
from egmctl.model.finding import Finding, Place, PlaceKind, Status, on_gpus
from egmctl.verdict.causes import EXPLAINS, causes
from tests.doctor.scenes import scenes

GPUS = replay.load("hgx-h200x4").gpus or ()
IDS = [check.id for check in CHECKS]


def finding(check: str, status: Status = Status.FAIL, place: Place | None = None) -> Finding:
    return Finding(status=status, summary="", check=check, place=place or Place(kind=PlaceKind.NODE))


def test_every_check_of_the_table_exists_and_none_explains_itself() -> None:
    assert {*EXPLAINS, *chain.from_iterable(EXPLAINS.values())} <= set(IDS)
    assert not [check for check, explained in EXPLAINS.items() if check in explained]


def test_a_denied_gpu_explains_the_route_that_it_would_carry() -> None:
    denied = finding("dev.cgroup-restricted", Status.WARN, on_gpus(GPUS[3:]))
    route = finding("egm.cgroup-route", Status.FAIL, Place(kind=PlaceKind.NUMA, ids=("1",), label="NUMA 1"))
    (cause,) = causes([route, denied])
    assert (cause.finding, cause.explains, cause.status) == (denied, (route,), Status.FAIL)


def test_another_gpus_problem_stays_its_own() -> None:
    links = finding("nvlink.links", Status.FAIL, on_gpus(GPUS[:1]))
    same, other = (finding("nvlink.errors", Status.WARN, on_gpus([gpu])) for gpu in GPUS[:2])
    assert [(one.finding, one.explains) for one in causes([links, same, other])] == [(links, (same,)), (other, ())]


@pytest.mark.parametrize(
    ("scene", "root", "explained"),
    [
        ("gb200-slurm-denies-one", "dev.cgroup-restricted", {"egm.cgroup-route", "pcie.link"}),
        ("gb200-egm-mixed", "egm.capability", {"egm.preconditions"}),
        ("nvl72-imex-down", "imex.daemon", {"imex.domain"}),
        ("h200-off-the-bus", "dev.fell-off-bus", set()),
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


@given(FINDINGS)
def test_every_problem_is_in_exactly_one_cause_and_the_gravest_come_first(findings: list[Finding]) -> None:
    found = causes(findings)
    listed = [one for cause in found for one in (cause.finding, *cause.explains)]
    problems = [one for one in findings if one.status in (Status.FAIL, Status.WARN)]
    assert sorted(map(id, (one for one in listed if one.status is not Status.UNKNOWN))) == sorted(map(id, problems))
    gravity = [list(Status).index(cause.status) for cause in found]
    assert gravity == sorted(gravity)
