"""Nominal rates of the wires, in GB/s (1e9 bytes a second) of one direction, from what the driver reports."""

from __future__ import annotations

from dataclasses import dataclass

from egmctl.model.machine import Gpu


@dataclass(frozen=True, slots=True)
class Rate:
    """A wire's nominal rate, or why it is not known."""

    gb_s: float | None
    reason: str = ""
    """Empty where the rate is known."""


def nvlink(gpu: Gpu, links: int) -> Rate:
    """Return the payload rate of ``links`` bonded NVLinks of a GPU.

    Notes
    -----
    NVML reports an NVLink 4 or 5 link's signalling rate, 26562 or 53125 MB/s. The published payload rate is 16/17 of
    it: 18 x 26.5625 x 16/17 = 450 GB/s for H100 (900 GB/s both ways, "NVIDIA H100 Tensor Core GPU" datasheet) and
    18 x 53.125 x 16/17 = 900 GB/s for GB200 (1.8 TB/s both ways, "NVIDIA GB200 NVL72" product page). No such rule is
    published for other generations, so they stay unknown.
    """
    active = [link for link in (gpu.nvml.nvlinks if gpu.nvml else None) or () if link.active]
    speeds = [link.speed_mb_s for link in active if link.speed_mb_s is not None]
    versions = {link.version for link in active}
    if not speeds or len(speeds) < len(active):
        return Rate(None, "NVML does not report the NVLink speed")
    if not versions <= set(_NVLINK_WITH_16_17):
        return Rate(None, "no published rule from signalling to payload rate for this NVLink version")
    return Rate(links * min(speeds) * 16 / 17 / 1000)


_NVLINK_WITH_16_17 = (6, 7)
"""NVML_NVLINK_VERSION_4_0 and _5_0 (nvml.h)."""


def c2c(gpu: Gpu) -> Rate:
    """Return the sum of the rates of a GPU's active NVLink-C2C links.

    Notes
    -----
    NVML_FI_DEV_C2C_LINK_GET_MAX_BW is one direction of one link: ten links of about 45 GB/s are the 450 GB/s of a
    GH200 (900 GB/s both ways, "NVIDIA GH200 Grace Hopper Superchip" datasheet).
    """
    active = [link for link in (gpu.nvml.c2c_links if gpu.nvml else None) or () if link.active]
    rates = [link.max_rate_mb_s for link in active if link.max_rate_mb_s is not None]
    if not rates or len(rates) < len(active):
        return Rate(None, "NVML does not report the NVLink-C2C rate")
    return Rate(sum(rates) / 1000)


def pcie(gpu: Gpu) -> Rate:
    """Return the rate of a GPU's PCIe link after line encoding, before packet overhead.

    The speed is the highest the GPU and its slot can negotiate, because an idle link may be throttled; the width is
    the present one, because a link that trained narrow stays narrow.

    Notes
    -----
    Lane rate x width / 8 bits, times the encoding of the PCI Express Base Specification: 8b/10b up to 5 GT/s,
    128b/130b from 8 to 32 GT/s, 242 of 256 bytes of a flit at 64 GT/s.
    """
    links = [link for link in (gpu.nvml and gpu.nvml.link, gpu.pci and gpu.pci.link) if link]
    speed = next((link.max_speed_gt_s for link in links if link.max_speed_gt_s), None)
    width = next((width for link in links if (width := link.width or link.max_width)), None)
    if speed is None or width is None:
        return Rate(None, "neither NVML nor sysfs reports the PCIe link's speed and width")
    efficiency = 8 / 10 if speed <= 5 else 128 / 130 if speed <= 32 else 242 / 256
    return Rate(speed * width * efficiency / 8)
