"""``egmctl fleet --bring``: a folder goes to nodes that lack it, is held against its sum, and is what runs there."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import resource
import shlex
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from egmctl import __version__
from egmctl.errors import UsageError
from egmctl.fleet.bring import _TAKE, KEPT, bring, read_folders
from egmctl.fleet.run import Launch
from egmctl.launch.program import converse, kept
from egmctl.model.fleet import Launcher
from tests.conftest import ROOT
from tests.fake.plugin import MakeFakeNode
from tests.fleet.lab import Lab

ARCH = platform.machine()


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
    assert (copy / "bin/egmctl").read_text() == f"#!/bin/sh\n{script}\n"

    # The copy that is there is used, whatever has happened to it since: nothing is carried a second time.
    (copy / "bin/egmctl").write_text("#!/bin/sh\necho egmctl 9\n")
    second = lab.run(*command)
    assert {one["node"]: one["reach"] for one in json.loads(second.out)["result"]["answers"]} == {
        "node01": "wrong-version",
        "other": "answered",
    }


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

    for sent in (b"", file.read_bytes()[:-1], b"something else"):
        words = ["sh", "-c", _TAKE, "mark", "key", read_folders([file]).sums[ARCH]]
        done = subprocess.run(words, input=sent, env={"HOME": str(home), "PATH": "/usr/bin:/bin"}, capture_output=True)
        assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"what arrived is not what was sent\n")
    assert len(list(cache.iterdir())) == KEPT


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
    assert folders.remote_command == f"~/.cache/egmctl/fleet/{folders.key}/bin/egmctl"
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
    return Launch(launcher=Launcher.SSH, options=(), fanout=4, connect_timeout_s=5, timeout_s=5)


def _brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, timeout_s: int = 2) -> dict[str, str]:
    """Bring to two nodes by an ssh that is this script; return why each has no copy."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "ssh").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "bin" / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr("egmctl.fleet.bring.LOOK_S", timeout_s)
    reasons: dict[str, str] = {}
    bring(read_folders([archive(tmp_path, "exit")]), ["a", "b"], _launch(), reasons.__setitem__)
    return reasons


@pytest.mark.processes
def test_a_node_that_never_stops_talking_is_let_go_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.monotonic()
    reasons = _brought(tmp_path, monkeypatch, "echo no shell >&2; exec yes", timeout_s=20)
    assert reasons == {"a": "no shell", "b": "no shell"}
    assert time.monotonic() - began < 10
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10


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
