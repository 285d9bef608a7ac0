"""Checks of access to the GPUs: device cgroups, containers, device nodes and their permissions."""

from __future__ import annotations

import re
import stat
from collections.abc import Iterator, Sequence
from typing import Any

from egmctl.doctor import restrictions
from egmctl.doctor.check import Scope, Verdicts, check, findings_on, known, skip
from egmctl.doctor.findings import fact, failed, noted, passed, skipped, unknown, warned
from egmctl.doctor.job import OwnJob, own_job
from egmctl.doctor.situation import NO_NVIDIA_GPU, in_container, loss, lost, may_have_egm, requested, routers
from egmctl.model.finding import NODE, Confidence, Finding, Guard, on_gpus
from egmctl.model.gpu import Gpu
from egmctl.model.host import Confinement, DeviceNode, Driver, Process
from egmctl.model.machine import Machine
from egmctl.model.record import Reason
from egmctl.model.remedy import Remedy, as_root, todo
from egmctl.topology.access import Block, Obstacle, classify, device_node_obstacle, elsewhere, given_some, node_mounts

UVM = "/dev/nvidia-uvm"
_NO_NODE = "no GPU has a device node"
_MOUNT_WITH_DEV = as_root("Mount that file system with dev (mount -o remount,dev), or bind the host's nodes.")
_UNMASK = todo("Start the container, or the service, without that mount; choose with CUDA_VISIBLE_DEVICES.")


@check("dev.cgroup-restricted", Guard.EGM, Guard.P2P, Guard.IPC, Guard.FABRIC)
def _cgroup_restricted(machine: Machine, scope: Scope) -> Verdicts:
    denied, unclear = lost(machine, Block.DEVICE_CGROUP), lost(machine, Block.UNKNOWN)
    readable = [gpu for gpu in machine.gpus or () if gpu.node and gpu.node.exists and gpu.node.access is not None]
    for gpu in unclear:
        obstacle = classify(machine, gpu)
        reason = (obstacle and obstacle.detail) or "not read"
        yield unknown(f"whether these GPUs are accessible is unknown: {reason}", gpu)
    if denied:
        yield from _cgroup_denies(machine, scope, denied)
    elif readable:
        hides = "CUDA_VISIBLE_DEVICES" in ((machine.process or Process()).environment or {})
        note = "CUDA_VISIBLE_DEVICES only hides GPUs from CUDA: EGM routes over them stay" if hides else ""
        evidence = (*restrictions.accesses(readable), *restrictions.cgroup_evidence(machine))
        yield passed("the device cgroup denies no GPU", readable, evidence=evidence, note=note)
    elif not unclear:
        yield skipped(_NO_NODE)


def _cgroup_denies(machine: Machine, scope: Scope, denied: list[Gpu]) -> Iterator[Finding]:
    all_denied = restrictions.denies_control_node(machine)
    owner = restrictions.manager(machine, is_container=all_denied)
    evidence = (*restrictions.accesses(denied), *restrictions.cgroup_evidence(machine))
    if owner.sign:
        evidence = (*evidence, owner.sign)
    return _withheld(
        machine,
        scope,
        denied,
        "the device cgroup denies {}, and /dev/nvidiactl too" if all_denied else "the device cgroup denies {}",
        evidence=tuple(dict.fromkeys((*evidence, *restrictions.route_evidence(machine, scope)))),
        **_denial_details(machine, owner),
    )


def _denial_details(machine: Machine, owner: restrictions.Manager) -> dict[str, Any]:
    """Return cause, remedy and confidence of a denial by the device cgroup."""
    cause, remedy = restrictions.policy(machine, owner), owner.remedy
    # The container has the node of nvidiactl but has lost its device rules.
    if in_container(machine) and restrictions.denies_control_node(machine):
        cause += "; a container that had its GPUs gets there when systemd reloads its units"
        remedy = restrictions.LOST_RULES
    return {"cause": cause, "remedy": remedy, "confidence": owner.confidence}


@check("dev.nodes-missing", Guard.EGM, Guard.P2P, Guard.IPC)
def _nodes_missing(machine: Machine, scope: Scope) -> Verdicts:
    masked, withheld, unmade = (
        lost(machine, block) for block in (Block.MASKED, Block.NOT_IN_CONTAINER, Block.NO_DEVICE_NODE)
    )
    if masked:
        hidden = "/dev/null is bound over {}"
        yield from _withheld(machine, scope, masked, hidden, remedy=_UNMASK, evidence=restrictions.accesses(masked))
    if withheld:
        yield from _not_given(machine, scope, withheld)
    if unmade:
        numbers = " ".join(f"-c {minor}" for gpu in unmade if (minor := restrictions.minor_of(gpu)) is not None)
        yield failed(
            f"there is no device node: {restrictions.device_node_names(unmade)}",
            as_root(restrictions.MAKE_NODES, run=f"nvidia-modprobe {numbers}" if numbers else None),
            unmade,
            evidence=restrictions.accesses(unmade),
            cause="it was not created yet, or ModifyDeviceFiles=0 stops the driver's tools from creating it",
        )
    if not (withheld or unmade or masked):
        present = [gpu for gpu in machine.gpus or () if gpu.node is not None and gpu.node.exists]
        yield passed("every GPU of the driver has its device node", present) if present else skipped(_NO_NODE)


def _not_given(machine: Machine, scope: Scope, gpus: list[Gpu]) -> Iterator[Finding]:
    environment = (machine.process or Process()).environment or {}
    owner = restrictions.manager(machine, is_container=True)
    remedy, cause = owner.remedy, f"set by {owner.name}" if owner.name else "the container was started without them"
    if environment.get("ENROOT_RESTRICT_DEV", "n").lower() not in ("n", "no", "0", "false", ""):
        remedy = todo("Start the step without ENROOT_RESTRICT_DEV, and choose with CUDA_VISIBLE_DEVICES.")
        cause = "enroot passes in only the requested device nodes"
    if "NVIDIA_VISIBLE_DEVICES" in environment:
        cause += f"; NVIDIA_VISIBLE_DEVICES={environment['NVIDIA_VISIBLE_DEVICES']}"
    mounts = (fact("/proc/self/mountinfo", path) for path in node_mounts(machine))
    all_withheld = "this container was started without GPUs ({} not given)"
    return _withheld(
        machine,
        scope,
        gpus,
        all_withheld if lacks_all_gpus(machine) else "this container was not given {}",
        remedy=remedy,
        evidence=(*restrictions.accesses(gpus), *mounts, *restrictions.route_evidence(machine, scope)),
        cause=cause,
        confidence=Confidence.MEDIUM,
    )


def lacks_all_gpus(machine: Machine) -> bool:
    """Return whether this container was given neither a GPU nor the control nodes that all GPUs need."""
    nodes = (machine.driver or Driver()).nodes or ()
    control = {restrictions.access_of(node) for node in nodes if node.path in ("/dev/nvidiactl", "/dev/nvidia-uvm")}
    losses = {loss(machine, gpu) for gpu in machine.gpus or ()}
    return losses == {Block.NOT_IN_CONTAINER} and control == {"ENOENT"}


def _withheld(machine: Machine, scope: Scope, withheld: list[Gpu], sentence: str, **more: Any) -> Iterator[Finding]:
    """Yield the findings on GPUs that were deliberately withheld from this process.

    It fails if the user requires one of them or no GPU is left. Else it is a partial allocation: a warning where it
    blocks EGM routes, a note elsewhere. What it blocks depends on whose GPUs they are.
    """
    left = [gpu for gpu in machine.gpus or () if loss(machine, gpu) is None]
    required = [gpu for gpu in withheld if requested(machine, scope, gpu)]
    if required:
        text = f"{_named(sentence, withheld)}, but {on_gpus(required).label} is required (--gpus, --expect)"
        yield failed(text, place=withheld, **more)
        return
    if not left:
        yield failed(f"{_named(sentence, withheld)}: no GPU can be used", place=withheld, **more)
        return
    of_job = own_job(machine, withheld)
    for gpus in (of_job.gpus, [gpu for gpu in withheld if gpu not in of_job.gpus]):
        if gpus:
            yield _partial(machine, scope, gpus, left, of_job if gpus is of_job.gpus else OwnJob(), sentence, **more)


def _partial(
    machine: Machine, scope: Scope, gpus: Sequence[Gpu], left: list[Gpu], of_job: OwnJob, sentence: str, **more: Any
) -> Finding:
    """Return the finding on GPUs that a partial allocation leaves out.

    Parameters
    ----------
    left
        The GPUs that this process can use.
    of_job
        The GPUs and what says that they are this job's; none if they are others'.
    """
    text = ", ".join(filter(None, (_named(sentence, gpus), of_job.words)))
    handles = "by legacy, descriptor, pool or fabric handle"
    imports = f"{on_gpus(left).label} cannot import memory of {on_gpus(gpus).label} {handles}"
    note = f"normal for a partial allocation (--gpus or --expect make it a fault). {imports}"
    blocks: tuple[Guard, ...] = ()
    if of_job.gpus:
        blocks = (Guard.P2P, Guard.IPC, Guard.FABRIC)
        note = f"{imports}, so NCCL between the processes of this job ends with CUDA error 101 or 1 (measured on H200)"
        more["evidence"] = (*more["evidence"], of_job.sign)
    if routes := _blocked_routes(machine, scope, gpus, left):
        return warned(f"{text}: {routes}", place=gpus, note=note, blocks=(Guard.EGM, *blocks), **more)
    return noted(text, gpus, note=note, blocks=blocks, **more)


def _named(sentence: str, gpus: Sequence[Gpu]) -> str:
    return sentence.format(restrictions.device_node_names(gpus))


def _blocked_routes(machine: Machine, scope: Scope, gpus: Sequence[Gpu], left: list[Gpu]) -> str:
    """Return the EGM routes that the absence of these GPUs blocks, as a clause; empty if it blocks none."""
    if not may_have_egm(machine) or _local_only(machine, scope):
        return ""
    reduced = {node: on for node, on in routers(machine, scope).items() if any(gpu in gpus for gpu in on)}
    blocked = [str(node) for node, on in reduced.items() if not any(gpu in left for gpu in on)]
    fewer = [str(node) for node in reduced if str(node) not in blocked]
    clauses = [f"EGM routes to NUMA {', '.join(blocked)} are blocked"] if blocked else []
    clauses += [f"EGM to NUMA {', '.join(fewer)} has fewer GPUs to go through"] if fewer else []
    return ", and ".join(clauses)


def _local_only(machine: Machine, scope: Scope) -> bool:
    """Return whether the user named one NUMA node and only GPUs on it: local EGM then needs no other GPU."""
    if scope.gpus is None or scope.numa is None:
        return False
    return all(gpu.host_numa_id in scope.numa for gpu in scope.gpus_of(machine)) and len(scope.numa) == 1


@check("dev.permissions", *Guard)
def _permissions(machine: Machine, scope: Scope) -> Verdicts:
    faults: list[Finding] = []
    for gpu in machine.gpus or ():
        obstacle = classify(machine, gpu)
        if gpu.node is not None and obstacle is not None and obstacle.block in _NODE_BLOCKS:
            faults += findings_on(gpu, _node_fault(machine, gpu.node, obstacle))
    yield from faults
    if not faults:
        accessible = [gpu for gpu in scope.gpus_of(machine) if gpu.node is not None and gpu.node.access == "ok"]
        reason = "no device node is accessible; other checks say why"
        yield passed("device nodes are accessible to this user", accessible or skip(reason))


_NODE_BLOCKS = (Block.NO_PERMISSION, Block.NODEV, Block.STALE_NODE, Block.NOT_A_DEVICE)


def _node_fault(machine: Machine, node: DeviceNode, obstacle: Obstacle, user: str = "") -> Verdicts:
    """Yield evidence and a failure for a device node that exists but is unusable.

    Parameters
    ----------
    user
        The libraries that need the node; empty for a GPU's node.
    """
    yield from restrictions.node_evidence([node])
    name, needed = (node.path, f", and {user} cannot do without it") if user else ("the device nodes", "")
    if obstacle.block is Block.NO_PERMISSION:
        yield failed(f"this user may not open {name}", **_denial(machine, node))
    elif obstacle.block is Block.NODEV:
        for mount in (machine.confinement or Confinement()).mounts or ():
            if mount.path.startswith("/dev") and "nodev" in mount.options:
                yield fact("/proc/self/mountinfo", f"{mount.path} {mount.kind} {','.join(mount.options)}")
        yield failed(f"{name} lies on a mount with the option nodev: open(2) fails with EACCES", _MOUNT_WITH_DEV)
    else:
        yield failed(f"{obstacle.cause}{needed}", _UNMASK if obstacle.block is Block.MASKED else _remake(machine, node))


_GPU_NODE = re.compile(r"/dev/nvidia([0-9]{1,3})")
_LOAD_UVM = "modprobe nvidia_uvm && nvidia-modprobe -u -c 0"
_CONTROL_NODES = {"/dev/nvidiactl": "nvidia-modprobe -c 255", "/dev/nvidia-uvm": "nvidia-modprobe -u -c 0"}
"""The commands that make the nodes all GPUs need: 255 is the minor number of nvidiactl (nvidia-modprobe.c)."""


def _remake(machine: Machine, node: DeviceNode) -> Remedy:
    """Return the remedy for a node that is no device, or has the numbers of an earlier load of the driver."""
    if in_container(machine):
        return todo("Start the container again: its node is of an earlier load of the driver. Make a CDI file anew.")
    gpu = _GPU_NODE.fullmatch(node.path)
    make = f"nvidia-modprobe -c {int(gpu[1])}" if gpu else _CONTROL_NODES.get(node.path)
    if make is None or node.kind == "directory":
        return as_root("Move it away, and make the device node again with nvidia-modprobe.")
    return as_root("Remove this one node and make it again.", run=f"rm {node.path} && {make}")


def _denial(machine: Machine, node: DeviceNode) -> dict[str, Any]:
    """Return cause and remedy of EACCES: an owner not mapped in the user namespace, a security module, or mode bits."""
    process, confinement = machine.process or Process(), machine.confinement or Confinement()
    if any(line != (0, 0, 2**32 - 1) for line in confinement.uid_map or ()):
        return {
            "cause": "the nodes' owner is not mapped into this user namespace: only the mode for others applies",
            "remedy": todo("Map the nodes' owner or group into the user namespace, or run outside of it."),
        }
    if process.effective_uid == 0:
        return {
            "cause": "mode bits do not stop root, so this is a security module (SELinux, AppArmor)",
            "remedy": as_root("Look for the denial in the audit log, and allow it.", look="ausearch -m avc -ts recent"),
        }
    mode = "" if node.mode is None else f" (mode {node.mode:04o}, uid {node.uid}, gid {node.gid})"
    user = "this user" if process.effective_uid is None else f"uid {process.effective_uid}"
    return {
        "cause": f"the mode bits{mode} or a security module deny {user}",
        "remedy": as_root(
            "Add the user to the group that owns the nodes. NVreg_DeviceFileGID and NVreg_DeviceFileMode set group and "
            "mode, from the next load of the driver on.",
            look="ls -l /dev/nvidiactl",
        ),
    }


@check("dev.control-nodes", *Guard, sections=("driver",))
def _control_nodes(machine: Machine, _scope: Scope) -> Verdicts:
    driver = machine.driver or Driver()
    nodes = known(driver.nodes, "the driver's device nodes were not read", driver.unread.get("nodes"))
    if not machine.gpus and "nvidia" not in (driver.modules or ()):
        skip(NO_NVIDIA_GPU)
    yield from restrictions.node_evidence(nodes)
    users = {"/dev/nvidiactl": "NVML and CUDA", "/dev/nvidia-uvm": "CUDA"}
    faults = [fault for node in nodes if node.path in users for fault in _fault(machine, node, users[node.path])]
    faults += [fault for fault in _without_uvm(machine) if not any(UVM in earlier.summary for earlier in faults)]
    yield from faults
    if not faults:
        absent = ", ".join(node.path for node in nodes if restrictions.access_of(node) == "ENOENT")
        note = f"{absent}: not there; the driver's libraries make it when they first need it" if absent else ""
        yield passed("nvidiactl and nvidia-uvm are accessible", note=note)
    if with_mig := [gpu for gpu in machine.gpus or () if gpu.nvml and gpu.nvml.mig_mode]:
        yield from _capabilities(machine, [node for node in nodes if "/nvidia-caps/" in node.path], with_mig)


def _capabilities(machine: Machine, nodes: list[DeviceNode], with_mig: list[Gpu]) -> Iterator[Finding]:
    """Yield a finding on the nodes in /dev/nvidia-caps, through which MIG instances are opened.

    The first is for changing MIG's configuration, by root. Programs open the others for reading only.
    """
    opened = "through which MIG instances are opened"
    answers = {node.path: restrictions.access_of(node) for node in nodes}
    denied = [path for path, answer in answers.items() if answer == "EPERM"]
    hidden = [
        node.path
        for node in nodes
        if answers[node.path] == "EACCES" and node.minor != 1 and node.mode is not None and not node.mode & stat.S_IROTH
    ]
    if denied:
        summary = f"the device cgroup denies {', '.join(denied)}, {opened}"
        yield failed(summary, restrictions.manager(machine).remedy, with_mig)
    if hidden:
        remedy = as_root(
            "Make them readable for the users of MIG (DeviceFileMode in /proc/driver/nvidia/capabilities)."
        )
        yield failed(f"this user may not read {', '.join(hidden)}, {opened}", remedy, with_mig)
    caps_unread = (machine.driver or Driver()).reason_of("nodes.nvidia-caps")
    if caps_unread not in (None, Reason.NOT_PRESENT):
        yield unknown("whether the nodes of MIG instances are there: /dev/nvidia-caps was not read", with_mig)
    elif all(answer == "ENOENT" for answer in answers.values()):
        remedy = todo("Start the container with the MIG instances that it is to use (NVIDIA_VISIBLE_DEVICES, a claim).")
        if not given_some(machine):
            remedy = as_root("Have the driver's tools create them: 'nvidia-smi -L', run by root, does so.")
        yield failed(f"there is no node in /dev/nvidia-caps, {opened}", remedy, with_mig)


def _without_uvm(machine: Machine) -> Iterator[Finding]:
    """Yield a finding if nvidia_uvm is not loaded and nothing will load it when CUDA first needs it."""
    driver = machine.driver or Driver()
    modules = driver.modules
    cuda_works = any(gpu.cuda for gpu in machine.gpus or ())
    if cuda_works or modules is None or "nvidia" not in modules or "nvidia_uvm" in modules:
        return
    summary = "nvidia_uvm is not loaded: cuInit ends with CUDA_ERROR_UNKNOWN (999)"
    if in_container(machine):
        yield failed(summary, as_root("Load it, then start the container again.", run=_LOAD_UVM))
    elif driver.modprobe_setuid is None:
        yield unknown("nvidia_uvm is not loaded; whether nvidia-modprobe can load it for CUDA was not read")
    elif not driver.modprobe_setuid:
        remedy = as_root("Load it, now and at each boot; or install nvidia-modprobe.", run=_LOAD_UVM)
        yield failed(summary, remedy, cause="there is no nvidia-modprobe, which loads it when CUDA first needs it")


def _fault(machine: Machine, node: DeviceNode, user: str) -> Iterator[Finding]:
    """Yield a finding on a control node; nothing if it is usable or the libraries will create it."""
    path, answer, is_control = node.path, restrictions.access_of(node), node.path == "/dev/nvidiactl"
    opened = any(gpu.nvml if is_control else gpu.cuda for gpu in machine.gpus or ())
    majors = (machine.driver or Driver()).majors or {}
    major = majors.get("nvidiactl", majors.get("nvidia", 195)) if is_control else majors.get("nvidia-uvm")
    # The minor numbers are from nv-chardev-numbers.h and nvidia-uvm.h; uvm.c uses the first of its region.
    stopped = device_node_obstacle(node, (major, 255 if is_control else 0))
    if opened and not elsewhere(machine):
        # A library has opened the node, whatever access(2) returned before.
        return
    if answer is None:
        yield unknown(f"whether {path} may be used here")
    elif answer == "ENOENT" and given_some(machine):
        capabilities = ((machine.process or Process()).environment or {}).get("NVIDIA_DRIVER_CAPABILITIES", "not set")
        yield failed(
            f"{path} was not given to this container, and {user} cannot do without it",
            todo("Start the container with NVIDIA_DRIVER_CAPABILITIES=compute,utility."),
            cause=f"NVIDIA_DRIVER_CAPABILITIES is {capabilities}",
        )
    elif answer == "ENOENT" and is_control:
        remedy = as_root(restrictions.MAKE_NODES, run=_CONTROL_NODES[path])
        if in_container(machine):
            remedy = restrictions.manager(machine, is_container=True).remedy
        yield failed(f"{path} is not there", remedy, cause="it was not created yet")
    elif answer == "ENOENT" or stopped is None:
        return
    elif stopped.block is Block.DEVICE_CGROUP:
        denied = f"the device cgroup denies {path}, which {user} cannot do without"
        yield failed(denied, **_denial_details(machine, restrictions.manager(machine)))
    elif stopped.block is Block.UNKNOWN:
        yield unknown(f"whether {path} may be used here: {stopped.detail}")
    else:
        yield from findings_on(NODE, _node_fault(machine, node, stopped, user))
