"""``egmctl watch`` shows live which link of each GPU carries traffic: a table that changes, or a block per sample."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Annotated

import typer

from egmctl.api.options import TopoOptions
from egmctl.cli.options import NO_LEVELS, refuse_together, takes_options
from egmctl.cli.output import (
    OutputOptions,
    Target,
    colored,
    discard_stdout,
    emit,
    is_terminal,
    terminal_is_closed,
)
from egmctl.errors import ExitCode, UsageError
from egmctl.report.kinds import WATCH, Format


@takes_options(WATCH.formats, without=(*NO_LEVELS, "numa", "output", "force", "quiet"))
def watch(
    options: TopoOptions,
    output: OutputOptions,
    interval: Annotated[float, typer.Option(metavar="SECONDS", help="Time between two samples.")] = 1.0,
    count: Annotated[int | None, typer.Option(metavar="N", min=1, help="End after N samples.")] = None,
    once: Annotated[bool, typer.Option("--once", help="End after one sample.")] = False,
    replay: Annotated[str | None, typer.Option("--machine", hidden=True)] = None,
) -> int:
    """Show the live traffic of each GPU's NVLink, NVLink-C2C and PCIe, against the links' rates, until Ctrl-C.

    It is read from NVML, beside running jobs, and is that of all processes together. --json writes one document per
    line.
    """
    if replay is not None:
        raise UsageError("--machine: a recorded machine has no traffic; watch shows only the node that it runs on")
    # NVML's GPM needs more than 100 ms (nvml.h), and PCIe is read for 20 ms.
    if not 0.2 <= interval <= 3600:
        raise UsageError(f"--interval {interval:g}: valid are 0.2 to 3600 seconds")
    refuse_together({"--once": once, "--count": count is not None})

    from egmctl.api.machine import traffic
    from egmctl.report.exports.json import result_json

    live, target = None, Target(format=Format.TEXT, file=None)
    with _until_closed(), contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
        samples = stack.enter_context(contextlib.closing(traffic(options.gpus, interval)))
        if not output.json and is_terminal(sys.stdout) and colored(sys.stdout, output.color):
            from rich.live import Live

            live = stack.enter_context(Live(auto_refresh=False))
        for sample in islice(samples, 1 if once else count):
            if terminal_is_closed(sys.stdout):
                break
            if live is not None:
                live.update(target.draw(sample), refresh=True)
            elif not emit(result_json(sample, None) if output.json else target.draw(sample) + "\n", color=output.color):
                break
    return ExitCode.OK


@contextlib.contextmanager
def _until_closed() -> Iterator[None]:
    """End the ``with`` block quietly if it cannot write because its terminal is closed.

    The terminal's SIGHUP ends the block, or nothing does if it is ignored (``nohup``). The table is drawn once more
    at its end, which fails.
    """
    try:
        yield
    except OSError:
        if not terminal_is_closed(sys.stdout):
            raise
    if terminal_is_closed(sys.stdout):
        discard_stdout()
