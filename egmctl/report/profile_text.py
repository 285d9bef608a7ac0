"""Profiles as text: which there are, what one says and whence, and why a machine is of its kind or not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from egmctl.model.machine import Machine
from egmctl.model.profile import Match, Profile, Reference, Signature
from egmctl.report.origin import modelled_banner
from egmctl.report.table import BAD, DIM, HEADING, Column, table, trimmed, wrap
from egmctl.units import printable


def profiles_text(profiles: Sequence[tuple[Profile, Path]], shipped: Path) -> Text:
    """Render the list of all profiles in the order in which they are asked.

    Parameters
    ----------
    shipped
        The folder of those that ship: of others the file is shown.
    """
    text = Text()
    for profile, path in profiles:
        text.append(profile.name, HEADING)
        text.append(f"  {_kinds(profile)}\n")
        where = "" if path.parent == shipped else f" ({path})"
        text.append(wrap(printable(f"{profile.title}{where}")))
    return text


def profile_text(profile: Profile) -> Text:
    """Render one profile: how it is recognised, wires, references and the sources of every number."""
    text = Text().append(f"{printable(profile.name)}\n", HEADING).append(wrap(printable(profile.title), "", ""))
    text.append("\nRecognised by\n", HEADING)
    text.append("".join(wrap(printable(line)) for line in _signature(profile.match)))
    marks = {name: f"[{place}]" for place, name in enumerate(profile.sources, 1)}
    if profile.wires:
        text.append("\nWires, one direction\n", HEADING)
        columns = {
            "links": [str(wire.links) for wire in profile.wires],
            "GB/s each": [f"{wire.rate_gb_s:g}" for wire in profile.wires],
            "payload": [f"{100 * wire.payload:.1f} %" for wire in profile.wires],
            "GB/s": [f"{wire.gb_s:.1f}" for wire in profile.wires],
            "source": [marks[wire.source] for wire in profile.wires],
        }
        text.append_text(_table([wire.wire for wire in profile.wires], columns))
    if profile.references:
        text.append("\nReferences (GB/s, latencies in ns)\n", HEADING)
        for wire in dict.fromkeys(reference.wire for reference in profile.references):
            text.append(f"{printable(wire)}\n", DIM)
            text.append_text(_references([one for one in profile.references if one.wire == wire], marks))
    text.append("\nSources\n", HEADING)
    for name, source in profile.sources.items():
        link = f" {source.url}" if source.url else ""
        text.append(wrap(printable(f"{marks[name]} {source.kind}: {source.text}{link}")))
    return trimmed(text)


def match_text(machine: Machine, match: Match | None, why: str) -> Text:
    """Render which profile a machine is of, and by what.

    Parameters
    ----------
    match
        The one that fits.
    why
        Why none does.
    """
    text = modelled_banner(machine)
    if match is None:
        return text.append("Profile: ", HEADING).append("none\n", BAD).append(wrap(printable(why)))
    text.append("Profile: ", HEADING).append(f"{printable(match.profile)}\n")
    return text.append("".join(wrap(printable(point.reason)) for point in match.points))


def _signature(match: Signature) -> list[str]:
    count = f"{match.least_gpus} to {match.most_gpus}" if match.least_gpus != match.most_gpus else f"{match.most_gpus}"
    lines = [
        f"GPU name {' or '.join(match.gpu_names)}",
        f"PCI device id {' or '.join(match.device_ids)}",
        f"{count} GPUs",
    ]
    if match.nvlinks is not None:
        lines.append(f"{match.nvlinks} NVLinks a GPU")
    if match.link is not None:
        lines.append(f"{match.link} between GPUs, or fewer links")
    lines.append("NVLink-C2C" if match.c2c else "no NVLink-C2C")
    if match.nvlink_domain is not None:
        lines.append(f"{'an' if match.nvlink_domain else 'no'} NVLink domain of several nodes")
    return lines


def _references(references: Sequence[Reference], marks: dict[str, str]) -> Text:
    columns = {
        "typical": [_number(one.typical) for one in references],
        "warn": [_number(one.warn) for one in references],
        "fail": [_number(one.fail) for one in references],
        "": [
            marks[one.source] + (marks[one.bounds_source] if one.bounds_source not in (None, one.source) else "")
            for one in references
        ],
    }
    return _table([one.case + (f", {one.flows} flows" if one.flows else "") for one in references], columns)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def _kinds(profile: Profile) -> str:
    kinds = {profile.sources[reference.source].kind for reference in profile.references}
    count = len(profile.references)
    said = f"{count} references, {' and '.join(sorted(kinds))}" if count else "no references"
    return said if count != 1 else said.replace("references", "reference")


def _table(labels: Sequence[str], columns: dict[str, list[str]]) -> Text:
    return table(list(map(printable, labels)), [[Column(cells, (name,), ">") for name, cells in columns.items()]])
