"""A node's whole record as one page: the answer, then the pages of doctor, topo and bench below each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from egmctl.model.bringup import Bringup
from egmctl.report import bench_html
from egmctl.report.page import Section, page
from egmctl.report.render import html
from egmctl.report.views.bringup import bringup_document, summary
from egmctl.report.views.doctor import doctor_document
from egmctl.report.views.topo import topo_document
from egmctl.topology.topology import topology


def bringup_html(bringup: Bringup) -> str:
    """Return the page."""
    document = bringup_document(bringup)
    return page(document.command, document.subject, document.subtitle, document.banners, list(_sections(bringup)))


def _sections(bringup: Bringup) -> Iterator[Section]:
    yield from html.sections(list(summary(bringup)))
    yield from _part("doctor", html.sections(doctor_document(bringup.diagnosis).body))
    judged = topology(bringup.machine)
    yield from _part("topo", html.sections(topo_document(judged).body), leave=("machine",))
    if bringup.run is not None:
        yield from _part("bench", bench_html.sections(bringup.run), leave=("machine", "topology"))


def _part(command: str, sections: Iterable[Section], leave: tuple[str, ...] = ()) -> Iterator[Section]:
    """Yield the sections of one command, marked as its own, without those that another one has."""
    for section in sections:
        if section.id not in leave:
            yield replace(section, id=f"{command}-{section.id}", title=f"{command}: {section.title}")
