"""Learns a profile from runs, and writes it as TOML."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from statistics import median, stdev
from typing import Any

from egmctl.bench.path_class import class_of, unit_of
from egmctl.dataclass import dataclass
from egmctl.errors import UsageError
from egmctl.model.codec import to_json
from egmctl.model.doubt import Effect
from egmctl.model.machine import Machine
from egmctl.model.measurement import Measurement, MeasurementStatus, RunReport
from egmctl.model.profile import (
    PROFILE_SCHEMA,
    HealthyRuns,
    MachineSignature,
    Profile,
    Reference,
    Source,
    SourceKind,
    Unit,
)
from egmctl.model.task import Pattern, Point
from egmctl.model.verdict import BAD_GRADES
from egmctl.topology.platform import C2c, c2c, platform
from egmctl.units import several
from egmctl.verdict.judge import with_verdict
from egmctl.verdict.profiles import gpu_kind, most_nvlinks
from egmctl.verdict.trust import MeasurementUse, unbelieved
from egmctl.verdict.yardsticks import JUDGED_FROM_BYTES, not_judged, value_of


@dataclass(frozen=True, slots=True)
class Run:
    """A run that a profile is learnt from."""

    report: RunReport
    machine: Machine
    node: str
    """An identifier of its node."""


def learn(runs: Sequence[Run], name: str, date: str) -> Profile:
    """Return a profile of what the runs measured.

    Only measurements with status ``ok`` count, if they are judged at all and nothing casts a doubt on them that forbids
    it (:mod:`egmctl.verdict.trust`). A sweep counts with its largest size.

    Parameters
    ----------
    runs
        At least one run.
    name
        The name of the profile.
    date
        The current date, for people.

    Raises
    ------
    UsageError
        The machines are not of one kind, or nothing usable was measured.
    """
    first = runs[0]
    for run in runs[1:]:
        if _kind(run.machine) != _kind(first.machine):
            raise UsageError(
                "the runs are of machines that differ: "
                f"{first.node} has {_kind(first.machine)}, {run.node} has {_kind(run.machine)}"
            )
    learnt: dict[_Class, _Learnt] = {}
    for run in runs:
        largest: dict[tuple[str, Point], int] = {}
        for m in run.report.measurements:
            largest[m.case, m.point.unsized] = max(m.size_bytes, largest.get((m.case, m.point.unsized), 0))
        doubted = unbelieved(run.report.doubts, MeasurementUse.LEARN)
        for number, m in enumerate(run.report.measurements):
            if m.size_bytes == largest[m.case, m.point.unsized] and number not in doubted:
                _add(learnt, run.node, m)
    if not learnt:
        raise UsageError("the runs hold nothing to learn from: no measurement is ok, large enough and from idle GPUs")
    nodes = len({run.node for run in runs})
    base = f"{several(len(runs), 'run')} on {several(nodes, 'machine')}"
    source = Source(kind=SourceKind.MEASURED, text=f"by egmctl, {base}, learnt {date}", machines=nodes, runs=len(runs))
    profile = Profile(
        schema=PROFILE_SCHEMA,
        name=name,
        title=f"{_kind(first.machine)}, learnt from {base}",
        match=_signature([run.machine for run in runs]),
        sources={"runs": source, "bounds": Source(kind=SourceKind.RULE, text=RULE)},
        references=tuple(_references(learnt)),
    )
    alarms = sum(raises_alarm(run.report, profile) for run in runs)
    return replace(profile, healthy=HealthyRuns(machines=nodes, runs=len(runs), alarms=alarms, source="runs"))


def raises_alarm(report: RunReport, profile: Profile) -> bool:
    """Return whether a profile calls a path of a run slow, or something of the run is not believed."""
    judged = with_verdict(report, profile)
    slow = judged.verdict is not None and any(each.grade in BAD_GRADES for each in judged.verdict.classes)
    return slow or any(doubt.effect is not Effect.NOTE for doubt in judged.doubts)


SPREADS_WARN, LEAST_WARN = 1.5, 0.025
"""A learnt reference warns at this multiple of the largest deviation that any run showed over the same link, but not
below this part of the typical value."""
SPREADS_FAIL, LEAST_FAIL = 2.5, 0.05
"""The same for a failure. One NVLink of 18 carries 5.6 %."""
LATENCY_WARN, LATENCY_FAIL = 0.1, 0.25
"""The smallest deviations for latencies. They vary by several per cent with the location of GPU and SM, and no two
machines are alike."""
RULE = (
    f"warns at {SPREADS_WARN:g}x and fails at {SPREADS_FAIL:g}x the largest deviation seen over the same link, but not "
    f"below {100 * LEAST_WARN:g} and {100 * LEAST_FAIL:g} % (latencies {100 * LATENCY_WARN:g} and "
    f"{100 * LATENCY_FAIL:g} %)"
)

SMALLER = 4
"""A reference is valid for buffers down to the learnt size divided by this. On HGX H200 a copy engine over NVLink loses
1 % with a quarter of 512 MiB (docs/profiles.md)."""

_ALONE = (Pattern.PAIR, Pattern.BOTH_DIRECTIONS, Pattern.LOCAL, Pattern.LOADED)
"""Patterns whose total does not depend on how many GPUs take part, unlike that of all others."""


_Class = tuple[str, Point, str, int | None]
"""Case, point, link and number of flows."""


@dataclass(slots=True)
class _Learnt:
    """The values of all runs for one class."""

    unit: Unit
    by_path: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """The medians of each path of each node, one per run."""
    least_bytes: int | None = None
    """The smallest buffer size among the measurements."""

    @property
    def typical(self) -> float:
        """The median of all paths and runs."""
        return median(value for runs in self.by_path.values() for value in runs)

    @property
    def deviation(self) -> float:
        """The deviation of the worst path of any run from the typical value, as a part of it."""
        values = [value for runs in self.by_path.values() for value in runs]
        worst = max(values) if self.unit is Unit.NS else min(values)
        return abs(worst / self.typical - 1)

    @property
    def run_to_run(self) -> float | None:
        """The largest standard deviation of a path from run to run, as a part of its median; ``None`` if unknown."""
        repeated = [runs for runs in self.by_path.values() if len(runs) > 1]
        return max((stdev(runs) / median(runs) for runs in repeated), default=None)


def _add(learnt: dict[_Class, _Learnt], node: str, measurement: Measurement) -> None:
    value = value_of(measurement)
    if value is None or measurement.status is not MeasurementStatus.OK or not_judged(measurement):
        return
    path_class = class_of(measurement)
    flows = None if measurement.pattern in _ALONE else len(measurement.flows)
    key = path_class.case, path_class.point.unsized, path_class.link, flows
    entry = learnt.setdefault(key, _Learnt(unit_of(measurement)))
    entry.least_bytes = min(entry.least_bytes or measurement.size_bytes, measurement.size_bytes)
    entry.by_path.setdefault((node, measurement.path), []).append(value)


def _references(learnt: Mapping[_Class, _Learnt]) -> Iterator[Reference]:
    """Yield a reference for each class. Its bounds follow from the deviations of all classes over the same link."""
    by_link: dict[tuple[str, Unit], list[_Learnt]] = {}
    for (_, _, link, _), entry in learnt.items():
        by_link.setdefault((link, entry.unit), []).append(entry)
    for (case, point, link, flows), entry in learnt.items():
        alike = by_link[link, entry.unit]
        deviation = max(other.deviation for other in alike)
        spreads = [spread for other in alike if (spread := other.run_to_run) is not None]
        latency = entry.unit is Unit.NS
        warn = max(SPREADS_WARN * deviation, LATENCY_WARN if latency else LEAST_WARN)
        fail = max(SPREADS_FAIL * deviation, LATENCY_FAIL if latency else LEAST_FAIL)
        sign = 1 if latency else -1
        yield Reference(
            case=case,
            point=point,
            link=link,
            unit=entry.unit,
            typical=_round(entry.typical),
            warn=_round(entry.typical * max(0.01, 1 + sign * warn)),
            fail=_round(entry.typical * max(0.01, 1 + sign * fail)),
            flows=flows,
            least_bytes=0 if latency else max(JUDGED_FROM_BYTES, (entry.least_bytes or 0) // SMALLER),
            run_to_run=_round(max(spreads)) if spreads else None,
            source="runs",
            bounds_source="bounds",
        )


def _signature(machines: Sequence[Machine]) -> MachineSignature:
    gpus = [gpu for machine in machines for gpu in machine.gpus or ()]
    nvlinks = {gpu.nvml.nvlink_count if gpu.nvml else None for gpu in gpus}
    nvlink_count = max(map(most_nvlinks, machines))
    return MachineSignature(
        gpu_names=tuple(dict.fromkeys(gpu.name for gpu in gpus if gpu.name)),
        device_ids=tuple(dict.fromkeys(gpu.pci.pci_id for gpu in gpus if gpu.pci and gpu.pci.pci_id)),
        most_gpus=max(len(machine.gpus or ()) for machine in machines),
        nvlinks=nvlinks.pop() if len(nvlinks) == 1 else None,
        link=f"NV{nvlink_count}" if nvlink_count else None,
        c2c=any(c2c(machine, gpu) in (C2c.UP, C2c.DOWN) for machine in machines for gpu in machine.gpus or ()),
        nvlink_domain=platform(machines[0]).clique_id is not None,
        source="runs",
    )


def _kind(machine: Machine) -> str:
    """Return a text that must be the same for all machines of a profile."""
    return ", ".join(sorted(set(map(gpu_kind, machine.gpus or ())))) or "no GPU"


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def profile_toml(profile: Profile) -> str:
    """Return a profile as TOML, without keys whose value is empty."""
    document = to_json(profile)
    tables = [("", {key: document[key] for key in ("schema", "name", "title")}), ("[match]", document["match"])]
    tables += [(f"[sources.{_key(name)}]", source) for name, source in document["sources"].items()]
    if document["healthy"] is not None:
        tables.append(("[healthy]", document["healthy"]))
    tables += [(f"[[{name}]]", table) for name in ("links", "references") for table in document[name]]
    return "\n\n".join("\n".join([header, *_pairs(table)]) for header, table in tables).strip("\n") + "\n"


def _pairs(table: Mapping[str, Any]) -> list[str]:
    """Return the keys of a table with their values, except for empty values."""
    texts = {key: _value(value) for key, value in table.items() if value not in (None, [])}
    return [f"{_key(key)} = {text}" for key, text in texts.items() if text != "{}"]


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if bare else _value(key)


def _value(value: Any) -> str:
    """Return a value as TOML. TOML has the escapes of JSON, except for the delete character and surrogate pairs."""
    if isinstance(value, dict):
        return f"{{{', '.join(_pairs(value))}}}"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
