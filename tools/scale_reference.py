"""Writes the tables of ``docs/scale.md`` by the planner and the scheduler of the bench.

python tools/scale_reference.py            write them
python tools/scale_reference.py --check    write nothing; exit 1 if the file is not what would be written
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

from generated import ROOT, below, settle

from egmctl.api.bench import DEFAULT_SIZE_BYTES
from egmctl.bench.registry import FABRIC_CASES
from egmctl.bench.scale import Cost, Scale, scale
from egmctl.bench.suites import FABRIC, SUITES
from egmctl.facts.replay import load
from egmctl.model.machine import Machine
from egmctl.model.measurement import Settings
from egmctl.report.bench_scale import duration
from egmctl.units import format_size

DOCUMENT = ROOT / "docs" / "scale.md"
MARK = "<!-- Everything below is written by tools/scale_reference.py. -->"
GPUS = (8, 72, 576, 10_000)
SAMPLES = (None, 8)
"""Of ``--sample``."""


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    return settle(
        arguments, DOCUMENT, below(DOCUMENT, MARK, "\n".join(_tables(load("gb200-nvl72")))), "tools/scale_reference.py"
    )


def _tables(machine: Machine) -> Iterator[str]:
    settings = Settings(size_bytes=DEFAULT_SIZE_BYTES, copies=None, samples=SUITES[FABRIC].samples, timeout_s=60)
    for sample in SAMPLES:
        found = [scale(machine, gpus, FABRIC_CASES, settings, sample) for gpus in GPUS]
        yield f"\n## {'Every pair' if sample is None else f'With --sample {sample}'}\n"
        for one in found:
            yield f"### {one.ranks} GPUs on {one.nodes} nodes\n"
            yield from _table(one)


def _table(one: Scale) -> Iterator[str]:
    yield "| case | measurements | steps | TB moved | time | held at one place | report |"
    yield "|---|---:|---:|---:|---:|---:|---:|"
    for cost in one.costs:
        held = format_size(cost.held_bytes) + (" **too much**" if cost.too_large else "")
        yield _row(f"`{cost.case}`", [cost], duration(cost.seconds), held)
    yield _row("all", one.costs, duration(one.seconds), "")
    yield ""


def _row(name: str, costs: Sequence[Cost], time: str, held: str) -> str:
    measurements, steps = sum(cost.measurements for cost in costs), sum(cost.steps for cost in costs)
    moved, report = sum(cost.bytes for cost in costs) / 1e12, sum(cost.report_bytes for cost in costs) / 1e6
    cells = (name, f"{measurements}", f"{steps}", f"{moved:.1f}", time, held, f"{report:.1f} MB")
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
