#!/usr/bin/env python3
"""Build everything that is handed out into dist/: ``make dist``, or with options a part of it.

The same commit gives the same bytes: times are the commit's, wheels and sources are held against sums, and the folder's
Python is built in a root of Debian 11 (tools/artifacts/interpreter.py). docs/installing.md says what each file is for.
"""

from __future__ import annotations

import argparse
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from artifacts.archive import checksums, tar_xz
from artifacts.folder import finish, make_folder, slim
from artifacts.interpreter import interpreter
from artifacts.packages import make_package
from artifacts.pex import make_pex
from artifacts.sbom import bill_of_materials

ROOT = Path(__file__).resolve().parent.parent
LOCK = Path(__file__).parent / "artifacts" / "lock-cu13.txt"
FORMS = ("folder", "slim", "deb", "rpm", "pex", "wheel")
ARCHITECTURES = ("x86_64", "aarch64")


def main() -> None:
    """Build what the command line asks for."""
    asked = _arguments()
    if asked.lock:
        write_lock()
        return
    epoch = int(_git("log", "-1", "--format=%ct"))
    if dirty := _git("status", "--porcelain", "--untracked-files=no"):
        print(f"make dist: not what the commit holds, as these have changed:\n{dirty}", file=sys.stderr)
    out = Path(asked.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        build(asked.arch, asked.form, out, Path(asked.cache).resolve(), Path(scratch), epoch)
    (out / "SHA256SUMS").write_text(checksums(out))
    print((out / "SHA256SUMS").read_text(), end="")


def build(arches: Sequence[str], forms: Sequence[str], out: Path, cache: Path, scratch: Path, epoch: int) -> None:
    """Build these forms for these architectures.

    Parameters
    ----------
    out, cache
        Where the results go, and where built Pythons are kept.
    scratch
        An empty folder, for what is made on the way.
    epoch
        The time of everything, seconds since 1970.
    """
    wheel = _wheel(scratch, epoch)
    version = wheel.name.split("-")[1]
    if "wheel" in forms:
        shutil.copy(wheel, out)
    if set(forms) & {"folder", "slim", "deb", "rpm"}:
        native = platform.machine()
        # The other architecture's Python is cross compiled, and this one's with it.
        pythons = {arch: interpreter(arch, cache) for arch in sorted({native, *arches}, key=native.__eq__)}
        folders = {}
        for arch, python in pythons.items():
            folders[arch] = scratch / f"egmctl-{version}-linux-{arch}-cu13"
            make_folder(folders[arch], python, wheel, LOCK, arch, tool("uv"))
            shutil.copy(ROOT / "LICENSE", folders[arch] / "share")
        for arch in arches:
            (folders[arch] / "share/sbom.cdx.json").write_text(bill_of_materials(folders[arch], version, epoch))
        finish(folders[native], folders[native], epoch)
        for arch in arches:
            if arch != native:
                finish(folders[arch], folders[native], epoch)
            _pack(folders[arch], forms, out, version, arch, epoch)
    if "pex" in forms:
        for arch in arches:
            make_pex(out / f"egmctl-{version}-linux-{arch}-cu13.pex", wheel, LOCK, arch, tool("pex"), epoch)


def _pack(folder: Path, forms: Sequence[str], out: Path, version: str, arch: str, epoch: int) -> None:
    if {"folder", "deb", "rpm"} & set(forms):
        shutil.copyfile(folder / "share/sbom.cdx.json", out / f"{folder.name}.cdx.json")
    if "folder" in forms:
        tar_xz(folder, out / f"{folder.name}.tar.xz", epoch)
    if "slim" in forms:
        small = folder.with_name(f"{folder.name}-slim")
        slim(small, folder)
        (small / "share/sbom.cdx.json").write_text(bill_of_materials(small, version, epoch))
        tar_xz(small, out / f"{small.name}.tar.xz", epoch)
        shutil.rmtree(small)
    for kind, name in (("deb", f"egmctl_{version}_{arch}.deb"), ("rpm", f"egmctl-{version}-1.{arch}.rpm")):
        if kind in forms:
            make_package(kind, folder, out / name, version, arch, epoch, tool("nfpm"))


def write_lock() -> None:
    """Write the lock file anew: the newest versions of everything, with their sums."""
    command: list[str | Path] = [tool("uv"), "pip", "compile", "--quiet", "--no-config", "--upgrade", "--universal"]
    command += ["--python-version", "3.10", "--generate-hashes", "--no-annotate", "--no-header"]
    command += ["--only-binary", ":all:"]
    # cuda-python is what users know; of what it brings, only cuda-bindings is ever imported.
    command += ["--no-emit-package", "cuda-python", "--no-emit-package", "cuda-core"]
    extras = [f"--extra={extra}" for extra in ("cu13", "fleet", "mpi")]
    subprocess.run([*command, *extras, "--output-file", LOCK, ROOT / "pyproject.toml"], check=True)


def tool(name: str) -> Path:
    """Return the path of a command of the dependency group ``dist``."""
    path = Path(sysconfig.get_path("scripts"), name)
    if not path.exists():
        sys.exit(f"make dist: {name} is not installed: pip install --group dist, or run make dist")
    return path


def _wheel(scratch: Path, epoch: int) -> Path:
    command = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", scratch, ROOT)
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"make dist: the wheel was not built:\n{done.stdout}{done.stderr}")
    (wheel,) = scratch.glob("egmctl-*.whl")
    return wheel


def _git(*words: str) -> str:
    return subprocess.run(("git", "-C", ROOT, *words), check=True, capture_output=True, text=True).stdout.strip()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Build what is handed out into dist/.")
    parser.add_argument("--arch", type=_words(ARCHITECTURES), default=ARCHITECTURES, help="x86_64,aarch64 (both)")
    parser.add_argument("--form", type=_words(FORMS), default=FORMS, help=f"{','.join(FORMS)} (all)")
    parser.add_argument("--out", default=ROOT / "dist")
    parser.add_argument("--cache", default=ROOT / "build" / "dist", help="where built Pythons are kept")
    parser.add_argument("--lock", action="store_true", help="write the lock file anew instead")
    return parser.parse_args()


class _words:  # noqa: N801 - argparse names the type in its messages
    """Words of a list, separated by commas."""

    def __init__(self, valid: Sequence[str]) -> None:
        self._valid = valid

    def __call__(self, text: str) -> tuple[str, ...]:
        words = tuple(text.split(","))
        if wrong := [word for word in words if word not in self._valid]:
            raise argparse.ArgumentTypeError(f"{wrong[0]!r} is none of {', '.join(self._valid)}")
        return words


if __name__ == "__main__":
    main()
