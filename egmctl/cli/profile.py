"""``egmctl profile``: what kinds of machines are known to reach, and which kind this one is."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from egmctl.cli.machine import list_machines, read_machine
from egmctl.cli.options import ColorOption, ForceOption, JsonOption, MachineOption, QuietOption
from egmctl.cli.output import Color, check_output, emit, file_of, say, terminal_width
from egmctl.cli.outputs import Outputs
from egmctl.errors import ExitCode, UsageError
from egmctl.report.forms import Form, rendered
from egmctl.units import printable

if TYPE_CHECKING:
    from egmctl.model.machine import Machine
    from egmctl.model.profile import MatchResult, Profile, ProfileList
    from egmctl.report.document import Document
    from egmctl.saved import Saved
    from egmctl.verdict.learn import Run

SECTIONS = ("host", "gpus", "pairs", "driver", "process")
"""What a machine is recognised by."""

app = typer.Typer(rich_markup_mode=None, context_settings={"help_option_names": ["-h", "--help"]})

NameArgument = Annotated[str, typer.Argument(metavar="NAME|FILE", help="A profile's name, or its file NAME.toml.")]
RunsArgument = Annotated[list[Path], typer.Argument(metavar="RUN.json...", help="JSON results of egmctl bench.")]
TomlOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE.toml", help="Write to FILE.toml; its stem is the profile's name."),
]


@app.command("list", short_help="List the profiles.")
def list_profiles(json: JsonOption = False, color: ColorOption = Color.AUTO) -> int:
    """Show the profiles there are: the user's, the system's (/etc/egmctl/profiles), those that ship."""
    from egmctl.data import profiles_dir
    from egmctl.report.views.profile import profiles_document
    from egmctl.verdict.load import load_all

    found = load_all()
    if json:
        _emit_profiles(found)
    else:
        _show(profiles_document(found, profiles_dir()), color)
    return ExitCode.OK


@app.command("show", short_help="Show one profile, with the source of each number.")
def show_profile(name: NameArgument, json: JsonOption = False, color: ColorOption = Color.AUTO) -> int:
    """Show one profile: how its machines are recognised, what each path reaches, and the source of each number."""
    from egmctl.report.views.profile import profile_document
    from egmctl.verdict.load import find, read

    path = find(name)
    profile = read(path)
    if json:
        _emit_profiles([(profile, path)])
    else:
        _show(profile_document(profile), color)
    return ExitCode.OK


@app.command("match", short_help="Show which profile matches this machine, and why.")
def match_profiles(
    machine: MachineOption = None, json: JsonOption = False, quiet: QuietOption = False, color: ColorOption = Color.AUTO
) -> int:
    """Say which profile this machine is of, and why; ends with 3 if none fits."""
    from egmctl.model.profile import MATCH_SCHEMA, MatchResult
    from egmctl.report.views.profile import match_document
    from egmctl.verdict.load import load_all
    from egmctl.verdict.match import choose, match_profile

    if machine == "list":
        return list_machines(Outputs.chosen((Form.TEXT, Form.JSON), None, json=json, color=color))
    seen = read_machine(machine, SECTIONS, quiet=quiet)
    profiles = [profile for profile, _ in load_all()]
    chosen, why = choose(seen, profiles)
    matches = [match_profile(seen, profile) for profile in profiles]
    code = ExitCode.OK if chosen else ExitCode.NOTHING
    if json:
        result = MatchResult(profile=chosen.name if chosen else None, reason=why, matches=tuple(matches))
        _emit(MATCH_SCHEMA, result, code, seen)
    else:
        _show(match_document(seen, next((match for match in matches if match.fits), None), why), color)
    return code


@app.command("learn", short_help="Make a profile from your own runs.")
def learn_profile(runs: RunsArgument, output: TomlOption = None, force: ForceOption = False) -> int:
    """Make a profile of your own runs: each path's median, and bounds from how far runs and paths are apart."""
    output = file_of(output)
    if output is not None and output.suffix != ".toml":
        raise UsageError(f"{printable(str(output))}: a profile is a file NAME.toml")
    check_output(output, force)

    import datetime

    from egmctl.saved import load_all
    from egmctl.verdict.learn import learn
    from egmctl.verdict.write import dump

    name = "site" if output is None else output.stem
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    profile = learn([_run(saved) for saved in load_all(runs)], name, today)
    emit(dump(profile), output=output, force=force)
    say(f"{profile.title}: {len(profile.references)} path classes")
    return ExitCode.OK


def _show(document: Document, color: Color) -> None:
    emit(rendered(document, Form.TEXT, width=terminal_width(None)), output=None, force=False, color=color)


def _run(saved: Saved) -> Run:
    from egmctl.model.measurement import RunReport
    from egmctl.verdict.learn import Run

    report = saved.result
    if not isinstance(report, RunReport):
        raise UsageError(f"file {saved.path} is not a bench result: it is a result of egmctl {saved.kind}")
    if len(report.machines) != 1:
        raise UsageError(f"file {saved.path} holds {len(report.machines)} machines: give runs of one machine each")
    (machine,) = report.machines
    # A node's name is not in the file; its GPUs have pseudonyms that stay the same.
    node = ",".join(sorted(gpu.uuid or gpu.bus_id for gpu in machine.gpus or ()))
    return Run(report, machine, node)


def _emit_profiles(found: Iterable[tuple[Profile, Path]]) -> None:
    from egmctl.model.profile import PROFILES_SCHEMA, ProfileFile, ProfileList

    files = tuple(ProfileFile(file=str(path), profile=profile) for profile, path in found)
    _emit(PROFILES_SCHEMA, ProfileList(profiles=files), ExitCode.OK, None)


def _emit(schema: str, result: ProfileList | MatchResult, code: ExitCode, machine: Machine | None) -> None:
    from egmctl.model.codec import to_json
    from egmctl.report.exports.json import dump, envelope

    emit(dump(envelope(schema, code, to_json(result), machine=machine)), output=None, force=False)
