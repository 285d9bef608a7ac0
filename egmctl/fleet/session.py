"""One run of ``egmctl fleet``, new or resumed: runs the command on nodes without an answer, and writes the report."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from egmctl.dataclass import dataclass
from egmctl.errors import EgmctlError, UsageError
from egmctl.fleet.folder import REPORT, Folder, is_document_of, new_folder, old_folder
from egmctl.fleet.gathering import Gathering
from egmctl.fleet.nodes import check_names
from egmctl.fleet.run import Launch, Progress, run_on_nodes
from egmctl.model.answer import State
from egmctl.model.codec import Pool
from egmctl.model.fleet import FleetReport, Launcher, NodeCommand, NodeResult, Reach, reach_counts
from egmctl.model.record import Command
from egmctl.report.exports.json import result_json
from egmctl.saved import Saved, load, load_any, load_document
from egmctl.units import fold
from egmctl.verdict.answers import answered

REPORT_EVERY_S = 2.0
"""Seconds between updates of the report in the folder. A crash of this process loses the answers since the last one."""


@dataclass(frozen=True, slots=True)
class Session:
    """The folder of a run, the command and its nodes, and the answers of an earlier run."""

    asked: NodeCommand
    folder: Folder
    started_at: str
    """UTC, ISO 8601, to the second."""
    answers: dict[str, NodeResult]
    """The answers of an earlier run, by node."""


def new_session(asked: NodeCommand, path: Path | None) -> Session:
    """Create the folder of a new run, and return the session.

    Parameters
    ----------
    path
        As for :func:`egmctl.fleet.folder.new_folder`.

    Raises
    ------
    UsageError
        If the folder cannot be created.
    """
    started = datetime.now(timezone.utc)
    return Session(asked, new_folder(path, asked.command, started), f"{started:%Y-%m-%dT%H:%M:%SZ}", {})


def old_session(command: Command, path: Path) -> Session:
    """Return the session that resumes an earlier run: the same command on the nodes without an answer.

    Raises
    ------
    UsageError
        If there is no such folder, it is for another command, belongs to another user, or has invalid node names.
    """
    folder = old_folder(path)
    report = load_any(path).result
    if not isinstance(report, FleetReport):
        raise UsageError(f"file {path / REPORT} is not a report of egmctl fleet")
    if report.asked.command is not command:
        raise UsageError(f"{path} is of 'egmctl fleet {report.asked.command}', not of 'egmctl fleet {command}'")
    check_names(report.asked.nodes)
    answered = {
        answer.node: answer
        for answer in report.answers
        if answer.reach is Reach.ANSWERED
        and is_document_of(answer.node, answer.file)
        and (path / answer.file).is_file()
    }
    return Session(report.asked, folder, report.started_at, answered)


def ask_nodes(
    session: Session, launch: Launch, on_tick: Callable[[Progress], None], warn: Callable[[str], None]
) -> tuple[FleetReport, EgmctlError | None]:
    """Run the command on nodes without an answer; write and return the report, and the error of writing it, if any.

    Parameters
    ----------
    warn
        Called with a sentence about a local problem that must not lose the nodes' answers.

    Raises
    ------
    UsageError
        If another run uses the folder.
    EgmctlError
        If the folder cannot be written before the command is started on any node.
    """
    asked, folder = session.asked, session.folder
    lacking = [node for node in asked.nodes if node not in session.answers]
    written = (time.monotonic(), 0)
    gathering, pool = Gathering(), Pool()
    defect: Exception | None = None

    def write(answers: Sequence[NodeResult]) -> None:
        folder.write_report(result_json(_report(session, launch.launcher, answers)))

    def take(answer: NodeResult, document: dict[str, Any] | None) -> NodeResult:
        path = folder.path / answer.file

        def saved() -> Saved:
            return load(path, pool) if document is None else load_document(document, path, pool)

        nonlocal defect
        try:
            return gathering.taken(answer, saved)
        except Exception as error:
            # What this program cannot judge must not end the commands on other nodes.
            defect = defect or error
            return answer

    def tick(progress: Progress) -> None:
        nonlocal written
        on_tick(progress)
        now = time.monotonic()
        if len(progress.answers) > written[1] and now > written[0] + REPORT_EVERY_S:
            written = (now, len(progress.answers))
            # A failed update loses no answer: the report is written again at the end.
            with contextlib.suppress(EgmctlError):
                write(progress.answers)

    with folder.alone():
        write(())
        answers, failure = run_on_nodes(asked, lacking, launch, folder, take, tick) if lacking else ((), None)
        # The answers are written before the grouping, which may fail.
        with contextlib.suppress(EgmctlError):
            write(answers)
        earlier = [take(answer, None) for answer in session.answers.values()]
        if defect is not None:
            raise defect
        report = gathering.report(_report(session, launch.launcher, (*earlier, *answers)), warn)
        try:
            folder.write_report(result_json(report))
        except EgmctlError as error:
            failure = failure or error
    return report, failure


def folded(report: FleetReport, document: Callable[[NodeResult], Saved], warn: Callable[[str], None]) -> FleetReport:
    """Return the report with groups of equal nodes, a comparison of their results, and the readiness of their GPUs.

    Parameters
    ----------
    document
        A function that loads the document of a node that answered. If it is invalid, the node has given no answer.
    warn
        Called with a sentence about each broken profile.
    """
    gathering = Gathering()
    answers = tuple(gathering.taken(answer, partial(document, answer)) for answer in report.answers)
    return gathering.report(dataclasses.replace(report, answers=answers), warn)


def _report(session: Session, launcher: Launcher, new: Sequence[NodeResult]) -> FleetReport:
    """Return the report of the answers so far; nodes without one are marked as not asked."""
    known = session.answers | {answer.node: answer for answer in new}
    answers = tuple(
        known.get(node) or NodeResult(node=node, reach=Reach.NOT_ASKED, state=State.INTERRUPTED, reason="not started")
        for node in session.asked.nodes
    )
    return report_of(session.asked, answers, session.started_at, launcher, str(session.folder.path))


def report_of(
    asked: NodeCommand,
    answers: Sequence[NodeResult],
    started_at: str,
    launcher: Launcher | None = None,
    folder: str = "",
) -> FleetReport:
    """Return the report of some answers, before their comparison; an MPI job has no launcher and no folder."""
    report = FleetReport(
        asked=asked,
        folded=fold(asked.nodes),
        launcher=launcher,
        folder=folder,
        started_at=started_at,
        finished=not any(answer.reach in (Reach.NOT_ASKED, Reach.INTERRUPTED) for answer in answers),
        counts=reach_counts(answers),
        answers=tuple(answers),
    )
    return answered(report)
