"""Journals of runs as the commands use them: kept by the bench, shown by ``show``, listed by ``history``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from egmctl.cli.options import ColorOption, ForceOption, JsonOption, output_option
from egmctl.cli.output import Color, Outputs, say
from egmctl.errors import ExitCode, UsageError
from egmctl.report.kinds import HISTORY
from egmctl.report.rendering import render

if TYPE_CHECKING:
    from egmctl.journal.write import Journal
    from egmctl.model.listing import KeptRun
    from egmctl.model.machine import Machine


def open_journal(
    folder: Path | None, unwanted: bool, files: Sequence[Path], machine: Machine | None = None, *, quiet: bool
) -> Journal | None:
    """Return the journal of a run that begins, and tell once of an earlier one that did not end.

    Parameters
    ----------
    folder
        What ``--journal`` names; without it the user's own, and where that cannot be written to, beside the first of
        ``files``, which the result goes to.
    machine
        The node, whose private names do not go into it.
    """
    if unwanted or (folder is None and os.environ.get("EGMCTL_NO_JOURNAL")):
        return None
    from egmctl.facts.redact import part_redactor
    from egmctl.journal.write import Journal, journal_folder

    folders = [folder] if folder is not None else [journal_folder(), *(file.parent for file in files[:1])]
    if not quiet:
        _mention(folders[0])
    return Journal(folders, part_redactor(machine))


def end_journal(journal: Journal | None, exit_code: int, *, quiet: bool) -> None:
    """Say in a run's journal that its result is where it should be, and here why a journal ended before that."""
    if journal is None:
        return
    journal.end(exit_code)
    if journal.failure and not quiet:
        say(f"the run's journal ends early: {journal.failure}")


def _mention(folder: Path) -> None:
    """Tell of the latest run that did not end, unless somebody was told."""
    from egmctl.journal.read import earlier, to_tell
    from egmctl.journal.write import mention

    for path in reversed(earlier(folder)[-3:]):
        if ending := to_tell(path):
            mention(path)
            say(f"an earlier bench {ending}; 'egmctl show {path}' shows its results")
            return


def _row(path: Path) -> KeptRun:
    """Return what a list says of a journal: all of 50 of them are more than a node has memory for."""
    from egmctl.model.listing import KeptRun
    from egmctl.model.measurement import Status
    from egmctl.saved import load_journal

    kept = load_journal(path)
    return KeptRun(
        file=str(path),
        started_at=kept.report.started_at,
        gpus=tuple(gpu.label for gpu in kept.report.gpus),
        measurements=len(kept.report.measurements),
        ok=sum(one.status is Status.OK for one in kept.report.measurements),
        exit_code=kept.exit_code,
        ending="; ".join(filter(None, (kept.ending, kept.missing))),
    )


OutputOption = Annotated[list[Path] | None, output_option(HISTORY.formats)]


def history(
    folder: Annotated[
        Path | None, typer.Option("--journal", metavar="DIR", help="Folder given to bench --journal.")
    ] = None,
    json: JsonOption = False,
    output: OutputOption = None,
    force: ForceOption = False,
    color: ColorOption = Color.AUTO,
) -> int:
    """List the bench runs that this node keeps, the latest last."""
    outputs = Outputs.chosen(HISTORY, output, json=json, force=force, color=color)
    outputs.check()

    from egmctl.journal.read import earlier
    from egmctl.model.listing import History

    rows: list[KeptRun] = []
    for path in earlier(folder):
        try:
            rows.append(_row(path))
        except UsageError as error:
            say(str(error))
    found = History(runs=tuple(rows))
    outputs.write(lambda target: render(found, target.format, width=target.width))
    return ExitCode.OK
