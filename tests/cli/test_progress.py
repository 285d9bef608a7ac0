"""How a run goes: lines for a log, a table for a terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from egmctl.cli.progress import Lines, probing, table_text
from egmctl.journal.events import JournalEvent, TaskOutcome, forget
from egmctl.model.probes import Probe, ProbeKind, ProbeOutcome
from tests.doctor.machines import shipped
from tests.report.runs import run

RUN = run(cases=("device_to_device_memcpy_write_ce", "host_numa_to_device_memcpy_ce"))


def test_a_log_has_a_line_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr("egmctl.cli.progress.time.monotonic", lambda: clock[0])
    shown = Lines()
    record = shown.recorder(forget)
    first = RUN.measurements[0]
    for at_s, part in ((4.0, 0.1), (11.0, 0.3), (15.0, 0.4), (22.0, 0.6)):
        clock[0] = at_s
        record(TaskOutcome(number=0, measurement=first))
        shown(part, first)
        shown(part, None)
    path = "host_numa_to_device_memcpy_ce NUMA0 -> GPU0"
    assert capsys.readouterr().err == (
        f"egmctl: 30 %, 11 s, 1 measured; now {path}\negmctl: 60 %, 22 s, 1 measured; now {path}\n"
    )


def test_the_probes_of_doctor_are_told_before_the_bench_in_the_same_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    monkeypatch.setattr("egmctl.cli.progress.time.monotonic", lambda: clock[0])
    shown, node = Lines(), shipped("gb200-tray")
    first_gpu, second_gpu, *_ = [gpu.bus_id for gpu in node.gpus or ()]
    show = probing(shown, node)
    probe = Probe(kind=ProbeKind.P2P, gpus=(first_gpu, second_gpu), outcome=ProbeOutcome.NOT_RUN)
    for at_s, part, tried in (
        (3.0, 0.1, probe),
        (11.0, 0.5, probe),
        (25.0, 0.9, replace(probe, kind=ProbeKind.HOST_NUMA, gpus=(first_gpu,), numa_node=1)),
    ):
        clock[0] = at_s
        show(part, tried)
    clock[0] = 40.0
    shown(0.1, RUN.measurements[0])
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == [
        "egmctl: 50 %, 11 s; now doctor: p2p GPU0 -> GPU1",
        "egmctl: 90 %, 25 s; now doctor: host-numa NUMA1 GPU0",
    ]
    assert lines[2].startswith("egmctl: 10 %, 40 s; now ")


def test_the_table_of_a_terminal_fills_with_what_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "40")
    half = table_text(RUN.measurements[: len(RUN.measurements) // 4]).plain
    whole = table_text(RUN.measurements).plain
    assert "device_to_device_memcpy_write_ce" not in half
    assert "device_to_device_memcpy_write_ce" in whole
    monkeypatch.setenv("LINES", "8")
    assert len(table_text(RUN.measurements).plain.splitlines()) <= 4


def test_the_journal_is_told_as_before() -> None:
    kept: list[JournalEvent] = []
    outcome = TaskOutcome(number=3, measurement=RUN.measurements[0])
    Lines().recorder(kept.append)(outcome)
    assert kept == [outcome]
