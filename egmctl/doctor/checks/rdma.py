"""Checks of GPUDirect RDMA: NIC ports, kernel modules, and access of NICs to GPU memory."""

from __future__ import annotations

from collections import Counter

from egmctl.doctor.check import Scope, Verdicts, check, end, known, skip
from egmctl.doctor.checks.numa import mode_evidence
from egmctl.doctor.findings import fact, failed, noted, passed, skipped, unknown, unreported, warned
from egmctl.doctor.restrictions import node_evidence
from egmctl.doctor.situation import (
    check_gpus,
    dotted,
    in_container,
    kernel,
    need_c2c,
    numbers,
    peer_memory_modules,
    peer_memory_registered,
)
from egmctl.model.finding import Evidence, Guard, on_nics
from egmctl.model.gpu import Gpu
from egmctl.model.host import Driver, Nic, NicPort, System
from egmctl.model.machine import Machine
from egmctl.model.remedy import Need, as_root, todo
from egmctl.model.route import LinkClass
from egmctl.topology.access import gpu_memory_bytes, memory_limit, nvml_failure, without_nvml
from egmctl.topology.links import device_link
from egmctl.topology.platform import C2c, MemoryMode, c2c, memory_mode
from egmctl.units import format_size, grouped, several

NO_NIC = "no InfiniBand or RoCE device"


_NO_NIC_HERE = todo("Look for NICs that the kernel has no driver for, or use another node.", look="lspci -d 15b3:")
CABLE = todo("Check the cable, the switch port and the port's configuration.", look="ibstat")


_NO_PARTNER = todo(
    "Check the cable and the switch port, or keep programs off this NIC (NCCL_IB_HCA=^NAME): they hang on it.",
    look="ibstat",
)


def _nics(machine: Machine) -> tuple[Nic, ...]:
    """Return the machine's NICs; end the check if there are none."""
    return machine.nics or skip(NO_NIC)


@check("rdma.ports", Guard.RDMA, sections=("nics",))
def _ports(machine: Machine, scope: Scope) -> Verdicts:
    wanted = scope.expectation.nics or 0
    if len(machine.nics or ()) < wanted:
        yield failed(f"{len(machine.nics or ())} of the {several(wanted, 'expected NIC')} are here", _NO_NIC_HERE)
        if not machine.nics:
            return
    nics = machine.nics or end(skipped(NO_NIC, remedy=_NO_NIC_HERE, blocks=(Guard.RDMA,)))
    ports = [(nic, port) for nic in nics for port in nic.ports if port.state is not None]
    active = [(nic, port) for nic, port in ports if port.state == "ACTIVE"]
    unread = {nic.name for nic in nics for port in nic.ports if port.state is None}
    unread |= {nic.name for nic, port in active if port.rate_gbit_s is None}
    if not ports:
        end(unknown("the ports' states were not read", on_nics(nic.name for nic in nics)))
    if unread:
        yield unknown("the state or rate of a port was not read", on_nics(sorted(unread)))
    expected, usual = _expected(scope), _usual_rates(active)
    kinds, cards = {_kind(nic, port) for nic, port in active}, {_card(nic) for nic, _ in active}
    good, unused = [], []
    for nic, port in ports:
        place, evidence = on_nics([nic.name]), (_port_evidence(nic, port),)
        rate = usual.get(_kind(nic, port), 0)
        inactive = f"port {port.number} is {port.state}"
        if port.state == "ACTIVE" and (port.rate_gbit_s is None or port.rate_gbit_s >= rate):
            good.append(nic.name)
        elif port.state == "ACTIVE":
            slow = f"port {port.number} runs at {port.rate_gbit_s:g} Gbit/s, the others at {rate:g}"
            yield warned(slow, CABLE, place, evidence=evidence)
        elif (nic.name, port.number) in expected:
            inactive_now = f"{inactive}, and was active when the machine of --expect was recorded"
            yield failed(inactive_now, CABLE, place, evidence=evidence)
        elif port.physical_state == "LinkUp" and port.link_layer == "InfiniBand":
            remedy = as_root("Check the subnet manager of that fabric: it has not configured the port.", look="sminfo")
            yield warned(f"{inactive}, though its link is up", remedy, place, evidence=evidence)
        elif port.physical_state == "Polling" and _kind(nic, port) in kinds and _card(nic) not in cards:
            text = f"{inactive} and polls: it has no partner, while ports of its kind are active"
            yield noted(text, place, remedy=_NO_PARTNER, evidence=evidence)
        else:
            unused.append(f"{nic.name}/{port.number}")
    if not active:
        yield from (_port_evidence(nic, port) for nic, port in ports)
        place = on_nics(dict.fromkeys(nic.name for nic, _ in ports))
        yield warned("no port is active", CABLE, place, blocks=(Guard.RDMA,))
    elif names := [name for name in dict.fromkeys(good) if name not in unread]:
        note = f"not active: {', '.join(unused)}; --expect makes that a fault" if unused else ""
        yield passed("ports are active", on_nics(names), note=note)


def _expected(scope: Scope) -> set[tuple[str, int]]:
    reference = scope.expectation.reference
    nics = (reference.nics if reference else None) or ()
    return {(nic.name, port.number) for nic in nics for port in nic.ports if port.state == "ACTIVE"}


def _usual_rates(active: list[tuple[Nic, NicPort]]) -> dict[object, float]:
    """Return the most common rate in Gbit/s of active ports, by kind of NIC and link layer, if at least two have it."""
    rates = grouped((_kind(nic, port), port.rate_gbit_s) for nic, port in active if port.rate_gbit_s is not None)
    usual = {kind: max(Counter(same).items(), key=lambda item: (item[1], item[0])) for kind, same in rates.items()}
    return {kind: rate for kind, (rate, count) in usual.items() if count > 1}


def _kind(nic: Nic, port: NicPort) -> object:
    return nic.pci.device_id if nic.pci else None, nic.board_id, port.link_layer


def _card(nic: Nic) -> str:
    """Return the card of a NIC, whose ports may be functions of their own: the second one is often left unplugged."""
    return nic.name if nic.pci is None else nic.pci.bus_id.partition(".")[0]


def _port_evidence(nic: Nic, port: NicPort) -> Evidence:
    rate = "" if port.rate_gbit_s is None else f", {port.rate_gbit_s:g} Gbit/s"
    text = f"{port.state or '?'}, {port.physical_state or '?'}, {port.link_layer or '?'}{rate}"
    return fact(f"/sys/class/infiniband/{nic.name}/ports/{port.number}", text)


COPIED = "everything between GPUs of different nodes is then copied through host memory"
REBUILD_PEERMEM = as_root(
    "Install the driver after DOCA-OFED, so that nvidia_peermem is built with its functions for peer memory, or use "
    "dma-buf (open kernel modules).",
    Need.DRIVER_RELOAD,
    look="dmesg | grep -i peermem",
)


@check("rdma.gdr-path", Guard.RDMA, sections=("nics", "driver", "system"))
def _gdr_path(machine: Machine, _scope: Scope) -> Verdicts:
    _nics(machine)
    driver, modules, release = machine.driver or Driver(), (machine.system or System()).module_versions, kernel(machine)
    peermem = peer_memory_modules(machine)
    answers = {gpu.cuda.attributes.get("DMA_BUF_SUPPORTED") for gpu in machine.gpus or () if gpu.cuda} - {None}
    by_versions = driver.module_flavour == "open" and release >= (5, 12) if driver.module_flavour and release else None
    dma_buf = 1 in answers if answers else by_versions
    registered = peer_memory_registered(machine)
    clients = (machine.system or System()).peer_memory_clients
    loaded = "loaded" if peermem else "not loaded"
    yield fact("/sys/module/nvidia_peermem", None if modules is None else loaded)
    yield fact("/sys/kernel/mm/memory_peers", None if clients is None else ", ".join(clients) or "none")
    yield fact("driver modules, kernel", f"{driver.module_flavour or '?'}, {dotted(release)}")
    yield fact("CONFIG_PCI_P2PDMA", ((machine.system or System()).kernel_configuration or {}).get("PCI_P2PDMA"))
    yield fact("CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED", max(answers, default="not asked", key=str))
    paths = list(peermem) if registered else []
    if dma_buf:
        paths.append("dma-buf")
    if peermem and registered is False:
        if paths:
            text = (
                f"{peermem[0]} is loaded and not registered: programs that do not use dma-buf copy through host memory"
            )
            yield noted(text, remedy=REBUILD_PEERMEM)
        elif dma_buf is None:
            text = f"{peermem[0]} is loaded and not registered; whether NICs reach GPU memory by dma-buf is unknown"
            yield unknown(text, remedy=REBUILD_PEERMEM)
        else:
            text = f"NICs cannot reach GPU memory: {peermem[0]} is loaded and not registered, and there is no dma-buf"
            yield warned(text, REBUILD_PEERMEM, cause=COPIED, blocks=(Guard.RDMA,))
    if paths:
        yield passed(f"NICs can reach GPU memory through {' and '.join(paths)}")
    elif peermem and registered is None:
        yield unknown(f"whether {peermem[0]} is registered with the RDMA stack: the stack lists no clients")
    elif peermem:
        return
    elif dma_buf is None or modules is None:
        yield unknown("whether NICs reach GPU memory is unknown: some facts were not read")
    else:
        remedy = as_root(
            "Load nvidia_peermem, which has to be built against the symbols of the DOCA-OFED in use (install the "
            "driver after it), or use open modules on Linux 5.12 or newer.",
            run="modprobe nvidia_peermem",
        )
        no_path = "NICs cannot reach GPU memory: neither nvidia_peermem nor dma-buf"
        yield warned(no_path, remedy, cause=COPIED, blocks=(Guard.RDMA,))


def _gpus(machine: Machine, scope: Scope) -> tuple[Gpu, ...]:
    return scope.gpus_of(machine) if _nics(machine) else ()


@check_gpus("rdma.affinity", Guard.RDMA, Guard.PERF, sections=("host", "gpus", "nics"), gpus_of=_gpus)
def _affinity(machine: Machine, _scope: Scope, gpu: Gpu) -> Verdicts:
    classes = {nic.name: device_link(machine, gpu, nic).kind for nic in machine.nics or ()}
    near = (LinkClass.PIX, LinkClass.PXB, LinkClass.PHB, LinkClass.NODE)
    if any(kind in near for kind in classes.values()):
        yield passed("a NIC on the same NUMA node or nearer")
    elif LinkClass.SYS not in classes.values():
        yield unknown("the distance to the NICs is unknown")
    else:
        yield from (fact(f"GPU{gpu.index} to {name}", kind.value) for name, kind in classes.items())
        remedy = todo("Use GPUs that have a NIC on their own NUMA node for traffic between nodes, or move a NIC.")
        cause = "RDMA crosses the CPUs' interconnect, and NCCL does not use GPUDirect at that distance"
        yield warned("every NIC is on another NUMA node", remedy, cause=cause)


@check_gpus("rdma.bar1", Guard.RDMA, sections=("gpus", "nics"), gpus_of=_gpus)
def _bar1(machine: Machine, _scope: Scope, gpu: Gpu) -> Verdicts:
    if gpu.nvml is None and nvml_failure(machine):
        end(unknown(without_nvml(machine, "these GPUs")))
    nvml, link = gpu.nvml or skip("NVML does not list these GPUs"), c2c(machine, gpu)
    bar1, memory = nvml.bar1_total_bytes, gpu_memory_bytes(machine, gpu)
    yield fact("nvmlDeviceGetBAR1MemoryInfo", None if bar1 is None else format_size(bar1))
    if link in (C2c.UP, C2c.DOWN):
        skip("these GPUs have NVLink-C2C")
    elif bar1 is None:
        yield unreported(nvml, "bar1_total_bytes", "BAR1", "these GPUs have no BAR1")
    elif memory is None and memory_limit(machine, gpu) is not None:
        yield unknown("whether BAR1 is as large as the GPU's memory: a limit hides its size")
    elif memory is None:
        yield unreported(nvml, "memory_total_bytes", "memory", "these GPUs have no memory of their own")
    elif bar1 >= memory:
        yield passed("BAR1 is as large as the GPU's memory")
    elif link is C2c.UNKNOWN:
        yield unknown("BAR1 is smaller than the GPU's memory; whether NVLink-C2C makes up for that was not read")
    else:
        remedy = as_root("Turn on decoding above 4 GiB and resizable BAR in the firmware setup.", Need.REBOOT)
        sizes = f"{format_size(bar1)} of the GPU's {format_size(memory)}"
        text = f"NICs can have at most {sizes} registered at once: BAR1 has no more"
        yield noted(text, remedy=remedy)


@check("rdma.ofed", Guard.RDMA, sections=("nics", "system"))
def _ofed(machine: Machine, _scope: Scope) -> Verdicts:
    nics = _nics(machine)
    versions = known((machine.system or System()).module_versions, "the RDMA modules' versions were not read")
    own = sorted({text for name, text in versions.items() if name.startswith("mlx5") and text})
    firmware = sorted({nic.firmware for nic in nics if nic.firmware})
    yield from (fact(f"/sys/module/{name}/version", text or "none of its own") for name, text in versions.items())
    yield fact("fw_ver", ", ".join(firmware) or "not read")
    summary = "mlx5 is the kernel's own" if "mlx5_core" in versions else "mlx5 is not loaded"
    if own:
        summary = f"mlx5 is DOCA-OFED's or MLNX_OFED's ({', '.join(own)})"
    yield passed(summary, note="the NICs' firmware differs" if len(firmware) > 1 else "")


@check("rdma.devices-cgroup", Guard.RDMA, sections=("nics", "system"))
def _devices(machine: Machine, _scope: Scope) -> Verdicts:
    _nics(machine)
    verbs = known((machine.system or System()).verbs, "the nodes in /dev/infiniband were not read")
    container = in_container(machine)
    denied = [device for device in verbs if device.node.access != "ok"]
    yield from node_evidence(device.node for device in denied or verbs)
    if not verbs:
        no_verbs = "there are NICs and no verbs devices: programs cannot use RDMA"
        yield warned(no_verbs, as_root("Load ib_uverbs.", run="modprobe ib_uverbs"), blocks=(Guard.RDMA,))
        return
    if not denied:
        yield passed("the verbs devices are accessible")
        return
    meanings = {
        "EPERM": "the device cgroup denies them",
        "EACCES": "mode bits or a security module deny them",
        "ENOENT": "they are not there",
    }
    errors = sorted({device.node.access or "" for device in denied})
    names = ", ".join(dict.fromkeys(device.nic or device.node.path.rpartition("/")[2] for device in denied))
    reasons = "; ".join(meanings.get(error, error or "unknown reason") for error in errors)
    summary = f"verbs devices are not accessible ({names}): {reasons}"
    remedy = todo("Let the resource manager allow /dev/infiniband/*, or let udev make it readable and writable.")
    if container:
        devices = "docker run --device=/dev/infiniband, or the RDMA device plugin of Kubernetes"
        remedy = todo(f"Pass the devices into the container: {devices}.")
    if errors == ["ENOENT"] and not container:
        yield passed(summary, remedy=remedy, note="--for rdma makes that a fault", blocks=(Guard.RDMA,))
    else:
        yield warned(summary, remedy, blocks=(Guard.RDMA,))


PCIE_MAPPING_DRIVER = (570, 86, 15)
"""The first driver with CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE
(https://github.com/ofiwg/libfabric/issues/10967)."""
CDMM_DMABUF_KERNEL = (6, 18)
"""The first kernel on which dma-buf works under CDMM without pages of nvidia_uvm (open-gpu-kernel-modules,
nv-dmabuf.c)."""
CDMM_GDRDRV = (2, 5, 1)
"""The first gdrdrv that supports CDMM (GDRCopy, CHANGELOG.md: "Support the CDMM mode")."""


@check("rdma.coherent-dmabuf", Guard.RDMA, sections=("gpus", "nics", "driver", "host"))
def _coherent_dmabuf(machine: Machine, _scope: Scope) -> Verdicts:
    _nics(machine)
    need_c2c(machine)
    driver, release, mode = machine.driver or Driver(), kernel(machine), memory_mode(machine)
    version = numbers(driver.driver_version or driver.module_version)
    yield fact("driver", dotted(version))
    yield fact("kernel", dotted(release))
    yield from mode_evidence(machine)
    if known(version, "the driver's version was not read") < PCIE_MAPPING_DRIVER:
        remedy = as_root("Use driver 570.86.15 or newer, and CUDA 12.8 or newer.", Need.REBOOT)
        cause = "it came with CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE"
        no_mapping = "this driver has no dma-buf mapping of GPU memory over PCIe, which NICs on PCIe need"
        yield warned(no_mapping, remedy, cause=cause)
        return
    can_map = "dma-buf of GPU memory can be mapped over PCIe"
    if mode is MemoryMode.NUMA or (release is not None and release >= CDMM_DMABUF_KERNEL):
        yield passed(can_map)
        return
    # Older kernels need pages for dma-buf: their own in NUMA mode, those of nvidia_uvm under CDMM.
    if mode is MemoryMode.UNKNOWN:
        end(unknown("whether GPU memory has the pages that dma-buf needs: the driver's parameters were not read"))
    known(release, "whether this kernel can make dma-bufs under CDMM: its version was not read")
    modules = known(driver.modules, "whether nvidia_uvm is loaded, whose pages dma-buf needs under CDMM")
    yield fact("/sys/module", " ".join(modules) or "none of NVIDIA's")
    if "nvidia_uvm" in modules:
        note = "under CDMM and before Linux 6.18 by nvidia_uvm's pages (read in the driver's source, not measured)"
        yield passed(can_map, note=note)
    else:
        yield warned(
            "under CDMM, dma-buf of GPU memory needs nvidia_uvm's pages or Linux 6.18, and nvidia_uvm is not loaded",
            as_root("Load nvidia_uvm, also at boot.", run="modprobe nvidia_uvm"),
            cause="read in the driver's source (nv-dmabuf.c of open-gpu-kernel-modules 595.45.04), not measured",
        )


@check("rdma.gdrcopy", Guard.RDMA, Guard.PERF, sections=("gpus", "driver", "system"))
def _gdrcopy(machine: Machine, _scope: Scope) -> Verdicts:
    need_c2c(machine)
    mode = memory_mode(machine)
    yield from mode_evidence(machine)
    if mode is MemoryMode.UNKNOWN:
        end(unknown("how the GPUs' memory is managed: the driver's parameters were not read"))
    if mode is MemoryMode.NUMA:
        end(passed("CPUs load and store GPU memory as a NUMA node, without GDRCopy"))
    modules = known((machine.system or System()).module_versions, "whether gdrdrv is loaded: /sys/module was not read")
    loaded = modules.get("gdrdrv")
    yield fact("/sys/module/gdrdrv/version", "not loaded" if loaded is None else loaded or "no version")
    if loaded is None:
        note = "under CDMM a CPU reaches GPU memory by gdrdrv 2.5.1, or GDRCopy 2.6 on a CUDA 13.3 driver, only"
        yield passed("gdrdrv is not loaded", note=note)
    elif known(numbers(loaded), "the version of gdrdrv is unknown: the module does not report it") < CDMM_GDRDRV:
        remedy = as_root("Install gdrdrv 2.5.1 or newer and reload it.")
        yield warned(f"gdrdrv {loaded} does not support CDMM: GDRCopy cannot map GPU memory", remedy)
    else:
        yield passed(f"gdrdrv {loaded} supports CDMM")
