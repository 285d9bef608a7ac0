"""``egmctl show``: a saved result once more, in any format that its command has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from egmctl.cli.options import check_detail, takes_options
from egmctl.cli.output import OutputOptions, Target, say
from egmctl.errors import ExitCode, UsageError
from egmctl.report.kinds import BENCH, BRINGUP, DOCTOR, TOPO, Format, Kind, kind_of

if TYPE_CHECKING:
    from rich.text import Text

    from egmctl.saved import Digest, Saved

FileArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="JSON that any command wrote, also packed (.gz), the journal of a bench, or the folder of a fleet.",
    ),
]


@takes_options(tuple(Format), note=" (those of the command that wrote FILE)")
def show(
    file: FileArgument,
    output: OutputOptions,
    brief: Annotated[bool, typer.Option("--brief", help="Of a result of doctor: one line per problem.")] = False,
) -> int:
    """Show a saved result again, in any format that its command has: the bytes that it would have written itself.

    It judges nothing: the exit code is 0 once the result is shown, 4 where lines of a journal are damaged. That of its
    command is exit_code in JSON.
    """
    from egmctl.documents import ascii_text
    from egmctl.saved import Saved, load_document, viewed

    saved, written = load_document(file)
    kind = _kind(saved)
    outputs = output.chosen(kind)
    if brief and kind is not DOCTOR:
        raise UsageError(f"--brief works with a result of egmctl doctor, which {file} is not")
    check_detail(brief=brief, verbose=output.verbose)
    outputs.check()
    read = written is None or any(target.format is not Format.JSON for target in outputs.targets)
    result = viewed(saved) if read else None

    def draw(target: Target) -> Text | str:
        try:
            if result is None or (written is not None and target.format is Format.JSON):
                return ascii_text(written or b"")
            return target.draw(result, brief=brief)
        except (LookupError, ValueError, ArithmeticError) as error:
            # No run writes such a file: its values are valid one by one, and contradict each other.
            raise UsageError(f"file {file} cannot be shown: its parts do not fit together ({error})") from error

    outputs.write(draw, answers=result is not None)
    if not isinstance(saved, Saved):
        return ExitCode.OK
    if saved.missing and not output.quiet:
        say(f"{file}: {saved.missing}")
    return ExitCode.CRASHED if saved.damaged else ExitCode.OK


def _kind(saved: Saved | Digest) -> Kind:
    """Return the kind of a saved result; a snapshot, and a command that ended without a result, show a topology."""
    from egmctl.model.command import Command
    from egmctl.saved import Saved

    if not isinstance(saved, Saved):
        return kind_of(saved)
    kinds = {Command.BENCH: BENCH, Command.DOCTOR: DOCTOR, Command.BRINGUP: BRINGUP}
    return TOPO if saved.kind is None else kinds.get(saved.kind, TOPO)
