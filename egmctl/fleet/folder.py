"""The folder of a fleet's answers: what is in it, and answers that are alike folded into one line."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from egmctl.documents import check_schema, read_object, refuse
from egmctl.errors import EgmctlError, UsageError
from egmctl.files import NEW_FILE, make_folder, open_folder, open_parent, path_of, write_whole
from egmctl.model import finding, fleet, measurement
from egmctl.model.bringup import Answer, Bringup
from egmctl.model.codec import DecodeError, from_json
from egmctl.model.command import Command
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.fleet import FleetReport, GroupLine, NodeGroup
from egmctl.model.machine import Machine
from egmctl.model.measurement import RunReport
from egmctl.model.verdict import Grade
from egmctl.report.document import plain
from egmctl.report.views.bench_answer import answer
from egmctl.report.views.bringup import root_of, verdict
from egmctl.report.views.causes import asked_words
from egmctl.saved import Saved
from egmctl.topology.notes import missing
from egmctl.topology.platform import platform
from egmctl.units import counted, gpu_name, printable

REPORT = "fleet.json"
NODES = "nodes"


class Folder:
    """A folder of results.

    Parameters
    ----------
    path
        It has to be there already, with its folder of nodes: see :func:`new_folder` and :func:`old_folder`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other runs out of the folder inside the block.

        Raises
        ------
        UsageError
            If one is in it.
        """
        lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UsageError(f"another egmctl fleet is using {printable(str(self.path))}") from error
            except OSError:
                # A network file system without locks: then nothing keeps others out.
                pass
            yield
        finally:
            os.close(lock)

    def spool(self, node: str) -> BinaryIO:
        """Return a file for what a node sends while it sends it; :meth:`discard` or :meth:`keep` end it."""
        self.discard(node)
        try:
            with open_folder(self.path / NODES) as nodes:
                part = os.open(self.part(node).name, NEW_FILE, 0o666, dir_fd=nodes)
            return os.fdopen(part, "wb", buffering=0)
        except OSError as error:
            raise EgmctlError(f"cannot write {printable(str(self.part(node)))}: {error.strerror}") from error

    def part(self, node: str) -> Path:
        """Return the path of the file that :meth:`spool` makes."""
        return self.path / NODES / f".{node}.part"

    def sent(self, node: str) -> bytes:
        """Return what a node sent."""
        try:
            return self.part(node).read_bytes()
        except OSError as error:
            raise EgmctlError(f"cannot read {printable(str(self.part(node)))}: {error.strerror}") from error

    def keep(self, node: str, document: bytes) -> str:
        """Put a node's document in its place, in place of what it sent, and return its path in the folder.

        It is a part of what was sent, and goes where that is: a disk that is full by now has room for it.
        """
        name, part = document_of(node), self.part(node)
        try:
            with open_folder(self.path / NODES) as nodes:
                sent = os.open(part.name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=nodes)
                with os.fdopen(sent, "r+b") as file:
                    file.write(document + b"\n")
                    file.truncate()
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(part.name, Path(name).name, src_dir_fd=nodes, dst_dir_fd=nodes)
        except OSError as error:
            raise EgmctlError(f"cannot write {printable(str(self.path / name))}: {error.strerror}") from error
        return name

    def holds(self, name: str) -> bool:
        """Say whether a document is there."""
        return (self.path / name).is_file()

    def discard(self, node: str) -> None:
        """Remove what a node sent."""
        with contextlib.suppress(OSError), open_folder(self.path / NODES) as nodes:
            os.unlink(self.part(node).name, dir_fd=nodes)

    def write_report(self, text: str) -> None:
        """Put ``fleet.json`` in its place, over an earlier one of this run."""
        write_whole(self.path / REPORT, text.encode())

    def read_report(self) -> FleetReport:
        """Return what an earlier run wrote.

        Raises
        ------
        UsageError
            If it is no report.
        """
        path = self.path / REPORT
        source = f"file {path}"
        document = read_object(path, source, "report of egmctl fleet")
        check_schema(document, (FleetReport.SCHEMA,), source, "report of egmctl fleet")
        try:
            return from_json(FleetReport, document.get("result"), "result")
        except DecodeError as error:
            refuse(source, f"is not a valid report: {error}")


def document_of(node: str) -> str:
    """Return the path of a node's document in the folder."""
    return f"{NODES}/{node}.json"


def new_folder(path: Path | None, command: Command, now: datetime) -> Folder:
    """Make the folder of a run.

    Parameters
    ----------
    path
        Where; it may be there already if it is empty. ``None`` is a new folder of this directory, named by the command
        and the time.

    Raises
    ------
    UsageError
        If there is something in it, or it cannot be made.
    """
    if path is None:
        stamp = f"egmctl-fleet-{command}-{now:%Y%m%dT%H%M%SZ}"
        tries = (Path(stamp), *(Path(f"{stamp}-{number}") for number in range(2, 100)))
        path = next((one for one in tries if not one.exists()), tries[0])
    name = printable(str(path))
    try:
        with open_parent(path) as (parent, last), contextlib.suppress(FileExistsError):
            os.mkdir(last, dir_fd=parent)
        with open_folder(path) as opened:
            if (owner := os.fstat(opened).st_uid) != os.geteuid():
                raise UsageError(f"{name} belongs to user {owner}, who could redirect what is written there")
            if os.listdir(path_of(opened)):
                raise UsageError(f"{name} exists; give a new folder, or --resume {name} to continue")
            os.mkdir(NODES, dir_fd=opened)
    except OSError as error:
        raise UsageError(f"{name} cannot be made: {error.strerror}") from error
    return Folder(path)


def old_folder(path: Path) -> Folder:
    """Return the folder of an earlier run.

    Raises
    ------
    UsageError
        If there is none, or it cannot be read or written to, or is of another user: what it says is run on the nodes.
    """
    if not os.access(path / REPORT, os.R_OK):
        raise UsageError(f"{printable(str(path))} is not a folder of egmctl fleet: it has no readable {REPORT}")
    if not os.access(path / NODES, os.W_OK | os.X_OK):
        raise UsageError(f"{printable(str(path / NODES))} cannot be written to")
    try:
        make_folder(path)
    except OSError as error:
        raise UsageError(f"{printable(str(path))} cannot be written to: {error.strerror}") from error
    # The owner of a folder can exchange what is in it, and where a link leads is its owner's choice.
    for one in (path / REPORT, path, path / NODES):
        status = one.stat() if one == path else one.lstat()
        name = printable(str(one))
        if stat.S_ISLNK(status.st_mode):
            raise UsageError(f"{name} is a link: --resume takes the folder that the earlier run made")
        if status.st_uid not in (os.geteuid(), 0):
            raise UsageError(f"{name} belongs to user {status.st_uid}: --resume would run what it says on the nodes")
    return Folder(path)


_STATUSES = {Grade.FAIL: "fail", Grade.WARN: "warn"}


def groups(
    answers: Sequence[fleet.NodeAnswer],
    lines_of: Mapping[str, tuple[GroupLine, ...]],
    fold: Callable[[Iterable[str]], str],
) -> tuple[NodeGroup, ...]:
    """Return nodes whose lines are the same together, the largest group first, those that did not answer last.

    Parameters
    ----------
    lines_of
        The lines of each node that answered.
    fold
        Writes nodes in short.
    """
    alike: dict[tuple[GroupLine, ...], list[fleet.NodeAnswer]] = {}
    for one in answers:
        alike.setdefault(lines_of.get(one.node) or _silence(one, _nameless(one)), []).append(one)
    found = []
    for lines, those in sorted(alike.items(), key=lambda item: (item[1][0].node not in lines_of, -len(item[1]))):
        nodes = tuple(answer.node for answer in those)
        told = _silence(those[0], those[0].reason) if nodes[0] not in lines_of and len(nodes) == 1 else lines
        found.append(NodeGroup(nodes=nodes, folded=fold(nodes), lines=told))
    return tuple(found)


def lines_of(saved: Saved) -> tuple[GroupLine, ...]:
    """Return how it stands on a node."""
    match saved.result:
        case Diagnosis() as result:
            return _doctor_lines(result)
        case RunReport() as report:
            return _bench_lines(report)
        case Bringup() as found:
            return _bringup_lines(found)
    return tuple(line for machine in saved.machines for line in _machine_lines(machine))


def _silence(answer: fleet.NodeAnswer, reason: str) -> tuple[GroupLine, ...]:
    """Return the line of a node that has no document."""
    return (GroupLine(key="", value=reason, status=answer.reach.value),)


def _nameless(answer: fleet.NodeAnswer) -> str:
    """Return why there is no document, without what makes it another reason on every node: its name and address."""
    return re.sub(r"\bhost \S+ port\b", "host NODE port", answer.reason.replace(answer.node, "NODE"))


def _machine_lines(machine: Machine) -> tuple[GroupLine, ...]:
    lacking, driver = missing(machine), machine.driver
    lines = [GroupLine(key="platform", value=platform(machine).line)]
    if lacking is not None:
        lines.append(GroupLine(key="", value=lacking.sentence, status="fail"))
    lines.append(GroupLine(key="GPUs", value=_counted(gpu.name for gpu in machine.gpus or ())))
    if driver is not None:
        version = driver.driver_version or driver.module_version or "none"
        lines.append(GroupLine(key="driver", value=" ".join(filter(None, (version, driver.module_flavour)))))
    return tuple(lines)


def _doctor_lines(result: Diagnosis) -> tuple[GroupLine, ...]:
    told = ", ".join(f"{number} {status}" for status, number in result.counts.items() if number)
    lines = [GroupLine(key="platform", value=result.platform), GroupLine(key="checks", value=told or "none")]
    for status in (finding.Status.FAIL, finding.Status.WARN):
        for one in result.findings:
            if one.status is status and not one.explained_by:
                key = " ".join(filter(None, (one.check, one.place.label)))
                explains = f"; explains {', '.join(one.explains)}" if one.explains else ""
                lines.append(GroupLine(key=key, value=f"{one.summary}{explains}", check=one.check, status=status.value))
    return tuple(lines)


def _bench_lines(report: RunReport) -> tuple[GroupLine, ...]:
    statuses = Counter(one.status for one in report.measurements)
    told = ", ".join(f"{statuses[status]} {status}" for status in measurement.Status if statuses[status])
    lines = [
        GroupLine(key="GPUs", value=_counted(gpu.name for gpu in report.gpus)),
        GroupLine(key="measurements", value=told or "none"),
    ]
    culprits: Sequence[GroupLine] = ()
    if report.verdict is not None:
        status = _STATUSES.get(report.verdict.grade, "")
        told = plain(answer(report).sentence) if status else report.verdict.grade.value
        lines.append(GroupLine(key="" if status else "verdict", value=told, status=status))
        culprits = [
            GroupLine(
                key=culprit.path_class,
                value=f"{culprit.label} is slower than its peers",
                status=_STATUSES.get(culprit.grade, ""),
            )
            for culprit in report.verdict.culprits
        ]
    lines += [GroupLine(key="", value=problem, status="fail") for problem in report.problems]
    for one in report.measurements:
        if one.status not in (measurement.Status.OK, measurement.Status.WAIVED):
            status = "warn" if one.status is measurement.Status.UNSTABLE else "fail"
            lines.append(GroupLine(key=f"{one.name} {one.path}", value=one.status.value, status=status))
    # Slow in both directions is one line.
    lines += dict.fromkeys(culprits)
    lines += _cause_lines(report)
    return tuple(lines)


def _cause_lines(report: RunReport) -> Iterator[GroupLine]:
    """Yield what explains a run: each cause once."""
    for cause in report.causes:
        key = " ".join(filter(None, ("cause", cause.finding.check, cause.node, cause.finding.place.label)))
        value = f"{cause.finding.summary}{asked_words(cause)}; "
        value += f"explains {len(cause.explains)} of {len(report.measurements)} measurements"
        yield GroupLine(key=key, value=value, status="" if cause.status is finding.Status.NOTE else cause.status.value)


def _bringup_lines(found: Bringup) -> tuple[GroupLine, ...]:
    """Return the causes of a node that may not be handed over, the gravest first, then the answer."""
    lines = []
    for cause in found.causes:
        root = root_of(found, cause)
        if root is not None and cause.status in (finding.Status.FAIL, finding.Status.WARN):
            key = " ".join(filter(None, (root.check, root.place.label)))
            lines.append(GroupLine(key=key, value=root.summary, check=root.check, status=cause.status.value))
    told = verdict(found)
    status = {Answer.NO_GO: "fail", Answer.INCOMPLETE: "warn"}.get(found.answer, "")
    if not any(line.status == "fail" for line in lines):
        lines.insert(0, GroupLine(key="", value=plain(told.sentence) if status else told.word, status=status))
    lines.append(GroupLine(key="GPUs", value=_counted(gpu.name for gpu in found.machine.gpus or ())))
    return tuple(lines)


def _counted(names: Iterable[str | None]) -> str:
    return counted(map(gpu_name, names)) or "none"
