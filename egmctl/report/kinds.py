"""The kinds of results and their formats. :func:`render` writes any result in any format of its kind."""

from __future__ import annotations

from collections.abc import Mapping
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from egmctl.compat import StrEnum
from egmctl.dataclass import dataclass

if TYPE_CHECKING:
    from rich.text import Text

    from egmctl.report.document import Document


class Format(StrEnum):
    """The formats of results; the values are those of ``--format``."""

    TEXT = "text"
    JSON = "json"
    CSV = "csv"
    HTML = "html"
    """A single self-contained page, without scripts or network access."""
    SVG = "svg"
    """A picture: the figures of a bench or topology, or the text of another result."""
    MARKDOWN = "md"
    """GitHub Flavored Markdown, for tickets and pull requests."""
    PROM = "prom"
    """Metrics for the textfile collector of Prometheus' node_exporter."""
    NAGIOS = "nagios"
    JUNIT = "junit"


class Order(StrEnum):
    """The orders of the GPUs that watch shows: by number, or those with the most of something first."""

    GPU = "gpu"
    LOAD = "load"
    MEMORY = "memory"
    NVLINK = "nvlink"
    C2C = "c2c"
    PCIE = "pcie"


SUFFIXES: Mapping[str, Format] = {
    ".txt": Format.TEXT,
    ".json": Format.JSON,
    ".csv": Format.CSV,
    ".html": Format.HTML,
    ".svg": Format.SVG,
    ".md": Format.MARKDOWN,
    ".prom": Format.PROM,
    ".xml": Format.JUNIT,
}
"""The format of ``-o FILE`` by its suffix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of result."""

    name: str
    """The prefix of its functions' names: ``doctor_document`` is its view, ``doctor_prom`` writes its metrics."""
    record: str
    """The class of its results, ``module:name``. The JSON document has its ``SCHEMA``, and its fields as ``result``."""
    views: str = ""
    """The module of its view, if it is not :attr:`name`."""
    data: tuple[Format, ...] = ()
    """The formats besides JSON that an export writes. The other formats are rendered from the view's document."""
    pages: bool = True
    """Whether a result can be written as HTML, SVG and Markdown. Lists can only be text and JSON."""
    drawn: bool = False
    """Whether the SVG picture shows the document's figures instead of its text."""

    @property
    def view(self) -> str:
        """The function that returns the document of a result."""
        return f"egmctl.report.views.{self.views or self.name}:{self.name}_document"

    def export(self, format: Format) -> str | None:
        """Return the function that writes a result as data, or ``None`` if the format is rendered from its document."""
        if format is Format.JSON:
            return "egmctl.report.exports.json:result_json"
        return f"egmctl.report.exports.{format}:{self.name}_{format}" if format in self.data else None

    @property
    def formats(self) -> tuple[Format, ...]:
        """The formats of a result."""
        pages = (Format.HTML, Format.SVG, Format.MARKDOWN) if self.pages else ()
        return tuple(format for format in Format if format in (Format.TEXT, Format.JSON, *pages, *self.data))


_CHECKED = (Format.PROM, Format.NAGIOS, Format.JUNIT)
_MEASURED = (Format.CSV, Format.PROM, Format.JUNIT)
BENCH = Kind(name="bench", record="egmctl.model.measurement:RunReport", data=_MEASURED, drawn=True)
TOPO = Kind(name="topo", record="egmctl.topology.topology:Topology", data=(Format.CSV,), drawn=True)
DOCTOR = Kind(name="doctor", record="egmctl.model.diagnosis:Diagnosis", data=_CHECKED)
BRINGUP = Kind(name="bringup", record="egmctl.model.bringup:Bringup", data=_CHECKED)
EVIDENCE = Kind(name="evidence", record="egmctl.model.evidence:EvidenceReport", views="bringup")
COMPARISON = Kind(name="compare", record="egmctl.model.comparison:Comparison", data=(Format.CSV,))
FLEET = Kind(name="fleet", record="egmctl.model.fleet:FleetReport", data=(Format.CSV,))
MATCH = Kind(name="match", record="egmctl.model.profile:MatchResult", views="lists", pages=False)
HISTORY = Kind(name="history", record="egmctl.model.listing:History", views="lists", pages=False)
PROFILES = Kind(name="profiles", record="egmctl.model.profile:ProfileList", views="lists", pages=False)
MACHINES = Kind(name="machines", record="egmctl.model.listing:MachineList", views="lists", pages=False)
CHECKS = Kind(name="checks", record="egmctl.model.listing:CheckList", views="doctor", pages=False)
EXPLAIN = Kind(name="explain", record="egmctl.model.explanation:Explanations", views="explain", pages=False)
CASES = Kind(name="cases", record="egmctl.model.listing:CaseList", views="lists", pages=False)
PLAN = Kind(name="plan", record="egmctl.model.listing:PlanReport", views="lists", pages=False)
WATCH = Kind(name="watch", record="egmctl.model.machine:TrafficSample", data=(Format.PROM,), pages=False)
COST = Kind(name="cost", record="egmctl.model.listing:JobCost", views="lists", pages=False)
KINDS = tuple(kind for kind in [*vars().values()] if isinstance(kind, Kind))
"""All kinds of results, those above."""


def kind_of(result: object) -> Kind:
    """Return the kind of a result.

    Raises
    ------
    LookupError
        No kind has results of this type.
    """
    name = f"{type(result).__module__}:{type(result).__qualname__}"
    for kind in KINDS:
        if kind.record == name:
            return kind
    raise LookupError(f"no kind of result is a {name}")


def render(
    result: object, format: Format, *, verbose: int = 0, brief: bool = False, width: int | None = None
) -> Text | str:
    """Return a result in one of the formats of its kind (:mod:`egmctl.report.kinds`).

    Parameters
    ----------
    verbose, brief
        The level of detail of text and pictures of text; with ``verbose``, the CSV of a bench has a row per sample.
    width
        The width of text in characters; ``None`` for the default.

    Raises
    ------
    LookupError
        The object is not a result of a command.
    ValueError
        Its kind does not have this format.
    """
    kind = kind_of(result)
    if format not in kind.formats:
        raise ValueError(f"a {type(result).__name__} has no format {format}")
    if export := kind.export(format):
        more = {"samples": True} if kind is BENCH and format is Format.CSV and verbose else {}
        content: Text | str = resolve_name(export)(result, **more)
    else:
        document = resolve_name(kind.view)(result)
        content = rendered(document, format, verbose=verbose, brief=brief, width=width, drawn=kind.drawn)
    return _without_control_characters(content)


def answer_html(result: object) -> str:
    """Return the first part of a result's page, for a notebook."""
    from egmctl.report.render.html import fragment

    return str(_without_control_characters(fragment(resolve_name(kind_of(result).view)(result))))


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
        Whether the picture shows the figures instead of the text.

    Raises
    ------
    ValueError
        The format is not rendered from documents.
    """
    match format:
        case Format.SVG if drawn:
            from egmctl.report.render.figures import svg

            return svg(document)
        case Format.TEXT | Format.SVG:
            from egmctl.report.document import Level
            from egmctl.report.render.text import WIDTH, text

            level = Level.SUMMARY if brief else Level(min(Level.NORMAL + verbose, Level.ALL))
            shown = text(document, width=width or WIDTH, level=level)
            if format is Format.TEXT:
                return shown
            from egmctl.report.render.figures import picture

            return picture(shown, document.command)
        case Format.HTML | Format.MARKDOWN:
            name = format.name.lower()
            page: str = resolve_name(f"egmctl.report.render.{name}:{name}")(document)
            return page
    raise ValueError(f"a document has no format {format}")


def _without_control_characters(content: Text | str) -> Text | str:
    """Replace control and format characters, so that no text can move the cursor.

    Views escape their text; this is a second safeguard. Each character is replaced by a single one, so the spans of
    colour keep their positions.
    """
    plain = content if isinstance(content, str) else content.plain
    if all(map(str.isprintable, plain.split("\n"))):
        return content
    safe = "".join(char if char.isprintable() or char == "\n" else "\N{REPLACEMENT CHARACTER}" for char in plain)
    if isinstance(content, str):
        return safe
    content.plain = safe
    return content
