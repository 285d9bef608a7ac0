"""The forms of a result, and the one table of what draws which kind of result in which form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from egmctl.compat import StrEnum

if TYPE_CHECKING:
    from rich.text import Text

    from egmctl.model.bringup import Bringup
    from egmctl.model.comparison import Comparison
    from egmctl.model.diagnosis import Diagnosis
    from egmctl.model.fleet import FleetReport
    from egmctl.model.listing import CheckList, History, MachineList
    from egmctl.model.measurement import RunReport
    from egmctl.model.profile import Matched, ProfileList
    from egmctl.report.document import Document
    from egmctl.topology.topology import Topology

    Result = (
        RunReport
        | Topology
        | Diagnosis
        | Comparison
        | FleetReport
        | Bringup
        | History
        | ProfileList
        | Matched
        | MachineList
        | CheckList
    )


class Form(StrEnum):
    """The forms of results; the values are the words of ``--format``."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"
    HTML = "html"
    """One page that needs nothing else: no network, no script."""
    SVG = "svg"
    """A picture: a bench's matrices, the drawing of a topology, the text of a doctor."""
    MARKDOWN = "md"
    """For tickets and pull requests, as GitHub reads it."""
    PROM = "prom"
    """Metrics for the textfile collector of Prometheus' node_exporter."""
    NAGIOS = "nagios"
    JUNIT = "junit"


SUFFIXES: Mapping[str, Form] = {
    ".txt": Form.TEXT,
    ".json": Form.JSON,
    ".csv": Form.CSV,
    ".html": Form.HTML,
    ".svg": Form.SVG,
    ".md": Form.MARKDOWN,
    ".prom": Form.PROM,
    ".xml": Form.JUNIT,
}
"""The form that the suffix of ``-o FILE`` asks for."""

BENCH: Sequence[Form] = (Form.TEXT, Form.JSON, Form.CSV, Form.HTML, Form.SVG, Form.MARKDOWN, Form.PROM, Form.JUNIT)
TOPO: Sequence[Form] = (Form.TEXT, Form.JSON, Form.CSV, Form.HTML, Form.SVG, Form.MARKDOWN)
DOCTOR: Sequence[Form] = (
    Form.TEXT,
    Form.JSON,
    Form.HTML,
    Form.SVG,
    Form.MARKDOWN,
    Form.PROM,
    Form.NAGIOS,
    Form.JUNIT,
)
COMPARISON: Sequence[Form] = (Form.TEXT, Form.JSON, Form.CSV, Form.HTML, Form.SVG, Form.MARKDOWN)
BRINGUP: Sequence[Form] = DOCTOR
HISTORY: Sequence[Form] = (Form.TEXT, Form.JSON, Form.CSV, Form.HTML, Form.SVG, Form.MARKDOWN)
PROFILES: Sequence[Form] = HISTORY
MACHINES: Sequence[Form] = HISTORY
CHECKS: Sequence[Form] = (Form.TEXT, Form.JSON, Form.HTML, Form.SVG, Form.MARKDOWN)
MATCH: Sequence[Form] = CHECKS
FLEET: Sequence[Form] = (Form.TEXT, Form.JSON, Form.CSV, Form.HTML, Form.SVG, Form.MARKDOWN)


def render(
    result: Result, form: Form, *, verbose: int = 0, brief: bool = False, width: int | None = None
) -> Text | str:
    """Return a result in one of the forms of its kind, which :data:`BENCH`, :data:`TOPO` and so on list.

    Parameters
    ----------
    verbose, brief
        More or less detail, for the forms that are text.
    width
        Characters of a line of text; ``None`` where no terminal shows it.

    Raises
    ------
    ValueError
        If there is no such form of such a result.
    """
    return _shown(_rendered(result, form, verbose, brief, width))


def _shown(content: Text | str) -> Text | str:
    """Return a view without control and format characters: whatever it has shown of a document, it moves no cursor.

    Views escape what they show; this is for the one that does not. Each character becomes one other, which keeps the
    colours of a text where they were.
    """
    plain = content if isinstance(content, str) else content.plain
    if all(map(str.isprintable, plain.split("\n"))):
        return content
    safe = "".join(char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in plain)
    if isinstance(content, str):
        return safe
    content.plain = safe
    return content


def _rendered(result: Result, form: Form, verbose: int, brief: bool, width: int | None) -> Text | str:
    from egmctl.model.bringup import Bringup
    from egmctl.model.comparison import Comparison
    from egmctl.model.fleet import FleetReport
    from egmctl.model.listing import CheckList, History, MachineList
    from egmctl.model.measurement import RunReport
    from egmctl.model.profile import Matched, ProfileList
    from egmctl.topology.topology import Topology

    if isinstance(result, RunReport):
        return _bench(result, form, verbose, brief, width)
    if isinstance(result, Comparison):
        return _comparison(result, form, verbose, brief, width)
    if isinstance(result, FleetReport):
        return _fleet(result, form, verbose, brief, width)
    if isinstance(result, Bringup):
        return _bringup(result, form, verbose, brief, width)
    if isinstance(result, History):
        return _history(result, form, verbose, brief, width)
    if isinstance(result, ProfileList):
        return _profiles(result, form, verbose, brief, width)
    if isinstance(result, MachineList):
        return _machines(result, form, verbose, brief, width)
    if isinstance(result, CheckList):
        return _checks(result, form, verbose, brief, width)
    if isinstance(result, Matched):
        return _match(result, form, verbose, brief, width)
    if isinstance(result, Topology):
        return _topo(result, form, verbose, brief, width)
    return _doctor(result, form, verbose, brief, width)


def _bench(report: RunReport, form: Form, verbose: int, brief: bool, width: int | None) -> Text | str:
    match form:
        case Form.JSON:
            from egmctl.report.exports.json import bench_json

            return bench_json(report, next(iter(report.machines), None))
        case Form.CSV:
            from egmctl.report.exports.bench_csv import bench_csv

            return bench_csv(report)
        case Form.PROM:
            from egmctl.report.exports.bench_prom import bench_prom

            return bench_prom(report)
        case Form.JUNIT:
            from egmctl.report.exports.junit import bench_junit

            return bench_junit(report)
    from egmctl.report.views.bench import bench_document

    return rendered(bench_document(report), form, verbose=verbose, brief=brief, width=width, drawn=True)


def _topo(topology: Topology, form: Form, verbose: int, brief: bool, width: int | None) -> Text | str:
    match form:
        case Form.JSON:
            from egmctl.report.exports.json import topo_json

            return topo_json(topology)
        case Form.CSV:
            from egmctl.report.exports.topo_csv import topo_csv

            return topo_csv(topology)
    from egmctl.report.views.topo import topo_document

    return rendered(topo_document(topology), form, verbose=verbose, brief=brief, width=width, drawn=True)


def _doctor(diagnosis: Diagnosis, form: Form, verbose: int, brief: bool, width: int | None) -> Text | str:
    match form:
        case Form.JSON:
            from egmctl.report.exports.json import doctor_json

            return doctor_json(diagnosis)
        case Form.PROM:
            from egmctl.report.exports.prometheus import doctor_prom

            return doctor_prom(diagnosis)
        case Form.NAGIOS:
            from egmctl.report.exports.nagios import nagios

            return nagios(diagnosis)
        case Form.JUNIT:
            from egmctl.report.exports.junit import junit

            return junit(diagnosis)
    from egmctl.report.views.doctor import doctor_document

    return rendered(doctor_document(diagnosis), form, verbose=verbose, brief=brief, width=width)


def _bringup(bringup: Bringup, form: Form, verbose: int, brief: bool, width: int | None) -> Text | str:
    match form:
        case Form.JSON:
            from egmctl.report.exports.json import bringup_json

            return bringup_json(bringup)
        case Form.PROM:
            from egmctl.report.exports.bringup import bringup_prom

            return bringup_prom(bringup)
        case Form.NAGIOS:
            from egmctl.report.exports.bringup import bringup_nagios

            return bringup_nagios(bringup)
        case Form.JUNIT:
            from egmctl.report.exports.bringup import bringup_junit

            return bringup_junit(bringup)
    from egmctl.report.views.bringup import bringup_document

    return rendered(bringup_document(bringup), form, verbose=verbose, brief=brief, width=width)


def rendered(
    document: Document,
    form: Form,
    *,
    verbose: int = 0,
    brief: bool = False,
    width: int | None = None,
    drawn: bool = False,
) -> Text | str:
    """Return a document in one of the forms that every document has.

    Parameters
    ----------
    drawn
        Its picture shows its figures, not its text.

    Raises
    ------
    ValueError
        If a document has no such form.
    """
    match form:
        case Form.SVG if drawn:
            from egmctl.report.render.svg import svg

            return svg(document)
        case Form.TEXT | Form.SVG:
            from egmctl.report.document import Level
            from egmctl.report.render.picture import picture
            from egmctl.report.render.text import WIDTH, text

            level = Level.SUMMARY if brief else Level(min(Level.NORMAL + verbose, Level.ALL))
            shown = text(document, width=width or WIDTH, level=level)
            return shown if form is Form.TEXT else picture(shown, document.command)
        case Form.HTML:
            from egmctl.report.render.html import html

            return html(document)
        case Form.MARKDOWN:
            from egmctl.report.render.markdown import markdown

            return markdown(document)
    raise ValueError(f"a result of {document.command} has no format {form}")


def _comparison(comparison: Comparison, form: Form, verbose: int, brief: bool, width: int | None) -> Text | str:
    match form:
        case Form.JSON:
            from egmctl.report.exports.json import compare_json

            return compare_json(comparison)
        case Form.CSV:
            from egmctl.report.exports.compare_csv import compare_csv

            return compare_csv(comparison)
    from egmctl.report.views.compare import compare_document

    return rendered(compare_document(comparison), form, verbose=verbose, brief=brief, width=width)


def _fleet(report: FleetReport, form: Form, verbose: int, brief: bool, width: int | None) -> Text | str:
    match form:
        case Form.JSON:
            from egmctl.report.exports.json import fleet_json

            return fleet_json(report)
        case Form.CSV:
            from egmctl.report.exports.fleet_csv import fleet_csv

            return fleet_csv(report)
    from egmctl.report.views.fleet import fleet_document

    return rendered(fleet_document(report), form, verbose=verbose, brief=brief, width=width)


def _history(history: History, form: Form, verbose: int, brief: bool, width: int | None) -> Text | str:
    match form:
        case Form.JSON:
            from egmctl.report.exports.json import history_json

            return history_json(history)
        case Form.CSV:
            from egmctl.report.exports.list_csv import history_csv

            return history_csv(history)
    from egmctl.report.views.history import history_document

    return rendered(history_document(history), form, verbose=verbose, brief=brief, width=width)


def _profiles(profiles: ProfileList, form: Form, verbose: int, brief: bool, width: int | None) -> Text | str:
    match form:
        case Form.JSON:
            from egmctl.report.exports.json import profiles_json

            return profiles_json(profiles)
        case Form.CSV:
            from egmctl.report.exports.list_csv import profiles_csv

            return profiles_csv(profiles)
    from egmctl.report.views.profile import profiles_document

    return rendered(profiles_document(profiles), form, verbose=verbose, brief=brief, width=width)


def _match(matched: Matched, form: Form, verbose: int, brief: bool, width: int | None) -> Text | str:
    if form is Form.JSON:
        from egmctl.report.exports.json import match_json

        return match_json(matched)
    from egmctl.report.views.profile import match_document

    return rendered(match_document(matched), form, verbose=verbose, brief=brief, width=width)


def _machines(listed: MachineList, form: Form, verbose: int, brief: bool, width: int | None) -> Text | str:
    match form:
        case Form.JSON:
            from egmctl.report.exports.json import machines_json

            return machines_json(listed)
        case Form.CSV:
            from egmctl.report.exports.list_csv import machines_csv

            return machines_csv(listed)
    from egmctl.report.views.machines import machines_document

    return rendered(machines_document(listed), form, verbose=verbose, brief=brief, width=width)


def _checks(checks: CheckList, form: Form, verbose: int, brief: bool, width: int | None) -> Text | str:
    if form is Form.JSON:
        from egmctl.report.exports.json import checks_json

        return checks_json(checks)
    from egmctl.report.views.doctor import checks_document

    return rendered(checks_document(checks), form, verbose=verbose, brief=brief, width=width)
