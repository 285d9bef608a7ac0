"""Another process' root directory through a descriptor, and that what the child there says is not believed."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from egmctl import launch
from egmctl.driver.reading import Unreadable
from egmctl.errors import ChildFailed
from egmctl.facts import inside, system_calls
from egmctl.facts import root as other_root
from egmctl.facts.root import OtherRoot, Overrides
from egmctl.model.record import Reason
from tests.facts.sysroot import Tree


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[OtherRoot]:
    (tmp_path / "root/dev").mkdir(parents=True)
    (tmp_path / "outside").touch()
    descriptor = os.open(tmp_path / "root", os.O_PATH)
    try:
        yield OtherRoot(descriptor)
    finally:
        os.close(descriptor)


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    return tmp_path / "root/dev"


def test_the_kernel_has_what_it_stands_on(folder: OtherRoot) -> None:
    folder.check()


def test_an_architecture_without_numbers_has_no_such_call(folder: OtherRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "uname", lambda: os.uname_result(("Linux", "", "", "", "riscv64")))
    with pytest.raises(OSError, match="openat2") as caught:
        folder.check()
    assert caught.value.errno == errno.ENOSYS


@pytest.mark.parametrize("path", ["/../outside", "/dev/../../outside", "/link", "/dots", "/dev/fd"])
def test_nothing_outside_is_reached(folder: OtherRoot, dev: Path, path: str) -> None:
    (dev.parent / "link").symlink_to(dev.parent.parent / "outside")
    (dev.parent / "dots").symlink_to("../outside")
    assert not folder.exists(path)
    with pytest.raises(Unreadable) as caught:
        folder.status(path)
    assert caught.value.unread.reason is Reason.NOT_PRESENT
    assert folder.access(path) == "ENOENT"


def test_names(folder: OtherRoot, dev: Path) -> None:
    for name in (b"nvidia1", b"nvidia0", b"\xff"):
        (Path(os.fsdecode(os.fsencode(dev) + b"/" + name))).touch()
    assert folder.names_if_any("/dev") == ["nvidia0", "nvidia1", "\N{REPLACEMENT CHARACTER}"]
    assert folder.names_if_any("/dev/nvidia0") == folder.names_if_any("/sys") == []


def test_a_folder_without_end_is_not_read_to_its_end(
    folder: OtherRoot, dev: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_root, "NAMES_LIMIT", 3)
    for number in range(3):
        (dev / f"nvidia{number}").touch()
    assert len(folder.names_if_any("/dev")) == 3
    (dev / "nvidia3").touch()
    with pytest.raises(Unreadable) as caught:
        folder.names_if_any("/dev")
    assert caught.value.unread.detail == "/dev: more than 3 names"


def test_what_was_renamed_meanwhile_is_asked_again(
    folder: OtherRoot, dev: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (dev / "nvidia0").touch()
    answers = [errno.EAGAIN] * 5

    def call(*arguments: Any) -> int:
        if answers:
            raise OSError(answers.pop(), arguments[0])
        return system_calls.system_call(*arguments)

    monkeypatch.setattr(other_root, "system_call", call)
    assert folder.exists("/dev/nvidia0")
    answers += [errno.EAGAIN] * 1000
    assert not folder.exists("/dev/nvidia0")
    assert len(answers) > 900, "but not for ever"


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ELOOP, errno.EPERM, errno.EIO, errno.ENOSYS])
def test_an_answer_that_is_not_about_the_node_is_no_answer(
    folder: OtherRoot, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def call(name: str, *_: Any) -> int:
        raise OSError(number, name)

    monkeypatch.setattr(other_root, "system_call", call)
    with pytest.raises(Unreadable) as caught:
        folder.access("/dev/nvidia0")
    assert caught.value.unread.reason is Reason.FAILED


def test_capabilities_count_for_the_users_of_their_namespace() -> None:
    def status(uid: int, gid: int) -> os.stat_result:
        return os.stat_result((0o20600, 0, 0, 0, uid, gid, 0, 0, 0, 0))

    rootless = Overrides(searches=True, opens=True, uids=[(1000, 1), (100000, 65536)], gids=[(1000, 1)])
    assert rootless.open(status(1000, 1000))
    assert rootless.open(status(165535, 1000))
    assert not rootless.open(status(0, 1000))
    assert not rootless.open(status(1000, 100000))
    assert not rootless.open(status(165536, 1000))


# --- what the parent makes of it -------------------------------------------------------------------------------------

STATUS = "Uid:\t5\t5\t5\t5\nGid:\t6\t6\t6\t6\nGroups:\t\nCapEff:\t0000000000000000\n"
NODE = {"path": "/dev/nvidia0", "exists": True}
NODES: dict[str, Any] = {"gpus": {}, "control": [], "imex_channels": None, "unread": {}}


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    made = Tree(tmp_path / "tree")
    for pid in ("self", "77"):
        made.write(f"/proc/{pid}/status", STATUS)
        made.write(f"/proc/{pid}/cgroup", "0::/\n")
        made.write(f"/proc/{pid}/uid_map", "0 0 4294967295\n")
        made.write(f"/proc/{pid}/gid_map", "0 0 4294967295\n")
    return made


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """Have the child answer a value, or end with an error."""

    def change(value: Any) -> None:
        def run(*_: Any, **__: Any) -> Any:
            if isinstance(value, ChildFailed):
                raise value
            return value

        monkeypatch.setattr(launch, "run", run)

    return change


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        "ok",
        {},
        {**NODES, "gpus": [NODE]},
        {**NODES, "gpus": {"0": {}}},
        {**NODES, "gpus": {"0": {**NODE, "mode": "0666"}}},
        {**NODES, "gpus": {"0": {**NODE, "path": "/dev/nvidia0\x1b[2J"}}},
        {**NODES, "gpus": {"0": {**NODE, "path": "/dev/sda"}}},
        {**NODES, "control": [{**NODE, "path": "/dev/nvidia-caps/../sda"}]},
        {**NODES, "imex_channels": [NODE]},
        {**NODES, "unread": {"imex_channels": {"reason": "because"}}},
        {**NODES, "unread": [1]},
        {"unread": 7},
        {"unread": {"reason": "because"}},
    ],
)
def test_anything_but_nodes_is_no_answer(tree: Tree, answer: Callable[[Any], None], value: Any) -> None:
    answer({**NODES, "gpus": {"0": NODE}})
    assert inside.read_device_nodes_of(tree.root, 77, []).gpus[0].exists

    answer(value)
    with pytest.raises(Unreadable) as caught:
        inside.read_device_nodes_of(tree.root, 77, [])
    assert caught.value.unread.detail == "/proc/77: what the child beside it says is no answer"


@pytest.mark.parametrize("value", [None, {}, "x", [1], [1, "2"], [1, 2, 3]])
def test_no_size_either(tree: Tree, answer: Callable[[Any], None], value: Any) -> None:
    answer(value)
    with pytest.raises(Unreadable):
        inside.file_system(tree.root, 77, "/dev/shm")  # noqa: S108 - nothing is written


def test_files_that_nobody_asked_for_are_not_found(tree: Tree, answer: Callable[[Any], None]) -> None:
    answer(["/etc/shadow", "/.dockerenv"])
    assert inside.files(tree.root, 77, ["/.dockerenv", "/run/.containerenv"]) == ("/.dockerenv",)


@pytest.mark.parametrize("details", [{}, {"step": 7, "number": 1}, {"step": "setgid", "number": "1"}, {"step": "x"}])
def test_a_step_that_is_none_names_nothing(tree: Tree, answer: Callable[[Any], None], details: dict[str, Any]) -> None:
    answer(ChildFailed("a sentence", how="raised", kind="StepRefused", details=details))
    with pytest.raises(Unreadable) as caught:
        inside.read_device_nodes_of(tree.root, 77, [])
    assert caught.value.unread.detail == "/proc/77: the child that stands beside it raised"


@pytest.mark.parametrize(
    ("own", "other"),
    [
        ("0::/\n", "0::/job\n"),
        ("5:devices:/\n0::/\n", "5:devices:/job\n0::/\n"),
        # Joined in one hierarchy and not in the other it would be told what only the one denies.
        ("5:devices:/\n0::/\n", "5:devices:/job\n0::/job\n"),
    ],
)
def test_a_cgroup_that_cannot_be_joined_is_no_missing_node(tree: Tree, own: str, other: str) -> None:
    unified = "30 1 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
    tree.write("/proc/self/mountinfo", unified if "devices:/job" in other else "")
    tree.write("/proc/self/cgroup", own)
    tree.write("/proc/77/cgroup", other)
    tree.write("/sys/fs/cgroup/unified/job/cgroup.procs", "")
    with pytest.raises(Unreadable) as caught:
        inside.read_device_nodes_of(tree.root, 77, [])
    assert caught.value.unread.reason is Reason.FAILED
    assert "is not mounted here" in caught.value.unread.detail


@pytest.mark.processes
def test_into_a_copied_tree_nothing_is_written(tree: Tree, tmp_path: Path) -> None:
    """Its ``cgroup.procs`` may be a link to whatever its maker likes."""
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    tree.write("/proc/self/mountinfo", "30 1 0:30 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
    tree.write("/proc/self/cgroup", "0::/\n")
    tree.write("/proc/77/cgroup", "0::/job\n")
    tree.write("/sys/fs/cgroup/job/cgroup.procs", "")
    procs = tree.root.path("/sys/fs/cgroup/job/cgroup.procs")
    os.unlink(procs)
    os.symlink(victim, procs)
    with contextlib.suppress(Unreadable):
        inside.read_device_nodes_of(tree.root, 77, [])
    assert victim.read_text() == "untouched"
