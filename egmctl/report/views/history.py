"""What ``egmctl history`` says: each run of the bench that this node keeps, when it was and how it ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from egmctl.errors import ExitCode
from egmctl.model.listing import History, KeptRun
from egmctl.report.document import Align, Column, Document, Level, Paragraph, Section, Span, Table, Tone
from egmctl.wording import several

_TONES: Mapping[int, Tone] = {ExitCode.OK: Tone.GOOD, ExitCode.FAILED: Tone.BAD}


def history_document(history: History) -> Document:
    """Return the list, the latest run last; the files with ``-v`` and on a page."""
    runs = history.runs
    if not runs:
        body: tuple[Paragraph | Table | Section, ...] = (
            Paragraph(words="No bench run of this node is kept; 'egmctl bench' keeps one.", level=Level.SUMMARY),
        )
    else:
        ended = Counter(run.exit_code is not None for run in runs)
        unfinished = f", {ended[False]} of them did not end" if ended[False] else ""
        columns = (
            Column(name="run"),
            Column(name="began (UTC)"),
            Column(name="GPUs", align=Align.RIGHT),
            Column(name="ok", align=Align.RIGHT),
            Column(name="ending", wrap=True),
        )
        finished = [run for run in runs if run.exit_code is not None]
        places = {id(run): len(finished) - 1 - place for place, run in enumerate(finished)}
        rows = tuple(
            (
                _name(places.get(id(run))),
                run.started_at.replace("T", " ").removesuffix("Z").removesuffix("+00:00"),
                str(len(run.gpus)),
                f"{run.ok} of {run.measurements}",
                Span(run.ending, _tone(run)),
            )
            for run in runs
        )
        count = f"{several(len(runs), 'bench run')} kept{unfinished}"
        body = (
            Paragraph(
                words=f"{count}, the latest last. 'egmctl show FILE' shows one, 'egmctl compare last' the last two."
            ),
            Table(columns=columns, rows=rows),
            Section(
                title="Files",
                body=(
                    Table(
                        columns=(Column(name="began"), Column(name="file")),
                        rows=tuple((run.started_at, run.file) for run in runs),
                    ),
                ),
            ),
        )
    return Document(command="egmctl history", subject=several(len(runs), "bench run"), body=body)


def _name(place: int | None) -> str:
    """Return what ``egmctl compare`` calls a run that ended."""
    return "" if place is None else "last" if place == 0 else f"last~{place}"


def _tone(run: KeptRun) -> Tone:
    return Tone.WARN if run.exit_code is None else _TONES.get(run.exit_code, Tone.WARN)
