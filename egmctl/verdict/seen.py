"""What a run saw of its own causes: GPUs that were left out, other users, slowed clocks, another link. Pure.

Doctor's checks read a node at rest; these are seen only while, or because, something is measured. Each is a finding
like theirs, and says of which measurements it is evidence.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from egmctl.bench.plan.busy import in_use
from egmctl.bench.plan.paths import cuda_visible, gpu_waiver
from egmctl.doctor.checks.gpu import SLOWDOWNS
from egmctl.model.evidence import GpuEvidence, Verdict
from egmctl.model.finding import NODE, Evidence, Finding, Place, PlaceKind, Remedy, Status, on_gpus
from egmctl.model.machine import Gpu, Machine
from egmctl.model.measurement import RunReport

IN_USE, UNUSABLE, HIDDEN = "bench.gpu-in-use", "bench.gpu-unusable", "bench.gpu-hidden"
"""Ids of findings: a GPU that others use, one that cannot be used, one that CUDA_VISIBLE_DEVICES hides."""
OTHERS, THROTTLED, OTHER_LINK = "bench.other-processes", "bench.throttled", "bench.other-link"


@dataclass(frozen=True, slots=True)
class Seen:
    """A finding of the run, and the measurements that it is evidence of."""

    finding: Finding
    measurements: frozenset[int]


def busy_gpus(machine: Machine, gpus: Sequence[Gpu]) -> dict[str, str]:
    """Return by bus id who uses the GPUs that are not measured because of that."""
    visible = cuda_visible(machine)
    free = [gpu for gpu in gpus if gpu_waiver(machine, gpu, visible) is None]
    return {gpu.bus_id: who for gpu in free if (who := in_use(gpu)) is not None}


def unusable_gpus(machine: Machine, gpus: Sequence[Gpu]) -> dict[str, str]:
    """Return by bus id why GPUs cannot be measured from here, as one clause."""
    visible = cuda_visible(machine)
    return {gpu.bus_id: why for gpu in gpus if (why := gpu_waiver(machine, gpu, visible)) is not None}


def is_hidden(machine: Machine, gpu: Gpu) -> bool:
    """Say whether CUDA_VISIBLE_DEVICES is what keeps a GPU from being measured: whoever set it chose so."""
    visible = cuda_visible(machine)
    return gpu.cuda is not None and visible is not None and gpu.bus_id not in visible


def busy(gpus: Sequence[Gpu], *, asked: bool) -> Finding:
    """Return the finding on GPUs that others use: who they are, and what to do."""
    pids = sorted({process.pid for gpu in gpus if gpu.nvml for process in gpu.nvml.processes or ()})
    unseen = [who for gpu in gpus if not (gpu.nvml and gpu.nvml.processes) and (who := in_use(gpu))]
    told = [f"in use by process {_listed(pids)}"] if pids else []
    words = "; ".join([*told, *unseen])
    command = f"ps -o pid,user,etime,args -p {','.join(map(str, pids))}" if pids else "nvidia-smi"
    text = "Measure again when they are idle, or beside them with --allow-busy"
    return Finding(
        check=IN_USE,
        status=Status.FAIL if asked else Status.NOTE,
        summary=words + (f", and {on_gpus(gpus).label} was asked for" if asked else ""),
        place=on_gpus(gpus),
        evidence=tuple(
            Evidence(source=f"nvmlDeviceGetComputeRunningProcesses(GPU{gpu.index})", value=who)
            for gpu in gpus
            if (who := in_use(gpu)) is not None
        ),
        remedy=Remedy(text=f"{text}; this shows who they are.", command=command),
    )


def unusable(machine: Machine, gpus: Sequence[Gpu], *, asked: bool) -> Finding:
    """Return the finding on GPUs that cannot be measured for a reason that no check of doctor's knows."""
    hidden = all(is_hidden(machine, gpu) for gpu in gpus)
    why = dict.fromkeys(_without_label(one) for one in unusable_gpus(machine, gpus).values())
    words = "hidden by CUDA_VISIBLE_DEVICES" if hidden else "; ".join(why)
    advice = (
        "Unset CUDA_VISIBLE_DEVICES, or leave these GPUs out with --gpus."
        if hidden
        else "See what stops them with 'egmctl doctor --active'."
    )
    return Finding(
        check=HIDDEN if hidden else UNUSABLE,
        status=Status.FAIL if asked else Status.NOTE,
        summary=words + (f", and {on_gpus(gpus).label} was asked for" if asked else ""),
        place=on_gpus(gpus),
        remedy=Remedy(text=advice),
    )


def during(report: RunReport) -> Iterator[Seen]:
    """Yield what the GPUs and the links of measurements showed while these ran."""
    yield from _on_gpus(report, OTHERS, _others)
    yield from _on_gpus(report, THROTTLED, _slowed)
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


def _others(gpu: GpuEvidence) -> tuple[str, Remedy] | None:
    if not gpu.other_processes:
        return None
    pids = gpu.other_processes
    command = f"ps -o pid,user,etime,args -p {','.join(map(str, pids))}"
    words = f"process {_listed(pids)} used it while it was measured"
    return words, Remedy(text="Measure again when the GPUs are idle; this shows who used them.", command=command)


def _slowed(gpu: GpuEvidence) -> tuple[str, Remedy] | None:
    slow = [SLOWDOWNS[reason] for reason in gpu.throttle_reasons or () if reason in SLOWDOWNS]
    if not slow:
        return None
    words = f"clocks throttled while it was measured: {'; '.join(slow)}"
    command = "nvidia-smi -q -d PERFORMANCE,TEMPERATURE"
    return words, Remedy(text="Check fans, coolant and power supplies, then measure again.", command=command)


_Sign = Callable[[GpuEvidence], tuple[str, Remedy] | None]
"""What a GPU showed, in words, and what to do about it."""


def _on_gpus(report: RunReport, check: str, sign: _Sign) -> Iterator[Seen]:
    """Yield what was seen of GPUs, those with the same sign together."""
    ids: dict[str, dict[str, str]] = defaultdict(dict)
    numbers: dict[str, set[int]] = defaultdict(set)
    remedies: dict[str, Remedy] = {}
    for number, one in enumerate(report.measurements):
        for gpu in one.evidence.gpus if one.evidence is not None else ():
            if (found := sign(gpu)) is not None:
                words, remedies[found[0]] = found
                ids[words][gpu.bus_id] = gpu.label
                numbers[words].add(number)
    for words, gpus in ids.items():
        place = Place(kind=PlaceKind.GPU, ids=tuple(gpus), label=", ".join(gpus.values()))
        finding = Finding(check=check, status=Status.WARN, summary=words, place=place, remedy=remedies[words])
        yield Seen(finding, frozenset(numbers[words]))


def _without_label(why: str) -> str:
    return why.partition(": ")[2] or why


def _listed(pids: Sequence[int]) -> str:
    more = f" and {len(pids) - _SHOWN} more" if len(pids) > _SHOWN else ""
    return ", ".join(map(str, pids[:_SHOWN])) + more


_SHOWN = 3
