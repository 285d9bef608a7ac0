"""The check that the GPUs of a node are alike: work that uses all of them runs at the pace of the one that differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from egmctl.dataclass import dataclass
from egmctl.doctor.check import Scope, Verdicts, check, end, skip
from egmctl.doctor.findings import fact, noted, passed, unknown, warned
from egmctl.doctor.situation import answering_gpus
from egmctl.model.finding import Finding, Guard, on_gpus
from egmctl.model.gpu import Gpu, GpuNvml
from egmctl.model.machine import Machine
from egmctl.model.record import Reason
from egmctl.model.remedy import GPUS, Need, Remedy, as_root, todo
from egmctl.topology.access import memory_limit
from egmctl.units import format_size, group_by


@dataclass(frozen=True, slots=True)
class Property:
    """A property in which GPUs of one kind are alike."""

    name: str
    """The name in output."""
    fields: tuple[str, ...]
    """The fields of :class:`egmctl.model.gpu.GpuNvml` that it consists of."""
    words: Callable[[GpuNvml], str]
    """Its value in output."""
    remedy: Remedy
    slows: bool = True
    """Whether a difference changes what a GPU can do; else it is only noted."""

    def value_of(self, gpu: Gpu) -> str | None:
        """Return the value of a GPU in output; ``None`` if it was not read."""
        if gpu.nvml is None or any(getattr(gpu.nvml, name) is None for name in self.fields):
            return None
        return self.words(gpu.nvml)


def _megahertz(name: str) -> Callable[[GpuNvml], str]:
    return lambda nvml: f"{getattr(nvml, name)} MHz"


_ECC = as_root(
    "Make ECC alike on all; a change needs a reset of the GPU.",
    Need.GPU_RESET,
    look=f"nvidia-smi -i {GPUS} -q -d ECC",
)
_MEMORY = todo(
    "Look for memory that was retired (Xid 160, 161, 168) and for a part of it that another setting takes.",
    look=f"nvidia-smi -i {GPUS} -q -d MEMORY,ECC,ROW_REMAPPER",
)
_CLOCKS = as_root(
    "Where nobody limited its clocks on purpose, take the limit back, and compare the VBIOS.",
    look=f"nvidia-smi -i {GPUS} -q -d CLOCK",
    run=f"nvidia-smi -i {GPUS} -rgc",
)
_WATTS = as_root("Set one power limit on all.", look=f"nvidia-smi -i {GPUS} -q -d POWER")
_BOARD = todo("Compare the boards, and update the firmware of the one that is behind.", look=f"nvidia-smi -i {GPUS} -q")

_MEMORY_SIZE = "memory"

PROPERTIES = (
    Property("ECC", ("ecc_mode",), lambda nvml: "on" if nvml.ecc_mode else "off", _ECC),
    Property(_MEMORY_SIZE, ("memory_total_bytes",), lambda nvml: format_size(nvml.memory_total_bytes or 0), _MEMORY),
    Property("maximum SM clock", ("sm_clock_max_mhz",), _megahertz("sm_clock_max_mhz"), _CLOCKS),
    Property("maximum memory clock", ("memory_clock_max_mhz",), _megahertz("memory_clock_max_mhz"), _CLOCKS),
    Property("power limit", ("power_limit_mw",), lambda nvml: f"{(nvml.power_limit_mw or 0) / 1000:g} W", _WATTS),
    Property("VBIOS", ("vbios",), lambda nvml: nvml.vbios or "", _BOARD, slows=False),
    Property("InfoROM", ("inforom_image",), lambda nvml: nvml.inforom_image or "", _BOARD, slows=False),
    Property("board", ("board_part_number",), lambda nvml: nvml.board_part_number or "", _BOARD, slows=False),
)
"""What GPUs of one kind have in common, in a node and across a fleet (:mod:`egmctl.fleet.uniform`)."""

_NOT_THERE = (Reason.NOT_SUPPORTED, Reason.DRIVER_TOO_OLD)


@check("gpu.uniform", Guard.PERF)
def _uniform(machine: Machine, scope: Scope) -> Verdicts:
    kinds = group_by(answering_gpus(machine, scope), lambda gpu: (gpu.pci and gpu.pci.pci_id, gpu.name))
    siblings = [gpus for _, gpus in kinds if len(gpus) > 1]
    if not siblings:
        skip("no two GPUs of one kind are here")
    compared: list[str] = []
    unread: list[str] = []
    faults: list[Finding] = []
    for gpus in siblings:
        for compared_property in PROPERTIES:
            alike = comparable(machine, gpus, compared_property)
            if len(alike) < 2:
                continue
            values = _values(alike, compared_property)
            if len(values) == len(alike):
                compared.append(compared_property.name)
            elif compared_property.slows and not _absent(alike, compared_property):
                unread.append(compared_property.name)
            faults += _differences(compared_property, values)
        faults += _slow_clocks(gpus)
    yield from faults
    unread = list(dict.fromkeys(unread))
    if unread:
        yield unknown(f"whether the GPUs are alike: {', '.join(unread)} not read of each")
    elif not faults:
        if not compared:
            end(unknown("whether the GPUs are alike: nothing to compare was read"))
        yield passed(f"the GPUs are alike in {', '.join(dict.fromkeys(compared))}")


def comparable(machine: Machine, gpus: Sequence[Gpu], compared: Property) -> Sequence[Gpu]:
    """Return the GPUs whose property is their own: under a limit, NVML reports the limit as the total memory."""
    if compared.name != _MEMORY_SIZE:
        return gpus
    return [gpu for gpu in gpus if memory_limit(machine, gpu) is None]


def _values(gpus: Sequence[Gpu], compared: Property) -> list[tuple[Gpu, str]]:
    """Return the GPUs of which the property was read, and its value in output."""
    return [(gpu, value) for gpu in gpus if (value := compared.value_of(gpu)) is not None]


def _absent(gpus: Sequence[Gpu], compared: Property) -> bool:
    """Return whether these GPUs lack a property altogether, or an older recording of them does."""
    reasons = {gpu.nvml.reason_of(name) for gpu in gpus if gpu.nvml for name in compared.fields}
    lacking = {*_NOT_THERE, Reason.NOT_STATED} if compared.name == "power limit" else set(_NOT_THERE)
    return bool(reasons) and reasons <= lacking


def _differences(compared: Property, values: list[tuple[Gpu, str]]) -> Iterator[Finding]:
    """Yield the findings on GPUs that differ from the most; if no value has a majority, one on all of them."""
    by_value = {value: [gpu for gpu, _ in pairs] for value, pairs in group_by(values, lambda pair: pair[1])}
    if len(by_value) < 2:
        return
    evidence = tuple(fact(f"{compared.name} of {on_gpus(gpus).label}", value) for value, gpus in by_value.items())
    usual = max(by_value, key=lambda value: len(by_value[value]))
    if 2 * len(by_value[usual]) <= len(values):
        shown = ", ".join(f"{value} for {on_gpus(gpus).label}" for value, gpus in by_value.items())
        text = f"GPUs of one kind differ in {compared.name}: {shown}"
        yield _finding(compared, text, [gpu for gpu, _ in values], evidence=evidence)
        return
    for value, gpus in by_value.items():
        if value != usual:
            others = on_gpus(by_value[usual]).label
            text = f"{compared.name} is {value}, and {usual} for {others}"
            yield _finding(compared, text, gpus, evidence=evidence)


def _finding(compared: Property, text: str, gpus: list[Gpu], **more: Any) -> Finding:
    if not compared.slows:
        return noted(text, gpus, remedy=compared.remedy, **more)
    cause = "work that uses all GPUs waits for the one that differs"
    return warned(text, compared.remedy, gpus, cause=cause, **more)


_LOW_CLOCK = 0.8
"""The share of the SM clock of busy GPUs of one kind below which a busy one's is noted. Our choice: by power and heat
they differ by a few per cent under one load."""
_UNLOCK = as_root(
    "Where nobody locked it on purpose, take the lock back (-rgc), and the application clocks (-rac).",
    look=f"nvidia-smi -i {GPUS} -q -d CLOCK",
    run=f"nvidia-smi -i {GPUS} -rgc",
)


def _slow_clocks(gpus: Sequence[Gpu]) -> Iterator[Finding]:
    """Yield the notes on busy GPUs whose clock is far below that of others, for no reason that NVML states.

    A locked clock is none of NVML's reasons (https://github.com/NebuTech/NBMiner/issues/661).
    """
    clocks = {gpu.bus_id: clock for gpu in gpus if (clock := _busy_clock(gpu)) is not None}
    if len(clocks) < _FEW:
        return
    usual = sorted(clocks.values())[len(clocks) // 2]
    evidence = tuple(
        fact(f"SM clock of GPU{gpu.index}", f"{clocks[gpu.bus_id]} MHz") for gpu in gpus if gpu.bus_id in clocks
    )
    for gpu in gpus:
        clock = clocks.get(gpu.bus_id)
        if clock is not None and clock < _LOW_CLOCK * usual:
            text = f"the SM clock is {clock} MHz under load, and {usual} MHz on others, for no reason that NVML states"
            cause = "a program or an administrator may have locked it, which is none of NVML's reasons"
            yield noted(text, gpu, remedy=_UNLOCK, cause=cause, evidence=evidence)


_FEW = 3
"""The number of busy GPUs from which the clock of most is known."""


def _busy_clock(gpu: Gpu) -> int | None:
    """Return the SM clock of a GPU that works in its highest state and that nothing slows down; else ``None``."""
    nvml = gpu.nvml
    if nvml is None or nvml.throttle_reasons != () or not nvml.processes or nvml.performance_state != 0:
        return None
    return nvml.sm_clock_mhz
