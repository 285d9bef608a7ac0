"""Clean systems to test artefacts in: root folders of distributions, each with an empty layer and without network."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

NODE = f"/srv/egmctl-proof-{os.getpid()}"
"""The path of the fake node in each system; the environment contains its library path."""


@dataclass(frozen=True)
class System:
    """One release of a distribution."""

    suite: str
    ubuntu: bool = False
    forms: Sequence[str] = ("folder", "deb", "rpm")
    """The forms that can be installed there."""
    fake_node: bool = True
    """Whether the fake driver, which is compiled for this machine's glibc, runs there."""
    packages: Sequence[str] = ("rpm", "xz-utils")


SYSTEMS = {
    # Its glibc, 2.31, is older than that of RHEL 9 (2.34). Its dpkg does not read zstd, its Python is 3.9.
    "debian11": System("bullseye", forms=("folder",), fake_node=False),
    "debian12": System("bookworm"),
    "debian13": System("trixie"),
    "ubuntu22.04": System("jammy", ubuntu=True),
    "ubuntu24.04": System("noble", ubuntu=True),
    # Its Python is the newest that pyproject.toml declares, with the C++ library that CUDA's bindings need.
    "ubuntu26.04": System("resolute", ubuntu=True, packages=("rpm", "xz-utils", "python3", "libstdc++6")),
}
EMULATED = ("debian12",)
"""The systems in which artefacts of another architecture run."""

_SCRIPTS = Path("/usr/share/debootstrap/scripts")
_ENTER = Path(__file__).with_name("inside.sh")


def make_root(name: str, arch: str, cache: Path) -> Path:
    """Return the root folder of a system with rpm, from the cache or newly created.

    Raises
    ------
    SystemExit
        It cannot be made here; the message says why.
    """
    system = SYSTEMS[name]
    native = arch == os.uname().machine
    root = cache / "roots" / (system.suite if native else f"{system.suite}-{arch}")
    if root.exists():
        return root
    root.parent.mkdir(parents=True, exist_ok=True)
    new = root.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    command = _bootstrap(system, new) if native else _extract(system, arch, new)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{command[0]} of {name} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-1000:]}")
    new.rename(root)
    return root


def _bootstrap(system: System, new: Path) -> list[str | Path]:
    # Debian lacks Ubuntu's keys, and vice versa. Unsigned packages are acceptable: programs in these roots have no
    # network.
    command: list[str | Path] = ["debootstrap", "--variant=minbase", "--no-check-gpg"]
    command.append(f"--include={','.join(system.packages)}")
    if not system.ubuntu:
        return [*command, system.suite, new]
    # All releases of Ubuntu use the same script; an older debootstrap does not know the names of newer ones.
    script = _SCRIPTS / (system.suite if (_SCRIPTS / system.suite).exists() else "jammy")
    return [*command, "--components=main,universe", system.suite, new, "http://archive.ubuntu.com/ubuntu", script]


def _extract(system: System, arch: str, new: Path) -> list[str | Path]:
    """Return the command that unpacks packages without their install scripts, which take minutes under emulation."""
    names = {"x86_64": "amd64", "aarch64": "arm64"}
    packages = "dash,coreutils,util-linux,libc-bin,rpm,dpkg,sed,grep,tar,diffutils,xz-utils"
    return [
        "mmdebstrap",
        "--quiet",
        f"--architectures={names[arch]}",
        "--variant=extract",
        f"--include={packages}",
        system.suite,
        new,
    ]


def emulate(arch: str) -> str | None:
    """Enable programs of another architecture through qemu-user; return why it is impossible, or ``None``."""
    if arch == os.uname().machine:
        return None
    registry = Path("/proc/sys/fs/binfmt_misc")
    if shutil.which(f"qemu-{arch}-static") is None:
        return f"there is no qemu-{arch}-static (Debian: qemu-user-static)"
    if not (registry / "register").exists():
        subprocess.run(("mount", "-t", "binfmt_misc", "binfmt_misc", registry), check=False, capture_output=True)
    if not (registry / f"qemu-{arch}").exists():
        subprocess.run(("update-binfmts", "--enable", f"qemu-{arch}"), check=False, capture_output=True)
    return None if (registry / f"qemu-{arch}").exists() else "binfmt_misc cannot be had here"


class Inside:
    """A system's root folder, in which commands run without network, in PID and mount namespaces of their own."""

    def __init__(self, root: Path, files: Path) -> None:
        self._root, self._files = root, files
        (root / NODE.lstrip("/")).mkdir(parents=True, exist_ok=True)
        for place in ("home/u", "artefacts"):
            (root / place).mkdir(parents=True, exist_ok=True)
        os.chown(root / "home/u", 1000, 1000)

    def run(self, command: str, user: int, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a shell command in the system as a user id."""
        outside = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child"]
        outside += ["sh", str(_ENTER), str(self._root), str(self._files), NODE, str(user), command]
        home = "/root" if user == 0 else "/home/u"
        plain = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": home, "LC_ALL": "C.UTF-8"}
        Path(NODE, "calls.log").unlink(missing_ok=True)
        return subprocess.run(
            outside, env={**plain, **environment}, capture_output=True, text=True, check=False, timeout=1800
        )


@contextlib.contextmanager
def overlay(root: Path) -> Iterator[tuple[Path, Path]]:
    """Mount an overlay with an empty layer on a system's root; yield the merged folder and the layer."""
    with tempfile.TemporaryDirectory(prefix="egmctl-overlay-") as scratch:
        upper, work, merged = (Path(scratch, name) for name in ("upper", "work", "merged"))
        for path in (upper, work, merged):
            path.mkdir()
        layers = f"lowerdir={root},upperdir={upper},workdir={work}"
        subprocess.run(("mount", "-t", "overlay", "overlay", "-o", layers, merged), check=True)
        try:
            yield merged, upper
        finally:
            subprocess.run(("umount", merged), check=True)


def left_in(layer: Path) -> set[str]:
    """Return the paths in the layer, except users' caches and journals and the package manager's records.

    Only folders named egmctl are included: a shared folder appears in the layer as soon as a file below it is written.
    """
    own = (
        "home/u/.cache",
        "root/.cache",
        "home/u/.local/state/egmctl",
        "root/.local/state/egmctl",
        "var/lib/dpkg",
        "var/log",
        "var/cache",
        "rpmdb",
        "tmp",
    )
    found = {path.relative_to(layer).as_posix() for path in layer.rglob("*")}
    return {
        name
        for name in found
        if not name.startswith(own) and ("egmctl" in Path(name).name or not (layer / name).is_dir())
    }


def main(names: Sequence[str]) -> None:
    """Make the roots of systems of this architecture side by side: ``python3 tools/proof/systems.py debian12``.

    Downloading and unpacking them waits for the network, so it can be done while something else works.
    """
    cache = Path(__file__).resolve().parents[2] / "build" / "dist"
    with ThreadPoolExecutor() as beside:
        for _ in beside.map(lambda name: make_root(name, os.uname().machine, cache), names):
            pass


if __name__ == "__main__":
    main(sys.argv[1:])
