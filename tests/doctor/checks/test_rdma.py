"""BAR1 limits how much GPU memory NICs can have registered (docs.nvidia.com/cuda/gpudirect-rdma)."""

from __future__ import annotations

import pytest

from egmctl.doctor.check import EVERYTHING, Scope
from egmctl.facts import replay
from egmctl.model.finding import Guard, Status
from egmctl.model.host import LibraryFailure, Nic, NicPort, PciFunction
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from tests.doctor.cases import verdicts
from tests.doctor.faults import Fault
from tests.doctor.machines import patched, run, run_one, shipped, with_card

GIB = 1 << 30
REQUIRED = Scope(purposes=(Guard.RDMA,))


def with_bar1(size_bytes: int, name: str = "dgx-h100") -> Machine:
    return patched(shipped(name), "gpus[*].nvml", bar1_total_bytes=size_bytes)


FAULTS: dict[str, Fault] = {"rdma.bar1": Fault(lambda: with_bar1(16 * GIB), REQUIRED)}


@pytest.mark.parametrize("scope", [EVERYTHING, REQUIRED])
def test_a_small_bar1_is_a_note_also_where_rdma_is_required(scope: Scope) -> None:
    finding = run_one("rdma.bar1", with_bar1(16 * GIB), scope)
    assert (finding.status, finding.place.label) == (Status.NOTE, "GPU0-7")
    assert "at most 16 GiB of the GPU's 79.6 GiB registered at once" in finding.summary
    assert finding.remedy is not None
    assert "above 4 GiB" in finding.remedy.text


@pytest.mark.parametrize("size_bytes", [128 * GIB, shipped("dgx-h100").gpus[0].nvml.memory_total_bytes])  # type: ignore
def test_bar1_as_large_as_the_memory_is_right(size_bytes: int) -> None:
    assert run_one("rdma.bar1", with_bar1(size_bytes), REQUIRED).status is Status.PASS


def test_a_size_that_was_not_read_is_unknown_with_its_reason() -> None:
    hung = {"bar1_total_bytes": Unread(reason=Reason.TIMED_OUT, detail="nvmlDeviceGetBAR1MemoryInfo")}
    finding = run_one("rdma.bar1", patched(shipped("dgx-h100"), "gpus[*].nvml", unread=hung))
    assert (finding.status, finding.summary) == (Status.UNKNOWN, "BAR1: NVML did not report it (timed-out)")
    hung = {"memory_total_bytes": Unread(reason=Reason.TIMED_OUT, detail="nvmlDeviceGetMemoryInfo")}
    no_memory = patched(with_bar1(GIB), "gpus[*].nvml", memory_total_bytes=None, unread=hung)
    assert run_one("rdma.bar1", no_memory).summary == "memory: NVML did not report it (timed-out)"
    old = {"bar1_total_bytes": Unread(reason=Reason.NOT_SUPPORTED, detail="")}
    assert run_one("rdma.bar1", patched(shipped("dgx-h100"), "gpus[*].nvml", unread=old)).status is Status.SKIP


def test_bar1_is_unknown_where_nvml_hung() -> None:
    failure = LibraryFailure(how="timed-out", call="nvmlInit")
    machine = patched(patched(shipped("dgx-h100"), "gpus[*]", nvml=None), "driver", nvml_failure=failure)
    assert run_one("rdma.bar1", machine).status is Status.UNKNOWN


def test_gpus_with_c2c_and_nodes_without_nics_are_not_judged() -> None:
    assert run_one("rdma.bar1", with_bar1(GIB, "gb200-nvl72")).status is Status.SKIP
    assert run_one("rdma.bar1", patched(with_bar1(GIB), "", nics=())).status is Status.SKIP
    card = patched(with_card(shipped("gb200-nvl72")), "gpus[*].nvml", bar1_total_bytes=GIB, memory_total_bytes=96 * GIB)
    assert [(each.status, each.place.label) for each in run("rdma.bar1", card)] == [
        (Status.NOTE, "GPU4"),
        (Status.SKIP, "GPU0-3"),
    ]


def test_unknown_c2c_leaves_a_small_bar1_unknown() -> None:
    machine = patched(with_bar1(GIB, "gb200-nvl72"), "gpus[*].nvml", c2c_enabled=None, c2c_links=None)
    machine = patched(machine, "gpus[*].cuda", attributes={})
    assert run_one("rdma.bar1", machine, REQUIRED).status is Status.UNKNOWN


@pytest.mark.parametrize("name", replay.machine_names())
def test_no_shipped_machine_alarms(name: str) -> None:
    assert {each.status for each in run("rdma.bar1", shipped(name))} <= {Status.UNKNOWN, Status.SKIP}


def ports(*states: str, functions: bool = False) -> Machine:
    """NICs of one kind with a port each, in these physical states; each on its card, or all functions of one."""
    first = (shipped("dgx-h100").nics or ())[0]
    nics = tuple(
        Nic(
            name=f"mlx5_{number}",
            pci=PciFunction(bus_id=f"0000:{1 if functions else number + 1:02x}:00.{number if functions else 0}"),
            board_id=first.board_id,
            ports=(
                NicPort(
                    number=1,
                    state="ACTIVE" if state == "LinkUp" else "DOWN",
                    physical_state=state,
                    link_layer="InfiniBand",
                    rate_gbit_s=400.0 if state == "LinkUp" else 10.0,
                ),
            ),
        )
        for number, state in enumerate(states)
    )
    return patched(shipped("dgx-h100"), "", nics=nics)


@pytest.mark.parametrize(
    ("machine", "verdict"),
    [
        (ports("LinkUp", "LinkUp", "Polling"), "note mlx5_2; pass mlx5_0, mlx5_1"),
        (ports("LinkUp", "LinkUp", "Disabled"), "pass mlx5_0, mlx5_1"),
        (ports("LinkUp", "Polling", functions=True), "pass mlx5_0"),
    ],
)
def test_a_port_that_polls_beside_active_ones_of_its_kind_has_no_partner(machine: Machine, verdict: str) -> None:
    """A disabled port, and the second one of a card, are left so on purpose."""
    assert verdicts("rdma.ports", machine) == verdict
