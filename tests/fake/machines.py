"""Small machines for the fake driver's own tests."""

from __future__ import annotations

from dataclasses import replace

from egmctl.model.machine import DeviceNode, Driver, Gpu, Machine
from tests.fake.node import load


def nvl4() -> Machine:
    """Return two Grace CPUs (NUMA nodes 0 and 1) with two GPUs each, all joined by NVLink; modelled."""
    return load("gb200-nvl4")


def with_imex_channel(machine: Machine) -> Machine:
    """Return the machine with one IMEX channel that this process may use."""
    channel = DeviceNode(path="/dev/nvidia-caps-imex-channels/channel0", exists=True, access="ok")
    return replace(machine, driver=replace(_driver(machine), imex_channels=(channel,)))


def with_cuda_version(machine: Machine, version: int) -> Machine:
    """Return the machine with an older or newer driver."""
    return replace(machine, driver=replace(_driver(machine), cuda_driver_version=version))


def with_access(machine: Machine, path: str, access: str) -> Machine:
    """Return the machine as it is when access(2) says ``access`` of one device node."""
    node = DeviceNode(path=path, exists=access != "ENOENT", access=access)
    if path == "/dev/nvidiactl":
        return replace(machine, driver=replace(_driver(machine), nodes=(node,)))
    gpus = [replace(gpu, node=node) if _is_at(gpu, path) else gpu for gpu in machine.gpus or ()]
    return replace(machine, gpus=tuple(gpus))


def _is_at(gpu: Gpu, path: str) -> bool:
    return gpu.node is not None and gpu.node.path == path


def _driver(machine: Machine) -> Driver:
    assert machine.driver is not None
    return machine.driver
