"""Messages by UCX: what they reached between which kinds of memory, and which way UCX took."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from egmctl.model.measurement import Engine, Measurement, MemoryKind, Quantity, Status
from egmctl.model.ucx import UcxStaging
from egmctl.report.document import Cell, Matrix, Series
from egmctl.report.views.bench_cells import columns_of, tone_of
from egmctl.units import format_size, printable

_MEMORY = {MemoryKind.DEVICE: "device", MemoryKind.HOST_NUMA: "HOST_NUMA", MemoryKind.PINNED: "pinned"}

_STAGED = {None: "", UcxStaging.HOST: ", host-staged", UcxStaging.GPU: ", GPU-staged"}


def messages(measurements: Sequence[Measurement]) -> Iterator[Matrix]:
    """Yield one table of bandwidths and one of round trips; neither holds what was waived."""
    there = [m for m in measurements if m.status is not Status.WAIVED]
    columns: dict[str, Callable[[Measurement], str]]
    for engine in (Engine.UCX_PUT, Engine.UCX_GET):
        if one_sided := [m for m in there if m.engine is engine]:
            word = "put" if engine is Engine.UCX_PUT else "got"
            columns = {"size": lambda m: format_size(m.size_bytes), "GB/s": _gb_s, "register us": _register_us}
            yield _grid(f"Memory {word} one-sided by UCX (GB/s)", one_sided, columns)
    if bandwidths := [m for m in there if m.quantity is Quantity.BANDWIDTH and m.engine is Engine.UCX]:
        sizes = {m.size_bytes for m in bandwidths}
        columns = {"GB/s": _gb_s}
        if len(sizes) > 1:
            columns = {"size": lambda m: format_size(m.size_bytes)} | columns
        of = "" if len(sizes) > 1 else f" of {format_size(bandwidths[0].size_bytes)}"
        yield _grid(f"Messages{of} by UCX (GB/s)", bandwidths, columns)
        if by_device := [m for m in bandwidths if m.ucx is not None and m.ucx.devices]:
            yield _devices(by_device)
    if latencies := [m for m in there if m.quantity is Quantity.LATENCY]:
        size = latencies[0].chase.stride_bytes if latencies[0].chase else 0
        yield _grid(f"Round trips of {size} bytes by UCX (us)", latencies, {"median": _us, "p99": _p99})


def _grid(caption: str, those: Sequence[Measurement], columns: Mapping[str, Callable[[Measurement], str]]) -> Matrix:
    shown: dict[str, Callable[[Measurement], str]] = {
        "from": lambda m: _MEMORY[m.flows[0].source.memory],
        "to": lambda m: _MEMORY[m.flows[0].destination.memory],
        **columns,
        "way": _way,
    }
    return Matrix(
        caption=caption,
        notes=tuple(_verdicts(those)),
        rows=_paths(those),
        groups=tuple(
            (Series(header=(name,), cells=tuple(Cell(text=text(m), tone=tone_of(m)) for m in those)),)
            for name, text in shown.items()
        ),
    )


def _devices(those: Sequence[Measurement]) -> Matrix:
    """Return what each network device of a sender reaches alone: the nearest NIC and what farther ones cost."""
    found = [(m, device) for m in those if m.ucx is not None for device in m.ucx.devices]
    columns = {
        "memory": [_MEMORY[m.flows[0].source.memory] for m, _ in found],
        "by": [device.name for _, device in found],
        "distance": [device.distance or "-" for _, device in found],
        "GB/s": ["-" if d.bandwidth_gb_s is None else f"{d.bandwidth_gb_s:.2f}" for _, d in found],
    }
    return Matrix(
        caption="Messages by one network device of the sender, one sample (GB/s)",
        rows=_paths([m for m, _ in found]),
        groups=columns_of(columns),
    )


def _paths(those: Sequence[Measurement]) -> tuple[str, ...]:
    """Name each by its ranks; where the receiver sends nothing, it is named by its memory."""
    flows = [m.flows[0] for m in those]
    known = {flow.initiator_rank: flow.initiator_label for flow in flows}
    return tuple(
        " -> ".join(known.get(end.rank, end.label) for end in (flow.source, flow.destination)) for flow in flows
    )


def _verdicts(those: Sequence[Measurement]) -> Iterator[str]:
    """Yield each verdict once, with the way that it is about as the table has it."""
    about = {m.ucx.verdict: _way(m) for m in those if m.ucx is not None}
    for verdict, way in about.items():
        yield printable(f"{way}: {verdict}" if len(about) > 1 else verdict)


def _way(measurement: Measurement) -> str:
    found = measurement.ucx
    return "-" if found is None else f"{found.route}{_STAGED[found.staging]}"


def _gb_s(measurement: Measurement) -> str:
    found = measurement.bandwidth_gb_s
    return _marked(measurement, None if found is None else f"{found.median:.2f}")


def _register_us(measurement: Measurement) -> str:
    """Return the dearer side's: the cheaper one's memory may have been registered before."""
    found = [stage.ms.max for stage in measurement.stages if stage.name == "register"]
    return f"{1e3 * found[0]:.0f}" if found else "-"


def _us(measurement: Measurement) -> str:
    found = measurement.latency_ns
    return _marked(measurement, None if found is None else f"{found.median / 1e3:.1f}")


def _p99(measurement: Measurement) -> str:
    found = [sample.p99_ns for sample in measurement.samples if sample.p99_ns is not None]
    return f"{max(found) / 1e3:.1f}" if found else "-"


def _marked(measurement: Measurement, number: str | None) -> str:
    if number is None or not measurement.measured:
        return measurement.status.value
    return f"{number}{'*' * (measurement.status is Status.UNSTABLE)}"
