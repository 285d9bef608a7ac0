"""A bench that goes wrong, on fake nodes: driver calls that fail, hang or crash, corrupt data, and signals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.bench.conftest import FEW, SHARED_WITH_FACTS, SMALL, STAYS, TWO_GPUS, WORKER_CALLS, Bench
from tests.conftest import ROOT, RunEgmctl, command_environment
from tests.fake.plugin import MakeFakeNode
from tests.tiers import few


class TestCorruption:
    def test_one_byte_is_found_and_located_and_the_run_goes_on(self, bench: Bench) -> None:
        # 2 warm the path up, then there are 2 in a sample, the second one of the second MiB.
        run = bench(*TWO_GPUS, faults="cuMemcpyAsync@4=corrupt:524291")
        assert run.code == 1
        corrupt, *others = run.measurements
        assert corrupt["status"] == "corrupt"
        mismatch = corrupt["mismatch"]
        assert (mismatch["sample"], mismatch["words"], mismatch["first_offset_bytes"]) == (0, 1, (1 << 20) + 524288)
        assert int(mismatch["expected"], 16) ^ int(mismatch["found"], 16) == 0xFF << 24
        assert re.fullmatch(
            r"sample 0: 1 of 262144 words differ, the first at offset 1572864: expected 0x\w{16}, found 0x\w{16}",
            corrupt["reason"],
        )
        assert len(corrupt["samples"]) == 2
        assert {m["status"] for m in others} == {"ok"}

    def test_the_text_names_the_pair_and_the_place(self, egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
        faulty = fake_node("gb200-tray").environment("cuMemcpyAsync@4=corrupt:524291")
        ended = egmctl(*TWO_GPUS, "-v", env=faulty)
        assert ended.code == 1
        assert re.search(r"\nFAIL: 1 of \d+ measurements failed: sample 0: 1 of 262144", ended.out)
        assert "\nNext: drain the node: data arrived corrupt" in ended.out
        assert "NUMA1  corrupt" in ended.out
        told = " ".join(ended.out.split())
        assert "CORRUPT host_numa_to_device_memcpy_ce NUMA1 -> GPU0: sample 0: 1 of 262144 words differ" in told

    @pytest.mark.parametrize(
        ("options", "copy"), [(SMALL, 5), ((*FEW, "--case", "device_to_device_atomic_add"), 1)], ids=["copy", "atomic"]
    )
    def test_a_result_of_the_check_that_is_damaged_itself_is_corrupt_data_too(
        self, bench: Bench, options: tuple[str, ...], copy: int
    ) -> None:
        # The copy after those of the first sample fetches what its check found: 255 words, the first one nowhere.
        run = bench("bench", "--numa", "1", "--gpus", "0-1", *options, faults=f"cuMemcpyAsync@{copy}=corrupt:0")
        assert run.code == 1
        corrupt, *others = run.measurements
        assert corrupt["status"] == "corrupt"
        assert corrupt["reason"] == (
            "sample 0: the check's result is 0x00000000000000ff, not 0x0000000000000000; no wrong word was located"
        )
        assert {m["status"] for m in others} == {"ok"}


class TestFailure:
    def test_the_list_of_the_workers_calls_is_complete(self, bench: Bench) -> None:
        assert {call.name for call in bench(*TWO_GPUS).worker_calls()} == set(WORKER_CALLS)

    @pytest.mark.long
    @pytest.mark.parametrize("call", few([call for call in WORKER_CALLS if call not in SHARED_WITH_FACTS], every=3))
    def test_each_driver_call_that_fails_is_named_and_everything_else_is_given_back(
        self, bench: Bench, call: str
    ) -> None:
        run = bench(*TWO_GPUS, faults=f"{call}@1=error:719")
        assert run.code == 4
        assert {line.split(": ")[1].split()[0] for line in run.node.leaks()} == STAYS.get(call, set())
        if call in STAYS:
            assert set(run.statuses()) == {"ok"}
            first = run.result["problems"][0]
            assert f"{call} failed: CUDA_ERROR_LAUNCH_FAILED (719)" in first, "and not what fails because of it"
        else:
            assert "failed" in run.statuses()
            assert any(f"{call} failed: CUDA_ERROR_LAUNCH_FAILED (719)" in reason for reason in run.reasons())

    def test_a_failure_with_a_known_cause_says_what_to_do_and_exits_1(self, bench: Bench) -> None:
        run = bench(*TWO_GPUS, faults="cuMemCreate=error:2")
        assert run.code == 1
        assert run.statuses() == ["failed"] * 4 + ["ok"] * 4
        (reason,) = run.reasons()
        assert reason.startswith("cuMemCreate failed: CUDA_ERROR_OUT_OF_MEMORY (2); ")
        assert "--size" in reason
        assert run.measurements[0]["last_call"] == "cuMemCreate"

    @pytest.mark.parametrize("fault", ["missing", "error:801"])
    def test_what_the_driver_does_not_have_is_waived(self, bench: Bench, fault: str) -> None:
        run = bench(*TWO_GPUS, faults=f"cuMemCreate={fault}")
        assert run.code == 0
        assert run.statuses() == ["waived"] * 4 + ["ok"] * 4
        assert {reason.startswith("cuMemCreate failed: ") for reason in run.reasons()} == {True}

    @pytest.mark.long
    def test_a_call_that_hangs_costs_its_path_and_no_other(self, bench: Bench) -> None:
        # Each GPU has a page for results and a destination before the first one gets a source.
        run = bench(*TWO_GPUS, "--timeout", "4", faults="cuMemAlloc@5=hang,once")
        assert run.code == 4
        assert run.statuses().count("timed-out") == 1
        assert run.statuses().count("ok") == 7
        (hung,) = (m for m in run.measurements if m["status"] == "timed-out")
        assert (hung["case"], hung["last_call"]) == ("device_to_host_numa_memcpy_ce", "cuMemAlloc")

    def test_a_crash_in_the_driver_costs_its_path_and_no_other(self, bench: Bench) -> None:
        run = bench(*TWO_GPUS, faults="cuMemSetAccess@1=kill:11,once")
        assert run.code == 4
        assert run.statuses() == ["crashed"] + ["ok"] * 7
        assert "SIGSEGV in cuMemSetAccess" in run.measurements[0]["reason"]

    def test_a_worker_that_is_killed_while_it_is_set_up_costs_no_path(self, bench: Bench) -> None:
        run = bench(*TWO_GPUS, faults="cuStreamCreate@1=kill:9,once")
        assert run.code == 4
        assert set(run.statuses()) == {"ok"}
        (problem,) = run.result["problems"]
        assert "died from SIGKILL in cuStreamCreate while it was set up; a new one took over" in problem

    def test_workers_that_are_killed_one_after_the_other_while_they_are_set_up_cost_all(self, bench: Bench) -> None:
        run = bench(*TWO_GPUS, faults="cuStreamCreate@1=kill:9")
        assert run.code == 4
        assert set(run.statuses()) == {"crashed"}
        (reason,) = run.reasons()
        assert reason.endswith("died from SIGKILL in cuStreamCreate")
        assert run.result["problems"] == []
        assert len({call.pid for call in run.node.calls("cuStreamCreate")}) == 2

    def test_a_gpu_that_cannot_be_opened_does_not_cost_the_others(self, bench: Bench) -> None:
        run = bench("bench", "--numa", "0", "--gpus", "0-2", *SMALL, faults="cuDevicePrimaryCtxRetain@2=error:999")
        for measurement in run.measurements:
            touched = "GPU1" in (
                end["label"] for flow in measurement["flows"] for end in (flow["source"], flow["destination"])
            )
            assert measurement["status"] == ("failed" if touched else "ok")

    def test_a_gpu_that_the_worker_does_not_see_is_waived(self, bench: Bench) -> None:
        run = bench(*TWO_GPUS, faults="cuDeviceGetByPCIBusId@1=error:101")
        assert run.code == 1, "it is required by name"
        assert run.statuses().count("waived") == 6
        (reason,) = run.reasons()
        assert reason.startswith("CUDA does not see a GPU of this path: cuDeviceGetByPCIBusId failed")


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_run_with_a_partial_report(
    fake_node: MakeFakeNode, tmp_path: Path, number: signal.Signals
) -> None:
    node = fake_node("gb200-tray")
    environment = command_environment(node.environment("cuMemAlloc@5=hang"))
    with (tmp_path / "out.json").open("w+") as out:
        command = subprocess.Popen(
            [sys.executable, "-m", "egmctl", *TWO_GPUS, "--json"], stdout=out, cwd=ROOT, env=environment
        )
        deadline = time.monotonic() + 30
        while len(node.calls("cuMemAlloc")) < 5 and time.monotonic() < deadline:
            time.sleep(0.1)
        os.kill(command.pid, number)
        assert command.wait(20) == 130
        out.seek(0)
        result = json.load(out)["result"]
    assert result["interrupted"] is True
    assert [m["status"] for m in result["measurements"]] == ["ok"] * 2 + ["waived"] * 6
    (worker,) = {call.pid for call in node.calls("cuMemCreate")}
    assert not Path(f"/proc/{worker}").exists()
