"""Loads what the commands saved: any of their JSON documents, as the dataclass that it was written from.

A file comes from anywhere. Whatever is in it, loading gives a :class:`Saved`, or one sentence that names the file and
the bad part.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from egmctl.documents import check_schema, parse_object, read_content, refuse, short, stem
from egmctl.errors import ERROR_SCHEMA, UsageError
from egmctl.facts import replay
from egmctl.journal import read as journal
from egmctl.model.bringup import Bringup, bringup_fault
from egmctl.model.codec import DecodeError, from_json, to_json
from egmctl.model.command import Command
from egmctl.model.comparison import Comparison
from egmctl.model.diagnosis import Diagnosis, counts
from egmctl.model.fleet import FleetReport
from egmctl.model.gpu import are_fake
from egmctl.model.listing import CheckList, History, MachineList
from egmctl.model.machine import MACHINE_SCHEMA, Gpu, Machine, Origin, OriginKind
from egmctl.model.measurement import RunReport, run_fault
from egmctl.model.profile import Matched, MatchResult, ProfileList
from egmctl.topology.result import TopoResult
from egmctl.topology.topology import Topology, topology
from egmctl.units import printable
from egmctl.verdict.explain import with_causes

Result = RunReport | Diagnosis | Bringup | TopoResult | Machine

Digest = Comparison | FleetReport | History | ProfileList | Matched | MachineList | CheckList
"""What a command made of several results, or of what the tool knows."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEntry:
    """What went wrong, as the envelope has it."""

    code: str
    message: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """One file's content."""

    path: Path
    kind: Command | None
    """What wrote it; ``None`` where that ended before it had a result: the file does not say."""
    name: str
    """The file's stem, which stands for the node: a document without ``--full`` holds no name of a host. Of files
    with the same stem, their paths (:func:`load_all`)."""
    result: Result | None
    """``None`` where the command ended before it had one; ``errors`` says why."""
    tool: str
    """What wrote it: ``egmctl 0.1.0``."""
    exit_code: int | None = None
    """What the command ended with; ``None`` of a snapshot, which does not say."""
    origin: Origin | None = None
    """Where the facts came from; ``None`` where the command ended before it had a machine."""
    errors: tuple[ErrorEntry, ...] = ()
    missing: str | None = None
    """What is not in a journal though it was measured, in a sentence."""
    damaged: bool = False
    """Whether lines of a journal are damaged."""

    @property
    def machines(self) -> tuple[Machine, ...]:
        """The nodes that it is about, with pseudonyms."""
        if isinstance(self.result, Machine):
            return (self.result,)
        return () if self.result is None else self.result.machines

    @property
    def modelled(self) -> bool:
        """Whether a machine that it is about was put together from public documents."""
        origins = [*filter(None, [self.origin]), *(machine.origin for machine in self.machines)]
        return any(origin.kind is OriginKind.MODELLED for origin in origins)

    @property
    def fake(self) -> bool:
        """Whether GPUs that it is about are those of the fake driver of the tests."""
        names = [gpu.name for machine in self.machines for gpu in machine.gpus or ()]
        names += [gpu.name for gpu in self.result.gpus] if isinstance(self.result, RunReport) else []
        return are_fake(names)


_RESULTS: dict[str, tuple[Command, type[RunReport] | type[Diagnosis] | type[TopoResult]]] = {
    RunReport.SCHEMA: (Command.BENCH, RunReport),
    Diagnosis.SCHEMA: (Command.DOCTOR, Diagnosis),
    TopoResult.SCHEMA: (Command.TOPO, TopoResult),
}
_DIGESTS: dict[str, type[Comparison | FleetReport | History | ProfileList | MachineList | CheckList]] = {
    Comparison.SCHEMA: Comparison,
    FleetReport.SCHEMA: FleetReport,
    History.SCHEMA: History,
    ProfileList.SCHEMA: ProfileList,
    MachineList.SCHEMA: MachineList,
    CheckList.SCHEMA: CheckList,
}


_FLEET = "fleet.json"
"""The report in the folder that ``egmctl fleet`` writes."""


def load(path: str | os.PathLike[str]) -> Saved:
    """Return what a file holds that ``egmctl bench``, ``doctor``, ``topo`` or ``snapshot`` wrote.

    Raises
    ------
    UsageError
        If the file cannot be read or holds none of them; the sentence names the file and the place in it.
    """
    found = load_any(path)
    if isinstance(found, Comparison | FleetReport):
        refuse(f"file {path}", "was made of several results: give those")
    if not isinstance(found, Saved):
        refuse(f"file {path}", "is a list and no result of a node: 'egmctl show' shows it")
    return found


def load_any(path: str | os.PathLike[str]) -> Saved | Digest:
    """Return what a file holds that any command wrote, ``egmctl compare`` and ``fleet`` too.

    Raises
    ------
    UsageError
        As :func:`load`.
    """
    return load_document(path)[0]


def load_document(path: str | os.PathLike[str]) -> tuple[Saved | Digest, bytes | None]:
    """Return what a file holds as :func:`load_any`, and its JSON text: a pipe can be read only once.

    Of the folder of a fleet it is the fleet's report. A journal of a run has none: it is the report that the run would
    have given.

    Raises
    ------
    UsageError
        As :func:`load`.
    """
    file = Path(path)
    # Not by Path: that raises where a name is too long.
    if os.path.isfile(file / _FLEET):
        file /= _FLEET
    source = f"file {file}"
    content = read_content(file, source)
    if journal.is_journal(content):
        return _of_journal(journal.read(content, source, _run), file), None
    return _load(parse_object(content, source, "result of egmctl"), source, file), content


def load_journal(path: Path) -> journal.Kept:
    """Return what a journal holds, by the rules for every document.

    Raises
    ------
    UsageError
        If it cannot be read or is none.
    """
    return journal.read_file(path, _run)


def _run(body: Any, source: str) -> RunReport:
    run = _result(RunReport, body, source)
    if not isinstance(run, RunReport):
        raise TypeError("a result of another kind")
    return run


def _of_journal(kept: journal.Kept, file: Path) -> Saved:
    report = kept.report
    return Saved(
        path=file,
        kind=Command.BENCH,
        name=file.stem,
        result=report,
        tool="egmctl",
        exit_code=kept.exit_code,
        missing=kept.missing,
        damaged=kept.damage is not None,
        origin=report.machines[0].origin if report.machines else None,
    )


def _load(document: dict[str, Any], source: str, file: Path) -> Saved | Digest:
    known = (*_RESULTS, MACHINE_SCHEMA, Bringup.SCHEMA, *_DIGESTS, Matched.SCHEMA, ERROR_SCHEMA)
    schema = check_schema(document, known, source, "result of egmctl")
    body = document.get("result")
    if schema in _DIGESTS:
        digest: Digest = _decode(_DIGESTS[schema], body, source, "result")
        return digest
    if schema == MACHINE_SCHEMA:
        machine = replay.recorded(replay.decode(document, source), file)
        return Saved(
            path=file,
            kind=Command.SNAPSHOT,
            name=stem(file),
            result=machine,
            tool=f"egmctl {document.get('egmctl', '')}".strip(),
            origin=machine.origin,
        )
    envelope = _decode(_Envelope, {name: value for name, value in document.items() if name != "result"}, source)
    if schema == Matched.SCHEMA:
        return _matched(body, envelope, source)
    kind: Command | None = None
    result: Result | None = None
    if schema == Bringup.SCHEMA:
        kind, result = Command.BRINGUP, _bringup(body, source)
    elif schema != ERROR_SCHEMA:
        kind, cls = _RESULTS[schema]
        result = _result(cls, body, source)
    return Saved(
        path=file,
        kind=kind,
        name=stem(file),
        result=result,
        tool=envelope.tool,
        exit_code=envelope.exit_code,
        origin=envelope.machine,
        errors=envelope.errors,
    )


def load_all(paths: Iterable[str | os.PathLike[str]]) -> tuple[Saved, ...]:
    """Return what several files hold, each with a name of its own.

    Raises
    ------
    UsageError
        As :func:`load`, and where a file is named twice.
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


def viewed(saved: Saved | Digest) -> RunReport | Diagnosis | Topology | Bringup | Digest:
    """Return what the views of the command that wrote a file show; a snapshot is shown as its topology.

    Raises
    ------
    UsageError
        If the command ended without a result, or the file lacks the machine that it is about.
    """
    if isinstance(saved, Digest):
        return saved
    source = f"file {saved.path}"
    if saved.result is None:
        why = "; ".join(error.message for error in saved.errors) or "it does not say why"
        refuse(source, f"holds no result: {printable(why)}")
    if isinstance(saved.result, RunReport):
        # A journal holds no causes.
        return saved.result if saved.result.causes else with_causes(saved.result)
    if isinstance(saved.result, Bringup):
        return saved.result
    if not saved.machines:
        refuse(source, "holds no machine: run the command again")
    machine = dataclasses.replace(saved.machines[0], origin=saved.origin or saved.machines[0].origin)
    if isinstance(saved.result, Diagnosis):
        return dataclasses.replace(saved.result, machines=(machine,))
    return topology(machine) if isinstance(saved.result, Machine) else _topology(machine, saved.result)


def _topology(machine: Machine, result: TopoResult) -> Topology:
    """Judge the machine again, for the choice of GPUs and nodes that the result is about, in its order."""
    uuids = {entry.bus_id: entry.uuid for entry in result.gpus}
    gpus = {gpu.bus_id: _with_uuid(gpu, uuids.get(gpu.bus_id)) for gpu in machine.gpus or ()}
    if machine.gpus is not None:
        machine = dataclasses.replace(machine, gpus=tuple(gpus.values()))
    nodes = dict.fromkeys(route.numa_node for route in result.routes)
    nodes |= dict.fromkeys(node.id for node in result.numa_nodes if node.selected)
    return topology(machine, [gpus[bus_id] for bus_id in uuids if bus_id in gpus], list(nodes))


def _with_uuid(gpu: Gpu, uuid: str | None) -> Gpu:
    """Return a GPU with the UUID that the result states in place of the pseudonym."""
    if uuid is None:
        return gpu
    known = {name: source for name in ("proc", "nvml", "cuda") if (source := getattr(gpu, name)) is not None}
    return dataclasses.replace(
        gpu, **{name: dataclasses.replace(source, uuid=uuid) for name, source in known.items() if source.uuid}
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Envelope:
    tool: str
    exit_code: int
    machine: Origin | None
    errors: tuple[ErrorEntry, ...]


def _result(cls: type[RunReport] | type[Diagnosis] | type[TopoResult], body: Any, source: str) -> Result:
    if not isinstance(body, dict):
        refuse(source, "is not a valid result: result: expected an object")
    machines = body.get("machines")
    if not isinstance(machines, list) or not all(isinstance(one, dict) for one in machines):
        refuse(source, "is not a valid result: result.machines: expected a list of objects")
    result = _decode(cls, {**body, "machines": []}, source, "result")
    decoded = [replay.decode(one, source, f"result.machines[{place}]") for place, one in enumerate(machines)]
    whole: Result = dataclasses.replace(result, machines=tuple(decoded))
    if isinstance(whole, Diagnosis):
        whole = dataclasses.replace(whole, counts=counts(whole.findings))
    if isinstance(whole, RunReport) and (fault := run_fault(whole)):
        refuse(source, f"is not a valid result: {fault}")
    return whole


def _bringup(body: Any, source: str) -> Bringup:
    """Return a node's bring-up, whose parts are decoded as the documents of their own commands are."""
    if not isinstance(body, dict):
        refuse(source, "is not a valid result: result: expected an object")
    diagnosis = _result(Diagnosis, body.get("diagnosis"), source)
    run = None if body.get("run") is None else _run(body.get("run"), source)
    found: Bringup = _decode(Bringup, {**body, "diagnosis": to_json(diagnosis), "run": None}, source, "result")
    if not isinstance(diagnosis, Diagnosis):
        raise TypeError("a result of another kind")
    found = dataclasses.replace(found, diagnosis=diagnosis, run=run)
    if fault := bringup_fault(found):
        refuse(source, f"is not a valid result: {fault}")
    return found


def _matched(body: Any, envelope: _Envelope, source: str) -> Matched:
    result: MatchResult = _decode(MatchResult, body, source, "result")
    if envelope.machine is None:
        refuse(source, "is not a valid result: machine: there is none")
    if result.profile is not None and [one.profile for one in result.matches].count(result.profile) != 1:
        refuse(source, "is not a valid result: result.profile: it is not among result.matches")
    return Matched(origin=envelope.machine, result=result)


def _decode(cls: type[Any], data: Any, source: str, where: str = "") -> Any:
    try:
        return from_json(cls, data, where)
    except DecodeError as error:
        refuse(source, f"is not a valid result: {short(str(error))}")
