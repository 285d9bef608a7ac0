"""``egmctl show``: show a saved result again, in any format that its command has."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from egmctl.cli.options import refuse_together, takes_options
from egmctl.cli.output import OutputOptions, Target, say
from egmctl.errors import ExitCode, UsageError
from egmctl.report.kinds import DOCTOR, TOPO, Format, kind_of

if TYPE_CHECKING:
    from rich.text import Text

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
    from egmctl.model.machine import Machine
    from egmctl.saved import load_any, viewed

    saved = load_any(file)
    written = saved.content
    # Snapshots, and documents of commands that ended without a result, have the formats of a topology.
    kind = TOPO if saved.result is None or isinstance(saved.result, Machine) else kind_of(saved.result)
    outputs = output.chosen(kind.formats, brief=brief)
    if brief and kind is not DOCTOR:
        raise UsageError(f"--brief works with a result of egmctl doctor, which {file} is not")
    refuse_together({"--brief": brief, "--verbose": output.verbose > 0})
    outputs.check()
    read = written is None or any(target.format is not Format.JSON for target in outputs.targets)
    result = viewed(saved) if read else None

    def draw(target: Target) -> Text | str:
        try:
            if result is None or (written is not None and target.format is Format.JSON):
                return ascii_text(written or b"")
            return target.draw(result)
        except (LookupError, ValueError, ArithmeticError) as error:
            # No run writes such a file: each value is valid, but they contradict each other.
            raise UsageError(f"file {file} cannot be shown: its parts do not fit together ({error})") from error

    outputs.write(draw, answers=result is not None)
    if saved.missing and not output.quiet:
        say(f"{file}: {saved.missing}")
    return ExitCode.CRASHED if saved.damaged else ExitCode.OK
