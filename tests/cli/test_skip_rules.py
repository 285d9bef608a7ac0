"""A test that skips is seen: by its reason for people, as a failure where nothing may be missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.tiers import why_not

pytestmark = pytest.mark.processes

SUITE = """
import pytest, subprocess

def test_runs():
    pass

def test_skips():
    pytest.skip("no compiler")

@pytest.mark.xfail(reason="known")
def test_known():
    assert False

@pytest.mark.gpu
def test_needs_gpu():
    pass

def test_starts():
    subprocess.run(["true"], check=True)
"""


MARKERS = "".join(f"    {name}: x\n" for name in ("gpu", "needs_root", "needs", "processes", "unit", "long"))


def run_suite(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(ROOT / "tests" / "conftest.py", folder / "conftest.py")
    (folder / "pytest.ini").write_text(f"[pytest]\nmarkers =\n{MARKERS}")
    (folder / "test_suite.py").write_text(SUITE)
    kept = {name: value for name, value in os.environ.items() if name not in ("EGMCTL_NO_SKIP", "PYTEST_ADDOPTS")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "-p", "no:randomly", *options, str(folder)],
        cwd=folder,
        env=kept | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
def test_a_skip_says_why_and_a_unit_test_that_starts_a_process_fails(tmp_path: Path) -> None:
    done = run_suite(tmp_path)
    assert "no compiler" in done.stdout
    assert "a unit test starts a process (subprocess.Popen): mark it pytest.mark.processes" in done.stdout
    assert "1 failed, 1 passed, 2 skipped, 1 xfailed" in done.stdout


@pytest.mark.long
def test_where_nothing_may_be_missing_a_skip_fails_but_for_gpu_tests(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text("import pytest\npytest.importorskip('no_such_module')\n")
    done = run_suite(tmp_path, "--continue-on-collection-errors", EGMCTL_NO_SKIP="1")
    assert "EGMCTL_NO_SKIP is set: " in done.stdout
    assert "no compiler" in done.stdout
    assert "no_such_module" in done.stdout
    assert "2 failed, 1 passed, 1 skipped, 1 xfailed, 1 error" in done.stdout


@pytest.mark.parametrize("name", ["gpu", "needs_root", "needs", "processes", "unit", "long"])
def test_the_markers_are_declared(name: str, pytestconfig: pytest.Config) -> None:
    assert any(str(line).startswith((f"{name}:", f"{name}(")) for line in pytestconfig.getini("markers"))


def test_what_is_missing_is_named_with_the_package_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.tiers.shutil.which", lambda program: None if "sshd" in program else program)
    assert why_not(["ssh", "sshd"]) == "there is no sshd here (Debian: openssh-server)"
    assert why_not(["ssh"]) is None
    monkeypatch.setattr("tests.tiers.find_spec", lambda _: None)
    assert why_not(["ssh", "ucxx"]) == "there is no ucxx here (make test-ucx)"
    assert why_not(["sshd", "ucxx"]) == "there is no sshd and no ucxx here (Debian: openssh-server, make test-ucx)"


WITHOUT_UCXX = "import sys, pytest; sys.modules['ucxx'] = None; sys.exit(pytest.main(sys.argv[1:]))"


@pytest.mark.long
@pytest.mark.parametrize("strict", [False, True])
def test_without_ucxx_what_needs_it_is_skipped_by_name_and_in_ci_fails(strict: bool) -> None:
    files = [f"tests/rdma/test_{name}.py" for name in ("messages", "one_sided")]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_UCXX, "-p", "no:cacheprovider", "-p", "no:randomly", *files],
        cwd=ROOT,
        env=os.environ | {"EGMCTL_NO_SKIP": "1" if strict else "", "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == int(strict), done.stdout
    line = "ERROR tests/rdma/test_messages.py::test_" if strict else "SKIPPED [4] tests/rdma/test_messages.py:"
    assert line in done.stdout
    assert "there is no ucxx here (make test-ucx)" in done.stdout
    assert " failed" not in done.stdout
