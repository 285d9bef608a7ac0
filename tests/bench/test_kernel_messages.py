"""What the kernel logs while a bench runs: on disk at once, in the result, near the verdict, and no GO for the node.

The log is a copy of ``/dev/kmsg`` that a test appends to between two steps, as the kernel would.
"""

from __future__ import annotations

import json
import time
import timeit
from dataclasses import replace
from pathlib import Path

import pytest

from egmctl.bench.supervisor import supervise
from egmctl.doctor.check import EVERYTHING
from egmctl.doctor.runner import CHECKS
from egmctl.facts.kernel_log import EVENTS_LIMIT, KernelLogWatch, event
from egmctl.facts.redact import part_redactor, redact_report
from egmctl.facts.root import Root
from egmctl.journal.events import Journal, Recorder, forget
from egmctl.model.answer import Answer, State
from egmctl.model.codec import from_json, to_json
from egmctl.model.kernel_log import KernelLog, KernelMessages
from egmctl.model.measurement import RunReport
from egmctl.model.record import Reason, Unread
from egmctl.model.task import Task
from egmctl.model.verdict import Grade
from egmctl.report.kinds import Format
from egmctl.saved import load_journal
from egmctl.verdict.answers.run import of_run
from egmctl.verdict.bringup import bringup_answer
from egmctl.verdict.judge import with_verdict
from egmctl.verdict.profiles import load_profile
from tests.answers import diagnose, render
from tests.bench.supervised import MACHINE, TARGET, plan
from tests.verdict.runs import H2D, H200, WRITE, run

pytestmark = pytest.mark.usefixtures("fast_children")

BUS = (H200.gpus or ())[2].bus_id.removesuffix(".0")
OFF_THE_BUS = f"NVRM: Xid (PCI:{BUS}): 79, GPU has fallen off the bus."
PAGE_FAULT = f"NVRM: Xid (PCI:{BUS}): 31, pid=2228, name=secret-job, MMU Fault"
EARLIER = f"NVRM: Xid (PCI:{BUS}): 48, before the run"


def record(message: str, number: int = 9) -> str:
    return f"4,{number},{round(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)},-;{message}\n"


@pytest.fixture
def kmsg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EGMCTL_SYSROOT", str(tmp_path))
    path = tmp_path / "dev/kmsg"
    path.parent.mkdir()
    path.write_text(record(EARLIER))
    return path


def supervised(kmsg: Path, journal: Recorder = forget, messages: dict[int, str] | None = None) -> KernelMessages:
    """Run the worker of the supervisor's tests, and log something when so many steps have begun; return what it saw."""
    begun = 0

    def on_progress(_part: float, task: Task | None) -> None:
        nonlocal begun
        begun += task is not None
        if task is not None and (message := (messages or {}).get(begun)):
            with kmsg.open("a") as file:
                file.write(record(message))

    report = supervise(plan(), MACHINE, on_progress=on_progress, target=TARGET, recorder=journal)
    assert report.kernel_messages is not None
    return report.kernel_messages


@pytest.mark.processes
class TestWhileItRuns:
    @pytest.fixture(autouse=True)
    def _without_fault(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("EGMCTL_TEST_FAULT", "")

    def test_what_comes_is_in_the_result_and_in_the_journal_where_it_came(self, kmsg: Path, tmp_path: Path) -> None:
        journal = Journal([tmp_path], part_redactor(None))
        messages = supervised(kmsg, journal, {3: OFF_THE_BUS})
        journal.end(Answer(state=State.GOOD, word="PASS"))
        (logged,) = messages.events
        assert (logged.number, messages.unread) == (79, None)
        assert messages.began_s < logged.time_s < messages.ended_s
        assert journal.path is not None
        kinds = [json.loads(line)["event"] for line in journal.path.read_text().splitlines()]
        place = kinds.index("kernel")
        assert kinds[:place].count("step") == 2, "it came when the third step was about to begin"
        assert kinds[place + 1] == "step", "and was on disk before it"
        read = load_journal(journal.path).report.kernel_messages
        assert read is not None
        assert read.events == messages.events

    def test_what_was_there_before_is_not_its_own(self, kmsg: Path) -> None:
        messages = supervised(kmsg)
        assert messages.events == ()

    def test_a_crash_asks_the_log_before_it_is_blamed(self, kmsg: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("EGMCTL_TEST_FAULT", "7:crash")
        messages = supervised(kmsg, forget, {8: OFF_THE_BUS})
        assert len(messages.events) == 1

    def test_a_log_that_cannot_be_read_is_unknown_with_the_reason(self, kmsg: Path) -> None:
        kmsg.unlink()
        messages = supervised(kmsg)
        assert messages.unread == Unread(reason=Reason.NOT_PRESENT, detail="/dev/kmsg: ENOENT")


def test_asking_costs_next_to_nothing(kmsg: Path) -> None:
    watch = KernelLogWatch(Root(str(kmsg.parent.parent)))
    # The best of several rounds: a busy machine may stop any of them.
    best = min(timeit.repeat(watch.events, number=200, repeat=10)) / 200
    assert best < 1e-4, "a step takes 50 ms at least: far below 1 %"
    watch.close()


def test_a_flood_is_counted_and_not_kept(kmsg: Path) -> None:
    watch = KernelLogWatch(Root(str(kmsg.parent.parent)))
    with kmsg.open("a") as file:
        file.writelines(record(OFF_THE_BUS) for _ in range(EVENTS_LIMIT + 9))
    told = 0
    while new := watch.events():
        told += len(new)
    assert (told, len(watch.messages.events), watch.messages.left_out) == (EVENTS_LIMIT, EVENTS_LIMIT, 9)
    watch.close()


# --- what is said of it ----------------------------------------------------------------------------------------------


def with_logged(*lines: str, unread: Unread | None = None) -> RunReport:
    """A healthy run on HGX H200 while which the kernel logged this, judged."""
    events = tuple(found for line in lines if (found := event(1001.5, line)) is not None)
    messages = KernelMessages(source="/dev/kmsg", unread=unread, began_s=1000.0, ended_s=1010.0, events=events)
    report = replace(run(WRITE, H2D), kernel_messages=messages)
    return with_verdict(report, load_profile("hgx-h200"))


def words(report: RunReport, format: Format = Format.TEXT, *, verbose: int = 0) -> str:
    return " ".join(str(render(report, format, verbose=verbose)).split())


def test_a_fault_stands_below_the_verdict_with_whose_it_is_and_what_to_do() -> None:
    report = with_logged(OFF_THE_BUS, OFF_THE_BUS)
    assert report.verdict is not None
    assert {each.grade for each in report.verdict.classes} == {Grade.PASS}, "the paths may be as fast as ever beside it"
    assert of_run(report).state is State.WARN
    lines = str(render(report, Format.TEXT, width=200)).splitlines()
    assert lines[0].startswith("PASS WITH WARNINGS: ")
    assert "the kernel logged meanwhile: GPU2: Xid 79, GPU fell off the bus, 2 times" in lines[0]
    (place,) = [n for n, line in enumerate(lines) if line.startswith("FAIL") and "Xid 79" in line]
    assert place <= 4, "below the answer and what to do"
    assert lines[place].endswith(
        "logged by the kernel meanwhile: GPU2: Xid 79, GPU fell off the bus, 2 times (hardware)"
    )
    assert "Power-cycle the drained node" in lines[place + 1]
    for format in (Format.TEXT, Format.HTML, Format.MARKDOWN):
        assert "GPU2: Xid 79, GPU fell off the bus, 2 times (hardware)" in words(report, format, verbose=1)


def test_an_applications_fault_is_told_with_v_and_is_no_warning() -> None:
    report = with_logged(PAGE_FAULT)
    assert report.verdict is not None
    assert of_run(report).state is State.GOOD
    assert "Xid" not in words(report)
    assert "Kernel log while it ran: GPU2: Xid 31, GPU memory page fault (application)." in words(report, verbose=1)


def test_a_healthy_run_is_silent_about_it_and_says_so_with_v() -> None:
    quiet = replace(with_logged(), kernel_messages=None)
    assert words(with_logged()) == words(quiet)
    assert "no Xid, SXid, PCIe error or fault of the driver" in words(with_logged(), verbose=1)
    unread = with_logged(unread=Unread(reason=Reason.NO_PERMISSION, detail="/dev/kmsg: EPERM"))
    assert words(unread) == words(quiet), "nobody has to read the log on a healthy run"
    assert "Kernel log while it ran: unknown (/dev/kmsg: EPERM)." in words(unread, verbose=1)


def test_documents_keep_it_without_the_names_of_processes_and_older_ones_load() -> None:
    report = redact_report(with_logged(PAGE_FAULT), None)
    document = to_json(report)
    assert "secret-job" not in json.dumps(document)
    assert from_json(RunReport, document) == report
    del document["kernel_messages"]
    assert from_json(RunReport, document).kernel_messages is None


@pytest.mark.parametrize(("line", "state"), [(OFF_THE_BUS, State.BAD), (PAGE_FAULT, State.GOOD)])
def test_a_node_whose_kernel_logged_a_fault_meanwhile_is_not_handed_over(line: str, state: State) -> None:
    report = with_logged(line)
    assert report.kernel_messages is not None
    logs = [
        KernelLog(source="/dev/kmsg", now_s=990.0, first_s=0.0, events=e) for e in ((), report.kernel_messages.events)
    ]
    before, after = (diagnose(replace(H200, kernel_log=log), EVERYTHING, CHECKS) for log in logs)
    found = bringup_answer(after, report, before=before)
    assert found.answer.state is state
    if state is State.BAD:
        assert " ".join(str(render(found, Format.TEXT)).split()).startswith(
            "NO-GO: GPU2: Xid 79, GPU fell off the bus, 0 s ago (appeared during the bench)"
        )
