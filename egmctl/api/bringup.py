"""What a bring-up does on one node: doctor with its probes, the quick bench, and the answer of both.

The node is examined first, then answered about, as often as needed: with its names, and with pseudonyms.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cached_property

from egmctl.api.bench import Bench, load_profiles, measure_node
from egmctl.api.doctor import Doctor, NodeDoctor
from egmctl.api.options import BringupOptions
from egmctl.bench.plan import Plan
from egmctl.bench.processes.group import start_worker
from egmctl.bench.supervisor import open_contexts
from egmctl.dataclass import dataclass
from egmctl.doctor.probes import OnProbe
from egmctl.doctor.situation import shared_by_processes
from egmctl.errors import ChildNotStarted, NothingToDo
from egmctl.facts.redact import redact_report
from egmctl.journal.events import Recorder, forget
from egmctl.launch import Child
from egmctl.model.answer import Answer
from egmctl.model.bringup import Bringup
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.evidence import EvidenceReport
from egmctl.model.machine import Machine
from egmctl.model.measurement import RunReport
from egmctl.model.task import Task
from egmctl.topology.topology import SECTIONS
from egmctl.verdict.bringup import bringup_answer, identity_of
from egmctl.verdict.evidence import evidence

SUITE = "quick"
"""The suite that bringup runs: a quick measurement of every link."""


class Observer:
    """Is told what a bring-up does. This base class shows and keeps nothing."""

    def doing(self, part: float, what: str) -> None:
        """Receive the completed part of the current phase, 0 to 1, and the current activity."""

    def has_read(self) -> None:
        """The node has been read."""

    def probing(self, machine: Machine) -> OnProbe | None:  # noqa: ARG002
        """Return what is called before each probe of a machine, as by :meth:`egmctl.Doctor.probe`."""
        return None

    def warn(self, sentence: str) -> None:
        """Receive a sentence about something that is left out."""

    def __call__(self, part: float, task: Task | None) -> None:
        """Receive the progress of the bench, as by :meth:`egmctl.Bench.run`."""

    def recorder(self, machine: Machine) -> Recorder:  # noqa: ARG002
        """Return what receives the events of a run on a machine that begins."""
        return forget

    def has_measured(self, answer: Answer) -> None:
        """The run has ended with an answer."""


@dataclass(frozen=True, kw_only=True)
class Examined:
    """A node after doctor's probes and the bench."""

    machine: Machine
    """The node with the results of the probes, read again after the bench: load reveals faults hidden at idle."""
    before: Diagnosis | None = None
    """The diagnosis before the bench; ``None`` for a recorded machine."""
    run: RunReport | None = None
    """The judged and explained run; ``None`` if there is none."""
    not_measured: str = ""
    """The reason why there is no run."""


class NodeBringup:
    """The bring-up of a node, by the options of ``egmctl bringup``."""

    def __init__(self, options: BringupOptions) -> None:
        self._with_serials = options.serials
        self._doctor = NodeDoctor(**{name: value for name, value in vars(options).items() if name != "serials"})
        self._bench = Bench(suites=(SUITE,), gpus=options.gpus, numa=options.numa or "all")

    @cached_property
    def sections(self) -> tuple[str, ...]:
        """The sections that have to be read."""
        return tuple(dict.fromkeys((*self._doctor.sections, *SECTIONS, *self._bench.sections)))

    def examine(self, read: Callable[[], Machine], observer: Observer) -> Examined:
        """Probe and measure this node (:func:`examined`)."""
        return examined(self._doctor, self._bench, read, observer)

    def answer(self, node: Examined, no_fabric: str = "", *, redacted: bool = False) -> Bringup:
        """Return whether a node can be handed over.

        Parameters
        ----------
        no_fabric
            Why the fabric between this node and others was not measured; empty if nobody asked for it.
        redacted
            Whether names, serial numbers and UUIDs become pseudonyms, for documents that leave the site.
        """
        run = node.run
        if redacted and run is not None:
            run = redact_report(run, node.machine)
        return bringup_answer(
            self._doctor.diagnose(node.machine, redacted=redacted),
            run,
            before=node.before,
            not_measured=node.not_measured,
            no_fabric=no_fabric,
            identity=identity_of(node.machine) if self._with_serials else None,
        )


def evidence_of_node(doctor: Doctor, node: Examined) -> EvidenceReport:
    """Return what an examined node says about questions that documents leave open, with pseudonyms."""
    run = None if node.run is None else redact_report(node.run, node.machine)
    return evidence(doctor.diagnose(node.machine, redacted=True), run, not_measured=node.not_measured)


def examined(doctor: Doctor, bench: Bench, read: Callable[[], Machine], observer: Observer) -> Examined:
    """Run doctor's probes and a bench on this node.

    Parameters
    ----------
    read
        A function that reads the node.
    """
    worker = None
    with contextlib.ExitStack() as started:
        observer.doing(0.0, "doctor: reading this node")
        # The worker and doctor's processes initialise CUDA at the same time as the node is read. Where a GPU may have
        # contexts of several processes, the worker opens its own beside doctor's tests.
        with contextlib.suppress(ChildNotStarted):
            worker = started.enter_context(start_worker())
        with doctor.probing_processes() as waiting:
            node = read()
            observer.has_read()
            plan, not_measured = _planned(bench, node)
            if plan is not None and worker is not None and shared_by_processes(node.gpus or ()):
                open_contexts(plan, worker)
            node = doctor.probe(node, on_probe=observer.probing(node), waiting=waiting)
            before = doctor.diagnose(node)
        if plan is None:
            return Examined(machine=node, before=before, not_measured=not_measured)
        try:
            run, node = _measured(bench, plan, node, observer, worker or started.enter_context(start_worker()))
        except ChildNotStarted as error:
            return Examined(machine=node, before=before, not_measured=str(error))
    return Examined(machine=node, before=before, run=run)


def _planned(bench: Bench, machine: Machine) -> tuple[Plan | None, str]:
    """Return the plan of the bench, or why there is nothing to measure."""
    try:
        return bench.plan(machine), ""
    except NothingToDo as error:
        return None, str(error)


def _measured(
    bench: Bench, plan: Plan, machine: Machine, observer: Observer, worker: Child
) -> tuple[RunReport, Machine]:
    """Run the plan; return the judged run, and the machine reread after it."""
    profiles = load_profiles()
    for problem in profiles.broken:
        observer.warn(f"{problem}; continuing without it")
    recorder = observer.recorder(machine)
    run, after = measure_node(
        bench, plan, machine, profiles=profiles, on_progress=observer, worker=worker, recorder=recorder
    )
    observer.has_measured(run.answer)
    return run, after
