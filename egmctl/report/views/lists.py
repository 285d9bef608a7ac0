"""Lists as documents: runs that are kept, profiles and machines that ship."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from egmctl.data import profiles_dir
from egmctl.errors import ExitCode
from egmctl.model.listing import History, KeptRun, MachineList, ShippedMachine
from egmctl.model.machine import Machine
from egmctl.model.profile import MatchResult, Profile, ProfileList, Reference, Signature
from egmctl.model.task import named
from egmctl.report.document import (
    Block,
    Bullets,
    Document,
    Entry,
    Level,
    Matrix,
    Paragraph,
    Section,
    Span,
    Tone,
    Verdict,
    table,
)
from egmctl.report.views.machine import banners, subject
from egmctl.topology.platform import platform
from egmctl.units import several

_TONES: Mapping[int, Tone] = {ExitCode.OK: Tone.GOOD, ExitCode.FAILED: Tone.BAD}


def history_document(history: History) -> Document:
    """Return the list, the latest run last; the files with ``-v`` and on a page."""
    runs = history.runs
    if not runs:
        body: tuple[Paragraph | Matrix | Section, ...] = (
            Paragraph(words="No bench run of this node is kept; 'egmctl bench' keeps one.", level=Level.SUMMARY),
        )
    else:
        ended = Counter(run.exit_code is not None for run in runs)
        unfinished = f", {ended[False]} of them did not end" if ended[False] else ""
        finished = [run for run in runs if run.exit_code is not None]
        places = {id(run): len(finished) - 1 - place for place, run in enumerate(finished)}
        rows = (
            (
                _name(places.get(id(run))),
                run.started_at.replace("T", " ").removesuffix("Z").removesuffix("+00:00"),
                str(len(run.gpus)),
                f"{run.ok} of {run.measurements}",
                Span(run.ending, _tone(run)),
            )
            for run in runs
        )
        count = f"{several(len(runs), 'bench run')} kept{unfinished}"
        body = (
            Paragraph(
                words=f"{count}, the latest last. 'egmctl show FILE' shows one, 'egmctl compare last' the last two."
            ),
            table(("run", "began (UTC)", "GPUs", "ok", "ending"), rows, right=("GPUs", "ok"), wrap=("ending",)),
            Section(
                title="Files",
                body=(table(("began", "file"), ((run.started_at, run.file) for run in runs)),),
            ),
        )
    return Document(command="egmctl history", subject=several(len(runs), "bench run"), body=body)


def _name(place: int | None) -> str:
    """Return what ``egmctl compare`` calls a run that ended."""
    return "" if place is None else "last" if place == 0 else f"last~{place}"


def _tone(run: KeptRun) -> Tone:
    return Tone.WARN if run.exit_code is None else _TONES.get(run.exit_code, Tone.WARN)


def machines_document(listed: MachineList) -> Document:
    """Return each machine's name, whether it was recorded or modelled, and what it is."""
    return Document(
        command="egmctl topo --machine list",
        subject=f"{len(listed.machines)} machines",
        body=tuple(map(_entry, listed.machines)),
    )


def _entry(machine: ShippedMachine) -> Entry:
    about = (Paragraph(words=machine.description, tone=Tone.DIM),) if machine.description else ()
    return Entry(word=machine.name, tone=Tone.STRONG, title=f"{machine.origin.value}: {machine.platform}", body=about)


def machine_list(machines: Sequence[Machine]) -> MachineList:
    """Return what the list says of machines."""
    return MachineList(
        machines=tuple(
            ShippedMachine(
                name=machine.origin.name,
                origin=machine.origin.kind,
                platform=platform(machine).line,
                description=machine.origin.description,
            )
            for machine in machines
        )
    )


def profiles_document(profiles: ProfileList) -> Document:
    """Return the list of profiles in the order in which they are asked; of a single one all that it says.

    Of those that do not ship the file is shown.
    """
    if len(profiles.profiles) == 1:
        return profile_document(profiles.profiles[0].profile)
    shipped = profiles_dir()
    entries = tuple(
        Entry(
            word=entry.profile.name,
            tone=Tone.STRONG,
            title=entry.profile.title
            if Path(entry.file).parent == shipped
            else f"{entry.profile.title} ({entry.file})",
            body=(Paragraph(words=_kinds(entry.profile), tone=Tone.DIM),),
        )
        for entry in profiles.profiles
    )
    return Document(command="egmctl profile list", subject=f"{len(entries)} profiles", body=entries)


def profile_document(profile: Profile) -> Document:
    """Return one profile: how it is recognised, links, references and the sources of every number."""
    marks = {name: f"[{place}]" for place, name in enumerate(profile.sources, 1)}
    body: list[Block] = [
        Paragraph(words=f"{profile.name}: {profile.title}"),
        Section(title="Recognised by", body=(Bullets(items=tuple(_signature(profile.match))),)),
    ]
    if profile.links:
        heads = ("", "links", "GB/s each", "payload", "GB/s", "source")
        rows = tuple(
            (
                link.link,
                str(link.links),
                f"{link.rate_gb_s:g}",
                f"{100 * link.payload:.1f} %",
                f"{link.gb_s:.1f}",
                marks[link.source],
            )
            for link in profile.links
        )
        body.append(Section(title="Links, one direction", body=(table(heads, rows, right=heads[1:]),)))
    if profile.references:
        links = dict.fromkeys(reference.link for reference in profile.references)
        tables = tuple(
            _references(link, [reference for reference in profile.references if reference.link == link], marks)
            for link in links
        )
        body.append(Section(title="References (GB/s, latencies in ns)", body=tables))
    sources = tuple(
        f"{marks[name]} {source}{f' {source.url}' if source.url else ''}" for name, source in profile.sources.items()
    )
    body.append(Section(title="Sources", body=(Bullets(items=sources),)))
    return Document(command="egmctl profile show", subject=profile.name, body=tuple(body))


def match_document(result: MatchResult) -> Document:
    """Return which profile a machine is of, and by what; or why it is of none."""
    points: tuple[Bullets, ...] = ()
    if result.profile is None:
        verdict = Verdict(word="Profile", tone=Tone.WARN, sentence=f"none: {result.reason}")
    else:
        verdict = Verdict(word="Profile", tone=Tone.GOOD, sentence=result.profile)
        (match,) = (match for match in result.matches if match.profile == result.profile)
        points = (Bullets(items=tuple(point.reason for point in match.points)),)
    return Document(
        command="egmctl profile match",
        subject=subject(result.origin),
        banners=banners(result.origin),
        body=(verdict, *points),
    )


def _signature(match: Signature) -> list[str]:
    count = f"{match.least_gpus} to {match.most_gpus}" if match.least_gpus != match.most_gpus else f"{match.most_gpus}"
    lines = [
        f"GPU name {' or '.join(match.gpu_names)}",
        f"PCI device id {' or '.join(match.device_ids)}",
        f"{count} GPU{'s' * (count != '1')}",
    ]
    if match.nvlinks is not None:
        lines.append(f"{several(match.nvlinks, 'NVLink')} per GPU")
    if match.link is not None:
        lines.append(f"{match.link} between GPUs, or fewer links")
    lines.append("NVLink-C2C" if match.c2c else "no NVLink-C2C")
    if match.nvlink_domain is not None:
        lines.append(f"{'a' if match.nvlink_domain else 'no'} multi-node NVLink domain")
    return lines


def _references(link: str, references: Sequence[Reference], marks: dict[str, str]) -> Matrix:
    rows = tuple(
        (
            named(reference.case, reference.point) + (f", {reference.flows} flows" if reference.flows else ""),
            _number(reference.typical),
            _number(reference.warn),
            _number(reference.fail),
            marks[reference.source]
            + (marks[reference.bounds_source] if reference.bounds_source not in (None, reference.source) else ""),
        )
        for reference in references
    )
    heads = ("typical", "warn", "fail", "source")
    return table((link, *heads), rows, right=heads)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _kinds(profile: Profile) -> str:
    kinds = {profile.sources[reference.source].kind for reference in profile.references}
    count = len(profile.references)
    return f"{several(count, 'reference')}, {' and '.join(sorted(kinds))}" if count else "no references"
