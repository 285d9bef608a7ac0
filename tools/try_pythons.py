#!/usr/bin/env python3
"""Install a wheel for each Python that pyproject.toml declares and that is here, and run the main commands.

    try_pythons.py WHEEL [ROOT]     ROOT is the root folder of another system, whose Python is here too (as root)

It names the declared Pythons that are not here, and fails without the oldest or the newest: those two decide. It is run
by a Python that has pip, which installs for all of them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUN = ROOT / "tests" / "data" / "runs" / "idle.json.gz"
PROGRAM = ROOT / "tests" / "packaging" / "user_program.py"

COMMANDS = (
    (("--version",), 0),
    (("topo", "--machine", "gb200-tray"), 0),
    (("doctor", "--machine", "h200-links-down"), 1),
    (("bench", "--dry-run", "--machine", "gb200-tray"), 0),
    (("show", str(RUN)), 0),
    (("topo",), None),
    (("fleet", "--help"), 0),
)
"""The commands and their exit codes; ``None`` for one that depends on this node. Their output is the same everywhere,
except of ``--version`` and ``--help``, which show versions of libraries and what typer makes of the options."""
SHOWS_VERSIONS = ("--version", "--help")

PLATFORMS = [f"manylinux_2_{minor}_{os.uname().machine}" for minor in (17, 24, 26, 27, 28, 34)]
"""The wheels that a system of today can use, for a Python that does not install for itself."""
PACKAGES = "/srv/egmctl-packages"
"""The folder in the root folder of another system that the wheel is installed in."""


@dataclass(frozen=True)
class Python:
    """A Python of this machine, or of another system."""

    path: Path
    root: Path | None = None
    """The root folder of the other system."""

    def run(self, words: Sequence[str], cwd: str = "/") -> subprocess.CompletedProcess[str]:
        """Run it, in the other system with this machine's /proc, /sys and /dev."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "EGMCTL_"))}
        command = [str(self.path), *words]
        if self.root is not None:
            environment["PYTHONPATH"] = PACKAGES
            enter = 'for place in proc sys dev; do mount --rbind "/$place" "$0/$place"; done; exec chroot "$0" "$@"'
            command = ["unshare", "--mount", "sh", "-ec", enter, str(self.root), *command]
        return subprocess.run(
            command, cwd=cwd, env=environment, capture_output=True, encoding="utf-8", timeout=300, check=False
        )


def main(wheel: str, root: str | None = None) -> int:
    """Try a wheel, and return 1 if a Python fails or one of the two that decide is missing."""
    declared = declared_versions((ROOT / "pyproject.toml").read_text())
    system = Path(root).resolve() if root else None
    here = {version: python for version in declared if (python := interpreter(version, system)) is not None}
    problems = [
        f"Python {version} is declared and not here: it is one of the two that decide"
        for version in (declared[0], declared[-1])
        if version not in here
    ]
    outputs: dict[str, dict[tuple[str, ...], str]] = {}
    for version, python in here.items():
        with tempfile.TemporaryDirectory() as scratch:
            installed = _installed(python, version, Path(scratch), wheel)
            place = scratch if python.root is None else "/"
            outputs[version] = {}
            for words, code in COMMANDS:
                done = installed.run(["-m", "egmctl", *words], cwd=place)
                outputs[version][words] = done.stdout
                if "Traceback" in done.stderr or "unexpected" in done.stderr or code not in (None, done.returncode):
                    problems.append(f"Python {version}: egmctl {' '.join(words)}: {done.returncode}: {done.stderr}")
            done = installed.run([str(PROGRAM), str(RUN)], cwd=place)
            if done.returncode:
                problems.append(f"Python {version}: a program that imports egmctl: {done.stderr}")
        print(f"Python {version} ({python.root or ''}{python.path}): {len(COMMANDS)} commands and a program")
    for version, by_words in outputs.items():
        problems += [
            f"Python {version}: egmctl {' '.join(words)} answers otherwise than on {next(iter(outputs))}"
            for words, text in by_words.items()
            if words[-1] not in SHOWS_VERSIONS and text != next(iter(outputs.values()))[words]
        ]
    print(f"declared and not here: {', '.join(version for version in declared if version not in here) or 'none'}")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


def declared_versions(project: str) -> list[str]:
    """Return the versions of the classifiers, the oldest first."""
    versions = re.findall(r'"Programming Language :: Python :: (3\.[0-9]+)"', project)
    return sorted(versions, key=lambda version: int(version.partition(".")[2]))


def interpreter(version: str, system: Path | None = None) -> Python | None:
    """Return the Python of a version: this one, one of the PATH, of pyenv or uv, or that of another system."""
    for python in _candidates(version, system):
        # A Python of this machine makes an environment of its own.
        modules = "sys, ensurepip" if python.root is None else "sys"
        try:
            said = python.run(["-c", f"import {modules}; print('%d.%d' % sys.version_info[:2])"])
        except OSError:
            continue
        if said.stdout.strip() == version:
            return python
    return None


def _candidates(version: str, system: Path | None) -> Iterator[Python]:
    yield Python(Path(sys.executable))
    for folder in os.get_exec_path():
        yield Python(Path(folder) / f"python{version}")
    home = Path.home()
    pyenv = Path(os.environ.get("PYENV_ROOT", home / ".pyenv"))
    yield from map(Python, sorted(pyenv.glob(f"versions/{version}.*/bin/python3")))
    yield from map(Python, sorted((home / ".local/share/uv/python").glob(f"cpython-{version}.*/bin/python3")))
    if system is not None and (system / f"usr/bin/python{version}").exists():
        yield Python(Path(f"/usr/bin/python{version}"), system)


def _installed(python: Python, version: str, scratch: Path, wheel: str) -> Python:
    """Return the Python that has the wheel: that of a new environment, or of the other system."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    # NVRTC, most of an installation, is only for measuring.
    install = ["install", "--no-compile", f"{Path(wheel).resolve()}[fleet]"]
    if python.root is not None:
        packages = python.root / PACKAGES.lstrip("/")
        shutil.rmtree(packages, ignore_errors=True)
        platforms = [word for platform in PLATFORMS for word in ("--platform", platform)]
        target = ["--target", str(packages), "--python-version", version, "--only-binary", ":all:", *platforms]
        subprocess.run([*pip, *install, *target], check=True)
        for file in (RUN, PROGRAM):
            inside = python.root / str(file).lstrip("/")
            inside.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, inside)
        return python
    environment = scratch / "environment"
    # A pip for each of them, and bytecode of what no command imports, take three quarters of the time.
    subprocess.run([python.path, "-m", "venv", "--without-pip", environment], check=True)
    subprocess.run([*pip, "--python", str(environment), *install], check=True)
    return replace(python, path=environment / "bin" / "python")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
