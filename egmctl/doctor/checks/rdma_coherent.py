"""The memory of GPUs with NVLink-C2C, as NICs and CPUs reach it: dma-buf and GDRCopy, in NUMA mode and under CDMM."""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.doctor.check import Check, passed, skipped, unknown, warned
from egmctl.doctor.checks.numa import mode_evidence
from egmctl.doctor.checks.rdma import no_nics
from egmctl.doctor.scope import Scope
from egmctl.doctor.situation import NOT_COHERENT, coherent
from egmctl.doctor.versions import dotted, kernel, numbers
from egmctl.model.finding import Evidence, Finding, Guard, Remedy
from egmctl.model.machine import Driver, Machine, System
from egmctl.topology.memory_mode import MemoryMode, memory_mode

PCIE_MAPPING_DRIVER = (570, 86, 15)
"""The first with CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE (https://github.com/ofiwg/libfabric/issues/10967)."""
CDMM_DMABUF_KERNEL = (6, 18)
"""On older kernels the driver takes the pages that nvidia_uvm made (open-gpu-kernel-modules, nv-dmabuf.c)."""
CDMM_GDRDRV = (2, 5, 1)
"""The first gdrdrv that supports CDMM (GDRCopy, CHANGELOG.md: "Support the CDMM mode")."""


def _coherent_dmabuf(machine: Machine, scope: Scope) -> Iterator[Finding]:
    if nothing := no_nics(machine, scope):
        yield nothing
        return
    if not coherent(machine):
        yield skipped(NOT_COHERENT)
        return
    driver = machine.driver or Driver()
    version, release = numbers(driver.driver_version or driver.module_version), kernel(machine)
    evidence = (
        Evidence(source="driver", value=dotted(version)),
        Evidence(source="kernel", value=dotted(release)),
        *mode_evidence(machine),
    )
    if version is None:
        yield unknown("the driver's version was not read", evidence=evidence)
    elif version < PCIE_MAPPING_DRIVER:
        yield warned(
            "this driver has no dma-buf mapping of GPU memory over PCIe, which NICs on PCIe need",
            Remedy(text="Use driver 570.86.15 or newer, and CUDA 12.8 or newer.", needs_root=True, needs_reboot=True),
            evidence=evidence,
            cause="CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE came with them "
            "(https://github.com/ofiwg/libfabric/issues/10967)",
        )
    elif release is None or release < CDMM_DMABUF_KERNEL:
        yield _by_pages(machine, release is None, evidence)
    else:
        yield passed("dma-buf of GPU memory can be mapped over PCIe", evidence=evidence)


def _by_pages(machine: Machine, unread_kernel: bool, evidence: tuple[Evidence, ...]) -> Finding:
    """Judge a kernel on which dma-buf needs pages: those of the kernel in NUMA mode, nvidia_uvm's under CDMM."""
    mode, modules = memory_mode(machine), (machine.driver or Driver()).modules
    if mode is MemoryMode.NUMA:
        return passed("dma-buf of GPU memory can be mapped over PCIe", evidence=evidence)
    if mode is MemoryMode.UNKNOWN:
        return unknown(
            "whether GPU memory has the pages that dma-buf needs: the driver's parameters were not read",
            evidence=evidence,
        )
    if unread_kernel:
        return unknown("whether this kernel can make dma-bufs under CDMM: its version was not read", evidence=evidence)
    if modules is None:
        return unknown("whether nvidia_uvm is loaded, whose pages dma-buf needs under CDMM", evidence=evidence)
    evidence = (*evidence, Evidence(source="/sys/module", value=" ".join(modules) or "none of NVIDIA's"))
    if "nvidia_uvm" not in modules:
        return warned(
            "under CDMM, dma-buf of GPU memory needs nvidia_uvm's pages or Linux 6.18, and nvidia_uvm is not loaded",
            Remedy(text="Load nvidia_uvm at boot, or boot Linux 6.18.", command="modprobe nvidia_uvm", needs_root=True),
            evidence=evidence,
            cause="open-gpu-kernel-modules 595.45.04, nv-dmabuf.c: 'Failed to get a reference on dev_pagemap in "
            "CDMM(driver) mode'; read in the source, not tried",
        )
    return passed(
        "dma-buf of GPU memory can be mapped over PCIe",
        evidence=evidence,
        note="under CDMM and before Linux 6.18 this goes by nvidia_uvm's pages (read in the driver's source, not "
        "measured)",
    )


def _gdrcopy(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    if not coherent(machine):
        yield skipped(NOT_COHERENT)
        return
    mode = memory_mode(machine)
    evidence = mode_evidence(machine)
    if mode is MemoryMode.UNKNOWN:
        yield unknown("how the GPUs' memory is managed: the driver's parameters were not read", evidence=evidence)
        return
    if mode is MemoryMode.NUMA:
        yield passed("CPUs load and store GPU memory as a NUMA node, without GDRCopy", evidence=evidence)
        return
    versions = (machine.system or System()).module_versions
    if versions is None:
        yield unknown("whether gdrdrv is loaded is unknown: /sys/module was not read", evidence=evidence)
        return
    loaded = versions.get("gdrdrv")
    evidence = (*evidence, Evidence(source="/sys/module/gdrdrv/version", value=_shown(loaded)))
    version = numbers(loaded)
    if loaded is None:
        yield passed(
            "gdrdrv is not loaded",
            evidence=evidence,
            note="under CDMM a CPU cannot load or store GPU memory without GDRCopy: gdrdrv 2.5.1 or newer, or GDRCopy "
            "2.6 on a CUDA 13.3 driver, which needs no module",
        )
    elif version is None:
        yield unknown("the version of gdrdrv is unknown: the module does not report it", evidence=evidence)
    elif version < CDMM_GDRDRV:
        yield warned(
            f"gdrdrv {loaded} does not support CDMM: GDRCopy cannot map GPU memory",
            Remedy(text="Install gdrdrv 2.5.1 or newer and reload it.", needs_root=True),
            evidence=evidence,
            cause="GDRCopy, CHANGELOG.md: 2.5.1 is the first to 'Support the CDMM mode'",
        )
    else:
        yield passed(f"gdrdrv {loaded} supports CDMM", evidence=evidence)


def _shown(loaded: str | None) -> str:
    return "not loaded" if loaded is None else loaded or "no version"


CHECKS = (
    Check(
        id="rdma.coherent-dmabuf",
        title="dma-buf works for coherent GPU memory",
        guards=(Guard.RDMA,),
        sections=("gpus", "nics", "driver", "host"),
        judge=_coherent_dmabuf,
        why="On Grace a NIC on PCIe needs its mapping over PCIe, which CUDA 12.8 and driver 570.86.15 brought "
        "(https://github.com/ofiwg/libfabric/issues/10967). Under CDMM a kernel before 6.18 needs nvidia_uvm's pages "
        "for it (open-gpu-kernel-modules, nv-dmabuf.c).",
        read="Versions of driver and kernel, CoherentGPUMemoryMode, EnableUserNUMAManagement, and whether nvidia_uvm "
        "is loaded. Nothing is exported: the driver's source is the rule, not a trial.",
        fix="Update the driver; under CDMM load nvidia_uvm or update the kernel.",
    ),
    Check(
        id="rdma.gdrcopy",
        title="GDRCopy supports the GPUs' memory mode",
        guards=(Guard.RDMA, Guard.PERF),
        sections=("gpus", "driver", "system"),
        judge=_gdrcopy,
        why="Under CDMM GPU memory is no NUMA node, and a CPU reaches it through GDRCopy only "
        "(https://github.com/NVIDIA/TensorRT-LLM/pull/9166). Its kernel module supports that mode from 2.5.1 on "
        "(GDRCopy, CHANGELOG.md).",
        read="The driver's module parameters, and the version in /sys/module/gdrdrv. GDRCopy 2.6 with a CUDA 13.3 "
        "driver works without the module, which cannot be seen from here.",
        fix="Install gdrdrv 2.5.1 or newer.",
    ),
)
