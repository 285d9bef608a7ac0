#!/usr/bin/env python3
"""Prove what ``make dist`` built: install it in clean systems without network, run it as root and as a user, remove it.

Every artefact has to answer as the wheel beside it does in this virtual environment: the same text of recorded
machines, and on the fake driver the same checks and measurements with the same outcomes. Exit codes do not tell: what
cannot start its child processes ends with 0 and half of the checks. What an installation leaves is seen in an overlay.

Needs root, debootstrap and cc. ``make prove`` runs all; with options a part.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SYSTEMS = {
    "debian12": "bookworm",
    "debian13": "trixie",
    "ubuntu22.04": "jammy",
    "ubuntu24.04": "noble",
}
RECORDED = "hgx-h200x4"
NODE = "/srv/egmctl-proof"
"""Where the fake node is, in each system: the libraries' path is in its environment."""

USERS = {"root": 0, "user": 1000}
SMALL = ("--gpus", "0,1", "--numa", "0", "--size", "1M", "--samples", "1", "--copies", "1", "--json")
COMMANDS = {
    "version": ("--version",),
    "topo recorded": ("topo", "--machine", RECORDED),
    "doctor recorded": ("doctor", "--machine", RECORDED),
    "topo": ("topo",),
    "doctor --active": ("doctor", "--active", "--gpus", "0,1", "--json"),
    "bench": ("bench", *SMALL),
}
"""What is run; those from ``topo`` on run on the fake node."""


@dataclass
class Artefact:
    """One file, and how it is brought onto a system: shell commands, run there as root."""

    form: str
    file: Path
    install: str
    remove: str
    command: str
    needs_python: bool = False


@dataclass
class Tally:
    """What held and what did not."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)

    def check(self, what: str, holds: bool, otherwise: str = "") -> None:
        """Count one check, and print it where it fails."""
        if holds:
            self.passed += 1
        else:
            self.failed.append(what)
            print(f"  FAILED {what}: {otherwise}", flush=True)


def main() -> None:
    """Prove what the command line asks for; exit 1 if anything does not hold."""
    asked = _arguments()
    tally = Tally()
    node = _fake_node()
    here = [sys.executable, "-m", "egmctl"]
    (wheel,) = Path(asked.dist).resolve().glob("egmctl-*.whl")
    with tempfile.TemporaryDirectory() as unpacked, zipfile.ZipFile(wheel) as packed:
        packed.extractall(unpacked)

        def reference(words: Sequence[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
            return _run([*here, *words], environment, at=Path(unpacked))

        def reference_start_up() -> float:
            return start_up(lambda script: _run(["sh", "-c", script], {}, at=Path(unpacked)), shlex.join([*here, "-V"]))

        expected = {name: outcome(name, reference(words, _environment(node, name))) for name, words in COMMANDS.items()}
        print(f"virtual environment: {_words(expected)}", flush=True)
        for system in asked.system:
            began = time.monotonic()
            root = _root(SYSTEMS[system], Path(asked.cache).resolve())
            print(f"{system}: root there after {time.monotonic() - began:.0f} s", flush=True)
            for artefact in artefacts(Path(asked.dist).resolve(), asked.form):
                prove(tally, system, root, artefact, node, expected, reference_start_up)
    print(f"{tally.passed} passed, {len(tally.failed)} failed")
    sys.exit(1 if tally.failed or not tally.passed else 0)


def artefacts(dist: Path, forms: Sequence[str]) -> Iterator[Artefact]:
    """Yield the artefacts of this machine's architecture that are there."""
    arch = os.uname().machine
    for path in sorted(dist.iterdir()):
        if arch not in path.name:
            continue
        inside, name = f"/artefacts/{path.name}", path.name.removesuffix(".tar.xz")
        if path.name.endswith(".tar.xz"):
            form = "slim" if name.endswith("-slim") else "folder"
            # As on a shared file system: unpacked elsewhere, and read-only here.
            unpacked = f"/shared/{name}"
            found = Artefact(form, path, f"test -x {unpacked}/bin/egmctl", "true", f"{unpacked}/bin/egmctl")
        elif path.suffix == ".deb":
            found = Artefact("deb", path, f"dpkg --install {inside}", "dpkg --purge egmctl", "egmctl")
        elif path.suffix == ".rpm":
            install = f"rpm --dbpath /rpmdb --nodeps --install {inside}"
            found = Artefact("rpm", path, install, "rpm --dbpath /rpmdb --nodeps --erase egmctl", "egmctl")
        elif path.suffix == ".pex":
            found = Artefact("pex", path, "true", "true", f"/usr/bin/python3 {inside}", needs_python=True)
        else:
            continue
        if found.form in forms:
            yield found


def prove(
    tally: Tally,
    system: str,
    root: Path,
    artefact: Artefact,
    node: dict[str, str],
    expected: dict[str, Any],
    reference_start_up: Callable[[], float],
) -> None:
    """Install one artefact in one system, run it there, remove it."""
    label = f"{system} {artefact.form}"
    began = time.monotonic()
    with _overlay(root) as (merged, written):
        shared = merged / "shared"
        shared.mkdir()
        if artefact.file.name.endswith(".tar.xz"):
            subprocess.run(("tar", "-xf", artefact.file, "-C", shared, "--no-same-owner"), check=True)
        kept = _state(written)
        inside = Inside(merged, artefact.file.parent)
        done = inside.run(artefact.install, 0, {})
        tally.check(f"{label}: installs", done.returncode == 0, done.stderr[-300:])
        seconds = time.monotonic() - began
        for user, number in USERS.items():
            for name, words in COMMANDS.items():
                began = time.monotonic()
                done = inside.run(f"{artefact.command} {' '.join(words)}", number, _environment(node, name))
                got = outcome(name, done)
                tally.check(f"{label}: {name} as {user}", got == expected[name], _difference(expected[name], got, done))
        took = start_up(lambda script: inside.run(script, 1000, {}), f"{artefact.command} --version")
        base = reference_start_up()
        tally.check(f"{label}: starts within 1.3 times", took < 1.3 * base, f"{took:.3f} s for {base:.3f} s")
        if artefact.form in ("deb", "rpm"):
            links = "test -e /usr/share/bash-completion/completions/egmctl -a -s /usr/share/doc/egmctl/guide/doctor.md"
            tally.check(f"{label}: guide and completion", inside.run(links, 0, {}).returncode == 0)
        done = inside.run(artefact.remove, 0, {})
        left = sorted(_state(written) - kept)
        tally.check(f"{label}: leaves nothing", done.returncode == 0 and not left, f"{done.stderr[-200:]} {left[:5]}")
    size = artefact.file.stat().st_size
    print(
        f"{label}: {size / 1e6:.0f} MB, installed after {seconds:.1f} s, --version {1000 * took:.0f} ms of CPU"
        f" (virtual environment {1000 * base:.0f})",
        flush=True,
    )


def outcome(name: str, done: subprocess.CompletedProcess[str]) -> Any:
    """Return what has to be the same: the text, or how often each check or case had which status."""
    if name == "version":
        return done.returncode, done.stdout.splitlines()[:1]
    if "--json" not in COMMANDS[name]:
        return done.returncode, done.stdout
    try:
        result = json.loads(done.stdout)["result"]
    except (ValueError, KeyError, TypeError):
        return done.returncode, f"no result: {done.stderr[-300:]}"
    if name == "bench":
        # Fake bandwidths are this machine's: whether a result was stable is not the artefact's doing.
        status = {"unstable": "ok"}
        counts = Counter((one["case"], status.get(one["status"], one["status"])) for one in result["measurements"])
    else:
        counts = Counter((one["check"], one["status"]) for one in result["findings"])
    return done.returncode, dict(counts)


def start_up(run: Callable[[str], subprocess.CompletedProcess[str]], command: str) -> float:
    """Return the CPU seconds of one of ten runs: of what else is at work on the machine they tell nothing."""
    loop = f"for i in 1 2 3 4 5 6 7 8 9 10; do {command} >/dev/null; done; times"
    minutes_seconds = re.findall(r"([0-9]+)m([0-9.]+)s", run(loop).stdout)
    # The shell's own come first, then those of what it ran: user and system.
    return sum(60 * int(minutes) + float(seconds) for minutes, seconds in minutes_seconds[2:]) / 10


class Inside:
    """A system's root, in which commands run without network, with processes and mounts of their own."""

    def __init__(self, root: Path, files: Path) -> None:
        self._root = root
        self._mounts = "\n".join(
            (
                "set -e",
                f"cd {root}",
                "mkdir -p artefacts home/u tmp dev/shm",
                "mount -t proc proc proc",
                "mount --rbind /dev dev",
                f"mount --bind {files} artefacts && mount -o remount,bind,ro artefacts",
                f"mount --bind {NODE} .{NODE}",
                "mount --bind shared shared && mount -o remount,bind,ro shared",
                'exec chroot . /usr/bin/setpriv --reuid "$1" --regid "$1" --clear-groups sh -c "$2"',
            )
        )
        (root / NODE.lstrip("/")).mkdir(parents=True, exist_ok=True)
        for place in ("home/u", "artefacts"):
            (root / place).mkdir(parents=True, exist_ok=True)
        os.chown(root / "home/u", 1000, 1000)

    def run(self, command: str, user: int, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a shell command there."""
        outside = ["unshare", "--net", "--mount", "--pid", "--fork", "sh", "-c", self._mounts, "sh", str(user), command]
        home = "/root" if user == 0 else "/home/u"
        plain = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": home, "LC_ALL": "C.UTF-8"}
        return _run(outside, plain | environment, clean=True)


@contextlib.contextmanager
def _overlay(root: Path) -> Iterator[tuple[Path, Path]]:
    """Lay an empty layer over a system's root; yield the whole, and the layer."""
    with tempfile.TemporaryDirectory(prefix="egmctl-overlay-") as scratch:
        upper, work, merged = (Path(scratch, name) for name in ("upper", "work", "merged"))
        for path in (upper, work, merged):
            path.mkdir()
        layers = f"lowerdir={root},upperdir={upper},workdir={work}"
        subprocess.run(("mount", "-t", "overlay", "overlay", "-o", layers, merged), check=True)
        try:
            yield merged, upper
        finally:
            subprocess.run(("umount", merged), check=True)


def _state(layer: Path) -> set[str]:
    """Return what the layer holds, but for users' caches and journals and the package manager's notes."""
    own = (
        "home/u/.cache",
        "root/.cache",
        "home/u/.local/state/egmctl",
        "root/.local/state/egmctl",
        "var/lib/dpkg",
        "var/log",
        "var/cache",
        "rpmdb",
        "tmp",
    )
    found = {path.relative_to(layer).as_posix() for path in layer.rglob("*")}
    # A folder that is only there since something below it was written is in the layer, too.
    return {name for name in found if not name.startswith(own) and not (layer / name).is_dir()}


def _root(suite: str, cache: Path) -> Path:
    """Return the root of a system as its makers publish it, with Python (for the pex) and rpm; made now or before."""
    root = cache / "roots" / suite
    if root.exists():
        return root
    root.parent.mkdir(parents=True, exist_ok=True)
    new = root.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    # No key of Ubuntu's is in Debian, and the other way round: what runs in these roots has no network.
    command = ["debootstrap", "--variant=minbase", "--no-check-gpg", "--include=python3,rpm"]
    if suite in ("jammy", "noble"):
        command.append("--components=main,universe")
    done = subprocess.run([*command, suite, new], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"debootstrap {suite} ended with {done.returncode}:\n{done.stdout[-1000:]}")
    new.rename(root)
    return root


def _fake_node() -> dict[str, str]:
    """Make the fake node below :data:`NODE` and return its environment."""
    sys.path.insert(0, str(ROOT))
    from tests.fake.node import FakeNode

    place = Path(NODE)
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    node = FakeNode("gb200-nvl4", place)
    environment = {name: value for name, value in node.environment().items() if value is not None}
    folder = Path(environment["LD_LIBRARY_PATH"].split(os.pathsep)[0])
    for library in folder.iterdir():
        real = library.resolve()
        library.unlink()
        shutil.copy(real, library)
    for path in (place, *place.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    return {**environment, "LD_LIBRARY_PATH": str(folder)}


def _environment(node: dict[str, str], name: str) -> dict[str, str]:
    return node if list(COMMANDS).index(name) >= list(COMMANDS).index("topo") else {}


def _run(
    command: Sequence[str], environment: dict[str, str], *, clean: bool = False, at: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    Path(NODE, "calls.log").unlink(missing_ok=True)
    inherited = {} if clean else dict(os.environ)
    return subprocess.run(
        command, env={**inherited, **environment}, cwd=at, capture_output=True, text=True, check=False, timeout=600
    )


def _difference(expected: Any, got: Any, done: subprocess.CompletedProcess[str]) -> str:
    if isinstance(expected[1], dict) and isinstance(got[1], dict):
        keys = [key for key in {**expected[1], **got[1]} if expected[1].get(key) != got[1].get(key)]
        return f"exit {got[0]}; " + "; ".join(
            f"{key}: {got[1].get(key)} for {expected[1].get(key)}" for key in keys[:6]
        )
    return f"exit {got[0]} for {expected[0]}: {done.stderr[-300:]}{str(got[1])[:200]}"


def _words(expected: dict[str, Any]) -> str:
    return "; ".join(f"{name}: {sum(it[1].values())}" for name, it in expected.items() if isinstance(it[1], dict))


def _arguments() -> argparse.Namespace:
    def words(text: str) -> list[str]:
        return text.split(",")

    parser = argparse.ArgumentParser(description="Install and run what make dist built in clean systems.")
    parser.add_argument("--system", type=words, default=list(SYSTEMS), help=f"{','.join(SYSTEMS)} (all)")
    parser.add_argument("--form", type=words, default=["folder", "slim", "deb", "rpm", "pex"])
    parser.add_argument("--dist", default=ROOT / "dist")
    parser.add_argument("--cache", default=ROOT / "build" / "dist")
    return parser.parse_args()


if __name__ == "__main__":
    main()
