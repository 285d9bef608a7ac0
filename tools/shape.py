"""How much there is of egmctl, and how much of it one has to read: two or more checkouts beside each other.

Lines and files are those of ``egmctl/**/*.py``. A function counts once however often it runs; comprehensions, lambdas
and class bodies are parts of what they stand in, and what runs when a module is imported is no function. A file counts
where a function of it runs. What runs is seen by ``sys.setprofile`` in the command and, by a ``sitecustomize`` on their
path, in its children, each told by whether it holds a GPU's context (the worker) or reads facts:

* one bench: ``bench --case device_to_device_memcpy_write_ce --gpus 0,1`` on the fake driver, once with text and once
  with HTML output, from start to end (it needs a C compiler);
* one plan: all that runs inside ``make_plan`` in ``bench --dry-run`` of that case on a machine that ships.

A commit is checked out into a temporary worktree, and runs with the interpreter and libraries of this one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CASE = ("bench", "--case", "device_to_device_memcpy_write_ce", "--gpus", "0,1")
SMALL = ("--size", "1M", "--samples", "2", "--copies", "2")
MACHINE = "gb200-nvl72"
"""One that every commit ships under this name."""
PLANS = "make_plan"

WATCH = """
import os, sys, threading
folder, package, inside = os.environ["SHAPE_OUT"], os.environ["SHAPE_PACKAGE"], os.environ["SHAPE_INSIDE"]
seen, depth = set(), 0
out = os.open(os.path.join(folder, f"{os.getpid()}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

def watch(frame, event, _):
    global depth
    code = frame.f_code
    if inside and code.co_name == inside and code.co_filename.startswith(package):
        depth += (event == "call") - (event == "return")
    if event != "call" or code in seen or (inside and not depth):
        return
    seen.add(code)
    name = getattr(code, "co_qualname", code.co_name)
    if code.co_filename.startswith(package) and "<" not in name.replace(".<locals>", ""):
        if not code.co_flags & 0x2 or code.co_name == "<module>":
            return  # a class body or a module: neither has fast locals
        os.write(out, f"{code.co_filename[len(package):]} {name}\\n".encode())

threading.setprofile(watch)
sys.setprofile(watch)
"""
"""The ``sitecustomize`` of every process: it writes each function as it is first called. Children just end."""

ON_FAKE = """
import json, sys
from pathlib import Path
from tests.fake.node import FakeNode
print(json.dumps(FakeNode(sys.argv[1], Path(sys.argv[2])).environment()))
"""


@dataclass(frozen=True)
class Executed:
    """The functions that ran, each ``"file name"``, by kind of process."""

    by_process: Mapping[str, frozenset[str]]

    def functions(self, process: str) -> int:
        """Return how many functions ran in this kind of process."""
        return len(self.by_process.get(process, ()))

    def files(self, *processes: str) -> int:
        """Return how many files have a function that ran in one of these kinds of processes."""
        return len({line.split()[0] for process in processes for line in self.by_process.get(process, ())})


def main(arguments: list[str]) -> int:
    """Print the table; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, usage="%(prog)s [-h] [OF ...]", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "of",
        nargs="*",
        metavar="OF",
        default=[str(ROOT)],
        help="a checkout's folder or a commit; by default this checkout",
    )
    columns = {}
    with contextlib.ExitStack() as stack:
        try:
            checkouts = [stack.enter_context(checkout(argument)) for argument in parser.parse_args(arguments).of]
        except ValueError as error:
            parser.error(str(error))
        for name, path in checkouts:
            columns[name] = shape(path)
    width = max(len(row) for column in columns.values() for row in column)
    sys.stdout.write(f"{' ' * width} {' '.join(f'{name:>12}' for name in columns)}\n")
    for row in next(iter(columns.values())):
        sys.stdout.write(f"{row:{width}} {' '.join(f'{column[row]:>12}' for column in columns.values())}\n")
    return 0


@contextlib.contextmanager
def checkout(argument: str) -> Iterator[tuple[str, Path]]:
    """Give a name and a folder to what the command line names: a folder, or a commit of this repository.

    Raises
    ------
    ValueError
        It names neither.
    """
    if (path := Path(argument)).is_dir():
        if not (path / "egmctl" / "__main__.py").is_file():
            raise ValueError(f"folder {argument} is no checkout of egmctl: it has no egmctl/__main__.py")
        yield path.resolve().name, path.resolve()
        return
    git = ["git", "-C", str(ROOT)]
    commit = f"{argument}^{{commit}}"
    if subprocess.run([*git, "rev-parse", "--quiet", "--verify", commit], stdout=subprocess.DEVNULL).returncode:
        raise ValueError(f"{argument!r} is neither a folder nor a commit of this repository")
    with tempfile.TemporaryDirectory(prefix="shape-") as folder:
        path = Path(folder) / "tree"
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(path), commit], check=True)
        try:
            yield argument, path
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(path)], check=True)


def shape(root: Path) -> dict[str, str]:
    """Return the rows of the table for one checkout."""
    bench, plan = one_bench(root), one_plan(root)
    return size(root) | {
        "one bench: files of command and worker": f"{bench.files('command', 'worker'):,}",
        "one bench: files of the command": f"{bench.files('command'):,}",
        "one bench: files of the worker": f"{bench.files('worker'):,}",
        "one bench: functions of the command": f"{bench.functions('command'):,}",
        "one bench: functions of the worker": f"{bench.functions('worker'):,}",
        "one bench: functions of the readers of facts": f"{bench.functions('facts'):,}",
        "one plan: files": f"{plan.files('command'):,}",
        "one plan: functions": f"{plan.functions('command'):,}",
    }


def size(root: Path) -> dict[str, str]:
    """Return the rows about the source itself."""
    lines = [len(path.read_text().splitlines()) for path in (root / "egmctl").rglob("*.py")]
    return {"lines": f"{sum(lines):,}", "files": f"{len(lines):,}", "longest file, lines": f"{max(lines):,}"}


def one_bench(root: Path) -> Executed:
    """Return what ran in a bench of one path, with text and with HTML output."""
    with tempfile.TemporaryDirectory(prefix="shape-") as folder:
        work = Path(folder)
        made = [sys.executable, "-c", ON_FAKE, MACHINE, str(work)]
        node = subprocess.run(made, cwd=root, env=_clean(_environment(root)), stdout=subprocess.PIPE, check=True)
        fake = json.loads(node.stdout)
        html = ("-o", str(work / "out.html"))
        runs = [watched(root, (*CASE, *SMALL, *form), work / f"run{n}", fake) for n, form in enumerate(((), html))]
    kinds = ("command", "worker", "facts")
    return Executed(
        {kind: frozenset().union(*(run.by_process.get(kind, frozenset()) for run in runs)) for kind in kinds}
    )


def one_plan(root: Path) -> Executed:
    """Return what ran inside the function that plans."""
    with tempfile.TemporaryDirectory(prefix="shape-") as folder:
        return watched(root, (*CASE, "--dry-run", "--machine", MACHINE), Path(folder) / "run", {}, inside=PLANS)


def watched(
    root: Path, command: tuple[str, ...], out: Path, more: Mapping[str, str | None], inside: str = ""
) -> Executed:
    """Run the command of a checkout and return what ran in it and in its children.

    Raises
    ------
    subprocess.CalledProcessError
        The command did not end with 0.
    """
    out.mkdir()
    hook = out / "hook"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(WATCH)
    steering = {"SHAPE_OUT": str(out), "SHAPE_PACKAGE": str(root / "egmctl") + os.sep, "SHAPE_INSIDE": inside}
    merged = _environment(root, str(hook)) | dict(more) | steering
    with subprocess.Popen(
        [sys.executable, "-m", "egmctl", *command], cwd=root, env=_clean(merged), stdout=subprocess.DEVNULL
    ) as process:
        if process.wait():
            raise subprocess.CalledProcessError(process.returncode, command)
    found: dict[str, frozenset[str]] = {}
    for log in out.iterdir():
        if log.is_file():
            lines = frozenset(log.read_text().splitlines())
            kind = "command" if log.name == str(process.pid) else _kind(lines)
            found[kind] = found.get(kind, frozenset()) | lines
    return Executed(found)


def _kind(lines: frozenset[str]) -> str:
    """Tell a child that works GPUs from one that reads facts."""
    return "worker" if any(line.startswith(("bench/", "gpu/")) for line in lines) else "facts"


def _environment(root: Path, *paths: str) -> dict[str, str | None]:
    kept: dict[str, str | None] = {name: value for name, value in os.environ.items() if not name.startswith("EGMCTL_")}
    return kept | {"PYTHONPATH": os.pathsep.join((*paths, str(root))), "PYTHONDONTWRITEBYTECODE": "1"}


def _clean(environment: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if value is not None}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
