"""A child finds the package its parent runs from, wherever that is, and nothing that lies in its way."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.start import ROOT, run

pytestmark = pytest.mark.processes

PARENT = """
import json, sys
{prologue}
import egmctl
from egmctl import launch

reported = launch.run("tests.launch.targets:facts", {{}}, timeout_s=30, environment={{"PYTHONPATH": {pythonpath!r}}})
print(json.dumps({{"parent": egmctl.__file__, "child": reported["package"], "path": reported["path"]}}))
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A copy of the package in a folder of its own."""
    folder = tmp_path / "site"
    shutil.copytree(ROOT / "egmctl", folder / "egmctl", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.mark.parametrize("way", ["current folder", "relative PYTHONPATH", "absolute PYTHONPATH", ".pth file"])
def test_a_child_uses_the_package_of_its_parent(site: Path, tmp_path: Path, way: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    prologue, folder = "", tmp_path
    match way:
        case "current folder":
            folder = site
        case "relative PYTHONPATH":
            environment["PYTHONPATH"] = "site"
        case "absolute PYTHONPATH":
            environment["PYTHONPATH"] = str(site)
        case ".pth file":
            (tmp_path / "editable.pth").write_text(f"{site}\n")
            # Another egmctl may be installed in this environment: the one of the .pth file is to come first.
            prologue = f"import site; site.addsitedir({str(tmp_path)!r}); sys.path.insert(0, sys.path.pop())"
    program = PARENT.format(prologue=prologue, pythonpath=str(ROOT))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)
    assert reported["child"] == reported["parent"] == str(site / "egmctl" / "__init__.py")
    assert str(site) not in reported["path"]


def test_nothing_in_the_current_folder_or_beside_the_launcher_passes_for_a_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("egmctl", "json", "socket", "subprocess", "typing", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a hostile module was imported')")
    monkeypatch.chdir(tmp_path)
    reported = run("facts")
    assert reported["package"] == str(ROOT / "egmctl" / "__init__.py")
    assert {"", ".", str(tmp_path), str(ROOT / "egmctl" / "launch")}.isdisjoint(reported["path"])


def test_a_child_keeps_the_interpreter_flags_of_its_parent() -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from egmctl.launch.process import _interpreter_flags\n"
        "print(*_interpreter_flags())"
    )
    always = "-P " if sys.version_info >= (3, 11) else ""
    for flags, kept in (([], always), (["-s"], always + "-s"), (["-I"], always + "-E -s")):
        command = [sys.executable, *flags, "-c", program, str(ROOT)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.split() == kept.split()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_parent_without_standard_streams_can_have_children(closed: str, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    program = (
        "from tests.launch.start import run\n"
        f"open({str(witness)!r}, 'w').write(str(run('echo', {{'a': 1}})) + repr(run('print_noise')))"
    )
    subprocess.run(["sh", "-c", f'"$0" -c "$1" {closed}', sys.executable, program], cwd=ROOT, check=True, timeout=60)
    assert witness.read_text() == "{'a': 1}''"


def test_a_child_imports_nothing_that_only_the_command_needs() -> None:
    heavy = {"typer", "rich", "numpy", "pynvml", "cuda", "dataclasses", "inspect", "asyncio", "logging"}
    assert heavy.isdisjoint(run("facts")["modules"])


def test_a_child_is_ready_for_its_target_in_little_more_time_than_python_takes_to_start() -> None:
    # CPU time, from the start of the interpreter to the hook: 25 ms where it was written, three and a half times that
    # of the interpreter alone. In turns, as a busy machine makes both slower.
    bare = [sys.executable, "-I", "-c", "import time; print(time.process_time())"]
    ours, pythons = [], []
    for _ in range(10):
        reported = run("facts", before="tests.launch.hooks:note_cpu_time")["environment"]
        ours.append(float(reported["EGMCTL_TEST_CPU_S"]))
        pythons.append(float(subprocess.check_output(bare)))
    assert min(ours) < 5 * min(pythons)
