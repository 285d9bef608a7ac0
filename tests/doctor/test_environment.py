"""Environment variables and the container: CUDA_VISIBLE_DEVICES is the way to choose GPUs, unless it is wrong."""

from __future__ import annotations

import dataclasses

import pytest

from egmctl.model.finding import Status
from egmctl.model.host import Confinement
from egmctl.model.machine import Machine
from tests.doctor.machines import patched, run, run_one, shipped, with_gpu_denied

HGX = shipped("hgx-h200x4")
VISIBLE, BAD, CONTAINER = "env.visible-devices", "env.bad-cuda-env", "ns.container"


def with_variables(machine: Machine = HGX, **variables: str) -> Machine:
    return patched(machine, "process", environment=variables)


class TestVisibleDevices:
    @pytest.mark.parametrize("value", ["0", "0,3", "3,2,1,0", ""])
    def test_choosing_with_it_passes_and_says_why(self, value: str) -> None:
        finding = run_one(VISIBLE, with_variables(CUDA_VISIBLE_DEVICES=value))
        assert finding.status is Status.PASS
        assert "to choose GPUs where EGM matters" in finding.note

    def test_by_uuid(self) -> None:
        machine = patched(HGX, "gpus[0].nvml", uuid="GPU-11111111-2222-3333-4444-555555555555")
        for value, status in (("GPU-11111111", Status.PASS), ("GPU-deadbeef", Status.WARN), ("MIG-1", Status.PASS)):
            assert run_one(VISIBLE, with_variables(machine, CUDA_VISIBLE_DEVICES=value)).status is status, value

    @pytest.mark.parametrize(
        ("value", "words"),
        [
            ("0,4", "entry 2 is 4, the last GPU is 3"),
            ("all", "entry 1 is neither a number nor a UUID"),
            ("0,0", "entry 2 is listed twice"),
        ],
    )
    def test_what_is_not_there(self, value: str, words: str) -> None:
        finding = run_one(VISIBLE, with_variables(CUDA_VISIBLE_DEVICES=value))
        assert finding.status is Status.WARN
        assert words in finding.summary

    def test_numbers_count_what_the_cgroup_left(self) -> None:
        denied = with_gpu_denied(HGX, 0)
        assert run_one(VISIBLE, with_variables(denied, CUDA_VISIBLE_DEVICES="2")).status is Status.PASS
        finding = run_one(VISIBLE, with_variables(denied, CUDA_VISIBLE_DEVICES="3"))
        assert finding.status is Status.WARN
        assert finding.cause == "3 GPUs can be used from here; numbers count those only, not the node's"


class TestBadEnvironment:
    def test_nothing_of_the_kind(self) -> None:
        harmless = with_variables(NCCL_P2P_DISABLE="0", CUDA_DEVICE_ORDER="PCI_BUS_ID", LD_LIBRARY_PATH="/x")
        assert run_one(BAD, harmless).status is Status.PASS

    def test_each_variable_is_a_warning(self) -> None:
        findings = run(BAD, with_variables(NCCL_P2P_DISABLE="1", CUDA_LAUNCH_BLOCKING="1"))
        assert [finding.status for finding in findings] == [Status.WARN, Status.WARN]
        assert {finding.remedy.command for finding in findings if finding.remedy} == {
            "unset NCCL_P2P_DISABLE",
            "unset CUDA_LAUNCH_BLOCKING",
        }

    def test_a_path_is_not_shown(self) -> None:
        finding = run_one(BAD, with_variables(CUDA_INJECTION64_PATH="/home/alice/secret.so"))
        assert finding.status is Status.WARN
        assert "alice" not in repr(finding)


class TestContainer:
    def test_what_kind(self) -> None:
        machine = patched(HGX, "process", container_signs=("/.dockerenv",))
        for confinement, words in (
            (Confinement(seccomp="filter", capabilities=0), "a container, with a system call filter"),
            (Confinement(seccomp="none", capabilities=2**40 - 1), "a privileged container"),
            (Confinement(uid_map=((0, 1000, 1),)), "a container, with user namespace"),
        ):
            finding = run_one(CONTAINER, dataclasses.replace(machine, confinement=confinement))
            assert (finding.status, finding.summary) == (Status.PASS, f"this process is in {words}")
