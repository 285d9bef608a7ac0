"""NCCL's own bandwidth: what its log and nccl-tests' table say, its processes, their failures, and the answer.

The ranks are real processes with the fake PyTorch of ``tests/fake/pytorch``; nccl-tests is a script that prints what
its binary printed. On GPUs: ``tests/gpu/test_nccl.py``.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from egmctl.api.bench import Bench, judge_run
from egmctl.bench.nccl.collectives import COLLECTIVES
from egmctl.bench.nccl.job import RankFacts, plan_of_job
from egmctl.bench.nccl.log import read_log
from egmctl.bench.nccl.outcome import interrupted, not_measured, put_together
from egmctl.bench.nccl.plan import BINARIES, NcclRequest, fitting_bytes, free_gpu_bytes, nccl_plan, room_of
from egmctl.bench.nccl.rounds import RankReports, Round, next_round
from egmctl.bench.nccl.run import Start, measure_plan, start_process
from egmctl.bench.nccl.table import NoTable, read_table
from egmctl.bench.suites import select_collectives
from egmctl.bench.supervisor import supervise
from egmctl.errors import ChildNotStarted, UsageError
from egmctl.launch import Child
from egmctl.model.answer import GapKind, State
from egmctl.model.codec import from_json, to_json
from egmctl.model.finding import WaiverKind
from egmctl.model.machine import Machine
from egmctl.model.measurement import RunReport, Settings
from egmctl.model.nccl import Ending, NcclPlan, NcclProgram, NcclRun, NcclStatus, NcclWarning, RankFailure
from egmctl.model.verdict import Grade
from egmctl.report.views.nccl import nccl_section
from egmctl.verdict.answers import answered
from egmctl.verdict.explain import with_causes
from egmctl.verdict.nccl import beside_links, with_nccl_cause
from tests.conftest import ROOT, RunEgmctl
from tests.doctor.machines import shipped, with_gpu_denied
from tests.fake.plugin import MakeFakeNode
from tests.report.runs import run as run_of_links
from tests.schemas import validate
from tests.verdict.runs import WRITE
from tests.verdict.runs import run as measured_links

TORCH = str(ROOT / "tests/fake/pytorch")
LOG = """\
node-1:2119:2119 [0] NCCL INFO NCCL_NVLS_ENABLE set by environment to 0.
NCCL version 2.28.9+cuda13.0
node-1:2119:2141 [0] NCCL INFO 24 coll channels, 24 collnet channels, 0 nvls channels, 32 p2p channels
node-1:2119:2145 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
node-1:2119:2145 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read
node-1:2119:2145 [0] NCCL INFO Channel 02/0 : 0[0] -> 1[1] via P2P/CUMEM
node-1:2119:2145 [0] NCCL INFO Channel 00 : 0[a1000] -> 1[b2000] via SHM/direct/direct
node-1:2119:2145 [0] NCCL INFO Channel 00/0 : 3[1] -> 4[0] [send] via NET/IB/0(3)/GDRDMA comm 0x2083dd50 nRanks 02
node-1:2119:2145 [0] NCCL INFO NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 24)
node-1:2119:2145 [0] transport/p2p.cc:275 NCCL WARN Cuda failure 101 'invalid device ordinal'
node-1:2119:2145 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 10.0.0.4<43211> failed
"""
"""Lines of NCCL 2.18 to 2.28, from logs that their users published."""
NVLS = "node-1:1:1 [0] NCCL INFO NVLS comm 0x55cdbfbb89a0 headRank 0 nHeads 8 nvlsRanks 8 buffSize 1048576\n"
TABLE = """\
# nThread 1 nGpus 2 minBytes 1073741824 maxBytes 1073741824 step: 1048576(bytes) warmup iters: 5 iters: 20
#
# Using devices
#  Rank  0 Group  0 Pid 1623025 on     node-1 device  0 [0x19] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
  1073741824     268435456     float     sum      -1   3296.0  325.77  325.77      0   3301.1  325.27  325.27      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 325.52
#
"""


def test_the_log_says_which_transport_nccl_chose() -> None:
    log = read_log([LOG])
    assert (log.version, log.channels) == ("2.28.9+cuda13.0", 24)
    assert log.transports == {"P2P/CUMEM": 2, "P2P/CUMEM/read": 1, "SHM/direct/direct": 1, "NET/IB/GDRDMA": 1}
    assert log.variables == {"NCCL_NVLS_ENABLE": "0"}
    assert tuple(map(str, log.warnings)) == (
        "transport/p2p.cc:275: Cuda failure 101 'invalid device ordinal'",
        "misc/socket.cc:484: socketStartConnect: Connect to ... failed",
    ), "without addresses, which a document must not carry away"
    assert "NVLS" in read_log([LOG, NVLS]).transports, "a communicator has it, not only the GPU"
    assert read_log(["", "no log\x00"]) == read_log([])


def test_a_table_is_read_only_to_its_end() -> None:
    (row,) = read_table(TABLE)
    assert (row.size_bytes, row.time_us, row.bus_gb_s, row.verified) == (1 << 30, 3296.0, 325.77, True)
    wrong = TABLE.replace("325.77      0", "325.77     12").replace(": 0 OK", ": 12 FAILED")
    assert [row.verified for row in read_table(wrong)] == [False]
    for wrong_in_place in ("12", "1e+06"):
        wrong = TABLE.replace("325.27      0", f"325.27  {wrong_in_place:>5}")
        assert [row.verified for row in read_table(wrong)] == [False], "in place counts too"
    assert [row.verified for row in read_table(TABLE.replace(": 0 OK", ": 3 FAILED"))] == [False]
    assert [row.verified for row in read_table(TABLE.replace("      0", "    N/A"))] == [None]
    for cut in (TABLE.partition("# Out of bounds")[0], "", "all_reduce_perf: not found"):
        with pytest.raises(NoTable):
            read_table(cut)


def test_bus_bandwidths_are_counted_as_nccl_tests_counts_them() -> None:
    factors = {name: collective.bus_factor(8) for name, collective in COLLECTIVES.items()}
    assert factors == {"all_reduce": 1.75, "all_gather": 0.875, "sendrecv": 1}


LITTLE = Settings(size_bytes=1 << 16, copies=2, samples=2, timeout_s=60)


def little(node: Machine, gpus: int = 2, timeout_s: float = 60, program: NcclProgram = NcclProgram.TORCH) -> NcclPlan:
    """Return the plan of all collectives with little data."""
    return nccl_plan(
        node,
        (node.gpus or ())[:gpus],
        replace(LITTLE, timeout_s=timeout_s),
        collectives=tuple(COLLECTIVES),
        size_bytes=1 << 16,
        nvls=False,
        program=program,
    )


# --- its processes ---------------------------------------------------------------------------------------------------


def ran(
    monkeypatch: pytest.MonkeyPatch,
    machine: str | Machine = "hgx-h200x4",
    *,
    gpus: int = 2,
    timeout_s: float = 60,
    program: NcclProgram = NcclProgram.TORCH,
    start: Start = start_process,
    **variables: Any,
) -> NcclRun:
    """Run all collectives with little data."""
    node = shipped(machine) if isinstance(machine, str) else machine
    for name, value in {"PYTHONPATH": f"{TORCH}{os.pathsep}{ROOT}", **variables}.items():
        monkeypatch.setenv(name, value)
    plan = little(node, gpus, timeout_s, program)
    assert plan.waivers == ()
    return measure_plan(plan, node, timeout_s, start)


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """After each test there is no folder of NCCL's processes, and none of them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield
    assert not [*tmp_path.glob("egmctl-nccl-*")]
    for process in Path("/proc").glob("[0-9]*/environ"):
        try:
            assert str(tmp_path) not in process.read_text(errors="replace"), process
        except OSError:
            continue


@pytest.mark.processes
def test_a_sample_is_as_long_as_the_slowest_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    nccl = ran(monkeypatch, gpus=3, FAKE_TORCH_MS="3.0,3.4,3.2", NCCL_P2P_LEVEL="NVL", NCCL_DEBUG="WARN")
    assert (nccl.status, nccl.reason, nccl.failures) == (NcclStatus.OK, None, ())
    size = nccl.plan.size_bytes
    assert size == 61440, "a whole number of blocks for each of three ranks"
    for result, factor in zip(nccl.results, (4 / 3, 2 / 3, 1), strict=True):
        assert (result.elapsed_ms, result.verified) == ((1.7, 1.7), True), result
        assert result.bus_gb_s == pytest.approx(factor * size / 1.7e-3 / 1e9)
    assert nccl.versions == {"nccl": "2.28.9+cuda13.0", "torch": "2.11.0+fake"}
    assert (nccl.transports, nccl.channels) == ({"P2P/CUMEM": 6}, 24)
    assert nccl.environment == {"NCCL_NVLS_ENABLE": "0", "NCCL_P2P_LEVEL": "NVL"}, "multicast is off unless asked for"


@pytest.mark.processes
@pytest.mark.parametrize(
    ("fault", "how", "reason"),
    [
        ("die:1", ["crashed"], "rank 1 (GPU1): its process died from SIGKILL"),
        ("stop:1", ["crashed"], "rank 1 (GPU1): its process exited with code 0 without a result"),
        ("raise:0", ["raised"], "rank 0 (GPU0): its process raised DistBackendError: no reason is known"),
        ("talk:1", ["garbled"], "GPU0, GPU1: NCCL's processes reported nonsense"),
        ("hang:1", ["timed-out"], "GPU0, GPU1: no rank has responded for 2 s"),
    ],
)
def test_a_rank_that_fails_ends_the_others(
    monkeypatch: pytest.MonkeyPatch, fault: str, how: list[str], reason: str
) -> None:
    monkeypatch.setattr("egmctl.bench.nccl.rounds.RELEASE_S", 0.0)
    nccl = ran(monkeypatch, timeout_s=2 if fault.startswith("hang") else 60, FAKE_TORCH=fault)
    assert (nccl.status, nccl.results) == (NcclStatus.FAILED, ())
    assert [failure.how for failure in nccl.failures] == how
    assert (nccl.reason or "").startswith(f"NCCL failed in all_reduce: {reason}")
    assert nccl.known_errors == ()


def test_a_process_that_cannot_be_started_costs_only_this(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(*_: Any) -> Child:
        raise ChildNotStarted("a child process cannot be started: EAGAIN", how="crashed")

    nccl = ran(monkeypatch, start=start)
    assert (nccl.status, nccl.reason) == (
        NcclStatus.FAILED,
        "NCCL failed in all_reduce: GPU0, GPU1: a child process cannot be started: EAGAIN",
    )


def test_without_a_temporary_folder_only_nccl_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "missing"))
    nccl = ran(monkeypatch)
    assert nccl.status is NcclStatus.FAILED
    assert nccl.reason == (
        "NCCL failed in all_reduce: GPU0, GPU1: no folder for its logs can be made: TMPDIR must name a folder that can "
        "be written"
    )


@pytest.mark.processes
def test_wrong_values_are_no_bandwidth_that_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    nccl = ran(monkeypatch, FAKE_TORCH="wrong:1")
    assert (nccl.status, [each.verified for each in nccl.results]) == (NcclStatus.CORRUPT, [False, True, True])
    run = whole(nccl)
    assert (run.answer.state, run.causes[-1].finding.check) == (State.BAD, "bench.nccl")


def test_corrupt_data_comes_before_slow_links_and_hides_no_failure() -> None:
    failure = RankFailure(rank=1, label="GPU1", how=Ending.CRASHED, reason="its process died from SIGKILL")
    reason = "NCCL left wrong values in all_reduce"
    nccl = NcclRun(plan=little(shipped("hgx-h200x4")), status=NcclStatus.CORRUPT, reason=reason, failures=(failure,))
    slow = judge_run(measured_links(WRITE, gpus=2, value=lambda *_: 1.0), shipped("hgx-h200x4"))
    assert slow.verdict is not None
    assert {entry.grade for entry in slow.verdict.classes} == {Grade.FAIL}
    run = answered(with_nccl_cause(with_causes(replace(slow, nccl=nccl)), nccl))
    answer = run.answer
    assert (answer.state, answer.sentence) == (State.BAD, f"GPU0, GPU1: {reason}")
    assert answer.causes[0].finding.check == "bench.nccl"
    assert answer.next_step is not None
    assert answer.next_step.text.startswith("Drain the node: data arrived corrupt")
    assert "GPU1: its process died from SIGKILL" in str([*nccl_section(run, nccl)])


def binary(folder: Path, name: str, printed: str, code: int = 0) -> None:
    """Put a binary of nccl-tests into a folder: it prints its output, and how it was started to NCCL's log."""
    started = "open(os.environ['NCCL_DEBUG_FILE'], 'a').write(' '.join(sys.argv[1:]) + '\\n' + log)"
    script = f"#!{sys.executable}\nimport os, sys\nlog = {LOG!r}\n{started}\nprint({printed!r})\nsys.exit({code})\n"
    (folder / name).write_text(script)
    (folder / name).chmod(0o755)


@pytest.mark.processes
def test_nccl_tests_is_used_where_pytorch_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in BINARIES.values():
        binary(tmp_path, name, TABLE)
    path: dict[str, Any] = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    nccl = ran(monkeypatch, program=NcclProgram.NCCL_TESTS, **path)
    assert (nccl.status, nccl.plan.samples) == (NcclStatus.OK, 1)
    assert {each.name: round(each.bus_gb_s, 1) for each in nccl.results}["all_reduce"] == 325.8
    assert nccl.transports["P2P/CUMEM"] == 2 * 3
    wrong = TABLE.replace("325.27      0", "325.27     12").replace(": 0 OK", ": 12 FAILED")
    binary(tmp_path, "all_gather_perf", wrong, code=1)
    nccl = ran(monkeypatch, program=NcclProgram.NCCL_TESTS, **path)
    assert (nccl.status, nccl.failures) == (NcclStatus.CORRUPT, ()), "wrong values end no later collective"
    assert [each.verified for each in nccl.results] == [True, False, True]
    binary(tmp_path, "all_gather_perf", "Test NCCL failure common.cu:1005 'unhandled cuda error'", code=3)
    nccl = ran(monkeypatch, program=NcclProgram.NCCL_TESTS, **path)
    assert [each.name for each in nccl.results] == ["all_reduce"], "what was measured before stays"
    assert nccl.reason == "NCCL failed in all_gather: GPU0, GPU1: all_gather_perf ended with exit code 3; " + (
        "NCCL warned: transport/p2p.cc:275: Cuda failure 101 'invalid device ordinal'"
    )


@pytest.mark.processes
def test_what_was_measured_before_an_interrupt_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = itertools.count()

    def until_all_gather(*arguments: Any) -> Round:
        if next(rounds) == 2:
            raise KeyboardInterrupt
        return next_round(*arguments)

    monkeypatch.setattr("egmctl.bench.nccl.run.next_round", until_all_gather)
    monkeypatch.setenv("PYTHONPATH", f"{TORCH}{os.pathsep}{ROOT}")
    node = shipped("hgx-h200x4")
    links = Bench(suites=("nccl",), cases=("nccl_all_reduce",)).plan(node)
    report = supervise(replace(links, nccl=little(node)), node, on_progress=lambda *_: None)
    assert report.interrupted
    assert report.nccl is not None
    assert [each.name for each in report.nccl.results] == ["all_reduce"]
    assert (report.nccl.status, report.nccl.reason) == (NcclStatus.WAIVED, "interrupted before it was done")
    answer = answered(with_nccl_cause(report, report.nccl)).answer
    assert (answer.state, answer.exit_code) == (State.INTERRUPTED, 130)
    assert "all_reduce" in str([*nccl_section(report, report.nccl)])
    few = little(node, gpus=1)
    assert interrupted(few).plan == few, "it would not have been measured without the interrupt either"


def test_a_warning_of_any_rank_is_beside_how_all_hung() -> None:
    plan = little(shipped("hgx-h200x4"))
    hung = RankFailure(rank=None, label="GPU0, GPU1", how=Ending.TIMED_OUT, reason="no rank has responded for 60 s")
    nccl = put_together(plan, RankReports(plan, failures=[hung]), {0: "", 1: LOG}, {})
    (failure,) = nccl.failures
    assert failure.words.startswith("no rank has responded for 60 s; NCCL warned: transport/p2p.cc:275: Cuda failure")


# --- its answer ------------------------------------------------------------------------------------------------------


def whole(nccl: NcclRun, node: Machine | None = None, **links: Any) -> RunReport:
    """Return a run of two links and NCCL, explained and answered."""
    report = run_of_links(cases=("device_to_device_memcpy_write_ce",), gpus=2, node=node, **links)
    report = replace(report, nccl=nccl)
    machine = report.machines[0]
    return Bench(suites=("nccl",)).explain(judge_run(beside_links(report, nccl), machine), machine)


@pytest.mark.processes
def test_the_bus_bandwidth_is_set_beside_the_slowest_direction_of_a_link(monkeypatch: pytest.MonkeyPatch) -> None:
    nccl = ran(monkeypatch)
    nccl = replace(nccl, results=tuple(replace(each, bus_gb_s=90.0) for each in nccl.results))
    run = whole(nccl)
    assert run.nccl is not None
    assert run.nccl.slowest is not None
    assert (run.measurements[run.nccl.slowest.measurement].path, run.nccl.slowest.gb_s) == ("GPU0 -> GPU1", 100.0)
    assert [each.share for each in run.nccl.results] == [0.9] * 3
    assert "all_reduce 90.0 GB/s (90 %)" in run.answer.notes[-1]
    assert not [cause for cause in run.causes if cause.finding.check == "bench.nccl"], "no source says what is too slow"
    assert from_json(RunReport, json.loads(json.dumps(to_json(run)))) == run

    multicast = replace(nccl, transports={"NVLS": 2})
    beside = whole(multicast).nccl
    assert beside is not None
    assert (beside.slowest, beside.not_comparable[:26]) == (None, "the switches add and copy ")


@pytest.mark.processes
def test_a_gpu_a_task_is_the_cause_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As NCCL 2.28 died on two H200: each process may use one GPU alone, by the device cgroup."""
    nccl = ran(monkeypatch, FAKE_TORCH="cuda101:01")
    for failure in nccl.failures:
        assert failure.reason.startswith("its process raised DistBackendError: ")
        assert failure.warning == NcclWarning("Cuda failure 101 'invalid device ordinal'", "transport/p2p.cc:275")
        assert failure.words.endswith("; NCCL warned: transport/p2p.cc:275: Cuda failure 101 'invalid device ordinal'")
    assert len(nccl.failures) == 2
    assert "host" not in json.dumps(to_json(nccl)), "its lines name the host"
    elsewhere = whole(nccl)
    finding = elsewhere.causes[-1].finding
    assert (elsewhere.answer.state, finding.cause[:35]) == (State.BAD, "possibly: the other rank's GPU is d")

    denied = with_gpu_denied(shipped("hgx-h200x4"), 1)
    run = answered(with_nccl_cause(replace(elsewhere, machines=(denied,)), nccl, denied))
    (finding,) = [cause.finding for cause in run.causes if cause.finding.check == "bench.nccl"]
    assert finding.cause.startswith("the other rank's GPU is denied to this process")
    assert "the device cgroup denies /dev/nvidia" in finding.cause
    assert finding.remedy is not None
    assert "Give every process all GPUs of the job" in finding.remedy.text


def test_a_failure_of_no_known_reason_does_not_pass() -> None:
    reason = "NCCL failed in all_reduce: GPU0, GPU1: no rank has responded for 60 s"
    failed = NcclRun(plan=little(shipped("hgx-h200x4")), status=NcclStatus.FAILED, reason=reason)
    answer = answered(with_nccl_cause(replace(measured_links(WRITE, gpus=2), nccl=failed), failed)).answer
    assert (answer.state, answer.exit_code) == (State.BROKE, 4)
    assert [(gap.kind, gap.reason) for gap in answer.gaps] == [(GapKind.BROKE, reason)]


def test_what_was_not_run_does_not_pass(egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path: Path) -> None:
    """Neither PyTorch nor nccl-tests is there: the links are measured, and the answer says what is missing."""
    node = fake_node("hgx-h200x4")
    options = ("bench", "--suite", "nccl", "--gpus", "0-1", "--size", "1M", "--copies", "2", "--samples", "2")
    done = egmctl(*options, "--json", env=node.environment())
    document = json.loads(done.out)
    validate(document, "bench")
    nccl, answer = document["result"]["nccl"], document["answer"]
    assert (done.code, answer["state"], nccl["status"]) == (3, "incomplete", "waived")
    assert answer["sentence"].startswith("NCCL was not run: neither PyTorch nor nccl-tests (all_reduce_perf")
    assert answer["next_step"]["text"].startswith("Install PyTorch for this Python")
    assert [each["status"] for each in document["result"]["measurements"]] == ["ok"] * 3

    more = {"PYTHONPATH": f"{TORCH}{os.pathsep}{ROOT}", "EGMCTL_NO_JOURNAL": ""}
    done = egmctl(*options, "--journal", tmp_path, env={**node.environment(), **more})
    (journal,) = tmp_path.glob("*.journal")
    assert "all_reduce" in done.out
    assert "P2P/CUMEM (4); 24 channels" in " ".join(done.out.split())
    assert "P2P/CUMEM (4); 24 channels" in " ".join(egmctl("show", journal).out.split())


@pytest.mark.parametrize(
    ("allowed", "value", "words"),
    [(True, None, "NVLS allowed"), (True, "0", "NVLS off (NCCL_NVLS_ENABLE=0)"), (False, "0", "NVLS off")],
)
def test_nvls_is_what_the_processes_had(allowed: bool, value: str | None, words: str) -> None:
    plan = replace(little(shipped("hgx-h200x4")), nvls=allowed)
    variables = {} if value is None else {"NCCL_NVLS_ENABLE": value}
    nccl = NcclRun(plan=plan, status=NcclStatus.OK, environment=variables)
    assert f"; {words}'" in str([*nccl_section(replace(measured_links(WRITE, gpus=2), nccl=nccl), nccl)])


# --- its plan --------------------------------------------------------------------------------------------------------


def planned(machine: Machine, **options: Any) -> Any:
    """Return the plan of NCCL on a machine that is not this node."""
    return Bench(suites=("nccl",), **options).plan(machine).nccl


def test_the_plan_takes_what_fits_and_leaves_out_what_cannot_be_used() -> None:
    node = shipped("hgx-h200x4")
    assert (planned(node).size_bytes, planned(node).labels) == (1 << 30, ("GPU0", "GPU1", "GPU2", "GPU3"))
    assert planned(node, size="64M", copies=7, samples=9).iterations == 7
    gpus = node.gpus or ()
    small = replace(node, gpus=tuple(with_free(gpu, 1 << 30) for gpu in gpus))
    assert planned(small).size_bytes == 1 << 28
    large = planned(small, size="400M", cases=("nccl_all_reduce",))
    assert [waiver.kind for waiver in large.waivers] == [WaiverKind.NO_ROOM]
    assert little(small, program=NcclProgram.NCCL_TESTS).waivers == ()
    room = room_of([free_gpu_bytes(small, gpu) for gpu in small.gpus or ()], LITTLE)
    assert room is not None
    third = room // 3
    assert (
        fitting_bytes(None, 2, room, NcclProgram.NCCL_TESTS) <= third < fitting_bytes(None, 2, room, NcclProgram.TORCH)
    )
    (alone,) = planned(node, gpus="0").waivers
    assert alone.reason == "NCCL needs two GPUs"
    denied = with_gpu_denied(shipped("hgx-h200x4"), 1)
    assert len(planned(denied).gpus) == 3
    assert [waiver.kind for waiver in planned(denied, gpus="0,3").waivers] == [WaiverKind.GPU_UNUSABLE]


@pytest.mark.parametrize(
    ("size_bytes", "has_torch", "kind", "remedy"),
    [
        (None, False, WaiverKind.NOT_INSTALLED, "Install PyTorch for this Python"),
        (1 << 30, True, WaiverKind.NO_ROOM, "Give a smaller --size"),
        (None, True, None, ""),
    ],
)
def test_a_job_is_told_why_it_is_not_measured(
    size_bytes: int | None, has_torch: bool, kind: WaiverKind | None, remedy: str
) -> None:
    node = shipped("hgx-h200x4")
    gpus = (node.gpus or ())[:2]
    parts = [RankFacts(gpu=gpu, folder="", has_torch=has_torch, free_bytes=1 << 30, busy=None) for gpu in gpus]
    request = NcclRequest(collectives=("all_reduce",), settings=LITTLE, size_bytes=size_bytes, nvls=False)
    plan = plan_of_job(node, [gpu.bus_id for gpu in gpus], parts, request)
    assert [waiver.kind for waiver in plan.waivers] == ([] if kind is None else [kind])
    for waiver in plan.waivers:
        nccl = not_measured(plan, waiver.reason)
        run = answered(with_nccl_cause(replace(measured_links(WRITE, gpus=2), nccl=nccl), nccl))
        assert run.causes[-1].finding.remedy is not None
        assert run.causes[-1].finding.remedy.text.startswith(remedy)


def with_free(gpu: Any, free_bytes: int) -> Any:
    """Return a GPU with this much free memory."""
    return replace(gpu, nvml=replace(gpu.nvml, memory_total_bytes=gpu.nvml.memory_used_bytes + free_bytes))


def test_it_is_asked_for_by_name_and_runs_once() -> None:
    node = shipped("hgx-h200x4")
    assert select_collectives((), ("full",)) == select_collectives(("*",), ()) == ()
    one = Bench(suites=("nccl",), cases=("nccl_all_reduce",)).plan(node)
    assert one.nccl is not None
    assert (one.nccl.collectives, len(one.tasks)) == (("all_reduce",), 0)
    once: tuple[dict[str, Any], ...] = ({"duration": 60.0}, {"sweep": "size"}, {"pair": "0:1"})
    for options in once:
        with pytest.raises(UsageError, match="NCCL runs once"):
            Bench(suites=("nccl",), **options)
    with pytest.raises(UsageError, match="--nvls works with --suite nccl only"):
        Bench(nvls=True)
    of_cases: tuple[dict[str, Any], ...] = ({"serial": True}, {"no_gate": True}, {"numa": "0"})
    for options in of_cases:
        assert Bench(suites=("nccl",), **options).selected_cases, "it measures links too"
        with pytest.raises(UsageError, match=r"cannot be combined with collectives of NCCL alone"):
            Bench(suites=("nccl",), cases=("nccl_*",), **options)
    with pytest.raises(UsageError, match="matches no case"):
        Bench(cases=("nccl_all_reduce",))
