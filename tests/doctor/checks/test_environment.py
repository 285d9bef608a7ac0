"""Limits that leave CUDA too little: how they are read of the real kernel, and what they explain."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from egmctl.doctor.check import EVERYTHING
from egmctl.doctor.runner import CHECKS, diagnose
from egmctl.driver.reading import Unreadable
from egmctl.facts.confinement import confinement
from egmctl.facts.inside import pids_left
from egmctl.facts.root import Root
from egmctl.model.finding import Status
from egmctl.model.host import LibraryFailure
from egmctl.model.machine import Machine
from egmctl.model.measurement import Status as Ended
from egmctl.model.probes import Outcome
from egmctl.model.record import Reason, Unread
from egmctl.report.kinds import Format, render
from egmctl.units import GIB
from egmctl.verdict.bringup import bringup
from egmctl.verdict.explain import with_causes
from tests.doctor.faults import Fault, changed, healthy
from tests.doctor.machines import patched, run_one, shipped
from tests.verdict.runs import WRITE, run, with_status

ENOUGH = {"as": -1, "memlock": -1, "nofile": 1 << 20, "nproc": -1, "stack": 8 << 20}
FAULTS: dict[str, Fault] = {"env.limits": changed("confinement", limits=ENOUGH | {"nofile": 48}, pids_left=-1)}


def well(machine: Machine) -> Machine:
    return patched(machine, "confinement", limits=ENOUGH, pids_left=-1)


def limited(machine: Machine | None = None, *, pids: int | None = -1, capabilities: int = 0, **limits: int) -> Machine:
    values = {"limits": ENOUGH | limits, "pids_left": pids, "capabilities": capabilities}
    return patched(healthy() if machine is None else machine, "confinement", **values)


@pytest.mark.parametrize(
    ("machine", "summary"),
    [
        (limited(nofile=48), "open files are limited to 48, too few for CUDA on 4 GPUs"),
        (limited(nproc=20), "processes of this user are limited to 20, too few for CUDA on 4 GPUs"),
        (limited(pids=3), "the cgroup allows 3 more processes and threads, too few for CUDA on 4 GPUs"),
        (
            patched(limited(), "confinement", limits=ENOUGH | {"as": 8 * GIB}),
            "the address space is limited to 8 GiB, less than the memory of the GPUs",
        ),
    ],
)
def test_a_limit_that_is_too_low_is_named_with_its_number(machine: Machine, summary: str) -> None:
    finding = run_one("env.limits", machine)
    assert (finding.status, finding.summary) == (Status.WARN, summary)
    assert finding.remedy is not None


def test_roots_processes_are_not_counted() -> None:
    assert run_one("env.limits", limited(nproc=20, capabilities=1 << 24)).status is Status.PASS


@pytest.mark.processes
def test_the_limits_of_a_real_process() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
        facts = confinement(Root("/"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert facts.limits is not None
    space, processes = (resource.getrlimit(which)[0] for which in (resource.RLIMIT_AS, resource.RLIMIT_NPROC))
    assert (facts.limits["nofile"], facts.limits["as"], facts.limits["nproc"]) == (200, space, processes)


@pytest.mark.parametrize(("version", "line"), [(1, "7:pids:/job/step"), (2, "0::/job/step")])
def test_the_tightest_cgroup_counts(tmp_path: Path, version: int, line: str) -> None:
    top = tmp_path / "sys/fs/cgroup"
    step = top / "job/step"
    step.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{line}\n")
    kind = "cgroup2 cgroup2 rw" if version == 2 else "cgroup cgroup rw,pids"
    (tmp_path / "proc/self/mountinfo").write_text(f"30 20 0:26 / /sys/fs/cgroup rw - {kind}\n")
    for folder, most, taken in ((top / "job", "64", "60"), (step, "max", "2")):
        (folder / "pids.max").write_text(f"{most}\n")
        (folder / "pids.current").write_text(f"{taken}\n")
    assert pids_left(Root(str(tmp_path)), "/proc/self") == 4
    (top / "job/pids.max").write_text("max\n")
    assert pids_left(Root(str(tmp_path)), "/proc/self") == -1
    (tmp_path / "proc/self/mountinfo").write_text("")
    with pytest.raises(Unreadable):
        pids_left(Root(str(tmp_path)), "/proc/self")


@pytest.mark.parametrize(
    ("failure", "explained"),
    [
        (LibraryFailure(how="not-started", detail="EMFILE"), True),
        (LibraryFailure(how="error", call="cuInit", number=304, name="CUDA_ERROR_OPERATING_SYSTEM"), True),
        (LibraryFailure(how="error", call="cuInit", number=803, name="CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), False),
        (LibraryFailure(how="timed-out", call="cuInit"), False),
    ],
)
def test_it_explains_a_driver_that_fails_for_want_of_something(failure: LibraryFailure, explained: bool) -> None:
    unread = {"cuda": Unread(reason=Reason.FAILED, detail="")}
    machine = patched(patched(limited(nofile=48), "gpus[*]", cuda=None, unread=unread), "driver", cuda_failure=failure)
    findings = diagnose(machine, EVERYTHING, CHECKS).findings
    (finding,) = [finding for finding in findings if (finding.check, finding.status) == ("drv.libraries", Status.FAIL)]
    assert finding.explained_by == (("env.limits",) if explained else ())


def test_it_explains_no_wrong_bytes() -> None:
    probes = tuple(patched(probe, "", outcome=Outcome.CORRUPT) for probe in healthy().probes or ())
    findings = diagnose(patched(limited(nofile=48), "", probes=probes), EVERYTHING, CHECKS).findings
    assert not [finding for finding in findings if "env.limits" in finding.explained_by]


@pytest.mark.parametrize("status", [Ended.CRASHED, Ended.FAILED])
def test_it_is_the_cause_of_measurements_that_broke(status: Ended) -> None:
    machine = limited(shipped("hgx-h200x4"), nofile=48)
    made = with_causes(with_status(run(WRITE, machine=machine), status, range(12)))
    node = bringup(diagnose(machine, EVERYTHING, CHECKS), made)
    assert [cause.finding.check for cause in made.causes] == ["env.limits"]
    for result, word in ((made, "INCOMPLETE"), (node, "NO-GO")):
        words = " ".join(str(render(result, Format.TEXT)).split())
        assert words.startswith(f"{word}: ")
        assert "open files are limited to 48, too few for CUDA on 4 GPUs" in words
        assert "Next: Raise the limit to 192 or more" in words
        assert "slow" not in words
