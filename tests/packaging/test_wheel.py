"""What is built is whole: the wheel holds the profiles and the kernels, and says what it needs."""

from __future__ import annotations

import re
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from egmctl import __version__
from egmctl.files import read_toml
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """Build the wheel as the build backend does it, without fetching anything."""
    wheel_builder = pytest.importorskip("hatchling.builders.wheel", reason="hatchling is not installed")
    folder = tmp_path_factory.mktemp("wheel")
    (path,) = wheel_builder.WheelBuilder(str(ROOT)).build(directory=str(folder), versions=["standard"])
    return zipfile.ZipFile(path)


def test_the_wheel_holds_what_the_checkout_ships_with_the_whole_guide_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    """And so does everything that is made of it: the folder, deb and rpm."""
    held = set(wheel.namelist())
    suffixes = (".py", ".cu", ".S", ".sh", ".json", ".toml", ".md")
    for folder, place in (("profiles", "egmctl/_profiles"), ("egmctl", "egmctl")):
        files = [path for path in (ROOT / folder).rglob("*") if path.is_file() and path.suffix in suffixes]
        assert files
        assert {f"{place}/{path.relative_to(ROOT / folder)}" for path in files} <= held
    guide = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*") if path.is_file()}
    assert {f"egmctl/_docs/{name}" for name in guide} == {name for name in held if name.startswith("egmctl/_docs/")}
    assert "egmctl/py.typed" in held
    manual = f"egmctl-{__version__}.data/data/share/man/man1/egmctl.1"
    assert wheel.read(manual) == (ROOT / "docs/egmctl.1").read_bytes()
    strangers = [name for name in held - {manual} if not re.match(r"egmctl(/|-[^/]*\.dist-info/)", name)]
    assert strangers == []
    assert not [name for name in held if "__pycache__" in name or name.startswith("egmctl/tests")]


def test_the_metadata_names_what_is_needed(wheel: zipfile.ZipFile) -> None:
    text = wheel.read(f"egmctl-{__version__}.dist-info/METADATA").decode()
    metadata = Parser().parsestr(text)
    assert metadata["Version"] == __version__
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "Apache-2.0"
    project = read_toml((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert set(metadata.get_all("Provides-Extra") or []) == set(extras) >= {"cu13", "cu12", "fleet", "mpi"}
    needed = {_package(line) for line in metadata.get_all("Requires-Dist") or []}
    assert needed == {_package(line) for lines in (project["dependencies"], *extras.values()) for line in lines}
    assert {_package(line) for line in project["dependencies"]} == {
        "typer",
        "rich",
        "cuda-python",
        "nvidia-ml-py",
        "numpy",
        "tomli",
    }
    entry_points = wheel.read(f"egmctl-{__version__}.dist-info/entry_points.txt").decode()
    assert "egmctl = egmctl.__main__:main" in entry_points


def test_each_extra_keeps_bindings_and_nvrtc_on_one_line() -> None:
    extras = read_toml((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["cu13"] == ["cuda-python>=13,<14", "nvidia-cuda-nvrtc==13.*"]
    assert extras["cu12"] == ["cuda-python>=12.9,<13", "nvidia-cuda-nvrtc-cu12==12.9.*"]


def test_the_changelog_tells_of_this_version() -> None:
    assert f"## {__version__}" in Path(ROOT / "CHANGELOG.md").read_text()


def _package(requirement: str) -> str:
    return re.split(r"[<>=;\s]", requirement)[0].lower()
