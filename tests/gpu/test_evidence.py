"""``egmctl snapshot --evidence`` and dma-bufs on real GPUs."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest

from egmctl.doctor.check import EVERYTHING
from egmctl.doctor.probes import probed
from egmctl.facts.collect import collect
from egmctl.model.probes import ProbeKind, ProbeOutcome
from egmctl.verdict.evidence import questions
from tests.conftest import RunEgmctl

pytestmark = pytest.mark.gpu

SHOWN_BY_ANY_GPU = {"granularity", "rates"}


def test_one_command_settles_what_any_gpu_can_show_and_show_reads_it_back(egmctl: RunEgmctl, tmp_path: Path) -> None:
    file, started = tmp_path / "evidence.json", time.monotonic()
    ended = egmctl("snapshot", "--evidence", "-o", file, timeout_s=600)
    assert time.monotonic() - started < 600
    assert ended.code == 0, ended.out + ended.err
    answers = {answer["question"]: answer for answer in json.loads(file.read_text())["result"]["answers"]}
    assert answers.keys() == questions().keys()
    print(ended.out)  # noqa: T201 - with -s: the answers
    assert {name for name in SHOWN_BY_ANY_GPU if answers[name]["state"] == "settled"} == SHOWN_BY_ANY_GPU
    assert all(answer["observations"] for answer in answers.values())
    assert re.search(r"^[0-9]+ of [0-9]+ questions are settled: ", ended.out, re.M)
    assert egmctl("show", file).out == ended.out


def test_memory_becomes_a_dma_buf_or_is_refused_with_the_reason() -> None:
    machine = collect(("gpus", "host", "nics", "driver", "process", "confinement"))
    probes = probed(machine, EVERYTHING, [ProbeKind.DMA_BUF]).probes or ()
    for probe in probes:
        print(probe.gpus, probe.numa_node, probe.nic, probe.outcome, probe.detail)  # noqa: T201 - what to note down
    assert {probe.numa_node is None for probe in probes} == {True, False}
    assert {probe.outcome for probe in probes} <= {ProbeOutcome.OK, ProbeOutcome.ERROR}
    assert all(probe.call and probe.detail for probe in probes if probe.outcome is ProbeOutcome.ERROR)
    # What CUDA says it supports, it exports.
    supporting = {g.bus_id for g in machine.gpus or () if g.cuda and g.cuda.attributes.get("DMA_BUF_SUPPORTED")}
    refused = {probe.gpus[0] for probe in probes if probe.numa_node is None and (probe.call or "").startswith("cu")}
    assert not supporting & refused
