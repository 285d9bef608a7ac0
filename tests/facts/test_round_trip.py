"""The files of each shipped machine, written as its kernel would show them, are read as the machine they came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from egmctl.facts import gpus as driver_files
from egmctl.facts import replay
from egmctl.facts.collect import collect
from egmctl.facts.root import SYSROOT_VARIABLE, Root
from egmctl.model.host import Bridge, Imex, PcieLink
from egmctl.model.machine import Machine
from tests.doctor.faults import healthy
from tests.doctor.machines import patched
from tests.fake.sysroot import write_sysroot
from tests.invariants import broken_invariants, differences


@pytest.mark.parametrize("name", replay.names())
def test_the_files_of_a_shipped_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    machine = replay.load(name)
    write_sysroot(machine, tmp_path)
    monkeypatch.setenv(SYSROOT_VARIABLE, str(tmp_path))
    found = collect(("host", "switches", "nics", "process"))
    assert broken_invariants(found) == []
    assert differences(machine.host, found.host, "host") == []
    assert differences(machine.switches, found.switches, "switches") == []
    assert differences(machine.nics, found.nics, "nics") == []
    known = driver_files.gpus(Root.from_environment())
    for gpu in machine.gpus or ():
        assert differences(gpu.proc, known[gpu.bus_id], f"{gpu.bus_id}.proc") == []


@pytest.mark.processes
def test_the_files_of_a_machine_of_which_all_is_stated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = _with_bridges(healthy())
    write_sysroot(machine, tmp_path)
    monkeypatch.setenv(SYSROOT_VARIABLE, str(tmp_path))
    system = collect(("system",)).system
    assert system is not None
    (bridge,) = (machine.system and machine.system.bridges) or ()
    seen = tuple(one for one in system.bridges or () if one.bus_id == bridge.bus_id)
    # Beside the NICs' nodes there is that of rdma_cm.
    found = patched(system, "", bridges=seen, verbs=(system.verbs or ())[:-1])
    assert differences(machine.system, found, "system") == []


def _with_bridges(machine: Machine) -> Machine:
    nic = (machine.nics or ())[0].pci
    assert nic is not None
    link = PcieLink(speed_gt_s=32.0, width=16, max_speed_gt_s=64.0, max_width=16)
    return patched(
        machine,
        "system",
        iommu_domains={nic.bus_id: "identity"},
        bridges=(Bridge(bus_id=(nic.path or ())[-1], link=link, acs_control=0b11101),),
        imex=Imex(configured_nodes=18, duplicate_nodes=2),
    )
