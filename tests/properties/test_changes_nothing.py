"""No command changes the node that it is about, and doctor starts no program but those that its page names."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

from tests.conftest import RunEgmctl
from tests.fake.plugin import MakeFakeNode
from tests.fake.rules import CHANGES


def snapshot(folder: Path) -> dict[str, tuple[int, int, int, bytes]]:
    """Return of each file its mode, owner, time of change and content."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if stat.S_ISREG(status.st_mode) else os.fsencode(path)
        found[str(path)] = (status.st_mode, status.st_uid, status.st_mtime_ns, content)
    return found


@pytest.mark.parametrize(
    "words",
    [
        ("topo",),
        ("doctor", "--active"),
        ("bench", "--case", "device_to_device_memcpy_write_ce", "--size", "1M", "--samples", "1", "--copies", "1"),
        ("snapshot", "-o", "-"),
    ],
    ids=lambda words: words[0],
)
def test_a_command_changes_no_file_and_no_setting_of_the_node(
    egmctl: RunEgmctl, fake_node: MakeFakeNode, words: tuple[str, ...]
) -> None:
    node = fake_node("hgx-h200x4")
    before = snapshot(node.sysroot)
    assert before
    ended = egmctl(*words, env=node.environment())
    assert ended.code in (0, 1), ended.err
    assert snapshot(node.sysroot) == before
    assert [call.name for call in node.calls() if CHANGES.match(call.name)] == []


STARTS = """
import sys
started = []
def note(event, arguments):
    if event == "subprocess.Popen":
        started.append([str(arguments[0]), *map(str, arguments[1])])
    elif event in ("os.exec", "os.posix_spawn", "os.system"):
        started.append([str(arguments[0]), *map(str, arguments[1])])
sys.addaudithook(note)
from egmctl.cli import app
try:
    code = app.run_command(["doctor", "-q"])
except SystemExit:
    pass
print("\\n".join(map(" ".join, started)), file=sys.stderr)
"""


@pytest.mark.processes
def test_doctor_runs_no_program_but_its_own_children(fake_node: MakeFakeNode) -> None:
    from tests.conftest import ended

    done = ended([sys.executable, "-c", STARTS], env=fake_node("gb200-nvl72").environment(), timeout_s=240)
    started = [line for line in done.err.splitlines() if line.startswith("/")]
    assert started, done.err
    allowed = (sys.executable, "nvidia-imex-ctl", "journalctl")
    assert [line for line in started if not any(program in line for program in allowed)] == []
