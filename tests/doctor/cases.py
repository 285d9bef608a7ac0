"""Tables of what single checks find: a machine, what is asked of it, and the verdict in words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from egmctl.doctor.check import EVERYTHING, Scope
from egmctl.model.finding import Finding, Guard
from egmctl.model.machine import Machine
from tests.doctor.machines import run


class Case(NamedTuple):
    """A check, a machine and what is asked of it."""

    check: str
    machine: Machine
    verdict: str
    """As :func:`verdicts` has it."""
    words: tuple[str, ...]
    """Words that one finding tells of."""
    at: str
    """The place of that finding; empty for the first one."""
    without: str
    """A word that no finding tells of; empty for none."""
    scope: Scope

    def holds(self) -> None:
        """Fail where the check finds something else."""
        verdict = verdicts(self.check, self.machine, self.scope)
        assert verdict == self.verdict, verdict
        findings = run(self.check, self.machine, self.scope)
        sentences = words_of(next(finding for finding in findings if self.at in ("", finding.place.label)))
        assert [word for word in self.words if word not in sentences] == [], sentences
        assert not self.without or self.without not in " | ".join(map(words_of, findings))


def case(
    name: str,
    check: str,
    machine: Machine,
    verdict: str,
    *words: str,
    at: str = "",
    without: str = "",
    scope: Scope = EVERYTHING,
) -> object:
    """Return a row of a table for ``pytest.mark.parametrize("case", ...)``."""
    return pytest.param(Case(check, machine, verdict, words, at, without, scope), id=name)


def rows_of(check: str) -> Callable[..., object]:
    """Return what :func:`case` does, for a table of one check: it takes the same arguments without the check."""

    def row(name: str, machine: Machine, verdict: str, *words: str, **more: Any) -> object:
        return case(name, check, machine, verdict, *words, **more)

    return row


def verdicts(check: str, machine: Machine, scope: Scope = EVERYTHING) -> str:
    """Return what a check finds: ``fail GPU1; pass GPU0,2-3``, of the node the status alone."""
    return "; ".join(f"{finding.status} {finding.place.label}".strip() for finding in run(check, machine, scope))


def words_of(finding: Finding) -> str:
    """Return all that a finding says."""
    remedy = [finding.remedy.text, finding.remedy.look or "", finding.remedy.run or ""] if finding.remedy else []
    evidence = [f"{item.source}: {item.value}" for item in finding.evidence]
    sentences = (finding.summary, finding.cause, f"{finding.confidence} confidence", finding.note)
    return " | ".join((*sentences, *remedy, *evidence))


def asked(*purposes: Guard) -> Scope:
    """Return what ``--for`` asks."""
    return Scope(purposes=purposes)
