"""Processes that may share memory, and have different CUDA drivers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from egmctl.driver.reading import Unreadable
from egmctl.facts import libraries
from egmctl.facts.libraries import cuda_processes, groups_of, process_answer
from egmctl.facts.root import Root
from egmctl.model.finding import Finding, Status
from egmctl.model.host import CudaProcesses
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from tests.doctor.faults import Fault, healthy
from tests.doctor.machines import patched, run_one
from tests.fake.sysroot import Tree

CHECK = "ipc.libraries"


def processes(number: int = 1, **changes: Any) -> CudaProcesses:
    values = {"libcuda_version": "580.126.16", "libcuda_compat": False, "runtime_version": "13.0.48"}
    return CudaProcesses(**{"user": 0, "processes": number, **values, **changes})


OLD = processes(libcuda_version="575.57.08", libcuda_compat=True)


def node(*groups: CudaProcesses, pid: int = 0) -> Machine:
    return patched(healthy(), "process", cuda_processes=groups, pid=pid)


FAULTS: dict[str, Fault] = {CHECK: Fault(lambda: node(processes(asked=True), OLD, pid=4711))}


def well(machine: Machine) -> Machine:
    return patched(machine, "process", cuda_processes=(processes(4),))


def judged(*groups: CudaProcesses, pid: int = 0) -> Finding:
    return run_one(CHECK, node(*groups, pid=pid))


@pytest.mark.parametrize(
    ("groups", "status"),
    [
        ((processes(2),), Status.PASS),
        ((processes(), processes(runtime_version=None)), Status.PASS),
        ((processes(), OLD), Status.NOTE),
        ((processes(), processes(libcuda_compat=True)), Status.NOTE),
        ((processes(), processes(runtime_version="12.4.127")), Status.NOTE),
        ((processes(2), processes(3, user=1, libcuda_version="575.57.08")), Status.PASS),
        ((processes(), processes(user=1, libcuda_version="575.57.08")), Status.SKIP),
        ((processes(), processes(libcuda_version=None)), Status.UNKNOWN),
        ((processes(),), Status.SKIP),
        ((), Status.SKIP),
    ],
)
def test_the_processes_of_one_user_are_compared(groups: tuple[CudaProcesses, ...], status: Status) -> None:
    assert judged(*groups).status is status


def test_with_pid_only_its_user_matters_and_a_difference_is_a_warning() -> None:
    others = (processes(user=1), patched(OLD, "", user=1))
    assert judged(processes(2, asked=True), *others, pid=4711).status is Status.PASS
    finding = judged(processes(asked=True), OLD, pid=4711)
    assert (finding.status, finding.summary) == (
        Status.WARN,
        "process 4711 and others of its user have different libcuda",
    )


@pytest.mark.parametrize(
    ("reason", "status"), [(Reason.NO_PERMISSION, Status.UNKNOWN), (Reason.NOT_SUPPORTED, Status.SKIP)]
)
def test_maps_that_were_not_read_do_not_pass(reason: Reason, status: Status) -> None:
    unread = {"cuda_processes": Unread(reason=reason)}
    assert run_one(CHECK, patched(healthy(), "process", cuda_processes=None, unread=unread)).status is status


MAP = "7f0000000000-7f0000001000 r-xp 00000000 08:01 42 {}\n"


def tree(tmp_path: Path, **maps: tuple[int, tuple[str, ...]]) -> Root:
    """Write processes by id, ``p101=(uid, files)``."""
    files = Tree(tmp_path)
    for name, (uid, paths) in maps.items():
        folder = f"/proc/{name[1:]}"
        files.write(f"{folder}/maps", "".join(map(MAP.format, ("/usr/bin/python3", *paths))))
        files.write(f"{folder}/status", f"Name:\tpython3\nUid:\t{uid}\t{uid}\t{uid}\t{uid}")
    return Root(str(tmp_path))


def test_the_libraries_of_processes_are_read_from_their_maps(tmp_path: Path) -> None:
    host, compat = "/usr/lib/libcuda.so.580.126.16", "/usr/local/cuda-12.8/compat/libcuda.so.570.86.15"
    runtime = "/opt/cuda/lib64/libcudart.so.12.8.90"
    root = tree(
        tmp_path,
        p101=(1000, (host, runtime)),
        p102=(1000, (host, runtime)),
        p103=(1000, (f"{compat} (deleted)",)),
        p104=(1001, (host,)),
        p105=(1001, ("/usr/lib/libnvidia-ml.so.580.126.16",)),
    )
    first, second, third = groups_of([process_answer(root, pid) for pid in range(101, 107)])
    assert (first.user, first.processes, first.libcuda_version, first.runtime_version) == (
        0,
        2,
        "580.126.16",
        "12.8.90",
    )
    assert (second.user, second.libcuda_version, second.libcuda_compat) == (0, "570.86.15", True)
    assert (third.user, third.processes, third.unread["runtime_version"].reason) == (1, 1, Reason.NOT_PRESENT)
    asked, *_ = groups_of([process_answer(root, pid) for pid in (102, 101)], 102)
    assert (asked.asked, asked.processes) == (True, 1)


def test_processes_of_one_user_in_two_ipc_namespaces_are_not_compared(tmp_path: Path) -> None:
    root = tree(tmp_path, p101=(0, ("/usr/lib/libcuda.so.580.126.16",)), p102=(0, ("/usr/lib/libcuda.so.575.57.08",)))
    for pid in (101, 102):
        (tmp_path / f"proc/{pid}/ns").mkdir()
        (tmp_path / f"proc/{pid}/ns/ipc").symlink_to(f"ipc:[402653{pid}]")
    groups = groups_of([process_answer(root, pid) for pid in (101, 102)])
    assert [group.user for group in groups] == [0, 1]
    assert judged(*groups).status is Status.SKIP


@pytest.mark.processes
def test_maps_beyond_the_limits_are_counted_and_do_not_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = ("/usr/lib/libcuda.so.580.126.16",)
    root = tree(tmp_path, p101=(0, host), p102=(0, host), p103=(0, ("/data/file",) * 20_000), p104=(0, host))
    groups, unread = cuda_processes(root, (101, 102, 103, 999))
    assert ([group.processes for group in groups], unread) == ([2], 1)
    monkeypatch.setattr(libraries, "_MOST_PROCESSES", 2)
    assert cuda_processes(root, (101, 102, 103, 104))[1] == 2
    # A child that hangs in a read is ended.
    monkeypatch.setattr(libraries, "_READER", "tests.launch.targets:hang")
    monkeypatch.setattr(libraries, "LIBRARIES_S", 0.2)
    groups_before_the_end, unread_then = cuda_processes(root, (101, 102))
    assert groups_before_the_end == ()
    assert unread_then > 0
    assert run_one(CHECK, patched(node(*groups), "process", cuda_processes_unread=unread)).status is Status.UNKNOWN
    assert run_one(CHECK, patched(node(), "process", cuda_processes_unread=2)).status is Status.UNKNOWN


def test_in_a_pid_namespace_of_its_own_the_ids_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Root, "link", lambda _root, _path: "pid:[4026532999]")
    with pytest.raises(Unreadable) as error:
        cuda_processes(Root("/"), (1,))
    assert error.value.unread.reason is Reason.NOT_SUPPORTED
