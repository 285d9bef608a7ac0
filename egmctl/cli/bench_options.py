"""The options of ``egmctl bench`` that no other command has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

CaseOption = Annotated[
    list[str] | None,
    typer.Option("--case", metavar="GLOB", help="Only cases whose names match; may be given several times."),
]
SuiteOption = Annotated[
    str | None, typer.Option("--suite", metavar="NAME[,..]", help="Sets of cases; --list shows which there are.")
]
QuickOption = Annotated[bool, typer.Option("--quick", help="One look at every link: --suite quick.")]
FullOption = Annotated[bool, typer.Option("--full", help="Every case there is: --suite full.")]
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
        help="Measure sizes from 4 KiB to --size, else to the largest that fits, up to 8 GiB.",
    ),
]
SamplesOption = Annotated[
    int | None, typer.Option("--samples", metavar="N", help="Samples of each path: 5, some suites 3.")
]
CopiesOption = Annotated[
    int | None,
    typer.Option("--copies", metavar="N", help="Copies of the buffer in one sample; by default as many as take 20 ms."),
]
DurationOption = Annotated[
    float | None,
    typer.Option("--duration", metavar="SECONDS", help="Soak: measure everything again and again for this long."),
]
SerialOption = Annotated[
    bool, typer.Option("--serial", help="One pair at a time, also where pairs share neither GPU nor link.")
]
NoGateOption = Annotated[bool, typer.Option("--no-gate", help="Do not queue work behind a gate kernel: for profilers.")]
AllowBusyOption = Annotated[
    bool, typer.Option("--allow-busy", help="Measure GPUs that other processes use, and mark the results.")
]
MemoryOption = Annotated[
    int, typer.Option("--memory", metavar="PERCENT", help="How much of the free memory the buffers may take, 1 to 95.")
]
JournalOption = Annotated[
    Path | None,
    typer.Option(
        "--journal",
        metavar="DIR",
        help="Keep the run's journal in DIR; without it in ~/.local/state/egmctl/journal.",
    ),
]
NoJournalOption = Annotated[
    bool,
    typer.Option("--no-journal", help="Keep no journal: what a killed run has measured is then lost."),
]
TimeoutOption = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", help="Give up a step after this time and go on.")
]
ProfileOption = Annotated[
    str | None,
    typer.Option(
        "--profile",
        metavar="FILE|NAME",
        help="Judge by this profile, not by the one that matches; 'egmctl profile list' names them.",
    ),
]
NoVerdictOption = Annotated[bool, typer.Option("--no-verdict", help="Only measure: judge nothing.")]
StrictOption = Annotated[bool, typer.Option("--strict", help="End with 1 for warnings of the verdict too.")]
ListOption = Annotated[
    bool, typer.Option("--list", help="Show the cases, whether each would run here, and why not; measure nothing.")
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show the steps, the bytes, the memory and the time; measure nothing.")
]
RanksOption = Annotated[
    int | None,
    typer.Option(
        "--ranks",
        metavar="N",
        help="With --dry-run --suite fabric: what N GPUs cost, on nodes that are all like this machine.",
    ),
]
SampleOption = Annotated[
    int | None,
    typer.Option(
        "--sample",
        metavar="K",
        help="With --suite fabric: measure each GPU with K others, chosen at random, in place of all.",
    ),
]
