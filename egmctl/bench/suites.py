"""The registry of all cases, and the suites, which select cases by name patterns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from fnmatch import fnmatchcase

from egmctl.bench.case import BY_SMS, Case
from egmctl.bench.cases import ipc, one_process
from egmctl.bench.nccl.collectives import COLLECTIVES, PREFIX
from egmctl.dataclass import dataclass
from egmctl.errors import UsageError
from egmctl.model.task import Axis, Point
from egmctl.units import did_you_mean, printable

CASES: tuple[Case, ...] = (
    *one_process.EGM_CASES,
    *one_process.HOST_CASES,
    *one_process.P2P_CASES,
    *one_process.LATENCY_CASES,
    *ipc.CASES,
    *ipc.UCX_CASES,
)

FABRIC_CASES: tuple[Case, ...] = ipc.FABRIC_CASES
"""The cases between all ranks of a run on one or more nodes (``egmctl/bench/plan/fabric.py``), measured separately."""


SWEPT: Mapping[Axis, tuple[str, ...]] = {
    Axis.SIZE: ("host_numa_to_device_memcpy_??", "device_to_host_numa_memcpy_??", "device_to_device_memcpy_write_??"),
    Axis.SMS: (
        *("device_to_device_memcpy_write_sm", "device_to_device_memcpy_write_tma"),
        *("device_to_device_memcpy_read_sm", "device_to_device_memcpy_read_tma"),
        *("host_numa_to_device_memcpy_sm", "host_numa_to_device_memcpy_tma"),
        *("device_to_host_numa_memcpy_sm", "device_to_host_numa_memcpy_tma"),
        *("device_local_copy_sm", "device_local_copy_tma"),
    ),
    Axis.FOOTPRINT: ("*_footprint",),
    Axis.LOAD: ("*_loaded",),
    Axis.STREAMS: ("host_numa_to_device_memcpy_ce", "device_to_host_numa_memcpy_ce"),
}
"""Shell patterns of the cases that ``--sweep`` measures by default."""

_FOUR_STREAMS = dict.fromkeys(SWEPT[Axis.STREAMS], (Point(streams=4),))
"""Additional points: one stream reportedly does not saturate NVLink-C2C."""


@dataclass(frozen=True, slots=True)
class Suite:
    """A set of cases."""

    description: str
    """The description in ``--list``."""
    cases: tuple[str, ...] = ()
    """Shell patterns of case names."""
    family: str | None = None
    """A family whose cases all belong to the suite."""
    samples: int = 5
    one_path: tuple[str, ...] = ()
    """Shell patterns of cases that are measured on only one path of each kind of route (:attr:`Case.one_path`), because
    they compare kinds of memory, not GPUs."""
    further: Mapping[str, tuple[Point, ...]] = field(default_factory=dict)
    """Additional points, by case name."""
    sweep: Axis | None = None
    """The axis along which the cases are measured instead."""

    def has(self, case: Case) -> bool:
        """Return whether a case belongs to the suite."""
        return case.family == self.family or _fits(case, self.cases)

    def points(self, case: Case) -> tuple[Point, ...]:
        """Return the points at which the suite measures a case."""
        return case.along(self.sweep) if self.sweep else (*case.points, *self.further.get(case.name, ()))


SUITES: Mapping[str, Suite] = {
    "standard": Suite(
        "every family: the default of 'egmctl bench'",
        (
            *("host_numa_to_device_memcpy_??", "device_to_host_numa_memcpy_??"),
            "host_numa_to_device_bidirectional_memcpy_ce",
            *("host_numa_to_all_memcpy_ce", "all_to_host_numa_memcpy_ce"),
            *("host_numa_read_*", "host_numa_write_*"),
            *("host_numa_pool_to_device_memcpy_ce", "device_to_host_numa_pool_memcpy_ce"),
            *("host_to_device_memcpy_ce", "device_to_host_memcpy_ce"),
            *("host_read_cpu", "host_write_cpu", "host_triad_cpu"),
            *("registered_to_device_memcpy_ce", "device_to_registered_memcpy_ce"),
            *("system_to_device_memcpy_??", "device_to_system_memcpy_??"),
            *("device_to_device_memcpy_*_[cs]?", "device_to_device_bidirectional_memcpy_write_??"),
            *("device_to_device_read_sm", "device_to_device_write_sm", "device_local_copy"),
            *("ring_write_??", "bisect_write_ce", "one_to_all_write_ce", "all_to_one_write_ce", "all_pairs_write_ce"),
            *("device_*latency_[!t]*", "device_to_device_ping_pong_latency", "host_numa_to_device_latency*"),
            *("host_numa_ping_pong_latency", "host_device_latency_sm"),
            *("ipc_legacy_device_write_ce", "ipc_posix_fd_device_write_ce", "ipc_posix_fd_host_numa_read_ce"),
            *("ipc_flag_device_round_trip", "ipc_event_round_trip"),
        ),
        samples=3,
        # The cases with HOST_NUMA and pinned memory measure the path of every GPU to host memory.
        one_path=("*host_numa_pool_*", "*registered_*", "*system_*", "ipc_posix_fd_host_numa_read_ce"),
        further=_FOUR_STREAMS,
    ),
    "quick": Suite(
        "one look at every link",
        (
            *("host_numa_to_device_memcpy_ce", "device_to_host_numa_memcpy_ce"),
            *("host_to_device_memcpy_ce", "device_to_host_memcpy_ce"),
            *("device_to_device_memcpy_write_ce", "device_to_device_memcpy_read_ce"),
            *("device_to_device_memcpy_write_sm", "device_to_device_bidirectional_memcpy_write_ce"),
            *("device_local_copy", "device_to_device_latency_sm"),
        ),
        samples=3,
    ),
    "full": Suite(
        "every case there is, and the series by number of SMs",
        ("*",),
        further=_FOUR_STREAMS | dict.fromkeys(SWEPT[Axis.SMS], BY_SMS),
    ),
    "egm": Suite("memory of host NUMA nodes (EGM where the platform has it)", family="egm", further=_FOUR_STREAMS),
    "host": Suite("pinned, registered, huge-page, managed and system memory", family="host"),
    "p2p": Suite("between GPUs and within one", family="p2p"),
    "latency": Suite("latencies", family="latency"),
    "ipc": Suite("memory shared between processes, one process per GPU", family="ipc", samples=3),
    "egm_shared": Suite(
        "one HOST_NUMA allocation that the processes of all GPUs import", family="egm_shared", samples=3
    ),
    "rdma": Suite("UCX messages between processes, and their transport", family="rdma", samples=3),
    "fabric": Suite("fabric handles between all GPUs of the node; under MPI of all nodes", family="fabric", samples=3),
    "nccl": Suite(
        "three collectives of NCCL, by PyTorch or nccl-tests: their bus bandwidth beside the links'",
        ("device_to_device_memcpy_write_ce", "device_to_device_bidirectional_memcpy_write_sm"),
        samples=3,
    ),
    "sms": Suite(
        "bandwidth against the number of SMs, by SM copies and bulk copies (TMA)",
        SWEPT[Axis.SMS],
        samples=3,
        sweep=Axis.SMS,
    ),
    "matrices": Suite(
        "the seven GPU matrices of nvbandwidth",
        (
            *("device_to_device_memcpy_write_ce", "device_to_device_memcpy_read_ce"),
            *("device_to_device_memcpy_write_sm", "device_to_device_memcpy_read_sm"),
            *("device_to_device_bidirectional_memcpy_write_ce", "device_to_device_bidirectional_memcpy_write_sm"),
            "device_to_device_latency_sm",
        ),
        samples=3,
    ),
}
"""The suites by name, in listing order."""

STANDARD = "standard"

FABRIC = "fabric"
"""The suite over several nodes, which excludes other suites."""

NCCL = "nccl"
"""The suite that also runs NCCL, whose collectives are no cases: another program measures them."""


def select_suites(text: str) -> tuple[str, ...]:
    """Return the names of the suites in a comma-separated list.

    Raises
    ------
    UsageError
        A name is unknown, or :data:`FABRIC` is not alone.
    """
    names = tuple(part.strip() for part in text.split(","))
    for name in names:
        if name not in SUITES:
            raise UsageError(f"--suite {printable(name)!r}: there are {', '.join(SUITES)}")
    if FABRIC in names and len(names) > 1:
        raise UsageError(f"--suite {FABRIC} is a run of its own; give it alone")
    return names


def select_cases(patterns: Sequence[str], suites: Sequence[str] = (), sweep: Axis | None = None) -> tuple[Case, ...]:
    """Return the cases to measure with their points, in the registry's order.

    Parameters
    ----------
    patterns
        Shell patterns, one of which must match a case's name; without patterns, all cases match.
    suites
        Names of suites, one of which must contain a case. Without suites, patterns select from all cases. Without both,
        the cases are those of :data:`SWEPT` for a sweep, else the standard suite.
    sweep
        The axis along which cases are measured. Cases without this axis are left out.

    Raises
    ------
    UsageError
        A pattern matches neither a case nor, with the suite ``nccl``, a collective, or no selected case has the axis.
    """
    if not patterns and not suites:
        suites, patterns = ((), SWEPT[sweep]) if sweep else ((STANDARD,), ())
    chosen = [SUITES[name] for name in suites]
    every = FABRIC_CASES if tuple(suites) == (FABRIC,) else CASES
    cases = [case for case in every if not chosen or any(suite.has(case) for suite in chosen)]
    for pattern in patterns:
        if not any(_fits(case, (pattern,)) for case in cases) and not select_collectives((pattern,), suites):
            whole = f"'egmctl bench --list --suite {','.join(suites) or 'full'}' shows all"
            hint = did_you_mean(pattern, (case.name for case in cases), whole)
            raise UsageError(f"--case {printable(pattern[:100])!r} matches no case; {hint}")
    # The in-process counterpart of a case is measured over all paths if that case is.
    beside = {case.in_process for case in cases if not _over_one_path(case, chosen)}
    selected = tuple(
        replace(
            case,
            points=_points(case, chosen, sweep),
            one_path=case.name not in (*patterns, *beside) and _over_one_path(case, chosen),
        )
        for case in cases
        if not patterns or _fits(case, patterns)
    )
    if sweep is not None and not any(case.points for case in selected):
        raise UsageError(f"--sweep {sweep}: none of the chosen cases has that axis; '--list' says which have")
    return tuple(case for case in selected if case.points)


def select_collectives(patterns: Sequence[str], suites: Sequence[str]) -> tuple[str, ...]:
    """Return the collectives that NCCL measures; none without the suite ``nccl``.

    Parameters
    ----------
    patterns
        Shell patterns, one of which must match :data:`egmctl.bench.nccl.collectives.PREFIX` and a name; without
        patterns, all match.
    """
    names = COLLECTIVES if NCCL in suites else ()
    return tuple(
        name for name in names if not patterns or any(fnmatchcase(f"{PREFIX}{name}", pattern) for pattern in patterns)
    )


def _points(case: Case, chosen: Sequence[Suite], sweep: Axis | None) -> tuple[Point, ...]:
    if sweep is not None:
        return case.along(sweep)
    points = [point for suite in chosen if suite.has(case) for point in suite.points(case)]
    return tuple(dict.fromkeys(points)) if chosen else case.points


def _over_one_path(case: Case, chosen: Sequence[Suite]) -> bool:
    """Return whether one path of each kind of route is enough for a case in all chosen suites that contain it."""
    return bool(chosen) and all(_fits(case, suite.one_path) for suite in chosen if suite.has(case))


def _fits(case: Case, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(case.name, pattern) for pattern in patterns)
