"""Results as CSV: one row per flow, collective, link, route, path, finding or node. A missing value is an empty cell.

The columns are the fields of a row's records in order; the field of a nested record has a name like
``flow_route_symbol``. The items of a tuple are joined by spaces. Tuples of records and mappings are only in the JSON.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import re
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from functools import reduce
from itertools import permutations
from typing import Any

from egmctl.bench.nccl.collectives import PREFIX
from egmctl.errors import UsageError
from egmctl.model.codec import field_types
from egmctl.model.comparison import AttributeDifference, Comparison, PathDifference
from egmctl.model.fleet import FleetReport, NodeResult
from egmctl.model.gpu import GpuPair
from egmctl.model.measurement import Measurement, MeasurementStatus, RunReport, Sample, Stage, Summary
from egmctl.model.nccl import CollectiveResult, NcclRun
from egmctl.model.record import Command, Shown
from egmctl.model.task import Flow
from egmctl.model.verdict import Yardstick
from egmctl.topology.links import Link
from egmctl.topology.routes import HostRoute
from egmctl.topology.topology import Topology
from egmctl.units import printable

_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?", re.ASCII)


def bench_frame(report: RunReport, *, samples: bool = False) -> Any:
    """Return the table of :func:`bench_csv` as a pandas DataFrame.

    Raises
    ------
    UsageError
        If pandas is not installed.
    """
    try:
        import pandas
    except ImportError as error:
        raise UsageError("to_pandas needs pandas: pip install pandas") from error
    return pandas.read_csv(io.StringIO(bench_csv(report, samples=samples)))


def bench_csv(report: RunReport, *, samples: bool = False) -> str:
    """Return one row per flow of each measurement, or per flow and stage of the life cycle of a handle.

    Each row contains the results and grades of the whole measurement; ``flow_gb_s_...`` are those of the flow. Each
    collective of NCCL has a row, with its result in ``nccl_...`` and the case's name for ``--case``.

    Parameters
    ----------
    samples
        Whether there is a row per flow and sample, with the sample in ``sample_...``. The times of all samples of a
        collective are in its row.
    """
    run = {
        "node": next((machine.host.hostname for machine in report.machines if machine.host), None),
        "started_at": report.started_at,
        "driver_version": report.driver_version,
    }
    gpus = {gpu.bus_id: gpu for gpu in report.gpus}
    judged = {entry.measurement: entry.judgements for entry in (report.verdict.judged if report.verdict else ())}
    of_samples = ("sample", *_columns(Sample, "sample_")) if samples else ()
    columns = (
        *run,
        *_columns(Measurement),
        "flow",
        *_columns(Flow, "flow_"),
        "flow_initiator_uuid",
        "flow_initiator_name",
        *_columns(Summary, "flow_gb_s_"),
        *_columns(Stage, "stage_"),
        *(f"verdict_{yardstick}" for yardstick in Yardstick),
        "expected",
        "ceiling",
        "ceiling_limit",
        *of_samples,
        *_columns(CollectiveResult, "nccl_"),
        "nccl_version",
        "nccl_transports",
        *_ANSWER,
    )

    def rows() -> Iterator[dict[str, object]]:
        for number, measurement in enumerate(report.measurements):
            whole = run | _cells(measurement) | _answered(report)
            for judgement in judged.get(number, ()):
                if judgement.yardstick not in set(Yardstick):
                    # Only a newer version knows this yardstick, so it has no column here.
                    continue
                whole[f"verdict_{judgement.yardstick}"] = judgement.grade
                if judgement.yardstick is Yardstick.PROFILE:
                    whole["expected"] = judgement.expected
                if judgement.yardstick is Yardstick.LINK:
                    whole |= {"ceiling": judgement.expected, "ceiling_limit": judgement.limit}
            for index, flow in enumerate(measurement.flows):
                row = whole | {"flow": index} | _cells(flow, "flow_")
                if gpu := gpus.get(flow.initiator or ""):
                    row |= {"flow_initiator_uuid": gpu.uuid, "flow_initiator_name": gpu.name}
                if measurement.flows_gb_s:
                    row |= _cells(measurement.flows_gb_s[index], "flow_gb_s_")
                parts = [_cells(stage, "stage_") for stage in measurement.stages]
                if samples and measurement.samples:
                    parts = [{"sample": n} | _cells(s, "sample_") for n, s in enumerate(measurement.samples)]
                yield from (row | part for part in parts or [{}])
        yield from (run | cells | _answered(report) for cells in _collectives(report.nccl))

    return csv_text(columns, rows())


def _collectives(nccl: NcclRun | None) -> Iterator[dict[str, object]]:
    """Yield the cells of each collective that NCCL measured, also of one with wrong values."""
    if nccl is None:
        return
    for result in nccl.results:
        measured = {
            "case": f"{PREFIX}{result.name}",
            "size_bytes": nccl.plan.size_bytes,
            "status": MeasurementStatus.CORRUPT if result.verified is False else MeasurementStatus.OK,
            "nccl_version": nccl.versions.get("nccl"),
            "nccl_transports": tuple(nccl.transports),
        }
        yield measured | _cells(result, "nccl_")


def topo_csv(topology: Topology) -> str:
    """Return one row per link, route and ordered pair of GPUs.

    Each row contains the machine's origin, so that rows of a modelled machine are recognisable in any extract.
    """
    machine = topology.machine
    origin: dict[str, object] = {
        "origin": machine.origin.kind,
        "machine": machine.origin.name,
        "driver_version": machine.driver.module_version if machine.driver else None,
    }
    bus_ids = {label: gpu.bus_id for label, gpu in topology.gpus.items()}
    labels = {bus_id: label for label, bus_id in bus_ids.items()}
    origin |= _answered(topology)
    columns = dict.fromkeys((*origin, "record", "source", "source_bus_id", "target", "target_bus_id"))
    for record in (Link, HostRoute, GpuPair):
        columns |= dict.fromkeys(_columns(record))

    def row(kind: str, record: Any, source: str, target: str) -> dict[str, object]:
        ends = {"source_bus_id": bus_ids.get(source), "target_bus_id": bus_ids.get(target)}
        return origin | {"record": kind} | _cells(record) | {"source": source, "target": target} | ends

    rows = [row("link", link, link.source, link.target) for link in topology.links]
    rows += [row("route", route, labels[route.gpu], f"NUMA{route.numa_node}") for route in topology.routes]
    for source, target in permutations(labels, 2):
        if pair := machine.pair(source, target):
            values: dict[str, object] = {f"status_{name}": value for name, value in pair.p2p_status.items()}
            values |= {f"cuda_{name}": value for name, value in pair.cuda_attributes.items()}
            columns |= dict.fromkeys(values)
            rows.append(row("p2p", pair, labels[source], labels[target]) | values)
    return csv_text(columns, rows)


def compare_csv(comparison: Comparison) -> str:
    """Return one row per path of the comparison, and one per node for each finding or fact that differs.

    ``subject`` is ``path``, ``finding``, ``fact`` (of snapshots) or ``machine`` (a fact of the machine of a bench or
    doctor). ``warning`` names in each row the files that are not from hardware, so that any extract shows it.
    """
    from egmctl.report.views.compare import comparison_banners

    warning = {"warning": "; ".join(comparison_banners(comparison))} | _answered(comparison)
    subject = "finding" if comparison.kind is Command.DOCTOR else "fact"
    attributes = ((subject, comparison.words), ("machine", comparison.machines))
    rows = [{"subject": "path"} | _cells(path) | warning for path in comparison.paths]
    for name, differences in attributes:
        for difference in differences:
            rows += [{"subject": name, "node": node} | _cells(difference) | warning for node in difference.nodes]
    columns = dict.fromkeys(("subject", "node", *_columns(PathDifference), *_columns(AttributeDifference), *warning))
    return csv_text(columns, rows)


def fleet_csv(report: FleetReport) -> str:
    """Return one row per node; ``causes`` lists the node's problems, each after its status.

    ``state`` is that of the node, ``answer`` that of the whole fleet.
    """
    causes = {
        node: "; ".join(f"{line.status} {line.key} {line.value}".strip() for line in group.lines if line.status)
        for group in report.groups
        for node in group.nodes
    }
    rows = (_cells(node) | {"causes": causes.get(node.node, "")} | _answered(report) for node in report.answers)
    return csv_text((*_columns(NodeResult), "causes", *_ANSWER), rows)


_ANSWER = ("answer", "exit_code")
"""The columns of a result's answer, the same in each row, so that any extract shows it."""


def _answered(result: Shown) -> dict[str, object]:
    return {"answer": result.answer.state.value, "exit_code": int(result.answer.exit_code)}


def csv_text(columns: Iterable[str], rows: Iterable[Mapping[str, object]]) -> str:
    """Return a table with a header line; a missing cell is empty.

    Raises
    ------
    ValueError
        A row has a cell for an unknown column.
    """
    file = io.StringIO()
    writer = csv.DictWriter(file, list(columns), lineterminator="\n")
    # The header is escaped, too: names of capabilities come from the machine.
    writer.writerow({name: _cell(name) for name in writer.fieldnames})
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return file.getvalue()


def _cell(value: object) -> object:
    """Return the content of a cell for a value.

    A spreadsheet evaluates text that begins with ``= + - @`` as a formula; a leading apostrophe prevents this
    (https://owasp.org/www-community/attacks/CSV_Injection).
    """
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        value = " ".join(str(item) for item in value)
    if isinstance(value, str):
        shown = printable(value)
        return f"'{shown}" if shown.startswith(("=", "+", "-", "@")) and not _NUMBER.fullmatch(shown) else shown
    return value


def _paths(record: Any) -> Mapping[str, tuple[str, ...]]:
    """Return the columns of a record type, each with the fields that lead to its value."""
    paths: dict[str, tuple[str, ...]] = {}
    for name, kind in field_types(record).items():
        value = _value_type(kind)
        item = _value_type(typing.get_args(value)[0]) if typing.get_origin(value) is tuple else value
        if dataclasses.is_dataclass(value):
            paths |= {f"{name}_{column}": (name, *path) for column, path in _paths(value).items()}
        elif isinstance(item, type) and not dataclasses.is_dataclass(item):
            paths[name] = (name,)
    return paths


def _columns(record: Any, prefix: str = "") -> tuple[str, ...]:
    """Return the columns of a record type. They do not depend on the values."""
    return tuple(prefix + column for column in _paths(record))


def _cells(record: Any, prefix: str = "") -> dict[str, object]:
    """Return a record's cells by column; those of a nested record that is missing are empty."""
    return {prefix + column: reduce(_field, path, record) for column, path in _paths(type(record)).items()}


def _field(record: Any, name: str) -> Any:
    return None if record is None else getattr(record, name)


def _value_type(kind: Any) -> Any:
    """Return a field's type without annotations and without ``None``."""
    while typing.get_origin(kind) in (typing.Annotated, typing.Union, types.UnionType):
        kind = next(inner for inner in typing.get_args(kind) if inner is not type(None))
    return kind
