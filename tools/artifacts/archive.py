"""Archives whose bytes depend on nothing but what is in them: sorted, owned by nobody, of one time."""

from __future__ import annotations

import hashlib
import subprocess
import tarfile
from pathlib import Path
from typing import IO, cast

from artifacts.folder import walk


def tar_xz(folder: Path, target: Path, epoch: int) -> None:
    """Write a folder into ``target`` (``.tar.xz``) under its own name.

    Blocks of a fixed size make the result independent of how many threads compress.
    """
    command = ("xz", "--compress", "--stdout", "-6", "--threads=0", "--block-size=64MiB")
    with open(target, "wb") as file, subprocess.Popen(command, stdin=subprocess.PIPE, stdout=file) as packer:
        stream = cast("IO[bytes]", packer.stdin)
        with tarfile.open(fileobj=stream, mode="w|", format=tarfile.PAX_FORMAT) as archive:
            for path in walk(folder):
                member = archive.gettarinfo(path, path.relative_to(folder.parent).as_posix())
                member.uid = member.gid = 0
                member.uname = member.gname = ""
                member.mtime = epoch
                if path.is_symlink() or path.is_dir():
                    archive.addfile(member)
                    continue
                # Hard links would depend on how the files came here.
                member.type, member.linkname, member.size = tarfile.REGTYPE, "", path.stat().st_size
                with open(path, "rb") as content:
                    archive.addfile(member, content)
        stream.close()
    if packer.returncode:
        raise OSError(f"xz ended with {packer.returncode} on {target.name}")


def checksums(folder: Path) -> str:
    """Return a line for each file in ``folder``, as ``sha256sum --check`` reads them."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != "SHA256SUMS")
    return "".join(f"{sha256(path)}  {path.name}\n" for path in files)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
        return digest.hexdigest()
