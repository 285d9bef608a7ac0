"""What is handed out says what it needs of a node, and needs no more: the packages, the proof and the guide agree."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from artifacts.packages import DEPENDS
from proof.systems import left_in
from tests.conftest import ROOT

portable = pytest.importorskip("proof.portable", reason="pyelftools is not installed")
prove_dist = pytest.importorskip("prove_dist", reason="pyelftools is not installed")

HERE = platform.machine()
OTHER = "aarch64" if HERE == "x86_64" else "x86_64"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder that holds this Python."""
    shutil.copyfile(Path(sys.executable).resolve(), tmp_path / "python3")
    return tmp_path


def faults(folder: Path, arch: str = HERE) -> list[str]:
    return list(portable.faults(folder, arch))


def test_packages_and_guide_name_the_glibc_that_the_proof_allows() -> None:
    glibc = ".".join(map(str, portable.NEWEST["GLIBC"]))
    assert DEPENDS["deb"][0] == f"libc6 (>= {glibc})"
    assert DEPENDS["rpm"][0] == f"libc.so.6(GLIBC_{glibc})(64bit)"
    for page in ("README.md", "docs/installing.md"):
        assert set(re.findall(r"glibc (2\.\d+)", (ROOT / page).read_text())) >= {glibc}


def test_an_rpm_requires_libraries_and_no_package_by_its_name() -> None:
    assert all(re.fullmatch(r"lib[a-z_+]+\.so\.[0-9]+\([A-Z0-9_.]*\)\(64bit\)", name) for name in DEPENDS["rpm"])
    assert {name.partition("(")[0] for name in DEPENDS["rpm"]} <= portable.OF_THE_NODE


def test_a_program_for_another_architecture_is_a_fault(folder: Path) -> None:
    assert any(fault.startswith("python3 is for EM_") for fault in faults(folder, OTHER))


def test_a_newer_glibc_is_a_fault(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(portable.NEWEST, "GLIBC", (2, 0))
    assert any(re.fullmatch(r"python3 needs GLIBC_2\.[0-9.]+", fault) for fault in faults(folder))


def test_a_library_that_is_neither_inside_nor_of_every_node_is_a_fault(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portable, "OF_THE_NODE", portable.OF_THE_NODE - {"libc.so.6"})
    assert "python3 needs libc.so.6" in faults(folder)
    (folder / "libc.so.6").touch()
    assert "python3 needs libc.so.6" not in faults(folder)


def test_a_link_out_of_the_folder_or_to_nowhere_is_a_fault(folder: Path) -> None:
    (folder / "shell").symlink_to("/bin/sh")
    (folder / "lost").symlink_to("nothing")
    (folder / "inside").symlink_to("python3")
    left = {
        fault.partition(" ")[0] for fault in faults(folder) if fault.endswith("leads out of the folder, or nowhere")
    }
    assert left == {"shell", "lost"}


def test_a_folder_without_programs_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "egmctl").write_text("#!/bin/sh\n")
    assert faults(tmp_path) == ["there is no ELF file in it"]


def test_a_module_without_byte_code_is_a_fault(folder: Path) -> None:
    """An installed folder belongs to root, or is read-only."""
    package = folder / "python/lib/python3.13/site-packages/egmctl"
    (package / "cli/__pycache__").mkdir(parents=True)
    for name in ("cli/app.py", "cli/other.py", "cli/__pycache__/app.cpython-313.pyc"):
        (package / name).touch()
    found = [fault for fault in faults(folder) if "byte code" in fault]
    assert [fault.partition(" has no byte code")[0] for fault in found] == [
        "python/lib/python3.13/site-packages/egmctl/cli/other.py"
    ]


class System:
    """Answers as rpm and its elfdeps do in a system."""

    def __init__(self, requires: str, provides: str) -> None:
        self._said = {"rpm": requires, "ls": provides}

    def run(self, command: str, user: int, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        assert (user, dict(environment)) == (0, {})
        assert "rpm " not in command or "--dbpath /rpmdb " in command, "a database elsewhere would be left there"
        return subprocess.CompletedProcess(command, 0, self._said[command.partition(" ")[0]], "")


@pytest.mark.parametrize(
    ("requires", "provides", "lacking"),
    [
        ("libc.so.6(GLIBC_2.30)(64bit)\nrpmlib(PayloadIsZstd) <= 5.4.18-1\n", "libc.so.6(GLIBC_2.30)(64bit)\n", []),
        ("libc.so.6(GLIBC_2.30)(64bit)\n", "libc.so.6(GLIBC_2.28)(64bit)\n", ["libc.so.6(GLIBC_2.30)(64bit)"]),
        ("libgcc\n", "libgcc_s.so.1()(64bit)\n", ["libgcc"]),
        ("", "libc.so.6(GLIBC_2.30)(64bit)\n", ["nothing"]),
    ],
)
def test_what_an_rpm_requires_is_held_against_what_a_system_has(
    requires: str, provides: str, lacking: list[str]
) -> None:
    artefact = prove_dist.Artefact("rpm", Path("egmctl-0.1.0-1.x86_64.rpm"), "", "", "egmctl")
    assert prove_dist.unmet(System(requires, provides), artefact) == lacking


def test_each_form_is_found_and_proved(tmp_path: Path) -> None:
    arch = os.uname().machine
    names = ("linux-ARCH-cu13.tar.xz", "1.ARCH.rpm")
    for name in (*(f"egmctl-0.1.0-{each}" for each in names), "egmctl_0.1.0_ARCH.deb"):
        for each in (arch, "riscv64"):
            (tmp_path / name.replace("ARCH", each)).touch()
    (tmp_path / "SHA256SUMS").touch()
    every = list(prove_dist.artefacts(tmp_path, prove_dist.FORMS, arch))
    assert sorted(artefact.form for artefact in every) == sorted(prove_dist.FORMS)
    assert [artefact.form for artefact in prove_dist.artefacts(tmp_path, ["deb"], arch)] == ["deb"]


def test_what_an_installation_leaves_is_seen_an_empty_folder_of_its_own_too(tmp_path: Path) -> None:
    for folder in (
        "usr/share/doc/egmctl",
        "usr/share/zsh/site-functions",
        "home/u/.cache/egmctl",
        "var/lib/dpkg/egmctl",
    ):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/settings").touch()
    assert left_in(tmp_path) == {"usr/share/doc/egmctl", "etc/settings"}
