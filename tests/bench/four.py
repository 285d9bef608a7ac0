"""Four cases that make eight tasks for two GPUs and one NUMA node: for tests of what happens to tasks."""

from __future__ import annotations

from egmctl.bench.suites import select_cases

NAMES = (
    "host_numa_to_device_memcpy_ce",
    "device_to_host_numa_memcpy_ce",
    "device_to_device_memcpy_write_ce",
    "device_to_device_memcpy_read_ce",
)
FOUR = select_cases(NAMES)
OPTIONS = tuple(word for name in NAMES for word in ("--case", name))
