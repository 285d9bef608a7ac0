"""What a check is, and the short forms in which checks say what they found."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from egmctl.doctor.scope import Scope
from egmctl.model.finding import Finding, Guard, Remedy, Status, on_gpus
from egmctl.model.machine import Gpu, Machine, Reason, Record

Judge = Callable[[Machine, Scope], Iterable[Finding]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: a pure function of a machine, and what people may want to know of it."""

    id: str
    """Stable, ``area.what``: scripts and tickets name it."""
    title: str
    """What is checked, as a short noun phrase."""
    guards: tuple[Guard, ...]
    """What is at risk where it does not pass; ``--for`` chooses by them."""
    sections: tuple[str, ...]
    """Sections of the machine without which the check cannot say anything: the runner answers for it then.
    (Single values in them may still be ``None``, and recorded machines hold anything that their types allow.)"""
    wants: tuple[str, ...] = ()
    """Sections that the check reads too, and can do without: what it says then is its own."""
    judge: Judge
    """Yields at least one finding; a check that does not concern this machine yields a ``skip`` with why."""
    why: str
    """Why it matters, for ``--explain``: one to four sentences, with the source of the rule."""
    read: str
    """How it is read: files and calls, and what they cannot tell."""
    fix: str
    """What to do about it."""


def passed(summary: str, **more: Any) -> Finding:
    """It is as it should be."""
    return Finding(status=Status.PASS, summary=summary, **more)


def warned(summary: str, remedy: Remedy, **more: Any) -> Finding:
    """It works, with harm that was measured or is documented."""
    return Finding(status=Status.WARN, summary=summary, remedy=remedy, **more)


def noted(summary: str, **more: Any) -> Finding:
    """It is as somebody set it up, and something does not work because of that."""
    return Finding(status=Status.NOTE, summary=summary, **more)


def failed(summary: str, remedy: Remedy, **more: Any) -> Finding:
    """It does not work."""
    return Finding(status=Status.FAIL, summary=summary, remedy=remedy, **more)


def skipped(why: str, **more: Any) -> Finding:
    """It does not concern this machine."""
    return Finding(status=Status.SKIP, summary=why, **more)


def unknown(why: str, **more: Any) -> Finding:
    """It concerns this machine and is unknown."""
    return Finding(status=Status.UNKNOWN, summary=why, **more)


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
            why = record.unread.get(name)
            if why is None:
                return "" if newer else "not read"
            if why.reason not in nothing:
                return why.detail or why.reason.value
    return ""


def unreported(gpus: Sequence[Gpu], name: str, what: str, not_supported: str) -> Finding:
    """Return a finding on what NVML did not report of GPUs: a skip where they do not have it, else ``unknown``.

    Parameters
    ----------
    name
        Of the field of :class:`egmctl.model.gpu.GpuNvml`.
    what, not_supported
        What it is, and the sentence where the GPUs do not have it.
    """
    why = next((why for gpu in gpus if gpu.nvml and (why := gpu.nvml.unread.get(name))), None)
    if why is not None and why.reason is Reason.NOT_SUPPORTED:
        return skipped(not_supported, place=on_gpus(gpus))
    return unknown(f"{what}: NVML did not report it" + (f" ({why.reason.value})" if why else ""), place=on_gpus(gpus))
