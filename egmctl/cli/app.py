"""The ``egmctl`` command: its subcommands, ``--version`` and error handling."""

from __future__ import annotations

import errno
import itertools
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from egmctl import __version__
from egmctl.cli import output
from egmctl.cli.bench import bench
from egmctl.cli.bringup import bringup
from egmctl.cli.docs import docs
from egmctl.cli.doctor import doctor
from egmctl.cli.explain import ExplainCommand, explain
from egmctl.cli.fleet import fleet
from egmctl.cli.options import GroupedCommand
from egmctl.cli.output import discard_stdout, emit, say, settle_stdout
from egmctl.cli.profile import profile_app
from egmctl.cli.saved import compare, history, show
from egmctl.cli.topo import snapshot, topo
from egmctl.cli.watch import watch
from egmctl.errors import ERROR_SCHEMA, ChildFailed, EgmctlError, ExitCode, UsageError
from egmctl.files import read_bounded
from egmctl.signals import stopping
from egmctl.units import printable


def versions() -> str:
    """Return the name and version of each component, one per line."""
    return (
        f"egmctl {__version__}\n"
        f"cuda-bindings {_distribution('cuda-bindings')}\n"
        f"nvidia-ml-py {_distribution('nvidia-ml-py')}\n"
        f"NVIDIA driver {_driver()}\n"
    )


def _distribution(name: str) -> str:
    # Imported here because the import takes a tenth of the time of --help.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _driver() -> str:
    """Return the version of the loaded kernel module, read from ``/proc/driver/nvidia/version``."""
    path = Path(os.environ.get("EGMCTL_SYSROOT", "/")) / "proc/driver/nvidia/version"
    try:
        text = read_bounded(path, 4096).decode(errors="replace")
    except OSError:
        return "not loaded"
    match = re.search(r"\b[0-9]{3,}\.[0-9]+(?:\.[0-9]+)?\b", text)
    return match[0] if match else "of an unknown version"


app = typer.Typer(
    # rich's markup mode would slow down start-up.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with 'egmctl bringup' on an idle node, or 'egmctl doctor' beside jobs. 'egmctl docs start' shows "
    "each command in five minutes.",
)
command = partial(app.command, cls=GroupedCommand)
# These short texts fit in 80 columns; the first sentence of a command's docstring would be truncated.
command(short_help="Judge whether this node can be handed over: GO or NO-GO.")(bringup)
command(short_help="Show how GPUs, NICs and host memory are connected.")(topo)
command(short_help="Measure the paths between GPUs and to host memory.")(bench)
command(short_help="Show live which link of each GPU carries traffic.")(watch)
command(short_help="Find what stops EGM, P2P, IPC and RDMA, and what to do.")(doctor)
command(cls=ExplainCommand, short_help="Say what an error of CUDA means, and what causes it here.")(explain)
command(short_help="Record this node in one file, to replay anywhere.")(snapshot)
command(short_help="Show a saved result in any format.")(show)
command(short_help="Compare saved results: what differs, and what is worse.")(compare)
command(short_help="List the bench runs that this node keeps.")(history)
app.add_typer(profile_app, name="profile", help="List, match and learn profiles: the expected performance.")
command(short_help="Run bringup, doctor, bench or others on many nodes.")(fleet)
command(short_help="Print a page of the guide.")(docs)

_CommandLineError: type[Exception] = typer.BadParameter.__mro__[1]
"""The parser's UsageError. typer exports only its subclass, and since typer 0.26 it cannot be imported from click."""


@cache
def parser() -> Callable[..., Any]:
    """Return the parser of all commands, which calls the one that it is given: it takes 20 ms to build."""
    return typer.main.get_command(app)


def main() -> NoReturn:
    """Run the command with the arguments of this process and end the process."""
    code = run_command(sys.argv[1:])
    settle_stdout()
    sys.exit(code)


def run_command(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code; report any error in one sentence on standard error."""
    with stopping():
        return _run(arguments)


def _run(arguments: Sequence[str]) -> int:
    try:
        try:
            code = parser()(args=list(arguments), prog_name="egmctl", standalone_mode=False)
            if sys.stdout is not None:
                sys.stdout.flush()
        except _CommandLineError as error:
            raise UsageError(_sentence(error)) from error
    except EgmctlError as error:
        return _fail(error, arguments)
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    except SystemExit as end:
        if end.code == 0:
            # Shell completion, or --show-completion, has finished.
            return ExitCode.OK
        # The parser exits like this if the reader closed the pipe while it wrote help.
        discard_stdout()
        return ExitCode.CRASHED
    except Exception as error:
        if isinstance(error, OSError) and output.hung_up(error):
            # Nobody is there to be told.
            discard_stdout()
            return ExitCode.INTERRUPTED
        return _fail(_Unexpected(error), arguments)
    if code == ExitCode.INTERRUPTED:
        # The parser turns a KeyboardInterrupt into the same code that a command with a partial report returns.
        return _fail(_Interrupted("interrupted"), arguments)
    return code or ExitCode.OK


@app.callback(invoke_without_command=True)
def _egmctl(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", "-V", help="Show the versions of the tool, the bindings and the driver.")
    ] = False,
) -> None:
    """Map, measure and diagnose NVIDIA GPU nodes during bring-up, Extended GPU Memory (EGM) included."""
    if version:
        emit(versions())
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(ExitCode.USAGE)


class _Interrupted(EgmctlError):
    """SIGINT, SIGTERM or SIGHUP."""

    exit_code = ExitCode.INTERRUPTED
    code = "interrupted"


class _Unexpected(EgmctlError):
    """An exception that no command expects: an error of the operating system, or a bug of egmctl."""

    code = "internal"

    def __init__(self, error: Exception) -> None:
        if isinstance(error, OSError) and error.strerror and (error.filename is None or error.errno == errno.EACCES):
            where = "" if error.filename is None else f": {error.filename}"
            super().__init__(f"the system refused: {error.strerror}{where}")
        else:
            first_line = str(error).partition("\n")[0]
            super().__init__(
                f"unexpected {type(error).__name__}: {first_line}; please report it with what EGMCTL_DEBUG=1 shows"
            )


def _fail(error: EgmctlError, arguments: Sequence[str]) -> int:
    """Report an error in one sentence and, if the user chose JSON, as a document; return the exit code."""
    if os.environ.get("EGMCTL_DEBUG") and sys.stderr is not None:
        import traceback

        traceback.print_exc()
        if isinstance(error, ChildFailed):
            sys.stderr.writelines(f"child: {printable(line)}\n" for line in error.output.splitlines())
    if output.muted:
        # mpirun kills a job if a process exits with another code, possibly before rank 0 has reported the error.
        return ExitCode.OK
    say(str(error))
    if output.emitted:
        return error.exit_code
    if "--json" in arguments or "--format=json" in arguments or ("--format", "json") in itertools.pairwise(arguments):
        from egmctl.report.exports.json import dump, envelope

        document = envelope(ERROR_SCHEMA, error.exit_code, None, machine=None, errors=[error])
        try:
            emit(dump(document), is_document=True)
        except EgmctlError as second:
            say(str(second))
    return error.exit_code


def _sentence(error: Exception) -> str:
    """Return the parser's error as one sentence that refers to ``--help``."""
    message = getattr(error, "format_message", error.__str__)().rstrip(".?").replace(". Did you", "; did you")
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "egmctl"
    if command == "egmctl fleet" and message.startswith("No such option"):
        message += "; put options of the command on the nodes after --"
    if message.startswith("No such command") and context is not None:
        return f"{message[:1].lower()}{message[1:]}; the commands are {', '.join(context.command.commands)}"
    return f"{message[:1].lower()}{message[1:]}; '{command} --help' says what is valid"
