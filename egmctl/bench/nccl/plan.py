"""Plan NCCL's measurement: the GPUs that take part, the program that is installed, and why it cannot be made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec

from egmctl.bench.nccl.collectives import COLLECTIVES, PREFIX
from egmctl.bench.nccl.torch_rank import BLOCK, VALUE_BYTES
from egmctl.bench.peaks import Peak
from egmctl.bench.plan.budget import most_bytes
from egmctl.bench.plan.flows import busy_waiver
from egmctl.bench.plan.paths import gpu_waiver
from egmctl.dataclass import dataclass
from egmctl.model.finding import Waiver, WaiverKind
from egmctl.model.gpu import Gpu
from egmctl.model.listing import ListedCase
from egmctl.model.machine import Machine
from egmctl.model.measurement import Settings
from egmctl.model.nccl import NcclPlan, NcclProgram
from egmctl.model.route import MemoryKind
from egmctl.model.task import Endpoint
from egmctl.units import GIB, format_size, listed

USUAL_BYTES = GIB
"""The size without ``--size``. NCCL reaches its full bandwidth between H200s with it (docs/bench.md)."""
ITERATIONS = 20
"""The number of collectives in one sample without ``--copies``: as nccl-tests, 66 ms between two H200."""
_BUFFERS: Mapping[NcclProgram, int] = {NcclProgram.TORCH: 2, NcclProgram.NCCL_TESTS: 3}
"""The buffers of ``size_bytes`` on each GPU at once: by PyTorch sendrecv has two, the others fewer; nccl-tests has one
to send, one to receive and one of expected values (``src/common.cu``)."""
START_S, STEP_S = 12.0, 1.0
"""The estimated time until all ranks have imported PyTorch and NCCL is set up, and that of each collective."""
BINARIES: Mapping[str, str] = {name: f"{name}_perf" for name in COLLECTIVES}
"""The binaries of nccl-tests by collective."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclRequest:
    """The measurement that the user requested, the same on all ranks."""

    collectives: tuple[str, ...]
    settings: Settings
    size_bytes: int | None
    """The size that the user chose; ``None``: the usual one, or what fits."""
    nvls: bool


def installed() -> NcclProgram | None:
    """Return the program that is installed for this interpreter or in PATH: PyTorch if both are."""
    if find_spec("torch") is not None:
        return NcclProgram.TORCH
    return NcclProgram.NCCL_TESTS if len(binaries()) == len(BINARIES) else None


def binaries() -> dict[str, str]:
    """Return the paths of the binaries of nccl-tests that are in PATH, by collective."""
    import shutil

    found = {name: shutil.which(binary) for name, binary in BINARIES.items()}
    return {name: path for name, path in found.items() if path is not None}


def nccl_plan(
    machine: Machine,
    gpus: Sequence[Gpu],
    settings: Settings,
    *,
    collectives: Sequence[str],
    size_bytes: int | None,
    nvls: bool,
    program: NcclProgram | None,
    assumed: bool = False,
) -> NcclPlan:
    """Return the plan for some GPUs. Those that cannot be used, or that others use, take no part.

    Parameters
    ----------
    collectives
        The names in :data:`egmctl.bench.nccl.collectives.COLLECTIVES`.
    size_bytes
        The size that the user chose; ``None``: :data:`USUAL_BYTES`, halved until it fits.
    program
        The result of :func:`installed`.
    assumed
        Whether a program is assumed to be there, as for a model of a machine.
    """
    able = [gpu for gpu in gpus if not any(_against(machine, gpu, settings))]
    room = room_of((free_gpu_bytes(machine, gpu) for gpu in able), settings)
    plan = NcclPlan(
        collectives=tuple(collectives),
        gpus=tuple(gpu.bus_id for gpu in able),
        labels=tuple(f"GPU{gpu.index}" for gpu in able),
        size_bytes=fitting_bytes(size_bytes, len(able), room, program),
        iterations=settings.copies or ITERATIONS,
        samples=1 if program is NcclProgram.NCCL_TESTS else settings.samples,
        nvls=nvls,
        program=program,
    )
    binary_names = ", ".join(BINARIES.values())
    missing = f"neither PyTorch nor nccl-tests ({binary_names} in PATH) is installed"
    left_out = [waiver for gpu in gpus for waiver in _against(machine, gpu, settings)] if len(able) < 2 else []
    own = waivers_of(plan, able, settings, room, missing="" if program is not None or assumed else missing)
    # Where enough GPUs were chosen, those that cannot be used are why there are too few.
    enough = len(gpus) > 1
    kept = [waiver for waiver in own if not (enough and waiver.kind is WaiverKind.TOO_FEW_GPUS)]
    return replace(plan, waivers=(*left_out, *kept))


def room_of(frees: Iterable[int | None], settings: Settings) -> int | None:
    """Return the bytes that buffers may take on each GPU, from the free bytes of all; ``None`` if unknown."""
    least = min((free for free in frees if free is not None), default=None)
    return None if least is None else least * settings.memory_percent // 100


def waivers_of(
    plan: NcclPlan, gpus: Sequence[Gpu], settings: Settings, room: int | None, *, missing: str = ""
) -> Iterator[Waiver]:
    """Yield the reasons against a plan: too few GPUs, then the program and the memory.

    Parameters
    ----------
    gpus
        The plan's GPUs.
    room
        The result of :func:`room_of`.
    missing
        The reason if no program is installed that could measure it; empty if one is, or is assumed.
    """
    if len(gpus) < 2:
        yield Waiver(kind=WaiverKind.TOO_FEW_GPUS, reason="NCCL needs two GPUs")
    if missing:
        yield Waiver(kind=WaiverKind.NOT_INSTALLED, reason=missing)
    if room is not None and _buffers(plan.program) * plan.size_bytes > room:
        share = f"{settings.memory_percent} % of a GPU's free memory"
        reason = f"NCCL's buffers of {format_size(plan.size_bytes)} are more than {share}"
        yield Waiver(kind=WaiverKind.NO_ROOM, reason=reason)
    if plan.program is not None and (unnamed := [gpu for gpu in gpus if gpu.uuid is None]):
        reason = f"NCCL's processes choose GPUs by UUID, and {listed([f'GPU{gpu.index}' for gpu in unnamed])} has none"
        yield Waiver.about(WaiverKind.UNSUPPORTED_ENGINE, reason, *unnamed)


def _against(machine: Machine, gpu: Gpu, settings: Settings) -> Iterator[Waiver]:
    """Yield the reasons why a GPU takes no part."""
    if (waiver := gpu_waiver(machine, gpu)) is not None:
        yield waiver
    elif not settings.allow_busy and (busy := busy_waiver(gpu)) is not None:
        yield busy


def _buffers(program: NcclProgram | None) -> int:
    """Return the number of buffers on each GPU; for a machine that is not this node those of PyTorch."""
    return _BUFFERS[program or NcclProgram.TORCH]


def fitting_bytes(size_bytes: int | None, ranks: int, room: int | None, program: NcclProgram | None) -> int:
    """Return a size of whole blocks: the one that the user chose, else the usual one, halved until it fits.

    Parameters
    ----------
    room
        The bytes that buffers may take on each GPU; ``None`` if unknown.
    """
    unit, size = _unit(ranks), size_bytes or USUAL_BYTES
    while size_bytes is None and room is not None and _buffers(program) * size > room and size > unit:
        size //= 2
    return max(size // unit, 1) * unit


def _unit(ranks: int) -> int:
    """Return what a size is a multiple of: each rank's part of a gathered buffer has whole blocks."""
    return BLOCK * VALUE_BYTES * max(ranks, 1)


def free_gpu_bytes(machine: Machine, gpu: Gpu) -> int | None:
    """Return the free bytes of a GPU, or all of them for a model; ``None`` if unknown."""
    return most_bytes(machine, Peak(Endpoint(memory=MemoryKind.DEVICE, label=f"GPU{gpu.index}", bus_id=gpu.bus_id), 0))


def nccl_seconds(plan: NcclPlan) -> float:
    """Return the estimated time of NCCL's measurement in seconds; 0 if it is not made."""
    return 0.0 if plan.waivers else START_S + STEP_S * len(plan.collectives)


def listed_cases(plan: NcclPlan | None) -> Iterator[ListedCase]:
    """Yield the entries of the collectives for ``--list``."""
    for name in () if plan is None else plan.collectives:
        yield ListedCase(
            name=f"{PREFIX}{name}",
            family="nccl",
            description=COLLECTIVES[name].description,
            axes=(),
            measurements=1,
            runnable=int(not (plan and plan.waivers)),
            reasons=tuple(waiver.reason for waiver in (plan.waivers[:1] if plan else ())),
        )
