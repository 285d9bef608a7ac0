"""The command line that runs on a node, the judgement of its output, and that of the GPUs of all nodes together."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from statistics import mode

from egmctl.documents import FILE_LIMIT, check_schema, parse_object, short
from egmctl.errors import ERROR_SCHEMA, UsageError
from egmctl.fleet.folder import Folder
from egmctl.fleet.numbers import answerable, numbers_of, slot_of
from egmctl.model.answer import WORDS, State
from egmctl.model.answer import Asked as Question
from egmctl.model.bringup import Bringup
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import UNEXPLAINED, Status
from egmctl.model.fleet import Asked, FleetGpu, NodeResult, Reach, Readiness, Unready, UnreadyGpus
from egmctl.model.gpu import Gpu
from egmctl.model.machine import MACHINE_SCHEMA, Machine
from egmctl.model.measurement import BROKEN, RunReport
from egmctl.model.record import Command
from egmctl.model.verdict import BAD_GRADES, Grade
from egmctl.report.kinds import KINDS
from egmctl.saved import Saved, stated_answer
from egmctl.topology.platform import in_rack, multi_node
from egmctl.units import fold, format_size, grouped, printable

MARK = "egmctl-fleet"
KILL_AFTER_S = 10
"""Seconds that a stopped command has to end its children before it is killed."""

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
    """Return the command, as a list of words, that the launcher runs on a node."""
    json = [] if asked.command is Command.SNAPSHOT else ["--json"]
    # The last lines of standard error become the reason of a failure, so they must not be progress.
    quiet = ["--quiet"] if asked.command in (Command.BENCH, Command.BRINGUP) else []
    words = [asked.remote_command, asked.command.value, *json, *quiet, *asked.arguments]
    return ["sh", "-c", _WATCH, MARK, MARK, str(timeout_s), _INNER, asked.version, *words]


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
    code: int | None
    """The command's exit code; ``None`` if the connection ended before the command."""


_VERSION = re.compile(rf"^{MARK} version (.*)\n".encode(), re.MULTILINE)
_LACKS = re.compile(rf"\n{MARK} lacks$".encode(), re.MULTILINE)
_END = re.compile(rf"\n?^{MARK} end ([0-9]+)$".encode(), re.MULTILINE)


def read_output(output: bytes) -> Output:
    """Parse a node's output."""
    begin = re.search(rf"^{MARK} begin$".encode(), output, re.MULTILINE)
    version = _VERSION.search(output, begin.end()) if begin else None
    start = version.end() if version else begin.end() if begin else 0
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
class Outcome:
    """What became of a node: its document's answer, or why there is none."""

    reach: Reach
    reason: str = ""
    state: State = State.BROKE
    word: str = ""
    sentence: str = ""


def judge(asked: Asked, folder: Folder, ended: Ended, timeout_s: float) -> NodeResult:
    """Return the outcome on a node; keep its document in the folder, and remove any other output.

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
        outcome = Outcome(Reach.INTERRUPTED, "stopped by Ctrl-C", State.INTERRUPTED)
    reason = outcome.reason
    if has_result:
        file = folder.keep(ended.node, output.document)
        reason += "; its results so far are kept" if outcome.reach is not Reach.ANSWERED else ""
    else:
        file = ""
        folder.discard(ended.node)
    return NodeResult(
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


def _without_document(asked: Asked, ended: Ended, output: Output, timeout_s: float) -> Outcome | None:
    """Return why there cannot be a document; ``None`` if there should be one."""
    words = _words(ended.errors)
    if ended.flooded:
        return Outcome(Reach.FLOODED, f"it sent more than {format_size(OUTPUT_LIMIT)} and was stopped")
    if ended.out_of_time and output.code is None:
        what = "the command did not end" if output.begun else "no command was started there"
        return Outcome(Reach.TIMED_OUT, f"{what} in {ended.duration_s:.0f} s")
    if not output.begun:
        how = f"ended with {ended.code}" if ended.code >= 0 else f"was ended by signal {-ended.code}"
        return Outcome(Reach.UNREACHABLE, words or f"the launcher {how} without a message")
    if output.code is None:
        return Outcome(Reach.LOST, words or "the connection ended before the command")
    if output.code == 124 or (output.code == 128 + signal.SIGKILL and ended.duration_s >= timeout_s):
        return Outcome(Reach.TIMED_OUT, f"the command did not end in {timeout_s:g} s and was stopped")
    if output.lacks:
        where = "there" if "/" in asked.remote_command else "in the PATH of a session without a login"
        what = f"there is no {printable(asked.remote_command)} {where}"
        return Outcome(Reach.NO_EGMCTL, f"{what}; give its path with --remote-command")
    if output.version is None:
        return Outcome(Reach.GARBAGE, words or f"the command ended with {output.code} before it said its version")
    if not output.version.startswith("egmctl "):
        said = repr(printable(output.version[:80])) if output.version else "nothing"
        return Outcome(Reach.GARBAGE, f"'{asked.remote_command} --version' says {said}")
    if asked.version and output.version != asked.version:
        return Outcome(Reach.WRONG_VERSION, f"{printable(output.version[:80])}, not {asked.version}; nothing was run")
    return None


def _document(asked: Asked, ended: Ended, output: Output) -> Outcome:
    """Return the outcome by the document or whatever is in its place."""
    words = _words(ended.errors)
    if not output.document:
        return Outcome(Reach.FAILED, words or f"the command ended with {output.code} without a message")
    source = "what it sent"
    try:
        document = parse_object(output.document, source, "result of egmctl")
        schema = check_schema(document, (SCHEMAS[asked.command], ERROR_SCHEMA), source, "result of egmctl")
        if schema == MACHINE_SCHEMA:
            return Outcome(Reach.ANSWERED, state=State.GOOD, word=WORDS[Question.DOCTOR][State.GOOD])
        if schema == ERROR_SCHEMA or document.get("result") is None:
            match document.get("errors"):
                case [{"message": str(message)}, *_]:
                    words = _shortened(message)
            return Outcome(Reach.FAILED, words)
        answer = stated_answer(document, source)
    except UsageError as error:
        return Outcome(Reach.GARBAGE, _shortened("; ".join(filter(None, (str(error), words)))))
    if answer.state is State.INTERRUPTED:
        # This command was not interrupted, so the node has no answer for it.
        return Outcome(Reach.INTERRUPTED, "the command was interrupted there")
    return Outcome(Reach.ANSWERED, "", answer.state, answer.word, _shortened(answer.sentence))


def _words(errors: str) -> str:
    """Return the last two lines of standard error that are not empty, as one line."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    return _shortened("; ".join(lines[-2:]).removeprefix("egmctl: "))


def _shortened(text: str) -> str:
    """Return a message of a launcher or node, printable and cut to the length of a reason."""
    return short(printable(text))


# --- the domain ------------------------------------------------------------------------------------------------------

Identity = tuple[str | None, int | None]
"""A cluster UUID, as a pseudonym, and a clique; of a GPU in no domain, ``None`` and the clique that NVML reports."""
UNKNOWN: Identity = (None, None)


def judged_gpus(
    asked: Asked, answers: Sequence[NodeResult], loaded: Mapping[str, Saved]
) -> tuple[list[NodeResult], Readiness | None]:
    """Return the answers with the state of each GPU, and which GPUs are ready as parts of their NVLink domain.

    Nodes deviate if most GPUs of their cluster are in another clique, or if they are alone in theirs and others are
    not; with ``--expect domain-gpus=N``, if they are not in the largest clique. A silent node is assumed to have as
    many GPUs as most others.

    Parameters
    ----------
    loaded
        The results of the nodes that answered.
    """
    if asked.command not in (Command.DOCTOR, Command.BRINGUP, Command.BENCH):
        return list(answers), None
    machines = {node: machine for node, saved in loaded.items() for machine in saved.machines}
    domains = {node: {gpu.bus_id: _identity(m, gpu) for gpu in m.gpus or ()} for node, m in machines.items()}
    # HGX boards beside a rack are no part of the answer, unless a number of GPUs is expected.
    boards = {node for node, m in machines.items() if m.gpus and not any(in_rack(m, gpu) for gpu in m.gpus)}
    boards = boards if asked.domain_gpus is None else set()
    racks = {node: of_node for node, of_node in domains.items() if node not in boards}
    expected = asked.domain_gpus if loaded else None
    homes = _homes(racks, expected)
    usual = mode(map(len, (racks or domains).values())) if domains else 0
    judged: list[NodeResult] = []
    for answer in answers:
        node, own = answer.node, domains.get(answer.node, {})
        states: dict[str, FleetGpu] = {}
        expects = None if node in boards else homes
        for bus_ids, state in _states(answer, loaded[node].result, own, expects) if own else ():
            states = dict.fromkeys(bus_ids, state) | states
        gpus, slot = [], None
        if (machine := machines.get(node)) is not None:
            slot, numbers = slot_of(machine), numbers_of(machine, loaded[node].result)
            for bus_id in own:
                known = numbers[bus_id]
                gpus.append(
                    replace(
                        states.get(bus_id, FleetGpu()),
                        index=machine.gpu(bus_id).index,
                        share=known.share,
                        links_active=known.links_active,
                        links=known.links,
                    )
                )
        kind = Unready.MISSING if node in domains else Unready.UNKNOWN
        lacking = 0 if node in boards and racks else usual - len(own)
        gpus += [FleetGpu(kind=kind, reason=answer.reach.value)] * lacking
        home = next((f"cluster {own[0]}, clique {own[1]}" for own in own.values() if own in (homes or ())), "")
        judged.append(replace(answer, gpus=tuple(gpus), domain=home, slot=slot))
    if asked.command is Command.BENCH or homes is None:
        return judged, None
    return judged, _readiness([answer for answer in judged if answer.node not in boards], expected, len(homes))


def _homes(racks: Mapping[str, Mapping[str, Identity]], expected: int | None) -> Sequence[Identity] | None:
    """Return where the GPUs of the nodes are expected; ``None`` if none is in a domain and no number is expected."""
    # The node of each GPU of a domain.
    members = grouped((own, node) for node, of_node in racks.items() for own in of_node.values() if own[0])
    if not members and not expected:
        return None
    ordered = sorted(members, key=lambda own: -len(members[own]))
    largest = {own[0]: len(members[own]) for own in reversed(ordered)}
    homes = [own for own in ordered if len(members[own]) == largest[own[0]] and len({*members[own]}) > 1] or ordered
    return homes[:1] if expected else homes


def _readiness(answers: Sequence[NodeResult], expected: int | None, domains: int) -> Readiness:
    """Return which GPUs of the nodes are ready."""
    lost = [
        (UnreadyGpus(kind=state.kind, label=label, reason=state.reason, clique_id=state.clique_id), answer.node)
        for answer in answers
        for label, number, state in answer.by_state
        if state.kind is not None
        for _ in range(number)
    ]
    unready = [
        replace(part, nodes=tuple(dict.fromkeys(nodes)), folded=fold(nodes), gpus=len(nodes))
        for part, nodes in sorted(grouped(lost).items(), key=lambda item: list(Unready).index(item[0].kind))
    ]
    known = sum(len(answer.gpus) for answer in answers)
    return Readiness(gpus=known, ready=known - len(lost), expected=expected, domains=domains, unready=tuple(unready))


def _states(
    answer: NodeResult, result: object, domains: Mapping[str, Identity], homes: Sequence[Identity] | None
) -> Iterator[tuple[Iterable[str], FleetGpu]]:
    """Yield GPUs of a node by bus id with their state, the gravest first: the domain, findings, paths, warnings."""
    for own, members in grouped((own, bus_id) for bus_id, own in domains.items()).items():
        if homes is not None and own not in (UNKNOWN, *homes):
            yield members, FleetGpu(kind=Unready.OUTSIDE, clique_id=own[1])
    run = result.run if isinstance(result, Bringup) else result if isinstance(result, RunReport) else None
    causes = result.answer.causes if isinstance(result, Diagnosis | Bringup | RunReport) else ()
    # What crashed, or was slow beside others, proves nothing: the node's answer says so too.
    proven = {number for cause in causes if cause.state is State.BAD for number in cause.measurements}
    paths = [] if run is None else sorted(_slow_paths(run), key=lambda path: path[:2])
    failed = False
    for cause in causes:
        gpus = cause.finding.place.gpus
        # The paths of the run say whose paths no cause explains.
        if cause.status is Status.FAIL and not (cause.finding.check == UNEXPLAINED and paths):
            failed = True
            yield domains if gpus is None else gpus, FleetGpu(kind=Unready.FAULT, reason=cause.finding.summary)
    for _, _, number, ends, reason in paths:
        if number in proven:
            failed = True
            yield ends, FleetGpu(kind=Unready.FAULT, reason=reason)
    # A failure sets the state, whatever else is unknown.
    is_unknown = isinstance(result, Diagnosis) and bool(result.answer.gaps)
    unclear = answer.state not in (State.GOOD, State.WARN) and (not failed or is_unknown)
    rest = [bus_id for bus_id, own in domains.items() if unclear or (homes is not None and own == UNKNOWN)]
    yield rest, FleetGpu(kind=Unready.UNKNOWN, reason=answer.reach.value)
    for cause in causes:
        if cause.status is Status.WARN and cause.finding.place.gpus:
            yield cause.finding.place.gpus, FleetGpu(reason=cause.finding.summary)
    for _, _, _, ends, reason in paths:
        yield ends, FleetGpu(reason=reason)


def _slow_paths(run: RunReport) -> Iterator[tuple[Grade, float, int, Collection[str], str]]:
    """Yield the grade, the speed as a share of what is expected, the measurement, the GPUs and the reason of each path
    that fails or warns.

    The GPUs are those of its cause, else those that are outliers among their peers, else all on the path.
    """
    gpus = answerable(run)
    bad = [
        (number, Grade.FAIL, 0.0, m.reason or m.status)
        for number, m in enumerate(run.measurements)
        if m.status in BROKEN
    ]
    for entry in run.verdict.judged if run.verdict else ():
        worst = min(entry.judgements, key=lambda judgement: list(Grade).index(judgement.grade))
        share = worst.value / worst.expected if worst.expected else 1.0
        if worst.grade in BAD_GRADES:
            bad.append((entry.measurement, worst.grade, min(share, 1 / share), worst.reason))
    for number, grade, share, reason in bad:
        yield grade, share, number, gpus(number), reason


def _identity(machine: Machine, gpu: Gpu) -> Identity:
    """Return the domain and clique of a GPU."""
    info = gpu.nvml.fabric if gpu.nvml else None
    if info is None or not info.registered:
        return UNKNOWN
    return info.identity if info.has_clique and multi_node(machine, gpu) else (None, info.clique_id)
