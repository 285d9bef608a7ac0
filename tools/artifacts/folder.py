"""The relocatable folder: an interpreter, egmctl and its dependencies, its documents, and the command that starts it.

::

    egmctl-VERSION-linux-ARCH-cu13/
      bin/egmctl                 a script: starts the interpreter beside it
      python/                    CPython, its library, site-packages with the wheels
      share/                     manual page, completions, the guide, the list of what is inside
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

LAUNCHER = Path(__file__).with_name("launcher.sh")
PYTHON = "python/bin/python3.13"
SITE = "python/lib/python3.13/site-packages"
GUIDE = f"{SITE}/egmctl/_docs"

NEVER_IMPORTED = (
    # egmctl uses only the driver and NVRTC modules of cuda.bindings.
    r"cuda/bindings/(_internal/)?(cy)?(cudla|cufile|nvfatbin|nvjitlink|nvml|nvvm|runtime|runtime_ptds)\.cpython-.*",
    r"cuda/bindings/_example_helpers/.*",
    r"numpy/(f2py|doc|testing/tests)/.*",
    r"numpy/(.*/)?(tests|include)/.*",
    r"nvidia/cu13/include/.*",
    r".*\.(pxd|pyx|pxi|pyi|a|h|c|typed)",
    r"(bin|etc|share)/.*",
    r"example\.py",
    # These files describe an installation that pip could change.
    r"[^/]+\.dist-info/(RECORD|INSTALLER|REQUESTED|direct_url\.json|uv_cache\.json|uv_build\.json)",
)
"""The files of site-packages, as regular expressions, that are left out because egmctl never imports them."""

COMPILER = (r"nvidia/cu13/.*", r"nvidia_cuda_nvrtc-.*")
"""The files of NVRTC in site-packages, which compiles the shipped kernels and is then left out."""

COMPLETIONS = {
    "bash": "bash-completion/completions/egmctl",
    "zsh": "zsh/site-functions/_egmctl",
    "fish": "fish/vendor_completions.d/egmctl.fish",
}


def make_folder(target: Path, python_tar: Path, wheel: Path, lock: Path, arch: str, uv: Path) -> None:
    """Create the folder ``target`` for ``x86_64`` or ``aarch64``.

    Parameters
    ----------
    python_tar
        The result of :func:`artifacts.interpreter.interpreter` for that architecture.
    wheel
        The wheel of egmctl.
    lock
        The file of all other requirements, with hashes.
    """
    with tarfile.open(python_tar) as archive:
        archive.extractall(target, filter="tar")
    site = target / SITE
    install: list[str | Path] = [uv, "pip", "install", "--quiet", "--no-config", "--no-deps", "--link-mode", "copy"]
    install += ["--python-version", "3.13", "--python-platform", f"{arch}-manylinux_2_28", "--only-binary", ":all:"]
    install += ["--target", site]
    subprocess.run([*install, "--require-hashes", "-r", lock], check=True)
    subprocess.run([*install, wheel], check=True)
    manual = (site / "share/man/man1/egmctl.1").read_bytes()
    remove(site, NEVER_IMPORTED)
    (target / "bin").mkdir()
    shutil.copyfile(LAUNCHER, target / "bin/egmctl")
    (target / "bin/egmctl").chmod(0o755)
    _place(target / "share/man/man1/egmctl.1", manual)
    (target / "share/doc").mkdir()
    (target / "share/doc/egmctl").symlink_to(os.path.relpath(target / GUIDE, target / "share/doc"))


def compile_kernels(native: Path, target: Path) -> Path:
    """Compile every kernel into a new folder, with the interpreter and the NVRTC of this machine's folder."""
    kernels = "import pathlib, sys; from egmctl.gpu import program; program.compile_all(pathlib.Path(sys.argv[1]))"
    subprocess.run([native / PYTHON, "-I", "-c", kernels, target], check=True)
    return target


def finish(target: Path, native: Path, kernels: Path, epoch: int, describe: Callable[[Path], str]) -> None:
    """Complete a folder: replace NVRTC by the kernels, add byte code and completions, set times and modes.

    Parameters
    ----------
    native
        The folder of this machine's architecture, whose interpreter does the work.
    describe
        A function that returns the bill of materials of a folder.
    """
    shutil.copytree(kernels, target / SITE / "egmctl/gpu/kernels/compiled")
    remove(target / SITE, COMPILER)
    (target / "share/sbom.cdx.json").write_text(describe(target))
    # Compile all files again, also those that this interpreter has imported: their byte code contains file times.
    byte_code: list[str | Path] = [native / PYTHON, "-I", "-B", "-m", "compileall", "-f", "-qq"]
    byte_code += ["--invalidation-mode", "unchecked-hash", "-s", target, target / "python/lib/python3.13"]
    fixed = {**os.environ, "PYTHONHASHSEED": "0"}
    subprocess.run(byte_code, check=True, env=fixed)
    for shell, place in COMPLETIONS.items():
        show = {**os.environ, "_EGMCTL_COMPLETE": f"source_{shell}"}
        done = subprocess.run([native / "bin/egmctl"], env=show, check=True, capture_output=True)
        _place(target / "share" / place, done.stdout)
    for path in walk(target):
        if not path.is_symlink():
            executable = path.is_dir() or path.stat().st_mode & 0o100
            path.chmod(0o755 if executable else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def remove(site: Path, patterns: Iterable[str]) -> None:
    """Remove the files below ``site`` whose paths match, and folders that become empty."""
    unwanted = re.compile("|".join(f"(?:{pattern})" for pattern in patterns))
    for path in sorted(walk(site), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if not any(path.iterdir()):
                path.rmdir()
        elif unwanted.fullmatch(path.relative_to(site).as_posix()):
            path.unlink()


def tar_xz(folder: Path, target: Path, epoch: int) -> None:
    """Write a folder under its own name into ``target`` (``.tar.xz``), sorted, with one time and no owner names.

    Blocks of a fixed size make the result independent of the number of threads that compress.
    """

    def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        member.mtime = epoch
        return member

    command = ("xz", "--compress", "--stdout", "-6", "--threads=0", "--block-size=64MiB")
    with (
        open(target, "wb") as file,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file) as packer,
        tarfile.open(fileobj=packer.stdin, mode="w|", format=tarfile.PAX_FORMAT) as archive,
    ):
        for path in walk(folder):
            archive.add(path, path.relative_to(folder.parent).as_posix(), recursive=False, filter=plain)
    if packer.returncode:
        raise OSError(f"xz ended with {packer.returncode} on {target.name}")


def walk(folder: Path) -> Iterator[Path]:
    """Yield the folder and everything below it, sorted by name."""
    yield folder
    yield from sorted(folder.rglob("*"))


def _place(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
