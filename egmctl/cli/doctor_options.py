"""The options of ``egmctl doctor``."""

from __future__ import annotations

from typing import Annotated

import typer

from egmctl.compat import StrEnum


class ExitStyle(StrEnum):
    """Whose exit codes: egmctl's (``docs/exit-codes.md``) or those of Nagios plugins."""

    EGMCTL = "egmctl"
    NAGIOS = "nagios"


PurposeOption = Annotated[
    str | None,
    typer.Option("--for", metavar="LIST", help="Only what these need: egm, p2p, ipc, fabric, rdma, perf."),
]
GpusOption = Annotated[
    str | None,
    typer.Option(
        "--gpus",
        metavar="LIST",
        help="GPUs that are to work: all, 0-3,5, a UUID (or its start), a PCI bus id. A named GPU that cannot be used "
        "is a failure.",
    ),
]
NumaOption = Annotated[
    str | None,
    typer.Option("--numa", metavar="LIST", help="CPU NUMA nodes whose memory is to be used: all, local, 1, 0-1."),
]
CheckOption = Annotated[
    list[str] | None,
    typer.Option("--check", metavar="ID", help="Only this check or glob (numa.*); may be given several times."),
]
SkipOption = Annotated[
    list[str] | None, typer.Option("--skip", metavar="ID", help="Not this check or glob; may be given several times.")
]
ActiveOption = Annotated[
    bool,
    typer.Option(
        "--active",
        help="Also try what can only be tried: HOST_NUMA memory, copies between GPUs, memory shared by two processes. "
        "Takes seconds, a little GPU memory, and loads CUDA.",
    ),
]
ListOption = Annotated[bool, typer.Option("--list", help="List the checks and what each guards; check nothing.")]
ExplainOption = Annotated[
    str | None,
    typer.Option("--explain", metavar="ID", help="Say why a check matters, how it is read, and how to fix it."),
]
ExpectOption = Annotated[
    str | None,
    typer.Option(
        "--expect",
        metavar="gpus=N|FILE",
        help="What should be here: counts (gpus=8,nics=4,numa=2) or a recorded or shipped machine.",
    ),
]
PidOption = Annotated[
    int,
    typer.Option(
        "--pid",
        metavar="PID",
        min=0,
        show_default=False,
        help="Judge what that process may use (a running job); as root, its access to GPUs too.",
    ),
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        "--since",
        metavar="AGE",
        show_default=False,
        help="Only what the kernel logged within this time: 30m, 2h, 1d. Default: since boot.",
    ),
]
StrictOption = Annotated[bool, typer.Option("--strict", help="A warning is a failure.")]
BriefOption = Annotated[bool, typer.Option("--brief", help="One line per problem and the counts, nothing else.")]
ExitStyleOption = Annotated[
    ExitStyle,
    typer.Option("--exit-style", help="Exit codes of egmctl, or 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN of Nagios."),
]
