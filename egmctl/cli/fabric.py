"""``egmctl bench --suite fabric``: between all GPUs of this node, under MPI of all nodes; and what that would cost."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from egmctl.cli.mpi import job
from egmctl.cli.options import read_machine
from egmctl.cli.output import Draw, Outputs
from egmctl.errors import NothingToDo, UsageError
from egmctl.report.kinds import Format

if TYPE_CHECKING:
    from egmctl.bench.case import Case
    from egmctl.bench.fabric_run import Asked
    from egmctl.bench.supervisor import Progress
    from egmctl.journal.events import Recorder
    from egmctl.model.machine import Gpu, Machine
    from egmctl.model.measurement import RunReport, Settings
    from egmctl.mpi.environment import Launched

FABRIC, RDMA = "fabric", "rdma"
"""The suites that MPI processes measure together."""
RANKS_LIMIT = 100_000
"""Of ``--ranks``."""

Bar = Callable[[], AbstractContextManager["Progress"]]


def is_fabric(
    suites: Sequence[str], found: Launched | None, *, ranks: int | None, sample: int | None, dry_run: bool
) -> bool:
    """Say whether a run is one of the suite ``fabric``.

    Raises
    ------
    UsageError
        For options that make no sense with the suites.
    """
    if sample is not None and sample < 1:
        raise UsageError(f"--sample {sample}: it must be 1 or more")
    if tuple(suites) == (RDMA,) and found is not None and ranks is None:
        return True
    if tuple(suites) != (FABRIC,):
        if found is not None:
            raise UsageError(
                f"{found.by} started {found.size} processes, which can only measure --suite {FABRIC} or {RDMA} "
                "together; with --mpi off each measures by itself"
            )
        if ranks is not None or sample is not None:
            raise UsageError(f"--{'ranks' if ranks is not None else 'sample'} works with --suite {FABRIC} only")
        return False
    if ranks is not None and not dry_run:
        raise UsageError("--ranks is for --dry-run; a real run has as many ranks as mpirun or srun starts")
    if ranks is not None and not 2 <= ranks <= RANKS_LIMIT:
        raise UsageError(f"--ranks {ranks}: it must be from 2 to {RANKS_LIMIT}")
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricRun:
    """What the user asked for."""

    cases: tuple[Case, ...]
    settings: Settings
    gpus: str
    sections: tuple[str, ...]
    sample: int | None
    fixed_size: bool
    outputs: Outputs
    quiet: bool
    recorder: Recorder | None = None
    """Told on the one rank that has the report."""

    def planned(self, machine_name: str | None, ranks: int | None) -> Draw:
        """Return what ``--dry-run`` shows: the steps between this node's GPUs, or what ``ranks`` of them cost."""
        from egmctl.report.exports.plan_json import cost_json, plan_json

        seen = read_machine(machine_name, self.sections, quiet=self.quiet)
        if ranks is None:
            from egmctl.bench.fabric_run import alone, plan_for
            from egmctl.report.rendering import rendered
            from egmctl.report.views.bench_plan import plan_document

            plan = plan_for(alone(seen, self._chosen(seen)), self._asked())
            return lambda target: (
                plan_json(plan, seen)
                if target.format is Format.JSON
                else rendered(plan_document(plan), target.format, width=target.width)
            )
        from egmctl.bench.plan.cost import job_cost
        from egmctl.bench.plan.fabric import make_fabric_plan
        from egmctl.bench.plan.placement import modelled
        from egmctl.report.rendering import rendered
        from egmctl.report.views.bench_plan import cost_document

        if not seen.gpus:
            raise NothingToDo("no GPU here to scale from; --machine names a machine that has GPUs")
        layout = modelled(seen, ranks)
        cost = job_cost(make_fabric_plan(layout, self.cases, self.settings, self.sample), layout)
        return lambda target: (
            cost_json(cost, seen)
            if target.format is Format.JSON
            else rendered(cost_document(cost, seen), target.format, width=target.width)
        )

    @contextlib.contextmanager
    def measured(self, found: Launched | None, bar: Bar) -> Iterator[RunReport]:
        """Measure, and hand over the report on the one rank that has it; the block ends with ``typer.Exit``."""
        from egmctl.bench.fabric_run import measure_here, measure_job

        if found is None:
            seen, chosen = self._facts()
            with bar() as on_progress:
                report = measure_here(seen, chosen, self._asked(), on_progress, self.recorder)
            yield report
            return
        from egmctl.bench.processes.group import start_rank

        def facts() -> tuple[Machine, Sequence[Gpu]]:
            # Only rank 0 writes: what keeps it from that has to reach the others, who would wait for it.
            self.outputs.check()
            return self._facts()

        with job(found) as world:
            child = start_rank(world.rank, world.size)
            with bar() as on_progress:
                told = measure_job(world, child, facts, self._asked(), on_progress, self.recorder)
            if told is None:
                raise typer.Exit
            yield told

    def _facts(self) -> tuple[Machine, Sequence[Gpu]]:
        seen = read_machine(None, self.sections, quiet=True)
        if not seen.gpus:
            raise NothingToDo("no GPU to measure; 'egmctl topo' shows what was found")
        return seen, self._chosen(seen)

    def _chosen(self, machine: Machine) -> Sequence[Gpu]:
        from egmctl.selectors import select_gpus

        return select_gpus(self.gpus, machine.gpus or ())

    def _asked(self) -> Asked:
        from egmctl.bench.fabric_run import Asked

        return Asked(cases=self.cases, settings=self.settings, sample=self.sample, fixed_size=self.fixed_size)
