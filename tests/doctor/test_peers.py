"""What the nodes of an MPI job have to have in common."""

from __future__ import annotations

from egmctl.model.finding import Status
from tests.doctor.faults import in_job
from tests.doctor.machines import patched, run_one


def test_ranks_with_different_libcuda_on_one_driver_are_a_warning() -> None:
    """As with a compat folder in one node's image; what was not asked differs from nothing."""
    machine = patched(in_job(), "peers.nodes[*]", libcuda_version="580.95.05")
    assert run_one("peers.versions", machine).status is Status.PASS
    for version, status in (("575.57.08", Status.WARN), (None, Status.PASS)):
        other = patched(machine, "peers.nodes[1]", libcuda_version=version)
        assert run_one("peers.versions", other).status is status
