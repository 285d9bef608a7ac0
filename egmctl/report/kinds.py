"""The formats of results, and the file suffixes that ask for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from egmctl.compat import StrEnum


class Format(StrEnum):
    """The formats of results; the values are the words of ``--format``."""

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
"""The format that the suffix of ``-o FILE`` asks for."""


_LIST = (Format.TEXT, Format.JSON)
_PAGES = (Format.TEXT, Format.JSON, Format.HTML, Format.SVG, Format.MARKDOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of result."""

    record: str
    """The class of its results: the key ``result`` of its JSON document, which has the class's ``SCHEMA``."""
    view: str
    """The function that makes a document of a result: text, pages and pictures are drawn from that."""
    json: str = "egmctl.report.exports.json:plain_json"
    exports: Mapping[Format, str] = field(default_factory=dict)
    """The functions that write a result as data, by format."""
    command: str = ""
    """The command that looks at a node, one of :class:`egmctl.model.command.Command`; a digest has none."""
    pages: bool = True
    """Whether a result can be a page or a picture; lists are text and JSON."""
    drawn: bool = False
    """Whether the picture shows the document's figures instead of its text."""

    @property
    def formats(self) -> tuple[Format, ...]:
        """The formats that a result can be written in."""
        documents = _PAGES if self.pages else _LIST
        return tuple(format for format in Format if format in documents or format in self.exports)


BENCH = Kind(
    record="egmctl.model.measurement:RunReport",
    command="bench",
    view="egmctl.report.views.bench:bench_document",
    json="egmctl.report.exports.json:bench_json",
    exports={
        Format.CSV: "egmctl.report.exports.csv:bench_csv",
        Format.PROM: "egmctl.report.exports.prometheus:bench_prom",
        Format.JUNIT: "egmctl.report.exports.junit:bench_junit",
    },
    drawn=True,
)
TOPO = Kind(
    record="egmctl.topology.topology:Topology",
    command="topo",
    view="egmctl.report.views.topo:topo_document",
    json="egmctl.report.exports.json:node_json",
    exports={Format.CSV: "egmctl.report.exports.csv:topo_csv"},
    drawn=True,
)
DOCTOR = Kind(
    record="egmctl.model.diagnosis:Diagnosis",
    command="doctor",
    view="egmctl.report.views.doctor:doctor_document",
    json="egmctl.report.exports.json:node_json",
    exports={
        Format.PROM: "egmctl.report.exports.prometheus:doctor_prom",
        Format.NAGIOS: "egmctl.report.exports.nagios:nagios",
        Format.JUNIT: "egmctl.report.exports.junit:junit",
    },
)
BRINGUP = Kind(
    record="egmctl.model.bringup:Bringup",
    command="bringup",
    view="egmctl.report.views.bringup:bringup_document",
    json="egmctl.report.exports.json:bringup_json",
    exports={
        Format.PROM: "egmctl.report.exports.bringup:bringup_prom",
        Format.NAGIOS: "egmctl.report.exports.bringup:bringup_nagios",
        Format.JUNIT: "egmctl.report.exports.bringup:bringup_junit",
    },
)
COMPARISON = Kind(
    record="egmctl.model.comparison:Comparison",
    view="egmctl.report.views.compare:compare_document",
    exports={Format.CSV: "egmctl.report.exports.csv:compare_csv"},
)
FLEET = Kind(
    record="egmctl.model.fleet:FleetReport",
    view="egmctl.report.views.fleet:fleet_document",
    exports={Format.CSV: "egmctl.report.exports.csv:fleet_csv"},
)
MATCH = Kind(
    record="egmctl.model.profile:MatchResult",
    view="egmctl.report.views.lists:match_document",
    pages=False,
)
HISTORY = Kind(record="egmctl.model.listing:History", view="egmctl.report.views.lists:history_document", pages=False)
PROFILES = Kind(
    record="egmctl.model.profile:ProfileList", view="egmctl.report.views.lists:profiles_document", pages=False
)
MACHINES = Kind(
    record="egmctl.model.listing:MachineList", view="egmctl.report.views.lists:machines_document", pages=False
)
CHECKS = Kind(record="egmctl.model.listing:CheckList", view="egmctl.report.views.doctor:checks_document", pages=False)
CASES = Kind(record="egmctl.model.planned:CaseList", view="egmctl.report.views.bench_plan:cases_document", pages=False)
PLAN = Kind(record="egmctl.model.planned:PlanReport", view="egmctl.report.views.bench_plan:plan_document", pages=False)
COST = Kind(record="egmctl.model.planned:JobCost", view="egmctl.report.views.bench_plan:cost_document", pages=False)

KINDS = (BENCH, TOPO, DOCTOR, BRINGUP, COMPARISON, FLEET, MATCH, HISTORY, PROFILES, MACHINES, CHECKS, CASES, PLAN, COST)


def kind_of(result: object) -> Kind:
    """Return the kind of a result.

    Raises
    ------
    LookupError
        If no kind has results of this type.
    """
    name = f"{type(result).__module__}:{type(result).__qualname__}"
    for kind in KINDS:
        if kind.record == name:
            return kind
    raise LookupError(f"no kind of result is a {name}")
