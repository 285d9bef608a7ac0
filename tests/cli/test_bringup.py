"""``egmctl bringup`` as users run it: on a fake node, under limits, and of a machine that is not here."""

from __future__ import annotations

import json
import resource
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from egmctl.facts import replay as record
from egmctl.model.gpu import FAKE, GpuProcess
from egmctl.units import MIB
from tests.conftest import LITTLE, RunEgmctl, ended
from tests.doctor.cgroups import pids
from tests.doctor.machines import patched, shipped
from tests.fake.plugin import MakeFakeNode
from tests.in_process import run
from tests.schemas import validate


@pytest.mark.long
def test_on_a_node_it_checks_and_measures_and_writes_everything(
    egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path: Path
) -> None:
    node = fake_node(shipped("gb200-tray"))
    kept, page = tmp_path / "node.json", tmp_path / "node.html"
    options = ("bringup", "--gpus", "0-1", "--numa", "0", "-o", "-", "-o", kept, "-o", page)
    ended = egmctl(*options, env=node.environment(), little=True)
    document = json.loads(kept.read_text())
    validate(document, "bringup")
    result = document["result"]
    assert (ended.code, document["exit_code"], document["answer"]["state"]) == (3, 3, "incomplete")
    assert result["diagnosis"]["machines"][0]["probes"], "the active probes were run"
    cases = {one["case"] for one in result["run"]["measurements"]}
    assert {"device_to_device_memcpy_write_ce", "host_numa_to_device_memcpy_ce"} <= cases
    assert result["run"]["verdict"] is not None
    lines = ended.out.splitlines()
    assert len(lines) <= 25
    assert lines[0] == FAKE
    assert lines[1].startswith("INCOMPLETE: "), "nothing says what a fake GPU should reach"
    for part in ("doctor", "topology", "bench"):
        assert f'id="{part}"' in page.read_text()
    # A probing process of doctor ends with its context, and the driver frees that.
    assert [leak for leak in node.leaks() if "primary context" not in leak] == []


@pytest.mark.long
@pytest.mark.parametrize(("mode", "is_beside"), [("default", True), ("exclusive-process", False)])
def test_the_worker_opens_its_contexts_beside_the_probes_where_a_gpu_may_have_several(
    egmctl: RunEgmctl, fake_node: MakeFakeNode, mode: str, is_beside: bool
) -> None:
    node = fake_node(patched(shipped("hgx-h200x4"), "gpus[*].nvml", compute_mode=mode))
    egmctl("bringup", "--gpus", "0", "-q", env=node.environment(), little=True)
    calls = node.calls()
    (worker,) = {call.pid for call in calls if call.arguments.get("kernel") == "gate"}
    opened = next(
        number for number, call in enumerate(calls) if (call.pid, call.name) == (worker, "cuDevicePrimaryCtxRetain")
    )
    last_probe = max(number for number, call in enumerate(calls) if call.name == "cuMemGetHandleForAddressRange")
    assert (opened < last_probe) is is_beside
    assert [leak for leak in node.leaks() if "primary context" not in leak] == []


@pytest.mark.long
def test_gpus_in_use_are_not_measured_and_who_uses_them_is_named(
    egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path: Path
) -> None:
    process = (GpuProcess(pid=4711, used_memory_bytes=512 * MIB),)
    node = fake_node(patched(shipped("gb200-tray"), "gpus[0].nvml", processes=process))
    kept = tmp_path / "node.json"
    options = ("bringup", "--gpus", "0-1", "--numa", "0", "-o", "-", "-o", kept, "-q")
    ended = egmctl(*options, env=node.environment(), little=True)
    answer = json.loads(kept.read_text())["answer"]
    assert (ended.code, answer["state"]) == (3, "incomplete"), "a busy GPU is never bad, also if --gpus names it"
    words = " ".join(ended.out.split())
    assert "INCOMPLETE: GPU0: in use by process 4711, but --gpus names GPU0; " in words
    assert len(answer["causes"]) == 1


@pytest.mark.long
def test_what_appears_while_the_bench_runs_is_no_go(fake_node: MakeFakeNode, tmp_path: Path) -> None:
    healthy = shipped("hgx-h200x4")
    node, kept = fake_node(healthy), tmp_path / "node.json"

    def sicken() -> None:
        # Only the bench's worker asks for GPUs by their bus ids, and it has read the answers by then.
        while not node.calls("nvmlDeviceGetHandleByPciBusId"):
            time.sleep(0.05)
        node.become(patched(healthy, "gpus[0].nvml", ecc_uncorrected_volatile=2))

    thread = threading.Thread(target=sicken, daemon=True)
    thread.start()
    # An interpreter of its own: a forked child would have the fake libraries, and their answers, from its beginning.
    words = ["bringup", "--gpus", "0", "-o", "-", "-o", str(kept), "-q"]
    done = ended([sys.executable, LITTLE, *words], env=node.environment(), timeout_s=280)
    answer = json.loads(kept.read_text())["answer"]
    assert (done.code, answer["state"], answer["causes"][0]["under_load"]) == (1, "bad", True)
    first = " ".join(done.out.split())
    assert "NO-GO: GPU0: " in first
    assert "(appeared during the bench) Next: " in first


@pytest.mark.long
def test_a_gpu_that_nvml_lost_during_the_bench_is_a_problem(egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
    # The readings before and after ask four times, once a GPU, and the worker at least once in each of five steps.
    environment = fake_node(shipped("hgx-h200x4")).environment(faults="nvmlDeviceGetTemperature@5=error:15")
    ended = egmctl("bringup", "--gpus", "0", "-q", env=environment, little=True)
    assert ended.code == 4
    assert "BROKE: the run broke: NVML lost GPU0 during the bench: " in " ".join(ended.out.split())


def test_of_a_machine_that_is_not_here_nothing_is_measured() -> None:
    done = run("bringup", "--machine", "hgx-h200x4", "-q")
    assert (done.code, done.err) == (3, "")
    assert done.out.startswith("INCOMPLETE: nothing was measured: a recorded machine cannot be measured\nNext: ")


@pytest.mark.parametrize("nodes", [(), None])
@pytest.mark.parametrize("command", ["bringup", "bench --dry-run", "doctor", "topo"])
def test_without_numa_in_the_kernel_the_rest_goes_on(command: str, nodes: tuple[()] | None, tmp_path: Path) -> None:
    """gVisor, and kernels without CONFIG_NUMA, have no /sys/devices/system/node."""
    path = tmp_path / "node7.json"
    path.write_text(record.machine_text(patched(shipped("hgx-h200x4"), "host", numa_nodes=nodes)))
    done = run(*command.split(), "--machine", path, "-q")
    assert (done.code, done.err) == (3 if command == "bringup" else 0, "")
    assert "NVIDIA H200" in done.out or "GPU0 -> GPU3" in done.out


def test_a_recorded_fault_is_no_go(tmp_path: Path) -> None:
    path = tmp_path / "node7.json"
    path.write_text(
        record.machine_text(patched(shipped("gh200"), "driver", module_version="580.1", driver_version="570.2"))
    )
    done = run("bringup", "--machine", path, "-q")
    assert done.code == 1
    assert "\nNO-GO: the kernel module is 580.1, the libraries are 570.2" in f"\n{done.out}"


def test_the_exit_codes_of_nagios() -> None:
    options = ("bringup", "--machine", "hgx-h200x4", "-q", "--format", "nagios", "--exit-style", "nagios")
    done = run(*options)
    assert (done.code, done.out[:59]) == (3, "EGMCTL UNKNOWN - INCOMPLETE: nothing was measured: a record")
    assert run(*options, "--gpus", "9").code == 3, "a node that cannot be asked is not critical"


# --- under real limits of descriptors, addresses and processes: one cause, and nothing is slow ---


def brought_up(fake_node: MakeFakeNode, before: Callable[[], None]) -> tuple[int, str]:
    """Run bringup on two fake GPUs whose files of this process are the kernel's own; return exit code and words."""
    node = fake_node(shipped("hgx-h200x4"))
    shutil.rmtree(node.sysroot / "proc/self")
    (node.sysroot / "proc/self").symlink_to("/proc/self")
    cgroups = node.sysroot / "sys/fs/cgroup"
    shutil.rmtree(cgroups, ignore_errors=True)
    cgroups.parent.mkdir(parents=True, exist_ok=True)
    cgroups.symlink_to("/sys/fs/cgroup")
    command = [sys.executable, LITTLE, "bringup", "--gpus", "0", "-q"]
    done = ended(command, env=node.environment(), timeout_s=280, preexec_fn=before)
    return done.code, " ".join(done.out.split())


@pytest.mark.long
@pytest.mark.parametrize(
    ("limit", "value", "words"),
    [
        (resource.RLIMIT_NOFILE, 10, "open files are limited to 10"),
        (resource.RLIMIT_NOFILE, 16, "open files are limited to 16"),
        (resource.RLIMIT_AS, 400_000 << 10, "the address space is limited to 390.6 MiB"),
    ],
)
def test_a_limit_that_breaks_the_bench_is_its_cause(
    fake_node: MakeFakeNode, limit: int, value: int, words: str
) -> None:
    code, out = brought_up(fake_node, lambda: resource.setrlimit(limit, (value, value)))
    assert code in (1, 4)
    assert f"NO-GO: {words}" in out
    causes = out.count("FAIL ") - out.count("doctor FAIL ") - out.count("explains FAIL ")
    assert causes == 1, out
    assert "slow" not in out


@pytest.mark.long
@pytest.mark.needs_root
def test_too_few_processes_in_a_real_cgroup(fake_node: MakeFakeNode) -> None:
    with pids(4) as cgroup:
        code, out = brought_up(fake_node, cgroup.join)
    assert code in (1, 4)
    assert "NO-GO: the cgroup allows " in out
    assert "slow" not in out


@pytest.mark.long
def test_a_low_limit_that_breaks_nothing_is_a_warning(fake_node: MakeFakeNode) -> None:
    code, out = brought_up(fake_node, lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (48, 48)))
    assert code == 3, "nothing says what a fake GPU should reach"
    assert "WARN open files are limited to 48, too few for CUDA on 4 GPUs" in out
