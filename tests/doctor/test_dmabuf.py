"""Whether NICs register GPU and HOST_NUMA memory through dma-buf. A stand-in for libibverbs; not seen on hardware."""

from __future__ import annotations

from dataclasses import replace

import pytest

from egmctl.doctor import prober, probes
from egmctl.doctor.check import EVERYTHING, Scope
from egmctl.doctor.checks.active import CHECKS
from egmctl.doctor.situation import NO_VERBS
from egmctl.model.finding import Finding, Guard, Status
from egmctl.model.host import DeviceNode, System, VerbsNode
from egmctl.model.machine import Machine
from egmctl.model.probes import ProbeKind, ProbeOutcome
from tests.answers import diagnose
from tests.doctor.machines import of_two_gpus, shipped
from tests.doctor.nvml_faults import here
from tests.fake.build import CUDA, NVML, VERBS
from tests.fake.node import FakeNode
from tests.fake.plugin import MakeFakeNode

REQUIRED = Scope(purposes=(Guard.RDMA,))
NICS = tuple(nic.name for nic in (shipped("gb200-nvl72").nics or ())[:2])


def tried(node: FakeNode, faults: str = "", nics: tuple[str, ...] = NICS) -> Machine:
    """Return the machine after the probes on a fake node whose libibverbs has these NICs."""
    with here(node, faults=faults) as patch:
        patch.setenv("EGMCTL_FAKE_NICS", ",".join(nics))
        return probes.probed(node.machine, EVERYTHING, [ProbeKind.DMA_BUF])


def findings(machine: Machine, scope: Scope = EVERYTHING) -> tuple[Finding, ...]:
    checks = [check for check in CHECKS if check.id == "rdma.dmabuf-active"]
    return diagnose(machine, scope, checks).findings


@pytest.fixture
def node(fake_node: MakeFakeNode) -> FakeNode:
    machine = of_two_gpus(shipped("gb200-nvl72"))
    nics = tuple(nic for nic in machine.nics or () if nic.name in NICS)
    return fake_node(replace(machine, nics=nics), libraries=(CUDA, NVML, VERBS))


def test_each_nic_registers_the_memory_of_each_gpu_and_node_and_all_is_given_back(node: FakeNode) -> None:
    found = findings(tried(node))
    assert {(finding.status, finding.place.label) for finding in found} == {(Status.PASS, ", ".join(NICS))}
    count = len(NICS) * 2 * 3
    for made, given_back in (("ibv_open_device", "ibv_close_device"), ("ibv_reg_dmabuf_mr", "ibv_dereg_mr")):
        assert len(node.calls(made)) == len(node.calls(given_back)) == count
    assert [leak for leak in node.leaks() if "primary context" not in leak] == []


@pytest.mark.parametrize(
    ("fault", "error", "cause"),
    [
        ("ibv_reg_dmabuf_mr=error:95", "ENOTSUP", "the NIC's driver or the kernel registers no dma-bufs"),
        ("ibv_reg_dmabuf_mr=error:524", "ENOTSUPP", "or ACS keeps the NIC from the GPU"),
        ("ibv_open_device=error:1", "EPERM", "may not use the NIC's verbs device"),
        ("ibv_reg_dmabuf_mr=error:12", "ENOMEM", "too little locked memory"),
        ("ibv_alloc_pd=error:5", "EIO", ""),
    ],
)
def test_a_refused_registration_names_nic_call_error_and_cause(
    node: FakeNode, fault: str, error: str, cause: str
) -> None:
    machine = tried(node, fault)
    for scope, status in ((EVERYTHING, Status.WARN), (REQUIRED, Status.FAIL)):
        finding = findings(machine, scope)[0]
        assert (finding.status, finding.place.label) == (status, ", ".join(NICS))
        assert f"{fault.partition('=')[0]} failed: {error} (" in finding.summary
        assert cause in finding.cause
        assert bool(finding.cause) is bool(cause)
        assert finding.remedy is not None


@pytest.mark.parametrize("number", [95, 93])
def test_where_nvidia_peermem_is_the_way_left_for_gpu_memory_no_dma_buf_is_a_note(node: FakeNode, number: int) -> None:
    without = tried(node, f"ibv_reg_dmabuf_mr=error:{number}")
    machine = replace(without, system=replace(without.system or System(), module_versions={"nvidia_peermem": ""}))
    for scope, host in ((EVERYTHING, Status.WARN), (REQUIRED, Status.FAIL)):
        gpu_memory, host_memory = findings(machine, scope)
        assert (gpu_memory.status, host_memory.status) == (Status.NOTE, host)
        assert "nvidia_peermem is the way left" in gpu_memory.note
        assert "dma-buf is what replaces it" in gpu_memory.note


@pytest.mark.parametrize("fault", ["ibv_reg_dmabuf_mr=error:524", "ibv_alloc_pd=error:95"])
def test_programs_do_not_turn_to_nvidia_peermem_after_another_error(node: FakeNode, fault: str) -> None:
    without = tried(node, fault)
    machine = replace(without, system=replace(without.system or System(), module_versions={"nvidia_peermem": ""}))
    assert {finding.status for finding in findings(machine)} == {Status.WARN}


@pytest.mark.long
def test_a_nic_that_hangs_costs_no_other_probe_its_time(node: FakeNode) -> None:
    order = [ProbeKind.P2P, ProbeKind.POSIX_FD, ProbeKind.DMA_BUF]
    with here(node, faults="ibv_reg_dmabuf_mr=hang,once") as patch:
        patch.setenv("EGMCTL_FAKE_NICS", ",".join(NICS))
        patch.setattr(prober, "PROBE_TIMEOUT_S", 6)
        results = probes.probed(node.machine, EVERYTHING, order).probes or ()
    kinds = [probe.kind for probe in results]
    assert kinds == sorted(kinds, key=order.index)
    assert {probe.outcome for probe in results if probe.kind is not ProbeKind.DMA_BUF} == {ProbeOutcome.OK}
    assert next(probe for probe in results if probe.kind is ProbeKind.DMA_BUF).outcome is ProbeOutcome.TIMED_OUT


def test_one_of_several_refusals_names_the_gpu_and_the_nic(node: FakeNode) -> None:
    found = findings(tried(node, "ibv_reg_dmabuf_mr@2=error:95,once"))
    warning = next(finding for finding in found if finding.status is Status.WARN)
    assert warning.place.label in NICS
    assert "GPU0" in warning.summary
    assert f"with {warning.place.label}" in warning.evidence[0].source


def test_a_nic_that_libibverbs_does_not_list_is_a_fault_only_where_rdma_is_required(node: FakeNode) -> None:
    machine = tried(node, nics=NICS[:1])
    assert {finding.status for finding in findings(machine)} == {Status.SKIP, Status.PASS}
    failure = next(finding for finding in findings(machine, REQUIRED) if finding.status is Status.FAIL)
    assert (failure.place.label, "ENODEV" in failure.summary) == (NICS[1], True)


def test_memory_that_cuda_does_not_export_is_no_fault(node: FakeNode) -> None:
    for error, status in ((801, Status.SKIP), (1, Status.SKIP), (999, Status.FAIL)):
        found = findings(tried(node, f"cuMemGetHandleForAddressRange=error:{error}"), REQUIRED)
        assert {finding.status for finding in found} == {status}


def test_a_nic_whose_verbs_device_is_denied_is_not_tried_for_libibverbs_would_wait_5_s(
    node: FakeNode, fake_node: MakeFakeNode
) -> None:
    denied = VerbsNode(nic=NICS[0], node=DeviceNode(path="/dev/infiniband/uverbs0", exists=True, access="EPERM"))
    machine = replace(node.machine, system=replace(node.machine.system or System(), verbs=(denied,)))
    node = fake_node(machine, libraries=(CUDA, NVML, VERBS))
    found = {finding.place.label: (finding.status, finding.summary) for finding in findings(tried(node))}
    assert found[NICS[0]] == (Status.SKIP, NO_VERBS)
    assert found[NICS[1]][0] is Status.PASS
    assert len(node.calls("ibv_open_device")) == 2 * 3


def test_without_a_nic_memory_is_exported(node: FakeNode, fake_node: MakeFakeNode) -> None:
    alone = fake_node(replace(node.machine, nics=()), libraries=(CUDA, NVML, VERBS))
    found = findings(tried(alone))
    assert {finding.status for finding in found} == {Status.PASS}
    assert {finding.place.label for finding in found} == {"GPU0-1", "NUMA 0-1"}
    assert alone.calls("ibv_open_device") == ()
    assert len(alone.calls("cuMemGetHandleForAddressRange")) == 6
