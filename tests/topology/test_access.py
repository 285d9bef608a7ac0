"""Can a GPU be used from here: each sign alone, and what comes first where two disagree."""

from __future__ import annotations

from typing import Any

import pytest

from egmctl.bench.plan.paths import gpu_waiver
from egmctl.doctor.situation import loss, usable
from egmctl.model.host import LibraryFailure
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from egmctl.topology.access import Block, Obstacle, Step, classify, device_node_obstacle, obstacle
from egmctl.topology.routes import RouteKind, route
from tests.doctor.machines import patched, shipped
from tests.known import known

HGX = patched(patched(shipped("hgx-h200x4"), "process", container_signs=()), "confinement", mounts=())
GONE = Unread(reason=Reason.NOT_PRESENT, detail="NVML lists 3 GPUs, not this one")
LOST = Unread(reason=Reason.FAILED, detail="GPU 1: nvmlDeviceGetHandleByIndex: 15 (GPU is lost)")
DEAD = Unread(reason=Reason.CRASHED, detail="the child that reads NVML crashed in nvmlInit")
CRASH = LibraryFailure(how="crashed", call="nvmlInit")


def unlisted(why: Unread = GONE, machine: Machine = HGX, **node: Any) -> Machine:
    """GPU 1 is listed by neither library; what its device node is like."""
    machine = patched(machine, "gpus[1]", nvml=None, cuda=None, unread={"nvml": why, "cuda": GONE})
    return patched(machine, "gpus[1].node", **node) if node else machine


def listed(**node: Any) -> Machine:
    """GPU 1 is listed by both, whatever its device node was like before."""
    return patched(HGX, "gpus[1].node", **node)


def classified(machine: Machine, through: Step = Step.WHOLE) -> Obstacle | None:
    return classify(machine, known(machine.gpus)[1], through)


def block(machine: Machine, through: Step = Step.WHOLE) -> Block | None:
    found = classified(machine, through)
    return None if found is None else found.block


ALONE: dict[str, tuple[Machine, Block]] = {
    "off the bus": (patched(unlisted(), "gpus[1].pci", responds=False), Block.OFF_THE_BUS),
    "another driver": (patched(unlisted(), "gpus[1].pci", driver="vfio-pci"), Block.NOT_BOUND),
    "no driver": (patched(unlisted(), "gpus[1].pci", driver=""), Block.NOT_BOUND),
    "excluded": (patched(unlisted(), "gpus[1].proc", excluded=True), Block.EXCLUDED),
    "no node": (unlisted(exists=False, access="ENOENT"), Block.NO_DEVICE_NODE),
    "no node, in a container": (
        patched(unlisted(exists=False, access="ENOENT"), "process", container_signs=("/.dockerenv",)),
        Block.NOT_IN_CONTAINER,
    ),
    "a directory": (unlisted(kind="directory", major=None, minor=None), Block.NOT_A_DEVICE),
    "a file": (unlisted(kind="file", major=None, minor=None), Block.NOT_A_DEVICE),
    "a FIFO": (unlisted(kind="fifo", major=None, minor=None), Block.NOT_A_DEVICE),
    "a block device": (unlisted(kind="block", major=None, minor=None), Block.NOT_A_DEVICE),
    "/dev/null": (unlisted(major=1, minor=3), Block.MASKED),
    "another major": (unlisted(major=236), Block.STALE_NODE),
    "another minor": (unlisted(minor=7), Block.STALE_NODE),
    "cgroup": (unlisted(access="EPERM"), Block.DEVICE_CGROUP),
    "mode": (unlisted(access="EACCES"), Block.NO_PERMISSION),
    "a loop of links": (unlisted(access="ELOOP"), Block.UNKNOWN),
    "nodev": (unlisted(nodev=True), Block.NODEV),
    "NVML crashed": (patched(unlisted(DEAD), "driver", nvml_failure=CRASH), Block.NVML_FAILED),
    "lost": (unlisted(LOST), Block.GPU_LOST),
    "called lost": (
        patched(HGX, "gpus[1].nvml", lost_calls={"nvmlDeviceGetTemperature": "NVML_ERROR_GPU_IS_LOST"}),
        Block.CALLED_LOST,
    ),
    "needs a reset": (
        patched(HGX, "gpus[1].nvml", lost_calls={"nvmlDeviceGetTemperature": "NVML_ERROR_RESET_REQUIRED"}),
        Block.RESET_REQUIRED,
    ),
    "not listed": (unlisted(), Block.NOT_LISTED),
    "not seen by CUDA": (patched(HGX, "gpus[1]", cuda=None, unread={"cuda": GONE}), Block.NOT_SEEN_BY_CUDA),
    "CUDA failed": (
        patched(patched(HGX, "gpus[1]", cuda=None, unread={"cuda": GONE}), "driver", cuda_failure=CRASH),
        Block.CUDA_FAILED,
    ),
    "MIG": (patched(HGX, "gpus[1].nvml", mig_mode=True), Block.MIG),
    "compute mode": (patched(HGX, "gpus[1].nvml", compute_mode="prohibited"), Block.COMPUTE_MODE),
}


@pytest.mark.parametrize(("machine", "expected"), ALONE.values(), ids=ALONE)
def test_each_sign_alone(machine: Machine, expected: Block) -> None:
    found = known(classified(machine))
    assert found.block is expected
    assert found.cause


def test_every_block_of_a_gpu_has_its_case() -> None:
    of_routes = {Block.MEMS_ALLOWED, Block.NO_MEMORY, Block.NVLINK_DOWN, Block.NO_P2P}
    assert {expected for _, expected in ALONE.values()} | of_routes == set(Block)


DISAGREED: dict[str, tuple[Machine, Block | None]] = {
    # What the topology once called one thing, and the checks another.
    "nodev, not listed": (unlisted(nodev=True), Block.NODEV),
    "a missing node, made by NVML meanwhile": (listed(exists=False, access="ENOENT"), None),
    "a mode that nvidia-modprobe mended meanwhile": (listed(access="EACCES"), None),
    "a cgroup that let go meanwhile": (listed(access="EPERM"), None),
    "other numbers, though the cgroup denies them": (unlisted(access="EPERM", major=236), Block.STALE_NODE),
    "a node that is not there, where mounts tell of a runtime": (
        patched(unlisted(exists=False, access="ENOENT"), "process", container_signs=("tmpfs /proc/driver/nvidia",)),
        Block.NOT_IN_CONTAINER,
    ),
    "NVML is dead and the cgroup denies": (
        patched(unlisted(DEAD, access="EPERM"), "driver", nvml_failure=CRASH),
        Block.DEVICE_CGROUP,
    ),
    "NVML is dead and CUDA works": (
        patched(patched(HGX, "gpus[1]", nvml=None, unread={"nvml": DEAD}), "driver", nvml_failure=CRASH),
        None,
    ),
    "NVML cannot open it and CUDA works": (patched(HGX, "gpus[1]", nvml=None, unread={"nvml": LOST}), Block.GPU_LOST),
    "listed by both libraries, and called lost": (
        patched(HGX, "gpus[1].nvml", lost_calls={"field 91": "NVML_ERROR_GPU_IS_LOST"}),
        Block.CALLED_LOST,
    ),
    "listed, and reads all ones": (patched(HGX, "gpus[1].pci", responds=False), Block.OFF_THE_BUS),
    "another process, denied": (patched(listed(access="EPERM"), "process", pid=42), Block.DEVICE_CGROUP),
    "another process, open": (patched(HGX, "process", pid=42), None),
}


@pytest.mark.parametrize(("machine", "expected"), DISAGREED.values(), ids=DISAGREED)
def test_topology_checks_and_measurements_agree(machine: Machine, expected: Block | None) -> None:
    gpu = (machine.gpus or ())[1]
    stopped = obstacle(machine, gpu)
    assert (stopped.block if stopped else None) is expected
    assert loss(machine, gpu) is expected
    assert (route(machine, gpu, 0).kind is RouteKind.BLOCKED) is (expected is not None)
    assert (gpu_waiver(machine, gpu) is not None) is (expected is not None)
    if gpu.nvml is not None:
        assert (gpu in usable(machine, machine.gpus or ())) is (expected is None)


def test_who_cannot_look_blocks_nothing_that_nvml_lists() -> None:
    untold = Unread(reason=Reason.NO_PERMISSION, detail="only root can join the cgroup of another process")
    machine = patched(patched(HGX, "gpus[1]", node=None, unread={"node": untold}), "process", pid=42)
    assert block(machine) is Block.UNKNOWN
    assert obstacle(machine, (machine.gpus or ())[1]) is None


@pytest.mark.parametrize("through", list(Step))
def test_only_the_steps_that_count_are_asked_about(through: Step) -> None:
    for machine, expected in ALONE.values():
        whole = known(classified(machine))
        assert block(machine, through) is (expected if whole.block.step <= through else None)
        usual = classify(machine, known(machine.gpus)[1])
        assert usual is None or usual.block.step <= Step.CUDA


def test_control_nodes_are_judged_as_the_gpus_own() -> None:
    node = patched(known(known(HGX.driver).nodes)[0], "", major=195, minor=255, access="ok")
    assert device_node_obstacle(node, (195, 255)) is None
    for changes, expected in (({"major": 511}, Block.STALE_NODE), ({"kind": "fifo"}, Block.NOT_A_DEVICE)):
        assert known(device_node_obstacle(patched(node, "", **changes), (195, 255))).block is expected
