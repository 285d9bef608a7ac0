"""The bench where device nodes are denied, GPUs are busy or NVML is dead: what it says first, and how it ends.

The device cgroups are the kernel's own; the driver is the fake one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from egmctl.model.gpu import GpuProcess
from egmctl.model.machine import Machine
from tests.conftest import RunEgmctl, ended
from tests.doctor.cgroups import Cgroup, denying_v1, denying_v2
from tests.doctor.machines import shipped
from tests.doctor.real_node import Node, hgx_node, without_driver
from tests.fake.plugin import MakeFakeNode
from tests.tiers import LONG

real = [pytest.mark.needs_root, pytest.mark.needs("mount", "cc"), without_driver]
BENCH = ("bench", "--size", "1M", "--samples", "2", "--copies", "2", "--case", "device_to_device_memcpy_write_ce")
Denying = Callable[..., AbstractContextManager[Cgroup]]


@pytest.fixture
def node() -> Iterator[Node]:
    with hgx_node() as made:
        yield made


def first(out: str) -> str:
    """The answer, in one line."""
    # Where the driver lists no GPU, none is called a fake one.
    lines = [line for line in out.splitlines() if not line.startswith("FAKE ")]
    end = next(place for place, line in enumerate(lines) if line.startswith("Next: "))
    return " ".join(line.strip() for line in lines[:end])


def sections(out: str) -> set[str]:
    return {title for title in ("Path classes", "GPU(row)", "Between GPUs", "Measured vs expected") if title in out}


class TestADeniedGpu:
    pytestmark = real

    @pytest.mark.long
    @pytest.mark.parametrize(
        ("denying", "words"), [(denying_v1, ""), (partial(denying_v2, below="job/step"), "an ancestor of")]
    )
    def test_is_incomplete_and_the_rest_is_measured(
        self, node: Node, tmp_path: Path, denying: Denying, words: str
    ) -> None:
        with denying(1) as cgroup:
            code, out = node.run(*BENCH, "-o", "-", "-o", str(tmp_path / "run.json"), cgroups=[cgroup])
        assert code == 3
        assert first(out).startswith(
            "INCOMPLETE: GPU1: the device cgroup denies /dev/nvidia1; 6 measurements not made; the 6 measurements made "
        )
        assert cgroup.path in out, "the policy, by the name that it has here"
        assert words in " ".join(out.split())
        assert "6 ok, 6 waived" in out
        text = (tmp_path / "run.json").read_text()
        document = json.loads(text)
        answer, result = document["answer"], document["result"]
        (cause,) = answer["causes"]
        waived = [n for n, measurement in enumerate(result["measurements"]) if measurement["status"] == "waived"]
        assert (cause["finding"]["check"], cause["status"]) == ("dev.cgroup-restricted", "note")
        assert (answer["state"], document["exit_code"]) == ("incomplete", 3)
        (gap,) = answer["gaps"]
        assert (gap["kind"], gap["measurements"], gap["causes"]) == ("waived", waived, [0])
        assert cause["measurements"] == waived
        assert len(waived) == 6
        assert cgroup.path.lstrip("/") not in text, "a document names no cgroup"

    @pytest.mark.long
    def test_is_a_failure_where_it_was_asked_for(self, node: Node) -> None:
        with denying_v2(1) as cgroup:
            code, out = node.run(*BENCH, "--gpus", "all", cgroups=[cgroup])
        assert code == 1
        assert first(out).startswith(
            "FAIL: GPU1: the device cgroup denies /dev/nvidia1, but GPU1 is required (--gpus, --expect)"
        )

    def test_with_all_denied_by_both_versions_nothing_is_measured(self, node: Node) -> None:
        with denying_v1(0) as one, denying_v2(1, 2, 3) as two:
            code, out = node.run(*BENCH, "-v", cgroups=[one, two])
            no_go, told = node.run("bringup", "--gpus", "all", "--format", "json", "-q", cgroups=[one, two])
        answer = json.loads(told)["answer"]
        (cause,) = answer["causes"]
        assert (no_go, answer["state"], out.count("CAUSE "), "[drv.libraries]" in out) == (1, "bad", 1, False)
        assert (code, cause["finding"]["check"]) == (1, "dev.cgroup-restricted")
        assert first(out).startswith("FAIL: nothing was measured: GPU0-3: the device cgroup denies /dev/nvidia0,")
        assert first(out).endswith("/dev/nvidia3: no GPU can be used")
        assert sections(out) == set()


@pytest.mark.parametrize("verbose", [(), ("-v",)])
class TestDeniedUvm:
    pytestmark = real

    def test_is_the_cause_and_there_are_no_tables(self, node: Node, verbose: tuple[str, ...]) -> None:
        driver = node.machine.driver
        assert driver is not None
        assert driver.majors is not None
        with denying_v2(0, major=driver.majors["nvidia-uvm"]) as cgroup:
            code, out = node.run(*BENCH, *verbose, cgroups=[cgroup])
        assert code == 1, "no allocation of GPUs lacks this node: doctor fails too"
        assert first(out) == (
            "FAIL: nothing was measured: the device cgroup denies /dev/nvidia-uvm, which CUDA cannot do without"
        )
        assert cgroup.path in out
        assert ("cuInit" in out) is bool(verbose), "what follows from it is not the cause: -v alone has it"
        assert sections(out) == set()


def busy(*gpus: int) -> Machine:
    """Return a machine of four GPUs, some of which a process uses."""
    machine = shipped("hgx-h200x4")
    user = GpuProcess(pid=4711, name="python3")
    return replace(
        machine,
        gpus=tuple(
            replace(gpu, nvml=gpu.nvml and replace(gpu.nvml, processes=(user,) if number in gpus else ()))
            for number, gpu in enumerate(machine.gpus or ())
        ),
    )


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
