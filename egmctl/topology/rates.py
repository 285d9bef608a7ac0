"""The links of a GPU with their nominal rates in one direction, in GB/s (1e9 bytes a second), as the driver has them.

A rate that it does not report, or reports as 0 of a link that it calls active, is unknown: nothing is invented.
"""

from __future__ import annotations

from egmctl.model.machine import Gpu
from egmctl.model.route import Hop, LinkClass, LinkKind
from egmctl.topology.links import nvlinks_of


def nvlink(gpu: Gpu, links: int) -> Hop:
    """Return ``links`` bonded NVLinks of a GPU with their payload rate.

    Notes
    -----
    NVML reports an NVLink 4 or 5 link's signalling rate, 26562 or 53125 MB/s. The published payload rate is 16/17 of
    it: 18 x 26.5625 x 16/17 = 450 GB/s for H100 (900 GB/s both ways, "NVIDIA H100 Tensor Core GPU" datasheet) and
    18 x 53.125 x 16/17 = 900 GB/s for GB200 (1.8 TB/s both ways, "NVIDIA GB200 NVL72" product page). No such rule is
    published for other generations, so they stay unknown.
    """
    active = [link for link in nvlinks_of(gpu) if link.active]
    speeds = [link.speed_mb_s for link in active if link.speed_mb_s is not None]
    versions = {link.version for link in active}
    gb_s, reason = None, ""
    if not speeds or len(speeds) < len(active):
        reason = "NVML does not report the NVLink speed"
    elif min(speeds) <= 0:
        reason = f"NVML reports an active NVLink of {min(speeds)} MB/s"
    elif not versions <= set(_NVLINK_WITH_16_17):
        reason = "no published rule from signalling to payload rate for this NVLink version"
    else:
        gb_s = links * min(speeds) * 16 / 17 / 1000
    return Hop(link=LinkKind.NVLINK, nvlinks=links, nominal_gb_s=gb_s, reason=reason)


_NVLINK_WITH_16_17 = (6, 7)
"""NVML_NVLINK_VERSION_4_0 and _5_0 (nvml.h)."""


def without_speed(gpu: Gpu) -> dict[LinkKind, tuple[int, ...]]:
    """Return by kind the numbers of a GPU's links that NVML calls active at 0 MB/s: one of its two answers is wrong."""
    nvml = gpu.nvml
    nvlinks = [one.link for one in nvlinks_of(gpu) if one.active and one.speed_mb_s == 0]
    c2cs = [one.link for one in (nvml.c2c_links if nvml else None) or () if one.active and one.max_rate_mb_s == 0]
    return {kind: tuple(links) for kind, links in ((LinkKind.NVLINK, nvlinks), (LinkKind.C2C, c2cs)) if links}


def c2c(gpu: Gpu) -> Hop:
    """Return a GPU's NVLink-C2C with the sum of the rates of its active links.

    Notes
    -----
    NVML_FI_DEV_C2C_LINK_GET_MAX_BW is one direction of one link: ten links of about 45 GB/s are the 450 GB/s of a
    GH200 (900 GB/s both ways, "NVIDIA GH200 Grace Hopper Superchip" datasheet).
    """
    active = [link for link in (gpu.nvml.c2c_links if gpu.nvml else None) or () if link.active]
    rates = [link.max_rate_mb_s for link in active if link.max_rate_mb_s is not None]
    if not rates or len(rates) < len(active):
        return Hop(link=LinkKind.C2C, reason="NVML does not report the NVLink-C2C rate")
    if min(rates) <= 0:
        return Hop(link=LinkKind.C2C, reason=f"NVML reports an active NVLink-C2C of {min(rates)} MB/s")
    return Hop(link=LinkKind.C2C, nominal_gb_s=sum(rates) / 1000)


def pcie(gpu: Gpu, pci: LinkClass | None = None) -> Hop:
    """Return a GPU's PCIe link with its rate after line encoding, before packet overhead.

    The speed is the highest the GPU and its slot can negotiate, because an idle link may be throttled; the width is
    the present one, because a link that trained narrow stays narrow.

    Parameters
    ----------
    pci
        To another GPU: what of the PCIe tree is between the two.

    Notes
    -----
    Lane rate x width / 8 bits, times the encoding of the PCI Express Base Specification: 8b/10b up to 5 GT/s,
    128b/130b from 8 to 32 GT/s, 242 of 256 bytes of a flit at 64 GT/s.
    """
    links = [link for link in (gpu.nvml and gpu.nvml.link, gpu.pci and gpu.pci.link) if link]
    speed = next((link.max_speed_gt_s for link in links if link.max_speed_gt_s), None)
    width = next((width for link in links if (width := link.width or link.max_width)), None)
    if speed is None or width is None:
        return Hop(link=LinkKind.PCIE, pci=pci, reason="neither NVML nor sysfs reports the PCIe link's speed and width")
    efficiency = 8 / 10 if speed <= 5 else 128 / 130 if speed <= 32 else 242 / 256
    return Hop(link=LinkKind.PCIE, pci=pci, nominal_gb_s=speed * width * efficiency / 8)
