"""Run the commands of a bring-up on idle GPUs again and again, and count what they call wrong: each is a false alarm.

Run as ``python -m benchmarks.idle_runs RUNS FOLDER``. Each run writes its document to FOLDER, so that a profile can be
learnt from them (``egmctl profile learn``) and its ``[healthy]`` counted. The machine has to be healthy and idle: then
every state but ``good`` is an alarm, and so is every doubt. The last line is a table; the exit code is 1 if there was
an alarm.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMMANDS = {
    "doctor": ("doctor",),
    "quick": ("bench", "--quick"),
    "standard": ("bench",),
    "bringup": ("bringup",),
}
"""The commands by the name of their documents."""

_ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Ended:
    """One run of one command."""

    name: str
    seconds: float
    code: int
    answer: str
    """The word and the sentence of its answer; what it wrote to standard error if there is no document."""
    doubts: int
    is_alarm: bool


def main() -> None:
    """Run all commands in turns, print a line for each run and a line for each command, and exit."""
    runs, folder = int(sys.argv[1]), Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    all_ended: list[Ended] = []
    for ended in _in_turns(runs, folder):
        mark = "ALARM" if ended.is_alarm else "fine"
        print(f"{mark:5} {ended.name:8} {ended.seconds:6.2f} s  code {ended.code}  {ended.answer}", flush=True)
        all_ended.append(ended)
    for name in COMMANDS:
        own = [ended for ended in all_ended if ended.name == name]
        seconds = sorted(ended.seconds for ended in own)
        alarms, doubts = sum(ended.is_alarm for ended in own), sum(ended.doubts for ended in own)
        print(
            f"{name:8} {len(own)} runs, {alarms} alarms, {doubts} doubts, "
            f"{seconds[0]:.2f} to {seconds[-1]:.2f} s, median {seconds[len(seconds) // 2]:.2f} s"
        )
    sys.exit(any(ended.is_alarm for ended in all_ended))


def _in_turns(runs: int, folder: Path) -> Iterator[Ended]:
    for turn in range(runs):
        for name, arguments in COMMANDS.items():
            yield _run(name, arguments, folder / f"{name}-{turn:02}.json")


def _run(name: str, arguments: tuple[str, ...], document: Path) -> Ended:
    command = [sys.executable, "-m", "egmctl", *arguments, "-q", "-o", str(document)]
    started = time.monotonic()
    process = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - started
    try:
        content = json.loads(document.read_text())
    except (OSError, ValueError):
        return Ended(name, seconds, process.returncode, process.stderr.strip()[-200:], 0, True)
    answer = content["answer"]
    doubts = sum(doubt["effect"] != "note" for doubt in _doubts(content["result"]))
    words = f"{answer['word']}: {answer['sentence']}"
    return Ended(name, seconds, process.returncode, words, doubts, answer["state"] != "good" or doubts > 0)


def _doubts(result: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the doubts of a bench, also as a part of a bring-up."""
    run = result.get("run") or result
    return list(run.get("doubts") or ())


if __name__ == "__main__":
    main()
