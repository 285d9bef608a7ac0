"""Option groups of commands, functions for the options that several commands share, and the launcher of an MPI job."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import Field, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, get_args, get_type_hints

import typer
from typer.core import TyperCommand

from egmctl.api.options import OUTPUT, PREVIEW, option
from egmctl.cli import complete, output
from egmctl.cli.output import OutputOptions, say
from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass
from egmctl.errors import EgmctlError, ExitCode, UsageError
from egmctl.report.kinds import MACHINES, SUFFIXES, Format

if TYPE_CHECKING:
    from egmctl.model.machine import Machine
    from egmctl.mpi.world import Launched

MachineOption = Annotated[
    str | None,
    typer.Option(
        "--machine",
        metavar="FILE|NAME",
        help="A recorded or shipped machine instead of this node; 'list' names the shipped ones.",
        rich_help_panel=PREVIEW,
        autocompletion=complete.machines,
    ),
]


class ExitStyle(StrEnum):
    """The meaning of exit codes: that of egmctl (``docs/exit-codes.md``) or of Nagios plugins."""

    EGMCTL = "egmctl"
    NAGIOS = "nagios"


ExitStyleOption = Annotated[
    ExitStyle,
    typer.Option("--exit-style", help="egmctl's, or 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN.", rich_help_panel=OUTPUT),
]
_Ended = TypeVar("_Ended")


class GroupedCommand(TyperCommand):
    """A command whose ``--help`` shows the options without a heading first, the others below their headings.

    typer shows headings only in rich's markup mode, which would slow down start-up.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each heading, in the order in which the options are declared."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
            if record := parameter.get_help_record(ctx):
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append(record)
        for heading in sorted(sections, key=lambda heading: heading != "Arguments"):
            with formatter.section(heading):
                formatter.write_dl(sections[heading])


def takes_options(
    formats: Sequence[Format] = (), *, note: str = "", without: Collection[str] = ()
) -> Callable[[Callable[..., _Ended]], Callable[..., _Ended | ExitCode]]:
    """Return a decorator for commands whose parameters are groups of options: dataclasses of ``option`` fields.

    The parser sees each field as an option of the command; the command receives the groups.

    Parameters
    ----------
    formats, note
        The formats of the command's result, and a note; the help of ``--format`` and ``-o`` shows both.
    without
        The fields that are not options of this command and keep their defaults; ``csv`` is one if the formats lack CSV.
    """
    omitted = without if Format.CSV in formats else (*without, "csv")

    def decorate(command: Callable[..., _Ended]) -> Callable[..., _Ended | ExitCode]:
        hints = get_type_hints(command, include_extras=True)
        groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
        members = {name: [each for each in fields(group) if each.name not in omitted] for name, group in groups.items()}
        flat: list[inspect.Parameter] = []
        for parameter in inspect.signature(command).parameters.values():
            if parameter.name in groups:
                types = _types(groups[parameter.name])
                headings = _headings(groups[parameter.name])
                for each in members[parameter.name]:
                    flat.append(_parameter(each, types[each.name], headings.get(each.name), formats, note))
            else:
                flat.append(parameter.replace(annotation=hints[parameter.name], kind=parameter.KEYWORD_ONLY))

        @functools.wraps(command)
        def parsed(**values: Any) -> _Ended | ExitCode:
            given = {name: () if value is None and name in repeated else value for name, value in values.items()}
            grouped = {
                name: group(**{each.name: given.pop(each.name) for each in members[name]})
                for name, group in groups.items()
            }
            if given.get("machine") == "list":
                return _list_machines(grouped["output"])
            try:
                return command(**given, **grouped)
            except EgmctlError as error:
                if given.get("exit_style") is ExitStyle.NAGIOS:
                    # For Nagios an error is UNKNOWN (3); 2 would be CRITICAL.
                    error.exit_code = ExitCode.NOTHING
                raise

        repeated = {each.name for chosen in members.values() for each in chosen if each.default == ()}
        parsed.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
        parsed.__annotations__ = {parameter.name: parameter.annotation for parameter in flat}
        return parsed

    return decorate


_types = functools.cache(get_type_hints)


def _headings(group: type[Any]) -> Mapping[str, str]:
    """Return the heading in ``--help`` of each field that has one, of the group's base classes too."""
    named = (item for base in group.__mro__ for item in vars(base).get("HEADINGS", {}).items())
    return {name: heading for heading, names in named for name in names.split()}


def _parameter(
    each: Field[Any], hint: Any, heading: str | None, formats: Sequence[Format], note: str
) -> inspect.Parameter:
    """Return a field as a parameter for the parser; an option that can be repeated becomes a list or ``None``."""
    default = each.default
    if default == ():
        hint, default = list[get_args(hint)[0]] | None, None  # type: ignore[misc]
    return inspect.Parameter(
        each.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[hint, _option(each, formats, note, heading)],
    )


def _option(each: Field[Any], formats: Sequence[Format], note: str, heading: str | None = None) -> Any:
    more = dict(each.metadata)
    names = more.pop("names") or (f"--{each.name.replace('_', '-')}",)
    suffixes = [
        f"{suffix} (JUnit)" if format is Format.JUNIT else suffix
        for suffix, format in SUFFIXES.items()
        if format in formats
    ]
    more["help"] = more["help"].format(formats=", ".join(formats), suffixes=", ".join(suffixes), note=note)
    if each.name in complete.VALUES and each.type != "bool":
        more["autocompletion"] = complete.VALUES[each.name]
    if each.name == "format":
        more["autocompletion"] = lambda incomplete: [word.value for word in formats if word.startswith(incomplete)]
    return typer.Option(*names, rich_help_panel=heading, **more)


ForceOption = Annotated[bool, _option(OutputOptions.__dataclass_fields__["force"], (), "")]
NO_LEVELS = ("format", "verbose")
"""The options that lists do not have: a list is text or JSON, with one level of detail."""


def refuse_together(options: Mapping[str, bool]) -> None:
    """Check that at most one of some options is given.

    Raises
    ------
    UsageError
        If more than one of them is given.
    """
    given = [option for option, is_given in options.items() if is_given]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} exclude each other; give one of them")


class Mpi(StrEnum):
    """The values of ``--mpi``."""

    AUTO = "auto"
    """Join a job if the environment has the variables of a launcher."""
    OFF = "off"


@dataclass(frozen=True, kw_only=True)
class MpiOptions:
    """The option that decides whether the command joins an MPI job."""

    HEADINGS: ClassVar[dict[str, str]] = {"MPI jobs": "mpi sample ranks"}
    mpi: Mpi = option(
        "auto: join the MPI job if mpirun or srun started this process; off: run alone.", default=Mpi.AUTO
    )

    def joined_job(self) -> Launched | None:
        """Return the rank and size of the MPI job to join, or ``None`` if the process runs alone.

        From now on, all ranks except 0 write nothing.
        """
        if self.mpi is Mpi.OFF:
            return None
        launch = launched(os.environ)
        if launch is not None:
            output.relayed = True
            output.muted = launch.rank > 0
        return launch


def launched(environment: Mapping[str, str]) -> Launched | None:
    """Read the launcher's variables; return ``None`` if there was no launcher or the job has only one process."""
    for rank_name, size_name, local_names, by in _LAUNCHERS:
        rank, size = environment.get(rank_name, ""), environment.get(size_name, "")
        if not all(re.fullmatch("[0-9]{1,9}", number, re.ASCII) for number in (rank, size)):
            continue
        if int(size) < 2:
            return None
        from egmctl.mpi.world import Launched

        local = next((environment[name] for name in local_names if name in environment), rank)
        return Launched(int(rank), int(size), by, local == "0")
    return None


_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("OMPI_COMM_WORLD_LOCAL_RANK",), "Open MPI's mpirun"),
    (
        "PMI_RANK",
        "PMI_SIZE",
        ("MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID"),
        "a PMI launcher (mpiexec of MPICH or Intel MPI, srun --mpi=pmi2)",
    ),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", ("MV2_COMM_WORLD_LOCAL_RANK",), "mpirun of MVAPICH"),
    ("PMIX_RANK", "SLURM_STEP_NUM_TASKS", ("SLURM_LOCALID",), "srun --mpi=pmix"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ("SLURM_LOCALID",), "srun"),
)
"""The variables for rank, size and rank on the node, per launcher: Open MPI's manual (mpirun, "Environment Variables"),
Hydra's and Slurm's PMI-1 and PMI-2 servers, MVAPICH's user guide, Slurm's srun(1), "OUTPUT ENVIRONMENT VARIABLES". srun
sets its own with and without ``--mpi``."""


def requested_machine(
    name: str | None, sections: Iterable[str], *, quiet: bool, cuda: bool = True, pid: int = 0
) -> Machine:
    """Return the live node or the machine to replay; note on standard error a slow read or a recorded machine.

    Parameters
    ----------
    sections, cuda, pid
        As for :func:`egmctl.facts.collect.collect`; ignored for a machine to replay.

    Raises
    ------
    UsageError
        If there is no such machine or process.
    """
    if name is None:
        from egmctl.facts.collect import collect

        return collect(sections, cuda=cuda, pid=pid, on_wait=None if quiet else say)

    from egmctl.facts.replay import load_machine
    from egmctl.model.machine import OriginKind

    machine = load_machine(name)
    if machine.origin.kind is OriginKind.RECORDED and not quiet:
        say(f"replaying the recorded machine {machine.origin.name}, not this node")
    return machine


def reading_this_node(
    sections: Iterable[str] | None = None, *, quiet: bool
) -> contextlib.AbstractContextManager[Callable[..., Machine]]:
    """Start to read this node, so that its libraries answer while the caller imports modules; note a slow read.

    Parameters
    ----------
    sections
        The sections to read; ``None``: those that need the libraries, and the caller names the others later.
    """
    from egmctl.facts.collect import LIBRARY_SECTIONS, reading

    return reading(LIBRARY_SECTIONS if sections is None else sections, on_wait=None if quiet else say)


def _list_machines(output: OutputOptions) -> ExitCode:
    """Show the shipped machines (``--machine list``)."""
    from egmctl.facts.replay import load_machine, machine_names, sick
    from egmctl.report.views.lists import machine_list

    outputs = output.checked(MACHINES.formats)
    outputs.show(machine_list([load_machine(name) for name in (*machine_names(), *sick())]), answers=False)
    return ExitCode.OK
