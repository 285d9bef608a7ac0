"""What ``egmctl fleet`` takes for many nodes: time, processor time, memory and disk.

Run as ``python -m benchmarks.fleet [--differ] [NODES ...]``, by default 18, 100 and 1000. With ``--differ``, each GPU
of each node has a fact of its own that is compared, so that no two machines are equal.

A script stands in for srun and for egmctl on the nodes: it waits, then prints the document of ``egmctl doctor`` for a
modelled node of 8 GPUs, with the identifiers and the memory in use of its own that real nodes have. The processor time
is that of the fleet's process alone; the launchers, their keepers and the nodes' scripts are counted apart.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from egmctl import __version__

MACHINE = "dgx-h100"
DELAY_S = 0.5
POLL_S = 0.02
NODE, BYTES = "@node", "777000"
"""What stands for the number of a node in the document of all."""

SRUN = """#!/bin/sh
while :; do
    case $1 in
        --nodelist=*) BENCHMARK_NODE=${{1#*=}}; shift ;;
        --*) shift ;;
        *) break ;;
    esac
done
export BENCHMARK_NODE
PATH={folder}/node:$PATH exec "$@"
"""
EGMCTL = """#!/bin/sh
[ "$1" = --version ] && echo egmctl {version} && exit
sleep {delay}
if [ "$EGMCTL_ENCODING" = gzip+base64 ]; then
    base64 {folder}/documents/$BENCHMARK_NODE.gz
else
    zcat {folder}/documents/$BENCHMARK_NODE.gz
fi
exit {code}
"""


def main() -> None:
    """Measure each number of nodes, and print one line for each."""
    differ = "--differ" in sys.argv
    counts = [int(word) for word in sys.argv[1:] if word != "--differ"] or [18, 100, 1000]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size = _make_nodes(folder, max(counts), differ)
        print(f"documents of {size / 1e3:.0f} kB, which the nodes send after {DELAY_S:g} s, 64 nodes at once")
        for count in counts:
            print(_measured(folder, count), flush=True)


def _make_nodes(folder: Path, count: int, differ: bool = False) -> int:
    """Write the scripts, and the document of each node; return the size of a document in bytes."""
    command = [sys.executable, "-m", "egmctl", "doctor", "--machine", MACHINE, "--json"]
    document = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout)
    scripts = {
        "bin/srun": SRUN.format(folder=folder),
        "node/egmctl": EGMCTL.format(
            folder=folder, version=__version__, delay=DELAY_S, code=int(document["exit_code"])
        ),
    }
    for path, script in scripts.items():
        (folder / path).parent.mkdir()
        (folder / path).write_text(script)
        (folder / path).chmod(0o755)
    (machine,) = document["result"]["machines"]
    _individual(machine, differ)
    text = json.dumps(document, indent=2)
    (folder / "documents").mkdir()
    for number in range(1, count + 1):
        own = text.replace(NODE, f"{number:04x}").replace(BYTES, f"{number:06}")
        (folder / f"documents/node{number:04}.gz").write_bytes(gzip.compress(own.encode(), 6))
    return len(text)


def _individual(machine: dict[str, Any], differ: bool) -> None:
    """Give a machine the values that differ on each node, and if asked one that is compared."""

    def state(record: dict[str, Any], **values: object) -> None:
        record.update(values)
        for key in values:
            record.get("unread", {}).pop(key, None)

    state(machine["host"], memory_total_bytes=int(f"2164{BYTES}000"), memory_available_bytes=int(f"2000{BYTES}000"))
    for gpu in machine["gpus"]:
        uuid = f"GPU-5d1e0a7{gpu['index']}-{NODE}-b1a2-83c4-93a07fd2be11"
        state(gpu["proc"], uuid=uuid)
        state(gpu["nvml"], uuid=uuid, serial=f"16555230{NODE}{gpu['index']}", memory_used_bytes=int(f"500{BYTES}"))
        if differ:
            state(gpu["nvml"], vbios=f"96.00.{NODE}")


def _measured(folder: Path, count: int) -> str:
    """Run a fleet of so many nodes, and return what it took as one line."""
    out = folder / f"out{count}"
    path = f"{folder}/bin:{os.environ['PATH']}"
    command = [sys.executable, "-m", "egmctl", "fleet", "doctor", "-w", f"node[0001-{count:04}]"]
    command += ["--launcher", "srun", "-q", "-o", str(out), "--json"]
    began = time.monotonic()
    process = subprocess.Popen(command, env={**os.environ, "PATH": path}, stdout=subprocess.PIPE)
    with (folder / "report.json").open("wb") as file:
        own_s = children_s = peak = 0.0
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        # A process that has ended and was not waited for still has its times, and no memory.
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            file.write(process.stdout.read() or b"")
            peak = _peak(process.pid) or peak
            time.sleep(POLL_S)
        file.write(process.stdout.read() or b"")
        own_s, children_s = _processor_seconds(process.pid)
    seconds = time.monotonic() - began
    process.wait()
    report = json.loads((folder / "report.json").read_text())["result"]
    disk = sum(entry.stat().st_blocks * 512 for entry in out.rglob("*") if entry.is_file())
    reached = ", ".join(f"{number} {word}" for word, number in report["counts"].items())
    return (
        f"{count:5} nodes: {seconds:6.1f} s, {own_s:6.1f} s of CPU, {children_s:6.1f} s in its children, "
        f"{peak / 1e6:6.0f} MB of memory, {disk / 1e6:6.1f} MB on disk ({reached}; {len(report['groups'])} groups)"
    )


def _peak(pid: int) -> float:
    """Return the largest resident memory so far, in bytes (VmHWM of proc_pid_status(5)); 0 if the process has ended."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024.0
    return 0.0


def _processor_seconds(pid: int) -> tuple[float, float]:
    """Return the processor time of a process, and that of its ended children (proc_pid_stat(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system, user_of_children, system_of_children = (int(fields[index]) for index in range(11, 15))
    tick = os.sysconf("SC_CLK_TCK")
    return (user + system) / tick, (user_of_children + system_of_children) / tick


if __name__ == "__main__":
    main()
