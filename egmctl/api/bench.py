"""The bench: its options, its plan for a machine, the run of a plan, and the verdict on a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING

from egmctl.api.options import BenchOptions, documented, select_gpus, select_numa
from egmctl.bench.case import Case
from egmctl.bench.nccl.plan import NcclRequest, installed, nccl_plan
from egmctl.bench.plan import Plan
from egmctl.bench.plan.budget import fitted, memory_of, most_bytes
from egmctl.bench.plan.candidates import Known
from egmctl.bench.plan.cost import plan_seconds
from egmctl.bench.plan.flows import parse_pairs
from egmctl.bench.plan.make import LAST_BYTES, make_plan, sized, sweep_sizes
from egmctl.bench.plan.task import COPIES_LIMIT
from egmctl.bench.suites import FABRIC, NCCL, STANDARD, SUITES, select_cases, select_collectives
from egmctl.dataclass import dataclass
from egmctl.errors import NothingToDo, UsageError
from egmctl.facts.inside import memory_left
from egmctl.facts.root import Root
from egmctl.journal.events import Recorder, forget
from egmctl.launch import Child
from egmctl.model.gpu import Gpu
from egmctl.model.machine import Machine, OriginKind
from egmctl.model.measurement import RunReport, Settings
from egmctl.model.nccl import NcclPlan
from egmctl.model.profile import Profile
from egmctl.model.route import unusable
from egmctl.model.task import Axis
from egmctl.units import MIB, parse_size, several
from egmctl.verdict.answers import answered
from egmctl.verdict.explain import CAUSE_SECTIONS, sections, with_causes, with_ucx_notes
from egmctl.verdict.judge import with_verdict
from egmctl.verdict.nccl import beside_links, with_nccl_cause
from egmctl.verdict.profiles import all_profiles, choose, load_profile, match_profile
from egmctl.verdict.trust import changes, with_doubts

if TYPE_CHECKING:
    from egmctl.bench.supervisor import OnProgress

DEFAULT_SIZE_BYTES = 512 * MIB

SHORTEST_S = 0.001
SWEEP_SAMPLES = 3
LONGEST_DAYS = 30
"""The maximum duration of a run in days."""


@documented
@dataclass(frozen=True, kw_only=True)
class Bench(BenchOptions):
    """A set of measurements, selected and configured by the options of ``egmctl bench``. Every byte is verified.

    Raises
    ------
    UsageError
        If an option names something that does not exist, or is out of range.
    """

    def __post_init__(self) -> None:
        _ = self.selected_cases, self.settings
        once = {"--duration": self.duration is not None, "--sweep": self.sweep is not None, "--pair": bool(self.pair)}
        if NCCL in self.suite_names and (wrong := next((name for name, value in once.items() if value), None)):
            raise UsageError(f"{wrong} cannot be combined with --suite {NCCL}: NCCL runs once, on all chosen GPUs")
        if self.nvls and NCCL not in self.suite_names:
            raise UsageError(f"--nvls works with --suite {NCCL} only")
        if not self.selected_cases:
            self.refuse_for_nccl_alone()

    def refuse_for_nccl_alone(self) -> None:
        """Refuse options that mean nothing where NCCL measures and no case does, as in the tasks of a job.

        Raises
        ------
        UsageError
            If such an option is given.
        """
        given = {"--serial": self.serial, "--no-gate": self.no_gate, "--numa": self.numa != "all"}
        if wrong := next((name for name, value in given.items() if value), None):
            raise UsageError(
                f"{wrong} cannot be combined with collectives of NCCL alone: NCCL uses all chosen GPUs at once, queues "
                "its own work, and no NUMA node is chosen for it"
            )

    @cached_property
    def selected_cases(self) -> tuple[Case, ...]:
        """The cases to measure, in the registry's order."""
        return select_cases(self.cases, self.suite_names, self.axis)

    @cached_property
    def settings(self) -> Settings:
        """The settings of all measurements in the run.

        Raises
        ------
        UsageError
            If an option is out of range.
        """
        try:
            size_bytes = DEFAULT_SIZE_BYTES if self.size is None else parse_size(self.size)
        except ValueError as error:
            raise UsageError(f"--size: {error}") from error
        samples = self.samples
        if samples is None:
            usual = SWEEP_SAMPLES if self.sweep is not None else SUITES[STANDARD].samples
            samples = max((SUITES[name].samples for name in self.suite_names), default=usual)
        limits: Mapping[str, tuple[float | None, float, float, str]] = {
            "--samples": (samples, 1, 1000, ""),
            "--copies": (self.copies, 1, COPIES_LIMIT, ""),
            "--timeout": (self.timeout, SHORTEST_S, 86400, " seconds"),
            "--duration": (self.duration, SHORTEST_S, LONGEST_DAYS * 86400, " seconds"),
            "--memory": (self.memory, 1, 95, " per cent"),
        }
        for option, (value, least, most, unit) in limits.items():
            if value is not None and not least <= value <= most:
                raise UsageError(f"{option} {value:.12g}: it must be from {least:g} to {most:.0f}{unit}")
        return Settings(
            size_bytes=size_bytes,
            copies=self.copies,
            samples=samples,
            timeout_s=self.timeout,
            duration_s=self.duration,
            serial=self.serial,
            gate=not self.no_gate,
            allow_busy=self.allow_busy,
            memory_percent=self.memory,
        )

    @property
    def sections(self) -> tuple[str, ...]:
        """The sections that :func:`egmctl.read_machine` has to read for these cases."""
        # Rank 0 of a job receives the machines of all nodes, so each has only the sections that the plan needs.
        more = () if FABRIC in self.suite_names else CAUSE_SECTIONS
        return tuple(dict.fromkeys((*sections(self.selected_cases), *more)))

    def plan(self, machine: Machine) -> Plan:
        """Return the plan: what to measure, in order, and why the rest is skipped. Uses no GPU.

        If the user chose no size, buffers shrink until they fit.

        Raises
        ------
        NothingToDo
            If the machine has no GPU.
        UsageError
            If the machine lacks a selected GPU, NUMA node or path, or the memory; if the run would take too long; or if
            only the ranks of a job can measure the suite.
        """
        if FABRIC in self.suite_names:
            raise UsageError(
                f"--suite {FABRIC} is measured by the ranks of a job: run egmctl bench under srun or mpirun"
            )
        if not machine.gpus:
            loaded = machine.driver is not None and machine.driver.module_version is not None
            reason = "the driver sees none" if loaded else "the NVIDIA kernel driver is not loaded"
            raise NothingToDo(f"there is no GPU to measure: {reason}; 'egmctl topo' shows what was found")
        live = machine.origin.kind is OriginKind.LIVE
        left_bytes = memory_left(Root.from_environment()) if live else None
        no_ucx = unusable("ucxx is not installed") if live and find_spec("ucxx") is None else ""

        known = Known(machine, allow_busy=self.settings.allow_busy)

        def planned(size_bytes: int) -> Plan:
            return self._plan(known, replace(self.settings, size_bytes=size_bytes), no_ucx)

        if self.size is not None:
            whole = memory_of(machine, left_bytes, most_bytes)
            made = fitted(planned(self.settings.size_bytes), whole, several_sizes=self.axis is Axis.SIZE)
        else:
            size_bytes = LAST_BYTES if self.axis is Axis.SIZE else self.settings.size_bytes
            made = fitted(planned(size_bytes), memory_of(machine, left_bytes), planned)
        if self.settings.duration_s is None and (days := plan_seconds(made) / 86400) > LONGEST_DAYS:
            raise UsageError(
                f"this takes about {days:.0f} days, more than {LONGEST_DAYS}; give a smaller --size or --samples, "
                "or fewer cases"
            )
        return replace(made, nccl=self._nccl(machine, live=live))

    def chosen(self, machine: Machine) -> tuple[Gpu, ...]:
        """Return the GPUs of a machine to measure.

        Raises
        ------
        UsageError
            If the machine lacks a selected GPU.
        """
        return select_gpus("all" if self.gpus is None else self.gpus, machine.gpus or ())

    @property
    def nccl_request(self) -> NcclRequest:
        """What the tasks of a job are to measure by NCCL (:func:`egmctl.bench.nccl.job.measure_nccl_job`)."""
        return NcclRequest(
            collectives=select_collectives(self.cases, self.suite_names),
            settings=self.settings,
            size_bytes=None if self.size is None else self.settings.size_bytes,
            nvls=self.nvls,
        )

    def _nccl(self, machine: Machine, *, live: bool) -> NcclPlan | None:
        """Return the plan of NCCL's measurement; ``None`` if no collective is chosen."""
        request = self.nccl_request
        if not request.collectives:
            return None
        return nccl_plan(
            machine,
            self.chosen(machine),
            self.settings,
            collectives=request.collectives,
            size_bytes=request.size_bytes,
            nvls=request.nvls,
            program=installed() if live else None,
            assumed=not live,
        )

    def _plan(self, known: Known, settings: Settings, no_ucx: str) -> Plan:
        machine = known.machine
        chosen = self.chosen(machine)
        # Without NUMA (a kernel without it, gVisor) there is no node's memory to measure; the rest is measured.
        no_numa = self.numa == "all" and not machine.cpu_nodes
        nodes = () if no_numa else select_numa(self.numa, machine, chosen)
        pairs = () if self.pair is None else parse_pairs(self.pair, chosen, nodes)
        cases = self.selected_cases
        if self.axis is Axis.SIZE:
            cases = sized(cases, sweep_sizes(settings.size_bytes))
        return make_plan(machine, chosen, nodes, cases, settings, pairs=pairs, no_ucx=no_ucx, known=known)

    def run(
        self,
        plan: Plan,
        machine: Machine,
        *,
        on_progress: OnProgress = lambda _part, _task: None,
        worker: Child | None = None,
        recorder: Recorder = forget,
    ) -> RunReport:
        """Measure a plan in child processes and return the record of the schema ``egmctl.bench/2``, without verdict.

        If a step fails, the others are still measured. Ctrl-C ends the run with the results so far.

        Parameters
        ----------
        machine
            The machine that the plan was made for, which must be this node.
        on_progress
            Called with the completed part, 0 to 1, and the current task, ``None`` between tasks.
        worker
            A process that :func:`egmctl.bench.processes.group.start_worker` has started; ``None``: one is started.
        recorder
            Receives each event of the run as it happens, e.g. a journal.

        Raises
        ------
        UsageError
            If the machine is not this node.
        """
        # Imported late: a plan alone starts no process.
        from egmctl.bench.supervisor import supervise

        if machine.origin.kind is not OriginKind.LIVE:
            raise UsageError(f"machine {machine.origin.name} is not this node: it can be planned for, not measured")
        run = supervise(plan, machine, on_progress=on_progress, worker=worker, recorder=recorder)
        if run.nccl is not None:
            run = beside_links(run, run.nccl)
        return answered(with_doubts(with_ucx_notes(run)))

    def explain(self, report: RunReport, machine: Machine | None = None) -> RunReport:
        """Return a run with the causes of its slow, broken and skipped paths (``RunReport.causes``), and its answer.

        Parameters
        ----------
        report
            The run. Judge it first (:func:`judge_run`), because the slow paths are in its verdict.
        machine
            The live node; ``None``: the machine in the run, which has pseudonyms.
        """
        named = () if self.gpus is None else tuple(gpu.bus_id for gpu in report.gpus)
        # Runs between ranks select no NUMA nodes.
        numa = report.numa_nodes if self.numa != "all" and report.numa_nodes else None
        if report.verdict is None:
            # Ranks on several nodes measure without a judge.
            report = with_doubts(report)
        report = with_causes(report, machine, asked=named, numa=numa)
        if report.nccl is not None:
            report = with_nccl_cause(report, report.nccl, machine)
        return answered(report)


@dataclass(frozen=True, slots=True)
class Profiles:
    """The profiles to judge a run by."""

    candidates: Sequence[Profile]
    named: bool = False
    """Whether the user named the only candidate. If not, the first that matches the machine is used."""
    broken: tuple[str, ...] = ()
    """A sentence for each profile of the user or the site that is invalid and therefore not used."""


def load_profiles(name: str | None = None) -> Profiles:
    """Return the profile with this name or file, or all profiles: the user's, the site's and the shipped ones.

    Of all profiles an invalid one is left out (:attr:`Profiles.broken`): it must not stop a run that it is not about.

    Raises
    ------
    UsageError
        If no profile has the name, or the named profile is invalid.
    """
    if name is not None:
        return Profiles((load_profile(name),), named=True)
    broken: list[str] = []
    profiles = tuple(profile for profile, _ in all_profiles(lambda error: broken.append(str(error))))
    return Profiles(profiles, broken=tuple(broken))


def judge_run(
    report: RunReport, machine: Machine, profiles: Profiles | None = None, *, strict: bool = False
) -> RunReport:
    """Return the run with a verdict by the profile that the user named or the first that matches the machine.

    Parameters
    ----------
    profiles
        The result of :func:`load_profiles`; ``None``: all profiles.
    strict
        Whether warnings count as failures.
    """
    profiles = profiles or load_profiles()
    chosen, reason = choose(machine, profiles.candidates)
    if profiles.named:
        chosen = profiles.candidates[0]
        fits = match_profile(machine, chosen)
        reason = "asked for" if fits.fits else f"asked for, but of another kind: {fits.reason}"
    if profiles.broken:
        reason += f"; {several(len(profiles.broken), 'invalid profile')} not used"
    return answered(with_verdict(report, chosen, profile_reason=reason, strict=strict))


def measure_node(
    bench: Bench,
    plan: Plan,
    machine: Machine,
    *,
    profiles: Profiles | None,
    strict: bool = False,
    on_progress: OnProgress = lambda _part, _task: None,
    worker: Child | None = None,
    recorder: Recorder = forget,
) -> tuple[RunReport, Machine]:
    """Run a plan on this node; return the judged and explained run, and the node as read again after it.

    Load reveals faults that are hidden at idle.

    Parameters
    ----------
    profiles, strict
        As for :func:`judge_run`, but without profiles there is no verdict.
    machine, on_progress, worker, recorder
        As for :meth:`Bench.run`.
    """
    # What reads a node takes long to import, and a plan needs none of it.
    from egmctl.facts.collect import rereading

    with rereading() as reread:
        report = bench.run(plan, machine, on_progress=on_progress, worker=worker, recorder=recorder)
        after = reread(machine)
    report = replace(report, changes=changes(machine, after))
    if profiles is not None:
        report = judge_run(report, machine, profiles, strict=strict)
    return bench.explain(report, after), after
