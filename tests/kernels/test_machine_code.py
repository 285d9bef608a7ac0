"""The machine code that ships is what its sources assemble to, for each architecture, also those that are not here."""

from __future__ import annotations

import json
import platform
import subprocess
from pathlib import Path

import assemble
import pytest

ARCHITECTURES = ("aarch64", "x86_64")
SHIPPED = json.loads(assemble.CODE.read_text())


def on_both(name: str) -> pytest.MarkDecorator:
    """Run a test once for each architecture for which there is an assembler here."""
    needs = [pytest.param(each, marks=pytest.mark.needs(assemble.assembler(each))) for each in ARCHITECTURES]
    return pytest.mark.parametrize(name, needs)


def test_every_function_has_code_for_every_architecture() -> None:
    sources = {path.stem for path in assemble.SOURCES.glob("*.S")}
    assert set(SHIPPED) == sources
    assert sources == {f"{name}.{each}" for name in ("chase", "triad") for each in ARCHITECTURES}
    assert platform.machine() in ARCHITECTURES


@on_both("architecture")
@pytest.mark.processes
def test_the_code_that_ships_is_what_its_source_assembles_to(architecture: str) -> None:
    """If this fails: ``PYTHONPATH=. python tools/assemble.py``."""
    sources = sorted(assemble.SOURCES.glob(f"*.{architecture}.S"))
    assert sources
    assert {path.stem: assemble.assembled(path).hex() for path in sources} == {
        name: code for name, code in SHIPPED.items() if name.endswith(architecture)
    }


@pytest.mark.needs("aarch64-linux-gnu-as" if platform.machine() != "aarch64" else "as")
@pytest.mark.processes
def test_code_that_only_a_linker_could_complete_is_refused(tmp_path: Path) -> None:
    """A branch to a global name: the assembler leaves its distance open, and the processor would branch to itself."""
    source = tmp_path / "walk.aarch64.S"
    source.write_text(".globl walk\nwalk:\n    subs x1, x1, 1\n    b.ne walk\n    ret\n")
    with pytest.raises(ValueError, match=r"walk\.aarch64\.S needs a linker"):
        assemble.assembled(source)


@pytest.mark.needs("as")
@pytest.mark.processes
def test_a_source_that_does_not_assemble_ends_the_tool(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / f"walk.{platform.machine()}.S"
    source.write_text("no_such_instruction\n")
    with pytest.raises(subprocess.CalledProcessError):
        assemble.assembled(source)
    assert "no_such_instruction" in capfd.readouterr().err


@pytest.mark.parametrize(("arguments", "code"), [(["--check"], 1), ([], 0)])
def test_without_an_assembler_shipped_code_stays_and_stale_code_is_told(
    arguments: list[str], code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(assemble, "assembler", lambda architecture: f"no-{architecture}-as")
    monkeypatch.setattr(assemble, "CODE", tmp_path / "code.json")
    stale = json.dumps({**SHIPPED, "gone.x86_64": "c3"})
    (tmp_path / "code.json").write_text(stale)
    assert assemble.main(arguments) == code
    assert "chase.aarch64 stays as it is: there is no no-aarch64-as here" in capsys.readouterr().err
    assert json.loads((tmp_path / "code.json").read_text()) == (json.loads(stale) if code else SHIPPED)
