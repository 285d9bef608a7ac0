"""How the fake driver's libraries are built: once, whole, and without a compiler not at all."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.fake.build import CUDA, MLX5, NVML, VERBS, NoCompiler, build, compile_library
from tests.fake.plugin import MakeFakeNode

pytestmark = pytest.mark.processes


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Let the libraries be built in a new folder."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_without_a_compiler_nothing_is_built(empty_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(empty_cache))
    with pytest.raises(NoCompiler, match="cc"):
        build()


def test_processes_side_by_side_build_once(tmp_path: Path) -> None:
    compiler, calls = tmp_path / "cc", tmp_path / "calls"
    compiler.write_text(f"""#!/bin/sh
        echo "$@" >> {calls}
        while [ "$1" != -o ]; do shift; done
        sleep 0.2
        echo compiled > "$2"
    """)
    compiler.chmod(0o755)
    cache = tmp_path / "cache"
    cache.mkdir()
    program = "from tests.fake.build import build; print(build())"
    path = f"{tmp_path}:{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(cache), "PATH": path}
    processes = [
        subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    (folder,) = {Path(process.communicate(timeout=100)[0].strip()) for process in processes}
    assert sorted(path.name for path in folder.iterdir()) == sorted((CUDA, NVML, VERBS, MLX5))
    assert len(calls.read_text().splitlines()) == 4
    assert {path.name for path in folder.parent.iterdir()} == {folder.name, "lock"}


@pytest.mark.long
@pytest.mark.skipif(not os.environ.get("EGMCTL_NO_SKIP"), reason="compilers differ in what they warn of")
@pytest.mark.parametrize("name", [CUDA, NVML])
def test_the_sources_compile_without_a_warning(fake_node: MakeFakeNode, tmp_path: Path, name: str) -> None:
    del fake_node
    compile_library(name, tmp_path / name, "-Wall", "-Wextra", "-Werror")
