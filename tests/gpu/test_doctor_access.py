"""The doctor on a healthy node, in device cgroups that deny GPUs or control nodes, and with a GPU hidden."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import pytest

from egmctl.doctor.situation import driver_parameters
from egmctl.facts.collect import collect
from tests.doctor.cgroups import Cgroup, denying_v1, denying_v2
from tests.gpu.commands import started
from tests.gpu.guarded import GuardedNode

pytestmark = pytest.mark.needs_root

CGROUP, COUNT, CONTROL = "dev.cgroup-restricted", "dev.count-consistency", "dev.control-nodes"
NVIDIACTL = 255
PSEUDONYM = r"/cgroup-[0-9]+"
"""What the JSON document has for a cgroup whose name no manager gives."""


Denying = Callable[..., AbstractContextManager[Cgroup]]


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
        roots = [finding for finding in self.findings if finding["status"] == "fail" and not finding["explained_by"]]
        return {finding["check"]: finding["explains"] for finding in roots}


def doctor(node: GuardedNode, *arguments: str, cgroups: Sequence[Cgroup] = (), **variables: str) -> Run:
    begun = time.perf_counter()
    done = node.run("doctor", "--json", *arguments, cgroups=cgroups, **variables)
    seconds = time.perf_counter() - begun
    assert done.out, done.err
    return Run(done.code, json.loads(done.out)["result"]["findings"], seconds)


def is_left_by_other_tests(finding: dict[str, Any]) -> bool:
    """Return whether a finding notes the Xids 31 that tests of the kernel log and of isolation have made on purpose."""
    return (finding["check"], finding["status"]) == ("kernel.xid", "note") and finding["summary"].startswith("Xid 31,")


def test_a_healthy_node(guarded: GuardedNode) -> None:
    run = doctor(guarded)
    wrong = [finding for finding in run.findings if finding["status"] in ("fail", "warn", "note")]
    wrong = [finding for finding in wrong if not is_left_by_other_tests(finding)]
    assert [(finding["check"], finding["summary"]) for finding in wrong] == []
    assert run.code == 0
    assert {run.of(check)["status"] for check in (CGROUP, "dev.permissions", "dev.nodes-missing")} == {"pass"}
    line = run.of(COUNT)["evidence"][0]["value"]
    assert line == " > ".join(
        [f"{len(guarded.gpus)} {step}" for step in ("on PCI", "driver", "device node", "accessible", "NVML")]
        + ["not asked CUDA"]
    )


@pytest.mark.gpu
@pytest.mark.parametrize(("options", "times"), [((), 20), (("--active",), 5)])
@pytest.mark.timeout(600)
def test_a_healthy_node_is_healthy_each_time(options: tuple[str, ...], times: int) -> None:
    """No fail, warn, unknown or note, however often it is asked, but that a virtual machine's one GPU has no NVLink."""
    machine = collect(("gpus", "driver"))
    alone = len(machine.gpus or ()) == 1 and driver_parameters(machine).get("NvLinkDisable") == "1"
    expected = ["nvlink.links", "nvlink.disabled"] if alone else []
    for number in range(times):
        done = started("doctor", "--json", *options)
        findings = json.loads(done.out)["result"]["findings"]
        wrong = [finding for finding in findings if finding["status"] in ("fail", "warn", "note", "unknown")]
        wrong = [finding for finding in wrong if not is_left_by_other_tests(finding)]
        assert (done.code, [finding["check"] for finding in wrong]) == (0, expected), f"run {number + 1}: {wrong}"


@pytest.mark.gpu
def test_it_takes_less_than_two_seconds(guarded: GuardedNode) -> None:
    assert len(guarded.gpus) <= 8
    assert min(doctor(guarded).seconds for _ in range(3)) < 2


@pytest.mark.parametrize("which", [0, 1])
def test_a_gpu_that_was_asked_for_and_is_denied(guarded: GuardedNode, which: int) -> None:
    gpu, minor = guarded.gpus[which], guarded.minors[which]
    with denying_v2(minor, name="Slurm_Cgroup_v2") as cgroup:
        run = doctor(guarded, "--gpus", gpu.bus_id, cgroups=[cgroup])
    finding = run.of(CGROUP)
    assert (run.code, finding["status"], finding["place"]["ids"]) == (1, "fail", [gpu.bus_id])
    assert finding["summary"].startswith(f"the device cgroup denies /dev/nvidia{minor}, but GPU")
    assert run.of("dev.permissions")["status"] != "fail"
    values = {evidence["source"]: evidence["value"] for evidence in finding["evidence"]}
    assert values[f"access(/dev/nvidia{minor})"] == "EPERM"
    assert not guarded.is_fake or re.fullmatch(PSEUDONYM, values["/proc/self/cgroup"])
    assert finding["cause"].startswith("set by Slurm for this job (bpf(BPF_PROG_QUERY): Slurm_Cgroup_v2 on ")
    assert "CUDA_VISIBLE_DEVICES" in finding["remedy"]["text"]
    rest = len(guarded.gpus) - 1
    line = run.of(COUNT)["evidence"][0]["value"]
    assert line.endswith(f"{len(guarded.gpus)} device node > {rest} accessible > {rest} NVML > not asked CUDA")


def test_a_gpu_that_was_not_asked_for_and_is_denied(guarded: GuardedNode) -> None:
    with denying_v2(guarded.minors[1]) as cgroup:
        run = doctor(guarded, cgroups=[cgroup])
        strict = doctor(guarded, "--strict", cgroups=[cgroup])
    finding = run.of(CGROUP)
    assert (run.code, finding["status"], finding["place"]["ids"]) == (0, "note", [guarded.gpus[1].bus_id])
    assert finding["place"]["label"] == "GPU1", "a GPU's number does not move"
    assert "cannot import memory of GPU1 by legacy, descriptor, pool or fabric handle" in finding["note"]
    assert finding["cause"].startswith("owner unknown")
    assert strict.code == 1


def test_a_gpu_that_cuda_visible_devices_hides(guarded: GuardedNode) -> None:
    run = doctor(guarded, "--gpus", guarded.gpus[1].bus_id, CUDA_VISIBLE_DEVICES="0")
    assert run.code == 0
    assert run.of(CGROUP)["status"] == "pass"
    assert "EGM routes over them stay" in run.of(CGROUP)["note"]
    assert run.of("env.visible-devices")["status"] == "pass"


def test_nvidiactl_denied(guarded: GuardedNode) -> None:
    with denying_v2(NVIDIACTL) as cgroup:
        run = doctor(guarded, cgroups=[cgroup])
    assert (run.code, list(run.causes())) == (1, [CONTROL])
    assert {"drv.libraries", COUNT} <= set(run.causes()[CONTROL])


def test_all_denied_by_both_versions_at_once(guarded: GuardedNode) -> None:
    """GPU 0 by version 1, the others by version 2: this once passed with exit code 0."""
    first, *others = guarded.minors
    with denying_v1(first) as one, denying_v2(*others) as two:
        run = doctor(guarded, cgroups=[one, two])
    assert (run.code, list(run.causes())) == (1, [CGROUP])
    assert run.of(CGROUP)["summary"].endswith("no GPU can be used")
    assert run.of(CGROUP)["place"]["ids"] == [gpu.bus_id for gpu in guarded.gpus]


def test_denied_at_an_ancestor(guarded: GuardedNode) -> None:
    with denying_v2(guarded.minors[1], below="job/step") as cgroup:
        run = doctor(guarded, "--gpus", guarded.gpus[1].bus_id, cgroups=[cgroup])
    assert run.code == 1
    assert re.search("the limit is on .*, an ancestor of this process' cgroup", run.of(CGROUP)["cause"])


def test_denied_by_version_1(guarded: GuardedNode) -> None:
    with denying_v1(guarded.minors[1]) as cgroup:
        run = doctor(guarded, "--gpus", "all", cgroups=[cgroup])
    assert (run.code, list(run.causes()), run.of(CGROUP)["place"]["label"]) == (1, [CGROUP], "GPU1")


def test_a_denied_uvm_is_one_fault_that_explains_all_that_was_tried(guarded: GuardedNode) -> None:
    """This once was nine failures, eight of them without a cause."""
    with denying_v2(0, major=guarded.uvm_major) as cgroup:
        passive = doctor(guarded, cgroups=[cgroup])
        active = doctor(guarded, "--active", cgroups=[cgroup])
    for run in (passive, active):
        assert (run.code, list(run.causes())) == (1, [CONTROL])
    assert {"drv.libraries", "p2p.verify", "ipc.legacy-active", "ipc.vmm-active"} <= set(active.causes()[CONTROL])
    assert "container" not in active.of(CONTROL)["remedy"]["text"]


@pytest.mark.parametrize("denying", [denying_v1, denying_v2])
def test_a_running_job_in_a_device_cgroup(guarded: GuardedNode, denying: Denying) -> None:
    asked = ("--gpus", guarded.gpus[1].bus_id)
    with denying(guarded.minors[1]) as cgroup, guarded.job(cgroup) as pid:
        run = doctor(guarded, "--pid", str(pid), *asked)
        text = guarded.run("doctor", "-v", "--pid", str(pid), *asked).out
        own = doctor(guarded, *asked)
        left = (cgroup.directory / "cgroup.procs").read_text().split()
    finding = run.of(CGROUP)
    assert (run.code, finding["status"], finding["place"]["ids"]) == (1, "fail", [guarded.gpus[1].bus_id])
    assert f"/proc/{pid}/cgroup" in [evidence["source"] for evidence in finding["evidence"]]
    assert re.findall(rf"/proc/{pid}/cgroup: (\S+)", text) == [cgroup.path], "text on the node has its own names"
    assert f"\nProcess {pid}; NVML and CUDA were queried from outside of it.\n" in text
    assert (own.code, own.of(CGROUP)["status"]) == (0, "pass")
    assert left == [str(pid)], "nothing of ours stays behind"
