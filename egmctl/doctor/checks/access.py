"""May this process use the GPUs: cgroups, containers, device nodes and their permissions."""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.doctor.check import Check, Scope, failed, noted, passed, skipped, unknown, warned
from egmctl.doctor.situation import (
    MAKE_NODES,
    access_of,
    accesses,
    cgroup_evidence,
    loss,
    lost,
    lost_rules,
    manager,
    may_have_egm,
    minor_of,
    node_evidence,
    node_names,
    policy,
    requested,
    route_evidence,
    routers,
    rules_lost,
)
from egmctl.model.finding import NODE, Confidence, Evidence, Finding, Guard, Remedy, on_gpus
from egmctl.model.machine import Confinement, DeviceNode, Driver, Gpu, Machine, Process, Reason
from egmctl.topology.access import Block, classify, elsewhere, given_some, node_mounts, node_obstacle

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


_NOT_LOOKED = "the driver's device nodes were not read"


def _control_nodes(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    driver = machine.driver or Driver()
    nodes = {node.path.rpartition("/")[2]: node for node in driver.nodes or ()}
    if driver.nodes is None:
        why = driver.unread.get("nodes")
        yield unknown(f"the driver's device nodes were not read ({why.reason.value})" if why else _NOT_LOOKED)
        return
    if not machine.gpus and "nvidia" not in (driver.modules or ()):
        yield skipped("there is no NVIDIA GPU")
        return
    evidence = node_evidence(nodes.values())
    good = True
    for name in ("nvidiactl", "nvidia-uvm"):
        if name in nodes and (found := _control_node(machine, nodes[name], evidence)) is not None:
            good = False
            yield found
    if good:
        absent = [node.path for node in nodes.values() if access_of(node) == "ENOENT"]
        note = (
            f"{', '.join(absent)}: not there; the driver's libraries make it when they first need it" if absent else ""
        )
        yield passed("nvidiactl and nvidia-uvm are accessible", evidence=evidence, note=note)
    yield from _caps_denied(machine, evidence)


_USERS = {"nvidiactl": "NVML and CUDA", "nvidia-uvm": "CUDA"}
_MINORS = {"nvidiactl": 255, "nvidia-uvm": 0}
"""nv-chardev-numbers.h; nvidia-uvm.h: uvm.c takes the first minor of its region."""


def _control_node(machine: Machine, node: DeviceNode, evidence: tuple[Evidence, ...]) -> Finding | None:
    """Judge one of the nodes that all GPUs need; ``None`` where it can be used."""
    name = node.path.rpartition("/")[2]
    opened = any(gpu.nvml if name == "nvidiactl" else gpu.cuda for gpu in machine.gpus or ())
    if opened and not elsewhere(machine):
        # What a library has opened is open, whatever access(2) said before.
        return None
    answer = access_of(node)
    if answer is None:
        return unknown(f"whether {node.path} may be used here")
    user = _USERS[name]
    if answer == "ENOENT":
        return _control_node_missing(machine, node, user, evidence)
    majors = (machine.driver or Driver()).majors or {}
    major = majors.get(name, majors.get("nvidia", 195) if name == "nvidiactl" else None)
    stopped = node_obstacle(node, (major, _MINORS[name]))
    if stopped is None:
        return None
    more = {"evidence": evidence}
    match stopped.block:
        case Block.DEVICE_CGROUP:
            by = manager(machine)
            cause = policy(machine, by)
            if rules_lost(machine):
                cause += "; a container that had its GPUs gets there when systemd reloads its units"
            return failed(
                f"the device cgroup denies {node.path}, which {user} cannot do without",
                lost_rules() if rules_lost(machine) else by.remedy,
                cause=cause,
                confidence=by.confidence,
                **more,
            )
        case Block.NO_PERMISSION:
            return _no_permission(machine, [], node, evidence)
        case Block.UNKNOWN:
            return unknown(f"whether {node.path} may be used here: {stopped.detail}")
        case Block.NODEV:
            return failed(stopped.cause, _MOUNT_WITH_DEV, **more)
        case Block.MASKED:
            return failed(f"{stopped.cause}, which {user} cannot do without", _UNMASK, **more)
        case _:
            return failed(
                f"{stopped.cause}, and {user} cannot do without it",
                _MAKE_ANEW,
                cause="another file took its place, or the driver's device numbers have changed since",
                **more,
            )


def _control_node_missing(
    machine: Machine, node: DeviceNode, user: str, evidence: tuple[Evidence, ...]
) -> Finding | None:
    if given_some(machine):
        capabilities = ((machine.process or Process()).environment or {}).get("NVIDIA_DRIVER_CAPABILITIES", "not set")
        return failed(
            f"{node.path} was not given to this container, and {user} cannot do without it",
            Remedy(text="Start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility."),
            evidence=evidence,
            cause=f"NVIDIA_DRIVER_CAPABILITIES is {capabilities}",
        )
    if node.path == "/dev/nvidiactl":
        return failed(f"{node.path} is not there", MAKE_NODES, evidence=evidence, cause="it was not created yet")
    return None


_MOUNT_WITH_DEV = Remedy(
    text="Mount that file system with dev (mount -o remount,dev), or bind the nodes of the host's /dev.",
    needs_root=True,
)
_MAKE_ANEW = Remedy(text="Remove it and create it again.", command="nvidia-modprobe -c 0 -u", needs_root=True)
_UNMASK = Remedy(text="Start the container, or the service, without the mount that hides it.")


def _caps_denied(machine: Machine, evidence: tuple[Evidence, ...]) -> Iterator[Finding]:
    """Judge the nodes that MIG instances are opened through, where MIG is on."""
    caps = [node for node in (machine.driver or Driver()).nodes or () if "/nvidia-caps/" in node.path]
    denied = [node.path for node in caps if access_of(node) == "EPERM"]
    on = [gpu for gpu in machine.gpus or () if gpu.nvml and gpu.nvml.mig_mode]
    if denied and on:
        yield failed(
            f"the device cgroup denies {', '.join(denied)}, through which MIG instances are opened",
            manager(machine).remedy,
            place=on_gpus(on),
            evidence=evidence,
        )


def _permissions(machine: Machine, scope: Scope) -> Iterator[Finding]:
    kinds = (Block.NO_PERMISSION, Block.NODEV, Block.STALE_NODE, Block.NOT_A_DEVICE)
    by_kind = {kind: lost(machine, kind) for kind in kinds}
    for gpus in _by_mode(by_kind[Block.NO_PERMISSION]):
        if node := gpus[0].node:
            yield _no_permission(machine, gpus, node, accesses(gpus))
    if gpus := by_kind[Block.NODEV]:
        yield failed(
            "the device nodes are on a mount with the option nodev: opening them fails with EACCES",
            _MOUNT_WITH_DEV,
            place=on_gpus(gpus),
            evidence=(*accesses(gpus), *_dev_mounts(machine)),
        )
    if gpus := by_kind[Block.STALE_NODE]:
        yield failed(
            "the device nodes have the numbers of other devices",
            Remedy(text="Remove them and create them again.", command="nvidia-modprobe -c 0", needs_root=True),
            place=on_gpus(gpus),
            evidence=tuple(
                Evidence(source=f"stat({gpu.node.path})", value=f"{gpu.node.major}:{gpu.node.minor}")
                for gpu in gpus
                if gpu.node
            ),
            cause="they were created before the driver's device numbers changed",
        )
    if gpus := by_kind[Block.NOT_A_DEVICE]:
        yield failed(
            f"something else is in the place of the device nodes: {_what_is_there(machine, gpus)}",
            Remedy(text="Remove it and create the nodes again.", command="nvidia-modprobe -c 0", needs_root=True),
            place=on_gpus(gpus),
            evidence=tuple(
                Evidence(source=f"stat({gpu.node.path})", value=gpu.node.kind or "") for gpu in gpus if gpu.node
            ),
            cause="a mount or a program created it before the driver did",
        )
    if not any(by_kind.values()):
        usable = [gpu for gpu in scope.gpus_of(machine) if gpu.node is not None and gpu.node.access == "ok"]
        if usable:
            yield passed("device nodes are accessible to this user", place=on_gpus(usable))
        else:
            yield skipped("no device node is accessible; other checks say why")


def _what_is_there(machine: Machine, gpus: list[Gpu]) -> str:
    return "; ".join(stopped.cause for gpu in gpus if (stopped := classify(machine, gpu)) is not None)


def _no_permission(machine: Machine, gpus: list[Gpu], node: DeviceNode, evidence: tuple[Evidence, ...]) -> Finding:
    """Judge EACCES: mode bits for most, a security module for root, and for both the ids of a user namespace."""
    process, confinement = machine.process or Process(), machine.confinement or Confinement()
    mode = "" if node.mode is None else f" (mode {node.mode:04o}, uid {node.uid}, gid {node.gid})"
    outside = [line for line in confinement.uid_map or () if line != (0, 0, 2**32 - 1)]
    remedy = Remedy(
        text="Join the group that owns the nodes, or have the driver make them with another mode "
        "(NVreg_DeviceFileMode, NVreg_DeviceFileGID).",
        needs_root=True,
    )
    if confinement.uid_map is not None and outside:
        cause = "the nodes' owner is not mapped into this user namespace: only the mode for others applies"
        remedy = Remedy(text="Give the nodes mode 0666, or run outside of the user namespace.", needs_root=True)
    elif process.effective_uid == 0:
        cause = "mode bits do not stop root, so this is a security module (SELinux, AppArmor)"
        remedy = Remedy(
            text="Look for the denial in the audit log, and allow it.",
            command="ausearch -m avc -ts recent",
            needs_root=True,
        )
    else:
        user = "this user" if process.effective_uid is None else f"uid {process.effective_uid}"
        cause = f"the mode bits{mode} or a security module deny {user}"
    return failed(
        "this user may not open the device nodes" if gpus else f"this user may not open {node.path}",
        remedy,
        place=on_gpus(gpus) if gpus else NODE,
        evidence=evidence,
        cause=cause,
    )


def _by_mode(gpus: list[Gpu]) -> Iterator[list[Gpu]]:
    """Return GPUs whose nodes have the same owner and mode together: they have the same cause."""
    groups: dict[object, list[Gpu]] = {}
    for gpu in gpus:
        if gpu.node is not None:
            groups.setdefault((gpu.node.mode, gpu.node.uid, gpu.node.gid), []).append(gpu)
    yield from groups.values()


def _dev_mounts(machine: Machine) -> tuple[Evidence, ...]:
    mounts = (machine.confinement or Confinement()).mounts or ()
    return tuple(
        Evidence(source="/proc/self/mountinfo", value=f"{mount.path} {mount.kind} {','.join(mount.options)}")
        for mount in mounts
        if mount.path.startswith("/dev") and "nodev" in mount.options
    )


CHECKS = (
    Check(
        "dev.cgroup-restricted",
        _cgroup_restricted,
        guards=(Guard.EGM, Guard.P2P, Guard.IPC, Guard.FABRIC),
        sections=("gpus",),
    ),
    Check("dev.nodes-missing", _nodes_missing, guards=(Guard.EGM, Guard.P2P, Guard.IPC), sections=("gpus",)),
    Check("dev.permissions", _permissions, guards=tuple(Guard), sections=("gpus",)),
    Check("dev.control-nodes", _control_nodes, guards=tuple(Guard), sections=("driver",)),
)
