"""The doctor: its options, and its diagnosis of a machine."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property

from egmctl.api.options import DoctorOptions, documented, select_gpus, select_numa
from egmctl.dataclass import dataclass
from egmctl.doctor.assumed import completed
from egmctl.doctor.check import Check, Expectation, Scope, expectation
from egmctl.doctor.checks.active import kinds_of
from egmctl.doctor.expected import unjudged
from egmctl.doctor.explain import diagnosis_of, explain_failures, failures_of
from egmctl.doctor.prober import Prober
from egmctl.doctor.probes import OnProbe, probed, started
from egmctl.doctor.runner import diagnose, select
from egmctl.driver.reading import read_or
from egmctl.errors import UsageError
from egmctl.facts.gpus import is_gpu, nvidia_functions
from egmctl.facts.redact import redact
from egmctl.facts.root import Root
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.explanation import ErrorLog, Explanations
from egmctl.model.finding import Guard
from egmctl.model.machine import Machine
from egmctl.units import printable
from egmctl.verdict.answers import answered

ALWAYS = ("host", "gpus", "driver", "process", "confinement")
"""The sections that --gpus and --numa, the platform and the causes of findings need, independent of the checks."""


@documented
@dataclass(frozen=True, kw_only=True)
class Doctor(DoctorOptions):
    """A set of checks for what stops EGM, P2P, IPC, fabric handles and GPUDirect RDMA on a machine.

    Raises
    ------
    UsageError
        If an option names something that does not exist.
    """

    def __post_init__(self) -> None:
        _ = self.checks

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """The selected checks, in the order in which they run."""
        return self._judging(select(self._scope.purposes, self.check, self.skip))

    def _judging(self, selected: tuple[Check, ...]) -> tuple[Check, ...]:
        """Return the selected checks; refuse them if none judges a word of ``--expect``."""
        left_out = unjudged(self._scope.expectation, [check.id for check in selected])
        if left_out is not None:
            word, judges = left_out
            raise UsageError(
                f"--expect {word}: no selected check judges it ({', '.join(judges)}): select one with --for or "
                "--check, or leave out --for, --check and --skip"
            )
        return selected

    @cached_property
    def _scope(self) -> Scope:
        """The part of the scope that does not depend on the machine."""
        return Scope(
            purposes=purposes_of(self.purposes),
            expectation=Expectation() if self.expect is None else expectation(self.expect),
            since_s=_since(self.since),
        )

    @property
    def sections(self) -> tuple[str, ...]:
        """The sections that :func:`egmctl.read_machine` has to read for these checks."""
        return sections_for_checks(self.checks)

    def probe(self, machine: Machine, *, on_probe: OnProbe | None = None, waiting: Sequence[Prober] = ()) -> Machine:
        """Run the active probes (``--active``) of EGM memory, copies and IPC; return this node with their results.

        Needs idle GPUs, and takes seconds; each probe runs in a child process.

        Parameters
        ----------
        on_probe
            Called before each probe with the completed part of all probes, 0 to 1, and the probe.
        waiting
            Processes for the probes that :meth:`probing_processes` has started.
        """
        return probed(machine, self.scope(machine), kinds_of(self.checks), on_probe, waiting)

    def probing_processes(self) -> AbstractContextManager[list[Prober]]:
        """Start the processes of the active probes, and end them with the ``with`` block.

        They initialise CUDA at the same time as this node is read. Start to read it first: the reading must record
        which device nodes are missing before CUDA creates them.
        """
        functions = read_or((), lambda: nvidia_functions(Root.from_environment()))
        present = sum(is_gpu(function) for function in functions)
        # Which GPUs are selected is known only when the machine has been read.
        return started(present if self.gpus is None else min(present, 1), kinds_of(self.checks))

    def diagnose(self, machine: Machine, *, redacted: bool = False) -> Diagnosis:
        """Return the findings as the record of the schema ``egmctl.doctor/1``, based only on ``machine``.

        Parameters
        ----------
        redacted
            Whether names, serial numbers and UUIDs become pseudonyms, for documents that leave the site.

        Raises
        ------
        UsageError
            If the machine lacks a selected GPU or NUMA node.
        """
        scope = self.scope(machine)
        node = redact(machine) if redacted else machine
        return answered(diagnose(node, scope, self.checks, completed=completed(node), strict=self.strict))

    def scope(self, machine: Machine) -> Scope:
        """Return the scope of the findings: GPUs, NUMA nodes, purposes, expected hardware and age of messages."""
        chosen = None if self.gpus is None else select_gpus(self.gpus, machine.gpus or ())
        return replace(
            self._scope,
            gpus=None if chosen is None else tuple(gpu.bus_id for gpu in chosen),
            numa=None if self.numa is None else select_numa(self.numa, machine, chosen),
        )


def sections_for_checks(checks: Sequence[Check]) -> tuple[str, ...]:
    """Return the sections that :func:`egmctl.read_machine` has to read for some checks."""
    needed = (section for check in checks for section in (*check.sections, *check.wants))
    return tuple(dict.fromkeys((*ALWAYS, *needed)))


class NodeDoctor(Doctor):
    """The doctor of a bring-up: all checks, and what blocks a purpose that is named is a fault of the node."""

    @cached_property
    def checks(self) -> tuple[Check, ...]:
        """All checks, in the order in which they run."""
        return self._judging(select(None, self.check, self.skip))

    def scope(self, machine: Machine) -> Scope:
        """Return the scope as :meth:`Doctor.scope`, of the whole node."""
        return replace(super().scope(machine), whole_node=True)


def purposes_of(text: str | None) -> tuple[Guard, ...] | None:
    """Return the purposes that ``--for`` names; ``None`` if it is not given.

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
    """Return the age that ``--since`` names in seconds; ``None`` for all messages since boot."""
    if text is None or text == "boot":
        return None
    match = re.fullmatch(r"([0-9]{1,6})([smhd])", text, re.ASCII)
    if match is None:
        raise UsageError(f"--since {printable(text[:40])!r}: give boot, or a number with s, m, h or d: 30m, 2h, 1d")
    return float(match[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[match[2]]


def explain(call: str | None = None, error: str | int | None = None, machine: Machine | None = None) -> Explanations:
    """Return what is known of a call that failed, as the record of the schema ``egmctl.explain/2``.

    Parameters
    ----------
    call, error
        A function of CUDA or NVML, and an error by name or number; of one alone, all that is known.
    machine
        The machine whose checks decide between the causes; ``None``: none is excluded.

    Raises
    ------
    UsageError
        There is no such error, or neither is given.
    """
    return judged(ErrorLog(failures=failures_of(call, error)), machine)


def judged(log: ErrorLog, machine: Machine | None, *, redacted: bool = False) -> Explanations:
    """Return what is known of failures, with the causes that hold on a machine first.

    Parameters
    ----------
    redacted
        As for :meth:`Doctor.diagnose`. The lines that were read, which may name anything, are left out.
    """
    diagnosis = None
    if machine is not None:
        diagnosis = diagnosis_of(log.failures, redact(machine) if redacted else machine)
    if redacted:
        log = replace(log, failures=tuple(replace(failure, line="") for failure in log.failures))
    return answered(explain_failures(log, diagnosis))
