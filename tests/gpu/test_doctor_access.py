"""On real hardware: the doctor on a healthy node, in a device cgroup that denies one GPU, and with one hidden."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from egmctl.doctor.situation import driver_parameters
from egmctl.facts.collect import collect
from egmctl.model.gpu import Gpu
from tests.doctor.cgroups import denying_v1, denying_v2
from tests.gpu.commands import minor, started

pytestmark = [pytest.mark.gpu, pytest.mark.needs_root]

CGROUP, COUNT, CONTROL = "dev.cgroup-restricted", "dev.count-consistency", "dev.control-nodes"


class Run(NamedTuple):
    """How a run of the command ended."""

    code: int
    findings: list[dict[str, Any]]
    seconds: float

    def of(self, check: str) -> dict[str, Any]:
        """Return the one finding of a check."""
        (finding,) = [finding for finding in self.findings if finding["check"] == check]
        return finding

    def causes(self) -> dict[str, list[str]]:
        """Return the checks that fail and that nothing explains, and what each explains."""
        roots = [one for one in self.findings if one["status"] == "fail" and not one["explained_by"]]
        return {one["check"]: one["explains"] for one in roots}


def doctor(*arguments: str, before: Callable[[], None] | None = None, **variables: str) -> Run:
    begun = time.perf_counter()
    done = started("doctor", "--json", *arguments, before=before, variables=variables)
    seconds = time.perf_counter() - begun
    assert done.out, done.err
    return Run(done.code, json.loads(done.out)["result"]["findings"], seconds)


def told(*arguments: str) -> str:
    """What it says as text."""
    return started("doctor", *arguments).out


def is_left_by_other_tests(finding: dict[str, Any]) -> bool:
    """Return whether a finding notes the Xids 31 that tests of the kernel log and of isolation have made on purpose."""
    return (finding["check"], finding["status"]) == ("kernel.xid", "note") and finding["summary"].startswith("Xid 31,")


def test_a_healthy_node(gpus: tuple[Gpu, ...]) -> None:
    run = doctor()
    wrong = [finding for finding in run.findings if finding["status"] in ("fail", "warn", "note")]
    wrong = [finding for finding in wrong if not is_left_by_other_tests(finding)]
    assert [(finding["check"], finding["summary"]) for finding in wrong] == []
    assert run.code == 0
    line = run.of(COUNT)["evidence"][0]["value"]
    assert line == " > ".join(
        [f"{len(gpus)} {step}" for step in ("on PCI", "driver", "device node", "accessible", "NVML")]
        + ["not asked CUDA"]
    )


@pytest.mark.parametrize(("options", "times"), [((), 20), (("--active",), 5)])
@pytest.mark.timeout(600)
def test_a_healthy_node_is_healthy_each_time(options: tuple[str, ...], times: int) -> None:
    """No fail, warn, unknown or note, however often it is asked, but that a virtual machine's one GPU has no NVLink."""
    machine = collect(("gpus", "driver"))
    alone = len(machine.gpus or ()) == 1 and driver_parameters(machine).get("NvLinkDisable") == "1"
    expected = ["nvlink.links", "nvlink.disabled"] if alone else []
    for number in range(times):
        run = doctor(*options)
        wrong = [finding for finding in run.findings if finding["status"] in ("fail", "warn", "note", "unknown")]
        wrong = [finding for finding in wrong if not is_left_by_other_tests(finding)]
        assert (run.code, [finding["check"] for finding in wrong]) == (0, expected), f"run {number + 1}: {wrong}"


def test_it_takes_less_than_two_seconds(gpus: tuple[Gpu, ...]) -> None:
    assert len(gpus) <= 8
    assert min(doctor().seconds for _ in range(3)) < 2


@pytest.mark.parametrize("which", [0, 1])
def test_a_gpu_that_was_asked_for_and_is_denied(gpus: tuple[Gpu, ...], which: int) -> None:
    gpu = gpus[which]
    with denying_v2(minor(gpu), name="Slurm_Cgroup_v2") as cgroup:
        run = doctor("--gpus", gpu.bus_id, before=cgroup.join)
    found = run.of(CGROUP)
    assert (run.code, found["status"], found["place"]["ids"]) == (1, "fail", [gpu.bus_id])
    assert found["summary"].startswith(f"the device cgroup denies /dev/nvidia{minor(gpu)}, but GPU")
    assert found["cause"].startswith("set by Slurm for this job (bpf(BPF_PROG_QUERY): Slurm_Cgroup_v2 on ")
    assert "CUDA_VISIBLE_DEVICES" in found["remedy"]["text"]
    rest = len(gpus) - 1
    line = run.of(COUNT)["evidence"][0]["value"]
    assert line.endswith(f"{len(gpus)} device node > {rest} accessible > {rest} NVML > not asked CUDA")


def test_a_gpu_that_was_not_asked_for_and_is_denied(gpus: tuple[Gpu, ...]) -> None:
    with denying_v2(minor(gpus[1])) as cgroup:
        run = doctor(before=cgroup.join)
    found = run.of(CGROUP)
    assert (run.code, found["status"], found["place"]["ids"]) == (0, "note", [gpus[1].bus_id])
    assert found["place"]["label"] == "GPU1", "a GPU's number does not move"
    assert "cannot import memory of GPU1 by legacy, descriptor, pool or fabric handle" in found["note"]
    assert found["cause"].startswith("owner unknown")
    with denying_v2(minor(gpus[1])) as cgroup:
        assert doctor("--strict", before=cgroup.join).code == 1


def test_a_gpu_that_cuda_visible_devices_hides(gpus: tuple[Gpu, ...]) -> None:
    run = doctor("--gpus", gpus[1].bus_id, CUDA_VISIBLE_DEVICES="0")
    assert run.code == 0
    assert run.of(CGROUP)["status"] == "pass"
    assert "EGM routes over them stay" in run.of(CGROUP)["note"]
    assert run.of("env.visible-devices")["status"] == "pass"


def test_nvidiactl_denied(gpus: tuple[Gpu, ...]) -> None:
    with denying_v2(255) as cgroup:
        run = doctor(before=cgroup.join)
    assert len(gpus) > 1
    assert (run.code, list(run.causes())) == (1, [CONTROL])
    assert {"drv.libraries", COUNT} <= set(run.causes()[CONTROL])


def test_all_denied_by_both_versions_at_once(gpus: tuple[Gpu, ...]) -> None:
    """GPU 0 by version 1, the others by version 2: this once passed with exit code 0."""
    with denying_v1(minor(gpus[0])) as first, denying_v2(*map(minor, gpus[1:])) as second:

        def before() -> None:
            first.join()
            second.join()

        run = doctor(before=before)
    assert (run.code, list(run.causes())) == (1, [CGROUP])
    assert run.of(CGROUP)["summary"].endswith("no GPU can be used")
    assert run.of(CGROUP)["place"]["ids"] == [gpu.bus_id for gpu in gpus]


def test_denied_at_an_ancestor(gpus: tuple[Gpu, ...]) -> None:
    with denying_v2(minor(gpus[1]), below="job/step") as cgroup:
        run = doctor("--gpus", gpus[1].bus_id, before=cgroup.join)
    assert run.code == 1
    assert "an ancestor of this process' cgroup" in run.of(CGROUP)["cause"]


def test_denied_by_version_1(gpus: tuple[Gpu, ...]) -> None:
    with denying_v1(minor(gpus[1])) as cgroup:
        run = doctor("--gpus", "all", before=cgroup.join)
    assert (run.code, list(run.causes()), run.of(CGROUP)["place"]["label"]) == (1, [CGROUP], "GPU1")


def test_a_denied_uvm_is_one_fault_that_explains_all_that_was_tried(gpus: tuple[Gpu, ...]) -> None:
    """This once was nine failures, eight of them without a cause."""
    majors = Path("/proc/devices").read_text().partition("Block devices:")[0].split("\n")
    (uvm,) = [int(line.split()[0]) for line in majors if line.split()[1:] == ["nvidia-uvm"]]
    with denying_v2(0, major=uvm) as cgroup:
        passive = doctor(before=cgroup.join)
        active = doctor("--active", before=cgroup.join)
    assert len(gpus) > 1
    for run in (passive, active):
        assert (run.code, list(run.causes())) == (1, [CONTROL])
    assert {"drv.libraries", "p2p.verify", "ipc.legacy-active", "ipc.vmm-active"} <= set(active.causes()[CONTROL])
    assert "container" not in active.of(CONTROL)["remedy"]["text"]


def test_a_running_job_in_a_device_cgroup(gpus: tuple[Gpu, ...]) -> None:
    with denying_v2(minor(gpus[1])) as cgroup, subprocess.Popen(["sleep", "60"], preexec_fn=cgroup.join) as job:
        try:
            run = doctor("--pid", str(job.pid), "--gpus", gpus[1].bus_id)
            text = told("-v", "--pid", str(job.pid), "--gpus", gpus[1].bus_id)
        finally:
            job.kill()
    found = run.of(CGROUP)
    assert (run.code, found["status"], found["place"]["ids"]) == (1, "fail", [gpus[1].bus_id])
    assert f"/proc/{job.pid}/cgroup" in [seen["source"] for seen in found["evidence"]]
    assert re.findall(rf"/proc/{job.pid}/cgroup: (\S+)", text) == [cgroup.path], "text on the node has its own names"
