"""``egmctl fleet``: ask many nodes at once, by ssh or srun, and show which are alike and which are not."""

from __future__ import annotations

import contextlib
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from egmctl.cli.options import ColorOption, JsonOption, QuietOption, VerboseOption
from egmctl.cli.output import Color, check_output, emit, say, shows_progress, terminal_width
from egmctl.compat import StrEnum
from egmctl.errors import UsageError
from egmctl.report.kinds import Format
from egmctl.report.rendering import render
from egmctl.units import printable

if TYPE_CHECKING:
    from egmctl.fleet.run import Progress
    from egmctl.model.command import Command
    from egmctl.model.fleet import Launcher

    Word = TypeVar("Word", bound=StrEnum)

CommandArgument = Annotated[
    str,
    typer.Argument(metavar="bringup|doctor|topo|bench|snapshot", help="What to run on each node.", show_default=False),
]
RemoteArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[-- ...]", help="Options of that command, after --.")
]
NodesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--nodes",
        "-w",
        metavar="NODESET",
        help="Nodes in ClusterShell syntax: node[01-72], @gpu; can be given several times.",
    ),
]
ExcludeOption = Annotated[
    list[str] | None,
    typer.Option("--exclude", "-x", metavar="NODESET", help="Nodes to leave out; can be given several times."),
]
LauncherOption = Annotated[
    str, typer.Option("--launcher", metavar="ssh|srun", help="How to start the command on a node.")
]
LauncherOptionsOption = Annotated[
    str,
    typer.Option(
        "--launcher-options",
        metavar="TEXT",
        help="More options for ssh or srun: '-l root -i KEY', '--partition=gpu --gpus-per-node=4'.",
    ),
]
FanoutOption = Annotated[int, typer.Option("--fanout", metavar="N", min=1, max=200, help="Nodes in parallel.")]
ConnectOption = Annotated[
    int,
    typer.Option("--connect-timeout", metavar="SECONDS", min=1, max=3600, help="Time limit to reach a node."),
]
TimeoutOption = Annotated[
    int | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=1,
        max=30 * 86400,
        help="Time limit of the command on a node, which is stopped then. Default: 120; bench 3600, bringup 900.",
    ),
]
RemoteCommandOption = Annotated[
    str | None,
    typer.Option("--remote-command", metavar="PATH", help="Path of egmctl on the nodes. Default: found in PATH."),
]
AnyVersionOption = Annotated[bool, typer.Option("--any-version", help="Accept nodes with another version of egmctl.")]
FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", metavar="DIR", help="New folder for the results. Default: named by command and time."
    ),
]
ResumeOption = Annotated[
    Path | None,
    typer.Option(
        "--resume", metavar="DIR", help="Continue in the folder of an earlier run: retry nodes without a result."
    ),
]

USUAL_TIMEOUT_S = 120
TIMEOUTS_S = {"bench": 3600, "bringup": 900}
"""Commands that measure take longer."""

ListNodesOption = Annotated[
    str | None,
    typer.Option(
        "--list",
        metavar="STATE",
        help="Print only the nodes in this state, as a node set: healthy, failed, not-determined or unreachable.",
    ),
]

NO_DOCUMENT = {
    "output": "-o",
    "csv": "--csv",
    "format": "--format",
    "exit_style": "--exit-style",
    "machine": "--machine",
    "list_cases": "--list",
    "list_checks": "--list",
    "explain": "--explain",
    "dry_run": "--dry-run",
}
"""Parameters of commands, with their options, under which a node would send no result of its own."""


def fleet(
    context: typer.Context,
    command: CommandArgument,
    remote: RemoteArgument = None,
    nodes: NodesOption = None,
    exclude: ExcludeOption = None,
    launcher: LauncherOption = "ssh",
    launcher_options: LauncherOptionsOption = "",
    fanout: FanoutOption = 64,
    connect_timeout: ConnectOption = 10,
    timeout: TimeoutOption = None,
    remote_command: RemoteCommandOption = None,
    any_version: AnyVersionOption = False,
    output: FolderOption = None,
    resume: ResumeOption = None,
    list_nodes: ListNodesOption = None,
    json: JsonOption = False,
    verbose: VerboseOption = 0,
    quiet: QuietOption = False,
    color: ColorOption = Color.AUTO,
) -> int:
    """Run a command on many nodes at once by ssh or srun: which nodes are bad, and each cause once.

    Example: egmctl fleet bringup -w node[01-72]
    """
    from egmctl.model.command import Command
    from egmctl.model.fleet import Launcher, NodeState
    from egmctl.nodesets import require_clustershell

    require_clustershell("'egmctl fleet'")
    from egmctl.fleet.folder import REPORT
    from egmctl.fleet.nodes import select_nodes
    from egmctl.fleet.run import Launch
    from egmctl.fleet.session import ask, new_session, old_session

    what = _word(Command, command, "fleet has no such command")
    wanted = None if list_nodes is None else _word(NodeState, list_nodes, "--list: there is no such state")
    if wanted is not None and json:
        raise UsageError("--list and --json exclude each other; give one of them")
    try:
        options = tuple(shlex.split(launcher_options))
    except ValueError as error:
        raise UsageError(f"--launcher-options {printable(launcher_options)!r}: {error}") from error
    launch = Launch(
        launcher=_word(Launcher, launcher, "--launcher: there is no such launcher"),
        options=options,
        fanout=fanout,
        connect_timeout_s=connect_timeout,
        timeout_s=timeout or TIMEOUTS_S.get(what.value, USUAL_TIMEOUT_S),
    )
    check_output(None, force=False)
    if resume is None:
        _check_remote(context, what, remote or ())
        asked = select_nodes(nodes or (), exclude or ())
        _require(launch.launcher)
        session = new_session(
            what,
            remote or (),
            asked,
            remote_command=remote_command or "egmctl",
            any_version=any_version,
            path=output,
        )
    else:
        given = {"-w": nodes, "-x": exclude, "-o": output, "an option after --": remote}
        if wrong := next((name for name, value in given.items() if value), None):
            raise UsageError(f"--resume repeats the earlier command: leave out {wrong}")
        session = old_session(what, resume, remote_command=remote_command, any_version=any_version)
        _check_remote(context, what, session.asked.arguments)
        _require(launch.launcher)
    with _progress(quiet) as on_tick:
        asking = ask(session, launch, on_tick, say)
    report = asking.report
    if wanted is not None:
        from egmctl.nodesets import fold

        emit(fold(one.node for one in report.answers if one.state is wanted), output=None, force=False)
    else:
        format = Format.JSON if json else Format.TEXT
        emit(render(report, format, verbose=verbose, width=terminal_width(None)), output=None, force=False, color=color)
    if not quiet and len(report.answers) > report.counts.get("answered", 0):
        words = ["egmctl", "fleet", what.value, "--resume", report.folder]
        words += ["--launcher", launcher] if launch.launcher is not Launcher.SSH else []
        words += ["--launcher-options", launcher_options] if launcher_options else []
        say(f"retry missing nodes: {shlex.join(words)}")
    if asking.failure is not None and asking.written:
        raise asking.failure
    if not asking.written:
        # It is tried once more, and goes elsewhere.
        emit(render(report, Format.JSON), output=session.folder.path / REPORT, force=True)
    return report.exit_code


def _require(launcher: Launcher) -> None:
    """Refuse to begin where there is no launcher: the command line was looked at, and no folder is made yet."""
    if shutil.which(launcher) is None:
        raise UsageError(f"--launcher {launcher}: there is no {launcher} in the PATH")


def _word(kind: type[Word], text: str, sentence: str) -> Word:
    try:
        return kind(text)
    except ValueError as error:
        raise UsageError(f"{sentence} as {printable(text[:40])!r}; valid are {', '.join(kind)}") from error


def _check_remote(fleet_context: typer.Context, command: Command, arguments: Sequence[str]) -> None:
    """Refuse here what every node would refuse, or would answer without a document.

    Raises
    ------
    UsageError
        If the command has no such option, or it leads to no document.
    """
    from typing import cast

    from typer.core import TyperGroup

    asked = cast(TyperGroup, fleet_context.find_root().command).commands[command.value]
    with asked.make_context(f"egmctl {command}", [*arguments]) as context:
        usual = {parameter.name: parameter.get_default(context) for parameter in asked.params}
        for name, option in NO_DOCUMENT.items():
            if name in context.params and (context.params[name] or None) != (usual[name] or None):
                raise UsageError(f"after --, {option} is not allowed: fleet collects JSON from each node")


@contextlib.contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[Progress], None]]:
    """Show on standard error how many nodes are done, if that is a terminal and is wanted."""
    if not shows_progress(quiet):
        yield lambda _progress: None
        return

    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.completed} of {task.total}"),
        BarColumn(),
        TextColumn("{task.description}", markup=False),
    )
    # No thread of its own: the engine forks.
    with Bar(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", visible=False)

        def show(progress: Progress) -> None:
            done = len(progress.answers)
            bar.update(task, completed=done, total=progress.total, description=_told(progress), visible=True)
            bar.refresh()

        yield show


def _told(progress: Progress) -> str:
    from egmctl.model.fleet import Reach

    failed = [answer.node for answer in progress.answers if answer.reach is not Reach.ANSWERED]
    told = [f"{len(progress.under_way)} under way"]
    if failed:
        told.append(f"{len(failed)} failed, the last {printable(failed[-1])}")
    if progress.stopping:
        told.append("stopping them; press Ctrl-C again to leave at once")
    return ", ".join(told)
