"""The bench where GPUs are busy or NVML is dead: what it says first, and how it ends.

Where device nodes are denied: tests/gpu/test_bench_access.py.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from egmctl.model.gpu import GpuProcess
from egmctl.model.machine import Machine
from tests.conftest import RunEgmctl, ended
from tests.doctor.machines import patched, shipped
from tests.fake.plugin import MakeFakeNode
from tests.tiers import LONG

BENCH = ("bench", "--size", "1M", "--samples", "2", "--copies", "2", "--case", "device_to_device_memcpy_write_ce")


def first(out: str) -> str:
    """The answer, in one line."""
    # Where the driver lists no GPU, none is called a fake one.
    lines = [line for line in out.splitlines() if not line.startswith("FAKE ")]
    end = next(place for place, line in enumerate(lines) if line.startswith("Next: "))
    return " ".join(line.strip() for line in lines[:end])


def sections(out: str) -> set[str]:
    return {title for title in ("Path classes", "GPU(row)", "Between GPUs", "Measured vs expected") if title in out}


def busy(*gpus: int) -> Machine:
    """Return a machine of four GPUs, some of which a process uses."""
    machine = shipped("hgx-h200x4")
    user = GpuProcess(pid=4711, name="python3")
    machine = patched(machine, "gpus[*].nvml", processes=())
    for index in gpus:
        machine = patched(machine, f"gpus[{index}].nvml", processes=(user,))
    return machine


class TestBusyGpus:
    def test_are_one_sentence_with_who_uses_them_and_what_to_do(
        self, egmctl: RunEgmctl, fake_node: MakeFakeNode
    ) -> None:
        done = egmctl(*BENCH, "-v", env=fake_node(busy(0, 1, 2, 3)).environment())
        assert done.code == 3
        assert first(done.out) == "INCOMPLETE: nothing was measured: GPU0-3: in use by process 4711"
        assert "or measure beside them with 'egmctl bench --allow-busy'" in " ".join(done.out.split())
        assert "$ ps -o pid,user,etime,args -p 4711" in done.out
        assert sections(done.out) == set()

    @pytest.mark.long
    def test_one_of_several_makes_it_incomplete_and_no_failure_where_it_was_asked_for(
        self, egmctl: RunEgmctl, fake_node: MakeFakeNode
    ) -> None:
        node = fake_node(busy(3))
        done = egmctl(*BENCH, env=node.environment())
        asked = egmctl(*BENCH, "--gpus", "2,3", env=node.environment())
        assert (done.code, asked.code) == (3, 3), "a busy GPU is never bad"
        assert first(done.out).startswith("INCOMPLETE: GPU3: in use by process 4711; 6 measurements not made; ")
        assert "but --gpus names GPU3" in " ".join(asked.out.split())


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("nvmlInit=abort", "NVML crashed in nvmlInit"),
        ("nvmlInit=error:999", "NVML fails (nvmlInit: NVML_ERROR_UNKNOWN (999))"),
    ],
)
def test_a_dead_nvml_is_told_first_and_no_rate_is_invented(
    egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path: Path, fault: str, told: str
) -> None:
    """CUDA alone measures; nobody knows over which links."""
    node = fake_node("hgx-h200x4")
    done = egmctl(*BENCH, "-o", "-", "-o", str(tmp_path / "run.json"), env=node.environment(fault))
    document = json.loads((tmp_path / "run.json").read_text())
    answer, result = document["answer"], document["result"]
    assert told in first(done.out)
    assert first(done.out).startswith("FAIL: ")
    assert (done.code, document["exit_code"], answer["state"]) == (1, 1, "bad")
    assert {one["status"] for one in result["measurements"]} == {"ok"}
    hops = [hop for one in result["measurements"] for flow in one["flows"] for hop in flow["route"]["hops"]]
    assert {(hop["link"], hop["nominal_gb_s"]) for hop in hops} == {("unknown", None)}
    (cause,) = answer["causes"]
    assert cause["finding"]["check"] == "drv.libraries"
    assert cause["measurements"] == list(range(len(result["measurements"])))


@LONG
def test_an_nvml_that_hangs_costs_its_own_time_and_no_measurement(fake_node: MakeFakeNode) -> None:
    """Its own time is shortened: a minute."""
    shorter = (
        "import sys; from egmctl.facts import collect; collect.DEADLINE_S = 2; from egmctl.cli.app import run_command"
    )
    command = [sys.executable, "-c", f"{shorter}; sys.exit(run_command(sys.argv[1:]))", *BENCH, "--gpus", "0-1"]
    done = ended(command, env=fake_node("hgx-h200x4").environment("nvmlInit=hang"))
    assert done.code == 1, "NVML that hangs is a fault of the node"
    assert first(done.out).startswith("FAIL: ")
    assert "it hangs in nvmlInit" in first(done.out)
    assert "2 ok" in done.out
