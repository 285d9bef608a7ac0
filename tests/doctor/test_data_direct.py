"""Registrations of GPU memory through Data Direct. Stand-ins for libibverbs and libmlx5; not seen on hardware."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from egmctl.doctor import probes
from egmctl.doctor.check import EVERYTHING, Scope
from egmctl.doctor.checks.active import kinds_of
from egmctl.doctor.runner import CHECKS
from egmctl.model.finding import Finding, Guard, Status
from egmctl.model.host import PciFunction, System
from egmctl.model.machine import Machine
from egmctl.model.probes import ProbeKind, ProbeOutcome, Registration
from egmctl.report.document import KeyValues
from egmctl.report.views.machine import machine_section
from tests.answers import diagnose
from tests.doctor.machines import of_two_gpus, patched, shipped
from tests.doctor.nvml_faults import here
from tests.fake.build import CUDA, MLX5, NVML, VERBS
from tests.fake.node import FakeNode
from tests.fake.plugin import MakeFakeNode

DEFAULT, DIRECT = "rdma.dmabuf-active", "rdma.data-direct-active"
NICS = tuple(nic.name for nic in (shipped("gb300-nvl72").nics or ())[:2])
LIBRARIES = (CUDA, NVML, VERBS, MLX5)


def with_data_direct() -> Machine:
    """Two GPUs and two NICs of a GB300; the node has one Data Direct function."""
    machine = of_two_gpus(shipped("gb300-nvl72"))
    nics = tuple(
        replace(nic, pci=replace(nic.pci, vendor_id=0x15B3)) if nic.pci else nic
        for nic in machine.nics or ()
        if nic.name in NICS
    )
    function = PciFunction(bus_id="0000:04:00.0", vendor_id=0x15B3, device_id=0x2100)
    system = replace(machine.system or System(), data_direct=(function,), module_versions={"mlx5_core": "25.04-0.6.1"})
    return replace(machine, nics=nics, system=system)


def tried(node: FakeNode, faults: str = "", data_direct: tuple[str, ...] = NICS) -> Machine:
    """Return the machine after the probes on a fake node whose libmlx5 knows Data Direct functions of these NICs."""
    checks = [check for check in CHECKS if check.id == DIRECT]
    with here(node, faults=faults) as patch:
        patch.setenv("EGMCTL_FAKE_NICS", ",".join(NICS))
        patch.setenv("EGMCTL_FAKE_DATA_DIRECT", ",".join(data_direct))
        return probes.probed(node.machine, EVERYTHING, kinds_of(checks))


def findings(machine: Machine, check: str = DIRECT, scope: Scope = EVERYTHING) -> tuple[Finding, ...]:
    return diagnose(machine, scope, [each for each in CHECKS if each.id == check]).findings


@pytest.fixture
def node(fake_node: MakeFakeNode) -> FakeNode:
    return fake_node(with_data_direct(), libraries=LIBRARIES)


def test_both_mappings_are_tried_and_data_direct_at_an_unaligned_base_too(node: FakeNode) -> None:
    machine = tried(node)
    (finding,) = findings(machine)
    assert (finding.status, finding.place.label) == (Status.PASS, ", ".join(NICS))
    assert finding.note.endswith("the default mapping works too; a base that is not page aligned: ENOTSUP (95)")
    assert {each.status for each in findings(machine, DEFAULT)} == {Status.PASS}
    pairs = len(NICS) * 2
    assert len(node.calls("mlx5dv_reg_dmabuf_mr")) == pairs
    assert len(node.calls("ibv_dereg_mr")) == pairs + pairs * 3
    exported = [call.arguments["flags"] for call in node.calls("cuMemGetHandleForAddressRange")]
    assert (exported.count("1"), exported.count("0")) == (2 * pairs, 3 * pairs)
    assert [leak for leak in node.leaks() if "primary context" not in leak] == []


def test_a_finding_names_link_layer_distance_of_each_pair_and_the_version_of_ofed(node: FakeNode) -> None:
    machine = patched(tried(node), "nics[0].ports[*]", state="ACTIVE", link_layer="Ethernet")
    machine = patched(machine, "nics[1].ports[*]", state="DOWN", link_layer="InfiniBand")
    for check in (DEFAULT, DIRECT):
        finding = findings(machine, check)[0]
        facts = {each.source: each.value for each in finding.evidence}
        assert finding.note.startswith("RoCE; GPU to NIC: ")
        assert facts["/sys/module/mlx5_core/version"] == "25.04-0.6.1"
        assert facts[NICS[0]].startswith("RoCE; ")
        assert facts[NICS[1]].startswith("no active port; ")
        assert "GPU0" in facts[NICS[0]]
    host_memory = findings(machine, DEFAULT)[1]
    assert host_memory.note.startswith("RoCE")
    assert "GPU to NIC" not in host_memory.note


@pytest.mark.parametrize(("version", "words"), [("25.04-0.6.1", "25.04-0.6.1"), ("", "none: mlx5 is the kernel's own")])
def test_pages_state_the_version_of_ofed(version: str, words: str) -> None:
    machine = patched(with_data_direct(), "system", module_versions={"mlx5_core": version})
    body = machine_section(machine).body
    (facts, *_) = body() if callable(body) else body
    assert isinstance(facts, KeyValues)
    assert dict(facts.rows)["OFED"] == words


@pytest.mark.parametrize(
    ("number", "name", "cause"),
    [
        (95, "ENOTSUP", "has no Data Direct"),
        (22, "EINVAL", "has bound no Data Direct function"),
        (524, "ENOTSUPP", "beside another GPU, or ACS"),
        (5, "EIO", ""),
    ],
)
def test_a_refusal_is_a_note_that_says_whether_the_default_mapping_works(
    node: FakeNode, number: int, name: str, cause: str
) -> None:
    machine = tried(node, f"mlx5dv_reg_dmabuf_mr=error:{number}")
    for scope in (EVERYTHING, Scope(purposes=(Guard.RDMA,))):
        (finding,) = findings(machine, scope=scope)
        assert finding.status is Status.NOTE
        assert f"mlx5dv_reg_dmabuf_mr failed: {name} ({number})" in finding.summary
        assert cause in finding.cause
        assert bool(finding.cause) is bool(cause)
        assert finding.note.endswith("the default mapping works")
        assert {each.status for each in findings(machine, DEFAULT, scope)} == {Status.PASS}


def test_where_only_data_direct_works_the_note_says_so(node: FakeNode) -> None:
    machine = tried(node, "ibv_reg_dmabuf_mr=error:524")
    (finding,) = findings(machine)
    assert (finding.status, "the default mapping fails" in finding.note) == (Status.PASS, True)
    (neither,) = findings(tried(node, "ibv_reg_dmabuf_mr=error:524;mlx5dv_reg_dmabuf_mr=error:524"))
    assert (neither.status, "the default mapping fails too" in neither.note) == (Status.NOTE, True)


def test_a_nic_without_a_data_direct_function_is_skipped_by_the_answer_of_libmlx5(node: FakeNode) -> None:
    by_nic = {each.place.label: each for each in findings(tried(node, data_direct=NICS[:1]))}
    assert by_nic[NICS[0]].status is Status.PASS
    assert by_nic[NICS[1]].status is Status.SKIP


def test_what_stops_both_mappings_is_reported_once(node: FakeNode) -> None:
    machine = tried(node, "ibv_open_device=error:1")
    assert {each.status for each in findings(machine)} == {Status.SKIP}
    assert {each.status for each in findings(machine, DEFAULT)} == {Status.WARN}


def test_a_libmlx5_without_data_direct_leaves_it_unknown(node: FakeNode) -> None:
    (finding,) = findings(tried(node, "mlx5dv_reg_dmabuf_mr=missing;mlx5dv_get_data_direct_sysfs_path=missing"))
    assert finding.status is Status.UNKNOWN
    assert "libmlx5.so.1" in finding.summary


def test_an_unaligned_base_that_kills_its_process_is_a_warning_though_the_aligned_one_works(node: FakeNode) -> None:
    machine = tried(node)
    crashed: dict[str, Any] = {"outcome": ProbeOutcome.CRASHED, "call": "mlx5dv_reg_dmabuf_mr"}
    changed = tuple(
        replace(each, **crashed) if each.registration is Registration.DATA_DIRECT_UNALIGNED else each
        for each in machine.probes or ()
    )
    (finding,) = findings(replace(machine, probes=changed))
    assert finding.status is Status.WARN
    assert "not page aligned it killed its process in mlx5dv_reg_dmabuf_mr" in finding.summary


def test_a_driver_without_the_mapping_over_pcie_is_no_fault_of_a_nic(node: FakeNode) -> None:
    machine = tried(node)
    refused: dict[str, Any] = {
        "outcome": ProbeOutcome.ERROR,
        "call": "cuMemGetHandleForAddressRange",
        "error_number": 1,
    }
    changed = tuple(
        replace(each, **refused) if each.registration is Registration.DATA_DIRECT else each
        for each in machine.probes or ()
    )
    (finding,) = findings(replace(machine, probes=changed))
    assert (finding.status, finding.remedy) == (Status.SKIP, None)


def test_a_call_that_kills_its_process_is_a_warning(node: FakeNode) -> None:
    found = findings(tried(node, "mlx5dv_reg_dmabuf_mr=abort,once"))
    (warning,) = [each for each in found if each.status is Status.WARN]
    assert "killed its process" in warning.summary


@pytest.mark.parametrize(("functions", "status"), [((), Status.SKIP), (None, Status.UNKNOWN)])
def test_without_a_data_direct_function_it_is_not_tried(
    functions: tuple[PciFunction, ...] | None, status: Status
) -> None:
    planned = probes.plan(["0000:01:00.0"], [0], list(ProbeKind), ["mlx5_0"])
    assert {each.registration for each in planned} == {Registration.DEFAULT}
    machine = patched(with_data_direct(), "system", data_direct=functions)
    tried_by_default = tuple(replace(each, outcome=ProbeOutcome.OK) for each in planned)
    (finding,) = findings(replace(machine, probes=tried_by_default))
    assert finding.status is status
