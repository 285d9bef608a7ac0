"""Functions that make findings and evidence, and that explain missing facts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from egmctl.model.finding import NODE, Evidence, Finding, Place, Status, on_gpus
from egmctl.model.gpu import Gpu, GpuNvml
from egmctl.model.record import Reason, Record
from egmctl.model.remedy import Remedy

PlaceOrGpus = Place | Gpu | Iterable[Gpu]
"""The place of a finding, or the GPUs that it is about."""


def placed(target: PlaceOrGpus) -> Place:
    """Return the place of GPUs, the node if there are none; a place unchanged."""
    if isinstance(target, Place):
        return target
    gpus = (target,) if isinstance(target, Gpu) else tuple(target)
    return on_gpus(gpus) if gpus else NODE


def passed(summary: str, place: PlaceOrGpus = NODE, **more: Any) -> Finding:
    """Return a ``pass`` finding: the condition holds."""
    return Finding(status=Status.PASS, summary=summary, place=placed(place), **more)


def warned(summary: str, remedy: Remedy, place: PlaceOrGpus = NODE, **more: Any) -> Finding:
    """Return a ``warn`` finding: the feature works, with measured or documented harm."""
    return Finding(status=Status.WARN, summary=summary, remedy=remedy, place=placed(place), **more)


def noted(summary: str, place: PlaceOrGpus = NODE, **more: Any) -> Finding:
    """Return a ``note`` finding: a deliberate configuration disables something."""
    return Finding(status=Status.NOTE, summary=summary, place=placed(place), **more)


def failed(summary: str, remedy: Remedy, place: PlaceOrGpus = NODE, **more: Any) -> Finding:
    """Return a ``fail`` finding: the feature does not work."""
    return Finding(status=Status.FAIL, summary=summary, remedy=remedy, place=placed(place), **more)


def skipped(reason: str, place: PlaceOrGpus = NODE, **more: Any) -> Finding:
    """Return a ``skip`` finding: the check does not apply to this machine."""
    return Finding(status=Status.SKIP, summary=reason, place=placed(place), **more)


def unknown(sentence: str, place: PlaceOrGpus = NODE, **more: Any) -> Finding:
    """Return an ``unknown`` finding: the check applies, but lacks data."""
    return Finding(status=Status.UNKNOWN, summary=sentence, place=placed(place), **more)


def fact(source: str, value: object, errno: str | None = None) -> Evidence:
    """Return evidence; ``None`` as the value means that it was not read."""
    return Evidence(source=source, value="not read" if value is None else str(value), errno=errno)


def daemon_fact(daemons: tuple[str, ...] | None, name: str) -> Evidence:
    """Return as evidence whether a daemon is among the visible processes."""
    state = "runs" if name in (daemons or ()) else "not seen"
    return fact(f"/proc/*/comm: {name}", None if daemons is None else state)


def gap(record: Record | None, *names: str, newer: bool = False) -> str:
    """Return why a field was not read, for the first such field; empty if all were read or are not supported.

    Parameters
    ----------
    newer
        Whether older recordings lack the fields; if so, their absence is not reported.
    """
    ignored = {Reason.NOT_SUPPORTED, Reason.DRIVER_TOO_OLD} | ({Reason.NOT_STATED} if newer else set())
    for name in names:
        if record is None:
            return "not read"
        if getattr(record, name) is None:
            unread = record.unread.get(name)
            if unread is None:
                return "" if newer else "not read"
            if unread.reason not in ignored:
                return unread.detail or unread.reason.value
    return ""


def unreported(nvml: GpuNvml, name: str, label: str, not_supported: str) -> Finding:
    """Return a finding on a field that NVML did not report: ``skip`` if the GPU does not support it, else ``unknown``.

    Parameters
    ----------
    label, not_supported
        The name of the field in output, and the summary if the GPU does not support it.
    """
    unread = nvml.unread.get(name)
    if unread is not None and unread.reason is Reason.NOT_SUPPORTED:
        return skipped(not_supported)
    return unknown(f"{label}: NVML did not report it" + (f" ({unread.reason.value})" if unread else ""))
