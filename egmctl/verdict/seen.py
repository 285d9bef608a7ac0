"""What a run saw of its own causes: GPUs left out, other users, slowed clocks, another link, a busy host. Pure.

Doctor's checks read a node at rest; these are seen only while, or because, something is measured. Each is a finding
like theirs, and says of which measurements it is evidence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from egmctl.bench.plan.busy import Use, in_use, listed
from egmctl.bench.plan.paths import gpu_obstacle
from egmctl.doctor.checks.gpu import SLOWDOWNS
from egmctl.model.evidence import GpuEvidence, Verdict
from egmctl.model.finding import NODE, Evidence, Finding, Place, PlaceKind, Remedy, Status, on_gpus
from egmctl.model.machine import Gpu, Machine
from egmctl.model.measurement import RunReport
from egmctl.model.timing import HostLoad
from egmctl.model.waiver import WaiverKind
from egmctl.units import format_kernel_list, format_size
from egmctl.verdict.crossings import host_memory

IN_USE, UNUSABLE, HIDDEN = "bench.gpu-in-use", "bench.gpu-unusable", "bench.gpu-hidden"
"""Ids of findings: a GPU that others use, one that cannot be used, one that CUDA_VISIBLE_DEVICES hides."""
OTHERS, THROTTLED, OTHER_LINK = "bench.other-processes", "bench.throttled", "bench.other-link"
HOST_BUSY = "bench.host-busy"
_BUSY_CPUS, _BUSY_PART = 4, 0.1
"""A host is busy whose other processes keep so many CPUs at work, and this part of all; of few CPUs, half of them.
Chosen: an idle host stays below one CPU, and four CPUs that copy take a fifth of a socket's memory bandwidth."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A finding of the run, and the measurements that it is evidence of."""

    finding: Finding
    measurements: frozenset[int]


def left_out(machine: Machine, gpus: Sequence[Gpu], kind: WaiverKind) -> Finding:
    """Return the finding on GPUs of which nothing was measured, for a reason that no check of doctor's knows.

    Parameters
    ----------
    kind
        Of :data:`egmctl.model.waiver.OF_GPUS`, as the run recorded it.
    """
    match kind:
        case WaiverKind.GPU_BUSY:
            return _busy(gpus)
        case WaiverKind.GPU_HIDDEN:
            words = "hidden by CUDA_VISIBLE_DEVICES"
            advice = "Unset CUDA_VISIBLE_DEVICES, or leave these GPUs out with --gpus."
            return _left_out(HIDDEN, gpus, words, Remedy(text=advice))
        case _:
            why = dict.fromkeys(gpu_obstacle(machine, gpu) or "CUDA does not see it" for gpu in gpus)
            advice = "See what stops them with 'egmctl doctor --active'."
            return _left_out(UNUSABLE, gpus, "; ".join(why), Remedy(text=advice))


def _busy(gpus: Sequence[Gpu]) -> Finding:
    """Return the finding on GPUs that others use: who they are, and what to do."""
    uses = [use for gpu in gpus if (use := in_use(gpu)) is not None]
    pids = tuple(sorted({pid for use in uses for pid in use.pids}))
    told = [f"in use by process {listed(pids)}"] if pids else []
    words = "; ".join([*told, *(str(use) for use in uses if not use.pids)]) or "in use by others"
    command = f"ps -o pid,user,etime,args -p {','.join(map(str, pids))}" if pids else "nvidia-smi"
    text = "Wait until they are idle (the command below shows who uses them)"
    remedy = Remedy(text=f"{text}, or measure beside them with 'egmctl bench --allow-busy'.", command=command)
    return _left_out(IN_USE, gpus, words, remedy, tuple(map(_use_evidence, uses)))


def _use_evidence(use: Use) -> Evidence:
    label = f"GPU{use.gpu.index}"
    if use.pids:
        pids = ", ".join(map(str, use.pids))
        return Evidence(source=f"nvmlDeviceGetComputeRunningProcesses({label})", value=f"process {pids}")
    return Evidence(source=f"nvmlDeviceGetMemoryInfo({label})", value=f"{format_size(use.used_bytes)} used")


def _left_out(
    check: str, gpus: Sequence[Gpu], words: str, remedy: Remedy, evidence: tuple[Evidence, ...] = ()
) -> Finding:
    place = on_gpus(gpus)
    return Finding(check=check, status=Status.NOTE, summary=words, place=place, evidence=evidence, remedy=remedy)


def during(report: RunReport) -> Iterator[Seen]:
    """Yield what the GPUs and the links of measurements showed while these ran."""
    for check, sign in _SIGNS.items():
        yield from _on_gpus(report, check, sign)
    if (busy := _host_busy(report.host_load)) is not None:
        of_host = frozenset(n for n, one in enumerate(report.measurements) if all(map(host_memory, one.flows)))
        yield Seen(busy, of_host)
    stray: dict[str, set[int]] = defaultdict(set)
    for number, one in enumerate(report.measurements):
        route = one.evidence.route if one.evidence is not None else None
        if route is not None and route.verdict is Verdict.REFUTED:
            stray[route.link].add(number)
    for link, numbers in stray.items():
        yield Seen(
            Finding(
                check=OTHER_LINK,
                status=Status.WARN,
                summary=f"the bytes did not go over {link}, by the counters of the links",
                place=NODE,
                remedy=Remedy(text="See which links are up, and what keeps peers apart, with 'egmctl doctor'."),
            ),
            frozenset(numbers),
        )


def _host_busy(load: HostLoad | None) -> Finding | None:
    """Return the finding on other processes that keep the host's CPUs, and with these its memory, at work."""
    if load is None or load.wall_s <= 0:
        return None
    if load.others_cpu_s / load.wall_s < max(min(_BUSY_CPUS, load.cpus / 2), _BUSY_PART * load.cpus):
        return None
    return Finding(
        check=HOST_BUSY,
        status=Status.WARN,
        summary=f"the host was busy: load {load.load_average:.0f} on {load.cpus} CPUs, other processes used "
        f"{load.others_cpu_s:.0f} CPU-seconds in {load.wall_s:.0f} s",
        place=NODE,
        evidence=(
            Evidence(source="/proc/stat", value=f"{load.others_cpu_s:.1f} CPU-seconds of others"),
            Evidence(source="/proc/loadavg", value=f"{load.load_average:.2f}"),
        ),
        remedy=Remedy(
            text="Measure again when the host is idle (the command below shows what runs).",
            command="ps -eo pid,user,pcpu,etime,comm --sort=-pcpu | head",
        ),
    )


def words(check: str, gpu: GpuEvidence) -> str | None:
    """Return the finding's sentence on what a GPU showed, ``None`` where it showed nothing of the sort.

    Parameters
    ----------
    check
        :data:`OTHERS` or :data:`THROTTLED`.
    """
    found = _SIGNS[check](gpu)
    return None if found is None else found[0]


def _others(gpu: GpuEvidence) -> tuple[str, Remedy] | None:
    if not gpu.other_processes:
        return None
    pids = gpu.other_processes
    command = f"ps -o pid,user,etime,args -p {','.join(map(str, pids))}"
    words = f"in use by process {listed(pids)} while measured"
    return words, Remedy(text="Measure again when the GPUs are idle.", command=command)


def _slowed(gpu: GpuEvidence) -> tuple[str, Remedy] | None:
    slow = [SLOWDOWNS[reason] for reason in gpu.throttle_reasons or () if reason in SLOWDOWNS]
    if not slow:
        return None
    words = f"clocks throttled while measured: {'; '.join(slow)}"
    command = "nvidia-smi -q -d PERFORMANCE,TEMPERATURE"
    return words, Remedy(text="Check fans, coolant and power supplies, then measure again.", command=command)


_Sign = Callable[[GpuEvidence], tuple[str, Remedy] | None]
"""What a GPU showed, in words, and what to do about it."""
_SIGNS: dict[str, _Sign] = {OTHERS: _others, THROTTLED: _slowed}


def _on_gpus(report: RunReport, check: str, sign: _Sign) -> Iterator[Seen]:
    """Yield what was seen of GPUs, those with the same sign together."""
    # By their labels: nodes of one run have GPUs of the same bus ids.
    ids: dict[str, dict[str, str]] = defaultdict(dict)
    numbers: dict[str, set[int]] = defaultdict(set)
    remedies: dict[str, Remedy] = {}
    for number, one in enumerate(report.measurements):
        for gpu in one.evidence.gpus if one.evidence is not None else ():
            if (found := sign(gpu)) is not None:
                words, remedies[found[0]] = found
                ids[words][gpu.label] = gpu.bus_id
                numbers[words].add(number)
    for words, gpus in ids.items():
        numbered = [label.removeprefix("GPU") for label in gpus]
        label = ", ".join(gpus)
        if all(map(str.isdecimal, numbered)):
            label = f"GPU{format_kernel_list(set(map(int, numbered)))}"
        place = Place(kind=PlaceKind.GPU, ids=tuple(dict.fromkeys(gpus.values())), label=label)
        finding = Finding(check=check, status=Status.WARN, summary=words, place=place, remedy=remedies[words])
        yield Seen(finding, frozenset(numbers[words]))
