"""Builds deb and rpm of the folder with nfpm: the folder in /usr/lib/egmctl, and links to it in standard places."""

from __future__ import annotations

import json
import os
import subprocess
from datetime import datetime, timezone
from pathlib import Path

from artifacts.folder import COMPLETIONS, GUIDE

PLACE = "/usr/lib/egmctl"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""nfpm's names of architectures, which are Debian's; nfpm translates them for rpm."""

HOMES = {
    "deb": {"zsh/site-functions/_egmctl": "zsh/vendor-completions/_egmctl"},
    "rpm": {},
}
"""The paths below /usr/share that differ in a kind of package."""


DEPENDS = {
    "deb": ["libc6 (>= 2.30)", "libgcc-s1", "libstdc++6"],
    # As rpm derives them from the libraries, because names of packages differ (SUSE: libgcc_s1, libstdc++6).
    "rpm": ["libc.so.6(GLIBC_2.30)(64bit)", "libgcc_s.so.1()(64bit)", "libstdc++.so.6()(64bit)"],
}
"""The libraries of C and C++, the only ones from the system except the driver's. tools/proof/portable.py checks it."""


def make_package(kind: str, folder: Path, target: Path, version: str, arch: str, epoch: int, nfpm: Path) -> None:
    """Write a ``deb`` or ``rpm`` of the folder to ``target``."""
    links = {"/usr/bin/egmctl": f"{PLACE}/bin/egmctl", "/usr/share/doc/egmctl/guide": f"{PLACE}/{GUIDE}"}
    for place in COMPLETIONS.values():
        links[f"/usr/share/{HOMES[kind].get(place, place)}"] = f"{PLACE}/share/{place}"
    contents: list[dict[str, object]] = [{"src": f"{folder}/", "dst": PLACE, "type": "tree"}]
    contents += [{"src": source, "dst": at, "type": "symlink"} for at, source in links.items()]
    manual: dict[str, object] = {"src": f"{folder}/share/man/man1/egmctl.1", "dst": "/usr/share/man/man1/egmctl.1"}
    licence: dict[str, object] = {"src": f"{folder}/share/LICENSE", "dst": "/usr/share/doc/egmctl/copyright"}
    # rpm removes only the folders that the package lists.
    own: dict[str, object] = {"dst": "/usr/share/doc/egmctl", "type": "dir", "file_info": {"mode": 0o755}}
    contents += [own, manual, licence]
    settings = {
        "name": "egmctl",
        "arch": ARCHITECTURES[arch],
        "version": version,
        "release": "1",
        "mtime": datetime.fromtimestamp(epoch, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "section": "admin",
        "maintainer": "The egmctl authors <egmctl@localhost>",
        "description": "Maps, measures and diagnoses NVIDIA GPU nodes during bring-up",
        "license": "Apache-2.0",
        "depends": DEPENDS[kind],
        "contents": contents,
        "deb": {"compression": "zstd"},
        "rpm": {"compression": "zstd", "buildhost": "localhost"},
    }
    at = target.with_suffix(".yaml")
    at.write_text(json.dumps(settings))
    try:
        command = (nfpm, "package", "--config", at, "--packager", kind, "--target", target)
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    finally:
        at.unlink()
