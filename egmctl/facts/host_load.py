"""Watches how busy the host's CPUs are with others' work while this process and its children do theirs."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress

from egmctl.driver.reading import Unreadable
from egmctl.facts.root import Root
from egmctl.model.measurement import HostLoad

_BUSY = (1, 2, 3, 6, 7, 8)
"""Columns of the line ``cpu`` of /proc/stat: user, nice, system, irq, softirq, steal (proc_stat(5)). Guests' time is in
the first two; idle and iowait are no work."""


class HostLoadWatch:
    """The CPU time of the whole host from the making of this object on, less that of this process and its children."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._began_s = time.monotonic()
        self._before = self._others_s()

    def load(self) -> HostLoad | None:
        """Return what others used until now; ``None`` where /proc/stat or /proc/loadavg cannot be read.

        The CPU time of a child counts as this process' own once the child has ended.
        """
        now = self._others_s()
        with suppress(Unreadable, ValueError, IndexError):
            if now is not None and self._before is not None:
                return HostLoad(
                    cpus=len(re.findall(r"^cpu\d+ ", self._root.read("/proc/stat"), re.MULTILINE | re.ASCII)),
                    load_average=float(self._root.read("/proc/loadavg").split()[0]),
                    wall_s=round(time.monotonic() - self._began_s, 3),
                    others_cpu_s=round(max(0.0, now - self._before), 2),
                )
        return None

    def _others_s(self) -> float | None:
        with suppress(Unreadable, ValueError, IndexError):
            columns = self._root.read("/proc/stat").partition("\n")[0].split()
            own = os.times()
            busy_s = sum(int(columns[column]) for column in _BUSY) / os.sysconf("SC_CLK_TCK")
            return busy_s - own.user - own.system - own.children_user - own.children_system
        return None
