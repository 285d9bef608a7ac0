"""The options of ``egmctl doctor``, and of ``bringup``, which runs it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Annotated

import typer

from egmctl.compat import StrEnum
from egmctl.errors import EgmctlError, ExitCode


class ExitStyle(StrEnum):
    """Whose exit codes: egmctl's (``docs/exit-codes.md``) or those of Nagios plugins."""

    EGMCTL = "egmctl"
    NAGIOS = "nagios"


PurposeOption = Annotated[
    str | None,
    typer.Option("--for", metavar="LIST", help="Only checks for these purposes: egm, p2p, ipc, fabric, rdma, perf."),
]
GpusOption = Annotated[
    str | None,
    typer.Option(
        "--gpus",
        metavar="LIST",
        help="GPUs that must work: all, 0-3,5, a UUID (or its start), a PCI bus id. A named GPU that cannot be used "
        "is a failure.",
    ),
]
NumaOption = Annotated[
    str | None,
    typer.Option("--numa", metavar="LIST", help="CPU NUMA nodes whose memory must work: all, local, 1, 0-1."),
]
CheckOption = Annotated[
    list[str] | None,
    typer.Option("--check", metavar="ID", help="Only this check or glob (numa.*); can be given several times."),
]
SkipOption = Annotated[
    list[str] | None, typer.Option("--skip", metavar="ID", help="Skip this check or glob; can be given several times.")
]
ActiveOption = Annotated[
    bool,
    typer.Option(
        "--active",
        help="Also run tests: HOST_NUMA memory, copies between GPUs, memory shared by two processes. Loads CUDA; "
        "takes seconds and a little GPU memory.",
    ),
]
ListOption = Annotated[bool, typer.Option("--list", help="List the checks and their purposes, then exit.")]
ExplainOption = Annotated[
    str | None,
    typer.Option("--explain", metavar="ID", help="Explain a check: why it matters, how it is read, how to fix it."),
]
ExpectOption = Annotated[
    str | None,
    typer.Option(
        "--expect",
        metavar="gpus=N|FILE",
        help="What must be here: counts (gpus=8,nics=4,numa=2), or a recorded or shipped machine.",
    ),
]
PidOption = Annotated[
    int,
    typer.Option(
        "--pid",
        metavar="PID",
        min=0,
        show_default=False,
        help="Judge what that process (a running job) may use; as root, also its access to GPUs.",
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="AGE",
        show_default=False,
        help="Kernel messages of this long only: 30m, 2h, 1d. Default: since boot.",
    ),
]
StrictOption = Annotated[bool, typer.Option("--strict", help="Treat warnings and notes as failures (exit code 1).")]
BriefOption = Annotated[bool, typer.Option("--brief", help="Only one line per problem, and the counts.")]
ExitStyleOption = Annotated[
    ExitStyle,
    typer.Option("--exit-style", help="Exit codes of egmctl, or 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN of Nagios."),
]


@contextlib.contextmanager
def exit_codes(style: ExitStyle) -> Iterator[None]:
    """Give what goes wrong inside the exit code of a style: 2 would be CRITICAL; what could not be checked is UNKNOWN,
    which is 3 in both."""
    try:
        yield
    except EgmctlError as error:
        if style is ExitStyle.NAGIOS:
            error.exit_code = ExitCode.NOTHING
        raise
