"""The CPU load by other processes while a run measures."""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress

from egmctl.driver.reading import Unreadable
from egmctl.facts.root import Root
from egmctl.model.measurement import HostLoad

_BUSY = (1, 2, 3, 6, 7, 8)
"""The columns of the line ``cpu`` of /proc/stat that count as busy: user, nice, system, irq, softirq, steal
(proc_stat(5)). The first two include guests' time. Idle and iowait do not count."""


class HostLoadWatch:
    """The CPU time of the whole host since this object was created, except that of this process and its children."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._began_s = time.monotonic()
        self._before = self._others_s()

    def load(self) -> HostLoad | None:
        """Return the load by other processes until now; ``None`` if /proc/stat or /proc/loadavg cannot be read.

        A child's CPU time counts as this process' own only after the child has ended.
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
