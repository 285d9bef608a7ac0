"""GPUDirect RDMA: network ports, kernel modules, and memory that a network card can reach."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from egmctl.doctor.check import Check, Scope, failed, needing, passed, skipped, unknown, warned
from egmctl.doctor.checks.numa import mode_evidence
from egmctl.doctor.situation import dotted, in_container, judged, kernel, needs_coherence, numbers
from egmctl.model.finding import Evidence, Finding, Guard, Remedy, on_gpus, on_nics
from egmctl.model.machine import Driver, Gpu, Machine, Nic, NicPort, System
from egmctl.model.route import LinkClass
from egmctl.topology.links import gpu_nic_link
from egmctl.topology.platform import MemoryMode, memory_mode

NO_NIC = "no InfiniBand or RoCE device"


def needs_nic(machine: Machine, scope: Scope) -> Finding | None:
    """Need a NIC."""
    if machine.nics:
        return None
    if scope.asked_purpose(Guard.RDMA):
        return unknown(f"{NO_NIC} was found, though RDMA is required (--for rdma)")
    return skipped(NO_NIC)


@needing(needs_nic)
def _ports(machine: Machine, scope: Scope) -> Iterator[Finding]:
    nics = machine.nics or ()
    told = [(nic, port) for nic in nics for port in nic.ports if port.state is not None]
    if not told:
        yield unknown("the ports' states were not read", place=on_nics(nic.name for nic in nics))
        return
    unread = [nic.name for nic in nics for port in nic.ports if port.state is None]
    unread += [nic.name for nic, port in told if port.state == "ACTIVE" and port.rate_gbit_s is None]
    if unread:
        yield unknown("the state or rate of a port was not read", place=on_nics(dict.fromkeys(unread)))
    expected = _expected(scope)
    active = [(nic, port) for nic, port in told if port.state == "ACTIVE"]
    unused: list[str] = []
    for nic, port in told:
        name = f"{nic.name}/{port.number}"
        evidence = (_port_evidence(nic, port),)
        if port.state == "ACTIVE":
            continue
        if (nic.name, port.number) in expected:
            yield failed(
                f"port {port.number} is {port.state}, and was active when the machine of --expect was recorded",
                CABLE,
                place=on_nics([nic.name]),
                evidence=evidence,
            )
        elif port.physical_state == "LinkUp" and port.link_layer == "InfiniBand":
            yield warned(
                f"port {port.number} has a link and is {port.state}: no subnet manager has configured it",
                Remedy(text="Check the subnet manager of that fabric.", command="sminfo", needs_root=True),
                place=on_nics([nic.name]),
                evidence=evidence,
            )
        elif active and scope.asked_purpose(Guard.RDMA):
            yield warned(f"port {port.number} is {port.state}", CABLE, place=on_nics([nic.name]), evidence=evidence)
        else:
            unused.append(name)
    if not active:
        tell = failed if scope.asked_purpose(Guard.RDMA) else warned
        yield tell(
            "no port is active",
            CABLE,
            place=on_nics(nic.name for nic, _ in told),
            evidence=tuple(_port_evidence(nic, port) for nic, port in told),
        )
    else:
        slow = list(_slow(active))
        for nic, port, usual in slow:
            yield warned(
                f"port {port.number} runs at {port.rate_gbit_s:g} Gbit/s, the others at {usual:g}",
                CABLE,
                place=on_nics([nic.name]),
                evidence=(_port_evidence(nic, port),),
            )
        slow_names = {nic.name for nic, _, _ in slow}
        good = dict.fromkeys(nic.name for nic, _ in active if nic.name not in (*slow_names, *unread))
        if good:
            note = f"not active: {', '.join(unused)}; --for rdma or --expect makes that a finding" if unused else ""
            yield passed("ports are active", place=on_nics(good), note=note)


CABLE = Remedy(text="Check the cable, the switch port and the port's configuration.", command="ibstat")


def _expected(scope: Scope) -> set[tuple[str, int]]:
    reference = scope.expectation.reference if scope.expectation else None
    nics = (reference.nics if reference else None) or ()
    return {(nic.name, port.number) for nic in nics for port in nic.ports if port.state == "ACTIVE"}


def _slow(active: list[tuple[Nic, NicPort]]) -> Iterator[tuple[Nic, NicPort, float]]:
    """Find ports slower than most active ports of NICs of the same kind and link layer."""
    rates: dict[object, Counter[float]] = {}
    for nic, port in active:
        if port.rate_gbit_s is not None:
            rates.setdefault(_kind(nic, port), Counter())[port.rate_gbit_s] += 1
    for nic, port in active:
        found = rates.get(_kind(nic, port))
        if port.rate_gbit_s is None or found is None:
            continue
        usual, count = max(found.items(), key=lambda item: (item[1], item[0]))
        if port.rate_gbit_s < usual and count > 1:
            yield nic, port, usual


def _kind(nic: Nic, port: NicPort) -> object:
    return nic.pci.device_id if nic.pci else None, nic.board_id, port.link_layer


def _port_evidence(nic: Nic, port: NicPort) -> Evidence:
    rate = "" if port.rate_gbit_s is None else f", {port.rate_gbit_s:g} Gbit/s"
    words = f"{port.state or '?'}, {port.physical_state or '?'}, {port.link_layer or '?'}{rate}"
    return Evidence(source=f"/sys/class/infiniband/{nic.name}/ports/{port.number}", value=words)


CLASSES = (LinkClass.PIX, LinkClass.PXB, LinkClass.PHB, LinkClass.NODE, LinkClass.SYS)
"""From near to far."""


@needing(needs_nic)
def _gdr_path(machine: Machine, scope: Scope) -> Iterator[Finding]:
    driver, system = machine.driver or Driver(), machine.system or System()
    peermem = [name for name in ("nvidia_peermem", "nv_peer_mem") if name in (system.module_versions or {})]
    answers = {gpu.cuda.attributes.get("DMA_BUF_SUPPORTED") for gpu in machine.gpus or () if gpu.cuda} - {None}
    release = kernel(machine)
    by_files = driver.module_flavour == "open" and release is not None and release >= (5, 12)
    dma_buf = 1 in answers if answers else by_files if driver.module_flavour and release else None
    evidence = (
        Evidence(
            source="/sys/module/nvidia_peermem",
            value="not read" if system.module_versions is None else "loaded" if peermem else "not loaded",
        ),
        Evidence(source="driver modules, kernel", value=f"{driver.module_flavour or '?'}, {dotted(release)}"),
        Evidence(source="CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED", value=str(max(answers, default="not asked", key=str))),
    )
    if peermem or dma_buf:
        ways = [*peermem, *(["dma-buf"] if dma_buf else [])]
        yield passed(f"NICs can reach GPU memory through {' and '.join(ways)}", evidence=evidence)
    elif dma_buf is None or system.module_versions is None:
        yield unknown("whether NICs reach GPU memory is unknown: some facts were not read", evidence=evidence)
    else:
        tell = failed if scope.asked_purpose(Guard.RDMA) else warned
        yield tell(
            "NICs cannot reach GPU memory: neither nvidia_peermem nor dma-buf",
            Remedy(
                text="Load nvidia_peermem (it wants the RDMA stack that it was built with), or use the open kernel "
                "modules on Linux 5.12 or newer.",
                command="modprobe nvidia_peermem",
                needs_root=True,
            ),
            evidence=evidence,
            cause="everything between GPUs of different nodes is then copied through host memory",
        )


@needing(needs_nic)
def _affinity(machine: Machine, scope: Scope) -> Iterator[Finding]:
    return judged(scope.gpus_of(machine), lambda gpu: _nearest(machine, gpu), on_gpus)


def _nearest(machine: Machine, gpu: Gpu) -> Finding:
    classes = {nic.name: gpu_nic_link(machine, gpu, nic).kind for nic in machine.nics or ()}
    known = [kind for kind in classes.values() if kind in CLASSES]
    if not known:
        return unknown("the distance to the NICs is unknown")
    if min(known, key=CLASSES.index) is not LinkClass.SYS:
        return passed("a NIC on the same NUMA node or nearer")
    return warned(
        "every NIC is on another NUMA node",
        Remedy(text="Use GPUs that have a NIC on their own NUMA node for traffic between nodes, or move a NIC."),
        evidence=tuple(
            Evidence(source=f"GPU{gpu.index} to {name}", value=kind.value) for name, kind in classes.items()
        ),
        cause="RDMA to this GPU crosses the CPUs' interconnect, and NCCL does not use GPUDirect at that distance",
    )


@needing(needs_nic)
def _ofed(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    versions = (machine.system or System()).module_versions
    if versions is None:
        yield unknown("the RDMA modules' versions were not read")
        return
    shown = tuple(
        Evidence(source=f"/sys/module/{name}/version", value=text or "none of its own")
        for name, text in versions.items()
    )
    own = sorted({text for name, text in versions.items() if name.startswith("mlx5") and text})
    firmware = sorted({nic.firmware for nic in machine.nics or () if nic.firmware})
    yield passed(
        f"mlx5 is DOCA-OFED's or MLNX_OFED's ({', '.join(own)})"
        if own
        else "mlx5 is the kernel's own"
        if "mlx5_core" in versions
        else "mlx5 is not loaded",
        evidence=(*shown, Evidence(source="fw_ver", value=", ".join(firmware) or "not read")),
        note="the NICs' firmware differs" if len(firmware) > 1 else "",
    )


@needing(needs_nic)
def _devices(machine: Machine, scope: Scope) -> Iterator[Finding]:
    verbs = (machine.system or System()).verbs
    if verbs is None:
        yield unknown("the nodes in /dev/infiniband were not read")
        return
    asked = scope.asked_purpose(Guard.RDMA)
    if not verbs:
        tell = failed if asked else warned
        yield tell(
            "there are NICs and no verbs devices: programs cannot use RDMA",
            Remedy(text="Load ib_uverbs.", command="modprobe ib_uverbs", needs_root=True),
            evidence=(Evidence(source="/sys/class/infiniband_verbs", value="empty"),),
        )
        return
    denied = [one for one in verbs if one.node.access != "ok"]
    evidence = tuple(
        Evidence(
            source=f"access({one.node.path})",
            value=one.node.access or "not read",
            errno=None if one.node.access in (None, "ok") else one.node.access,
        )
        for one in (denied or verbs)
    )
    if not denied:
        yield passed("the verbs devices are accessible", evidence=evidence)
        return
    container = in_container(machine)
    kinds = {one.node.access for one in denied}
    words = {
        "EPERM": "the device cgroup denies them",
        "EACCES": "mode bits or a security module deny them",
        "ENOENT": "they are not there",
    }
    names = ", ".join(dict.fromkeys(one.nic or one.node.path.rpartition("/")[2] for one in denied))
    why = "; ".join(words.get(kind or "", kind or "unknown reason") for kind in sorted(kinds, key=str))
    summary = f"verbs devices are not accessible ({names}): {why}"
    if not asked and kinds == {"ENOENT"} and not container:
        yield passed("the nodes in /dev/infiniband are missing", evidence=evidence, note=summary)
        return
    yield (failed if asked else warned)(
        summary,
        Remedy(
            text="Pass the devices into the container: docker run --device=/dev/infiniband, or the RDMA device "
            "plugin of Kubernetes."
            if container
            else "Let the resource manager allow /dev/infiniband/*, or let udev make it readable and writable for all.",
        ),
        evidence=evidence,
    )


PCIE_MAPPING_DRIVER = (570, 86, 15)
"""The first with CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE (https://github.com/ofiwg/libfabric/issues/10967)."""
CDMM_DMABUF_KERNEL = (6, 18)
"""On older kernels the driver takes the pages that nvidia_uvm made (open-gpu-kernel-modules, nv-dmabuf.c)."""
CDMM_GDRDRV = (2, 5, 1)
"""The first gdrdrv that supports CDMM (GDRCopy, CHANGELOG.md: "Support the CDMM mode")."""


@needing(needs_nic, needs_coherence())
def _coherent_dmabuf(machine: Machine, _scope: Scope) -> Iterator[Finding]:
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


@needing(needs_coherence())
def _gdrcopy(machine: Machine, _scope: Scope) -> Iterator[Finding]:
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
    Check("rdma.ports", _ports, guards=(Guard.RDMA,), sections=("nics",)),
    Check("rdma.gdr-path", _gdr_path, guards=(Guard.RDMA,), sections=("nics", "driver", "system")),
    Check("rdma.affinity", _affinity, guards=(Guard.RDMA, Guard.PERF), sections=("host", "gpus", "nics")),
    Check("rdma.ofed", _ofed, guards=(Guard.RDMA,), sections=("nics", "system")),
    Check("rdma.devices-cgroup", _devices, guards=(Guard.RDMA,), sections=("nics", "system")),
    Check("rdma.coherent-dmabuf", _coherent_dmabuf, guards=(Guard.RDMA,), sections=("gpus", "nics", "driver", "host")),
    Check("rdma.gdrcopy", _gdrcopy, guards=(Guard.RDMA, Guard.PERF), sections=("gpus", "driver", "system")),
)
