"""``egmctl show``: a saved result once more, in any format that its command has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from egmctl.cli.options import (
    ColorOption,
    CsvOption,
    ForceOption,
    JsonOption,
    QuietOption,
    VerboseOption,
    check_detail,
    format_option,
    output_option,
)
from egmctl.cli.output import Color, Outputs, Target, say
from egmctl.errors import ExitCode, UsageError
from egmctl.report.kinds import DOCTOR, TOPO, Format, kind_of
from egmctl.report.rendering import render

if TYPE_CHECKING:
    from rich.text import Text

FileArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="JSON that any command wrote, also packed (.gz), the journal of a bench, or the folder of a fleet.",
    ),
]

FormatOption = Annotated[Format | None, format_option(tuple(Format), " (those of the command that wrote FILE)")]
OutputOption = Annotated[list[Path] | None, output_option(tuple(Format), " (those of the command that wrote FILE)")]


def show(
    file: FileArgument,
    json: JsonOption = False,
    csv: CsvOption = False,
    format: FormatOption = None,
    output: OutputOption = None,
    force: ForceOption = False,
    verbose: VerboseOption = 0,
    brief: Annotated[bool, typer.Option("--brief", help="Of a result of doctor: one line per problem.")] = False,
    quiet: QuietOption = False,
    color: ColorOption = Color.AUTO,
) -> int:
    """Show a saved result again, in any format that its command has: the bytes that it would have written itself.

    It judges nothing: the exit code is 0 once the result is shown, 4 where lines of a journal are damaged. That of its
    command is exit_code in JSON.
    """
    from egmctl.documents import ascii_text
    from egmctl.model.machine import Machine
    from egmctl.saved import load_any, viewed

    saved = load_any(file)
    written = saved.content
    # A snapshot, and a command that ended without a result, show a topology.
    kind = TOPO if saved.result is None or isinstance(saved.result, Machine) else kind_of(saved.result)
    outputs = Outputs.chosen(kind, output, json=json, csv=csv, format=format, force=force, color=color, quiet=quiet)
    if brief and kind is not DOCTOR:
        raise UsageError(f"--brief works with a result of egmctl doctor, which {file} is not")
    check_detail(brief=brief, verbose=verbose)
    outputs.check()
    read = written is None or any(target.format is not Format.JSON for target in outputs.targets)
    result = viewed(saved) if read else None

    def draw(target: Target) -> Text | str:
        try:
            if result is None or (written is not None and target.format is Format.JSON):
                return ascii_text(written or b"")
            return render(result, target.format, verbose=verbose, brief=brief or target.brief, width=target.width)
        except (LookupError, ValueError, ArithmeticError) as error:
            # No run writes such a file: its values are valid one by one, and contradict each other.
            raise UsageError(f"file {file} cannot be shown: its parts do not fit together ({error})") from error

    outputs.write(draw, answers=result is not None)
    if saved.missing and not quiet:
        say(f"{file}: {saved.missing}")
    return ExitCode.CRASHED if saved.damaged else ExitCode.OK
