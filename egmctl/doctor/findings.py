"""Findings, evidence and remedies in one line each, and the reason why a fact is missing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from egmctl.model.finding import NODE, Evidence, Finding, Place, Remedy, Status, on_gpus
from egmctl.model.gpu import Gpu, GpuNvml
from egmctl.model.record import Reason, Record

Where = Place | Gpu | Iterable[Gpu]
"""The place of a finding, or the GPUs that it is about."""


def placed(where: Where) -> Place:
    """Return the place of GPUs; the node where there are none."""
    if isinstance(where, Place):
        return where
    gpus = (where,) if isinstance(where, Gpu) else tuple(where)
    return on_gpus(gpus) if gpus else NODE


def passed(summary: str, place: Where = NODE, **more: Any) -> Finding:
    """It is as it should be."""
    return Finding(status=Status.PASS, summary=summary, place=placed(place), **more)


def warned(summary: str, remedy: Remedy, place: Where = NODE, **more: Any) -> Finding:
    """It works, with harm that was measured or is documented."""
    return Finding(status=Status.WARN, summary=summary, remedy=remedy, place=placed(place), **more)


def noted(summary: str, place: Where = NODE, **more: Any) -> Finding:
    """It is as somebody set it up, and something does not work because of that."""
    return Finding(status=Status.NOTE, summary=summary, place=placed(place), **more)


def failed(summary: str, remedy: Remedy, place: Where = NODE, **more: Any) -> Finding:
    """It does not work."""
    return Finding(status=Status.FAIL, summary=summary, remedy=remedy, place=placed(place), **more)


def skipped(reason: str, place: Where = NODE, **more: Any) -> Finding:
    """It does not concern this machine."""
    return Finding(status=Status.SKIP, summary=reason, place=placed(place), **more)


def unknown(sentence: str, place: Where = NODE, **more: Any) -> Finding:
    """It concerns this machine and is unknown."""
    return Finding(status=Status.UNKNOWN, summary=sentence, place=placed(place), **more)


def fact(source: str, value: object, errno: str | None = None) -> Evidence:
    """Return evidence; a value of ``None`` was not read."""
    return Evidence(source=source, value="not read" if value is None else str(value), errno=errno)


def daemon_fact(daemons: tuple[str, ...] | None, name: str) -> Evidence:
    """Return as evidence whether a daemon is among the processes, as far as they are visible."""
    return fact(f"/proc/*/comm: {name}", None if daemons is None else "runs" if name in daemons else "not seen")


def todo(text: str, command: str | None = None) -> Remedy:
    """Return a remedy that needs no rights."""
    return Remedy(text=text, command=command)


def as_root(text: str, command: str | None = None, *, reboot: bool = False) -> Remedy:
    """Return a remedy for root."""
    return Remedy(text=text, command=command, needs_root=True, needs_reboot=reboot)


def without_option(option: str) -> Remedy:
    """Return the remedy against an option of the driver's module."""
    return as_root(f"Take {option} out of /etc/modprobe.d and reload the driver.", reboot=True)


def gap(record: Record | None, *names: str, newer: bool = False) -> str:
    """Return why the first of these fields was not read; empty where all were, or there is no such thing to read.

    Parameters
    ----------
    newer
        Fields that recordings of before them do not state: there nobody could look at them.
    """
    nothing = {Reason.NOT_SUPPORTED, Reason.DRIVER_TOO_OLD} | ({Reason.NOT_STATED} if newer else set())
    for name in names:
        if record is None:
            return "not read"
        if getattr(record, name) is None:
            unread = record.unread.get(name)
            if unread is None:
                return "" if newer else "not read"
            if unread.reason not in nothing:
                return unread.detail or unread.reason.value
    return ""


def unreported(nvml: GpuNvml, name: str, label: str, not_supported: str) -> Finding:
    """Return a finding on a field that NVML did not report: a skip where the GPU does not have it, else ``unknown``.

    Parameters
    ----------
    label, not_supported
        The name of the field for people, and the sentence where the GPU does not have it.
    """
    unread = nvml.unread.get(name)
    if unread is not None and unread.reason is Reason.NOT_SUPPORTED:
        return skipped(not_supported)
    return unknown(f"{label}: NVML did not report it" + (f" ({unread.reason.value})" if unread else ""))
