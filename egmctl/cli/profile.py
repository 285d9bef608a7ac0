"""``egmctl profile``: list and show profiles, match them with a machine, and learn one from runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from egmctl.cli import complete
from egmctl.cli.options import NO_LEVELS, ForceOption, MachineOption, requested_machine, takes_options
from egmctl.cli.output import OutputOptions, Outputs, check_output, emit, file_of, say
from egmctl.errors import ExitCode, UsageError
from egmctl.report.kinds import MATCH, PROFILES
from egmctl.units import printable

if TYPE_CHECKING:
    from egmctl.model.profile import Profile
    from egmctl.saved import Saved
    from egmctl.verdict.learning import Run

SECTIONS = ("host", "gpus", "pairs", "driver", "process")
"""The sections of a machine that profiles match on."""

profile_app = typer.Typer(rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})

NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME|FILE", help="A profile's name, or its file NAME.toml.", autocompletion=complete.profiles
    ),
]
RunsArgument = Annotated[list[Path], typer.Argument(metavar="RUN.json...", help="JSON results of egmctl bench.")]
TomlOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE.toml", help="Write to FILE.toml; its stem is the profile's name."),
]


@profile_app.command("list", short_help="List the profiles.")
@takes_options(PROFILES.formats, without=NO_LEVELS)
def list_profiles(output: OutputOptions) -> int:
    """List the profiles: your own, the system's (/etc/egmctl/profiles), and those that ship."""
    outputs = output.checked(PROFILES.formats)

    from egmctl.verdict.profiles import all_profiles

    return _show(outputs, all_profiles())


@profile_app.command("show", short_help="Show one profile, with the source of each number.")
@takes_options(PROFILES.formats, without=NO_LEVELS)
def show_profile(name: NameArgument, output: OutputOptions) -> int:
    """Show one profile: how its machines are recognised, what each path reaches, and the source of each number."""
    outputs = output.checked(PROFILES.formats)

    from egmctl.verdict.profiles import profile_file, read_profile

    path = profile_file(name)
    return _show(outputs, [(read_profile(path), path)])


@profile_app.command("match", short_help="Show which profile matches this machine, and why.")
@takes_options(MATCH.formats, without=NO_LEVELS)
def match_profiles(output: OutputOptions, machine: MachineOption = None) -> int:
    """Show which profile matches this machine, and why; exit code 3 if none does."""
    outputs = output.checked(MATCH.formats)

    from egmctl.model.profile import MatchResult
    from egmctl.verdict.answers import answered
    from egmctl.verdict.profiles import all_profiles, choose, match_profile

    node = requested_machine(machine, SECTIONS, quiet=output.quiet)
    profiles = [profile for profile, _ in all_profiles()]
    chosen, reason = choose(node, profiles)
    matches = tuple(match_profile(node, profile) for profile in profiles)
    name = chosen.name if chosen else None
    result = answered(MatchResult(origin=node.origin, profile=name, reason=reason, matches=matches))
    outputs.show(result)
    return result.exit_code


@profile_app.command("learn", short_help="Make a profile from your own runs.")
def learn_profile(runs: RunsArgument, output: TomlOption = None, force: ForceOption = False) -> int:
    """Make a profile of your own runs: each path's median, and bounds from how far runs and paths are apart."""
    output = file_of(output)
    if output is not None and output.suffix != ".toml":
        raise UsageError(f"{printable(output)}: a profile is a file NAME.toml")
    check_output(output, force)

    import datetime

    from egmctl.saved import load_all
    from egmctl.verdict.learning import learn, profile_toml

    name = "site" if output is None else output.stem
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    profile = learn([_run(saved) for saved in load_all(runs)], name, today)
    emit(profile_toml(profile), output, force=force)
    say(f"{profile.title}: {len(profile.references)} path classes")
    return ExitCode.OK


def _show(outputs: Outputs, profiles: Sequence[tuple[Profile, Path]]) -> int:
    from egmctl.model.profile import ProfileFile, ProfileList

    files = tuple(ProfileFile(file=str(path), profile=profile) for profile, path in profiles)
    outputs.show(ProfileList(profiles=files))
    return ExitCode.OK


def _run(saved: Saved) -> Run:
    from egmctl.model.measurement import RunReport
    from egmctl.verdict.learning import Run

    report = saved.result
    if not isinstance(report, RunReport):
        raise UsageError(f"file {saved.path} is not a bench result: it is a result of egmctl {saved.kind}")
    if len(report.machines) != 1:
        raise UsageError(f"file {saved.path} holds {len(report.machines)} machines: give runs of one machine each")
    (machine,) = report.machines
    # The file does not contain the node's name, but its GPUs have pseudonyms, which do not change between runs.
    node = ",".join(sorted(gpu.uuid or gpu.bus_id for gpu in machine.gpus or ()))
    return Run(report, machine, node)
