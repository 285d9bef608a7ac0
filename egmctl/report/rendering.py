"""What writes which kind of result in which format: an export where it is data, else the document of its view.

Views and exports are imported where they are used: a command loads those of its own result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from egmctl.report.formats import Format

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


def render(
    result: Result, format: Format, *, verbose: int = 0, brief: bool = False, width: int | None = None
) -> Text | str:
    """Return a result in one of the formats of its kind, which :data:`BENCH`, :data:`TOPO` and so on list.

    Parameters
    ----------
    verbose, brief
        More or less detail, for the formats that are text.
    width
        Characters of a line of text; ``None`` where no terminal shows it.

    Raises
    ------
    ValueError
        If there is no such format of such a result.
    """
    return _shown(_rendered(result, format, verbose, brief, width))


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


def _rendered(result: Result, format: Format, verbose: int, brief: bool, width: int | None) -> Text | str:
    from egmctl.model.measurement import RunReport

    if isinstance(result, RunReport):
        return _bench(result, format, verbose, brief, width)
    from egmctl.topology.topology import Topology

    if isinstance(result, Topology):
        return _topo(result, format, verbose, brief, width)
    from egmctl.model.diagnosis import Diagnosis

    if isinstance(result, Diagnosis):
        return _doctor(result, format, verbose, brief, width)
    from egmctl.model.bringup import Bringup
    from egmctl.model.comparison import Comparison
    from egmctl.model.fleet import FleetReport
    from egmctl.model.listing import History, MachineList
    from egmctl.model.profile import Matched, ProfileList

    if isinstance(result, Comparison):
        return _comparison(result, format, verbose, brief, width)
    if isinstance(result, FleetReport):
        return _fleet(result, format, verbose, brief, width)
    if isinstance(result, Bringup):
        return _bringup(result, format, verbose, brief, width)
    if isinstance(result, History):
        return _history(result, format, verbose, brief, width)
    if isinstance(result, ProfileList):
        return _profiles(result, format, verbose, brief, width)
    if isinstance(result, MachineList):
        return _machines(result, format, verbose, brief, width)
    if isinstance(result, Matched):
        return _match(result, format, verbose, brief, width)
    return _checks(result, format, verbose, brief, width)


def _bench(report: RunReport, format: Format, verbose: int, brief: bool, width: int | None) -> Text | str:
    match format:
        case Format.JSON:
            from egmctl.report.exports.json import bench_json

            return bench_json(report, next(iter(report.machines), None))
        case Format.CSV:
            from egmctl.report.exports.bench_csv import bench_csv

            return bench_csv(report)
        case Format.PROM:
            from egmctl.report.exports.bench_prom import bench_prom

            return bench_prom(report)
        case Format.JUNIT:
            from egmctl.report.exports.junit import bench_junit

            return bench_junit(report)
    from egmctl.report.views.bench import bench_document

    return rendered(bench_document(report), format, verbose=verbose, brief=brief, width=width, drawn=True)


def _topo(topology: Topology, format: Format, verbose: int, brief: bool, width: int | None) -> Text | str:
    match format:
        case Format.JSON:
            from egmctl.report.exports.json import topo_json

            return topo_json(topology)
        case Format.CSV:
            from egmctl.report.exports.topo_csv import topo_csv

            return topo_csv(topology)
    from egmctl.report.views.topo import topo_document

    return rendered(topo_document(topology), format, verbose=verbose, brief=brief, width=width, drawn=True)


def _doctor(diagnosis: Diagnosis, format: Format, verbose: int, brief: bool, width: int | None) -> Text | str:
    match format:
        case Format.JSON:
            from egmctl.report.exports.json import doctor_json

            return doctor_json(diagnosis)
        case Format.PROM:
            from egmctl.report.exports.prometheus import doctor_prom

            return doctor_prom(diagnosis)
        case Format.NAGIOS:
            from egmctl.report.exports.nagios import nagios

            return nagios(diagnosis)
        case Format.JUNIT:
            from egmctl.report.exports.junit import junit

            return junit(diagnosis)
    from egmctl.report.views.doctor import doctor_document

    return rendered(doctor_document(diagnosis), format, verbose=verbose, brief=brief, width=width)


def _bringup(bringup: Bringup, format: Format, verbose: int, brief: bool, width: int | None) -> Text | str:
    match format:
        case Format.JSON:
            from egmctl.report.exports.json import bringup_json

            return bringup_json(bringup)
        case Format.PROM:
            from egmctl.report.exports.bringup import bringup_prom

            return bringup_prom(bringup)
        case Format.NAGIOS:
            from egmctl.report.exports.bringup import bringup_nagios

            return bringup_nagios(bringup)
        case Format.JUNIT:
            from egmctl.report.exports.bringup import bringup_junit

            return bringup_junit(bringup)
    from egmctl.report.views.bringup import bringup_document

    return rendered(bringup_document(bringup), format, verbose=verbose, brief=brief, width=width)


def rendered(
    document: Document,
    format: Format,
    *,
    verbose: int = 0,
    brief: bool = False,
    width: int | None = None,
    drawn: bool = False,
) -> Text | str:
    """Return a document in one of the formats that every document has.

    Parameters
    ----------
    drawn
        Its picture shows its figures, not its text.

    Raises
    ------
    ValueError
        If a document has no such format.
    """
    match format:
        case Format.SVG if drawn:
            from egmctl.report.render.svg import svg

            return svg(document)
        case Format.TEXT | Format.SVG:
            from egmctl.report.document import Level
            from egmctl.report.render.picture import picture
            from egmctl.report.render.text import WIDTH, text

            level = Level.SUMMARY if brief else Level(min(Level.NORMAL + verbose, Level.ALL))
            shown = text(document, width=width or WIDTH, level=level)
            return shown if format is Format.TEXT else picture(shown, document.command)
        case Format.HTML:
            from egmctl.report.render.html import html

            return html(document)
        case Format.MARKDOWN:
            from egmctl.report.render.markdown import markdown

            return markdown(document)
    raise ValueError(f"a result of {document.command} has no format {format}")


def _comparison(comparison: Comparison, format: Format, verbose: int, brief: bool, width: int | None) -> Text | str:
    match format:
        case Format.JSON:
            from egmctl.report.exports.json import compare_json

            return compare_json(comparison)
        case Format.CSV:
            from egmctl.report.exports.compare_csv import compare_csv

            return compare_csv(comparison)
    from egmctl.report.views.compare import compare_document

    return rendered(compare_document(comparison), format, verbose=verbose, brief=brief, width=width)


def _fleet(report: FleetReport, format: Format, verbose: int, brief: bool, width: int | None) -> Text | str:
    match format:
        case Format.JSON:
            from egmctl.report.exports.json import fleet_json

            return fleet_json(report)
        case Format.CSV:
            from egmctl.report.exports.fleet_csv import fleet_csv

            return fleet_csv(report)
    from egmctl.report.views.fleet import fleet_document

    return rendered(fleet_document(report), format, verbose=verbose, brief=brief, width=width)


def _history(history: History, format: Format, verbose: int, brief: bool, width: int | None) -> Text | str:
    match format:
        case Format.JSON:
            from egmctl.report.exports.json import history_json

            return history_json(history)
        case Format.CSV:
            from egmctl.report.exports.list_csv import history_csv

            return history_csv(history)
    from egmctl.report.views.history import history_document

    return rendered(history_document(history), format, verbose=verbose, brief=brief, width=width)


def _profiles(profiles: ProfileList, format: Format, verbose: int, brief: bool, width: int | None) -> Text | str:
    match format:
        case Format.JSON:
            from egmctl.report.exports.json import profiles_json

            return profiles_json(profiles)
        case Format.CSV:
            from egmctl.report.exports.list_csv import profiles_csv

            return profiles_csv(profiles)
    from egmctl.report.views.profile import profiles_document

    return rendered(profiles_document(profiles), format, verbose=verbose, brief=brief, width=width)


def _match(matched: Matched, format: Format, verbose: int, brief: bool, width: int | None) -> Text | str:
    if format is Format.JSON:
        from egmctl.report.exports.json import match_json

        return match_json(matched)
    from egmctl.report.views.profile import match_document

    return rendered(match_document(matched), format, verbose=verbose, brief=brief, width=width)


def _machines(listed: MachineList, format: Format, verbose: int, brief: bool, width: int | None) -> Text | str:
    match format:
        case Format.JSON:
            from egmctl.report.exports.json import machines_json

            return machines_json(listed)
        case Format.CSV:
            from egmctl.report.exports.list_csv import machines_csv

            return machines_csv(listed)
    from egmctl.report.views.machines import machines_document

    return rendered(machines_document(listed), format, verbose=verbose, brief=brief, width=width)


def _checks(checks: CheckList, format: Format, verbose: int, brief: bool, width: int | None) -> Text | str:
    if format is Format.JSON:
        from egmctl.report.exports.json import checks_json

        return checks_json(checks)
    from egmctl.report.views.doctor import checks_document

    return rendered(checks_document(checks), format, verbose=verbose, brief=brief, width=width)
