"""``egmctl watch`` shows live which link of each GPU carries traffic: a table that changes, or a block per sample."""

from __future__ import annotations

import contextlib
import math
import sys
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from egmctl.api.options import TopoOptions
from egmctl.cli.options import refuse_together, takes_options
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
from egmctl.report.kinds import WATCH, Format, Order, rendered

if TYPE_CHECKING:
    from rich.text import Text

    from egmctl.model.machine import TrafficSample

_MINUTE_S, _COLUMNS = 60, 20
"""The time that a terminal shows, and the largest number of characters for it."""


@takes_options(WATCH.formats, without=("verbose", "numa", "output", "force", "quiet"))
def watch(
    options: TopoOptions,
    output: OutputOptions,
    interval: Annotated[float, typer.Option(metavar="SECONDS", help="Time between two samples.")] = 1.0,
    count: Annotated[int | None, typer.Option(metavar="N", min=1, help="End after N samples.")] = None,
    once: Annotated[bool, typer.Option("--once", help="End after one sample.")] = False,
    sort: Annotated[
        Order, typer.Option(metavar="gpu|load|memory|nvlink|c2c|pcie", help="The GPUs with the most of it first.")
    ] = Order.GPU,
    replay: Annotated[str | None, typer.Option("--machine", hidden=True)] = None,
) -> int:
    """Show the live traffic of each GPU's NVLink, NVLink-C2C and PCIe, against the links' rates, until Ctrl-C.

    It is read from NVML, beside running jobs, and is that of all processes together. A terminal shows the last minute,
    too. --json writes one document per line, --format prom metrics for Prometheus.
    """
    if replay is not None:
        raise UsageError("--machine: a recorded machine has no traffic; watch shows only the node that it runs on")
    # NVML's GPM needs more than 100 ms (nvml.h), and PCIe is read for 20 ms.
    if not 0.2 <= interval <= 3600:
        raise UsageError(f"--interval {interval:g}: valid are 0.2 to 3600 seconds")
    refuse_together({"--once": once, "--count": count is not None})

    from egmctl.api.machine import traffic
    from egmctl.report.exports.json import result_json
    from egmctl.report.views.watch import watch_document

    target = Target(format=output.chosen(WATCH.formats).targets[0].format, file=None)
    live, (samples_kept, each) = None, history_scale(interval)
    minute: deque[TrafficSample] = deque(maxlen=samples_kept)

    def shown(sample: TrafficSample) -> Text | str:
        if target.format is not Format.TEXT:
            return target.draw(sample)
        minute.append(sample)
        earlier = minute if live is not None else ()
        document = watch_document(sample, earlier, each=each, interval_s=interval, order=sort)
        return rendered(document, Format.TEXT, width=target.width)

    with _until_closed(), contextlib.suppress(KeyboardInterrupt), contextlib.ExitStack() as stack:
        samples = stack.enter_context(contextlib.closing(traffic(options.gpus, interval)))
        if target.format is Format.TEXT and is_terminal(sys.stdout) and colored(sys.stdout, output.color):
            from rich.live import Live

            live = stack.enter_context(Live(auto_refresh=False))
        for sample in islice(samples, 1 if once else count):
            if terminal_is_closed(sys.stdout):
                break
            if live is not None:
                live.update(shown(sample), refresh=True)
            elif not emit(
                result_json(sample, None) if target.format is Format.JSON else shown(sample) + "\n", color=output.color
            ):
                break
    return ExitCode.OK


def history_scale(interval_s: float) -> tuple[int, int]:
    """Return the number of samples in a minute, at least 1, and how many of them a character stands for."""
    in_a_minute = max(1, int(_MINUTE_S / interval_s))
    return in_a_minute, math.ceil(in_a_minute / _COLUMNS)


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
