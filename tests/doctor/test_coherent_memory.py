"""EGM, NUMA nodes and coherent GPUs: when a fact is a fault, and what the driver's management of memory takes away.

NVLink-C2C belongs to a GPU, not to a machine: a Grace machine may have a card on PCIe beside its coherent GPUs.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from egmctl.doctor.check import EVERYTHING, Scope
from egmctl.doctor.runner import CHECKS
from egmctl.model.finding import Guard, Status
from egmctl.model.host import NumaKind
from egmctl.model.machine import Machine
from egmctl.topology.platform import MemoryMode, memory_mode
from egmctl.topology.routes import possible_owners
from tests.answers import diagnose
from tests.doctor.cases import Case, asked, case, verdicts
from tests.doctor.faults import healthy
from tests.doctor.machines import patched, run, shipped, with_card, with_gpu_denied

TRAY, HGX = healthy(), shipped("hgx-h200x4")
NO_EGM = patched(TRAY, "gpus[*].nvml", capabilities=0)
FIRST_GPU = Scope(gpus=((TRAY.gpus or ())[0].bus_id,), numa=(0,))
POLICY_REFUSED = patched(
    HGX, "confinement", system_calls={"get_mempolicy": "EPERM", "mbind": "ok", "set_mempolicy": "ok"}
)
GRACE_TUNING = patched(HGX, "host", numa_balancing=1, kernel_command_line={"init_on_alloc": "1"})


def started(kernel: str | None) -> Machine:
    """A tray whose kernel of that release was started with passthrough, and whose GPUs use ATS."""
    return patched(PASSTHROUGH, "host", kernel=kernel)


PASSTHROUGH = patched(TRAY, "host", kernel_command_line={"iommu.passthrough": "1"})


def without_a_link() -> Machine:
    """Four GH200 of which the last two have no NVLink between them."""
    machine = shipped("gh200x4")
    last = {gpu.bus_id for gpu in (machine.gpus or ())[2:]}
    pairs = tuple(
        dataclasses.replace(pair, nvlink_count=0, nvlink_through=None) if {pair.source, pair.target} == last else pair
        for pair in machine.pairs or ()
    )
    return patched(machine, "", pairs=pairs)


STATION = with_card(TRAY)
"""A Grace machine on which nothing is wrong, with a graphics card in a PCIe slot."""
THE_CARD = Scope(gpus=("0002:01:00.0",))
NO_NODE = patched(STATION, "gpus[4].pci", numa_node=-1)

PARAMETERS = {"CoherentGPUMemoryMode": "", "EnableUserNUMAManagement": "1"}


def without_nodes(machine: Machine) -> Machine:
    machine = patched(machine, "gpus[*].nvml", numa_node=None)
    return patched(machine, "gpus[*].proc", numa_node=None, numa_status=None)


def cdmm(kernel: str | None = "6.18.2", gdrdrv: str | None = None, **driver: Any) -> Machine:
    """A tray whose driver manages the GPUs' memory itself."""
    parameters = PARAMETERS | {"EnableUserNUMAManagement": "0"}
    machine = patched(without_nodes(TRAY), "driver", **({"module_parameters": parameters} | driver))
    versions = {} if gdrdrv is None else {"gdrdrv": gdrdrv}
    return patched(patched(machine, "host", kernel=kernel), "system", module_versions=versions)


UNTOLD = patched(cdmm("6.8.0", module_parameters=None), "host", auto_online_blocks="online")
UVM = ("nvidia", "nvidia_uvm")


@pytest.mark.parametrize(
    "case",
    [
        *(
            case(f"missing for EGM: {words}", "egm.preconditions", patched(NO_EGM, part, **changes), verdict, words)
            for part, changes, verdict, words in (
                ("system", {"acpi_egm": False}, "note", "firmware reserved no memory"),
                ("system", {"kernel_configuration": {"ACPI_NUMA": "n"}}, "note", "CONFIG_ACPI_NUMA"),
                ("driver", {"module_flavour": "proprietary"}, "fail", "proprietary"),
                ("gpus[*].pci", {"numa_node": -1}, "fail GPU0-3", "NUMA node of these GPUs"),
            )
        ),
        case(
            "GPUs with routes of their own need no others",
            "egm.cgroup-route",
            with_gpu_denied(TRAY, 1),
            "pass NUMA 0",
            scope=FIRST_GPU,
        ),
        case(
            "a GPU that lacks one route does not pass for its others",
            "egm.peer-route",
            without_a_link(),
            "fail GPU2; fail GPU3; pass GPU0-1",
        ),
        case(
            "refused memory policies harm EGM most",
            "numa.mempolicy-syscalls",
            POLICY_REFUSED,
            "warn",
            scope=asked(Guard.PERF),
        ),
        case(
            "a cpuset with a part of the nodes is ordinary",
            "numa.cpuset-mems",
            patched(TRAY, "host", allowed_numa_nodes="0"),
            "pass NUMA 1",
            "HOST_NUMA memory cannot be allocated there",
        ),
        case("a guest with one node may be silent about it", "numa.gpu-affinity", HGX, "pass GPU0-3"),
        case(
            "a host with several nodes may not",
            "numa.gpu-affinity",
            patched(shipped("dgx-h100"), "gpus[*].pci", numa_node=-1),
            "warn GPU0-7",
        ),
        case("balancing needs two NUMA nodes", "numa.balancing", GRACE_TUNING, "skip"),
        case(
            "balancing harms Grace, and is noted elsewhere",
            "numa.balancing",
            patched(shipped("dgx-h100"), "host", numa_balancing=1),
            "note",
        ),
        case("init_on_alloc harms Grace only", "numa.cmdline", GRACE_TUNING, "pass"),
        case("passthrough is no fault on a kernel that has ATS with it", "numa.cmdline", started("6.11.0"), "pass"),
        case("before Linux 6.11 it is", "numa.cmdline", started("6.8.0-1010-nvidia-64k"), "warn", "6.11", "medium"),
        case("a kernel whose version was not read may be either", "numa.cmdline", started(None), "unknown"),
        case(
            "and one where they do not",
            "numa.cmdline",
            patched(PASSTHROUGH, "gpus[*].nvml", addressing_mode="none"),
            "warn",
        ),
        *(
            case(f"the card is left out: {check}", check, STATION, "pass GPU0-3")
            for check in ("egm.capability", "egm.preconditions", "numa.mode", "c2c.link")
        ),
        *(
            case(f"of the card alone nothing is told: {check}", check, STATION, "skip", scope=THE_CARD)
            for check in ("egm.capability", "egm.preconditions", "numa.mode", "c2c.link")
        ),
        case("each GPU has its kind's addressing", "uvm.addressing-mode", STATION, "pass GPU0-3; pass GPU4"),
        case("the card needs no NUMA node for EGM", "numa.gpu-affinity", NO_NODE, "warn GPU4; pass GPU0-3"),
        case(
            "a coherent GPU does",
            "numa.gpu-affinity",
            patched(NO_NODE, "gpus[1].pci", numa_node=-1),
            "fail GPU1; warn GPU4; pass GPU0,2-3",
        ),
        case("no route leads through the card", "egm.cgroup-route", with_gpu_denied(STATION, 4), "pass NUMA 0-1"),
        case("to deny the card is no fault", "dev.cgroup-restricted", with_gpu_denied(STATION, 4), "note GPU4"),
        case("CDMM is no fault and says what it takes away", "numa.mode", cdmm(), "pass GPU0-3", "GDRCopy", "mbind"),
        case("under CDMM no memory comes online", "numa.auto-online", cdmm(), "skip"),
        *(
            case(f"what may be CDMM does not pass: {check}", check, UNTOLD, verdict)
            for check, verdict in (
                ("numa.mode", "unknown"),
                ("numa.auto-online", "unknown GPU0-3"),
                ("rdma.coherent-dmabuf", "unknown"),
                ("rdma.gdrcopy", "unknown"),
            )
        ),
        case("dma-buf: new kernel", "rdma.coherent-dmabuf", cdmm(modules=("nvidia",)), "pass"),
        case("dma-buf: nvidia_uvm", "rdma.coherent-dmabuf", cdmm("6.8.0", modules=UVM), "pass"),
        case("dma-buf: old kernel alone", "rdma.coherent-dmabuf", cdmm("6.8.0", modules=("nvidia",)), "warn"),
        case("dma-buf: modules not read", "rdma.coherent-dmabuf", cdmm("6.8.0", modules=None), "unknown"),
        case("dma-buf: kernel not read", "rdma.coherent-dmabuf", cdmm(None, modules=UVM), "unknown"),
        case("dma-buf: not CDMM", "rdma.coherent-dmabuf", patched(TRAY, "host", kernel=None), "pass"),
        *(
            case(f"GDRCopy {version} under CDMM", "rdma.gdrcopy", cdmm(gdrdrv=version), verdict)
            for version, verdict in (
                (None, "pass"),
                ("2.4.4", "warn"),
                ("2.5", "warn"),
                ("2.5.1", "pass"),
                ("", "unknown"),
            )
        ),
        *(
            case(
                f"GDRCopy {version or 'of no version'} else",
                "rdma.gdrcopy",
                patched(TRAY, "system", module_versions={"gdrdrv": version}),
                "pass",
            )
            for version in ("2.4.4", "")
        ),
        case("GDRCopy on a machine without coherent GPUs", "rdma.gdrcopy", HGX, "skip"),
    ],
)
def test_what_is_told(case: Case) -> None:
    case.holds()


def test_a_card_beside_coherent_gpus_is_no_fault_and_owns_no_egm() -> None:
    findings = diagnose(STATION, EVERYTHING, CHECKS).findings
    assert [(f.check, f.summary) for f in findings if f.status in (Status.FAIL, Status.WARN)] == []
    assert [gpu.index for gpu in possible_owners(STATION, 0)] == [0, 1]


@pytest.mark.parametrize("allowed", ["0-1", "0", None])
def test_a_node_without_memory_is_a_fault_where_it_is_asked_for_and_none_of_the_cpusets(allowed: str | None) -> None:
    machine = patched(TRAY, "host", allowed_numa_nodes=allowed)
    machine = patched(machine, "host.numa_nodes[1]", kind=NumaKind.CPU_ONLY, memory_total_bytes=0)
    (fault,) = [f for f in run("numa.cpuset-mems", machine, Scope(numa=(0, 1))) if f.status is Status.FAIL]
    assert (fault.place.label, "has no memory" in fault.summary, fault.cause) == ("NUMA 1", True, "")
    unasked = " ".join(finding.summary + finding.note for finding in run("numa.cpuset-mems", machine))
    assert ("no memory" in unasked, "NUMA 1" in unasked) == (False, False)
    assert "fail" not in verdicts("numa.cpuset-mems", machine)


@pytest.mark.parametrize(
    ("changes", "mode"),
    [
        ({}, MemoryMode.NUMA),
        ({"CoherentGPUMemoryMode": "numa"}, MemoryMode.NUMA),
        ({"CoherentGPUMemoryMode": "driver"}, MemoryMode.CDMM),
        ({"CoherentGPUMemoryMode": '"driver"'}, MemoryMode.CDMM),
        ({"EnableUserNUMAManagement": "0"}, MemoryMode.CDMM),
        ({"CoherentGPUMemoryMode": "Driver"}, MemoryMode.NUMA),
    ],
)
def test_either_parameter_turns_cdmm_on(changes: dict[str, str], mode: MemoryMode) -> None:
    assert memory_mode(patched(TRAY, "driver", module_parameters=PARAMETERS | changes)) is mode


def test_parameters_that_were_not_read_tell_nothing_but_a_node_does() -> None:
    machine = patched(TRAY, "driver", module_parameters=None)
    assert memory_mode(machine) is MemoryMode.NUMA
    assert memory_mode(without_nodes(machine)) is MemoryMode.UNKNOWN
