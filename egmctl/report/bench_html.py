"""A run of the bench as one HTML page to hand on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from egmctl.errors import ExitCode
from egmctl.model.gpu import are_fake
from egmctl.model.measurement import RunReport, Status
from egmctl.report import document
from egmctl.report.bench_kernel import kernel_line
from egmctl.report.bench_parts import exceptions, families, how, tally
from egmctl.report.bench_rates import rates
from egmctl.report.bench_soak import soak_lines
from egmctl.report.bench_summary import soak, summary, summary_note
from egmctl.report.bench_warnings import route_line, warnings
from egmctl.report.grid import Shade
from egmctl.report.grid_html import grid_html, grids_html, legend_html
from egmctl.report.heat import marks
from egmctl.report.markup import Child, element
from egmctl.report.origin import origin_banner
from egmctl.report.page import Section, bullets, page, rows
from egmctl.report.render import html as rendered
from egmctl.report.verdict_html import call, classes_html, verdict_html
from egmctl.report.views.machine import machine_section
from egmctl.report.views.node_scene import node_scene
from egmctl.report.views.topo import gpu_matrix
from egmctl.topology.topology import Topology, topology

_FAMILIES = {
    "egm": "Memory of NUMA nodes",
    "host": "Other host memory",
    "p2p": "Between GPUs",
    "ipc": "Between processes",
    "latency": "Latency",
    "rdma": "RDMA",
}


_NODES_DRAWN = 4
_ENDS = {
    ExitCode.OK: ("plain", "No verdict"),
    ExitCode.FAILED: ("fail", "Something is wrong"),
    ExitCode.NOTHING: ("plain", "Nothing was measured"),
    ExitCode.CRASHED: ("fail", "The run broke"),
    ExitCode.INTERRUPTED: ("warn", "Interrupted"),
}
"""Look and word of a run that has no verdict."""


def bench_html(report: RunReport) -> str:
    """Return the page."""
    return page("egmctl bench", heading(report), subtitle(report), banners(report), list(sections(report)))


def heading(report: RunReport) -> str:
    """Return what was measured."""
    names = Counter(gpu.name or "GPU of unknown name" for gpu in report.gpus)
    return ", ".join(f"{number} x {name}" for name, number in names.items())


def subtitle(report: RunReport) -> str:
    """Return when it was measured, with which driver, and how measurements ended."""
    when = report.started_at.replace("T", " ").replace("+00:00", " UTC")
    driver = report.driver_version or "unknown"
    return f"Measured {when} in {report.wall_s:.0f} s, driver {driver}. {tally(report)}."


def banners(report: RunReport) -> list[str]:
    """Return what everybody has to know before any number of a run."""
    fake = are_fake(gpu.name for gpu in report.gpus)
    found = ["Fake GPUs: nothing here was measured on hardware"] if fake else []
    found += filter(None, (origin_banner(machine.origin) for machine in report.machines))
    if report.interrupted:
        found.append("Interrupted: this is a part of the run")
    return list(dict.fromkeys(found))


def sections(report: RunReport) -> Iterator[Section]:
    """Yield the parts of the page, for this one and others."""
    yield Section("verdict", "Verdict", tuple(_verdict(report)))
    for number, machine in enumerate(report.machines[:_NODES_DRAWN]):
        suffix = f"-{number}" if number else ""
        judged = topology(machine, [gpu for gpu in machine.gpus or () if gpu.bus_id in _bus_ids(report)])
        for section in rendered.sections([machine_section(machine), topology_section(judged, report)]):
            yield replace(section, id=f"{section.id}{suffix}")
    if len(report.machines) > _NODES_DRAWN:
        told = f"{len(report.machines) - _NODES_DRAWN} more nodes were measured; JSON has the facts of each."
        yield Section("nodes", "Further nodes", (element("p", told),))
    marked, explained = marks(report), list[Shade]()
    for family, grids in families(report):
        drawn = grids_html(grids, marked)
        shades = [shade for shade in Shade if shade not in explained and any(grid.shade is shade for grid in grids)]
        explained += shades
        yield Section(family, _FAMILIES.get(family, family), (drawn, *map(legend_html, shades)))
    yield from _wires(report)
    if report.verdict is not None and report.verdict.classes:
        yield Section("classes", "Each class of paths", tuple(classes_html(report.verdict)))
    yield Section("reasons", "Not plainly measured", (_reasons(report),))
    yield Section("notes", "How it was measured", tuple(_notes(report)))


def _verdict(report: RunReport) -> Iterator[Child]:
    if report.verdict is not None:
        yield from verdict_html(report.verdict)
    else:
        yield call(*_ENDS[report.exit_code], f"{tally(report)}.")
    for heading, lines in (("What went wrong", report.problems), ("Warnings", list(warnings(report)))):
        if lines:
            yield element("h3", heading)
            yield bullets(lines)


def topology_section(judged: Topology, report: RunReport) -> document.Section:
    """Return the picture of a node with what was measured over each link."""
    found, cases = rates(report)
    told = "Rates are nominal, in one direction."
    if any(label in judged.gpus for ends in found for label in ends):
        told += (
            " Numbers with arrows are measured GB/s in the drawing's directions (↓ down, ↑ up, → from the first GPU): "
            f"single copies by copy engines, of a GPU on a switch the median of its pairs. Cases: {', '.join(cases)}."
        )
    return document.Section(
        title="Topology",
        body=(
            document.Paragraph(words=judged.platform.line),
            document.Diagram(scene=node_scene(judged, found)),
            document.Paragraph(words=told, tone=document.Tone.DIM),
            *([gpu_matrix(judged)] if judged.gpus else []),
        ),
        level=document.Level.PAGE,
    )


def _wires(report: RunReport) -> Iterator[Section]:
    grids = list(summary(report))
    if grids:
        told, worst = list(soak_lines(report)), soak(report)
        body: list[Child] = [element("p", summary_note(grids), class_="dim")]
        body += [element("div", map(grid_html, grids), class_="stack")]
        body += [grid_html(worst) if worst is not None else None, bullets(told)]
        yield Section("wires", "By wire", tuple(body))


def _reasons(report: RunReport) -> Child:
    found = [
        (element("span", status.value, class_=f"word-{_look(status)}"), ", ".join(paths), reason)
        for status, reason, paths in exceptions(report)
    ]
    if not found:
        return element("p", "Every measurement was made, verified and steady.")
    return rows(("status", "what", "why"), found)


def _look(status: Status) -> str:
    return {Status.WAIVED: "plain", Status.UNSTABLE: "warn"}.get(status, "fail")


def _notes(report: RunReport) -> Iterator[Child]:
    yield element("p", f"{', '.join(how(report))}. GB/s are 1e9 bytes a second; a copy counts its bytes once.")
    yield bullets([*filter(None, [route_line(report), kernel_line(report)]), *report.notes])


def _bus_ids(report: RunReport) -> set[str]:
    return {gpu.bus_id for gpu in report.gpus}
