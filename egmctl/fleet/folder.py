"""The result folder of a fleet run, and the grouping of nodes whose answers are equal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from egmctl.bench.plan.placement import domain
from egmctl.errors import EgmctlError, UsageError
from egmctl.files import NEW_FILE, descriptor_path, make_folder, next_free, open_folder, open_parent, write_whole
from egmctl.model import fleet, measurement
from egmctl.model.answer import TABLE, Answer, State
from egmctl.model.bringup import Bringup
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import UNEXPLAINED, Finding, Status
from egmctl.model.fleet import GroupLine, NodeGroup
from egmctl.model.gpu import Gpu
from egmctl.model.machine import Machine
from egmctl.model.measurement import BenchGpu, RunReport
from egmctl.model.record import Command
from egmctl.model.remedy import Remedy, common
from egmctl.model.verdict import Grade
from egmctl.saved import Saved
from egmctl.topology.platform import platform
from egmctl.topology.topology import missing
from egmctl.units import counted, fold, gpu_name, grouped, printable

REPORT = "fleet.json"
NODES = "nodes"


class Folder:
    """The result folder of a run.

    Parameters
    ----------
    path
        The path of the folder, which exists and has its subfolder: see :func:`new_folder` and :func:`old_folder`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder against other runs inside the block.

        Raises
        ------
        UsageError
            If another run uses the folder.
        """
        with contextlib.ExitStack() as opened:
            lock = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
            opened.callback(os.close, lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UsageError(f"another egmctl fleet is using {printable(self.path)}") from error
            except OSError:
                # The network file system has no locks, so the folder stays unlocked.
                pass
            yield

    def spool(self, node: str) -> BinaryIO:
        """Create and return the file for a node's output; finish with :meth:`keep` or :meth:`discard`."""
        self.discard(node)
        with _failing(f"cannot write {printable(self.part(node))}"), open_folder(self.path / NODES) as nodes:
            part = os.open(self.part(node).name, NEW_FILE, 0o666, dir_fd=nodes)
        return os.fdopen(part, "wb", buffering=0)

    def part(self, node: str) -> Path:
        """Return the path of the file that :meth:`spool` creates."""
        return self.path / NODES / f".{node}.part"

    def sent(self, node: str) -> bytes:
        """Return a node's output."""
        with _failing(f"cannot read {printable(self.part(node))}"):
            return self.part(node).read_bytes()

    def keep(self, node: str, document: bytes) -> str:
        """Replace a node's output by the document that it contains, and return the document's path in the folder.

        The document overwrites the output in the same file, which is larger, so it fits even if the disk is full.

        Parameters
        ----------
        document
            The document as a gzip file.
        """
        name, part = document_of(node), self.part(node)
        with _failing(f"cannot write {printable(self.path / name)}"), open_folder(self.path / NODES) as nodes:
            sent = os.open(part.name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=nodes)
            with os.fdopen(sent, "r+b") as file:
                file.write(document)
                file.truncate()
                file.flush()
                os.fsync(file.fileno())
            os.replace(part.name, Path(name).name, src_dir_fd=nodes, dst_dir_fd=nodes)
            with contextlib.suppress(FileNotFoundError):
                # A document of an earlier try, by a version that did not compress them.
                os.unlink(f"{node}.json", dir_fd=nodes)
        return name

    def discard(self, node: str) -> None:
        """Remove a node's output."""
        with contextlib.suppress(OSError), open_folder(self.path / NODES) as nodes:
            os.unlink(self.part(node).name, dir_fd=nodes)

    def write_report(self, text: str) -> None:
        """Write ``fleet.json``, replacing an earlier one of this run."""
        write_whole(self.path / REPORT, text.encode())


def document_of(node: str) -> str:
    """Return the path of a node's document in the folder."""
    return f"{NODES}/{node}.json.gz"


def is_document_of(node: str, path: str) -> bool:
    """Return whether a path in the folder is that of a node's document; before version 0.2 it was not compressed."""
    return path in (document_of(node), f"{NODES}/{node}.json")


@contextlib.contextmanager
def _failing(sentence: str, kind: type[EgmctlError] = EgmctlError) -> Iterator[None]:
    """Turn an OSError within the block into an error of this kind: the sentence with the reason."""
    try:
        yield
    except OSError as error:
        raise kind(f"{sentence}: {error.strerror}") from error


def new_folder(path: Path | None, command: Command, now: datetime) -> Folder:
    """Create the folder of a run.

    Parameters
    ----------
    path
        The path of the new or empty folder; ``None``: a new one in the current directory, named by command and time.

    Raises
    ------
    UsageError
        If the folder is not empty, belongs to another user, or cannot be created.
    """
    if path is None:
        path = Path(f"egmctl-fleet-{command}-{now:%Y%m%dT%H%M%SZ}")
        path = next_free(path) if path.exists() else path
    name = printable(path)
    with _failing(f"{name} cannot be made", UsageError):
        with open_parent(path, own=True) as (parent, last), contextlib.suppress(FileExistsError):
            os.mkdir(last, dir_fd=parent)
        with open_folder(path, own=True) as opened:
            if (owner := os.fstat(opened).st_uid) != os.geteuid():
                raise UsageError(f"{name} belongs to user {owner}, who could redirect what is written there")
            if os.listdir(descriptor_path(opened)):
                raise UsageError(f"{name} exists; give a new folder, or --resume {name} to continue")
            os.mkdir(NODES, dir_fd=opened)
    return Folder(path)


def old_folder(path: Path) -> Folder:
    """Return the folder of an earlier run.

    Raises
    ------
    UsageError
        If the folder is missing, cannot be read or written, is a link, or belongs to another user but root: its report
        says what runs on the nodes.
    """
    if not os.access(path / REPORT, os.R_OK):
        raise UsageError(f"{printable(path)} is not a folder of egmctl fleet: it has no readable {REPORT}")
    if not os.access(path / NODES, os.W_OK | os.X_OK):
        raise UsageError(f"{printable(path / NODES)} cannot be written to")
    with _failing(f"{printable(path)} cannot be written to", UsageError):
        make_folder(path)
    # The owner of a folder can replace what is in it, and the owner of a link chooses its target.
    for part in (path / REPORT, path, path / NODES):
        status = part.stat() if part == path else part.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise UsageError(f"{printable(part)} is a link: --resume takes the folder that the earlier run made")
        if status.st_uid not in (os.geteuid(), 0):
            raise UsageError(
                f"{printable(part)} belongs to user {status.st_uid}: --resume would run what it says on the nodes"
            )
    return Folder(path)


_GRADES: Mapping[str, str] = {Grade.FAIL: "fail", Grade.WARN: "warn"}
"""The status of the line for a grade that is a problem; the others have none."""


def _status(answer: Answer) -> str:
    """Return the status of the line for an answer; empty if nothing is wrong and all is known."""
    return TABLE[answer.state].tag


def _step_of(answer: Answer) -> Remedy | None:
    """Return the next step for the line of an answer; ``None`` if the line of a cause has it."""
    blamed = answer.blamed
    if blamed is None:
        return answer.next_step
    return blamed.finding.remedy if blamed.finding.check == UNEXPLAINED else None


def groups(answers: Sequence[fleet.NodeResult], lines_of: Mapping[str, tuple[GroupLine, ...]]) -> tuple[NodeGroup, ...]:
    """Group nodes with equal lines, the largest group first, nodes that did not answer last.

    Parameters
    ----------
    lines_of
        The lines of each node that answered.
    """

    def shown(answer: fleet.NodeResult) -> tuple[GroupLine, ...]:
        # The reason why there is no document, without the node's name and address, which differ on every node.
        reason = re.sub(r"\bhost \S+ port\b", "host NODE port", answer.reason.replace(answer.node, "NODE"))
        return lines_of.get(answer.node) or (GroupLine(key="", value=reason, status=answer.reach.value),)

    made = []
    alike = grouped((shown(answer), answer) for answer in answers)
    for lines, members in sorted(alike.items(), key=lambda item: (item[1][0].node not in lines_of, -len(item[1]))):
        nodes = tuple(answer.node for answer in members)
        if nodes[0] in lines_of:
            remedies = zip(*((line.remedy for line in lines_of[node]) for node in nodes), strict=True)
            pairs = zip(lines, map(common, remedies), strict=True)
            lines = tuple(line if line.remedy == remedy else replace(line, remedy=remedy) for line, remedy in pairs)
        elif len(nodes) == 1:
            lines = (replace(lines[0], value=members[0].reason),)
        made.append(NodeGroup(nodes=nodes, folded=fold(nodes), lines=lines))
    return tuple(made)


def lines_of(saved: Saved) -> tuple[GroupLine, ...]:
    """Return the lines that summarize a node's result; nodes with the same lines form a group."""
    match saved.result:
        case Diagnosis() as diagnosis:
            return tuple(_doctor_lines(diagnosis))
        case RunReport() as report:
            return tuple(_bench_lines(report))
        case Bringup() as bringup:
            return tuple(_bringup_lines(bringup))
    return tuple(line for machine in saved.machines for line in _machine_lines(machine))


def _machine_lines(machine: Machine) -> Iterator[GroupLine]:
    yield GroupLine(key="platform", value=platform(machine).line)
    if (lacking := missing(machine)) is not None:
        yield GroupLine(key="", value=lacking.sentence, status="fail")
    yield _gpus(machine.gpus or ())
    if (driver := machine.driver) is not None:
        version = driver.driver_version or driver.module_version or "none"
        yield GroupLine(key="driver", value=_joined(version, driver.module_flavour))


def _doctor_lines(diagnosis: Diagnosis) -> Iterator[GroupLine]:
    yield GroupLine(key="platform", value=diagnosis.platform)
    yield from map(_domains, diagnosis.machines)
    yield _counts("checks", diagnosis.counts)
    for status in (Status.FAIL, Status.WARN):
        for finding in diagnosis.findings:
            if finding.status is status and not finding.explained_by:
                yield _finding_line(finding, status)


def _bench_lines(report: RunReport) -> Iterator[GroupLine]:
    yield _gpus(report.gpus)
    statuses = Counter(m.status for m in report.measurements)
    yield _counts("measurements", {status: statuses[status] for status in measurement.MeasurementStatus})
    answer = report.answer
    if status := _status(answer):
        yield GroupLine(key="", value=answer.sentence, status=status, remedy=_step_of(answer))
    else:
        yield GroupLine(key="verdict", value=answer.word)
    if report.verdict is not None:
        # A path that is slow in both directions gets one line.
        slow = dict.fromkeys((culprit.path_class, culprit.label, culprit.grade) for culprit in report.verdict.culprits)
        for path_class, label, grade in slow:
            value = f"{label} is slower than its peers"
            yield GroupLine(key=path_class, value=value, status=_GRADES.get(grade, ""))
    for problem in report.problems:
        yield GroupLine(key="", value=problem, status="fail")
    for m in report.measurements:
        if m.status not in (measurement.MeasurementStatus.OK, measurement.MeasurementStatus.WAIVED):
            status = "warn" if m.status is measurement.MeasurementStatus.UNSTABLE else "fail"
            yield GroupLine(key=f"{m.name} {m.path}", value=m.status.value, status=status)
    for cause in report.causes:
        key = _joined("cause", cause.finding.check, cause.node, cause.finding.place.label)
        explains = f"explains {len(cause.measurements)} of {len(report.measurements)} measurements"
        value = f"{cause.finding.summary}{cause.asked_words}; {explains}"
        yield GroupLine(
            key=key,
            value=value,
            check=cause.finding.check,
            status="" if cause.status is Status.NOTE else cause.status.value,
            place=cause.finding.place.label,
            cause=cause.finding.cause,
            remedy=cause.finding.remedy,
        )


def _bringup_lines(bringup: Bringup) -> Iterator[GroupLine]:
    """Yield the causes that fail or warn, and the GPUs; if no cause fails, the answer first."""
    answer = bringup.answer
    causes = [cause for cause in answer.causes if cause.finding.check != UNEXPLAINED]
    if not any(cause.status is Status.FAIL for cause in causes):
        known = answer.state in (State.GOOD, State.WARN)
        yield GroupLine(
            key="",
            value=answer.word if known else answer.sentence,
            status="" if known else _status(answer),
            remedy=None if known else _step_of(answer),
        )
    for cause in causes:
        if cause.status in (Status.FAIL, Status.WARN):
            yield _finding_line(cause.finding, cause.status)
    yield _gpus(bringup.machine.gpus or ())
    yield _domains(bringup.machine)


def _finding_line(finding: Finding, status: Status) -> GroupLine:
    return GroupLine(
        key=_joined(finding.check, finding.place.label),
        value=finding.summary,
        check=finding.check,
        status=status.value,
        place=finding.place.label,
        explains=tuple(finding.explains),
        cause=finding.cause,
        remedy=finding.remedy,
    )


def _counts(key: str, counts: Mapping[str, int]) -> GroupLine:
    words = [f"{number} {word}" for word, number in counts.items() if number]
    return GroupLine(key=key, value=", ".join(words) or "none")


def _gpus(gpus: Iterable[Gpu | BenchGpu]) -> GroupLine:
    return GroupLine(key="GPUs", value=counted(gpu_name(gpu.name) for gpu in gpus) or "none")


def _domains(machine: Machine) -> GroupLine:
    return GroupLine(key="NVLink domain", value=counted(str(domain(gpu)) for gpu in machine.gpus or ()) or "none")


def _joined(*words: str | None) -> str:
    return " ".join(filter(None, words))
