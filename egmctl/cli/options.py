"""The options that commands share, so that one word means one thing everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from egmctl.cli.output import Color, Outputs, say
from egmctl.errors import ExitCode, UsageError
from egmctl.report.kinds import MACHINES, SUFFIXES, Format
from egmctl.report.rendering import render
from egmctl.units import printable

if TYPE_CHECKING:
    from egmctl.model.machine import Machine


GpusOption = Annotated[
    str,
    typer.Option("--gpus", metavar="LIST", help="GPUs: all, 0-3,5, 0-7/2, a UUID (or its start), a PCI bus id."),
]
MeasuredGpusOption = Annotated[
    str | None,
    typer.Option(
        "--gpus",
        metavar="LIST",
        help="GPUs: all (the default), 0-3,5, 0-7/2, a UUID (or its start), a PCI bus id. A named GPU that cannot be "
        "measured is a failure.",
    ),
]
NumaOption = Annotated[
    str,
    typer.Option("--numa", metavar="LIST", help="CPU NUMA nodes: all, local (to the chosen GPUs), 1, 0-1."),
]
MachineOption = Annotated[
    str | None,
    typer.Option(
        "--machine",
        metavar="FILE|NAME",
        help="A recorded or shipped machine instead of this node; 'list' names the shipped ones.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Write one JSON document, also on failure.")]
CsvOption = Annotated[bool, typer.Option("--csv", help="Write CSV, one fact per row.")]


def check_detail(*, brief: bool, verbose: int) -> None:
    """Refuse ``--brief`` with ``--verbose``.

    Raises
    ------
    UsageError
        Where both are given.
    """
    if brief and verbose:
        raise UsageError("--brief and --verbose exclude each other; give one of them")


def format_option(valid: Sequence[Format], note: str = "") -> Any:
    """Return ``--format`` of a command whose result has these formats: it offers them, and refuses others by name."""

    def parsed(text: str) -> Format:
        if text not in valid:
            raise UsageError(f"--format {printable(text[:40])}: no such format here; valid are {', '.join(valid)}")
        return Format(text)

    def completed(incomplete: str) -> list[str]:
        return [format.value for format in valid if format.startswith(incomplete)]

    return typer.Option(
        "--format",
        metavar="FORMAT",
        parser=parsed,
        autocompletion=completed,
        help=f"Output format: {', '.join(valid)}{note}.",
    )


def output_option(valid: Sequence[Format], note: str = "") -> Any:
    """Return ``-o`` of a command whose result has these formats."""
    suffixes = (
        f"{suffix}{' (JUnit)' * (format is Format.JUNIT)}" for suffix, format in SUFFIXES.items() if format in valid
    )
    return typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help=f"Write to FILE, the format by its suffix: {', '.join(suffixes)}{note}. Can be given several times; - is "
        "standard output.",
    )


ForceOption = Annotated[bool, typer.Option("--force", help="Overwrite a file that exists.")]
ColorOption = Annotated[
    Color, typer.Option("--color", help="When to use colour; auto follows NO_COLOR, FORCE_COLOR and the terminal.")
]
VerboseOption = Annotated[
    int, typer.Option("--verbose", "-v", count=True, show_default=False, help="Show more detail.")
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no notes on standard error.")]


def read_machine(name: str | None, sections: Iterable[str], *, quiet: bool, cuda: bool = True, pid: int = 0) -> Machine:
    """Return the live node or the machine to replay; say on standard error what takes long, or that it is recorded.

    Parameters
    ----------
    sections, cuda, pid
        As for :func:`egmctl.facts.collect.collect`; of a machine to replay, all there is.

    Raises
    ------
    UsageError
        If there is no such machine or process.
    """
    from egmctl.facts.collect import collect
    from egmctl.facts.replay import load
    from egmctl.model.machine import OriginKind

    if name is None:
        return collect(sections, cuda=cuda, pid=pid, on_wait=None if quiet else say)
    seen = load(name)
    if seen.origin.kind is OriginKind.RECORDED and not quiet:
        say(f"replaying the recorded machine {seen.origin.name}, not this node")
    return seen


def list_machines(outputs: Outputs) -> int:
    """Show the machines that ship, for ``--machine list``."""
    from egmctl.facts.replay import load, names
    from egmctl.report.views.lists import machine_list

    outputs.all_in(MACHINES.formats, "--machine list")
    outputs.check()
    listed = machine_list([load(name) for name in names()])
    outputs.write(lambda target: render(listed, target.format, width=target.width), answers=False)
    return ExitCode.OK
