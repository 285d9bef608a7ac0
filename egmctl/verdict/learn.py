"""Makes a profile of one's own runs: what each class of paths reached, and how far apart runs and paths are. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median, stdev

from egmctl.errors import UsageError
from egmctl.model.machine import Machine
from egmctl.model.measurement import Measurement, Pattern, RunReport, Status
from egmctl.model.profile import PROFILE_SCHEMA, Profile, Reference, Signature, Source, SourceKind, Unit
from egmctl.model.route import LinkClass
from egmctl.topology.health import C2c, c2c
from egmctl.topology.links import gpu_link
from egmctl.topology.platform import platform
from egmctl.verdict.classes import JUDGED_FROM_BYTES, class_of, not_judged, unit_of, value_of
from egmctl.verdict.match import gpu_kind, pci_id
from egmctl.wording import several

SPREADS_WARN, LEAST_WARN = 1.5, 0.025
"""Warns at so many times the largest deviation from the typical value that any run showed over the same link, and not
before so much of the value."""
SPREADS_FAIL, LEAST_FAIL = 2.5, 0.05
"""Fails at so much. One NVLink of 18 carries 5.6 %."""
LATENCY_WARN, LATENCY_FAIL = 0.1, 0.25
"""In place of the least, for latencies: where GPU and SM sit makes several per cent, and no two machines are alike."""
RULE = (
    f"warns at {SPREADS_WARN:g}x and fails at {SPREADS_FAIL:g}x the largest deviation seen over the same link, but not "
    f"below {100 * LEAST_WARN:g} and {100 * LEAST_FAIL:g} % (latencies {100 * LATENCY_WARN:g} and "
    f"{100 * LATENCY_FAIL:g} %)"
)

SMALLER = 4
"""A reference is good for buffers down to this part of those that it was learnt with: on HGX H200 a quarter of 512 MiB
costs a copy engine over NVLink 1 % (docs/profiles.md)."""

_COUNTED_FLOWS = (
    Pattern.RING,
    Pattern.BISECT,
    Pattern.ALL_PAIRS,
    Pattern.ONE_NODE,
    Pattern.OWN_NODE,
    Pattern.OWN_NODE_BOTH,
    Pattern.ONE_TO_ALL,
    Pattern.ALL_TO_ONE,
)
"""What these reach together depends on how many GPUs take part."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run to learn from."""

    report: RunReport
    machine: Machine
    node: str
    """What tells its node from others."""


@dataclass(slots=True)
class _Seen:
    """What all runs say of one class."""

    unit: Unit
    by_path: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """The medians of each path of each node, one for each run."""
    size_bytes: int = 0
    """The largest that was seen in a sweep."""
    least_bytes: int | None = None
    """The smallest buffers that were learnt from."""

    @property
    def typical(self) -> float:
        """The middle of all paths and runs."""
        return median(value for runs in self.by_path.values() for value in runs)

    @property
    def off(self) -> float:
        """How far the worst path of any run was from that, as a part of it."""
        values = [value for runs in self.by_path.values() for value in runs]
        worst = max(values) if self.unit is Unit.NS else min(values)
        return abs(worst / self.typical - 1)

    @property
    def run_to_run(self) -> float | None:
        """Standard deviation of one path from run to run, as a part of its middle: of the worst path."""
        repeated = [runs for runs in self.by_path.values() if len(runs) > 1]
        return max((stdev(runs) / median(runs) for runs in repeated), default=None)


def learn(runs: Sequence[Run], name: str, date: str) -> Profile:
    """Return a profile of what the runs measured.

    Only what is ``ok`` is learnt from: corrupt data and samples that differ too much are no measure of anything; nor
    what was measured on GPUs that other processes used meanwhile. A sweep is learnt from at its largest size.

    Parameters
    ----------
    runs
        At least one.
    name
        Of the profile.
    date
        Of today, for people.

    Raises
    ------
    UsageError
        If the machines are not of one kind, or nothing was measured.
    """
    first = runs[0]
    for run in runs[1:]:
        if _kind(run.machine) != _kind(first.machine):
            raise UsageError(
                "the runs are of machines that differ: "
                f"{first.node} has {_kind(first.machine)}, {run.node} has {_kind(run.machine)}"
            )
    seen: dict[tuple[str, str, int | None], _Seen] = {}
    for run in runs:
        for measurement in run.report.measurements:
            _add(seen, run, measurement)
    if not seen:
        raise UsageError("the runs hold nothing to learn from: no measurement is ok, large enough and from idle GPUs")
    nodes = len({run.node for run in runs})
    base = f"{several(len(runs), 'run')} on {several(nodes, 'machine')}"
    source = Source(kind=SourceKind.MEASURED, text=f"by egmctl, {base}, learnt {date}", machines=nodes, runs=len(runs))
    return Profile(
        schema=PROFILE_SCHEMA,
        name=name,
        title=f"{_kind(first.machine)}, learnt from {base}",
        match=_signature([run.machine for run in runs]),
        sources={"runs": source, "bounds": Source(kind=SourceKind.RULE, text=RULE)},
        references=tuple(_references(seen)),
    )


def _add(seen: dict[tuple[str, str, int | None], _Seen], run: Run, measurement: Measurement) -> None:
    value = value_of(measurement)
    if value is None or measurement.status is not Status.OK or not_judged(measurement) or _is_beside(measurement):
        return
    one = class_of(measurement)
    flows = len(measurement.flows) if measurement.pattern in _COUNTED_FLOWS else None
    found = seen.setdefault((one.case, one.link, flows), _Seen(unit_of(measurement)))
    if _is_swept(run.report, measurement):
        if measurement.size_bytes < found.size_bytes:
            return
        if measurement.size_bytes > found.size_bytes:
            found.by_path.clear()
            found.least_bytes = None
            found.size_bytes = measurement.size_bytes
    found.least_bytes = min(found.least_bytes or measurement.size_bytes, measurement.size_bytes)
    found.by_path.setdefault((run.node, measurement.path), []).append(value)


def _is_beside(measurement: Measurement) -> bool:
    """Say whether other processes used the GPUs meanwhile."""
    return measurement.evidence is not None and any(gpu.other_processes for gpu in measurement.evidence.gpus)


def _references(seen: Mapping[tuple[str, str, int | None], _Seen]) -> Iterator[Reference]:
    """Yield a reference for each class; how far runs are apart is of the link, whichever case showed it."""
    off: dict[tuple[str, Unit], float] = {}
    run_to_run: dict[tuple[str, Unit], float] = {}
    for (_, link, _), one in seen.items():
        off[link, one.unit] = max(off.get((link, one.unit), 0), one.off)
        if one.run_to_run is not None:
            run_to_run[link, one.unit] = max(run_to_run.get((link, one.unit), 0), one.run_to_run)
    for (case, link, flows), one in seen.items():
        latency = one.unit is Unit.NS
        warn = max(SPREADS_WARN * off[link, one.unit], LATENCY_WARN if latency else LEAST_WARN)
        fail = max(SPREADS_FAIL * off[link, one.unit], LATENCY_FAIL if latency else LEAST_FAIL)
        sign = 1 if latency else -1
        yield Reference(
            case=case,
            link=link,
            unit=one.unit,
            typical=_round(one.typical),
            warn=_round(one.typical * max(0.01, 1 + sign * warn)),
            fail=_round(one.typical * max(0.01, 1 + sign * fail)),
            flows=flows,
            least_bytes=0 if latency else max(JUDGED_FROM_BYTES, (one.least_bytes or 0) // SMALLER),
            run_to_run=_round(run_to_run[link, one.unit]) if (link, one.unit) in run_to_run else None,
            source="runs",
            bounds_source="bounds",
        )


def _signature(machines: Sequence[Machine]) -> Signature:
    gpus = [gpu for machine in machines for gpu in machine.gpus or ()]
    nvlinks = {gpu.nvml.nvlink_count if gpu.nvml else None for gpu in gpus}
    joined = [
        link.nvlinks or 0
        for machine in machines
        for one, other in combinations(machine.gpus or (), 2)
        if (link := gpu_link(machine, one, other)).kind is LinkClass.NVLINK
    ]
    return Signature(
        gpu_names=tuple(dict.fromkeys(gpu.name for gpu in gpus if gpu.name)),
        device_ids=tuple(dict.fromkeys(found for gpu in gpus if (found := pci_id(gpu)))),
        most_gpus=max(len(machine.gpus or ()) for machine in machines),
        nvlinks=nvlinks.pop() if len(nvlinks) == 1 else None,
        link=f"NV{max(joined)}" if joined else None,
        c2c=any(c2c(machine, gpu) in (C2c.UP, C2c.DOWN) for machine in machines for gpu in machine.gpus or ()),
        nvlink_domain=platform(machines[0]).clique_id is not None,
        source="runs",
    )


def _kind(machine: Machine) -> str:
    """Name what has to be the same in all machines of a profile."""
    return ", ".join(sorted(set(map(gpu_kind, machine.gpus or ())))) or "no GPU"


def _is_swept(report: RunReport, measurement: Measurement) -> bool:
    return any(m.case == measurement.case and m.size_bytes != measurement.size_bytes for m in report.measurements)


def _round(value: float) -> float:
    return float(f"{value:.4g}")
