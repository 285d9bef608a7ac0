"""How busy the host is with others: of the real one, with a process that keeps a CPU at work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from egmctl.facts.host import HostLoadWatch
from egmctl.facts.root import Root
from tests.known import known
from tests.launch.start import wait_until


def used_ticks(pid: int) -> int:
    """Return the CPU time that a process has used for itself."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


BUSY = "import time\nend = time.monotonic() + {0}\nwhile time.monotonic() < end: pass"


@pytest.mark.processes
def test_the_time_of_a_process_of_ones_own_is_not_that_of_others() -> None:
    """A child counts once it has ended, as the workers of a bench have when this is asked."""
    watch = HostLoadWatch(Root("/"))

    def less_after_its_end_s() -> float:
        """Return how much less the CPU time of others is after a child's end, less what others use meanwhile."""
        other = subprocess.Popen([sys.executable, "-c", BUSY.format(60)])
        try:
            assert wait_until(lambda: used_ticks(other.pid) >= os.sysconf("SC_CLK_TCK") // 2)
            beside = known(watch.load())
        finally:
            other.kill()
            other.wait()
        assert beside.cpus >= 1
        return beside.others_cpu_s - known(watch.load()).others_cpu_s

    # On a busy machine others may use as much while the child is ended.
    assert any(less_after_its_end_s() > 0.1 for _ in range(5)), "what it used is one's own from its end on"


def test_cpus_and_columns(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/loadavg").write_text("24.31 9.00 4.00 25/900 4711\n")
    stat = tmp_path / "proc/stat"
    stat.write_text("cpu  100 0 100 5000 70 0 0 0 0 0\ncpu0 1\ncpu1 1\nintr 7\n")
    watch = HostLoadWatch(Root(str(tmp_path)))
    # Not what is idle or waits for a disk, and guests only once.
    stat.write_text("cpu  1100 200 400 90000 9000 50 50 100 1000 0\ncpu0 1\ncpu1 1\nintr 7\n")
    found = known(watch.load())
    assert (found.cpus, found.load_average) == (2, 24.31)
    assert 16 < found.others_cpu_s <= 17


@pytest.mark.parametrize("text", ["", "cpu", "cpu a b c d e f g h i j", "\0"])
def test_what_cannot_be_read_is_no_load(tmp_path: Path, text: str) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(text)
    assert HostLoadWatch(Root(str(tmp_path))).load() is None
    assert HostLoadWatch(Root(str(tmp_path / "none"))).load() is None
