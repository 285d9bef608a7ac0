"""The fake driver's link model: bytes a second between each GPU and each place, from a machine's nominal values.

Nominal means what the links carry at most: it is made so that tests can tell one link from another, and is no
prediction. Where a machine does not say, invented values stand in.
"""

from __future__ import annotations

from egmctl.model.gpu import Gpu
from egmctl.model.machine import Machine

NVLINK_PAYLOAD = 16 / 17
"""Of the rate that NVML reports (26562 MB/s on NVLink 4), the part that 18 links' published 450 GB/s are."""

_LOCAL_STAND_IN = 3e12
_PCIE_STAND_IN = 32.0, 16
_PCIE_CODING = 128 / 130


def link_rates(machine: Machine) -> dict[str, float]:
    """Return the rates under the keys of the answers file: ``gpu.0.rate.gpu.1``, ``gpu.0.rate.numa.1``, ``.host``.

    And which links there are: ``gpu.0.nvlink.gpu.1``, ``gpu.0.c2c``; ``gpu.0.egm.node`` is where a GPU can own EGM.
    """
    gpus = machine.gpus or ()
    rates = {}
    for i, gpu in enumerate(gpus):
        rates[f"gpu.{i}.rate.host"] = c2c_rate(gpu) or pcie_rate(gpu)
        rates[f"gpu.{i}.rate.gpu.{i}"] = local_rate(gpu)
        for j, peer in enumerate(gpus):
            if i != j:
                nvlink = nvlink_rate(machine, gpu, peer)
                rates[f"gpu.{i}.rate.gpu.{j}"] = nvlink or min(pcie_rate(gpu), pcie_rate(peer))
                if nvlink:
                    rates[f"gpu.{i}.nvlink.gpu.{j}"] = 1
        if c2c_rate(gpu):
            rates[f"gpu.{i}.c2c"] = 1
            if gpu.nvml is not None and gpu.nvml.egm_capable and gpu.host_numa_id is not None:
                rates[f"gpu.{i}.egm.node"] = gpu.host_numa_id
        for node in (machine.host and machine.host.numa_nodes) or ():
            rates[f"gpu.{i}.rate.numa.{node.id}"] = numa_rate(machine, gpu, node.id)
    return rates


def local_rate(gpu: Gpu) -> float:
    """Return the rate of the GPU's own memory, from its clock (two transfers a cycle) and its width."""
    attributes = {} if gpu.cuda is None else gpu.cuda.attributes
    clock_khz, bits = attributes.get("MEMORY_CLOCK_RATE"), attributes.get("GLOBAL_MEMORY_BUS_WIDTH")
    return clock_khz * 1e3 * 2 * bits / 8 if clock_khz and bits else _LOCAL_STAND_IN


def nvlink_rate(machine: Machine, gpu: Gpu, peer: Gpu) -> float:
    """Return the rate of the links that join two GPUs, 0 without links."""
    pair = machine.pair(gpu.bus_id, peer.bus_id)
    links = [] if gpu.nvml is None else [link for link in gpu.nvml.nvlinks or () if link.active and link.speed_mb_s]
    if pair is None or not pair.nvlink_count or not links:
        return 0
    return pair.nvlink_count * (links[0].speed_mb_s or 0) * 1e6 * NVLINK_PAYLOAD


def c2c_rate(gpu: Gpu) -> float:
    """Return the rate of the links to the GPU's own CPU, 0 without links."""
    links = () if gpu.nvml is None else gpu.nvml.c2c_links or ()
    return sum((link.max_rate_mb_s or 0) * 1e6 for link in links if link.active)


def pcie_rate(gpu: Gpu) -> float:
    """Return the rate of the GPU's PCIe link at its best, before packet overhead."""
    link = (gpu.pci and gpu.pci.link) or (gpu.nvml and gpu.nvml.link) or None
    speed, width = _PCIE_STAND_IN
    if link is not None:
        speed, width = link.max_speed_gt_s or speed, link.max_width or width
    return speed * 1e9 * width / 8 * _PCIE_CODING


def numa_rate(machine: Machine, gpu: Gpu, node: int) -> float:
    """Return the rate to a NUMA node: by C2C to the GPU's own, by NVLink and another GPU's C2C, else by PCIe."""
    if gpu.host_numa_id == node and c2c_rate(gpu):
        return c2c_rate(gpu)
    routes = [
        min(nvlink_rate(machine, gpu, owner), c2c_rate(owner))
        for owner in machine.gpus or ()
        if owner is not gpu and owner.host_numa_id == node and owner.nvml is not None and owner.nvml.egm_capable
    ]
    return max(routes, default=0) or pcie_rate(gpu)
