"""The files of each shipped machine, written as its kernel would show them, are read as the machine they came from."""

from __future__ import annotations

from pathlib import Path

import pytest

from egmctl.facts import driver_files, replay
from egmctl.facts.collect import collect
from egmctl.facts.root import SYSROOT_VARIABLE, Root
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
