"""Files are written whole, links are followed as the kernel does, and whatever is read ends."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from egmctl import files
from egmctl.errors import EgmctlError, UsageError
from egmctl.files import FileExists, descriptor_path, next_free, open_parent, read_bounded, write_whole
from egmctl.fleet.folder import new_folder, old_folder
from egmctl.journal.events import FILES_LIMIT, Journal, RunState, journal_folder, mention, state_line
from egmctl.model.record import Command
from tests.conftest import ROOT, RunEgmctl, command_environment, ended

NOBODY = 65534


@pytest.mark.processes
def test_of_many_that_write_one_new_file_one_wins(tmp_path: Path) -> None:
    path = tmp_path / "new.json"
    script = (
        "import sys; from pathlib import Path; from egmctl.files import write_whole, FileExists\n"
        "sys.stdin.read()\n"
        "try: write_whole(Path(sys.argv[1]), sys.argv[2].encode() * 5000, replace=False); print('won')\n"
        "except FileExists as error: print(error)\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    command = [sys.executable, "-c", script, str(path)]
    writers = [subprocess.Popen([*command, digit], env=command_environment({}), **pipes) for digit in "01234567"]  # type: ignore[call-overload]
    sentences = [writer.communicate(timeout=60)[0].strip() for writer in writers]
    assert sentences.count("won") == 1
    assert set(sentences) == {"won", f"{path} exists; --force overwrites it"}
    assert path.read_text() == str(sentences.index("won")) * 5000
    assert os.listdir(tmp_path) == ["new.json"], "nothing is left over"


def test_where_there_are_no_hard_links_one_wins_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    write_whole(tmp_path / "a", b"first", replace=False)
    with pytest.raises(FileExists):
        write_whole(tmp_path / "a", b"second", replace=False)
    assert (tmp_path / "a").read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["a"]


def test_a_name_may_be_as_long_as_the_file_system_bears(tmp_path: Path) -> None:
    write_whole(tmp_path / ("a" * 250 + ".json"), b"x")
    with pytest.raises(EgmctlError, match="File name too long"):
        write_whole(tmp_path / ("a" * 256), b"x")
    assert len(os.listdir(tmp_path)) == 1


def test_other_names_have_room(tmp_path: Path) -> None:
    for name in ("run.json", "a" * 300 + ".json", "é" * 200 + ".json", ".json", "x." + "y" * 300):
        other = next_free(tmp_path / name)
        assert len(other.name.encode()) <= 255
        assert other.name != name
        write_whole(other, b"x", replace=False)


@pytest.fixture
def everybodys(tmp_path: Path) -> Path:
    """A folder such as /tmp: all may write, nobody may clear."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to make links of other users")
    folder = tmp_path / "tmp"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


def test_links_of_others_in_a_folder_of_everybodys_do_not_count(everybodys: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    link = everybodys / "report.json"
    link.symlink_to(victim)
    os.lchown(link, NOBODY, NOBODY)
    with pytest.raises(EgmctlError, match=r"report\.json is another user's link in a folder that everybody may"):
        write_whole(link, b"x")
    assert victim.read_text() == "mine"
    outer = tmp_path / "outer.json"
    outer.symlink_to(link)
    with pytest.raises(EgmctlError, match="another user's link"):
        write_whole(outer, b"x")


@pytest.fixture
def trap(everybodys: Path, tmp_path: Path) -> Path:
    """A link that another user made in such a folder; it leads to a folder of ours."""
    (tmp_path / "ours").mkdir(mode=0o700)
    folder = os.open(everybodys, os.O_PATH)
    if (child := os.fork()) == 0:
        try:
            os.setresuid(NOBODY, NOBODY, NOBODY)
            os.symlink(tmp_path / "ours", "sub", dir_fd=folder)
        finally:
            os._exit(0)
    os.close(folder)
    os.waitpid(child, 0)
    assert (everybodys / "sub").lstat().st_uid == NOBODY
    return everybodys / "sub"


@pytest.mark.parametrize("below", ["x.json", "deep/x.json", "../ours/x.json"])
def test_nor_do_their_links_to_folders(egmctl: RunEgmctl, trap: Path, tmp_path: Path, below: str) -> None:
    ours = tmp_path / "ours"
    (ours / "deep").mkdir()
    for path in (ours / "x.json", ours / "deep" / "x.json"):
        path.write_text("mine")
    with pytest.raises(EgmctlError, match="sub is another user's link in a folder that everybody may write to"):
        write_whole(trap / below, b"x")
    done = egmctl("topo", "--machine", "dgx-h100", "-o", str(trap / below), "--force")
    assert done.code == 2
    assert f"{trap / below} cannot be written: sub is another user's link in a folder that everybody" in done.err
    assert [path.read_text() for path in (ours / "x.json", ours / "deep" / "x.json")] == ["mine", "mine"]
    assert sorted(path.name for path in ours.rglob("*")) == ["deep", "x.json", "x.json"]


def test_nor_in_the_path_of_a_folder_of_results(trap: Path, tmp_path: Path) -> None:
    now = datetime.now(timezone.utc)
    for path in (trap, trap / "out"):
        with pytest.raises(UsageError, match="cannot be made: sub is another user's link"):
            new_folder(path, Command.TOPO, now)
    assert os.listdir(tmp_path / "ours") == []
    earlier = new_folder(tmp_path / "ours" / "out", Command.TOPO, now)
    earlier.write_report("{}")
    with pytest.raises(UsageError, match="cannot be written to: sub is another user's link"):
        old_folder(trap / "out")


def test_nor_in_that_of_a_journal(trap: Path, tmp_path: Path) -> None:
    kept = [tmp_path / "ours" / f"bench-20261122T00{number:04}Z-1.journal" for number in range(FILES_LIMIT + 11)]
    for path in kept:
        path.write_text("x")
    for folder in (trap, trap / "new"):
        journal = Journal([folder], str)
        journal._make()
        assert journal.path is None
        assert journal.failure == f"{folder}: sub is another user's link in a folder that everybody may write to"
    mention(trap / kept[0].name)
    assert sorted((tmp_path / "ours").iterdir()) == kept
    assert {path.read_text() for path in kept} == {"x"}


FOREIGN = "who could redirect what is written there"


@pytest.mark.needs_root
@pytest.mark.parametrize("how", ["a folder", "a link", "a link, and a new folder below"])
def test_the_journal_of_root_is_not_written_where_another_user_leads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The state folder of a user: one that root did not make, or a link to one of root's own."""
    private, state = tmp_path / "private", tmp_path / "home" / "state"
    state.parent.mkdir()
    (private / "egmctl" / "journal").mkdir(parents=True)
    if how == "a folder":
        (state / "egmctl" / "journal").mkdir(parents=True)
    else:
        state.symlink_to(private)
    if how.endswith("below"):
        (private / "egmctl" / "journal").rmdir()
    for path in (state.parent, *state.parent.rglob("*")):
        os.lchown(path, NOBODY, NOBODY)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    who = f"it belongs to user {NOBODY}" if how == "a folder" else f"state is a link of user {NOBODY}"
    for folder in (journal_folder(), state / "egmctl" / "journal", state):
        journal = Journal([folder], str)
        journal._make()
        assert (journal.path, journal.failure) == (None, f"{folder}: {who}, {FOREIGN}")
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.needs_root
def test_nor_does_root_note_in_the_journal_of_another_user_that_it_was_mentioned(tmp_path: Path) -> None:
    path = tmp_path / "bench-000001-20261122T000000Z.journal"
    path.write_bytes(state_line(RunState()))
    os.chown(tmp_path, NOBODY, NOBODY)
    mention(path)
    assert path.read_bytes() == state_line(RunState())


@pytest.mark.needs_root
def test_nor_do_results_of_a_fleet_go_where_another_user_leads_them(tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "ours")
    os.lchown(link, NOBODY, NOBODY)
    for path in (link, link / "new"):
        with pytest.raises(UsageError, match=f"link is a link of user {NOBODY}, {FOREIGN}"):
            new_folder(path, Command.TOPO, datetime.now(timezone.utc))
    assert os.listdir(tmp_path / "ours") == []


def test_a_folder_that_becomes_a_link_while_a_file_is_written_changes_nothing(everybodys: Path, tmp_path: Path) -> None:
    ours, sub = tmp_path / "ours", everybodys / "sub"
    ours.mkdir()
    sub.mkdir()
    with open_parent(sub / "x.json") as (folder, name):
        sub.rename(everybodys / "moved")
        sub.symlink_to(ours)
        os.close(os.open(name, files.NEW_FILE, dir_fd=folder))
    assert os.listdir(ours) == []
    assert os.listdir(everybodys / "moved") == ["x.json"]


def test_ones_own_links_and_those_of_the_folders_owner_count(everybodys: Path, tmp_path: Path) -> None:
    (everybodys / "own").symlink_to(tmp_path / "a")
    write_whole(everybodys / "own", b"x")
    assert (tmp_path / "a").read_bytes() == b"x"
    os.chown(everybodys, NOBODY, NOBODY)
    everybodys.chmod(0o1777)
    (everybodys / "owners").symlink_to("a")
    os.lchown(everybodys / "owners", NOBODY, NOBODY)
    write_whole(everybodys / "owners", b"y")
    assert (everybodys / "a").read_bytes() == b"y"


def test_a_folder_that_only_its_owner_writes_to_may_hold_any_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("deep/../target")
    (tmp_path / "deep").mkdir()
    write_whole(tmp_path / "link", b"x")
    assert (tmp_path / "target").read_bytes() == b"x"
    with open_parent(Path("/proc/self/exe")) as (folder, name):
        assert os.path.samefile(descriptor_path(folder) / name, sys.executable)


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(EgmctlError, match="Too many levels of symbolic links"):
        write_whole(tmp_path / "a", b"x")


@pytest.mark.processes
def test_what_cannot_be_written_leaves_the_earlier_file(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    path.chmod(0o640)
    script = (
        "import resource, signal, sys; from pathlib import Path; from egmctl.files import write_whole\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "from egmctl.errors import EgmctlError\n"
        "try: write_whole(Path(sys.argv[1]), b'x' * 5000)\n"
        "except EgmctlError as error: print(error)\n"
    )
    assert ended([sys.executable, "-c", script, str(path)]).out == f"cannot write {path}: File too large\n"
    assert path.read_text() == "old"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize(("owner", "mode"), [(os.geteuid(), 0o777), (NOBODY, 0o755)])
def test_a_file_that_replaces_another_is_no_setuid_program_and_no_strangers_to_write(
    tmp_path: Path, owner: int, mode: int
) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    if owner != os.geteuid():
        if os.geteuid() != 0:
            pytest.skip("only root replaces a stranger's file here")
        os.chown(path, owner, owner)
    path.chmod(0o6777)
    write_whole(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == mode
    assert path.stat().st_uid == os.geteuid()


# --- reading ---------------------------------------------------------------------------------------------------------


def test_no_more_is_read_than_the_bound_and_one_byte(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * 5000)
    assert len(read_bounded(tmp_path / "a", 5000)) == 5000
    assert len(read_bounded(tmp_path / "a", 4999)) == 5000
    assert len(read_bounded(tmp_path / "a", 10)) == 11
    assert len(read_bounded(Path("/dev/zero"), 3 << 20)) == (3 << 20) + 1


def test_a_pipe_is_read_to_its_end_however_slow_its_writer(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def write() -> None:
        with pipe.open("wb", buffering=0) as file:
            for part in (b"one ", b"two ", b"three" * 50_000):
                time.sleep(0.1)
                file.write(part)

    writer = threading.Thread(target=write)
    writer.start()
    assert read_bounded(pipe, 1 << 20) == b"one two " + b"three" * 50_000
    writer.join()


def test_a_writer_that_writes_nothing_ends_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.open("wb").close())
    writer.start()
    assert read_bounded(pipe, 10) == b""
    writer.join()


def test_a_pipe_that_nobody_opens_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setattr(files, "FIFO_WAIT_S", 0.2)
    with pytest.raises(OSError, match=r"it is a FIFO, and nobody opened it to write within 0\.2 s"):
        read_bounded(pipe, 10)
