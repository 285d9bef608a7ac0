#!/usr/bin/env python3
"""Install a wheel for each Python that pyproject.toml declares and that this machine has, and run the main commands.

It names the declared Pythons that are not here, and fails without the oldest or the newest: those two decide. It is run
by a Python that has pip, which installs for all of them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
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


def main(wheel: str) -> int:
    """Try a wheel, and return 1 if a Python fails or one of the two that decide is missing."""
    declared = declared_versions((ROOT / "pyproject.toml").read_text())
    here = {version: path for version in declared if (path := interpreter(version)) is not None}
    problems = [
        f"Python {version} is declared and not here: it is one of the two that decide"
        for version in (declared[0], declared[-1])
        if version not in here
    ]
    outputs: dict[str, dict[tuple[str, ...], str]] = {}
    for version, path in here.items():
        with tempfile.TemporaryDirectory() as scratch:
            installed = _installed(path, Path(scratch), wheel)
            outputs[version] = {}
            for words, code in COMMANDS:
                done = _ran(installed, "-m", "egmctl", *words, cwd=scratch)
                outputs[version][words] = done.stdout
                if "Traceback" in done.stderr or "unexpected" in done.stderr or code not in (None, done.returncode):
                    problems.append(f"Python {version}: egmctl {' '.join(words)}: {done.returncode}: {done.stderr}")
            done = _ran(installed, str(PROGRAM), str(RUN), cwd=scratch)
            if done.returncode:
                problems.append(f"Python {version}: a program that imports egmctl: {done.stderr}")
        print(f"Python {version} ({path}): {len(COMMANDS)} commands and a program")
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


def interpreter(version: str) -> Path | None:
    """Return the Python of a version that runs here: this one, one of the PATH, or one of pyenv or uv."""
    for path in _candidates(version):
        try:
            said = _ran(path, "-c", "import sys, ensurepip; print('%d.%d' % sys.version_info[:2])")
        except OSError:
            continue
        if said.stdout.strip() == version:
            return path
    return None


def _candidates(version: str) -> Iterator[Path]:
    yield Path(sys.executable)
    for folder in os.get_exec_path():
        yield Path(folder) / f"python{version}"
    home = Path.home()
    pyenv = Path(os.environ.get("PYENV_ROOT", home / ".pyenv"))
    yield from sorted(pyenv.glob(f"versions/{version}.*/bin/python3"))
    yield from sorted((home / ".local/share/uv/python").glob(f"cpython-{version}.*/bin/python3"))


def _installed(python: Path, scratch: Path, wheel: str) -> Path:
    """Return the Python of a new environment that has the wheel."""
    environment = scratch / "environment"
    # A pip for each of them, and bytecode of what no command imports, take three quarters of the time.
    subprocess.run([python, "-m", "venv", "--without-pip", environment], check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--python", str(environment)]
    # NVRTC, most of an installation, is only for measuring.
    subprocess.run([*pip, "install", "--no-compile", f"{Path(wheel).resolve()}[fleet]"], check=True)
    return environment / "bin" / "python"


def _ran(python: Path, *words: str, cwd: str = "/") -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "EGMCTL_"))}
    return subprocess.run(
        [python, *words], cwd=cwd, env=environment, capture_output=True, encoding="utf-8", timeout=300, check=False
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
