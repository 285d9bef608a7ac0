#!/usr/bin/env python3
"""Test the files of ``make dist``: install each in clean systems without network, run it as root and user, remove it.

Each artefact must give the same results as the wheel beside it in this virtual environment: the same text for recorded
machines, and the same checks and measurements with the same outcomes on the fake driver. An exit code is not enough: an
artefact that cannot start its child processes runs half of the checks and exits with 0. An overlay shows what an
installation leaves behind. First, all files are checked: architecture, requirements, byte code (proof/portable.py).

Needs root, debootstrap, cc and, for an rpm, rpm2archive. Another architecture than this machine's also needs
qemu-user-static, mmdebstrap and a cross compiler, and is slow. ``make prove`` tests this machine's architecture;
options select some of the files, or another architecture.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from artifacts import words
from proof.portable import faults, unpack
from proof.systems import EMULATED, NODE, SYSTEMS, Inside, emulate, left_in, make_root, overlay

ROOT = Path(__file__).resolve().parent.parent
RECORDED = "hgx-h200x4"
FORMS = ("folder", "deb", "rpm")
USERS = {"root": 0, "user": 1000}
SMALL = ("--gpus", "0,1", "--numa", "0", "--size", "1M", "--samples", "1", "--copies", "1", "--json")
COMMANDS = {
    "version": ("--version",),
    "topo recorded": ("topo", "--machine", RECORDED),
    "doctor recorded": ("doctor", "--machine", RECORDED),
}
ON_THE_NODE = {
    "topo": ("topo",),
    "doctor --active": ("doctor", "--active", "--gpus", "0,1", "--json"),
    "bench": ("bench", *SMALL),
}
"""The commands that run on the fake node."""


@dataclass
class Artefact:
    """One file, with the shell commands that install and remove it as root, and its command."""

    form: str
    file: Path
    install: str
    remove: str
    command: str


@dataclass
class Tally:
    """Checks that passed and checks that failed."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)

    def check(self, what: str, holds: bool, otherwise: str = "") -> None:
        """Count one check, and print it if it fails."""
        if holds:
            self.passed += 1
        else:
            self.failed.append(what)
            print(f"  FAILED {what}: {otherwise}", flush=True)


def main() -> None:
    """Test what the command line selects; exit with 1 if a check fails."""
    # SystemExit also ends the processes that run in a system, and unmounts the layers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    options = _options()
    dist, cache = Path(options.dist).resolve(), Path(options.cache).resolve()
    native = options.arch == os.uname().machine
    tally = Tally()
    built = list(artefacts(dist, options.form, options.arch))
    for artefact in built:
        with tempfile.TemporaryDirectory() as place:
            wrong = list(faults(unpack(artefact.file, Path(place)), options.arch))
        tally.check(f"{options.arch} {artefact.form}: needs what a node has", not wrong, "; ".join(wrong[:5]))
    if why := emulate(options.arch):
        print(f"{options.arch} was looked at and not run: {why}")
        _end(tally)
    (wheel,) = dist.glob("egmctl-*.whl")
    with tempfile.TemporaryDirectory() as place, zipfile.ZipFile(wheel) as packed, contextlib.ExitStack() as after:
        packed.extractall(place)
        after.callback(shutil.rmtree, NODE)
        reference = Reference(Path(place), _fake_node())
        if not native:
            _put_libraries(Path(reference.node["LD_LIBRARY_PATH"]), f"{options.arch}-linux-gnu-gcc")
        for name in options.system or (SYSTEMS if native else EMULATED):
            root = make_root(name, options.arch, cache)
            for artefact in built:
                if artefact.form in SYSTEMS[name].forms:
                    label = f"{name} {options.arch} {artefact.form}"
                    prove(tally, label, root, artefact, reference, on_node=SYSTEMS[name].fake_node, native=native)
    _end(tally)


class Reference:
    """The wheel in this virtual environment, with which artefacts are compared.

    Parameters
    ----------
    place
        The folder of the unpacked wheel.
    node
        The environment of the fake node.
    """

    def __init__(self, place: Path, node: dict[str, str]) -> None:
        self._place, self.node = place, node
        self._command = [sys.executable, "-m", "egmctl"]
        self.expected = {
            name: outcome(name, self._run([*self._command, *words], node if name in ON_THE_NODE else {}))
            for name, words in {**COMMANDS, **ON_THE_NODE}.items()
        }
        """The expected outcome of each command."""

    def _run(self, command: Sequence[str], more: dict[str, str]) -> subprocess.CompletedProcess[str]:
        Path(NODE, "calls.log").unlink(missing_ok=True)
        env = {**os.environ, **more}
        return subprocess.run(
            command, env=env, cwd=self._place, capture_output=True, text=True, check=False, timeout=600
        )


def artefacts(dist: Path, forms: Sequence[str], arch: str) -> Iterator[Artefact]:
    """Yield the artefacts of an architecture that are in a folder."""
    for path in sorted(dist.iterdir()):
        if arch not in path.name:
            continue
        inside, name = f"/artefacts/{path.name}", path.name.removesuffix(".tar.xz")
        if path.name.endswith(".tar.xz"):
            # As on a shared file system: unpacked elsewhere, read-only here.
            unpacked = f"/shared/{name}"
            found = Artefact("folder", path, f"test -x {unpacked}/bin/egmctl", "true", f"{unpacked}/bin/egmctl")
        elif path.suffix == ".deb":
            # In a root that was only unpacked, dpkg does not know which packages are installed.
            force = "" if arch == os.uname().machine else "--force-depends --force-architecture "
            install = f"dpkg {force}--install {inside}"
            found = Artefact("deb", path, install, "dpkg --purge egmctl", "egmctl")
        elif path.suffix == ".rpm":
            install = f"rpm --dbpath /rpmdb --nodeps --install {inside}"
            found = Artefact("rpm", path, install, "rpm --dbpath /rpmdb --nodeps --erase egmctl", "egmctl")
        else:
            continue
        if found.form in forms:
            yield found


def prove(
    tally: Tally, label: str, root: Path, artefact: Artefact, reference: Reference, *, on_node: bool, native: bool
) -> None:
    """Install one artefact in one system, run it there, and remove it.

    Parameters
    ----------
    on_node
        Whether the fake node can be used there.
    native
        Whether it runs without emulation, which changes some system calls.
    """
    began = time.monotonic()
    with overlay(root) as (merged, written):
        shared = merged / "shared"
        shared.mkdir()
        if artefact.form == "folder":
            subprocess.run(("tar", "-xf", artefact.file, "-C", shared, "--no-same-owner"), check=True)
        inside = Inside(merged, artefact.file.parent)
        kept = left_in(written)
        done = inside.run(artefact.install, 0, {})
        tally.check(f"{label}: installs", done.returncode == 0, done.stderr[-300:])
        if artefact.form == "rpm":
            lacking = unmet(inside, artefact)
            tally.check(f"{label}: what it requires is there", not lacking, " ".join(lacking))
        for user, number in USERS.items():
            for name, words in {**COMMANDS, **(ON_THE_NODE if on_node else {})}.items():
                done = inside.run(
                    shlex.join([artefact.command, *words]), number, reference.node if name in ON_THE_NODE else {}
                )
                result, expected = outcome(name, done), reference.expected[name]
                if not native:
                    result, expected = emulated(result), emulated(expected)
                tally.check(f"{label}: {name} as {user}", result == expected, _difference(expected, result, done))
        if artefact.form in ("deb", "rpm"):
            links = "test -e /usr/share/bash-completion/completions/egmctl -a -s /usr/share/doc/egmctl/guide/doctor.md"
            tally.check(f"{label}: guide and completion", inside.run(links, 0, {}).returncode == 0)
        done = inside.run(f"{artefact.command} docs installing", 1000, {})
        page = (ROOT / "docs/installing.md").read_text().partition("\n")[0]
        tally.check(f"{label}: egmctl docs", done.stdout.partition("\n")[0] == page, done.stderr[-300:])
        if artefact.form == "folder" and native and on_node:
            for command in guide_commands():
                node = reference.node if "egmctl " in command else {}
                done = inside.run(f"cd /artefacts && {command}", 1000, node)
                tally.check(f"{label}: {command}", done.returncode == 0, done.stdout + done.stderr)
            inside.run("rm -rf ~/egmctl-*", 1000, {})
        done = inside.run(artefact.remove, 0, {})
        left = sorted(left_in(written) - kept)
        tally.check(f"{label}: leaves nothing", done.returncode == 0 and not left, f"{done.stderr[-200:]} {left[:5]}")
    print(f"{label}: {artefact.file.stat().st_size / 1e6:.0f} MB, {time.monotonic() - began:.0f} s", flush=True)


def guide_commands() -> list[str]:
    """Return the commands in docs/installing.md for an installation from a stick, except the one that measures."""
    text = (ROOT / "docs/installing.md").read_text().partition("## From a file on a stick")[2]
    lines = text.partition("```sh\n")[2].partition("```")[0].splitlines()
    commands = [line.partition(" #")[0].rstrip() for line in lines]
    return [command for command in commands if not command.startswith("cd ") and "bringup" not in command]


def unmet(inside: Inside, artefact: Artefact) -> list[str]:
    """Return the requirements of an rpm that no library of the system provides, by rpm's own analysis of the files.

    rpm itself cannot check them, because the systems here have no database of rpms.
    """
    query = f"rpm --dbpath /rpmdb --query --package --requires /artefacts/{artefact.file.name}"
    asked = inside.run(query, 0, {}).stdout.splitlines()
    libraries = "ls -d /lib*/lib*.so* /lib*/*/lib*.so* /usr/lib*/lib*.so* /usr/lib*/*/lib*.so* 2>/dev/null"
    provided = set(inside.run(f"{libraries} | /usr/lib/rpm/elfdeps --provides", 0, {}).stdout.splitlines())
    required = [name for name in asked if not name.startswith("rpmlib(")]
    return [name for name in required if name not in provided] if required else ["nothing"]


UNEMULATED = ("numa.mempolicy-syscalls", "ipc.vmm-active", "ipc.pool-active", "ipc.event-active", "ipc.pidfd-active")
"""The checks that use system calls which qemu-user lacks or emulates incorrectly, such as mbind(2), get_mempolicy(2)
and pidfd_getfd(2)."""


def emulated(result: Any) -> Any:
    """Return an outcome without the checks of :data:`UNEMULATED` and without the exit code, which depends on them."""
    _, found = result
    if not isinstance(found, dict):
        return result
    return None, {key: number for key, number in found.items() if key[0] not in UNEMULATED}


def outcome(name: str, done: subprocess.CompletedProcess[str]) -> Any:
    """Return the exit code and the output to compare: the text, or the count of each status of each check or case."""
    if name == "version":
        return done.returncode, done.stdout.splitlines()[:1]
    if "--json" not in ON_THE_NODE.get(name, ()):
        return done.returncode, done.stdout
    try:
        result = json.loads(done.stdout)["result"]
    except (ValueError, KeyError, TypeError):
        return done.returncode, f"no result: {done.stderr[-300:]}"
    if name == "bench":
        # Fake bandwidths depend on this machine, so an unstable result is not the artefact's fault.
        status = {"unstable": "ok"}
        counts = Counter((m["case"], status.get(m["status"], m["status"])) for m in result["measurements"])
    else:
        counts = Counter((finding["check"], finding["status"]) for finding in result["findings"])
    return done.returncode, dict(counts)


def _fake_node() -> dict[str, str]:
    """Create the fake node below :data:`NODE` and return its environment."""
    sys.path.insert(0, str(ROOT))
    from tests.fake.node import FakeNode

    place = Path(NODE)
    place.mkdir(parents=True)
    node = FakeNode("gb200-tray", place)
    environment = {name: value for name, value in node.environment().items() if value is not None}
    folder = Path(environment["LD_LIBRARY_PATH"].split(os.pathsep)[0])
    _put_libraries(folder, "cc")
    for path in (place, *place.rglob("*")):
        path.chmod(0o777 if path.is_dir() else 0o666)
    return {**environment, "LD_LIBRARY_PATH": str(folder)}


def _put_libraries(folder: Path, compiler: str) -> None:
    """Compile the fake driver's libraries into a folder, replacing the libraries or links of the same names there."""
    from tests.fake.build import compile_library

    for library in list(folder.iterdir()):
        library.unlink()
        compile_library(library.name, library, compiler=compiler)


def _difference(expected: Any, got: Any, done: subprocess.CompletedProcess[str]) -> str:
    if isinstance(expected[1], dict) and isinstance(got[1], dict):
        keys = [key for key in {**expected[1], **got[1]} if expected[1].get(key) != got[1].get(key)]
        return f"exit {got[0]}; " + "; ".join(
            f"{key}: {got[1].get(key)} for {expected[1].get(key)}" for key in keys[:6]
        )
    return f"exit {got[0]} for {expected[0]}: {done.stderr[-300:]}{str(got[1])[:200]}"


def _end(tally: Tally) -> NoReturn:
    print(f"{tally.passed} passed, {len(tally.failed)} failed")
    sys.exit(1 if tally.failed or not tally.passed else 0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Install and run what make dist built in clean systems.")
    parser.add_argument("--arch", choices=("x86_64", "aarch64"), default=os.uname().machine, help="this machine's")
    parser.add_argument(
        "--system", type=words(tuple(SYSTEMS)), help=f"{','.join(SYSTEMS)} (all; emulated: {','.join(EMULATED)})"
    )
    parser.add_argument("--form", type=words(FORMS), default=FORMS)
    parser.add_argument("--dist", default=ROOT / "dist")
    parser.add_argument("--cache", default=ROOT / "build" / "dist")
    return parser.parse_args()


if __name__ == "__main__":
    main()
