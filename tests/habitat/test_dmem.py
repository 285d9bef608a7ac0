"""The controller ``dmem`` of this kernel, where it has one: what egmctl reads is what the kernel's files state."""

from __future__ import annotations

from pathlib import Path

import pytest

from egmctl.facts.process import device_memory_capacity, device_memory_limits
from egmctl.facts.root import Root

CGROUPS = Path("/sys/fs/cgroup")


def test_a_real_controller_states_what_is_read() -> None:
    controllers = CGROUPS / "cgroup.controllers"
    if not controllers.exists() or "dmem" not in controllers.read_text().split():
        pytest.skip("this kernel has no dmem controller (CONFIG_CGROUP_DMEM)")
    capacity = CGROUPS / "dmem.capacity"
    if capacity.exists():
        regions = [line for line in capacity.read_text().splitlines() if line.startswith("nvidia/")]
        assert len(device_memory_capacity(Root("/"), "/proc/self")) == len(regions)
    for limit in device_memory_limits(Root("/"), "/proc/self"):
        assert limit.max_bytes is None or limit.max_bytes >= -1
