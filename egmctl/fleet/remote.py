"""What runs on a node, and what came back from there.

The launcher runs two small POSIX shell scripts there. The outer one keeps watch: when its standard input ends, because
whoever asked closed it, was killed or lost the connection, it stops the command; and ``timeout`` of coreutils stops it
after its time even where no end of the connection is seen. So a bench never goes on by itself on a node. The inner one
looks at the version before it runs anything. Lines that begin with :data:`MARK` stand around the document, so that what
a login shell prints does not spoil it, and so that a broken connection is told from a command that broke.

Neither script holds a newline, a backslash, or an exclamation mark without a space behind it: csh and fish would read
them inside quotes.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from egmctl.model.command import Command
from egmctl.model.fleet import Asked

MARK = "egmctl-fleet"
KILL_AFTER_S = 10
"""Seconds that a stopped command has for ending its children before it is killed."""

_WATCH = (
    "exec 3<&0 </dev/null; mark=$1 seconds=$2 inner=$3; shift 3; "
    'echo; echo "$mark begin"; '
    f'timeout -k {KILL_AFTER_S} "$seconds" sh -c "$inner" "$mark" "$@" 3<&- & command=$! ; '
    '( while read -r line <&3; do :; done; kill "$command" ) >/dev/null 2>&1 & watch=$! ; '
    'exec 3<&-; wait "$command"; code=$?; kill "$watch" 2>/dev/null; '
    'echo; echo "$mark end $code"; exit "$code"'
)
_INNER = (
    'case $2 in "~/"*) tool=$HOME/${2#??} ;; *) tool=$2 ;; esac; '
    'command -v "$tool" >/dev/null 2>&1 || { echo "$0 lacks"; exit 127; }; '
    'seen=$("$tool" --version 2>/dev/null | head -n 1); '
    'echo "$0 version $seen"; case $1 in "" | "$seen") ;; *) exit 0 ;; esac; shift 2; exec "$tool" "$@"'
)


def remote_words(asked: Asked, timeout_s: int) -> list[str]:
    """Return the words of the command that the launcher is to run on a node."""
    json = [] if asked.command is Command.SNAPSHOT else ["--json"]
    # What a node says of its progress is no reason for anything.
    quiet = ["--quiet"] if asked.command in (Command.BENCH, Command.BRINGUP) else []
    words = [asked.remote_command, asked.command.value, *json, *quiet, *asked.arguments]
    return ["sh", "-c", _WATCH, MARK, MARK, str(timeout_s), _INNER, asked.version, *words]


def remote_line(asked: Asked, timeout_s: int) -> str:
    """Return the command as one line for the node's login shell, every word quoted."""
    return shlex.join(remote_words(asked, timeout_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The standard output of the command on a node, taken apart."""

    begun: bool
    """The scripts ran there."""
    version: str | None
    """What ``egmctl --version`` said; ``None`` where it was not asked."""
    lacks: bool
    """There is no egmctl."""
    document: bytes
    code: int | None
    """The command's exit code; ``None`` where the connection ended before."""


_VERSION = re.compile(rf"^{MARK} version (.*)\n".encode(), re.MULTILINE)
_LACKS = re.compile(rf"\n{MARK} lacks$".encode(), re.MULTILINE)
_END = re.compile(rf"\n?^{MARK} end ([0-9]+)$".encode(), re.MULTILINE)


def read_output(output: bytes) -> Output:
    """Take apart what a node sent."""
    begin = re.search(rf"^{MARK} begin$".encode(), output, re.MULTILINE)
    version = _VERSION.search(output, begin.end()) if begin else None
    start = version.end() if version else begin.end() if begin else 0
    # A document of hundreds of megabytes is not searched for its end: that stands in the last line, or nowhere.
    tail = max(start, len(output) - 4096)
    end = _END.search(output, tail) if begin else None
    return Output(
        begun=begin is not None,
        lacks=begin is not None and _LACKS.match(output, begin.end()) is not None,
        version=version[1].decode(errors="replace").strip() if version else None,
        document=output[start : end.start() if end else len(output)].strip(),
        code=int(end[1]) if end else None,
    )
