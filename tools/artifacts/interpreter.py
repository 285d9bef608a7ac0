"""The Python inside the folder: CPython from Debian's source package, built in a root of Debian 11 and kept for later.

No package index has a maintained interpreter that can be carried around, and a system's own is bound to its glibc.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "3.13.5"
SOURCE = "3.13.5-2+deb13u5"
"""The version of Debian 13's source package python3.13. When Debian replaces it, enter the new version and sums."""

SUMS = {
    f"python3.13_{VERSION}.orig.tar.xz": "93e583f243454e6e9e4588ca2c2662206ad961659863277afcdb96801647d640",
    f"python3.13_{SOURCE}.debian.tar.xz": "a51f456e654ce2c9b40cc1db8005e5041cdb0b2c3aa96ab0871c49fe95280366",
}
PACKAGES = {
    "x86_64": ("gcc", "make", "libc6-dev", "patch", "xz-utils", "libffi-dev", "zlib1g-dev"),
    "aarch64": ("gcc-aarch64-linux-gnu", "libc6-dev-arm64-cross", "libffi-dev:arm64", "zlib1g-dev:arm64"),
}
SCRIPT = Path(__file__).with_name("build_python.sh")
FETCH = Path(__file__).with_name("fetch_python.sh")
BUILD_DATE = 1750000000
"""The build time that CPython reports, in seconds since 1970: the same in each build."""


def interpreter(arch: str, cache: Path) -> Path:
    """Return a tar of ``python/`` for ``x86_64`` or ``aarch64``, from the cache or newly built.

    Parameters
    ----------
    cache
        The folder of built tars. Their names contain a hash of their sources.

    Raises
    ------
    SystemExit
        It cannot be built here; the message says why.
    """
    scripts = SCRIPT.read_bytes() + FETCH.read_bytes()
    identity = hashlib.sha256(repr((SUMS, PACKAGES, BUILD_DATE)).encode() + scripts).hexdigest()[:16]
    wanted = cache / f"python-{VERSION}-{arch}-{identity}.tar"
    if not wanted.exists():
        cache.mkdir(parents=True, exist_ok=True)
        _build(arch, cache, identity)
    return wanted


def _build(arch: str, cache: Path, identity: str) -> None:
    if shutil.which("mmdebstrap") is None:
        sys.exit("make dist: building the folder's Python needs mmdebstrap (Debian and Ubuntu: apt install mmdebstrap)")
    # aarch64 is cross compiled by the native one.
    architectures = ("x86_64",) if arch == "x86_64" else ("x86_64", "aarch64")
    work = cache / f"build-{os.getpid()}"
    work.mkdir()
    (work / "SHA256SUMS").write_text("".join(f"{value}  {name}\n" for name, value in SUMS.items()))
    environment = f"SOURCE_DATE_EPOCH={BUILD_DATE}"
    hooks = (
        'mkdir "$1/build"',
        f'cp "{SCRIPT}" "{FETCH}" "{work}/SHA256SUMS" "$1/build/"',
        f'chroot "$1" env {environment} sh /build/{FETCH.name} {SOURCE} {" ".join(architectures)}',
        *(f'cp "$1/build/python-{each}.tar" "{work}/"' for each in architectures),
    )
    command = ["mmdebstrap", "--quiet", "--variant=apt", "--skip=cleanup/apt"]
    if "aarch64" in architectures:
        command.append("--architectures=amd64,arm64")
    command.append(f"--include={','.join(name for each in architectures for name in PACKAGES[each])}")
    # Only the published release, which stays available; archives of its updates are removed one architecture at a time.
    command.append('--setup-hook=sed -i "/security/d; /updates/d" "$1/etc/apt/sources.list"')
    command += [f"--customize-hook={hook}" for hook in hooks]
    print(f"building CPython {VERSION} for {' and '.join(architectures)}: some minutes", flush=True)
    try:
        # The hooks copy the results out of the root.
        subprocess.run([*command, "bullseye", "/dev/null"], check=True, stdin=subprocess.DEVNULL)
        for each in architectures:
            os.replace(work / f"python-{each}.tar", cache / f"python-{VERSION}-{each}-{identity}.tar")
    except subprocess.CalledProcessError as error:
        sys.exit(f"make dist: CPython was not built: mmdebstrap ended with {error.returncode}")
    finally:
        shutil.rmtree(work)
