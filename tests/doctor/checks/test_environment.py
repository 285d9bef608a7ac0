"""What a process was given: limits that leave CUDA too little, variables that choose GPUs or harm, a container."""

from __future__ import annotations

import dataclasses
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from egmctl.doctor.check import EVERYTHING
from egmctl.doctor.runner import CHECKS
from egmctl.driver.reading import Unreadable
from egmctl.facts.confinement import confinement
from egmctl.facts.inside import cgroup_memory_limit, pids_left
from egmctl.facts.root import Root
from egmctl.model.finding import Status
from egmctl.model.host import Confinement, LibraryFailure
from egmctl.model.machine import Machine
from egmctl.model.measurement import MeasurementStatus
from egmctl.model.probes import ProbeOutcome
from egmctl.model.record import Reason, Unread
from egmctl.report.kinds import Format
from egmctl.units import GIB, MIB
from egmctl.verdict.bringup import bringup_answer
from egmctl.verdict.explain import with_causes
from tests.answers import diagnose, render
from tests.doctor.faults import Fault, changed, healthy
from tests.doctor.machines import patched, run, run_one, shipped, with_gpu_denied
from tests.fake.sysroot import Tree
from tests.verdict.runs import WRITE, with_status
from tests.verdict.runs import run as run_bench

ENOUGH = {"as": -1, "memlock": -1, "nofile": 1 << 20, "nproc": -1, "stack": 8 << 20}
FAULTS: dict[str, Fault] = {"env.limits": changed("confinement", limits=ENOUGH | {"nofile": 48}, pids_left=-1)}


def well(machine: Machine) -> Machine:
    return patched(machine, "confinement", limits=ENOUGH, pids_left=-1, memory_limit_bytes=-1)


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


def test_little_memory_for_the_usable_gpus_is_noted() -> None:
    machine = patched(limited(), "confinement", memory_limit_bytes=GIB + 512 * MIB)
    finding = run_one("env.limits", machine)
    assert finding.summary == "the memory cgroup allows 1.5 GiB, little for CUDA on 4 GPUs"
    assert (finding.status, finding.remedy is not None) == (Status.NOTE, True)
    for index in (1, 2, 3):
        machine = patched(
            patched(machine, f"gpus[{index}].node", access="EPERM"), f"gpus[{index}]", nvml=None, cuda=None
        )
    assert run_one("env.limits", machine).status is Status.PASS


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
    probes = tuple(patched(probe, "", outcome=ProbeOutcome.CORRUPT) for probe in healthy().probes or ())
    findings = diagnose(patched(limited(nofile=48), "", probes=probes), EVERYTHING, CHECKS).findings
    assert not [finding for finding in findings if "env.limits" in finding.explained_by]


@pytest.mark.parametrize("status", [MeasurementStatus.CRASHED, MeasurementStatus.FAILED])
def test_it_is_the_cause_of_measurements_that_broke(status: MeasurementStatus) -> None:
    machine = limited(shipped("hgx-h200x4"), nofile=48)
    made = with_causes(with_status(run_bench(WRITE, machine=machine), status, range(12)))
    node = bringup_answer(diagnose(machine, EVERYTHING, CHECKS), made)
    assert [cause.finding.check for cause in made.causes] == ["env.limits"]
    for result, word in ((made, "FAIL"), (node, "NO-GO")):
        words = " ".join(str(render(result, Format.TEXT)).split())
        assert words.startswith(f"{word}: ")
        assert "open files are limited to 48, too few for CUDA on 4 GPUs" in words
        assert "Next: Raise the limit to 192 or more" in words
        assert "slow" not in words


HGX = shipped("hgx-h200x4")
VISIBLE, BAD, CONTAINER = "env.visible-devices", "env.bad-cuda-env", "ns.container"


def with_variables(machine: Machine = HGX, **variables: str) -> Machine:
    return patched(machine, "process", environment=variables)


class TestVisibleDevices:
    @pytest.mark.parametrize("value", ["0", "0,3", "3,2,1,0"])
    def test_choosing_with_it_passes_and_says_why(self, value: str) -> None:
        finding = run_one(VISIBLE, with_variables(CUDA_VISIBLE_DEVICES=value))
        assert finding.status is Status.PASS
        assert "to choose GPUs where EGM matters" in finding.note

    def test_by_uuid(self) -> None:
        machine = patched(HGX, "gpus[0].nvml", uuid="GPU-11111111-2222-3333-4444-555555555555")
        for value, status in (("GPU-11111111", Status.PASS), ("GPU-deadbeef", Status.FAIL), ("MIG-1", Status.PASS)):
            assert run_one(VISIBLE, with_variables(machine, CUDA_VISIBLE_DEVICES=value)).status is status, value

    @pytest.mark.parametrize(
        ("value", "status", "words"),
        [
            ("0,4", Status.WARN, "entry 2 is 4, the last GPU is 3; CUDA ignores it and everything after it"),
            ("4,0", Status.FAIL, "entry 1 is 4, the last GPU is 3, so CUDA shows no GPU"),
            ("all", Status.FAIL, "entry 1 is neither a number nor a UUID, so CUDA shows no GPU"),
            ("0,0", Status.FAIL, "entry 2 is listed twice, so CUDA shows no GPU"),
        ],
    )
    def test_what_is_not_there(self, value: str, status: Status, words: str) -> None:
        finding = run_one(VISIBLE, with_variables(CUDA_VISIBLE_DEVICES=value))
        assert finding.status is status
        assert words in finding.summary

    def test_numbers_count_what_the_cgroup_left(self) -> None:
        denied = with_gpu_denied(HGX, 0)
        assert run_one(VISIBLE, with_variables(denied, CUDA_VISIBLE_DEVICES="2")).status is Status.PASS
        finding = run_one(VISIBLE, with_variables(denied, CUDA_VISIBLE_DEVICES="3"))
        assert finding.status is Status.FAIL
        assert finding.cause == "3 GPUs can be used from here; numbers count those only, not the node's"


class TestBadEnvironment:
    def test_nothing_of_the_kind(self) -> None:
        harmless = with_variables(NCCL_P2P_DISABLE="0", CUDA_DEVICE_ORDER="PCI_BUS_ID", LD_LIBRARY_PATH="/x")
        assert run_one(BAD, harmless).status is Status.PASS

    def test_each_variable_is_a_warning(self) -> None:
        findings = run(BAD, with_variables(NCCL_P2P_DISABLE="1", CUDA_LAUNCH_BLOCKING="1"))
        assert [finding.status for finding in findings] == [Status.WARN, Status.WARN]
        assert {finding.remedy.run for finding in findings if finding.remedy} == {
            "unset NCCL_P2P_DISABLE",
            "unset CUDA_LAUNCH_BLOCKING",
        }

    def test_a_path_is_not_shown(self) -> None:
        finding = run_one(BAD, with_variables(CUDA_INJECTION64_PATH="/home/alice/secret.so"))
        assert finding.status is Status.WARN
        assert "alice" not in repr(finding)


class TestContainer:
    def test_what_kind(self) -> None:
        machine = patched(HGX, "process", container_signs=("/.dockerenv",))
        for given, words in (
            (Confinement(seccomp="filter", capabilities=0), "a container, with a system call filter"),
            (Confinement(seccomp="none", capabilities=2**40 - 1), "a privileged container"),
            (Confinement(uid_map=((0, 1000, 1),)), "a container, with a user namespace"),
        ):
            finding = run_one(CONTAINER, dataclasses.replace(machine, confinement=given))
            assert (finding.status, finding.summary) == (Status.PASS, f"this process is in {words}")


JOB = {"SLURM_JOB_ID": "12"}


class TestRanks:
    """What a process may do is judged for ranks, of which a job or a container has several."""

    @pytest.mark.parametrize(
        ("environment", "nofile", "statuses"),
        [(JOB, 1024, {Status.NOTE, Status.PASS}), (JOB, 65536, {Status.PASS}), ({}, 1024, {Status.PASS})],
    )
    def test_few_descriptors(self, environment: dict[str, str], nofile: int, statuses: set[Status]) -> None:
        machine = patched(limited(nofile=nofile), "process", environment=environment, container_signs=())
        assert {finding.status for finding in run("ipc.limits", machine)} == statuses

    @pytest.mark.parametrize(
        ("signs", "ptrace_scope", "capabilities", "status"),
        [
            (("/.dockerenv",), 1, 0, Status.NOTE),
            (("/.dockerenv",), 0, 0, Status.PASS),
            (("/.dockerenv",), 1, 1 << 19, Status.PASS),
            ((), 1, 0, Status.PASS),
            (("/.dockerenv",), None, 0, Status.UNKNOWN),
        ],
    )
    def test_descriptors_of_a_sibling(
        self, signs: tuple[str, ...], ptrace_scope: int | None, capabilities: int, status: Status
    ) -> None:
        machine = patched(healthy(), "process", environment={}, container_signs=signs)
        machine = patched(machine, "confinement", ptrace_scope=ptrace_scope, capabilities=capabilities)
        assert run_one("ipc.ptrace", machine).status is status


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({"memory.max": "max", "job/memory.max": "17179869184", "job/step/memory.max": "max"}, 16 * GIB),
        ({"job/memory.max": "max", "job/step/memory.max": "max"}, -1),
        ({}, -1),
    ],
)
def test_the_memory_limit_is_the_least_of_the_cgroups(tmp_path: Path, files: dict[str, str], limit: int) -> None:
    tree = Tree(tmp_path)
    tree.write("/proc/self/cgroup", "0::/job/step")
    tree.write("/proc/self/mountinfo", "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw")
    tree.folder("/sys/fs/cgroup/job/step")
    for name, text in files.items():
        tree.write(f"/sys/fs/cgroup/{name}", text)
    assert cgroup_memory_limit(Root(str(tmp_path)), "/proc/self") == limit


@pytest.mark.parametrize(("name", "read"), [("memory.max", cgroup_memory_limit), ("pids.max", pids_left)])
def test_a_limit_that_cannot_be_read_is_not_unlimited(
    tmp_path: Path, name: str, read: Callable[[Root, str], int]
) -> None:
    tree = Tree(tmp_path)
    tree.write("/proc/self/cgroup", "0::/job")
    tree.write("/proc/self/mountinfo", "30 1 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw")
    tree.write(f"/sys/fs/cgroup/job/{name}", "garbage")
    with pytest.raises(Unreadable, match=f"{name}: not a number"):
        read(Root(str(tmp_path)), "/proc/self")
