"""Load saved results: any JSON document of the commands, as the dataclass that it was written from.

The source of a file is not trusted. Loading returns a :class:`Saved` or raises an error of one sentence, which names
the file and the invalid part.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import Enum
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, cast

from egmctl import __version__
from egmctl.dataclass import dataclass
from egmctl.documents import check_schema, newer_schema, parse_object, read_content, refuse, short, stem
from egmctl.errors import ERROR_SCHEMA, UsageError
from egmctl.facts import replay
from egmctl.journal.read import JournalContent, is_journal, read_journal
from egmctl.model.answer import UNANSWERED, Answer, State, of_exit_code
from egmctl.model.bringup import Bringup
from egmctl.model.codec import DecodeError, Pool, Readers, from_json, reader_of_new_words
from egmctl.model.comparison import Comparison, Outcome
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.evidence import EvidenceReport, EvidenceState
from egmctl.model.explanation import Explanations
from egmctl.model.finding import Confidence
from egmctl.model.fleet import FleetReport
from egmctl.model.gpu import are_fake
from egmctl.model.listing import CheckList, History, MachineList
from egmctl.model.machine import MACHINE_SCHEMA, Machine, Origin, OriginKind
from egmctl.model.measurement import RunReport
from egmctl.model.profile import MatchResult, ProfileList
from egmctl.model.record import Command, Shown
from egmctl.model.remedy import Site
from egmctl.model.verdict import Grade
from egmctl.report.kinds import KINDS
from egmctl.topology.topology import Topology, topology
from egmctl.units import printable, shortened
from egmctl.verdict.answers import answered
from egmctl.verdict.explain import with_causes
from egmctl.verdict.trust import with_doubts

Result = RunReport | Diagnosis | Bringup | EvidenceReport | Topology | Machine
Digest = Comparison | FleetReport | History | ProfileList | MatchResult | MachineList | CheckList | Explanations
"""A result made from several results, or a list of built-in or local items."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """The content of one file."""

    path: Path
    kind: Command | None
    """The command that wrote the file. ``None`` for a digest and if the command ended without a result, because the
    file then does not state it."""
    name: str
    """The file name without extension, which identifies the node: a document without ``--full`` has no host name.
    The path, if several files have the same name (:func:`load_all`)."""
    result: Result | Digest | None
    """The result; ``None`` if the command ended without one, for the reason in ``failure``."""
    tool: str
    """The tool that wrote it: ``egmctl 0.1.0``."""
    exit_code: int | None = None
    """The command's exit code; ``None`` for a snapshot, which does not state it."""
    origin: Origin | None = None
    """The source of the facts; ``None`` if the command ended before it had a machine."""
    failure: str = ""
    """The reason why there is no result; empty if there is one."""
    missing: str | None = None
    """A sentence on the measurements that are missing in a journal."""
    damaged: bool = False
    """Whether lines of a journal are damaged."""
    newer: str = ""
    """A sentence on a file of a newer egmctl, with the words in it that this one does not know; empty for others."""
    content: bytes | None = dataclasses.field(default=None, repr=False, compare=False)
    """The JSON text, if :func:`load_any` read the file: a pipe can be read only once."""

    @property
    def machines(self) -> tuple[Machine, ...]:
        """The nodes that the result is about, with pseudonyms."""
        if isinstance(self.result, Machine):
            return (self.result,)
        return self.result.machines if isinstance(self.result, Result) else ()

    @property
    def modelled(self) -> bool:
        """Whether the result is about a model built from public documents."""
        origins = [*filter(None, [self.origin]), *(machine.origin for machine in self.machines)]
        return any(origin.kind is OriginKind.MODELLED for origin in origins)

    @property
    def fake(self) -> bool:
        """Whether the result is about GPUs of the tests' fake driver."""
        names = [gpu.name for machine in self.machines for gpu in machine.gpus or ()]
        names += [gpu.name for gpu in self.result.gpus] if isinstance(self.result, RunReport) else []
        return are_fake(names)


_KINDS = {resolve_name(kind.record).SCHEMA: kind for kind in KINDS}

_FLEET = "fleet.json"
"""The report in the folder of ``egmctl fleet``."""


def load(path: str | os.PathLike[str], pool: Pool | None = None) -> Saved:
    """Load a file of ``egmctl bench``, ``doctor``, ``bringup``, ``topo`` or ``snapshot``.

    Parameters
    ----------
    pool
        The records that the results of several files share.

    Raises
    ------
    UsageError
        The file cannot be read or contains none of these results. The message names the file and the invalid part.
    """
    return dataclasses.replace(_of_node(load_any(path, pool)), content=None)


def load_document(document: dict[str, Any], path: Path, pool: Pool | None = None) -> Saved:
    """Load the JSON data of a file, as :func:`load` does.

    Raises
    ------
    UsageError
        As for :func:`load`.
    """
    return _of_node(_load(document, f"file {path}", path, pool))


def _of_node(saved: Saved) -> Saved:
    if isinstance(saved.result, Comparison | FleetReport):
        refuse(f"file {saved.path}", "was made of several results: give those")
    if isinstance(saved.result, Digest):
        refuse(f"file {saved.path}", "is a list and no result of a node: 'egmctl show' shows it")
    return saved


def load_any(path: str | os.PathLike[str], pool: Pool | None = None) -> Saved:
    """Load a file of any command, including ``egmctl compare`` and ``fleet``.

    For the folder of a fleet, its report is loaded. A journal yields the report of its run; it has no JSON text.

    Parameters
    ----------
    pool
        As for :func:`load`.

    Raises
    ------
    UsageError
        As for :func:`load`, but for any document.
    """
    file = Path(path)
    # ``Path.is_file`` raises an error if a name is too long.
    if os.path.isfile(file / _FLEET):
        file /= _FLEET
    source = f"file {file}"
    content = read_content(file, source)
    if is_journal(content):
        kept = read_journal(content, source, partial(_result, RunReport))
        return Saved(
            path=file,
            kind=Command.BENCH,
            name=file.stem,
            result=answered(_explained(kept.report)),
            tool="egmctl",
            exit_code=kept.exit_code,
            missing=kept.missing,
            damaged=kept.damage is not None,
            origin=kept.report.machines[0].origin if kept.report.machines else None,
        )
    saved = _load(parse_object(content, source, "result of egmctl"), source, file, pool)
    return dataclasses.replace(saved, content=content)


def load_text(text: bytes, node: str) -> Saved:
    """Load the document of a node that is in no file.

    Raises
    ------
    UsageError
        The document is invalid. The message names the node and the invalid part.
    """
    source = f"the document of {node}"
    return _load(parse_object(text, source, "result of egmctl"), source, Path(f"{node}.json"))


def load_journal(path: Path) -> JournalContent:
    """Load a journal by the rules for all documents.

    Raises
    ------
    UsageError
        The file cannot be read or is no journal.
    """
    source = f"journal {path}"
    return read_journal(read_content(path, source), source, partial(_result, RunReport))


def _load(document: dict[str, Any], source: str, file: Path, pool: Pool | None = None) -> Saved:
    known = (*_KINDS, *_EARLIER, MACHINE_SCHEMA, ERROR_SCHEMA)
    news = _News(document, known)
    # A record from the pool would not say which words of a newer version it has.
    readers = {Pool: pool} if pool is not None and not news.readers else news.readers
    schema = news.read_as or check_schema(document, known, source, "result of egmctl")
    if schema == MACHINE_SCHEMA:
        try:
            machine = replay.recorded(replay.decode(document, source, readers=readers), file)
        except UsageError as error:
            raise news.refused(error, source) from error
        tool, command = f"egmctl {document.get('egmctl', '')}".strip(), Command.SNAPSHOT
        return Saved(
            path=file,
            kind=command,
            name=stem(file),
            result=machine,
            tool=tool,
            origin=machine.origin,
            newer=news.sentence,
        )
    kind, answer = _KINDS.get(_EARLIER.get(schema, schema)), document.get("answer")
    body = _of_earlier(schema, document.get("result")) if schema in _EARLIER else document.get("result")
    if answer is not None and isinstance(body, dict):
        body = body | {"answer": answer}
    try:
        others = {name: value for name, value in document.items() if name != "result"}
        envelope = _decode(_Envelope, others, source, readers=readers)
        record = None if kind is None else resolve_name(kind.record)
        result = None if record is None else _result(record, body, source, readers)
    except UsageError as error:
        raise news.refused(error, source) from error
    if answer is None and isinstance(result, Shown):
        result = answered(cast(Any, _explained(result)))
    messages = [error.message for error in envelope.errors] or [f"ended with {envelope.exit_code} without a result"]
    return Saved(
        path=file,
        kind=Command(kind.name) if kind and kind.name in list(Command) else None,
        name=stem(file),
        result=result,
        tool=envelope.tool,
        exit_code=envelope.exit_code,
        origin=envelope.machine,
        failure="; ".join(messages) if result is None else "",
        newer=news.sentence,
    )


_STANDS_FOR_NEW: dict[type[Enum], Enum] = {
    Confidence: Confidence.LOW,
    Grade: Grade.NO_REFERENCE,
    Outcome: Outcome.DIFFERENT,
    EvidenceState: EvidenceState.NOT_SETTLED,
    State: State.INCOMPLETE,
}
"""The members that stand for words of a newer version where code decides by them: none of these passes."""


class _News:
    """What a document has that this version does not know, if a newer egmctl has written it.

    In a document of this version, such a word is damage and is refused.

    Attributes
    ----------
    read_as
        The schema by which a document of a later schema is read; ``None`` if its schema is known.
    readers
        The functions with which it is decoded.
    """

    def __init__(self, document: dict[str, Any], known: Sequence[str]) -> None:
        self._schema = str(document.get("schema"))
        self._tool = f"egmctl {document['egmctl']}" if "egmctl" in document else str(document.get("tool", ""))
        self._words: dict[str, str] = {}
        self.read_as = newer_schema(document, known)
        self._is_newer = self.read_as is not None or _version(self._tool) > _version(f"egmctl {__version__}")
        self.readers: Readers = {Enum: reader_of_new_words(_STANDS_FOR_NEW, self._meet)} if self._is_newer else {}

    def _meet(self, word: str, where: str) -> None:
        self._words.setdefault(word, where)

    @property
    def sentence(self) -> str:
        """What a reader of the result has to know."""
        parts = [f"it has the schema {self._schema}, read as {self.read_as}"] if self.read_as else []
        if self._words:
            words = [f"{word!r} ({where})" for word, where in self._words.items()]
            parts.append(f"this version does not know {shortened(words, 3)}")
        tool = printable(short(self._tool))
        return f"of a newer egmctl ({tool}): {'; '.join(parts)}" if parts else ""

    def refused(self, error: UsageError, source: str) -> UsageError:
        """Return the error for a document that cannot be read, which may be because it is news."""
        if self.read_as is None:
            return UsageError(f"{error}; it is {self.sentence}") if self.sentence else error
        reason = str(error).removeprefix(short(source)).strip()
        return UsageError(
            f"{short(source)} has the schema {short(self._schema)!r}, of a newer version of egmctl: this one reads "
            f"{self.read_as}, and it {reason}"
        )


def _version(tool: str) -> tuple[int, ...]:
    """Return the numbers of a version, of ``egmctl 0.1.0``; empty if it is none."""
    match = re.match(r"egmctl ([0-9]{1,6})\.([0-9]{1,6})\.([0-9]{1,6})", tool, re.ASCII)
    return tuple(map(int, match.groups())) if match else ()


def load_all(paths: Iterable[str | os.PathLike[str]]) -> tuple[Saved, ...]:
    """Load several files, each with a distinct name.

    Raises
    ------
    UsageError
        As for :func:`load`, or a file is named twice.
    """
    loaded = [load(path) for path in paths]
    stems = Counter(saved.name for saved in loaded)
    named = tuple(
        saved if stems[saved.name] == 1 else dataclasses.replace(saved, name=str(saved.path)) for saved in loaded
    )
    for name, times in Counter(saved.name for saved in named).items():
        if times > 1:
            raise UsageError(f"file {short(name)} is named {times} times")
    return named


def viewed(saved: Saved) -> RunReport | Diagnosis | Topology | Bringup | EvidenceReport | Digest:
    """Return the record that the views of the writing command show; a snapshot is shown as its topology.

    Raises
    ------
    UsageError
        The command ended without a result, or the file lacks the machine that it is about.
    """
    result, source = saved.result, f"file {saved.path}"
    if result is None:
        refuse(source, f"holds no result: {printable(saved.failure)}")
    if isinstance(result, RunReport | Bringup | EvidenceReport | Digest):
        return result
    if not saved.machines:
        refuse(source, "holds no machine: run the command again")
    machine = dataclasses.replace(saved.machines[0], origin=saved.origin or saved.machines[0].origin)
    if isinstance(result, Diagnosis):
        return dataclasses.replace(result, machines=(machine,))
    return answered(topology(machine)) if isinstance(result, Machine) else answered(result.judged_again(machine))


def _explained(result: Any) -> Any:
    """Return a result of a journal, or of a version without answers, with the doubts and the causes of its run."""
    if isinstance(result, RunReport):
        doubted = with_doubts(result)
        return doubted if doubted.causes else with_causes(doubted)
    if isinstance(result, Bringup | EvidenceReport) and result.run is not None:
        return dataclasses.replace(result, run=with_doubts(result.run))
    return result


def stated_answer(document: dict[str, Any], source: str) -> Answer:
    """Return the answer of a document; of a version that stated none, it is decided now.

    Raises
    ------
    UsageError
        The document is invalid. The message names the source and the invalid part.
    """
    if document.get("answer") is not None:
        return cast(Answer, _decode(Answer, document["answer"], source, "answer"))
    result = _load(document, source, Path("-")).result
    return result.answer if isinstance(result, Shown) else UNANSWERED


# --- documents of earlier versions -----------------------------------------------------------------------------------

_EARLIER = {
    "egmctl.bringup/1": "egmctl.bringup/2",
    "egmctl.bench/2": "egmctl.bench/3",
    "egmctl.explain/1": "egmctl.explain/2",
    "egmctl.fleet/2": "egmctl.fleet/3",
}
"""The schemas of version 0.1, whose documents state no answer, and of its first builds, with those that read them."""


def _of_earlier(schema: str, body: Any) -> Any:
    """Return the result of a document of version 0.1 with the keys of this one; other keys are ignored."""
    if schema == "egmctl.bringup/1" and isinstance(body, dict):
        gaps = body.get("gaps")
        reasons = {gap.get("kind"): gap.get("reason") for gap in gaps or () if isinstance(gap, dict)}
        body = {name: value for name, value in body.items() if name in ("diagnosis", "run")}
        body["not_measured"] = reasons.get("not-measured") or ""
        body["no_fabric"] = reasons.get("fabric") or ""
    if schema == "egmctl.explain/1" and isinstance(body, dict):
        body = _with_remedies(body)
    if schema == "egmctl.fleet/2" and isinstance(body, dict):
        body = {name: value for name, value in body.items() if name != "answer"}
        nodes = body.get("answers")
        if isinstance(nodes, list):
            body["answers"] = [_node_of_earlier(node) for node in nodes]
    return _renamed(body)


def _with_remedies(value: Any) -> Any:
    """Return JSON data in which each known cause has a remedy: before, its keys were the cause's, and it was a text."""
    if isinstance(value, list):
        return [_with_remedies(item) for item in value]
    if not isinstance(value, dict):
        return value
    changed = {name: _with_remedies(item) for name, item in value.items()}
    if "cause" in changed and isinstance(changed.get("remedy"), str):
        is_for_host = changed.get("works_in") == [Site.HOST]
        changed["remedy"] = {
            "text": f"{'On the host: ' if is_for_host else ''}{changed['remedy']}",
            "look": changed.pop("look", None) or None,
            "run": changed.pop("run", None) or None,
            "needs": changed.pop("needs", []),
            "works_in": changed.pop("works_in", None) or list(Site),
            "idle": "the GPU",
        }
    return changed


def _node_of_earlier(node: Any) -> Any:
    """Return the outcome on a node of a fleet of version 0.1, which states an exit code and no state."""
    if not isinstance(node, dict) or "state" in node:
        return node
    code = node.get("exit_code")
    return node | {"state": of_exit_code(code if isinstance(code, int) else None).value}


def _renamed(value: Any) -> Any:
    """Return JSON data with ``measurements`` for ``explains``, in the causes of a run."""
    if isinstance(value, list):
        return [_renamed(item) for item in value]
    if not isinstance(value, dict):
        return value
    changed = {name: _renamed(item) for name, item in value.items()}
    if "finding" in changed and "explains" in changed:
        changed.setdefault("measurements", changed["explains"])
    return changed


@dataclass(frozen=True, slots=True, kw_only=True)
class _Error:
    code: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Envelope:
    tool: str
    exit_code: int
    machine: Origin | None
    errors: tuple[_Error, ...]


def _result(record: type[Any], body: Any, source: str, readers: Readers | None = None) -> Any:
    """Return the record in the key ``result``; its machines are decoded by the rules for machine files."""

    def read_machine(data: Any, where: str) -> Machine:
        if not isinstance(data, dict):
            raise DecodeError(f"{where}: expected an object")
        return replay.decode(data, source, where, readers)

    result = _decode(record, body, source, "result", {**(readers or {}), Machine: read_machine})
    if fault := getattr(result, "fault", None):
        refuse(source, f"is not a valid result: {fault}")
    return result


def _decode(record: type[Any], data: Any, source: str, where: str = "", readers: Readers | None = None) -> Any:
    try:
        return from_json(record, data, where, readers or {})
    except DecodeError as error:
        refuse(source, f"is not a valid result: {short(str(error))}")
