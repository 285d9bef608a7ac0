"""Which GPUs was this process not given: by the device cgroup, or by the container? And by whom?"""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.doctor.access import loss, lost, may_have_egm, requested, routers
from egmctl.doctor.check import Check, failed, noted, passed, skipped, unknown, warned
from egmctl.doctor.manager import MAKE_NODES, lost_rules, manager, policy, rules_lost
from egmctl.doctor.scope import Scope
from egmctl.doctor.seen import access_of, accesses, cgroup_evidence, minor_of, node_names, route_evidence
from egmctl.model.finding import Confidence, Evidence, Finding, Guard, Remedy, on_gpus
from egmctl.model.machine import Driver, Gpu, Machine, Process, Reason
from egmctl.topology.access import Block, node_mounts

_DRIVER_SOURCE = (
    "UVM routes memory through a GPU only where that GPU is registered in the process (open-gpu-kernel-modules, "
    "uvm_va_space.c, uvm_map_external.c)"
)


_NO_NODE = "no GPU has a device node"
_CONTROL_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")


def _cgroup_restricted(machine: Machine, scope: Scope) -> Iterator[Finding]:
    denied = lost(machine, Block.DEVICE_CGROUP)
    gpus = machine.gpus or ()
    untold = [gpu for gpu in gpus if loss(machine, gpu) is Block.UNKNOWN]
    if untold:
        yield _untold(machine, untold)
    if not denied:
        asked = [gpu for gpu in gpus if gpu.node is not None and gpu.node.exists and gpu.node.access is not None]
        if asked:
            yield passed(
                "the device cgroup denies no GPU",
                place=on_gpus(asked),
                evidence=(*accesses(asked), *cgroup_evidence(machine)),
                note=_hidden(machine),
            )
        elif not untold:
            yield skipped(_NO_NODE)
        return
    by = manager(machine, of_container=_nothing_left(machine))
    evidence = (*accesses(denied), *cgroup_evidence(machine), *((by.sign,) if by.sign else ()))
    evidence = tuple(dict.fromkeys((*evidence, *route_evidence(machine, scope))))
    cause, remedy = policy(machine, by), by.remedy
    if rules_lost(machine):
        remedy = lost_rules()
        cause += (
            "; this container has /dev/nvidiactl and may not use it: its rules were lost, as when systemd reloads its "
            "units, or it was started with the nodes and without the rights"
        )
    sentence = "the device cgroup denies {}" + (", and /dev/nvidiactl too" if _nothing_left(machine) else "")
    yield _by_severity(
        machine, scope, denied, sentence, remedy, evidence=evidence, cause=cause, confidence=by.confidence
    )


def _nothing_left(machine: Machine) -> bool:
    """Say whether the cgroup denies nvidiactl: then nothing of NVIDIA's can be used, whatever else it allows."""
    nodes = (machine.driver or Driver()).nodes or ()
    return any(node.path == "/dev/nvidiactl" and access_of(node) == "EPERM" for node in nodes)


def _untold(machine: Machine, gpus: list[Gpu]) -> Finding:
    pid = (machine.process or Process()).pid
    node = gpus[0].node
    why = gpus[0].unread.get("node") if node is None else node.unread.get("access")
    if pid and why is not None and why.reason is Reason.NO_PERMISSION:
        words = f"whether process {pid} may use its GPUs: only root can look from inside of its cgroup"
    else:
        told = f"{node.path}: access(2) answers {node.access}" if node is not None and node.access else "not read"
        words = f"whether these GPUs are accessible is unknown: {why.detail or why.reason.value if why else told}"
    return unknown(words, place=on_gpus(gpus))


def _nodes_missing(machine: Machine, scope: Scope) -> Iterator[Finding]:
    if not machine.gpus:
        yield skipped(_NO_NODE)
        return
    kept, unmade = lost(machine, Block.NOT_IN_CONTAINER), lost(machine, Block.NO_DEVICE_NODE)
    if masked := lost(machine, Block.MASKED):
        yield _by_severity(
            machine,
            scope,
            masked,
            "/dev/null is bound over {}",
            Remedy(text="Start the container, or the service, without that mount; choose with CUDA_VISIBLE_DEVICES."),
            evidence=tuple(
                Evidence(source=f"stat({gpu.node.path})", value=f"{gpu.node.major}:{gpu.node.minor}, /dev/null")
                for gpu in masked
                if gpu.node
            ),
            cause="something hides the GPU from this process",
        )
    environment = (machine.process or Process()).environment or {}
    if kept:
        by = manager(machine, of_container=True)
        remedy, cause = by.remedy, f"set by {by.name}" if by.name else "the container was started without them"
        if environment.get("ENROOT_RESTRICT_DEV", "n").lower() not in ("n", "no", "0", "false", ""):
            remedy = Remedy(text="Start the step without ENROOT_RESTRICT_DEV, and choose with CUDA_VISIBLE_DEVICES.")
            cause = "enroot passes in only the requested device nodes"
        if "NVIDIA_VISIBLE_DEVICES" in environment:
            cause += f"; NVIDIA_VISIBLE_DEVICES={environment['NVIDIA_VISIBLE_DEVICES']}"
        mounts = tuple(Evidence(source="/proc/self/mountinfo", value=path) for path in node_mounts(machine))
        yield _by_severity(
            machine,
            scope,
            kept,
            "this container was started without GPUs ({} not given)"
            if without_gpus(machine)
            else "this container was not given {}",
            remedy,
            evidence=(*accesses(kept), *mounts, *route_evidence(machine, scope)),
            cause=cause,
            confidence=Confidence.MEDIUM,
        )
    if unmade:
        numbers = " ".join(f"-c {minor}" for gpu in unmade if (minor := minor_of(gpu)) is not None)
        yield failed(
            f"there is no device node: {node_names(unmade)}",
            Remedy(text=MAKE_NODES.text, command=f"nvidia-modprobe {numbers}" if numbers else None, needs_root=True),
            place=on_gpus(unmade),
            evidence=accesses(unmade),
            cause="it was not created yet, or ModifyDeviceFiles=0 stops the driver's tools from creating it",
        )
    if not kept and not unmade and not masked:
        there = [gpu for gpu in machine.gpus if gpu.node is not None and gpu.node.exists]
        if there:
            yield passed("every GPU of the driver has its device node", place=on_gpus(there))
        else:
            yield skipped(_NO_NODE)


def without_gpus(machine: Machine) -> bool:
    """Say whether this is a container that was given no GPU, nor the nodes that all GPUs need."""
    control = [node for node in (machine.driver or Driver()).nodes or () if node.path in _CONTROL_NODES]
    kept = [loss(machine, gpu) is Block.NOT_IN_CONTAINER for gpu in machine.gpus or ()]
    return bool(kept) and all(kept) and {access_of(node) for node in control} == {"ENOENT"}


def _by_severity(
    machine: Machine,
    scope: Scope,
    gone: list[Gpu],
    sentence: str,
    remedy: Remedy,
    *,
    evidence: tuple[Evidence, ...],
    cause: str,
    confidence: Confidence = Confidence.HIGH,
) -> Finding:
    """Judge GPUs that were taken from this process on purpose: that is a fault only for who needs them.

    It fails where a GPU that the user named is gone, where none is left at all, or where a NUMA node's EGM memory has
    no GPU left that could route to it; it warns where such a node has fewer left; else it is a share of a node: a note.
    """
    words = sentence.format(node_names(gone))
    more = {"place": on_gpus(gone), "evidence": evidence, "cause": cause, "confidence": confidence}
    asked = [gpu for gpu in gone if requested(machine, scope, gpu)]
    if asked:
        return failed(f"{words}, but {on_gpus(asked).label} is required (--gpus, --expect)", remedy, **more)
    if all(loss(machine, gpu) is not None for gpu in machine.gpus or ()):
        return failed(f"{words}: no GPU can be used", remedy, **more)
    if may_have_egm(machine) and not _local_only(machine, scope):
        cut_off: list[str] = []
        fewer: list[str] = []
        for node, attached in routers(machine, scope).items():
            left = [gpu for gpu in attached if loss(machine, gpu) is None]
            if any(gpu in gone for gpu in attached):
                (fewer if left else cut_off).append(str(node))
        if cut_off:
            return failed(f"{words}: EGM to NUMA {', '.join(cut_off)} has no GPU left to go through", remedy, **more)
        if fewer:
            return warned(f"{words}: EGM to NUMA {', '.join(fewer)} has fewer GPUs to go through", remedy, **more)
    here = on_gpus(gpu for gpu in machine.gpus or () if loss(machine, gpu) is None).label
    note = (
        f"normal for a partial allocation (--gpus or --expect make it a fault). {here} cannot import memory of "
        f"{on_gpus(gone).label} by legacy, descriptor, pool or fabric handle, and EGM is not routed through it"
    )
    return noted(words, remedy=remedy, note=note, **more)


def _local_only(machine: Machine, scope: Scope) -> bool:
    """Say whether the GPUs asked for sit on the only NUMA nodes asked for: local EGM needs no other GPU."""
    if scope.gpus is None or scope.numa is None:
        return False
    return all(gpu.host_numa_id in scope.numa for gpu in scope.gpus_of(machine)) and len(scope.numa) == 1


def _hidden(machine: Machine) -> str:
    chosen = ((machine.process or Process()).environment or {}).get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return ""
    return "CUDA_VISIBLE_DEVICES is set: unlike a cgroup it only hides GPUs from CUDA, and EGM routes over them stay"


CHECKS = (
    Check(
        id="dev.cgroup-restricted",
        title="the device cgroup denies no GPU",
        guards=(Guard.EGM, Guard.P2P, Guard.IPC, Guard.FABRIC),
        sections=("gpus",),
        judge=_cgroup_restricted,
        why="Cgroups that limit devices block EGM routing (CUDA programming guide, Extended GPU Memory). "
        f"{_DRIVER_SOURCE}, and one that a cgroup denies cannot be opened. Imports of that GPU's memory fail too: "
        "on H200, legacy IPC with INVALID_VALUE, file descriptors with INVALID_DEVICE, fabric handles with "
        "NOT_SUPPORTED.",
        read="access(2) of each /dev/nvidiaN, which asks the device cgroup without opening the node: EPERM is the "
        "cgroup, "
        "EACCES is mode bits or a security module. The cgroup's path and, as root, the names of its BPF programs say "
        "who set it. devices.list of cgroup version 1 is shown but not trusted: a list of denials prints a *:* rwm.",
        fix="Give the process all GPUs of the node and choose among them with CUDA_VISIBLE_DEVICES, which hides the "
        "others from CUDA and keeps EGM routes over them. How depends on the resource manager; the finding says it. "
        "Without --gpus or --expect, having some of a node's GPUs is a note and no fault (--strict makes it one), as "
        "long "
        "as a GPU is left and no NUMA node's EGM memory is cut off.",
    ),
    Check(
        id="dev.nodes-missing",
        title="every GPU has its device node",
        guards=(Guard.EGM, Guard.P2P, Guard.IPC),
        sections=("gpus",),
        judge=_nodes_missing,
        why=f"Without its device node a GPU cannot be opened. {_DRIVER_SOURCE}.",
        read="/dev/nvidiaN of each GPU in /proc/driver/nvidia/gpus. In a container a missing node was not passed in, "
        "and a device cgroup usually denies it as well, which cannot be asked about without the node.",
        fix="On a host run nvidia-modprobe, or nvidia-persistenced at boot. In a container ask for all GPUs and "
        "choose with CUDA_VISIBLE_DEVICES.",
    ),
)
