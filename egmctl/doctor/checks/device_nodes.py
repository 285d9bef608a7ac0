"""Device nodes that are there and cannot be used: modes, security modules, mounts, and the driver's own nodes."""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.doctor.access import lost
from egmctl.doctor.check import Check, failed, passed, skipped, unknown
from egmctl.doctor.manager import MAKE_NODES, lost_rules, manager, policy, rules_lost
from egmctl.doctor.scope import Scope
from egmctl.doctor.seen import access_of, accesses, node_evidence
from egmctl.model.finding import NODE, Evidence, Finding, Guard, Remedy, on_gpus
from egmctl.model.machine import Confinement, DeviceNode, Driver, Gpu, Machine, Process
from egmctl.topology.access import Block, classify, elsewhere, given_some, node_obstacle

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
        id="dev.permissions",
        title="device nodes are accessible to this user",
        guards=tuple(Guard),
        sections=("gpus",),
        judge=_permissions,
        why="A node that exists and that the cgroup allows may still be closed to this user, or lie on a mount where "
        "device nodes do nothing.",
        read="access(2) of each /dev/nvidiaN (EACCES), its owner and mode, statvfs(2) for the mount option nodev "
        "(which access(2) does not see), /proc/self/uid_map for a user namespace.",
        fix="Join the owning group or change the driver's NVreg_DeviceFileMode and NVreg_DeviceFileGID; mount "
        "without nodev; in a user namespace only the mode for others counts.",
    ),
    Check(
        id="dev.control-nodes",
        title="nvidiactl and nvidia-uvm are accessible",
        guards=tuple(Guard),
        sections=("driver",),
        judge=_control_nodes,
        why="NVML and CUDA open /dev/nvidiactl first, then CUDA opens /dev/nvidia-uvm: without them no GPU is found. A "
        "container can lose them long after its start, when systemd reloads its units and drops the rules that "
        "the runtime added.",
        read="Type, numbers (against /proc/devices) and access(2) of /dev/nvidiactl, /dev/nvidia-uvm, "
        "/dev/nvidia-uvm-tools and /dev/nvidia-caps/*.",
        fix="Ask who set the cgroup (the finding names it). Re-create a container that lost its rules; "
        "nvidia-ctk system create-dev-char-symlinks --create-all, CDI, or the cgroupfs driver prevent that. Where they "
        "were never given, add the driver capabilities compute,utility.",
    ),
)
