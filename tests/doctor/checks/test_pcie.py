"""Which ACS settings are right depends on how GPUs and NICs are connected (rdma-core, kernel-boot/rdma_topo)."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from egmctl.facts.gpus import DEVICES
from egmctl.facts.root import Root
from egmctl.facts.system import system
from egmctl.model.finding import Finding, Status
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from tests.doctor.changed import CONNECTX_SWITCH, DEFAULT, GRACE, MELLANOX, VERA, b300, gb200, gb300
from tests.doctor.faults import Fault, bridges, weak_switch
from tests.doctor.machines import patched, run_one
from tests.fake.sysroot import Tree


def well(machine: Machine) -> Machine:
    ats = {nic.pci.bus_id: False for nic in machine.nics or () if nic.pci is not None}
    return patched(machine, "system", bridges=bridges(machine, DEFAULT, *GRACE), data_direct=(), ats=ats)


FAULTS: dict[str, Fault] = {"pcie.acs": Fault(lambda: gb300(root_port=DEFAULT))}


def acs(machine: Machine) -> Finding:
    return run_one("pcie.acs", machine)


def test_data_direct_needs_a_root_port_without_source_validation() -> None:
    assert acs(gb300()).status is Status.PASS
    finding = acs(gb300(root_port=0x1D))
    assert (finding.status, finding.evidence[1].value) == (Status.WARN, "0x1d, needs xx111x0 (0x1c)")
    assert finding.remedy is not None
    assert "xx111x0@0008:00:00.0;xx101x1@0008:02:00.0;xx110x1@0008:02:01.0" in finding.remedy.text
    assert (finding.remedy.run, "setpci" in finding.remedy.text) == (None, False)


def test_data_direct_with_acs_turned_off_is_wrong_at_each_port() -> None:
    finding = acs(gb300(root_port=0, nic_side=0, gpu_side=0))
    assert (finding.status, finding.summary) == (
        Status.WARN,
        "12 PCIe ports have other ACS settings than GPUDirect RDMA needs here",
    )


@pytest.mark.parametrize(("nic_side", "gpu_side"), [(0x1D, 0x15), (0x19, 0x1D)])
def test_on_either_side_of_data_direct_another_redirect_is_off(nic_side: int, gpu_side: int) -> None:
    assert acs(gb300(nic_side=nic_side, gpu_side=gpu_side)).status is Status.WARN


@pytest.mark.parametrize(
    ("root_port", "control", "status"),
    [
        (GRACE, DEFAULT, Status.PASS),
        (GRACE, 0, Status.WARN),
        (GRACE, 0x1C, Status.WARN),
        (VERA, 0b0010101, Status.PASS),
        (VERA, 0, Status.WARN),
    ],
)
def test_root_ports_of_grace_and_vera_need_what_linux_sets(
    root_port: tuple[int, int], control: int, status: Status
) -> None:
    finding = acs(gb200(control, root_port))
    assert finding.status is status
    if finding.remedy is not None:
        assert finding.remedy.text.startswith("Leave ACS as Linux sets it")


@pytest.mark.parametrize(
    ("ats", "nic_side", "others", "status"),
    [
        (False, 0, 0, Status.PASS),
        (False, DEFAULT, DEFAULT, Status.WARN),
        (False, 1, 0, Status.WARN),
        (True, 0b1011101, DEFAULT, Status.PASS),
        (True, DEFAULT, DEFAULT, Status.WARN),
        (True, 0, 0, Status.WARN),
    ],
)
def test_a_switch_of_the_nic_is_open_unless_the_nic_is_set_up_for_guests(
    ats: bool, nic_side: int, others: int, status: Status
) -> None:
    assert acs(b300(ats, nic_side, others)).status is status


def test_a_plain_switch_must_not_redirect_and_source_validation_is_no_redirection() -> None:
    assert acs(weak_switch()).status is Status.WARN
    assert acs(patched(weak_switch(), "system.bridges[*]", acs_control=0)).status is Status.PASS
    assert acs(patched(weak_switch(), "system.bridges[*]", acs_control=0b00001)).status is Status.PASS
    assert acs(patched(weak_switch(), "system.bridges[*]", acs_control=0b00100)).status is Status.WARN


def _moved(machine: Machine) -> Machine:
    """The machine whose Data Direct functions are below other ports than their GPUs."""
    return patched(machine, "system.data_direct[*]", path=("pci0000:00", "0008:00:00.0"))


@pytest.mark.parametrize(
    "machine",
    [
        lambda: _moved(gb300()),
        lambda: patched(gb300(), "system.bridges[0]", vendor_id=0x1022),
        lambda: patched(gb300(), "system", data_direct=None),
        lambda: patched(gb300(), "system.bridges[*]", vendor_id=None),
        lambda: patched(gb300(), "gpus[1].pci", path=None),
        lambda: patched(gb200(), "system.bridges[*]", vendor_id=0x1022),
        lambda: patched(gb200(), "system", bridges=()),
        lambda: patched(b300(ats=False, nic_side=0, others=0), "system", ats=None),
        lambda: patched(b300(ats=False, nic_side=0, others=0), "nics[0].pci", path=("pci0000:00", "0000:00:00.0")),
        lambda: patched(gb300(), "system.bridges[0]", acs_control=None),
    ],
)
def test_what_is_not_recognised_or_not_read_is_unknown_and_has_no_remedy(machine: object) -> None:
    finding = acs(machine())  # type: ignore[operator]
    assert (finding.status, finding.remedy) == (Status.UNKNOWN, None)


def test_without_root_the_settings_are_unknown() -> None:
    closed = {"acs_control": Unread(reason=Reason.NO_PERMISSION)}
    finding = acs(patched(gb300(), "system.bridges[*]", acs_control=None, unread=closed))
    assert (finding.status, "only root" in finding.summary) == (Status.UNKNOWN, True)


def test_a_data_direct_function_and_the_ports_above_it_are_read(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    ports = ("0008:00:00.0", "0008:01:00.0", "0008:02:01.0")
    for depth, (port, (vendor, device)) in enumerate(
        zip((*ports, "0008:06:00.0"), (GRACE, CONNECTX_SWITCH, CONNECTX_SWITCH, (MELLANOX, 0x2100)), strict=True)
    ):
        folder = "/".join(("/sys/devices/pci0008:00", *ports[:depth], port))
        tree.link(f"{DEVICES}/{port}", folder)
        tree.write(f"{folder}/vendor", f"{vendor:#06x}")
        tree.write(f"{folder}/device", f"{device:#06x}")
        tree.write(f"{folder}/config", bytes(256) + struct.pack("<IHH", 0x0001000D, 0, 0x1C) + bytes(64))
    finding = system(Root(str(tmp_path)))
    assert [(function.bus_id, function.path) for function in finding.data_direct or ()] == [
        ("0008:06:00.0", ("pci0008:00", *ports))
    ]
    assert [(port.bus_id, port.vendor_id, port.device_id, port.acs_control) for port in finding.bridges or ()] == [
        (ports[0], *GRACE, 0x1C),
        (ports[1], *CONNECTX_SWITCH, 0x1C),
        (ports[2], *CONNECTX_SWITCH, 0x1C),
    ]
    assert finding.ats == {}
