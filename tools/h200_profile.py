"""Makes ``profiles/hgx-h200.toml`` of runs of ``egmctl bench`` on HGX H200 machines.

python tools/h200_profile.py RUN.json...

Of what a site's own profile would hold (``egmctl profile learn``) it keeps what belongs to the board: GPUs, NVLink,
and the PCIe link in one direction. CPUs, host memory and the way to it are those of the server that the board is in.
"""

from __future__ import annotations

import datetime
import sys
from dataclasses import replace
from pathlib import Path

from egmctl.bench.registry import CASES
from egmctl.model.measurement import Engine, MemoryKind, Pattern, Quantity, RunReport
from egmctl.model.profile import LinkFacts, Profile, Source, SourceKind
from egmctl.saved import load_all
from egmctl.verdict.learn import Run, learn
from egmctl.verdict.write import dump

FILE = Path(__file__).resolve().parents[1] / "profiles" / "hgx-h200.toml"
HOST = (MemoryKind.HOST_NUMA, MemoryKind.HOST_NUMA_POOL, MemoryKind.PINNED, MemoryKind.REGISTERED, MemoryKind.SYSTEM)
HEAD = """\
# What HGX H200 boards reach, measured by this project: docs/profiles.md, docs/hardware-notes.md.
# Made by tools/h200_profile.py.
"""


def main(paths: list[str]) -> None:
    """Write the profile."""
    reports = [saved.result for saved in load_all(paths) if isinstance(saved.result, RunReport)]
    # Runs of before a report held its machine are of machines of the same kind.
    machine = next(machine for report in reports for machine in report.machines)
    runs = [
        Run(report, next(iter(report.machines), machine), report.gpus[0].uuid or report.gpus[0].bus_id)
        for report in reports
    ]
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    FILE.write_text(HEAD + dump(of_the_board(learn(runs, FILE.stem, today))), encoding="utf-8")


def of_the_board(learnt: Profile) -> Profile:
    """Return a learnt profile with what belongs to the board only, and what its maker says of its links."""
    kept = {
        case.name
        for case in CASES
        if not {case.source, case.destination}.intersection(HOST)
        or (case.pattern is Pattern.PAIR and case.quantity is Quantity.BANDWIDTH and case.engine is not Engine.CPU)
    }
    runs = learnt.sources["runs"]
    text = f"{runs.text} (virtual ones, of 2 and 4 GPUs); nvbandwidth there and, as published, on 8 GPUs agrees"
    return replace(
        learnt,
        title="HGX H200 and DGX H200: H200 SXM5 on NVSwitch",
        match=replace(learnt.match, most_gpus=8),
        sources={
            **learnt.sources,
            "runs": replace(runs, text=text),
            "nvlink": Source(
                kind=SourceKind.NOMINAL,
                text="18 NVLinks of 26562 MB/s, of which 16/17 are payload (450 of 478 GB/s; 900 GB/s both ways by the "
                "datasheet)",
                url="https://docs.nvidia.com/health-validation/reference/checks/nvlink",
            ),
            "pcie": Source(
                kind=SourceKind.NOMINAL, text="PCI Express Base Specification 5.0: 32 GT/s a lane, 128b/130b"
            ),
        },
        links=(
            LinkFacts(link="nvlink", links=18, rate_gb_s=26.562, payload=0.9412, source="nvlink"),
            LinkFacts(link="pcie", links=16, rate_gb_s=4.0, payload=0.9846, source="pcie"),
        ),
        references=tuple(reference for reference in learnt.references if reference.case in kept),
    )


if __name__ == "__main__":
    main(sys.argv[1:])
