"""GPUDirect RDMA: the way from NIC to GPU memory, device nodes, and where NICs sit."""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.doctor.check import Check, failed, passed, skipped, unknown, warned
from egmctl.doctor.scope import Scope
from egmctl.doctor.situation import in_container
from egmctl.doctor.versions import dotted, kernel
from egmctl.model.finding import Evidence, Finding, Guard, Remedy, on_gpus
from egmctl.model.machine import Driver, Gpu, Machine, System
from egmctl.model.route import LinkClass
from egmctl.topology.links import gpu_nic_link

NO_NIC = "no InfiniBand or RoCE device"
CLASSES = (LinkClass.PIX, LinkClass.PXB, LinkClass.PHB, LinkClass.NODE, LinkClass.SYS)
"""From near to far."""


def no_nics(machine: Machine, scope: Scope) -> Finding | None:
    """Return the finding where there is no NIC to judge."""
    if machine.nics:
        return None
    if scope.asked_purpose(Guard.RDMA):
        return unknown(f"{NO_NIC} was found, though RDMA is required (--for rdma)")
    return skipped(NO_NIC)


def _gdr_path(machine: Machine, scope: Scope) -> Iterator[Finding]:
    if nothing := no_nics(machine, scope):
        yield nothing
        return
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


def _affinity(machine: Machine, scope: Scope) -> Iterator[Finding]:
    if nothing := no_nics(machine, scope):
        yield nothing
        return
    near: list[Gpu] = []
    for gpu in scope.gpus_of(machine):
        classes = {nic.name: gpu_nic_link(machine, gpu, nic).kind for nic in machine.nics or ()}
        known = [kind for kind in classes.values() if kind in CLASSES]
        if not known:
            yield unknown("the distance to the NICs is unknown", place=on_gpus([gpu]))
        elif min(known, key=CLASSES.index) is LinkClass.SYS:
            yield warned(
                "every NIC is on another NUMA node",
                Remedy(
                    text="Use GPUs that have a NIC on their own NUMA node for traffic between nodes, or move a NIC."
                ),
                place=on_gpus([gpu]),
                evidence=tuple(
                    Evidence(source=f"GPU{gpu.index} to {name}", value=kind.value) for name, kind in classes.items()
                ),
                cause="RDMA to this GPU crosses the CPUs' interconnect, and NCCL does not use GPUDirect at that "
                "distance",
            )
        else:
            near.append(gpu)
    if near:
        yield passed("a NIC on the same NUMA node or nearer", place=on_gpus(near))


def _ofed(machine: Machine, scope: Scope) -> Iterator[Finding]:
    if nothing := no_nics(machine, scope):
        yield nothing
        return
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


def _devices(machine: Machine, scope: Scope) -> Iterator[Finding]:
    if nothing := no_nics(machine, scope):
        yield nothing
        return
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


CHECKS = (
    Check(
        id="rdma.gdr-path",
        title="NICs can reach GPU memory",
        guards=(Guard.RDMA,),
        sections=("nics", "driver", "system"),
        judge=_gdr_path,
        why="GPUDirect RDMA needs nvidia_peermem, or dma-buf: the open kernel modules on Linux 5.12 or newer (NCCL, "
        "net_ib/gdr.cc).",
        read="/sys/module, the driver's flavour, the kernel's version; CUDA's DMA_BUF_SUPPORTED where CUDA was "
        "queried.",
        fix="modprobe nvidia_peermem, or the open kernel modules.",
    ),
    Check(
        id="rdma.affinity",
        title="every GPU has a NIC nearby",
        guards=(Guard.RDMA, Guard.PERF),
        sections=("host", "gpus", "nics"),
        judge=_affinity,
        why="Traffic between a GPU and a NIC on another NUMA node crosses the CPUs' interconnect, and by default "
        "NCCL does not use GPUDirect RDMA over it (NCCL_NET_GDR_LEVEL).",
        read="PCI paths and NUMA nodes, in the classes of nvidia-smi topo -m.",
        fix="Place NICs evenly, or choose GPUs that have one.",
    ),
    Check(
        id="rdma.ofed",
        title="RDMA modules and NIC firmware are consistent",
        guards=(Guard.RDMA,),
        sections=("nics", "system"),
        judge=_ofed,
        why="nvidia_peermem must have been built against the RDMA stack that runs. This says which one that is.",
        read="Versions of the modules in /sys/module, firmware of the NICs. Load errors are in the kernel log.",
        fix="Nothing to fix: this check informs.",
    ),
    Check(
        id="rdma.devices-cgroup",
        title="verbs devices are accessible",
        guards=(Guard.RDMA,),
        sections=("nics", "system"),
        judge=_devices,
        why="Programs reach a NIC through /dev/infiniband/uverbsN. Containers and device cgroups can deny it, as with "
        "GPUs.",
        read="access(2) of the nodes that the kernel has devices for: EPERM is the cgroup, EACCES mode bits, ENOENT "
        "not passed in.",
        fix="docker run --device=/dev/infiniband; the RDMA device plugin in Kubernetes.",
    ),
)
