"""The view of one sample of traffic: which link of which GPU carries most, then all links of all GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from egmctl.model.machine import GpuTraffic, LinkTraffic, TrafficSample
from egmctl.report import document as doc
from egmctl.report.document import Cell, Level, Tone
from egmctl.report.kinds import Order
from egmctl.units import GIB, counted, format_kernel_list, gpu_name, grouped, listed

_NAMES = {"nvlink": "NVLink", "c2c": "C2C", "pcie": "PCIe"}
_KEYS = {**{f"links.{kind}": _NAMES[kind] for kind in _NAMES}, "busy_percent": "load", "memory_used_bytes": "memory"}
_WAYS = {"out": "sent", "in": "received"}
_IDLE_GB_S = 0.05
"""The rate below which a link is called idle. Chosen: launches and monitoring alone stay below it."""
_NOTE = (
    "NVLink, C2C: since the last sample. PCIe: 20 ms, as its counters have 32 bits; they count protocol too, so its "
    "data is an estimate. Per GPU, by all processes."
)
_ABOVE = "A share above 100 %: no link carries more than its rate, so the rate or the time of a reading is wrong."


def watch_document(
    sample: TrafficSample,
    earlier: Sequence[TrafficSample] = (),
    *,
    each: int = 1,
    interval_s: float = 1.0,
    order: Order = Order.GPU,
) -> doc.Document:
    """Return the links that carry traffic, a table of all links and the load of each GPU, and what is unknown.

    Parameters
    ----------
    earlier
        The samples of the last minute, the oldest first and this one last; a second table draws them.
    each
        The number of samples that a character of that table stands for.
    interval_s
        The time between two samples in seconds.
    """
    if order is not Order.GPU:
        sample = replace(sample, gpus=tuple(sorted(sample.gpus, key=lambda gpu: -_amount_of(gpu, order))))
    answer = doc.Paragraph("; ".join(_answer(sample.gpus)), Tone.STRONG, level=Level.SUMMARY)
    table = doc.grid(
        f"{sample.taken_at}, {counted(gpu_name(gpu.name) for gpu in sample.gpus)}",
        ((f"GPU{gpu.index}", dict(_row(gpu))) for gpu in sample.gpus),
        notes=("GB/s out of and into each GPU, and their share of the rate of its links",),
        after=(*_above(sample.gpus), *_unknown(sample.gpus)),
    )
    minute = (_minute(sample, earlier, each, interval_s),) if len(earlier) > 1 else ()
    body: tuple[doc.DocumentBlock, ...] = (answer, table, *minute, doc.Paragraph(_NOTE, Tone.DIM))
    return doc.Document(body=body)


def _amount_of(gpu: GpuTraffic, order: Order) -> float:
    """Return the number by which a GPU is sorted; what is unknown comes last."""
    if order is Order.LOAD:
        return -1 if gpu.busy_percent is None else gpu.busy_percent
    if order is Order.MEMORY:
        return -1 if gpu.memory_used_bytes is None else gpu.memory_used_bytes
    link = gpu.links.get(order.value)
    return -1 if link is None else max(link.sent_gb_s, link.received_gb_s)


def _minute(sample: TrafficSample, earlier: Sequence[TrafficSample], each: int, interval_s: float) -> doc.Matrix:
    """Return the table of the last minute: for each GPU and kind of link a line of bars, the newest at its end."""
    gpus_of_samples = [{gpu.bus_id: gpu for gpu in sample.gpus} for sample in earlier]
    ends = range(len(gpus_of_samples), 0, -each)
    columns = [gpus_of_samples[max(end - each, 0) : end] for end in ends][::-1]
    rows = []
    for gpu in sample.gpus:
        links = {
            _NAMES[kind]: Cell(
                "".join(
                    _bar([gpus[gpu.bus_id].links.get(kind) for gpus in column if gpu.bus_id in gpus])
                    for column in columns
                )
            )
            for kind in gpu.links
        }
        rows.append((f"GPU{gpu.index}", links))
    note = f"a bar: {each * interval_s:g} s, the busier direction; full height: the rate of the links"
    return doc.grid("The last minute", rows, notes=(note,), together=True)


def _bar(links: Sequence[LinkTraffic | None]) -> str:
    """Return the bar of the busiest of some samples in eighths of its rate; ``?`` if unknown."""
    shares = [
        max(link.sent_gb_s, link.received_gb_s) / link.rate_gb_s
        for link in links
        if link is not None and link.rate_gb_s
    ]
    return _EIGHTHS[min(round(8 * max(shares) + 0.49), 8)] if shares else "?"


_EIGHTHS = "\N{LOW LINE}▁▂▃▄▅▆▇█"


def _answer(gpus: Sequence[GpuTraffic]) -> Iterator[str]:
    """Yield clauses on lost GPUs, on the busiest GPU of each kind of link, on idle kinds, and on unknown ones."""
    if lost := [gpu.index for gpu in gpus if gpu.lost]:
        yield f"GPU{format_kernel_list(lost)} lost"
    links = [(gpu.index, _NAMES[kind], link) for gpu in gpus if not gpu.lost for kind, link in gpu.links.items()]
    flows = (
        (getattr(link, f"{field}_gb_s"), index, f"{name} {way}", name, getattr(link, f"{field}_data_gb_s"), link)
        for index, name, link in links
        if link is not None
        for way, field in _WAYS.items()
    )
    busiest = {flow[3]: flow for flow in sorted(flows, key=lambda flow: flow[:3])}
    busy = sorted((flow for flow in busiest.values() if flow[0] >= _IDLE_GB_S), key=lambda flow: flow[:3], reverse=True)
    for gb_s, index, way, _, data_gb_s, link in busy:
        data = "" if data_gb_s is None else f" (data: about {_amount(data_gb_s)})"
        yield f"GPU{index}: {_amount(gb_s)} GB/s over {way}{data}, {_of_rate(gb_s, link.rate_gb_s)}"
    if idle := [name for name in _NAMES.values() if name in busiest and busiest[name][0] < _IDLE_GB_S]:
        yield f"{listed(idle)} idle"
    for name, unread in grouped((name, index) for index, name, link in links if link is None).items():
        where = f" on GPU{format_kernel_list(unread)}" if name in busiest else ""
        yield f"{name} unknown{where}"


def _of_rate(gb_s: float, rate_gb_s: float | None) -> str:
    if not rate_gb_s:
        return "of an unknown rate"
    share = _percent(gb_s, rate_gb_s)
    return f"{share} % of {_amount(rate_gb_s)} GB/s" + (", more than the link carries" if share > 100 else "")


def _above(gpus: Sequence[GpuTraffic]) -> Iterator[str]:
    """Yield a sentence if a share is above 100 %."""
    rates = [
        (max(link.sent_gb_s, link.received_gb_s), link.rate_gb_s) for gpu in gpus for link in gpu.links.values() if link
    ]
    if any(rate_gb_s and _percent(gb_s, rate_gb_s) > 100 for gb_s, rate_gb_s in rates):
        yield _ABOVE


def _unknown(gpus: Sequence[GpuTraffic]) -> Iterator[str]:
    """Yield a sentence for each reason why something is unknown, with its GPUs and links."""
    unread = [(gpu.index, name, gpu.unread[key]) for gpu in gpus for key, name in _KEYS.items() if key in gpu.unread]
    reasons = grouped(((index, gap.detail or gap.reason.value), name) for index, name, gap in unread)
    causes = grouped(((detail, tuple(names)), index) for (index, detail), names in reasons.items())
    for (detail, names), indices in causes.items():
        yield f"GPU{format_kernel_list(indices)}: {listed(names)} unknown: {detail}"


def _row(gpu: GpuTraffic) -> Iterator[tuple[tuple[str, ...], str | Cell]]:
    """Yield the headings and cells of a GPU."""
    used, total = gpu.memory_used_bytes, gpu.memory_total_bytes
    yield ("load",), "?" if gpu.busy_percent is None else f"{gpu.busy_percent} %"
    yield ("memory", "GiB"), "?" if used is None or total is None else f"{used / GIB:.0f}/{total / GIB:.0f}"
    for kind, link in gpu.links.items():
        for way, field in _WAYS.items():
            gb_s = getattr(link, f"{field}_gb_s", 0.0)
            share = f"{_percent(gb_s, link.rate_gb_s):4}%" if link and link.rate_gb_s else ""
            text = f"{_amount(gb_s)}{share}" if link else "?"
            yield (_NAMES[kind], way), Cell(text, Tone.STRONG if gb_s >= _IDLE_GB_S else Tone.PLAIN)


def _percent(gb_s: float, rate_gb_s: float) -> int:
    return round(100 * gb_s / rate_gb_s)


def _amount(gb_s: float) -> str:
    return f"{gb_s:.1f}" if gb_s < 10 else f"{gb_s:.0f}"
