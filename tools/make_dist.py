#!/usr/bin/env python3
"""Build the release files (docs/installing.md) into dist/: ``make dist``, or with options some of them.

Builds are reproducible: times are the commit's, wheels and sources are checked against sums, and the folder's Python is
built in a root of Debian 11 (tools/artifacts/interpreter.py).
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path

from artifacts import words
from artifacts.folder import compile_kernels, finish, make_folder, tar_xz
from artifacts.interpreter import interpreter
from artifacts.packages import make_package
from artifacts.sbom import bill_of_materials

ROOT = Path(__file__).resolve().parent.parent
LOCK = Path(__file__).parent / "artifacts" / "lock-cu13.txt"
FORMS = ("folder", "deb", "rpm", "wheel")
ARCHITECTURES = ("x86_64", "aarch64")


def main() -> None:
    """Build the forms that the command line selects."""
    options = _options()
    if options.lock:
        write_lock()
        return
    epoch = int(_git("log", "-1", "--format=%ct"))
    if dirty := _git("status", "--porcelain", "--untracked-files=no"):
        print(f"make dist: not what the commit holds, as these have changed:\n{dirty}", file=sys.stderr)
    out = Path(options.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        build(options.arch, options.form, out, Path(options.cache).resolve(), Path(scratch), epoch)
    files = sorted(path for path in out.iterdir() if path.is_file() and path.name != "SHA256SUMS")
    sums = "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)
    (out / "SHA256SUMS").write_text(sums)
    print(sums, end="")


def build(arches: Sequence[str], forms: Sequence[str], out: Path, cache: Path, scratch: Path, epoch: int) -> None:
    """Build these forms for these architectures.

    Parameters
    ----------
    out, cache
        The folders of the results and of built Pythons.
    scratch
        An empty folder for intermediate files.
    epoch
        The time of all files, in seconds since 1970.
    """
    wheel = _wheel(scratch, epoch)
    version = wheel.name.split("-")[1]
    if "wheel" in forms:
        shutil.copy(wheel, out)
    if set(forms) == {"wheel"}:
        return
    native = platform.machine()
    folders = {}
    # The other architecture's Python comes first, because its cross compilation also builds this one's.
    for arch in sorted({native, *arches}, key=native.__eq__):
        folders[arch] = scratch / f"egmctl-{version}-linux-{arch}-cu13"
        make_folder(folders[arch], interpreter(arch, cache), wheel, LOCK, arch, tool("uv"))
        shutil.copy(ROOT / "LICENSE", folders[arch] / "share")
    kernels = compile_kernels(folders[native], scratch / "kernels")
    for arch in sorted(folders, key=native.__ne__):
        finish(folders[arch], folders[native], kernels, epoch, bill_of_materials(version, epoch))
    for arch in arches:
        folder = folders[arch]
        shutil.copyfile(folder / "share/sbom.cdx.json", out / f"{folder.name}.cdx.json")
        if "folder" in forms:
            tar_xz(folder, out / f"{folder.name}.tar.xz", epoch)
        for kind, name in (("deb", f"egmctl_{version}_{arch}.deb"), ("rpm", f"egmctl-{version}-1.{arch}.rpm")):
            if kind in forms:
                make_package(kind, folder, out / name, version, arch, epoch, tool("nfpm"))


def write_lock() -> None:
    """Rewrite the lock file with the newest version of each dependency and its sums."""
    command: list[str | Path] = [tool("uv"), "pip", "compile", "--quiet", "--no-config", "--upgrade", "--universal"]
    command += ["--python-version", "3.10", "--generate-hashes", "--no-annotate", "--no-header"]
    command += ["--only-binary", ":all:"]
    # Users know cuda-python, but of its packages only cuda-bindings is ever imported.
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


def _git(*arguments: str) -> str:
    return subprocess.run(("git", "-C", ROOT, *arguments), check=True, capture_output=True, text=True).stdout.strip()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Build what is handed out into dist/.")
    parser.add_argument("--arch", type=words(ARCHITECTURES), default=ARCHITECTURES, help="x86_64,aarch64 (both)")
    parser.add_argument("--form", type=words(FORMS), default=FORMS, help=f"{','.join(FORMS)} (all)")
    parser.add_argument("--out", default=ROOT / "dist")
    parser.add_argument("--cache", default=ROOT / "build" / "dist", help="where built Pythons are kept")
    parser.add_argument("--lock", action="store_true", help="write the lock file anew instead")
    return parser.parse_args()


if __name__ == "__main__":
    main()
