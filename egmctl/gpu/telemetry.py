"""NVML telemetry of GPUs during a measurement: clocks, throttle reasons, temperature, link and error counters.

NVML is queried between samples or at most every 20 ms. The queries go through the driver, not over the links.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from datetime import datetime, timezone
from typing import Any

from egmctl.dataclass import dataclass
from egmctl.driver.nvml import LOST, Field, ask, event_reasons, field_values, gpm_rates
from egmctl.driver.reading import Reasons, Unreadable
from egmctl.launch import Channel
from egmctl.model.codec import to_json
from egmctl.model.measurement import NVLINK_COUNT, counted_bytes
from egmctl.model.record import Reason
from egmctl.model.route import LinkKind
from egmctl.units import GB, MIB

_ALL_LINKS = 0xFFFFFFFF
"""The scope id of all links: "A scopeId of UINT_MAX returns aggregate value summed up across all links" (nvml.h)."""
_KIB = 1024
COUNTERS: Mapping[str, Mapping[str, tuple[int, int, int]]] = {
    LinkKind.NVLINK: {LinkKind.NVLINK: (138, 139, _KIB), NVLINK_COUNT: (202, 204, 1)},
    LinkKind.PCIE: {LinkKind.PCIE: (197, 198, 1)},
}
"""The fields of the byte counters, sent and received, and their unit, by link and by their name in :class:`Traffic`:
NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX (in KiB, without protocol: on H200 exactly the copied bytes),
NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES and _RCV_BYTES (nvml.h: for NVLink 5 and newer; not seen to answer yet),
NVML_FI_DEV_PCIE_COUNT_TX_BYTES and _RX_BYTES (with protocol). NVML has none for C2C."""
_NVLINK_5 = 7
"""NVML_NVLINK_VERSION_5_0. Older links are not asked for the newer byte counters."""
_ERRORS: Mapping[str, Mapping[str, int]] = {
    LinkKind.NVLINK: {
        "nvlink-replays": 161,
        "nvlink-recoveries": 162,
        "nvlink-crc-errors": 163,
        "nvlink-link-recoveries": 215,
        "nvlink-effective-errors": 219,
        "nvlink-symbol-errors": 221,
    },
    LinkKind.C2C: {"c2c-errors": 231, "c2c-replays": 232, "c2c-replays-back-to-back": 233},
    LinkKind.PCIE: {
        "pcie-replays": 94,
        "pcie-correctable-errors": 173,
        "pcie-non-fatal-errors": 179,
        "pcie-fatal-errors": 180,
    },
}
"""The error counters by kind of link: NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, _RECOVERY, _CRC (up to NVLink 4),
NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS, _EFFECTIVE_ERRORS, _SYMBOL_ERRORS (from NVLink 5 on),
NVML_FI_DEV_C2C_LINK_ERROR_INTR, _REPLAY, _REPLAY_B2B of each link, NVML_FI_DEV_PCIE_REPLAY_COUNTER and
NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS, _NON_FATAL_ERROR, _FATAL_ERROR."""
_NVLINKS, _C2C_COUNT = 91, 170
_MOST_LINKS = 64
"""The largest number of links that is believed."""
_CLOCK_SM, _CLOCK_MEMORY = 1, 2
_TEMPERATURE_GPU = 0

_PCIE_WRAPS = 1 << 32
"""The range of the PCIe counters, which have 32 bits (measured on H200): at 55 GB/s they wrap every 78 ms."""
_PCIE_WINDOW_S = 0.02
"""The time between the two readings of the PCIe counters in a sample of :func:`watch`: that of
nvmlDeviceGetPcieThroughput (nvml.h)."""
_PCIE_RECEIVED_PER_DATA = 59.9 / 55.3
_PCIE_SENT_PER_DATA = 60.5 / 55.2
"""What the PCIe counters count for each byte of data that a GPU reads from host memory, and that it writes there:
packets have headers, of writes the longer ones. Measured with copies on H200, PCIe 5.0 x16 (docs/hardware-notes.md)."""
_PCIE_REQUESTS = 5.2 / 55.3
"""What a GPU sends for each byte of data that it reads from host memory: requests, without data (the same copies). For
what it writes it receives nothing that is counted."""
_LATE = "its 32-bit counters were read too late and may have wrapped"
_NO_RISE = "a counter is smaller than in the last sample, as after a reset, or NVML's two kinds contradict each other"
_MEMORY_V2 = 0x2000028
"""nvmlMemory_v2, the version of nvmlMemory_v2_t: its used memory is without the reserved one."""
_GPM_C2C = (102, 103)
"""NVML_GPM_METRIC_C2C_DATA_TX_PER_SEC and _RX_PER_SEC, in MiB/s. Not seen to answer yet."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """The byte counters of a GPU's links, or their increase. Links without counters in NVML are left out."""

    sent_bytes: Mapping[str, int] = field(default_factory=dict)
    received_bytes: Mapping[str, int] = field(default_factory=dict)

    def since(self, before: Traffic) -> Traffic:
        """Return the increase of each counter. The PCIe counter must have wrapped at most once."""
        return Traffic(rise(self.sent_bytes, before.sent_bytes), rise(self.received_bytes, before.received_bytes))

    def __add__(self, other: Traffic) -> Traffic:
        """Add the increases of two intervals."""
        return Traffic(_sum(self.sent_bytes, other.sent_bytes), _sum(self.received_bytes, other.received_bytes))


@dataclass(frozen=True, slots=True)
class ClockState:
    """The clocks, throttle reasons and temperature of a GPU at one time; ``None`` if NVML does not report them."""

    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    throttle_reasons: tuple[str, ...] | None
    temperature_c: int | None


class Telemetry:
    """An NVML session, open until :meth:`close`. If NVML cannot be initialized, it has no GPUs.

    Parameters
    ----------
    bus_ids
        The PCI bus ids of the GPUs to query. GPUs that NVML does not list are left out.
    why_not
        The reason not to call NVML, because it would crash or hang the process; ``None`` to call it.

    Attributes
    ----------
    why_not
        The reason why NVML is not in use; ``None`` if it is.
    lost
        The failed call and its error, by bus id, for each GPU that NVML reported as lost.
    """

    def __init__(self, bus_ids: Iterable[str], why_not: str | None = None) -> None:
        self._handles: dict[str, Any] = {}
        self._supported: dict[str, frozenset[Field]] = {}
        self._last_errors: dict[tuple[str, str], dict[str, int]] = {}
        self.lost: dict[str, str] = {}
        self.why_not = why_not
        if why_not is not None:
            return
        try:
            ask("nvmlInit")
        except Unreadable as error:
            self.why_not = str(error)
            return
        for bus_id in bus_ids:
            with self._noting_loss(bus_id):
                self._handles[bus_id] = handle = ask("nvmlDeviceGetHandleByPciBusId", bus_id)
                self._supported[bus_id] = _supported(handle)
                for link in _ERRORS:
                    self._last_errors[bus_id, link] = self._errors(bus_id, link)

    def knows(self, bus_id: str) -> bool:
        """Return whether NVML lists a GPU."""
        return bus_id in self._handles

    def traffic(self, bus_id: str, links: Iterable[str]) -> Traffic:
        """Read the byte counters of a listed GPU's links. This takes 0.8 ms for NVLink and 0.2 ms for PCIe (H200)."""
        counters = {name: fields for link in links for name, fields in COUNTERS.get(link, {}).items()}
        numbers = {number for *ways, _ in counters.values() for number in ways}
        wanted = [counter for counter in self._supported[bus_id] if _number_of(counter) in numbers]
        values = self._read(bus_id, wanted)
        totals: Counter[int] = Counter()
        for counter, value in values.items():
            totals[_number_of(counter)] += value
        # The sum of the counters of single links is known only if all were read.
        known = totals.keys() - {_number_of(counter) for counter in wanted if counter not in values}
        sent, received = (
            {name: totals[fields[way]] * fields[2] for name, fields in counters.items() if fields[way] in known}
            for way in (0, 1)
        )
        return Traffic(sent, received)

    def new_errors(self, bus_id: str, links: Iterable[str]) -> dict[str, int]:
        """Return the increase of each error counter of some links that has increased since its last reading."""
        rises = {}
        for link in links:
            errors = self._errors(bus_id, link)
            rises.update(rise(errors, self._last_errors[bus_id, link]))
            self._last_errors[bus_id, link] = errors
        return {name: by for name, by in rises.items() if by}

    def state(self, bus_id: str) -> ClockState:
        """Read the current state of a listed GPU."""
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons", bus_id)
        return ClockState(
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", bus_id, _CLOCK_SM),
            memory_clock_mhz=self._ask("nvmlDeviceGetClockInfo", bus_id, _CLOCK_MEMORY),
            throttle_reasons=None if reasons is None else tuple(event_reasons(reasons)),
            temperature_c=self._ask("nvmlDeviceGetTemperature", bus_id, _TEMPERATURE_GPU),
        )

    def process_ids(self, bus_id: str) -> tuple[int, ...] | None:
        """Return the ids of the compute processes on a listed GPU, including this process; ``None`` if unknown."""
        processes = self._ask("nvmlDeviceGetComputeRunningProcesses", bus_id)
        return None if processes is None else tuple(process.pid for process in processes)

    def close(self) -> None:
        """Shut NVML down."""
        if self.why_not is None:
            with contextlib.suppress(Unreadable):
                ask("nvmlShutdown")

    def _errors(self, bus_id: str, link: str) -> dict[str, int]:
        names = {number: name for name, number in _ERRORS[link].items()}
        fields = [field for field in self._supported[bus_id] if _number_of(field) in names]
        errors: Counter[str] = Counter()
        for counter, value in self._read(bus_id, fields).items():
            # Each C2C link has its own counter.
            errors[names[_number_of(counter)]] += value
        return errors

    def _ask(self, function: str, bus_id: str, *arguments: int) -> Any:
        """Call NVML for a GPU and return the result; ``None`` if the call fails."""
        with self._noting_loss(bus_id):
            return ask(function, self._handles[bus_id], *arguments)
        return None

    @contextlib.contextmanager
    def _noting_loss(self, bus_id: str) -> Iterator[None]:
        """Suppress Unreadable in the ``with`` block; if NVML has lost the GPU, record it in :attr:`lost`."""
        try:
            yield
        except Unreadable as error:
            self._note_loss(bus_id, error)

    def _note_loss(self, bus_id: str, error: Unreadable) -> None:
        if error.number in LOST:
            self.lost.setdefault(bus_id, str(error))

    def _read(self, bus_id: str, wanted: Sequence[Field]) -> dict[Field, int]:
        """Read fields in one call; leave out those without a value."""
        answers = field_values(self._handles[bus_id], wanted) if wanted else {}
        for answer in answers.values():
            if isinstance(answer, Unreadable):
                self._note_loss(bus_id, answer)
        return {field: value for field, value in answers.items() if isinstance(value, int)}


class TrafficWatch(Telemetry):
    """The traffic of GPUs between two readings. NVLink-C2C has no byte counters: NVML's GPM reports its rates.

    Parameters
    ----------
    rates
        The rates of the links in GB/s, by bus id and kind; ``None`` if unknown. A GPU has no other links.
    """

    def __init__(self, rates: Mapping[str, Mapping[str, float | None]]) -> None:
        super().__init__(rates)
        self._rates = rates
        self._c2c = {bus_id: gpm_rates(handle, *_GPM_C2C) for bus_id, handle in self._handles.items()}
        self._last: dict[str, dict[str, _Reading]] = {LinkKind.NVLINK: self._readings(LinkKind.NVLINK)}
        self._interval: dict[str, dict[str, tuple[_Reading, _Reading]]] = {}

    def read(self) -> None:
        """Read the NVLink counters of all GPUs, which ends their interval, and PCIe's, which begins theirs."""
        self._end_interval(LinkKind.NVLINK)
        self._last[LinkKind.PCIE] = self._readings(LinkKind.PCIE)

    def end_pcie(self) -> None:
        """Read the PCIe counters of all GPUs once more, which ends their interval."""
        self._end_interval(LinkKind.PCIE)

    def _end_interval(self, kind: str) -> None:
        before, after = self._last[kind], self._readings(kind)
        self._interval[kind] = {bus_id: (before[bus_id], after[bus_id]) for bus_id in self._handles}
        self._last[kind] = after

    def _readings(self, kind: str) -> dict[str, _Reading]:
        """Read the counters of one kind of link of all GPUs, one right after the other."""
        return {bus_id: self._reading(bus_id, kind) for bus_id in self._handles}

    def _reading(self, bus_id: str, kind: str) -> _Reading:
        begun_s = time.monotonic()
        traffic = self.traffic(bus_id, [kind])
        return _Reading(begun_s, traffic, time.monotonic())

    def record(self, bus_id: str) -> dict[str, Any]:
        """Return the links and load of a ``GpuTraffic`` in the last interval of each kind of link."""
        reasons = Reasons()
        # The calls that a lost GPU fails come first: nothing of it is believed after one.
        for read in (self._busy, self._memory):
            with self._noting_loss(bus_id):
                read(bus_id)
        links = reasons.mapping("links", self._rates[bus_id], lambda kind: self._link(bus_id, kind))
        busy = reasons.fields("busy_percent", lambda: self._busy(bus_id))
        memory = reasons.fields("memory_used_bytes memory_total_bytes", lambda: self._memory(bus_id))
        return reasons.record(dict, links=links, lost=bus_id in self.lost, **busy, **memory)

    def _busy(self, bus_id: str) -> int:
        percent: int = ask("nvmlDeviceGetUtilizationRates", self._handle(bus_id)).gpu
        return percent

    def _memory(self, bus_id: str) -> tuple[int, int]:
        info = ask("nvmlDeviceGetMemoryInfo", self._handle(bus_id), _MEMORY_V2)
        return info.used, info.total

    def _handle(self, bus_id: str) -> Any:
        """Return a GPU's handle; raise Unreadable if NVML does not list it or has lost it."""
        if bus_id in self._handles and bus_id not in self.lost:
            return self._handles[bus_id]
        raise Unreadable(Reason.NOT_PRESENT, self.lost.get(bus_id) or self.why_not or "NVML does not list this GPU")

    def _link(self, bus_id: str, kind: str) -> dict[str, float | None]:
        """Return a ``LinkTraffic``.

        Raises
        ------
        Unreadable
            A counter is missing or not permitted, has been reset, or may have wrapped.
        """
        self._handle(bus_id)
        rates = next(self._c2c[bus_id]) if kind == LinkKind.C2C else self._counted(bus_id, kind)
        if isinstance(rates, Unreadable):
            raise rates
        sent, received = (rate * (MIB if kind == LinkKind.C2C else 1) / GB for rate in rates)
        traffic = {"sent_gb_s": sent, "received_gb_s": received, "rate_gb_s": self._rates[bus_id][kind]}
        if kind == LinkKind.PCIE:
            traffic |= dict(zip(("sent_data_gb_s", "received_data_gb_s"), data_of(sent, received), strict=True))
        return traffic

    def _counted(self, bus_id: str, kind: str) -> list[float] | Unreadable:
        """Return the bytes per second by the counters, sent and received, or why they are unknown."""
        before, after = self._interval[kind][bus_id]
        # If the rate is unknown: 121 GB/s, that of PCIe 6.0 x16 (egmctl.topology.links.pcie_hop).
        most_bytes = (after.ended_s - before.begun_s) * (self._rates[bus_id][kind] or 121) * GB
        if kind == LinkKind.PCIE and most_bytes >= _PCIE_WRAPS:
            return Unreadable(Reason.TIMED_OUT, _LATE)
        increase = after.traffic.since(before.traffic)
        ways = [counted_bytes(rises, kind) for rises in (increase.sent_bytes, increase.received_bytes)]
        known = [rise / (after.middle_s - before.middle_s) for rise in ways if rise is not None]
        if len(known) == len(ways):
            return known
        if COUNTERS[kind].keys() & after.traffic.sent_bytes & after.traffic.received_bytes.keys():
            return Unreadable(Reason.FAILED, _NO_RISE)
        scope = _ALL_LINKS if kind == LinkKind.NVLINK else 0
        answers = field_values(self._handle(bus_id), [(number, scope) for number in COUNTERS[kind][kind][:2]]).values()
        refusals = (answer for answer in answers if isinstance(answer, Unreadable))
        return next(refusals, Unreadable(Reason.FAILED, "NVML did not answer this time"))


@dataclass(frozen=True, slots=True)
class _Reading:
    """The counters of one kind of link, read between two times of the monotonic clock."""

    begun_s: float
    traffic: Traffic
    ended_s: float

    @property
    def middle_s(self) -> float:
        """The time that the counters are taken to be of: wrong by half of the time that the reading took, at most."""
        return (self.begun_s + self.ended_s) / 2


def data_of(sent_gb_s: float, received_gb_s: float) -> tuple[float, float]:
    """Return an estimate of the data that a GPU sends and receives over PCIe, from what its counters say, in GB/s.

    The counters count protocol too: headers, and the requests for what is received. What the host's CPUs or other
    devices read and write has other packets.
    """
    received_data = received_gb_s / _PCIE_RECEIVED_PER_DATA
    return max(0.0, sent_gb_s - _PCIE_REQUESTS * received_data) / _PCIE_SENT_PER_DATA, received_data


def watch(parent: Channel, arguments: dict[str, Any]) -> None:
    """Send the fields of a ``TrafficSample`` at once and then after each interval, until the parent ends this process.

    Parameters
    ----------
    arguments
        ``gpus``, the fields of each ``GpuTraffic`` that do not change; ``rates``, as for :class:`TrafficWatch`;
        ``lost``, why GPUs are already known to be lost, by bus id; and ``interval_s``.
    """
    traffic, due = TrafficWatch(arguments["rates"]), time.monotonic()
    traffic.lost.update(arguments["lost"])
    while True:
        traffic.read()
        time.sleep(_PCIE_WINDOW_S)
        traffic.end_pcie()
        gpus = [{**gpu, **to_json(traffic.record(gpu["bus_id"]))} for gpu in arguments["gpus"]]
        parent.send({"taken_at": datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"), "gpus": gpus})
        due = max(due + arguments["interval_s"], time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


def _supported(handle: Any) -> frozenset[Field]:
    """Return the counters that a GPU supports, so that later reads do not spend time on the others.

    NVLink's byte counters are those of all links together or, if NVML does not add them up, of each link.
    """
    counts = field_values(handle, [_NVLINKS, _C2C_COUNT]).values()
    nvlinks, c2c_links = (count if isinstance(count, int) else 0 for count in counts)
    links = range(min(nvlinks, _MOST_LINKS))
    older, newer = (COUNTERS[LinkKind.NVLINK][name][:2] for name in (LinkKind.NVLINK, NVLINK_COUNT))
    byte_counters = (*older, *newer) if any(_is_nvlink_5(handle, link) for link in links) else older
    fields: list[Field] = [(number, _ALL_LINKS) for number in (*byte_counters, *_ERRORS[LinkKind.NVLINK].values())]
    fields += [*COUNTERS[LinkKind.PCIE][LinkKind.PCIE][:2], *_ERRORS[LinkKind.PCIE].values()]
    for link in range(min(c2c_links, _MOST_LINKS)):
        fields += [(number, link) for number in _ERRORS[LinkKind.C2C].values()]
    supported = _answered(handle, fields)
    apart = [number for number in byte_counters if (number, _ALL_LINKS) not in supported]
    of_links = [(number, link) for number in apart for link in links]
    return supported | (_answered(handle, of_links) if of_links else frozenset())


def _is_nvlink_5(handle: Any, link: int) -> bool:
    with contextlib.suppress(Unreadable):
        return bool(ask("nvmlDeviceGetNvLinkVersion", handle, link) >= _NVLINK_5)
    return False


def _answered(handle: Any, fields: Iterable[Field]) -> frozenset[Field]:
    return frozenset(field for field, answer in field_values(handle, fields).items() if isinstance(answer, int))


def _number_of(field: Field) -> int:
    return field[0] if isinstance(field, tuple) else field


def rise(after: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """Return the increase of each counter. A decrease is a wrap for PCIe; other decreased counters are left out."""
    rises = {name: after[name] - before[name] for name in after if name in before}
    if LinkKind.PCIE in rises:
        rises[LinkKind.PCIE] %= _PCIE_WRAPS
    return {name: rise for name, rise in rises.items() if rise >= 0}


def _sum(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return {name: first.get(name, 0) + second.get(name, 0) for name in {**first, **second}}
