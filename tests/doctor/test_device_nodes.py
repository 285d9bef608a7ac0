"""Device nodes that are there and cannot be used, and the driver's own nodes."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from egmctl.model.finding import Status
from egmctl.model.host import Confinement, DeviceNode, Mount, Process
from egmctl.model.machine import Machine
from tests.doctor.machines import lost_by, patched, run, run_one, shipped, with_gpu_denied

HGX = shipped("hgx-h200x4")
PERMISSIONS, CONTROL = "dev.permissions", "dev.control-nodes"


def as_user(machine: Machine, uid: int, uid_map: tuple[tuple[int, int, int], ...] = ((0, 0, 2**32 - 1),)) -> Machine:
    process = Process(effective_uid=uid, container_signs=(), environment={})
    return dataclasses.replace(machine, process=process, confinement=Confinement(uid_map=uid_map))


class TestPermissions:
    def test_mode_bits(self) -> None:
        machine = as_user(with_gpu_denied(HGX, 1, access="EACCES"), 1000)
        machine = patched(machine, "gpus[3].node", mode=0o660, uid=0, gid=44)
        finding = run_one(PERMISSIONS, machine)
        assert (finding.status, finding.summary) == (Status.FAIL, "this user may not open the device nodes")
        assert finding.cause.startswith("the mode bits (mode 0660, uid 0, gid 44) or a security module deny uid 1000")
        assert [(item.value, item.errno) for item in finding.evidence] == [("EACCES", "EACCES")]

    def test_root_is_stopped_by_a_security_module_only(self) -> None:
        finding = run_one(PERMISSIONS, as_user(with_gpu_denied(HGX, 1, access="EACCES"), 0))
        assert "security module" in finding.cause
        assert finding.remedy is not None
        assert finding.remedy.look == "ausearch -m avc -ts recent"

    def test_a_user_namespace_does_not_know_the_owner(self) -> None:
        machine = as_user(with_gpu_denied(HGX, 1, access="EACCES"), 0, uid_map=((0, 1000, 1),))
        assert "user namespace" in run_one(PERMISSIONS, machine).cause

    def test_one_finding_for_each_mode(self) -> None:
        machine = as_user(with_gpu_denied(HGX, 1, 2, access="EACCES"), 1000)
        assert len(run(PERMISSIONS, machine)) == 1
        assert len(run(PERMISSIONS, patched(machine, "gpus[3].node", mode=0))) == 2

    def test_nodev(self) -> None:
        machine = patched(lost_by(HGX, 1, "nvml", "cuda"), "gpus[1].node", nodev=True)
        mount = Mount(path="/dev", kind="tmpfs", options=("rw", "nodev"))
        finding = run_one(PERMISSIONS, dataclasses.replace(machine, confinement=Confinement(mounts=(mount,))))
        assert finding.status is Status.FAIL
        assert "nodev" in finding.summary
        assert finding.evidence[-1].value == "/dev tmpfs rw,nodev"
        (count,) = run("dev.count-consistency", machine)
        assert count.status is Status.NOTE, "it is explained"

    @pytest.mark.parametrize("numbers", [{"major": 236}, {"minor": 7}])
    def test_a_node_with_the_numbers_of_another_device(self, numbers: dict[str, int]) -> None:
        finding = run_one(PERMISSIONS, patched(lost_by(HGX, 1, "nvml", "cuda"), "gpus[1].node", **numbers))
        assert (finding.status, "has the numbers of another device" in finding.summary) == (Status.FAIL, True)

    def test_nothing_to_ask_about(self) -> None:
        assert run_one(PERMISSIONS, dataclasses.replace(HGX, gpus=())).status is Status.SKIP


def with_control(machine: Machine, name: str, access: str, **changes: Any) -> Machine:
    """Return the machine with another answer for one of the driver's nodes, which the libraries then could not open."""
    if access != "ok" or changes:
        machine = patched(machine, "gpus[*]", cuda=None)
    if name == "nvidiactl" and (access != "ok" or changes):
        machine = patched(machine, "gpus[*]", nvml=None)
    nodes = tuple(
        dataclasses.replace(node, access=access, exists=access != "ENOENT", **changes)
        if node.path.endswith(name)
        else node
        for node in (machine.driver.nodes if machine.driver else None) or ()
    )
    return patched(machine, "driver", nodes=nodes)


class TestControlNodes:
    def test_of_a_container_that_brings_only_utility(self) -> None:
        machine = patched(HGX, "process", environment={"NVIDIA_DRIVER_CAPABILITIES": "utility"})
        finding = run_one(CONTROL, with_control(machine, "nvidia-uvm", "ENOENT"))
        assert finding.status is Status.FAIL
        assert finding.cause == "NVIDIA_DRIVER_CAPABILITIES is utility"

    def test_on_a_host_cuda_makes_nvidia_uvm_when_it_needs_it(self) -> None:
        machine = patched(HGX, "process", container_signs=())
        finding = run_one(CONTROL, with_control(machine, "nvidia-uvm", "ENOENT"))
        assert finding.status is Status.PASS
        assert finding.note.startswith("/dev/nvidia-uvm: not there")

    def test_nvidiactl_that_nothing_made(self) -> None:
        machine = patched(patched(HGX, "process", container_signs=()), "gpus[*]", nvml=None)
        assert run_one(CONTROL, with_control(machine, "nvidiactl", "ENOENT")).status is Status.FAIL

    def test_mode_bits(self) -> None:
        finding = run_one(CONTROL, with_control(HGX, "nvidiactl", "EACCES"))
        assert (finding.status, finding.summary) == (Status.FAIL, "this user may not open /dev/nvidiactl")

    def test_nvidia_uvm_tools_is_for_profilers_only(self) -> None:
        assert run_one(CONTROL, with_control(HGX, "nvidia-uvm-tools", "EPERM")).status is Status.PASS

    def test_mig_needs_the_caps(self) -> None:
        denied = with_control(HGX, "nvidia-cap1", "EPERM")
        assert [finding.status for finding in run(CONTROL, denied)] == [Status.PASS]
        mig = patched(denied, "gpus[0].nvml", mig_mode=True)
        assert [finding.status for finding in run(CONTROL, mig)] == [Status.FAIL, Status.PASS]

    def test_of_another_process(self) -> None:
        untold = DeviceNode(path="/dev/nvidiactl", exists=True, access=None)
        machine = patched(patched(HGX, "driver", nodes=(untold,)), "process", pid=42)
        assert run_one(CONTROL, machine).status is Status.UNKNOWN

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"kind": "directory", "major": None, "minor": None}, "is not a character device (directory)"),
            ({"kind": "file", "major": None, "minor": None}, "is not a character device (file)"),
            ({"kind": "fifo", "major": None, "minor": None}, "is not a character device (fifo)"),
            ({"kind": "block"}, "is not a character device (block)"),
            ({"major": 1, "minor": 3}, "is /dev/null: something hides the device node"),
            ({"major": 240}, "has the numbers of another device (240:"),
            ({"nodev": True}, "lies on a mount with the option nodev"),
        ],
    )
    @pytest.mark.parametrize("name", ["nvidiactl", "nvidia-uvm"])
    def test_each_thing_in_its_place_is_named(self, name: str, changes: dict[str, Any], words: str) -> None:
        majors = (HGX.driver and HGX.driver.majors) or {}
        uvm = {"major": majors["nvidia-uvm"], "minor": 0}
        good = {"major": 195, "minor": 255} if name == "nvidiactl" else uvm
        finding = run_one(CONTROL, with_control(HGX, name, "ok", **good | changes))
        assert finding.status is Status.FAIL
        assert f"/dev/{name} {words}" in finding.summary

    def test_what_a_library_has_opened_is_open(self) -> None:
        """nvidia-modprobe mends modes while NVML starts: access(2) was asked before."""
        nodes = tuple(dataclasses.replace(node, access="EACCES") for node in ((HGX.driver and HGX.driver.nodes) or ()))
        assert run_one(CONTROL, patched(HGX, "driver", nodes=nodes)).status is Status.PASS
