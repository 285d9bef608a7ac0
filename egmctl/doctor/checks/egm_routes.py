"""The routes of Extended GPU Memory: the GPUs they lead through, and the NVLinks to those."""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.doctor.access import loss
from egmctl.doctor.check import Check, failed, passed, skipped, unknown, warned
from egmctl.doctor.refusals import mode_without_peers
from egmctl.doctor.scope import Scope
from egmctl.doctor.situation import NOT_EGM, coherent, fabric, usable
from egmctl.model.finding import Evidence, Finding, Guard, Remedy, on_gpus, on_numa
from egmctl.model.machine import Gpu, Machine, Process
from egmctl.topology.access import DENIED, Block, obstacle
from egmctl.topology.links import active_nvlinks
from egmctl.topology.routes import RouteKind, owners, route


def _cgroup_route(machine: Machine, scope: Scope) -> Iterator[Finding]:
    if not coherent(machine):
        yield skipped(NOT_EGM)
        return
    nodes = [node for node in scope.numa_of(machine) if owners(machine, node)]
    if not nodes:
        yield unknown("no GPU is known to be on any of these NUMA nodes")
        return
    whole: list[int] = []
    for node in nodes:
        attached = owners(machine, node)
        if any(loss(machine, gpu) is Block.UNKNOWN for gpu in attached):
            yield unknown("whether that process can use the GPUs of this node", place=on_numa([node]))
            continue
        lost = [(gpu, stopped) for gpu in attached if (stopped := obstacle(machine, gpu)) is not None]
        if not lost or _all_local(machine, scope, node):
            whole.append(node)
            continue
        evidence = tuple(Evidence(source=f"GPU{gpu.index}", value=stopped.cause) for gpu, stopped in lost)
        names = on_gpus(gpu for gpu, _ in lost).label
        cause = "EGM memory belongs to one GPU of its node, the owner; other GPUs reach it over NVLink. A GPU that "
        cause += "this process cannot open cannot be an owner; one hidden by CUDA_VISIBLE_DEVICES can"
        denied = all(stopped.block in DENIED for _, stopped in lost)
        remedy = Remedy(
            text="Give this process all of the node's GPUs and choose among them with CUDA_VISIBLE_DEVICES; "
            "dev.cgroup-restricted says how for this manager."
            if denied
            else "Bring the GPU back: the dev.* checks say what is wrong with it."
        )
        if len(lost) == len(attached) or any(scope.asked_for(gpu) for gpu, _ in lost):
            yield failed(
                f"no GPU here can route EGM to this memory ({names} cannot be used)"
                if len(lost) == len(attached)
                else f"{names} is required (--gpus, --expect) and cannot route EGM to this memory",
                remedy,
                place=on_numa([node]),
                evidence=evidence,
                cause=cause,
            )
        else:
            left = on_gpus(usable(machine, attached)).label
            yield warned(
                f"{names} cannot be used, so only {left} can own EGM memory of this node, and its NVLink-C2C carries "
                "all of it",
                remedy,
                place=on_numa([node]),
                evidence=evidence,
                cause=cause,
            )
    if whole:
        table = ", ".join(f"NUMA {node}: {on_gpus(owners(machine, node)).label}" for node in whole)
        hidden = "CUDA_VISIBLE_DEVICES" in ((machine.process or Process()).environment or {})
        yield passed(
            "all GPUs on EGM routes are accessible",
            place=on_numa(whole),
            evidence=(Evidence(source="GPUs of each NUMA node", value=table),),
            note="CUDA_VISIBLE_DEVICES hides GPUs from CUDA; EGM routes over them stay" if hidden else "",
        )


def _all_local(machine: Machine, scope: Scope, node: int) -> bool:
    """Say whether the GPUs that the user named all sit on the node, each with a route of its own."""
    return scope.gpus is not None and all(
        gpu.host_numa_id == node and obstacle(machine, gpu) is None for gpu in scope.gpus_of(machine)
    )


def _peer_route(machine: Machine, scope: Scope) -> Iterator[Finding]:
    if not coherent(machine):
        yield skipped(NOT_EGM)
        return
    gpus = usable(machine, scope.gpus_of(machine))
    far = [(gpu, node) for gpu in gpus for node in scope.numa_of(machine) if gpu.host_numa_id != node]
    if not far:
        yield skipped("no other NUMA node to reach")
        return
    if not any(active_nvlinks(gpu) for gpu in machine.gpus or ()) and not any(map(fabric, machine.gpus or ())):
        yield skipped("no NVLink joins these GPUs: another node's memory is ordinary system memory to them")
        return
    good: dict[str, Gpu] = {}
    bad: set[str] = set()
    for gpu, node in far:
        found = route(machine, gpu, node)
        place = on_gpus([gpu])
        if found.kind is RouteKind.REMOTE:
            good[gpu.bus_id] = gpu
        elif found.kind is RouteKind.UNKNOWN:
            bad.add(gpu.bus_id)
            yield unknown(f"the EGM route to NUMA {node}: {found.reason}", place=place)
        elif found.blocked_by in (Block.NVLINK_DOWN, Block.NO_P2P):
            bad.add(gpu.bus_id)
            mode = mode_without_peers(machine, (gpu, *owners(machine, node)))
            asked = scope.asked_purpose(Guard.EGM) or scope.asked_purpose(Guard.P2P)
            yield (failed if mode is None or asked else warned)(
                f"no EGM route to NUMA {node}: {found.reason}",
                Remedy(text="See p2p.status and nvlink.links for the GPUs that are named."),
                place=place,
                evidence=(Evidence(source="nvmlDeviceGetP2PStatus, nvmlDeviceGetNvLinkState", value=found.reason),),
                cause=f"remote EGM goes over NVLink to a GPU of that node, as its peer{f'; {mode}' if mode else ''}",
            )
    if well := [gpu for gpu in good.values() if gpu.bus_id not in bad]:
        yield passed("reaches the other NUMA nodes over NVLink and a peer's C2C", place=on_gpus(well))
    elif not bad:
        yield skipped("no remote EGM route to judge; other checks say why")


CHECKS = (
    Check(
        id="egm.cgroup-route",
        title="GPUs on EGM routes are accessible",
        guards=(Guard.EGM,),
        sections=("host", "gpus", "process"),
        judge=_cgroup_route,
        why="EGM memory belongs to one GPU of its NUMA node, its owner: that reaches it over its own NVLink-C2C, every "
        "other GPU over NVLink and the owner's (open-gpu-kernel-modules 595.45.04, nv_gpu_ops.c; read there, not "
        "measured). A GPU that a device cgroup denies can own none: with one of two left all of it goes over one C2C, "
        "with none there is no EGM on that node. NVIDIA's EGM guide asks to use CUDA_VISIBLE_DEVICES instead "
        "(https://docs.nvidia.com/cuda/cuda-c-programming-guide/egm.html).",
        read="For each CPU NUMA node, the GPUs whose sysfs numa_node (or CUDA's HOST_NUMA_ID) it is, and whether each "
        "can be used: access(2) of its device node, NVML's list.",
        fix="Give the process all GPUs and choose with CUDA_VISIBLE_DEVICES. dev.cgroup-restricted has the way for "
        "each manager.",
    ),
    Check(
        id="egm.peer-route",
        title="every GPU has an NVLink route to the other NUMA nodes",
        guards=(Guard.EGM, Guard.P2P),
        sections=("host", "gpus", "pairs"),
        judge=_peer_route,
        why="Memory of another CPU is reached over NVLink to a GPU on it, as that GPU's peer. Without peer access the "
        "pages are mapped as ordinary system memory, and HOST_NUMA memory cannot be mapped at all "
        "(open-gpu-kernel-modules, uvm_map_external.c).",
        read="NVML: active NVLinks, and nvmlDeviceGetP2PStatus for read, write and NVLink.",
        fix="See p2p.status and nvlink.links.",
    ),
)
