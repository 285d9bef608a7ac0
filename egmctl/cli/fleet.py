"""``egmctl fleet``: run a command on many nodes at once by ssh or srun, and group nodes with equal results."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, TypeVar

import typer

from egmctl import __version__
from egmctl.api.options import option
from egmctl.cli.options import refuse_together, takes_options
from egmctl.cli.output import OutputOptions, check_output, emit, say
from egmctl.cli.progress import show_progress
from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.errors import UsageError
from egmctl.report.kinds import FLEET, Format, render
from egmctl.units import printable

if TYPE_CHECKING:
    from egmctl.fleet.run import Launch, Progress
    from egmctl.fleet.session import Session
    from egmctl.model.fleet import Launcher
    from egmctl.model.record import Command

    Word = TypeVar("Word", bound=StrEnum)

CommandArgument = Annotated[
    str,
    typer.Argument(metavar="bringup|doctor|topo|bench|snapshot", help="What to run on each node.", show_default=False),
]
RemoteArgument = Annotated[
    list[str] | None, typer.Argument(metavar="[-- ...]", help="Options of that command, after --.")
]


@dataclass(frozen=True, kw_only=True)
class FleetOptions:
    """The nodes, how the command is started on them, and the folder of the results."""

    HEADINGS: ClassVar[dict[str, str]] = {
        "Launching": "launcher_options fanout connect_timeout remote_command any_version"
    }
    nodes: Sequence[str] = option(
        "Nodes in ClusterShell syntax: node[01-72], @gpu; can be given several times.",
        "NODESET",
        "--nodes",
        "-w",
        default=(),
    )
    exclude: Sequence[str] = option(
        "Nodes to leave out; can be given several times.", "NODESET", "--exclude", "-x", default=()
    )
    launcher: str = option("How to start the command on a node.", "ssh|srun", default="ssh")
    launcher_options: str = option(
        "More options for ssh or srun: '-l root -i KEY', '--partition=gpu --gpus-per-node=4'.", "TEXT", default=""
    )
    fanout: int = option("Nodes in parallel.", "N", default=64, min=1, max=200)
    connect_timeout: int = option("Time limit to reach a node.", "SECONDS", default=10, min=1, max=3600)
    timeout: int | None = option(
        "Time limit of the command on a node, which is stopped then. Default: 120; bench 3600, bringup 900.",
        "SECONDS",
        min=1,
        max=30 * 86400,
    )
    remote_command: str | None = option("Path of egmctl on the nodes. Default: found in PATH.", "PATH")
    any_version: bool = option("Accept nodes with another version of egmctl.", default=False)
    folder: Path | None = option(
        "New folder for the results. Default: named by command and time.", "DIR", "--output", "-o"
    )
    resume: Path | None = option("Continue in the folder of an earlier run: retry nodes without a result.", "DIR")
    list_nodes: str | None = option(
        "Print only the nodes in this state, as a node set: good, warn, bad, incomplete, broke or interrupted.",
        "STATE",
        "--list",
    )

    def launch(self, command: Command) -> Launch:
        """Return the launch settings for a command.

        Raises
        ------
        UsageError
            If there is no such launcher, or its options have an unclosed quotation.
        """
        from egmctl.fleet.run import Launch
        from egmctl.model.fleet import Launcher

        try:
            options = tuple(shlex.split(self.launcher_options))
        except ValueError as error:
            raise UsageError(f"--launcher-options {printable(self.launcher_options)!r}: {error}") from error
        return Launch(
            launcher=_word(Launcher, self.launcher, "--launcher: there is no such launcher"),
            options=options,
            fanout=self.fanout,
            connect_timeout_s=self.connect_timeout,
            timeout_s=self.timeout or TIMEOUTS_S.get(command.value, USUAL_TIMEOUT_S),
        )


USUAL_TIMEOUT_S = 120
TIMEOUTS_S = {"bench": 3600, "bringup": 900}
"""The time limits of commands that measure, which take longer."""

NO_DOCUMENT = frozenset(
    ("output", "csv", "format", "exit_style", "machine", "list_cases", "list_checks", "explain", "dry_run")
)
"""The parameters with which a command would not print the JSON document that fleet collects."""


@takes_options(without=("format", "output", "force"))
def fleet(
    context: typer.Context,
    command: CommandArgument,
    options: FleetOptions,
    output: OutputOptions,
    remote: RemoteArgument = None,
) -> int:
    """Run a command on many nodes at once by ssh or srun: which nodes are bad, and each cause once.

    Example: egmctl fleet bringup -w node[01-72]
    """
    from egmctl.model.answer import State
    from egmctl.model.fleet import Launcher
    from egmctl.model.record import Command
    from egmctl.units import require_clustershell

    require_clustershell("'egmctl fleet'")
    from egmctl.fleet.folder import REPORT
    from egmctl.fleet.session import ask_nodes

    wanted = _word(Command, command, "fleet has no such command")
    state = options.list_nodes and _word(State, options.list_nodes, "--list: there is no such state")
    refuse_together({"--list": options.list_nodes is not None, "--json": output.json})
    launch = options.launch(wanted)
    check_output(None)
    session = _session(context, wanted, remote or (), options, launch.launcher)
    with show_progress(output.quiet) as shown:

        def on_tick(progress: Progress) -> None:
            shown.doing(len(progress.answers) / progress.total, _words(progress))

        report, failure = ask_nodes(session, launch, on_tick, say)
    if state:
        emit(report.in_state(state))
    else:
        output.chosen(FLEET.formats).show(report)
    if not output.quiet and len(report.answers) > report.counts.get("answered", 0):
        words = ["egmctl", "fleet", wanted.value, "--resume", report.folder]
        words += ["--launcher", options.launcher] if launch.launcher is not Launcher.SSH else []
        words += ["--launcher-options", options.launcher_options] if options.launcher_options else []
        say(f"retry missing nodes: {shlex.join(words)}")
    if failure is not None:
        # If the report cannot be written to the folder, emit() writes it elsewhere.
        emit(render(report, Format.JSON), session.folder.path / REPORT, force=True)
        raise failure
    return report.exit_code


def _session(
    context: typer.Context, command: Command, remote: Sequence[str], options: FleetOptions, launcher: Launcher
) -> Session:
    """Start a run, or resume an earlier one; the folder is created only if the whole command line is valid.

    Raises
    ------
    UsageError
        If an option is invalid here or on the nodes.
    """
    from egmctl.fleet.nodes import select_nodes
    from egmctl.fleet.session import new_session, old_session
    from egmctl.model.fleet import NodeCommand

    version = "" if options.any_version else f"egmctl {__version__}"
    if options.resume is None:
        nodes = select_nodes(options.nodes, options.exclude)
        total = _check_command(context, command, remote, launcher)
        tool = options.remote_command or "egmctl"
        asked = NodeCommand(command=command, arguments=tuple(remote), nodes=nodes, remote_command=tool, version=version)
        return new_session(replace(asked, domain_gpus=total), options.folder)
    given = {"-w": options.nodes, "-x": options.exclude, "-o": options.folder, "an option after --": remote}
    if wrong := next((name for name, value in given.items() if value), None):
        raise UsageError(f"--resume repeats the earlier command: leave out {wrong}")
    session = old_session(command, options.resume)
    _check_command(context, command, session.asked.arguments, launcher)
    tool = options.remote_command or session.asked.remote_command
    # If the earlier run accepted any version, so does this one.
    version = session.asked.version and version
    return replace(session, asked=replace(session.asked, remote_command=tool, version=version))


def _word(kind: type[Word], text: str, sentence: str) -> Word:
    try:
        return kind(text)
    except ValueError as error:
        raise UsageError(f"{sentence} as {printable(text[:40])!r}; valid are {', '.join(kind)}") from error


def _check_command(
    context: typer.Context, command: Command, arguments: Sequence[str], launcher: Launcher
) -> int | None:
    """Check that a command's arguments are valid and lead to a JSON document, and that the launcher is installed.

    Return the number of GPUs that ``--expect`` states for the domain. What else it may state is for the nodes to read.

    Raises
    ------
    UsageError
        If an option is invalid or leads to no document, or the launcher is not in the PATH.
    """
    from typing import cast

    from typer.core import TyperGroup

    from egmctl.doctor.check import expected_domain_gpus

    parser = cast(TyperGroup, context.find_root().command).commands[command.value]
    with parser.make_context(f"egmctl {command}", [*arguments]) as remote:
        for parameter in parser.params:
            given, usual = remote.params.get(parameter.name or ""), parameter.get_default(remote)
            if parameter.name in NO_DOCUMENT and (given or None) != (usual or None):
                raise UsageError(f"after --, {parameter.opts[-1]} is not allowed: fleet collects JSON from each node")
    domain_gpus = expected_domain_gpus(remote.params.get("expect"))
    if shutil.which(launcher) is None:
        raise UsageError(f"--launcher {launcher}: there is no {launcher} in the PATH")
    return domain_gpus


def _words(progress: Progress) -> str:
    """Return the progress of a run as text."""
    from egmctl.model.fleet import Reach

    failed = [answer.node for answer in progress.answers if answer.reach is not Reach.ANSWERED]
    words = [f"{len(progress.answers)} of {progress.total} nodes, {len(progress.under_way)} under way"]
    if failed:
        words.append(f"{len(failed)} failed, the last {printable(failed[-1])}")
    if progress.stopping:
        words.append("stopping them; press Ctrl-C again to leave at once")
    return ", ".join(words)
