"""Machines for the tests of checks: a shipped machine with one thing about it changed."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, TypeVar, cast

from egmctl.doctor.check import EVERYTHING, Scope
from egmctl.doctor.runner import CHECKS
from egmctl.facts import replay
from egmctl.model.finding import Finding
from egmctl.model.gpu import Gpu, GpuCuda, GpuNvml, GpuPair, GpuProc
from egmctl.model.host import DeviceNode, PciFunction
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from tests.answers import diagnose

T = TypeVar("T")


@functools.cache
def shipped(name: str) -> Machine:
    """Return a machine that ships with the tool (gh200, gb200-tray, dgx-h100, ...), or that of a file; read once."""
    return replay.load_machine(name)


def patched(record: T, path: str, /, **changes: Any) -> T:
    """Return a record with fields of something inside it changed.

    ``patched(machine, "driver", modules=())``, ``patched(machine, "gpus[0].nvml.fabric", state="in-progress")``,
    ``patched(machine, "gpus[*].nvml", persistence_mode=False)``; the path ``""`` is the record itself.
    """
    whole: Any = record
    if not path:
        return cast(T, dataclasses.replace(whole, **changes))
    head, _, rest = path.partition(".")
    name, bracket, index = head.rstrip("]").partition("[")
    value = getattr(whole, name)
    if not bracket:
        return cast(T, dataclasses.replace(whole, **{name: patched(value, rest, **changes)}))
    items = [
        patched(item, rest, **changes) if index in ("*", str(number)) else item for number, item in enumerate(value)
    ]
    return cast(T, dataclasses.replace(whole, **{name: tuple(items)}))


def bus_id(machine: Machine, index: int) -> str:
    """Return the bus id of a GPU by its place among the machine's."""
    return (machine.gpus or ())[index].bus_id


def lost_by(machine: Machine, index: int, *sources: str) -> Machine:
    """Return the machine with sources that were asked and do not know a GPU."""
    unread = {name: Unread(reason=Reason.NOT_PRESENT, detail="lists 3 GPUs, not this one") for name in sources}
    return patched(machine, f"gpus[{index}]", **dict.fromkeys(sources), unread=unread)


def of_two_gpus(machine: Machine) -> Machine:
    """Return the machine with its first two GPUs only."""
    gpus = (machine.gpus or ())[:2]
    ends = {gpu.bus_id for gpu in gpus}
    pairs = tuple(pair for pair in machine.pairs or () if {pair.source, pair.target} <= ends)
    return dataclasses.replace(machine, gpus=gpus, pairs=pairs)


def with_gpu_denied(machine: Machine, *indices: int, access: str = "EPERM") -> Machine:
    """Return the machine as a process sees it whose access(2) of these GPUs' device nodes fails.

    As measured on H200 under a device cgroup: NVML and CUDA list the others only, ``/proc/driver/nvidia/gpus`` and
    sysfs still all, and NVML's indices shift.
    """
    visible = [gpu for gpu in machine.gpus or () if gpu.index not in indices]
    denied = [gpu for gpu in machine.gpus or () if gpu.index in indices]
    assert len(denied) == len(set(indices))
    gpus: list[Gpu] = []
    for index, gpu in enumerate([*visible, *denied]):
        values: dict[str, Any] = {"index": index}
        if gpu in denied:
            assert gpu.node is not None
            node = dataclasses.replace(gpu.node, access=access, exists=access != "ENOENT")
            lost = Unread(reason=Reason.NOT_PRESENT, detail="lists others, not this one")
            unread = {**gpu.unread, "nvml": lost, "cuda": lost}
            values |= {"nvml": None, "cuda": None, "node": node, "unread": unread}
        elif gpu.nvml is not None:
            values["nvml"] = dataclasses.replace(gpu.nvml, index=index)
        gpus.append(dataclasses.replace(gpu, **values))
    gone = {gpu.bus_id for gpu in denied}
    pairs = machine.pairs and tuple(p for p in machine.pairs if p.source not in gone and p.target not in gone)
    return dataclasses.replace(machine, gpus=tuple(gpus), pairs=pairs)


def run(check_id: str, machine: Machine, scope: Scope = EVERYTHING) -> tuple[Finding, ...]:
    """Return what one check of the registry finds."""
    (check,) = [check for check in CHECKS if check.id == check_id]
    return diagnose(machine, scope, (check,)).findings


def run_one(check_id: str, machine: Machine, scope: Scope = EVERYTHING) -> Finding:
    """Return the one finding of a check."""
    (finding,) = run(check_id, machine, scope)
    return finding


def with_card(machine: Machine) -> Machine:
    """Return a Grace machine with one more GPU on PCIe, as a DGX Station may have one: an RTX PRO 6000."""
    index, numa_node = len(machine.gpus or ()), 0
    no_c2c = Unread(reason=Reason.NOT_SUPPORTED, detail="nvmlDeviceGetC2cModeInfoV: 3 (Not Supported)")
    bus_id, name = "0002:01:00.0", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"
    unsupported = ("c2c_enabled", "c2c_links", "nvlinks", "nvlink_count", "numa_node", "fabric")
    card = Gpu(
        bus_id=bus_id,
        index=index,
        pci=PciFunction(bus_id=bus_id, path=("pci0002:00", "0002:00:00.0"), numa_node=numa_node, driver="nvidia"),
        proc=GpuProc(model=name, minor=index),
        node=DeviceNode(path=f"/dev/nvidia{index}", exists=True, major=195, minor=index, access="ok"),
        nvml=GpuNvml(
            index=index, name=name, capabilities=0, addressing_mode="hmm", unread=dict.fromkeys(unsupported, no_c2c)
        ),
        cuda=GpuCuda(
            ordinal=index,
            name=name,
            attributes={
                "HOST_NUMA_ID": numa_node,
                "HANDLE_TYPE_FABRIC_SUPPORTED": 0,
                "HOST_NUMA_MULTINODE_IPC_SUPPORTED": 0,
            },
        ),
    )
    none = {"read": "CNS", "write": "CNS", "nvlink": "NS", "atomics": "CNS", "pci": "CNS"}
    pairs = [
        GpuPair(source=one, target=other, p2p_status=none, nvlink_count=0, can_access_peer=False)
        for gpu in machine.gpus or ()
        for one, other in ((gpu.bus_id, bus_id), (bus_id, gpu.bus_id))
    ]
    return dataclasses.replace(machine, gpus=(*(machine.gpus or ()), card), pairs=(*(machine.pairs or ()), *pairs))
