"""How the fake driver's libraries are built: once, whole, and without a compiler not at all."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.fake.build import CUDA, NVML, NoCompiler, build, compile_library
from tests.fake.plugin import MakeFakeNode
from tests.fake.process import ROOT


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the libraries be built in a new folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_without_a_compiler_nothing_is_built(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(empty_cache))
    with pytest.raises(NoCompiler, match="cc"):
        build()


@pytest.mark.long
@pytest.mark.usefixtures("fake_node")
def test_processes_side_by_side_build_once(tmp_path: Path) -> None:
    program = "from tests.fake.build import build; print(build())"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    processes = [
        subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    folders = {process.communicate(timeout=100)[0].strip() for process in processes}
    (folder,) = folders
    assert sorted(path.name for path in Path(folder).iterdir()) == [CUDA, NVML]
    (cache,) = tmp_path.iterdir()
    assert sorted(path.name for path in cache.iterdir()) == sorted([Path(folder).name, "lock"])


@pytest.mark.long
@pytest.mark.skipif(not os.environ.get("EGMCTL_NO_SKIP"), reason="compilers differ in what they warn of")
@pytest.mark.parametrize("name", [CUDA, NVML])
def test_the_sources_compile_without_a_warning(fake_node: MakeFakeNode, tmp_path: Path, name: str) -> None:
    del fake_node
    compile_library(name, tmp_path / name, "-Wall", "-Wextra", "-Werror")
