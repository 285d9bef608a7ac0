"""The command line that runs on a node, and the judgement of its output."""

from __future__ import annotations

import re
import signal
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from egmctl.dataclass import dataclass
from egmctl.documents import ENCODING, FILE_LIMIT, GZIP, check_schema, parse_object, short, unpacked
from egmctl.errors import ERROR_SCHEMA, UsageError
from egmctl.fleet.folder import Folder
from egmctl.model.answer import WORDS, CommandQuestion, State
from egmctl.model.fleet import NodeCommand, NodeResult, Reach
from egmctl.model.machine import MACHINE_SCHEMA
from egmctl.model.record import Command
from egmctl.report.kinds import KINDS
from egmctl.saved import stated_answer
from egmctl.units import format_size, printable

MARK = "egmctl-fleet"
KILL_AFTER_S = 10
"""Seconds that a stopped command has to end its children before it is killed."""


def remote_words(asked: NodeCommand, timeout_s: int) -> list[str]:
    """Return the command, as a list of words, that the launcher runs on a node."""
    json = [] if asked.command is Command.SNAPSHOT else ["--json"]
    # The last lines of standard error become the reason of a failure, so they must not be progress.
    quiet = ["--quiet"] if asked.command in (Command.BENCH, Command.BRINGUP) else []
    words = [asked.remote_command, asked.command.value, *json, *quiet, *asked.arguments]
    watch = ["sh", "-c", _one_line("node_watch.sh"), MARK, str(timeout_s), str(KILL_AFTER_S)]
    return [*watch, _one_line("node_command.sh"), asked.version, f"{ENCODING}={GZIP}", *words]


@cache
def _one_line(name: str) -> str:
    """Return a script of this folder as one line, without comments."""
    lines = (line.strip() for line in Path(__file__).with_name(name).read_text(encoding="ascii").splitlines())
    return " ".join(line for line in lines if not line.startswith("#"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """The standard output of the command on a node, parsed."""

    begun: bool
    """Whether the scripts ran there."""
    version: str | None
    """The first line of ``egmctl --version``; ``None`` if it did not run."""
    lacks: bool
    """Whether the node has no egmctl."""
    document: bytes
    """As it was sent: packed, or plain by an older egmctl."""
    code: int | None
    """The command's exit code; ``None`` if the connection ended before the command."""


_VERSION = re.compile(rf"^{MARK} version (.*)\n".encode(), re.MULTILINE)
_LACKS = re.compile(rf"\n{MARK} lacks$".encode(), re.MULTILINE)
_END = re.compile(rf"\n?^{MARK} end ([0-9]+)$".encode(), re.MULTILINE)


def read_output(output: bytes) -> Output:
    """Parse a node's output."""
    begin = re.search(rf"^{MARK} begin$".encode(), output, re.MULTILINE)
    version = _VERSION.search(output, begin.end()) if begin else None
    last = version or begin
    start = last.end() if last else 0
    # The end mark is in the last line or missing, so a large document need not be searched for it.
    tail = max(start, len(output) - 4096)
    end = _END.search(output, tail) if begin else None
    return Output(
        begun=begin is not None,
        lacks=begin is not None and _LACKS.match(output, begin.end()) is not None,
        version=version[1].decode(errors="replace").strip() if version else None,
        document=output[start : end.start() if end else len(output)].strip(),
        code=int(end[1]) if end else None,
    )


OUTPUT_LIMIT = FILE_LIMIT
"""The limit of a node's output in bytes. A larger document could not be read."""

SCHEMAS = {Command(kind.name): resolve_name(kind.record).SCHEMA for kind in KINDS if kind.name in list(Command)}
SCHEMAS[Command.SNAPSHOT] = MACHINE_SCHEMA
"""The schema of each command's document."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of the launcher's process for one node."""

    node: str
    code: int
    """The exit code of the process, or the negative number of the signal that ended it."""
    duration_s: float
    errors: str
    """The end of its standard error, from the launcher and from the node."""
    flooded: bool = False
    out_of_time: bool = False
    """Whether it was killed because it did not end in time."""
    interrupted: bool = False
    """Whether the run was being stopped by then, by a signal or an error of the folder."""


@dataclass(frozen=True, slots=True)
class NodeOutcome:
    """What became of a node: its document's answer, or why there is none."""

    reach: Reach
    reason: str = ""
    state: State = State.BROKE
    word: str = ""
    sentence: str = ""
    document: dict[str, Any] | None = None
    """The JSON data of its document."""
    file: bytes = b""
    """Its document as a gzip file."""


def judge_node(
    asked: NodeCommand, folder: Folder, ended: Ended, timeout_s: float
) -> tuple[NodeResult, dict[str, Any] | None]:
    """Return the outcome on a node, and the JSON data of the document that is its answer, if it gave one.

    The document is kept in the folder, and any other output removed.

    The document of a stopped command, with its results so far, is kept too, although it is not an answer.
    """
    output = read_output(b"" if ended.flooded else folder.sent(ended.node))
    document = _document(asked, ended, output)
    outcome = _without_document(asked, ended, output, timeout_s) or document
    has_result = document.reach in (Reach.ANSWERED, Reach.INTERRUPTED) and outcome.reach in (
        document.reach,
        Reach.TIMED_OUT,
    )
    if ended.interrupted and outcome.reach is not Reach.ANSWERED:
        outcome = NodeOutcome(Reach.INTERRUPTED, "stopped by Ctrl-C", State.INTERRUPTED)
    reason = outcome.reason
    if has_result:
        file = folder.keep(ended.node, document.file)
        reason += "; its results so far are kept" if outcome.reach is not Reach.ANSWERED else ""
    else:
        file = ""
        folder.discard(ended.node)
    answer = NodeResult(
        node=ended.node,
        reach=outcome.reach,
        state=outcome.state,
        word=outcome.word,
        sentence=outcome.sentence,
        reason=reason,
        version=(output.version or "")[:100],
        duration_s=round(ended.duration_s, 3),
        file=file,
    )
    return answer, document.document if answer.reach is Reach.ANSWERED else None


def _without_document(asked: NodeCommand, ended: Ended, output: Output, timeout_s: float) -> NodeOutcome | None:
    """Return why there cannot be a document; ``None`` if there should be one."""
    words = _words(ended.errors)
    if ended.flooded:
        return NodeOutcome(Reach.FLOODED, f"it sent more than {format_size(OUTPUT_LIMIT)} and was stopped")
    if ended.out_of_time and output.code is None:
        what = "the command did not end" if output.begun else "no command was started there"
        return NodeOutcome(Reach.TIMED_OUT, f"{what} in {ended.duration_s:.0f} s")
    if not output.begun:
        how = f"ended with {ended.code}" if ended.code >= 0 else f"was ended by signal {-ended.code}"
        return NodeOutcome(Reach.UNREACHABLE, words or f"the launcher {how} without a message")
    if output.code is None:
        return NodeOutcome(Reach.LOST, words or "the connection ended before the command")
    if output.code == 124 or (output.code == 128 + signal.SIGKILL and ended.duration_s >= timeout_s):
        return NodeOutcome(Reach.TIMED_OUT, f"the command did not end in {timeout_s:g} s and was stopped")
    if output.lacks:
        where = "there" if "/" in asked.remote_command else "in the PATH of a session without a login"
        what = f"there is no {printable(asked.remote_command)} {where}"
        return NodeOutcome(Reach.NO_EGMCTL, f"{what}; give its path with --remote-command")
    if output.version is None:
        return NodeOutcome(Reach.GARBAGE, words or f"the command ended with {output.code} before it said its version")
    if not output.version.startswith("egmctl "):
        said = repr(printable(output.version[:80])) if output.version else "nothing"
        return NodeOutcome(Reach.GARBAGE, f"'{asked.remote_command} --version' says {said}")
    if asked.version and output.version != asked.version:
        return NodeOutcome(
            Reach.WRONG_VERSION, f"{printable(output.version[:80])}, not {asked.version}; nothing was run"
        )
    return None


def _document(asked: NodeCommand, ended: Ended, output: Output) -> NodeOutcome:
    """Return the outcome by the document or whatever is in its place."""
    words = _words(ended.errors)
    if not output.document:
        return NodeOutcome(Reach.FAILED, words or f"the command ended with {output.code} without a message")
    source = "what it sent"
    try:
        content, file = unpacked(output.document, source)
        document = parse_object(content, source, "result of egmctl")
        schema = check_schema(document, (SCHEMAS[asked.command], ERROR_SCHEMA), source, "result of egmctl")
        if schema == MACHINE_SCHEMA:
            word = WORDS[CommandQuestion.DOCTOR][State.GOOD]
            return NodeOutcome(Reach.ANSWERED, state=State.GOOD, word=word, document=document, file=file)
        if schema == ERROR_SCHEMA or document.get("result") is None:
            match document.get("errors"):
                case [{"message": str(message)}, *_]:
                    words = _shortened(message)
            return NodeOutcome(Reach.FAILED, words)
        answer = stated_answer(document, source)
    except UsageError as error:
        return NodeOutcome(Reach.GARBAGE, _shortened("; ".join(filter(None, (str(error), words)))))
    if answer.state is State.INTERRUPTED:
        # This command was not interrupted, so the node has no answer for it.
        return NodeOutcome(Reach.INTERRUPTED, "the command was interrupted there", file=file)
    sentence = _shortened(answer.sentence)
    return NodeOutcome(Reach.ANSWERED, "", answer.state, answer.word, sentence, document, file)


def _words(errors: str) -> str:
    """Return the last two lines of standard error that are not empty, as one line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return _shortened("; ".join(lines[-2:]).removeprefix("egmctl: "))


def _shortened(text: str) -> str:
    """Return a message of a launcher or node, printable and cut to the length of a reason."""
    return short(printable(text))
