"""Checks a folder, deb or rpm without running it: architectures, the requirements of ELF files, links, byte code."""

from __future__ import annotations

import re
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

NEWEST = {"GLIBC": (2, 30), "GLIBCXX": (3, 4, 25), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}
"""The newest symbol versions that a file may need: glibc's as docs/installing.md and the packages state, those of
libstdc++ and libgcc_s from GCC 8, which is older than that glibc."""

OF_THE_NODE = {
    "libc.so.6",
    "libdl.so.2",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
    "libutil.so.1",
    "ld-linux-x86-64.so.2",
    "ld-linux-aarch64.so.1",
    "libgcc_s.so.1",
    "libstdc++.so.6",
}
"""The libraries that may come from the node: those of C and C++. The driver's are opened by name."""

MPI = {"libmpi.so.12", "libmpi.so.40"}
"""The MPI libraries of a node. Each build of mpi4py needs one of them; the build that finds its library is used."""

EM_CUDA = "EM_CUDA"
"""The ELF machine type of the kernels."""

MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}


def unpack(file: Path, place: Path) -> Path:
    """Unpack a folder's archive, a deb or an rpm, and return the path of the unpacked folder."""
    if file.name.endswith(".tar.xz"):
        with tarfile.open(file) as archive:
            archive.extractall(place, filter="tar")
        return place / file.name.removesuffix(".tar.xz")
    if file.suffix == ".deb":
        subprocess.run(("dpkg-deb", "--extract", file, place), check=True)
    else:
        with subprocess.Popen(("rpm2archive", "-"), stdin=open(file, "rb"), stdout=subprocess.PIPE) as packer:
            subprocess.run(("tar", "-xz", "-C", place), stdin=packer.stdout, check=True)
    return place / "usr/lib/egmctl"


def faults(folder: Path, arch: str) -> Iterator[str]:
    """Yield the reasons why a folder would not run on a node with libraries as old as :data:`NEWEST`."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and not path.is_symlink()]
    names = {path.name for path in files}
    for link in (path for path in folder.rglob("*") if path.is_symlink()):
        if not link.resolve().is_relative_to(folder.resolve()) or not link.exists():
            yield f"{link.relative_to(folder)} leads out of the folder, or nowhere"
    objects = 0
    for path in files:
        try:
            with open(path, "rb") as stream:
                elf = ELFFile(stream)
                where = path.relative_to(folder).as_posix()
                if elf["e_machine"] == EM_CUDA:
                    continue
                objects += 1
                known = names | OF_THE_NODE | (MPI if "/mpi4py/" in where else set())
                yield from (f"{where} {fault}" for fault in _faults(elf, arch, known))
        except ELFError:
            continue
    if not objects:
        yield "there is no ELF file in it"
    for source in sorted(folder.rglob("egmctl/**/*.py")):
        if not list((source.parent / "__pycache__").glob(f"{source.stem}.*.pyc")):
            yield f"{source.relative_to(folder)} has no byte code, so that each start would compile it"


def _faults(elf: ELFFile, arch: str, known: set[str]) -> Iterator[str]:
    if elf["e_machine"] != MACHINES[arch]:
        yield f"is for {elf['e_machine']}"
    dynamic = elf.get_section_by_name(".dynamic")
    for tag in dynamic.iter_tags() if dynamic else ():
        if tag.entry.d_tag == "DT_NEEDED" and tag.needed not in known:
            yield f"needs {tag.needed}"
    versions = elf.get_section_by_name(".gnu.version_r")
    for _, needed in versions.iter_versions() if versions else ():
        for version in needed:
            name, _, number = version.name.partition("_")
            if re.fullmatch(r"[0-9.]+", number) and tuple(map(int, number.split("."))) > NEWEST.get(name, (99,)):
                yield f"needs {version.name}"
