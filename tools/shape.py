"""Prints how many files and functions of egmctl one bench executes, by kind of process.

    python tools/shape.py [FOLDER]...        without a folder: this checkout

The bench is ``bench --case device_to_device_memcpy_write_ce --gpus 0,1`` on the fake driver, which needs a C compiler,
once with text and once with HTML output. A function counts once, however often it runs. Comprehensions, lambdas, class
bodies and module code do not count. ``sys.setprofile`` records the calls, in children through a ``sitecustomize`` on
their path. A child that uses GPUs is the worker; other children read facts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BENCH = ("bench", "--case", "device_to_device_memcpy_write_ce", "--gpus", "0,1")
SMALL = ("--size", "1M", "--samples", "2", "--copies", "2")
MACHINE = "gb200-nvl72"

WATCH = """
import os, sys, threading
folder, package = os.environ["SHAPE_OUT"], os.environ["SHAPE_PACKAGE"]
known = set()
out = os.open(os.path.join(folder, f"{os.getpid()}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

def watch(frame, event, _):
    code = frame.f_code
    if event != "call" or code in known:
        return
    known.add(code)
    name = getattr(code, "co_qualname", code.co_name)
    # A class body or a module has no fast locals.
    if code.co_filename.startswith(package) and "<" not in name.replace(".<locals>", "") and code.co_flags & 0x2:
        os.write(out, f"{code.co_filename[len(package):]} {name}\\n".encode())

threading.setprofile(watch)
sys.setprofile(watch)
"""
"""The ``sitecustomize`` of every process. It writes each function at once when it is first called, because children
exit without exit handlers."""

ON_FAKE = """
import json, sys
from pathlib import Path
from tests.fake.node import FakeNode
print(json.dumps(FakeNode(sys.argv[1], Path(sys.argv[2])).environment()))
"""


def main(folders: list[str]) -> int:
    """Print the counts of each checkout; return the exit code."""
    for root in map(Path, folders or [str(ROOT)]):
        ran = one_bench(root.resolve())
        files = {kind: {line.split()[0] for line in lines} for kind, lines in ran.items()}
        sys.stdout.write(f"{root}: {len(files['command'] | files['worker'])} files of command and worker\n")
        for kind, lines in ran.items():
            sys.stdout.write(f"  {kind}: {len(files[kind])} files, {len(lines)} functions\n")
    return 0


def one_bench(root: Path) -> dict[str, set[str]]:
    """Return the functions, each ``"file name"``, that ran in a bench of one path, by kind of process."""
    kinds: dict[str, set[str]] = {"command": set(), "worker": set(), "facts": set()}
    with tempfile.TemporaryDirectory(prefix="shape-") as folder:
        work = Path(folder)
        made = [sys.executable, "-c", ON_FAKE, MACHINE, str(work)]
        node = subprocess.run(made, cwd=root, env=_environment(root), stdout=subprocess.PIPE, check=True)
        fake = {name: value for name, value in json.loads(node.stdout).items() if value is not None}
        (work / "hook").mkdir()
        (work / "hook/sitecustomize.py").write_text(WATCH)
        for number, output in enumerate(((), ("-o", str(work / "out.html")))):
            out = work / f"run{number}"
            out.mkdir()
            # The journal of this run is nobody's history.
            steering = {
                "SHAPE_OUT": str(out),
                "SHAPE_PACKAGE": str(root / "egmctl") + os.sep,
                "XDG_STATE_HOME": str(work / "state"),
            }
            command = [sys.executable, "-m", "egmctl", *BENCH, *SMALL, *output]
            environment = {**_environment(root, str(work / "hook")), **fake, **steering}
            with subprocess.Popen(command, cwd=root, env=environment, stdout=subprocess.DEVNULL) as process:
                if code := process.wait():
                    raise subprocess.CalledProcessError(code, command)
            for log in out.iterdir():
                lines = set(log.read_text().splitlines())
                works_gpus = any(line.startswith(("bench/", "gpu/")) for line in lines)
                kind = "worker" if works_gpus else "facts"
                if log.name == str(process.pid):
                    kind = "command"
                kinds[kind] |= lines
    return kinds


def _environment(root: Path, *paths: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EGMCTL_")}
    return {**kept, "PYTHONPATH": os.pathsep.join((*paths, str(root))), "PYTHONDONTWRITEBYTECODE": "1"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
