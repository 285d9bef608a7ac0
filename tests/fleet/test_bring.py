"""``egmctl fleet --bring``: a folder goes to nodes that lack it, is held against its sum, and is what runs there."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from egmctl import __version__
from egmctl.errors import UsageError
from egmctl.fleet.bring import _TAKE, KEPT, bring, read_folders
from egmctl.fleet.remote import LIST, SUMS, read_output, remote_line
from egmctl.fleet.run import Launch
from egmctl.launch.program import converse, kept
from egmctl.model.command import Command
from egmctl.model.fleet import Asked, Launcher
from tests.conftest import ROOT
from tests.fake.plugin import MakeFakeNode
from tests.fleet.lab import Lab

ARCH = platform.machine()

over_ssh = pytest.mark.needs("ssh", "sshd", "ip")


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with Lab(tmp_path) as made:
        yield made


def archive(folder: Path, script: str, arch: str = ARCH, version: str = __version__) -> Path:
    """Write what ``make dist`` writes, but for its content: ``bin/egmctl`` is a shell script."""
    path = folder / f"egmctl-{version}-linux-{arch}-cu13.tar.xz"
    tree = folder / "tree" / "bin"
    tree.mkdir(parents=True, exist_ok=True)
    (tree / "egmctl").write_text(f"#!/bin/sh\n{script}\n")
    (tree / "egmctl").chmod(0o755)
    with tarfile.open(path, "w:xz") as tar:
        tar.add(folder / "tree", path.name.removesuffix(".tar.xz"))
    return path


@pytest.mark.long
@over_ssh
@pytest.mark.needs_root
def test_a_node_without_egmctl_runs_what_was_brought_and_has_it_the_next_time(
    lab: Lab, fake_node: MakeFakeNode, tmp_path: Path
) -> None:
    variables = {name: value for name, value in fake_node("gb200-tray").environment().items() if value is not None}
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())
    script = f'{exports}export PYTHONPATH={ROOT}\nexec {sys.executable} -m egmctl "$@"'
    home = {name: lab.folder / f"home-{name}" for name in ("node01", "other")}
    for name, folder in home.items():
        folder.mkdir()
        lab.host(name, None if name == "node01" else "echo egmctl 0.0.1", environment=f"HOME={folder}")
    file = archive(tmp_path, script)
    command = ("fleet", "topo", "-w", "node01,other", "--bring", str(file), "--json")
    first = lab.run(*command)
    assert first.code == 0, first.err + first.out
    answers = json.loads(first.out)["result"]["answers"]
    assert [(one["node"], one["reach"]) for one in answers] == [("node01", "answered"), ("other", "answered")]
    (copy,) = (home["node01"] / ".cache/egmctl/fleet").iterdir()
    carried = (copy / "bin/egmctl").stat()
    assert (copy / "bin/egmctl").read_text() == f"#!/bin/sh\n{script}\n"
    assert lab.run(*command).code == 0
    assert (copy / "bin/egmctl").stat().st_ino == carried.st_ino, "nothing is carried a second time"


@pytest.mark.long
@over_ssh
@pytest.mark.needs_root
def test_copies_are_bounded_and_what_is_damaged_on_the_way_is_not_used(lab: Lab, tmp_path: Path) -> None:
    home = lab.folder / "home"
    home.mkdir()
    lab.host("node01", None, environment=f"HOME={home}")
    cache = home / ".cache/egmctl/fleet"
    for number in range(KEPT + 2):
        file = archive(tmp_path, f"echo {number}")
        lab.run("fleet", "topo", "-w", "node01", "--bring", str(file))
        assert len(list(cache.iterdir())) == min(number + 1, KEPT)
    last = max(cache.iterdir(), key=lambda path: path.stat().st_mtime)
    assert (last / "bin/egmctl").read_text().endswith(f"echo {KEPT + 1}\n")
    assert {path.name[16:] for path in cache.iterdir()} == {f"-{ARCH}"}

    for sent in (b"", file.read_bytes()[:-1], b"something else"):
        words = ["sh", "-c", _TAKE, "mark", "key", read_folders([file]).sums[ARCH]]
        done = subprocess.run(words, input=sent, env={"HOME": str(home), "PATH": "/usr/bin:/bin"}, capture_output=True)
        assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"what arrived is not what was sent\n")
    assert len(list(cache.iterdir())) == KEPT


@over_ssh
@pytest.mark.needs_root
def test_a_node_of_another_architecture_says_so_and_is_asked_all_the_same(lab: Lab, tmp_path: Path) -> None:
    home = lab.folder / "home"
    home.mkdir()
    lab.host("node01", None, environment=f"HOME={home}")
    other = "aarch64" if ARCH == "x86_64" else "x86_64"
    ended = lab.run("fleet", "topo", "-w", "node01", "--bring", str(archive(tmp_path, "exit", other)), "--json")
    assert (
        f"node01: egmctl could not be copied there: it is {ARCH}, and --bring has a folder for {other} only"
        in ended.err
    )
    assert [one["reach"] for one in json.loads(ended.out)["result"]["answers"]] == ["no-egmctl"]


def test_only_this_versions_folders_are_brought_one_for_each_architecture(tmp_path: Path) -> None:
    both = [archive(tmp_path, "exit", arch) for arch in ("x86_64", "aarch64")]
    folders = read_folders(both)
    assert set(folders.archives) == {"x86_64", "aarch64"}
    assert folders.remote_command == f"~/.cache/egmctl/fleet/{folders.key}-$(uname -m)/bin/egmctl"
    assert read_folders(both[::-1]).key == folders.key
    with pytest.raises(UsageError, match=r"there is one for x86_64 already"):
        read_folders([both[0], both[0]])
    with pytest.raises(UsageError, match=rf"it is egmctl 9\.9, and this is {__version__}"):
        read_folders([archive(tmp_path, "exit", version="9.9")])
    with pytest.raises(UsageError, match=r"its name is not egmctl-VERSION-linux-ARCH"):
        read_folders([tmp_path / "egmctl.pex"])
    with pytest.raises(UsageError, match=r"No such file"):
        read_folders([tmp_path / f"egmctl-{__version__}-linux-{ARCH}-cu13-slim.tar.xz"])


def _launch() -> Launch:
    return Launch(launcher=Launcher.SSH, options=(), fanout=4, connect_timeout_s=60, timeout_s=60)


def _brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, timeout_s: int = 2) -> dict[str, str]:
    """Bring to two nodes by an ssh that is this script; return why each has no copy."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "bin" / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr("egmctl.fleet.bring.LOOK_S", timeout_s)
    reasons: dict[str, str] = {}
    folders = read_folders([archive(tmp_path, "exit")])
    # Where a test counts memory, not what packing took.
    tracemalloc.reset_peak()
    bring(folders, ["a", "b"], _launch(), reasons.__setitem__)
    return reasons


class SharedHome:
    """Two nodes of either architecture with one home directory, behind an ssh that runs what it is given here."""

    NODES = ("x86_64", "aarch64")
    """Called as their architectures are."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cache = folder / "home/.cache/egmctl/fleet"
        for path in (folder / "home", folder / "bin"):
            path.mkdir()
        # ssh [OPTIONS...] NODE LINE
        ssh = "for line; do node=$last; last=$line; done\n"
        ssh += f'PATH={folder}/$node:$PATH HOME={folder}/home exec sh -c "$line"'
        programs = {"bin/ssh": f'echo "$*" >>{folder}/asked\n{ssh}'}
        programs |= {f"{node}/uname": f"echo {node}" for node in self.NODES}
        for name, script in programs.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}/bin:/usr/bin:/bin")
        said = 'if [ "$1" = --version ]; then echo egmctl 1; else cat "${{0%/bin/*}}/lib/it"; echo of {arch}; fi'
        files = []
        for node in self.NODES:
            (folder / f"made-{node}/tree/lib/empty").mkdir(parents=True)
            (folder / f"made-{node}/tree/lib/it").write_text("all of it\n")
            (folder / f"made-{node}/tree/lib/link").symlink_to("it")
            files.append(archive(folder / f"made-{node}", said.format(arch=node), node))
        self.folders = read_folders(files)
        self._asked = folder / "asked"

    def bring(self, nodes: Sequence[str] = NODES) -> int:
        """Bring to nodes at once, and return how many copies were carried."""
        self._asked.unlink(missing_ok=True)
        reasons: dict[str, str] = {}
        bring(self.folders, nodes, _launch(), reasons.__setitem__)
        assert reasons == {}
        return self._asked.read_text().count("sha256sum -c")

    def run(self, node: str) -> str:
        """Return what egmctl says on a node."""
        path = self.folders.remote_command
        line = remote_line(Asked(command=Command.TOPO, nodes=(node,), remote_command=path, version="egmctl 1"), 20)
        # Its end would be the end of the command.
        with subprocess.Popen(["ssh", node, line], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            output = read_output(process.stdout.read())
        return "lacks" if output.lacks else output.document.decode()

    def copy(self, node: str) -> Path:
        return self.cache / f"{self.folders.key}-{node}"


@pytest.fixture
def shared_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SharedHome:
    return SharedHome(tmp_path, monkeypatch)


@pytest.mark.processes
def test_nodes_of_two_architectures_that_share_a_home_have_a_copy_each(shared_home: SharedHome) -> None:
    assert shared_home.bring() == 2
    assert [shared_home.run(node) for node in shared_home.NODES] == ["all of it\nof x86_64", "all of it\nof aarch64"]
    assert shared_home.bring() == 0


@pytest.mark.processes
def test_nodes_that_share_a_home_may_be_brought_to_at_once(shared_home: SharedHome) -> None:
    shared_home.bring(["x86_64"] * 4)
    assert [path.name for path in shared_home.cache.iterdir()] == [shared_home.copy("x86_64").name]
    (shared_home.copy("x86_64") / "lib/it").unlink()
    shared_home.bring(["x86_64"] * 4)
    assert shared_home.run("x86_64") == "all of it\nof x86_64"


def _remove_a_file(copy: Path) -> None:
    (copy / "lib/it").unlink()


def _remove_a_link(copy: Path) -> None:
    (copy / "lib/link").unlink()


def _cut_a_file(copy: Path) -> None:
    os.truncate(copy / "lib/it", 3)


def _change_a_byte(copy: Path) -> None:
    """As large as it was, and of the same time as far as programs can set it."""
    before = (copy / "lib/it").stat()
    (copy / "lib/it").write_text("all of IT\n")
    os.utime(copy / "lib/it", ns=(before.st_atime_ns, before.st_mtime_ns))


def _change_a_byte_and_cut_the_sums(copy: Path) -> None:
    _change_a_byte(copy)
    sums = (copy / SUMS).read_text().splitlines(keepends=True)
    (copy / SUMS).write_text("".join(line for line in sums if "lib/it" not in line))


def _turn_a_link(copy: Path) -> None:
    (copy / "lib/link").unlink()
    (copy / "lib/link").symlink_to("no")


def _remove_the_sums(copy: Path) -> None:
    (copy / SUMS).unlink()


def _remove_the_list(copy: Path) -> None:
    (copy / LIST).unlink()


def _empty_the_list(copy: Path) -> None:
    os.truncate(copy / LIST, 0)


def _keep_the_folder_alone(copy: Path) -> None:
    shutil.rmtree(copy)
    copy.mkdir()


def _take_a_right(copy: Path) -> None:
    (copy / "bin/egmctl").chmod(0o600)


@pytest.mark.processes
@pytest.mark.parametrize(
    "damage",
    [
        _remove_a_file,
        _remove_a_link,
        _cut_a_file,
        _change_a_byte,
        _change_a_byte_and_cut_the_sums,
        _turn_a_link,
        _remove_the_sums,
        _remove_the_list,
        _empty_the_list,
        _keep_the_folder_alone,
        _take_a_right,
    ],
)
def test_a_damaged_copy_is_never_run_and_made_anew(shared_home: SharedHome, damage: Callable[[Path], None]) -> None:
    shared_home.bring()
    damage(shared_home.copy("aarch64"))
    assert shared_home.run("aarch64") == "lacks", "also where nothing is brought, as with --resume"
    assert shared_home.run("x86_64") == "all of it\nof x86_64"
    assert shared_home.bring() == 1
    assert shared_home.run("aarch64") == "all of it\nof aarch64"
    assert sorted(path.name for path in shared_home.cache.iterdir()) == sorted(
        shared_home.copy(node).name for node in shared_home.NODES
    )


@pytest.mark.processes
def test_a_copy_whose_files_were_only_dated_anew_is_whole(shared_home: SharedHome) -> None:
    shared_home.bring()
    for path in shared_home.copy("x86_64").rglob("*"):
        os.utime(path, follow_symlinks=False)
    assert shared_home.run("x86_64") == "all of it\nof x86_64"
    assert shared_home.bring() == 0


@pytest.mark.processes
def test_what_python_adds_to_a_copy_does_it_no_harm(shared_home: SharedHome) -> None:
    shared_home.bring()
    (shared_home.copy("x86_64") / "lib/it.pyc").write_text("compiled")
    assert shared_home.bring() == 0


@pytest.mark.processes
def test_a_copy_that_is_cut_off_while_it_is_written_or_removed_has_no_name(shared_home: SharedHome) -> None:
    """The shell is killed at each of its steps: what has the copy's name then is whole, or is not run."""
    (node, *_), folders = shared_home.NODES, shared_home.folders
    content = folders.archives[node].read_bytes()
    steps = re.findall(r"(?:tar|mv|rm|sha256sum|mkdir|sort|find|stat) ", _TAKE)
    for number in range(len(steps)):
        parts = re.split(r"(?=\b(?:tar|mv|rm|sha256sum|mkdir|sort|find|stat) )", _TAKE)
        script = "".join([*parts[: number + 1], "kill -9 $$; ", *parts[number + 1 :]])
        words = ["sh", "-c", script, "mark", folders.key, folders.sums[node]]
        subprocess.run(["ssh", node, shlex.join(words)], input=content, capture_output=True, timeout=30)
        assert shared_home.run(node) in ("lacks", f"all of it\nof {node}"), script
    assert shared_home.bring() <= 2
    assert shared_home.run(node) == f"all of it\nof {node}"


@pytest.mark.processes
def test_a_node_that_never_stops_talking_is_let_go_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    tracemalloc.start()
    try:
        reasons = _brought(tmp_path, monkeypatch, "echo no shell >&2; exec yes", timeout_s=60)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert reasons == {"a": "no shell", "b": "no shell"}
    assert time.monotonic() - began < 30
    assert most < 8 << 20


@pytest.mark.long
@pytest.mark.processes
def test_what_ssh_has_started_ends_with_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = tmp_path / "proxy"
    proxy.write_bytes(Path("/bin/sleep").read_bytes())
    proxy.chmod(0o755)
    reasons = _brought(tmp_path, monkeypatch, f"setsid {proxy} 60 & {proxy} 60")
    assert set(reasons.values()) == {"not done within 2 s"}
    left = [one for one in Path("/proc").glob("[0-9]*/exe") if os.path.exists(one) and os.readlink(one) == str(proxy)]
    assert left == []


@pytest.mark.processes
def test_a_file_is_fed_to_a_program_that_reads_slowly(tmp_path: Path) -> None:
    content = os.urandom(3 << 20)
    (tmp_path / "file").write_bytes(content)
    words = kept(["sh", "-c", "sleep 0.5; sha256sum; echo done >&2"], grace_s=30, passes_input=True)
    pipe = subprocess.PIPE
    with (tmp_path / "file").open("rb") as feed:
        process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe)
        out, errors = converse(process, feed, timeout_s=30, limit=1000)
    assert (out.split()[0].decode(), errors, process.returncode) == (hashlib.sha256(content).hexdigest(), b"done\n", 0)
