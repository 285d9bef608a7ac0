"""What the doctor is asked, and its diagnosis of a machine."""

from __future__ import annotations

import re
from collections.abc import Sequence

from egmctl.doctor.check import Expectation, Scope, expectation
from egmctl.doctor.checks.active import kinds_of
from egmctl.doctor.probes import OnProbe, probed
from egmctl.doctor.runner import diagnose, select
from egmctl.errors import UsageError
from egmctl.facts.redact import redact
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import Guard
from egmctl.model.machine import Machine
from egmctl.selectors import select_gpus, select_numa
from egmctl.units import printable

ALWAYS = ("host", "gpus", "driver", "process", "confinement")
"""The sections that selectors, the platform and the causes of findings need, whatever is checked."""


class Doctor:
    """Checks of a machine: what stops EGM, P2P, IPC, fabric handles and GPUDirect RDMA there.

    Parameters
    ----------
    purposes
        What has to work, as ``--for``: ``"egm,fabric"``; ``None`` is everything.
    gpus, numa
        Which GPUs and NUMA nodes, as ``--gpus`` and ``--numa``. What is named has to work; ``None`` is all that are
        there.
    check, skip
        Ids of checks, also with wildcards; only those, or all but those.
    expect
        What should be there, as ``--expect``: ``"gpus=8,nics=4"`` or a machine.
    since
        How far back the kernel's log counts: ``"boot"``, ``"30m"``, ``"2h"``, ``"1d"``.
    strict
        Whether warnings and notes are failures.

    Raises
    ------
    UsageError
        If an option names what there is not.
    """

    def __init__(
        self,
        *,
        purposes: str | None = None,
        gpus: str | None = None,
        numa: str | None = None,
        check: Sequence[str] = (),
        skip: Sequence[str] = (),
        expect: str | None = None,
        since: str | None = None,
        strict: bool = False,
    ) -> None:
        self._purposes = purposes_of(purposes)
        self._expectation: Expectation | None = None if expect is None else expectation(expect)
        self._since_s = _since(since)
        self._gpus, self._numa, self._strict = gpus, numa, strict
        self.checks = select(self._purposes, check, skip)
        """What is checked, in its order."""

    @property
    def sections(self) -> tuple[str, ...]:
        """What :func:`egmctl.read_machine` has to read for these checks."""
        needed = (section for check in self.checks for section in (*check.sections, *check.wants))
        return tuple(dict.fromkeys((*ALWAYS, *needed)))

    def probe(self, machine: Machine, *, on_probe: OnProbe | None = None) -> Machine:
        """Return this node with what the active probes found, as ``--active``: they try EGM memory, copies and IPC.

        Needs idle GPUs, and takes seconds; each probe runs in a child process.

        Parameters
        ----------
        on_probe
            Is told before each probe which part of all is over, from 0 to 1, and what is tried next.
        """
        return probed(machine, self.scope(machine), kinds_of(self.checks), on_probe)

    def diagnose(self, machine: Machine, *, redacted: bool = False) -> Diagnosis:
        """Return the findings: the record of the schema ``egmctl.doctor/1``. Reads nothing but the machine.

        Parameters
        ----------
        redacted
            Whether names, serial numbers and UUIDs become pseudonyms, for what leaves the site.

        Raises
        ------
        UsageError
            If the machine has no GPU or NUMA node that was named.
        """
        scope = self.scope(machine)
        return diagnose(redact(machine) if redacted else machine, scope, self.checks, strict=self._strict)

    def scope(self, machine: Machine) -> Scope:
        """Return the GPUs, NUMA nodes and purposes that the findings are about."""
        chosen = None if self._gpus is None else select_gpus(self._gpus, machine.gpus or ())
        return Scope(
            gpus=None if chosen is None else tuple(gpu.bus_id for gpu in chosen),
            numa=None if self._numa is None else select_numa(self._numa, machine, chosen),
            purposes=self._purposes,
            expectation=self._expectation,
            since_s=self._since_s,
        )


def purposes_of(text: str | None) -> tuple[Guard, ...] | None:
    """Return the purposes that ``--for`` names; ``None`` where it was not given.

    Raises
    ------
    UsageError
        If there is no such purpose.
    """
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if word not in set(Guard):
            raise UsageError(f"--for {printable(word[:40])!r}: no such purpose; valid are {', '.join(Guard)}")
    return tuple(guard for guard in Guard if guard in words)


def _since(text: str | None) -> float | None:
    """Return the seconds that ``--since`` names; ``None`` for this boot."""
    if text is None or text == "boot":
        return None
    match = re.fullmatch(r"([0-9]{1,6})([smhd])", text, re.ASCII)
    if match is None:
        raise UsageError(f"--since {printable(text[:40])!r}: give boot, or a number with s, m, h or d: 30m, 2h, 1d")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]
