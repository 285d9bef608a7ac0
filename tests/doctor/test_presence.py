"""GPUs are lost on their way from PCI to CUDA; some of that is a fault."""

from __future__ import annotations

import dataclasses

import pytest

from egmctl.doctor.check import Expectation, Scope
from egmctl.model.finding import Status
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from tests.doctor.machines import bus_id, lost_by, patched, run, run_one, shipped, with_gpu_denied

HGX = shipped("hgx-h200x4")

COUNT, BUS, BINDING, EXCLUDED = "dev.count-consistency", "dev.fell-off-bus", "dev.driver-binding", "dev.excluded"


class TestCount:
    def test_all_the_way(self) -> None:
        finding = run_one(COUNT, HGX)
        assert (finding.status, finding.summary) == (Status.PASS, "all 4 GPUs can be used from here")
        assert finding.evidence[0].value == "4 on PCI > 4 driver > 4 device node > 4 accessible > 4 NVML > 4 CUDA"

    def test_cuda_that_was_not_asked(self) -> None:
        unread = {"cuda": Unread(reason=Reason.NOT_ASKED)}
        finding = run_one(COUNT, patched(HGX, "gpus[*]", cuda=None, unread=unread))
        assert finding.status is Status.PASS
        assert finding.evidence[0].value.endswith("4 NVML > not asked CUDA")

    def test_what_another_check_explains_is_no_fault_here(self) -> None:
        finding = run_one(COUNT, with_gpu_denied(HGX, 1))
        assert (finding.status, finding.summary) == (Status.NOTE, "3 of 4 GPUs can be used from here")
        assert finding.evidence[0].value.startswith("4 on PCI > 4 driver > 4 device node > 3 accessible > 3 NVML")

    @pytest.mark.parametrize(
        ("expectation", "remedy"),
        [
            (Expectation(gpus=4), "The other dev.* checks say where each was lost"),
            (Expectation(gpus=8), "On the host: Power-cycle the node; replace a GPU"),
        ],
    )
    def test_fewer_than_expected(self, expectation: Expectation, remedy: str) -> None:
        finding = run_one(COUNT, with_gpu_denied(HGX, 1), Scope(expectation=expectation))
        assert finding.status is Status.FAIL
        assert finding.summary == f"3 of the {expectation.gpus} expected GPUs can be used from here"
        assert finding.remedy is not None
        assert finding.remedy.text.startswith(remedy)

    def test_open_to_this_process_and_not_listed_by_nvml(self) -> None:
        finding = run_one(COUNT, lost_by(patched(HGX, "process", container_signs=()), 1, "nvml", "cuda"))
        assert finding.status is Status.FAIL
        assert finding.place.ids == (bus_id(HGX, 1),)
        assert finding.remedy is not None
        assert finding.remedy.look == "dmesg | grep -iE 'NVRM|Xid'"

    def test_listed_by_nvml_and_not_by_cuda(self) -> None:
        finding = run_one(COUNT, lost_by(HGX, 1, "cuda"))
        assert (finding.status, finding.summary) == (Status.FAIL, "NVML lists it but CUDA does not")

    @pytest.mark.parametrize("why", list(Reason))
    def test_no_gpu_that_can_be_used_is_never_a_pass_whatever_the_reason(self, why: Reason) -> None:
        unread = {"nvml": Unread(reason=why, detail="something new"), "cuda": Unread(reason=Reason.NOT_ASKED)}
        for node in ({}, {"access": "EWHATEVER"}, {"access": "EPERM"}, {"exists": False, "access": "ENOENT"}):
            machine = patched(HGX, "gpus[*]", nvml=None, cuda=None, unread=unread)
            findings = run(COUNT, patched(machine, "gpus[*].node", **node))
            assert [finding.status for finding in findings] == [Status.FAIL], (why, node)


class TestBus:
    def test_gone_altogether_is_seen_by_what_was_expected(self) -> None:
        assert HGX.gpus is not None
        rest = dataclasses.replace(HGX, gpus=HGX.gpus[:-1])
        assert run_one(BUS, rest).status is Status.PASS
        finding = run_one(BUS, rest, Scope(expectation=Expectation(reference=HGX, gpus=4)))
        assert (finding.status, finding.place.ids) == (Status.FAIL, (bus_id(HGX, 3),))
        count = run_one(COUNT, rest, Scope(expectation=Expectation(gpus=4)))
        assert count.summary == "3 of the 4 expected GPUs can be used from here"


def bound_to(machine: Machine, index: int, driver: str) -> Machine:
    lost = lost_by(machine, index, "proc", "node", "nvml", "cuda")
    return patched(lost, f"gpus[{index}].pci", driver=driver)


class TestBinding:
    @pytest.mark.parametrize(
        ("driver", "modules", "status", "words"),
        [
            ("nouveau", ("nouveau",), Status.FAIL, "bound to nouveau, not to nvidia"),
            ("vfio-pci", ("nvidia",), Status.NOTE, "bound to vfio-pci, not to nvidia"),
            ("", ("nvidia",), Status.FAIL, "no kernel driver is bound"),
            ("", (), Status.FAIL, "no kernel driver is bound"),
        ],
    )
    def test_another_driver(self, driver: str, modules: tuple[str, ...], status: Status, words: str) -> None:
        machine = patched(bound_to(HGX, 1, driver), "driver", modules=modules)
        finding = run_one(BINDING, machine)
        assert (finding.status, finding.summary, finding.place.ids) == (status, words, (bus_id(HGX, 1),))

    def test_one_finding_a_driver(self) -> None:
        machine = bound_to(bound_to(HGX, 1, "vfio-pci"), 2, "nouveau")
        assert [finding.status for finding in run(BINDING, machine)] == [Status.FAIL, Status.NOTE]


class TestExcluded:
    def test_one(self) -> None:
        machine = patched(lost_by(HGX, 1, "nvml", "cuda"), "gpus[1].proc", excluded=True)
        machine = patched(machine, "driver", module_parameters={"ExcludedGpus": "GPU-1"})
        finding = run_one(EXCLUDED, machine)
        assert (finding.status, finding.place.ids) == (Status.WARN, (bus_id(HGX, 1),))
        assert finding.evidence[0].source == "NVreg_ExcludedGpus"
        assert run_one(EXCLUDED, machine, Scope(gpus=(bus_id(HGX, 1),))).status is Status.FAIL
        assert run_one(COUNT, machine).status is Status.NOTE, "it is explained"
