"""Collecting a machine: what is asked, in which order, and that nothing which goes wrong ends the tool."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from egmctl import launch
from egmctl.errors import UsageError
from egmctl.facts import confinement, host, process, replay
from egmctl.facts.collect import LIBRARY_SECTIONS, collect, reading
from egmctl.facts.root import SYSROOT_VARIABLE, Root
from egmctl.model.codec import from_json, to_json
from egmctl.model.machine import SECTION_VERSIONS, Machine, OriginKind
from egmctl.model.record import Reason, Unread
from tests.facts.sysroot import GPU, Tree, grace_hopper
from tests.invariants import broken_invariants
from tests.known import known
from tests.launch.start import children, wait_until
from tests.schemas import validate

pytestmark = pytest.mark.processes

FILES_ONLY = ("host", "switches", "nics", "process")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setenv(SYSROOT_VARIABLE, str(tmp_path / "root"))
    return grace_hopper(tmp_path / "root")


def test_this_machine_itself() -> None:
    machine = collect(SECTION_VERSIONS)
    assert broken_invariants(machine) == []
    assert machine.origin.kind is OriginKind.LIVE
    assert machine.origin.tool.startswith("egmctl ")
    assert list(machine.sections) == list(SECTION_VERSIONS)
    for name, status in machine.sections.items():
        # Reading makes no probes.
        assert (status.duration_ms is None) == (name == "probes"), name
        assert status.unread is None or status.unread.reason is not Reason.FAILED, status
    assert known(machine.host).page_size_bytes
    assert known(machine.process).cgroups is not None
    assert from_json(Machine, to_json(machine)) == machine
    validate(replay.document(machine), "machine")


def test_what_is_not_asked_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "Child", None)
    machine = collect(FILES_ONLY)
    assert broken_invariants(machine) == []
    assert known(machine.host).kernel
    for name in ("gpus", "pairs", "driver"):
        assert getattr(machine, name) is None
        status = machine.sections[name]
        assert (status.duration_ms, known(status.unread).reason) == (None, Reason.NOT_ASKED)


def test_a_process_that_ends_meanwhile_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may be another's by now, and half of the facts would be of that one."""
    with subprocess.Popen(["sleep", "60"]) as job:

        def end(*_: object) -> None:
            job.kill()
            job.wait()

        monkeypatch.setattr(confinement, "confinement", end)
        with pytest.raises(UsageError, match=f"process {job.pid} ended while it was read"):
            collect(("process", "confinement"), pid=job.pid)


def test_another_process_of_the_same_number_is_another(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((4711, 4712))
    monkeypatch.setattr(process, "start_time", lambda *_: next(times))
    with pytest.raises(UsageError, match="ended while it was read"):
        collect(("host",), pid=os.getpid())


def test_a_process_keeps_its_start_time_whatever_its_name(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    names = ("sleep", ") R 1 (", "a\nb) S 9 9 9", "")
    fields = " ".join(str(number) for number in range(4, 53))
    for name in names:
        tree.write("/proc/77/stat", f"77 ({name}) S {fields}\n")
        assert process.start_time(tree.root, 77) == 22
    assert process.start_time(Root(), os.getpid()) == process.start_time(Root(), os.getpid())
    assert process.start_time(Root(), os.getpid()) >= process.start_time(Root(), os.getppid())


def test_a_section_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="'gpu'; valid are host, gpus, pairs"):
        collect(["gpu"])


def test_device_nodes_are_looked_at_before_a_library_can_make_them(
    tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.remove("/dev/nvidia0")
    node = tree.directory / "dev/nvidia0"
    _spawn_instead(monkeypatch, tmp_path, f"open({str(node)!r}, 'w').close()")
    (gpu,) = collect(["gpus"]).gpus or ()
    assert node.exists(), "the child has made it meanwhile"
    assert (known(gpu.node).exists, known(gpu.node).access) == (False, "ENOENT")


@pytest.mark.usefixtures("tree")
def test_libraries_are_asked_while_the_caller_goes_on_and_other_sections_are_named_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = tmp_path / "asked"
    _spawn_instead(monkeypatch, tmp_path, f"open({str(asked)!r}, 'w').close()")
    before = children()
    with reading(LIBRARY_SECTIONS) as machine:
        assert wait_until(asked.exists), "a child asks before anything is waited for"
        found = machine("host")
        assert wait_until(lambda: children() == before), "they have nothing left to do"
    read = {name for name, status in found.sections.items() if status.duration_ms is not None}
    assert read == {*LIBRARY_SECTIONS, "host"}


@pytest.mark.usefixtures("tree")
def test_a_reading_that_is_given_up_leaves_no_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _spawn_instead(monkeypatch, tmp_path, "__import__('time').sleep(600)")
    before = children()
    with reading(LIBRARY_SECTIONS) as machine:
        assert len(children() - before) == 2
        with pytest.raises(UsageError, match="no section 'weather'"):
            machine("weather")
    assert children() == before


@pytest.mark.usefixtures("tree", "no_thread_starts")
def test_where_no_thread_can_start_nobody_is_told_of_a_wait_and_the_facts_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _spawn_instead(monkeypatch, tmp_path, "raise SystemError")
    (gpu,) = collect(["gpus"], on_wait=pytest.fail).gpus or ()
    assert gpu.bus_id == GPU


@pytest.mark.usefixtures("tree")
def test_without_cuda_no_child_loads_libcuda(monkeypatch: pytest.MonkeyPatch) -> None:
    original = launch.Child
    started = []

    def spawn(target: str, arguments: dict[str, Any], **options: Any) -> launch.Child:
        started.append(target)
        return original(target, arguments, **options)

    monkeypatch.setattr(launch, "Child", spawn)
    machine = collect(SECTION_VERSIONS, cuda=False)
    assert broken_invariants(machine) == []
    assert started == ["egmctl.facts.nvml:read"]
    (gpu,) = machine.gpus or ()
    assert (gpu.cuda, gpu.unread["cuda"].reason) == (None, Reason.NOT_ASKED)
    assert known(machine.driver).unread["cuda_error"].reason is Reason.NOT_ASKED


@pytest.mark.usefixtures("tree")
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("__import__('time').sleep(600)", Reason.TIMED_OUT),
        ("__import__('os')._exit(7)", Reason.CRASHED),
        ("raise ValueError('gh-17')", Reason.FAILED),
        ("return 'nonsense'", Reason.FAILED),
    ],
)
def test_a_child_that_fails_costs_only_what_it_would_have_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, reason: Reason
) -> None:
    _spawn_instead(monkeypatch, tmp_path, body)
    if reason is Reason.TIMED_OUT:
        monkeypatch.setattr("egmctl.facts.collect.DEADLINE_S", 0.1)
    machine = collect(SECTION_VERSIONS)
    assert broken_invariants(machine) == []
    (gpu,) = machine.gpus or ()
    assert (gpu.bus_id, gpu.sources, machine.pairs) == (GPU, ("pci", "proc", "node"), ())
    assert (gpu.unread["nvml"].reason, gpu.unread["cuda"].reason) == (reason, reason)
    assert known(machine.driver).unread["cuda_driver_version"].reason is reason


@pytest.mark.usefixtures("tree")
def test_an_unexpected_error_is_its_sections_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("of a kind nobody thought of")

    monkeypatch.setattr(host, "host", broken)
    machine = collect(FILES_ONLY)
    assert broken_invariants(machine) == []
    detail = "ZeroDivisionError: of a kind nobody thought of"
    assert machine.sections["host"].unread == Unread(reason=Reason.FAILED, detail=detail)
    assert machine.process is not None


@pytest.mark.parametrize("variable", ["relative/../missing", "/dev/null"])
def test_a_sysroot_that_is_no_directory_gives_reasons(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(SYSROOT_VARIABLE, variable)
    machine = collect(FILES_ONLY)
    assert broken_invariants(machine) == []
    assert known(machine.host).kernel is None


def _spawn_instead(monkeypatch: pytest.MonkeyPatch, folder: Path, body: str) -> None:
    """Let every child run ``body`` in place of what it would have done."""
    (folder / "stand_in.py").write_text(f"def read(parent, arguments):\n    {body}\n")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    original = launch.Child

    def spawn(_target: str, arguments: dict[str, Any], **options: Any) -> launch.Child:
        return original("stand_in:read", arguments, **options)

    monkeypatch.setattr(launch, "Child", spawn)
