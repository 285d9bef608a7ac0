"""Brings egmctl to nodes: the folder of ``make dist`` goes by ssh into a bounded cache of the user's, and is run there.

Every node runs what was brought, also one that has an egmctl of its own: then all answers come from the same bytes. Two
connections a node: the first asks whether the copy is there and for which architecture it is, the second carries it and
holds it against its sum before it is unpacked. The scripts keep to what ``remote.py`` says about quoting.

Nodes may share the home directory, those of two architectures too: each has its own copy. A copy gets its name when it
is whole, and loses it before it is removed; one whose files were lost since (to a crash, or to whoever clears old
files) or changed is noticed by its list of them (:data:`egmctl.fleet.remote.WHOLE`), moved out of the way, and created
again.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from egmctl import __version__
from egmctl.errors import UsageError
from egmctl.fleet.remote import CACHE, LIST, MARK, SUMS, WHOLE
from egmctl.fleet.run import SSH_OPTIONS, Launch
from egmctl.launch.program import converse, kept
from egmctl.units import printable

KEPT = 3
"""Copies that stay, of each architecture: those used last."""
LOOK_S = 60
BRING_S = 1800
"""Seconds for a look, and for carrying a copy: 100 MB over a slow network."""

SAID_LIMIT = 1 << 16
"""Bytes that a node may say to a look, and of its errors: a login script may have its say before the mark."""

_NAME = re.compile(r"egmctl-(?P<version>[0-9][^-]*)-linux-(?P<arch>x86_64|aarch64)-.+\.tar\.xz")
_LOOK = (
    f'umask 077; cd "$HOME" && mkdir -p -m 700 {CACHE} && cd {CACHE} || exit 1; {WHOLE}'
    'arch=$(uname -m); copy=$1-$arch; if whole "$copy"; then touch "$copy"; echo "$0 has it"; exit; fi; '
    # Between the two another node of the same home may have made it anew.
    'if test -e "$copy" && old=$(mktemp -d new.XXXXXX) && mv -T "$copy" "$old/copy"; then '
    'if whole "$old/copy"; then mv -T "$old/copy" "$copy"; fi; rm -rf "$old"; fi; '
    'echo "$0 is $arch"'
)
_TAKE = (
    f'umask 077; cd "$HOME/{CACHE}" || exit 1; {WHOLE}'
    "arch=$(uname -m); copy=$1-$arch; new=$(mktemp -d new.XXXXXX) || exit 1; "
    'cat > "$new/file"; mkdir "$new/tree"; '
    'if echo "$2  $new/file" | sha256sum -c >/dev/null 2>&1; then '
    # Not the archive's old times: who clears old files would take them first.
    'tar -xmJf "$new/file" -C "$new/tree" --strip-components=1 && '
    f'sums "$new/tree" > "$new/sums" && test -s "$new/sums" && mv "$new/sums" "$new/tree/{SUMS}" && '
    f'files "$new/tree" > "$new/list" && test -s "$new/list" && mv "$new/list" "$new/tree/{LIST}" && '
    # It is there already where another node of the same home was faster.
    '{ mv -T "$new/tree" "$copy" || whole "$copy"; }; code=$?; '
    'else echo "what arrived is not what was sent" >&2; code=1; fi; '
    f'ls -t | grep -e "-$arch$" | tail -n +{KEPT + 1} | while read -r old; do mv -T "$old" "$new/$old"; done; '
    'rm -rf "$new"; find . -maxdepth 1 -name "new.*" -mtime +1 -exec rm -rf "{}" +; '
    'test $code -eq 0 && echo "$0 took it"'
)


@dataclass(frozen=True, slots=True)
class Folders:
    """Archives of one version, one for each architecture."""

    archives: Mapping[str, Path]
    sums: Mapping[str, str]

    @property
    def key(self) -> str:
        """Return what the names of the copies in a node's cache begin with; the architecture is their end."""
        return hashlib.sha256("".join(sorted(self.sums.values())).encode()).hexdigest()[:16]

    @property
    def remote_command(self) -> str:
        """Return egmctl's place on every node that it was brought to."""
        return f"~/{CACHE}/{self.key}-$(uname -m)/bin/egmctl"


def read_folders(paths: Sequence[Path], *, any_version: bool = False) -> Folders:
    """Return the archives, with their sums.

    Raises
    ------
    UsageError
        If one cannot be read, is not named as ``make dist`` names it, is of another version than this command, or is
        the second for its architecture.
    """
    archives: dict[str, Path] = {}
    sums: dict[str, str] = {}
    for path in paths:
        told = printable(str(path))
        match = _NAME.fullmatch(path.name)
        if match is None:
            raise UsageError(
                f"--bring {told}: its name is not egmctl-VERSION-linux-ARCH-....tar.xz, as make dist writes it"
            )
        if match["version"] != __version__ and not any_version:
            raise UsageError(f"--bring {told}: it is egmctl {match['version']}, and this is {__version__}")
        if match["arch"] in archives:
            raise UsageError(
                f"--bring {told}: there is one for {match['arch']} already; give one for each architecture"
            )
        try:
            with open(path, "rb") as file:
                digest = hashlib.sha256()
                while block := file.read(1 << 20):
                    digest.update(block)
        except OSError as error:
            raise UsageError(f"--bring {told}: {error.strerror}") from error
        archives[match["arch"]], sums[match["arch"]] = path, digest.hexdigest()
    return Folders(archives, sums)


def bring(folders: Folders, nodes: Sequence[str], launch: Launch, failed: Callable[[str, str], None]) -> None:
    """Bring the folders to nodes that lack them.

    Parameters
    ----------
    failed
        Told each node that has no copy afterwards, and why.
    """
    running: set[subprocess.Popen[bytes]] = set()
    threads = ThreadPoolExecutor(launch.fanout, thread_name_prefix="bring")
    try:
        tasks = {threads.submit(_bring, folders, node, launch, running): node for node in nodes}
        for task in as_completed(tasks):
            if reason := task.result():
                failed(tasks[task], reason)
    finally:
        # After an interruption nothing goes on.
        threads.shutdown(wait=False, cancel_futures=True)
        for process in list(running):
            # To its keeper, which ends all that ssh has started.
            process.terminate()


def _bring(folders: Folders, node: str, launch: Launch, running: set[subprocess.Popen[bytes]]) -> str:
    """Bring the copy to one node; return why there is none, or ``""``."""
    said, error = _ssh(node, launch, running, (_LOOK, folders.key), None, LOOK_S)
    if said == "has it":
        return ""
    arch = said.removeprefix("is ")
    if arch == said:
        return error
    if arch not in folders.archives:
        return f"it is {printable(arch)}, and --bring has a folder for {' and '.join(folders.archives)} only"
    take = (_TAKE, folders.key, folders.sums[arch])
    said, error = _ssh(node, launch, running, take, folders.archives[arch], BRING_S)
    return "" if said == "took it" else error


def _ssh(
    node: str,
    launch: Launch,
    running: set[subprocess.Popen[bytes]],
    script: Sequence[str],
    file: Path | None,
    timeout_s: int,
) -> tuple[str, str]:
    """Run a script on a node; return what stands behind its mark, and what went wrong."""
    own = ("-a", "-oForwardX11=no", "-oBatchMode=yes", f"-oConnectTimeout={launch.connect_timeout_s}")
    words = ["sh", "-c", script[0], MARK, *script[1:]]
    command = ["ssh", *launch.options, *SSH_OPTIONS.split(), *own, node, shlex.join(words)]
    with open(file or "/dev/null", "rb") as feed:
        process = subprocess.Popen(  # noqa: S603 - ssh, as the user's PATH has it, with words that were quoted
            kept(command, grace_s=timeout_s, passes_input=True),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        running.add(process)
        try:
            out, err = converse(process, feed, timeout_s=timeout_s, limit=SAID_LIMIT)
        except TimeoutError:
            return "", f"not done within {timeout_s} s"
        finally:
            running.discard(process)
    marked = re.findall(rf"^{MARK} (.*)$".encode(), out, re.MULTILINE)
    lines = err.decode(errors="replace").strip().splitlines()
    reason = printable(lines[-1]) if lines else f"ssh ended with {process.returncode}"
    return (marked[-1].decode(errors="replace") if marked else ""), reason
