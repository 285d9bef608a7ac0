"""Checks of the NVLink fabric: registration, health and consistency of the GPUs, and the fabric manager."""

from __future__ import annotations

from collections.abc import Mapping

from egmctl.dataclass import dataclass
from egmctl.doctor import situation
from egmctl.doctor.check import Expectation, Scope, Verdicts, check, skip
from egmctl.doctor.expected import wants_domain
from egmctl.doctor.findings import daemon_fact, fact, failed, gap, noted, passed, skipped, unknown, warned
from egmctl.doctor.job import own_job
from egmctl.doctor.restrictions import accesses
from egmctl.facts.redact import replace_uuids
from egmctl.model.finding import Guard, on_gpus
from egmctl.model.gpu import Fabric, Gpu
from egmctl.model.host import Driver, FabricManager, System
from egmctl.model.machine import Machine
from egmctl.model.record import BusId
from egmctl.model.remedy import Need, Remedy, as_root, todo
from egmctl.topology.access import DENIED
from egmctl.topology.platform import in_chassis, in_rack
from egmctl.units import group_by

INFO = "nvmlDeviceGetGpuFabricInfoV"
NO_FABRIC = "the GPUs are in no fabric"
NOT_VISIBLE = "the host's processes are not visible from here"
ALONE = "it reaches no GPU of another tray over NVLink, and imports none of their fabric handles"
_SHOW_FABRIC = "nvidia-smi -q | grep -A12 Fabric"
REJOIN = as_root(
    "Restore the GPUs' partition in the rack's fabric manager (NMX-C), then reset them.",
    Need.GPU_RESET,
    look=_SHOW_FABRIC,
)
BOOT_GRACE_S = 300
"""The time after boot during which a fabric may still be starting, in seconds (NVSentinel, fabric-manager-monitor)."""

_STATUS = {
    4: "NVML error 4 (insufficient permissions)",
    15: "NVML error 15 (the GPU is lost)",
    23: "NVML error 23 (insufficient resources)",
    999: "NVML error 999 (unknown error)",
}
"""The status of a registration that failed (nvml.h, nvmlReturn_t)."""

MASK = {
    "route_unhealthy": ("true", True, "a route through the fabric is unhealthy"),
    "degraded_bandwidth": ("true", False, "the fabric has less than its bandwidth"),
    "route_recovery": ("true", False, "a route through the fabric is being recovered"),
    "access_timeout_recovery": ("true", False, "the fabric is recovering from an access timeout"),
    "fabric_manager": ("disconnected", True, "the fabric manager is disconnected"),
}
"""The fields of the health mask: the value that is a fault, whether it stops work, and its meaning (nvml.h)."""


_HOST_PARTITION = todo(
    "On the host activate this virtual machine's partition in the fabric manager (FABRIC_MODE=1, for vGPUs 2): nothing "
    "in this virtual machine can.",
    look=_SHOW_FABRIC,
)


def _of_the_host(machine: Machine) -> bool:
    """Return whether the fabric is the host's alone: of a vGPU, or of a guest without switches and fabric manager.

    See https://github.com/NVIDIA/gpu-operator/issues/2923.
    """
    if any(gpu.nvml is not None and gpu.nvml.virtualization == "vgpu" for gpu in machine.gpus or ()):
        return True
    daemons = (machine.system or System()).daemons
    is_managed_here = daemons is None or "nv-fabricmanager" in daemons or situation.manages_nvlink5(machine)
    return situation.virtual(machine) and machine.switches == () and not is_managed_here


def _manager_of(machine: Machine) -> Remedy:
    """Return the remedy for the kind of fabric manager that this node's fabric has."""
    if _of_the_host(machine):
        return _HOST_PARTITION
    if situation.coherent(machine):
        partition = "Look at the rack's fabric manager (NMX-C): the tray's GPUs must be in a partition."
        return todo(partition, look=_SHOW_FABRIC)
    look = "systemctl status nvidia-fabricmanager"
    if situation.manages_nvlink5(machine):
        text = "See fabric.management and fabric.manager; with FABRIC_MODE=1 activate a partition, then reset the GPUs."
        return as_root(text, Need.GPU_RESET, look=look)
    runs = "nv-fabricmanager" in ((machine.system or System()).daemons or ())
    text = "Read the fabric manager's log." if runs else "Start the driver's fabric manager and read its log."
    return as_root(text, look=look)


@situation.check_gpus("fabric.state", Guard.FABRIC, Guard.P2P, Guard.EGM)
def _state(machine: Machine, _scope: Scope, gpu: Gpu) -> Verdicts:
    info = situation.fabric(gpu)
    if info is None or info.state is None:
        no_fabric = info is None and gpu.nvml is not None and not gap(gpu.nvml, "fabric")
        yield skipped(NO_FABRIC) if no_fabric else unknown("NVML does not report the state of the fabric")
        return
    yield fact(f"{INFO}: state, status", f"{info.state}, {'-' if info.status is None else info.status}")
    if info.state == "not-supported":
        yield skipped(NO_FABRIC)
    elif info.state in ("not-started", "in-progress"):
        yield from _not_ready(machine, info.state)
    elif info.status:
        words = _STATUS.get(info.status, f"NVML error {info.status}")
        yield failed(f"the fabric's registration ended with {words}", _manager_of(machine))
    else:
        yield from _health(info)


def _not_ready(machine: Machine, state: str) -> Verdicts:
    uptime = (machine.system or System()).uptime_s
    yield fact("/proc/uptime", None if uptime is None else f"{uptime:.0f} s")
    yield fact("cuInit", (machine.driver or Driver()).cuda_error)
    if uptime is not None and uptime < BOOT_GRACE_S:
        remedy = todo(f"Check again {BOOT_GRACE_S} s after boot.")
        yield warned(f"the fabric is not ready yet ({state}, {uptime:.0f} s after boot)", remedy)
    else:
        cause = "the fabric manager (on this node, or of the rack) has not registered the GPUs"
        not_ready = f"the fabric is not ready ({state}): CUDA ends with CUDA_ERROR_SYSTEM_NOT_READY (802)"
        yield failed(not_ready, _manager_of(machine), cause=cause)


def _health(info: Fabric) -> Verdicts:
    health, summary = info.health or {}, info.health_summary
    faults = [(stops_work, text) for name, (bad, stops_work, text) in MASK.items() if health.get(name) == bad]
    configuration = health.get("incorrect_configuration", "none")
    if configuration not in ("none", "not-supported"):
        faults.append((True, f"its configuration is wrong ({configuration.replace('-', ' ')})"))
    if summary in ("unhealthy", "limited-capacity") and not faults:
        faults = [(False, f"its health is {summary.replace('-', ' ')}")]
    yield fact(f"{INFO}: health", ", ".join(f"{name}={value}" for name, value in health.items()) or "not read")
    yield fact(f"{INFO}: health summary", summary)
    if faults:
        text = f"the fabric's registration is complete, but {'; '.join(text for _, text in faults)}"
        remedy = todo("Drain the node; check these GPUs in the fabric manager.", look=_SHOW_FABRIC)
        stops_work = summary == "unhealthy" or any(stops_work for stops_work, _ in faults)
        yield (failed if stops_work else warned)(text, remedy)
    elif unread := gap(info, "status") or gap(info, "health", "health_summary", newer=True):
        yield unknown(f"registered in the fabric, but its status or health was not read ({unread})")
    elif summary == "healthy" or any(health.get(name, "not-supported") != "not-supported" for name in MASK):
        yield passed("registered in the fabric, and healthy")
    else:
        yield passed("registered in the fabric", note="the driver reports nothing of the fabric's health here")


@dataclass(frozen=True, slots=True)
class _Members:
    """The GPUs in scope by what was read of their NVLink domain. Each is in one of the first four groups."""

    wanted: bool
    """Whether the user expects an NVLink domain."""
    unread: tuple[Gpu, ...]
    """It was not read whether they are in a domain, or in which."""
    unregistered: tuple[Gpu, ...]
    outside: tuple[Gpu, ...]
    """They are registered, but should be in a domain and are in none."""
    inside: tuple[Gpu, ...]
    registered: tuple[Gpu, ...]
    """Those of the last two groups, in their order in scope."""
    infos: Mapping[BusId, Fabric]
    """What NVML reports of those that are registered."""

    def info(self, gpu: Gpu) -> Fabric:
        """Return what NVML reports of a registered GPU."""
        return self.infos[gpu.bus_id]


def _members(machine: Machine, scope: Scope) -> _Members:
    wanted = wants_domain(scope)
    gpus = situation.answering_gpus(machine, scope)
    infos: dict[BusId, Fabric] = {}
    unread: list[Gpu] = []
    unregistered: list[Gpu] = []
    outside: list[Gpu] = []
    inside: list[Gpu] = []
    for gpu in gpus:
        info = situation.fabric(gpu)
        if _unread(gpu, wanted=wanted):
            unread.append(gpu)
        elif info is None or not info.registered:
            unregistered.append(gpu)
        else:
            infos[gpu.bus_id] = info
            is_lost = not info.has_clique and (wanted or in_rack(machine, gpu))
            group = outside if is_lost else inside
            group.append(gpu)
    return _Members(
        wanted=wanted,
        unread=tuple(unread),
        unregistered=tuple(unregistered),
        outside=tuple(outside),
        inside=tuple(inside),
        registered=tuple(gpu for gpu in gpus if gpu.bus_id in infos),
        infos=infos,
    )


@check("fabric.domain", Guard.FABRIC, Guard.P2P, Guard.EGM)
def _domain(machine: Machine, scope: Scope) -> Verdicts:
    expected = scope.expectation
    members = _members(machine, scope)
    by_identity = group_by(members.registered, lambda gpu: (members.info(gpu).identity, _types(members.info(gpu))))
    for (identity, words), gpus in by_identity:
        yield fact(f"{INFO}({on_gpus(gpus).label})", f"cluster {identity[0] or 'none'}, clique {identity[1]}{words}")
    yield from _without_domain(machine, members)
    if members.inside:
        yield from _within_domain(machine, members, expected)
    if expected.domain_gpus is not None:
        yield unknown(f"whether the domain has {expected.domain_gpus} GPUs: 'egmctl fleet' counts them on all nodes")
    elif not (members.registered or members.unread or members.wanted or any(map(_is_away, members.unregistered))):
        skip("no GPU is registered in a fabric")


def _without_domain(machine: Machine, members: _Members) -> Verdicts:
    """Yield the findings on GPUs that are in no NVLink domain, or of which that is unknown."""
    for gpu in members.unread:
        reason = _unread(gpu, wanted=members.wanted)
        yield unknown(f"the NVLink domain or clique of these GPUs was not read ({reason})", gpu)
    for gpu in members.outside:
        problem = failed if members.wanted or members.inside else warned
        reason = "clique 0" if members.info(gpu).clique_id == 0 else "no cluster UUID"
        yield problem(f"outside the NVLink domain ({reason})", REJOIN, gpu, cause=ALONE, blocks=(Guard.FABRIC,))
    for gpu in members.unregistered:
        if members.wanted:
            yield failed("in no NVLink domain: not registered in a fabric", _manager_of(machine), gpu)
        elif _is_away(gpu):
            text = "outside the NVLink domain: in a slot of a rack, and not registered in its fabric"
            yield warned(text, REJOIN, gpu, cause=ALONE, blocks=(Guard.FABRIC,))


def _within_domain(machine: Machine, members: _Members, expected: Expectation) -> Verdicts:
    """Yield the finding on the GPUs that are registered and not outside: the first condition that holds."""
    inside = members.inside
    identities = {members.info(gpu).identity for gpu in inside}
    types = {_types(members.info(gpu)) for gpu in inside} - {""}
    # A document has the pseudonym of the cluster.
    cluster, clique = expected.clique or ("", 0)
    is_elsewhere = bool(cluster) and identities.isdisjoint(((cluster, clique), (replace_uuids(cluster), clique)))
    if len(identities) > 1:
        text = "Put the tray's GPUs into one partition of the fabric manager (NMX-C), then reset them."
        remedy = as_root(text, Need.GPU_RESET)
        cause = "GPUs of different cliques cannot be peers, nor import each other's fabric handles"
        yield failed("the GPUs of this node are in different NVLink domains or cliques", remedy, cause=cause)
    elif is_elsewhere:
        yield failed("in another NVLink domain or clique than expected", REJOIN, inside)
    elif len(types) > 1:
        yield noted("in one clique for pointers, but in different ones for multicast or logical endpoints", inside)
    elif situation.in_domain(machine):
        yield passed("in one clique of one NVLink domain", inside)
    else:
        yield passed("the fabric is this node's own", inside, note="there is no multi-node NVLink here")


def _is_away(gpu: Gpu) -> bool:
    """Return whether a GPU in a slot of a rack has no fabric at all. ``fabric.state`` has one that is not ready."""
    info = situation.fabric(gpu)
    return in_chassis(gpu) and (info is None or info.state == "not-supported")


def _types(info: Fabric) -> str:
    """Return the GPU's cliques by type, as the end of a sentence; empty if the driver does not report types."""
    return "".join(f", {name} {' '.join(map(str, ids))}" for name, ids in (info.cliques or {}).items())


def _unread(gpu: Gpu, *, wanted: bool) -> str:
    """Return why it is unknown if a GPU is in an NVLink domain, and in which; empty if that is known."""
    info = situation.fabric(gpu)
    if info is not None and info.state == "completed":
        return gap(info, "status", "cluster_uuid", "clique_id", newer=True)
    return gap(gpu.nvml, "fabric", newer=not wanted) if info is None else gap(info, "state")


MANAGER_VERSION = "the fabric manager's version"
_ONE_VERSION = as_root(
    "Install the fabric manager of exactly the loaded driver's version, and start it. If packages of both are newer "
    "than the loaded driver, reload the driver or reboot instead.",
    look="cat /proc/driver/nvidia/version; systemctl status nvidia-fabricmanager",
)


@dataclass(frozen=True, slots=True)
class _Versions:
    """The versions of a fabric manager and of a driver that differ."""

    manager: str
    driver: str

    def __str__(self) -> str:
        return f"the fabric manager is {self.manager}, and the driver {self.driver}"


def _other_version(machine: Machine) -> _Versions | None:
    """Return the versions of the fabric manager and the loaded driver if both are known and differ.

    The package's version counts on the host only: a container has packages and logs of its own, as has a fabric manager
    that runs in one. A log's version counts if it is of a program that refused the loaded driver and does not run: both
    may have been updated since.
    """
    driver, system = machine.driver or Driver(), machine.system or System()
    manager = system.fabric_manager or FabricManager()
    runs = "nv-fabricmanager" in (system.daemons or ())
    loaded = driver.module_version or driver.driver_version
    if loaded is None or situation.services_hidden(machine) or situation.in_container(machine):
        return None
    version = manager.version
    if runs and manager.runs_in != ("host",):
        version = None
    elif version is None and not runs and manager.refused_driver == loaded:
        version = manager.refused_by
    return None if version in (None, loaded) else _Versions(version, loaded)


@check("fabric.manager", Guard.FABRIC, Guard.P2P, sections=("gpus", "switches", "system"), wants=("driver",))
def _manager(machine: Machine, _scope: Scope) -> Verdicts:
    daemons, switches = (machine.system or System()).daemons, machine.switches or ()
    runs = "nv-fabricmanager" in (daemons or ())
    infos = [info for gpu in machine.gpus or () if (info := situation.fabric(gpu)) is not None]
    yield fact("NVSwitches on PCIe", len(switches))
    yield daemon_fact(daemons, "nv-fabricmanager")
    versions = _other_version(machine)
    if versions is not None:
        yield fact(MANAGER_VERSION, versions.manager)
        yield fact("/proc/driver/nvidia/version", versions.driver)
    if situation.in_domain(machine) and runs:
        text, run = "Stop it: the rack's switches have one.", "systemctl disable --now nvidia-fabricmanager"
        remedy = as_root(text, Need.NO_JOBS, run=run)
        yield warned("a fabric manager runs on a node whose fabric is managed from outside", remedy)
    elif not switches and not situation.manages_nvlink5(machine):
        yield skipped("this node has no NVSwitch: its fabric, if any, is managed elsewhere")
    elif runs:
        note = f"{versions}: it does not start again before both are of one version" if versions else ""
        yield passed("the fabric manager runs", note=note)
    elif infos and all(info.state == "completed" and not info.status for info in infos):
        yield passed("every GPU is registered in the fabric")
    elif daemons is None or situation.services_hidden(machine):
        yield unknown(NOT_VISIBLE)
    elif versions is not None:
        cause = "it works with the driver of its own version only (https://github.com/NVIDIA/gpu-operator/issues/544)"
        yield failed(f"{versions}, so that it does not start", _ONE_VERSION, cause=cause)
    else:
        remedy = as_root("Start the one of the driver's version.", run="systemctl enable --now nvidia-fabricmanager")
        cause = "it brings up the NVLinks; without it CUDA ends with CUDA_ERROR_SYSTEM_NOT_READY (802)"
        yield failed("no fabric manager runs for this node's NVSwitches", remedy, cause=cause)


@check("fabric.same-node-isolation", Guard.FABRIC, Guard.IPC)
def _isolation(machine: Machine, _scope: Scope) -> Verdicts:
    away = situation.lost(machine, *DENIED)
    of_job = own_job(machine, away)
    others = [gpu for gpu in away if gpu not in of_job.gpus]
    yield from accesses(away)
    if not away:
        yield passed("this process can import memory of every GPU")
    if of_job.gpus:
        remedy = todo("Give every rank all GPUs and choose with CUDA_VISIBLE_DEVICES: see dev.cgroup-restricted.")
        cause = "an import fails with 801, 101 or 1 where the device cgroup denies the owner (measured on H200)"
        text = "this process cannot import memory of these GPUs of its job, not even by fabric handle"
        yield noted(text, of_job.gpus, remedy=remedy, cause=cause, blocks=(Guard.IPC, Guard.FABRIC))
    if others:
        note = f"memory of {on_gpus(others).label} cannot be imported from another process, not even by fabric handle"
        yield passed("this process cannot open some GPUs", note=note)


MODULES = ("mlx5_core", "mlx5_ib", "ib_umad")
"""The kernel modules that the fabric manager and nvlsm need (https://github.com/NVIDIA/gpu-driver-container)."""


@check("fabric.management", Guard.FABRIC, Guard.P2P, sections=("gpus", "system"))
def _management(machine: Machine, _scope: Scope) -> Verdicts:
    if not situation.manages_nvlink5(machine):
        skip("no NVLink 5 fabric is managed from this node")
    system = machine.system or System()
    modules, daemons, devices = system.module_versions, system.daemons, system.nvlink_management
    states = {info.state for gpu in machine.gpus or () if (info := situation.fabric(gpu)) is not None}
    ports = [(device.name, port) for device in devices or () for port in device.ports]
    missing = [name for name in MODULES if name not in (modules or {})]
    yield fact("fabric", ", ".join(sorted(map(str, states))) or "not read")
    yield fact("/sys/module", None if modules is None else f"not loaded: {', '.join(missing) or 'none'}")
    yield daemon_fact(daemons, "nvlsm")
    shown = ", ".join(f"{name} {port.state or '?'}" for name, port in ports) or "none seen"
    yield fact("management devices (SW_MNG)", "not read (needs root)" if devices is None else shown)
    if states == {"completed"}:
        yield passed("the NVLink 5 switches are reachable: every GPU is registered")
    elif situation.virtual(machine) and not devices:
        yield skipped("in a virtual machine without management devices the host manages the switches")
    elif modules is None:
        yield unknown("the loaded kernel modules were not read")
    elif missing:
        run = f"modprobe -a {' '.join(missing)} && systemctl restart nvidia-fabricmanager"
        yield failed(
            f"{' and '.join(missing)} not loaded: nothing reaches the NVLink switches",
            as_root("Load them, now and at each boot, and restart the fabric manager.", Need.NO_JOBS, run=run),
            cause="the fabric then stays in progress (https://github.com/NVIDIA/gpu-operator/issues/2781)",
        )
    elif daemons is None or situation.services_hidden(machine):
        yield unknown(NOT_VISIBLE)
    elif "nvlsm" not in daemons:
        text, look = "Install nvlsm, then restart the fabric manager.", "systemctl status nvidia-fabricmanager"
        remedy = as_root(text, Need.NO_JOBS, look=look)
        cause = "the fabric manager ends without it (https://github.com/siderolabs/extensions/issues/717)"
        yield failed("nvlsm, the NVLink subnet manager, does not run", remedy, cause=cause)
    elif devices and not any(port.state == "ACTIVE" for _, port in ports):
        remedy = as_root("Check these devices and their switches; nvlsm brings their ports up.", look="ibstat")
        yield failed("no port of the switches' management devices is active", remedy)
    else:
        yield passed("the NVLink 5 switches are reachable")
