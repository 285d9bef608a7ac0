"""One good document of every kind, what reads each kind, and ways to spoil one."""

from __future__ import annotations

import copy
import functools
import json
import random
import re
import resource
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from egmctl import saved
from egmctl.comparison import compare
from egmctl.doctor.check import EVERYTHING
from egmctl.doctor.runner import CHECKS
from egmctl.errors import UsageError
from egmctl.facts import replay as record
from egmctl.facts.kernel_log import event
from egmctl.files import profiles_dir
from egmctl.journal.events import Begin, Journal, Logged, Note, StepBegun, TaskOutcome
from egmctl.model.answer import Cause
from egmctl.model.bringup import Bringup
from egmctl.model.codec import to_json
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.finding import Finding, Status
from egmctl.model.kernel_log import KernelMessages
from egmctl.model.measurement import RunReport
from egmctl.model.task import NumberedTask
from egmctl.report.exports.json import result_json
from egmctl.topology.topology import topology
from egmctl.verdict.bringup import bringup_answer
from egmctl.verdict.judge import with_verdict
from egmctl.verdict.profiles import load_profile
from tests.answers import diagnose
from tests.fleet.racks import REPORT
from tests.in_process import run
from tests.journal.lines import stamped
from tests.mutation import mutate, mutated
from tests.saved.documents import bench_document, machine_of, measured_report

VALUES: tuple[Any, ...] = ("", "\x1b[31m", "\u202e", 10**30, -1, 2.5, 1e308, True, [], {}, None, "x" * 5000, [[]] * 300)
MACHINE = "hgx-h200x4"


def judged_run(value: float = 100.0) -> RunReport:
    """Return a run with all that a run may have: a verdict, and what the kernel logged."""
    report = measured_report(MACHINE, (value - 1, value, value + 1))
    line = event(2.0, "NVRM: Xid (PCI:0000:00:08): 79, GPU has fallen off the bus.")
    logged = () if line is None else (line,)
    messages = KernelMessages(source="/dev/kmsg", began_s=1.0, ended_s=9.0, events=logged)
    report = replace(report, kernel_messages=messages)
    report = with_verdict(report, load_profile("hgx-h200"), profile_reason="it fits")
    lost = Finding(check="gpu.lost", status=Status.FAIL, summary="one GPU is lost")
    return replace(report, causes=(Cause(status=Status.FAIL, finding=lost, measurements=(0, 3)),))


@functools.cache
def original(kind: str, folder: Path) -> bytes:
    """Return a good document of a kind."""
    return _ORIGINALS[kind](folder).encode()


def _journal(folder: Path) -> str:
    report = judged_run()
    journal = Journal([folder], lambda part: part)
    journal(Begin(report=replace(report, measurements=(), verdict=None, doubts=(), causes=()), steps=3))
    for number, measurement in enumerate(report.measurements[:12]):
        journal(StepBegun(tasks=(NumberedTask(number=number, task=measurement),)))
        journal(TaskOutcome(number=number, measurement=measurement))
    journal(Logged(events=tuple(report.kernel_messages.events) if report.kernel_messages else ()))
    journal(Note(text="a note"))
    journal(StepBegun(tasks=(NumberedTask(number=12, task=report.measurements[12]),)))
    journal.close()
    assert journal.path is not None
    text = journal.path.read_text()
    journal.path.unlink()
    return text


def _compared(folder: Path) -> Any:
    files = []
    for name, value in (("one", 100.0), ("two", 60.0)):
        files.append(folder / f"{name}.json")
        files[-1].write_text(json.dumps(bench_document(judged_run(value))))
    return compare([saved.load(file) for file in files])


def _diagnosed() -> Diagnosis:
    return diagnose(machine_of(MACHINE), EVERYTHING, CHECKS)


_ORIGINALS: dict[str, Callable[[Path], str]] = {
    "machine": lambda _: record.machine_text(machine_of(MACHINE)),
    "bench": lambda _: json.dumps(bench_document(judged_run())),
    "doctor": lambda _: result_json(_diagnosed()),
    "topo": lambda _: result_json(topology(machine_of(MACHINE))),
    "journal": _journal,
    "fleet": lambda folder: result_json(replace(REPORT, comparison=_compared(folder))),
    "comparison": lambda folder: result_json(_compared(folder)),
    "bringup": lambda _: result_json(bringup_answer(_diagnosed(), judged_run())),
    "profile": lambda _: (profiles_dir() / "hgx-h200.toml").read_text(),
}
KINDS = tuple(_ORIGINALS)


def spoiled(content: bytes, choice: random.Random) -> bytes:
    """Return a document as a disk, a hand or a stranger might leave it."""
    how = choice.random()
    if how < 0.15:
        return _bytes(content, choice)
    try:
        document = json.loads(content)
    except ValueError:
        return _lines(content, choice)
    if how < 0.45:
        typed = _typed(document, choice)
        return _bytes(content, choice) if typed is None else typed
    document = copy.deepcopy(document)
    for _ in range(choice.randint(1, 6)):
        mutate(document, choice, choice.choice(VALUES))
    return json.dumps(document).encode()


def _bytes(content: bytes, choice: random.Random) -> bytes:
    """Cut it, or put something anywhere into it."""
    place = choice.randrange(len(content))
    odd = (b"\0", b"\xff", b"[" * 5000, b"9" * 5000, b"NaN", b"1e999", b'"', b"\n", b"\\ud800", b"{" * 900, b"}")
    match choice.randrange(4):
        case 0:
            return content[:place]
        case 1:
            return content[:place] + choice.choice(odd) + content[place:]
        case 2:
            return content[:place] + choice.choice(odd) + content[place + choice.randint(1, 300) :]
        case _:
            return content[:place] + content[choice.randrange(len(content)) :]


def _lines(content: bytes, choice: random.Random) -> bytes:
    """Spoil lines of a journal or of a profile: values in them, their order, or what they are."""
    lines = content.splitlines(keepends=True)
    for _ in range(choice.randint(1, 4)):
        place = choice.randrange(len(lines))
        try:
            entry = json.loads(lines[place])
            mutate(entry, choice, choice.choice(VALUES))
            # The checksum fits: what is spoilt is the content.
            lines[place] = stamped(entry)
        except (ValueError, TypeError, KeyError):
            name, equals, _ = lines[place].partition(b"=")
            numbers = (b"1e999", b"-1", b'"\\u001b[31m"', b"nan")
            odd = (*numbers, b"[[]]", b"{a=1}", b"9999999999999999999999", b"true", b"")
            lines[place] = name + equals + choice.choice(odd) + b"\n" if equals else b""
    if choice.random() < 0.3:
        choice.shuffle(lines)
    return b"".join(lines)


def _typed(document: dict[str, Any], choice: random.Random) -> bytes | None:
    """Return a document whose values are all of their types, and fit together no more."""
    try:
        found = saved._load(document, "it", Path("it.json"))
    except UsageError:
        return None
    if isinstance(found, saved.Digest):
        return json.dumps({**document, "result": to_json(mutated(found, choice))}).encode()
    if document["schema"] == "egmctl.machine/1":
        return record.machine_text(mutated(found.machines[0], choice)).encode()
    if found.result is None or document["schema"] == Bringup.SCHEMA:
        return None
    return json.dumps({**document, "result": to_json(mutated(found.result, choice))}).encode()


FORMS = ("text", "json", "csv", "html", "svg", "md", "prom", "nagios", "junit")


def readers(kind: str, path: Path, good: Path, choice: random.Random) -> Sequence[str]:
    """Return a command that reads a document, one of those that do."""
    form = ("--format", choice.choice(FORMS))
    show = [["show", str(path), *form, *choice.choice(((), ("-v",)))]]
    ways = {
        "machine": [
            ["topo", "--machine", str(path), *form],
            ["doctor", "--machine", str(path), *form, "-v"],
            ["bench", "--machine", str(path), choice.choice(("--dry-run", "--list"))],
            ["bench", "--machine", str(path), "--dry-run", "--suite", "fabric", "--ranks", "9"],
            ["bringup", "--machine", str(path), *form],
            ["profile", "match", "--machine", str(path)],
            ["doctor", "--machine", MACHINE, "--expect", str(path)],
            ["compare", str(good), str(path), *form],
        ],
        "bench": [
            ["compare", str(good), str(path), *form],
            ["compare", str(path), str(good), str(good)],
            ["profile", "learn", str(path), str(good)],
        ],
        "journal": [
            ["history", "--journal", str(path.parent)],
            ["history", "--journal", str(path.parent), "--json"],
            ["compare", str(path), str(good)],
        ],
        "profile": [["profile", "show", str(path)], ["profile", "show", str(path), "--json"]],
    }
    ways["doctor"] = ways["topo"] = [["compare", str(good), str(path), *form], ["compare", str(path), str(good)]]
    ways["fleet"] = ways["comparison"] = ways["bringup"] = [["compare", str(path), str(good)]]
    return choice.choice(show + ways[kind]) if kind != "profile" else choice.choice(ways[kind])


PATIENCE_S = 10.0
COLOUR = re.compile("\x1b\\[[0-9;]*m")
"""What ``--color always`` writes."""
MEMORY_KIB = 1 << 20


@dataclass(slots=True)
class Totals:
    """How the commands of a test ended."""

    codes: Counter[int] = field(default_factory=Counter)
    longest_s: float = 0.0
    most_kib: int = 0

    def __str__(self) -> str:
        codes = {int(code): count for code, count in sorted(self.codes.items())}
        return f"by exit code {codes}, at most {self.longest_s:.2f} s of CPU and {self.most_kib >> 10} MiB"


def faulty(words: Sequence[str], totals: Totals) -> str:
    """Run a command, count how it ended, and return what is wrong with that; the time is that of the CPU."""
    began = time.process_time()
    ended = run(*words)
    took = time.process_time() - began
    totals.codes[ended.code] += 1
    totals.longest_s = max(totals.longest_s, took)
    totals.most_kib = most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    codes = [0, 1, 2, 3]
    if words[0] in ("fleet", "show"):
        # Of a fleet: nodes that could not be reached; of a journal: damaged lines.
        codes.append(4)
    if ended.code not in codes or "Traceback" in ended.err or "please report it" in ended.err:
        return f"{ended.code}: {ended.err[-300:]}"
    for stream in (ended.out, ended.err):
        text = COLOUR.sub("", stream) if "always" in words else stream
        if not all(line.isprintable() for line in text.split("\n")):
            return f"control characters in the output: {stream[-300:]!r}"
    if ended.code == 2 and len(ended.err) > 2000:
        return f"no sentence but {len(ended.err)} characters"
    if took > PATIENCE_S:
        return f"it took {took:.0f} s"
    return f"{most >> 10} MiB" if most > MEMORY_KIB else ""
