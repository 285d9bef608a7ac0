"""The options that choose cases, and four cases that make eight tasks for two GPUs and one NUMA node."""

from __future__ import annotations

from egmctl.bench.suites import select_cases

NAMES = (
    "host_numa_to_device_memcpy_ce",
    "device_to_host_numa_memcpy_ce",
    "device_to_device_memcpy_write_ce",
    "device_to_device_memcpy_read_ce",
)
FOUR = select_cases(NAMES)


def cases(*names: str) -> tuple[str, ...]:
    """Return the options that choose cases."""
    return tuple(word for name in names for word in ("--case", name))


OPTIONS = cases(*NAMES)
