"""The options of ``egmctl bench`` that no other command has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

CaseOption = Annotated[
    list[str] | None,
    typer.Option("--case", metavar="GLOB", help="Only cases whose names match; can be given several times."),
]
SuiteOption = Annotated[
    str | None, typer.Option("--suite", metavar="NAME[,..]", help="Suites of cases; --list names them.")
]
QuickOption = Annotated[bool, typer.Option("--quick", help="A quick look at every link: --suite quick.")]
FullOption = Annotated[bool, typer.Option("--full", help="Every case: --suite full.")]
PairOption = Annotated[
    str | None,
    typer.Option(
        "--pair", metavar="A:B[,..]", help="Only these paths, from A to B: GPUs (0, GPU0) and NUMA nodes (NUMA0)."
    ),
]
SizeOption = Annotated[
    str | None,
    typer.Option("--size", metavar="SIZE", help="Bytes of each buffer: 512M (the default), 64MiB (2^20), 64MB (10^6)."),
]
SweepOption = Annotated[
    str | None,
    typer.Option(
        "--sweep",
        metavar="size",
        help="Measure sizes from 4 KiB to --size (default: the largest that fits, up to 8 GiB).",
    ),
]
SamplesOption = Annotated[
    int | None, typer.Option("--samples", metavar="N", help="Samples of each path: 3 or 5, by the suite.")
]
CopiesOption = Annotated[
    int | None,
    typer.Option("--copies", metavar="N", help="Copies of the buffer in one sample; by default as many as take 20 ms."),
]
DurationOption = Annotated[
    float | None,
    typer.Option("--duration", metavar="SECONDS", help="Soak test: repeat all measurements for this long."),
]
SerialOption = Annotated[
    bool, typer.Option("--serial", help="Measure one pair at a time, even if pairs share no GPU or link.")
]
NoGateOption = Annotated[bool, typer.Option("--no-gate", help="Do not queue work behind a gate kernel: for profilers.")]
AllowBusyOption = Annotated[
    bool, typer.Option("--allow-busy", help="Measure GPUs that other processes use, and mark the results.")
]
MemoryOption = Annotated[
    int, typer.Option("--memory", metavar="PERCENT", help="Share of the free memory that buffers may take, 1 to 95.")
]
JournalOption = Annotated[
    Path | None,
    typer.Option(
        "--journal",
        metavar="DIR",
        help="Where to keep the run's journal. Default: ~/.local/state/egmctl/journal.",
    ),
]
NoJournalOption = Annotated[
    bool,
    typer.Option("--no-journal", help="Keep no journal; a killed run then loses its results."),
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", help="Give up a step after this long and continue.")
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="FILE|NAME",
        help="Judge by this profile instead of the matching one; 'egmctl profile list' names them.",
    ),
]
NoVerdictOption = Annotated[bool, typer.Option("--no-verdict", help="Measure without a verdict.")]
StrictOption = Annotated[bool, typer.Option("--strict", help="Treat warnings as failures (exit code 1).")]
ListOption = Annotated[bool, typer.Option("--list", help="Show the cases and whether each can run here, then exit.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Show steps, bytes, memory and time, then exit.")]
RanksOption = Annotated[
    int | None,
    typer.Option(
        "--ranks",
        metavar="N",
        help="With --dry-run --suite fabric: the cost for N GPUs on nodes like this one.",
    ),
]
SampleOption = Annotated[
    int | None,
    typer.Option(
        "--sample",
        metavar="K",
        help="With --suite fabric: measure each GPU with K random others instead of all.",
    ),
]
