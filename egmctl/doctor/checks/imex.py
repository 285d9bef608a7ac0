"""Checks of IMEX: the channel that fabric handles need, and the service for imports of memory of other nodes."""

from __future__ import annotations

import re
from dataclasses import replace

from egmctl.compat import StrEnum
from egmctl.doctor.check import Scope, Verdicts, check, end, known, skip
from egmctl.doctor.findings import fact, failed, gap, noted, passed, skipped, unknown, warned
from egmctl.doctor.remedies import site
from egmctl.doctor.restrictions import node_evidence
from egmctl.doctor.situation import (
    NO_NVIDIA_GPU,
    in_container,
    in_domain,
    need_domain,
    numbers,
    services_hidden,
    usable_gpus,
)
from egmctl.model.finding import Guard, Status
from egmctl.model.host import DeviceNode, Driver, Imex, Process, System
from egmctl.model.machine import Machine
from egmctl.model.record import Reason
from egmctl.model.remedy import IN_CONTAINER, Need, Remedy, Site, as_root, remove_option, todo
from egmctl.topology.access import Block, device_node_obstacle

MAJOR = "nvidia-caps-imex-channels"
CHANNELS = f"/dev/{MAJOR}"
BLOCKS = (Guard.FABRIC,)
FIRST_BRANCH = (550,)
"""The first driver branch with IMEX channels (NVIDIA's IMEX guide)."""
REFUSED = "cuMemCreate and imports with a fabric handle end with CUDA_ERROR_NOT_PERMITTED (800) without a channel"


@check("imex.module", Guard.FABRIC, sections=("gpus", "driver"))
def _module(machine: Machine, _scope: Scope) -> Verdicts:
    if not machine.gpus:
        skip(NO_NVIDIA_GPU)
    # Only fabric handles need channels, and outside of an NVLink domain nothing but --for fabric asks for them.
    status = Status.FAIL if in_domain(machine) else Status.SKIP
    driver = machine.driver or Driver()
    count = (driver.module_parameters or {}).get("ImexChannelCount")
    yield fact(f"/proc/devices: {MAJOR}", (driver.majors or {}).get(MAJOR, "not there"))
    yield fact("NVreg_ImexChannelCount", count)
    if count == "0":
        option = remove_option("NVreg_ImexChannelCount=0 (on all nodes of the domain)")
        yield replace(failed("the driver was loaded without IMEX channels", option, blocks=BLOCKS), status=status)
    elif MAJOR not in known(driver.majors, "/proc/devices was not read"):
        remedy = as_root("Look in the kernel log for nv-caps-imex, and reload the driver.", Need.DRIVER_RELOAD)
        if (numbers(driver.driver_version or driver.module_version) or (0,)) < FIRST_BRANCH:
            text = "Use a driver of branch 550 or newer, with open kernel modules."
            remedy = as_root(text, Need.DRIVER_RELOAD)
        yield replace(failed("the driver has no IMEX channels", remedy, blocks=BLOCKS), status=status)
    else:
        known(driver.module_parameters, "whether the driver was loaded without channels: its parameters were not read")
        yield passed("the driver has IMEX channels")


def _in_slurm_job(machine: Machine) -> bool:
    """Return whether this process is in a job of Slurm, which would have made a channel for it."""
    return "SLURM_JOB_ID" in ((machine.process or Process()).environment or {})


@check("imex.channel", Guard.FABRIC, sections=("gpus", "driver"), wants=("system",))
def _channel(machine: Machine, _scope: Scope) -> Verdicts:
    if not machine.gpus:
        skip(NO_NVIDIA_GPU)
    driver = machine.driver or Driver()
    major = (driver.majors or {}).get(MAJOR)
    channels = known(driver.imex_channels, f"{CHANNELS} was not read")
    good = [node for node in channels if node.access == "ok" and device_node_obstacle(node, (major, None)) is None]
    bad = [node for node in channels if node not in good]
    yield from node_evidence((good or bad)[:4])
    if not channels:
        yield fact(CHANNELS, "empty or not there")
    if good and None in (good[0].kind, good[0].major, major):
        yield unknown(f"whether {good[0].path} is stale: its type or major, or the driver's major, was not read")
    elif good:
        others = f"{len(bad)} other channels are not accessible" if bad else ""
        yield passed(f"an IMEX channel is accessible ({good[0].path.rpartition('/')[2]})", note=others)
    elif bad:
        report = failed if in_domain(machine) else warned
        yield report(*_refusal(machine, bad[0], major), cause=REFUSED, blocks=BLOCKS)
    elif in_domain(machine) and ((machine.system or System()).imex or Imex()).compute_domains:
        by_pod = "no IMEX channel: Kubernetes' DRA driver gives one to each pod with a ComputeDomain, not to the host"
        yield skipped(by_pod, remedy=_create(machine), cause=REFUSED, blocks=BLOCKS)
    elif in_domain(machine) and (in_container(machine) or _in_slurm_job(machine)):
        no_channel = "no IMEX channel on a node of an NVLink domain"
        yield warned(no_channel, _create(machine), cause=REFUSED, blocks=BLOCKS)
    elif in_domain(machine):
        note = (
            "right where Slurm (switch/nvidia_imex) or Kubernetes makes one for each job; --for fabric makes it a fault"
        )
        no_channel = "no IMEX channel outside of a job"
        yield noted(no_channel, note=note, cause=REFUSED, remedy=_create(machine), blocks=BLOCKS)
    else:
        yield skipped("no IMEX channel: fabric handles fail", remedy=_create(machine), cause=REFUSED, blocks=BLOCKS)


def _create(machine: Machine) -> Remedy:
    """Return the remedy for a missing channel: a request to whoever makes channels here, or the commands of root.

    https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/imexchannels.html: mknod with the driver's major, or
    the module parameter NVreg_CreateImexChannel0 where one user has the node.
    """
    match site(machine):
        case Site.POD:
            return todo("Request a ComputeDomain for the pod: Kubernetes' DRA driver makes its channel.")
        case Site.CONTAINER:
            return todo(
                "Start the container with a channel of the host (NVIDIA_IMEX_CHANNELS=0, or by CDI). If the host has "
                "none, its administrator makes one with mknod."
            )
        case Site.JOB:
            return todo(
                "Ask for a channel of the job: Slurm's plugin switch/nvidia_imex makes one for each. Without it the "
                "administrator makes one with mknod, or NVreg_CreateImexChannel0=1."
            )
    major = ((machine.driver or Driver()).majors or {}).get(MAJOR)
    return as_root(
        "Make a channel, and give it the owner and mode of its users, whose memory it keeps apart from others'. Where "
        "one user has the node, and neither Slurm nor Kubernetes makes channels, NVreg_CreateImexChannel0=1 in "
        "/etc/modprobe.d makes it at each load of the driver.",
        look=f"grep {MAJOR} /proc/devices",
        run=None if major is None else f"mkdir -p {CHANNELS} && mknod -m 0600 {CHANNELS}/channel0 c {major} 0",
    )


def _refusal(machine: Machine, node: DeviceNode, major: int | None) -> tuple[str, Remedy]:
    """Return the summary and remedy for a channel that cannot be used."""
    stopped = device_node_obstacle(node, (major, None))
    remedy = todo(
        "Ask for a channel of this user's own, or for membership of the group that owns this one: a channel keeps the "
        "memory of its users apart from others'.",
        look=f"ls -l {CHANNELS}",
    )
    if stopped and stopped.block is Block.STALE_NODE:
        remedy = _remake(machine, node, major)
    elif stopped and stopped.block is Block.DEVICE_CGROUP:
        remedy = todo("Assign the channel to this job or container: see the IMEX guide and the resource manager.")
    reason = stopped.cause if stopped else node.access or "unknown reason"
    return f"an IMEX channel cannot be used: {reason}", remedy


def _remake(machine: Machine, node: DeviceNode, major: int | None) -> Remedy:
    """Return the remedy for a channel's node with the numbers of an earlier load of the driver."""
    if site(machine) in IN_CONTAINER:
        return todo("Start the container again: its channel is of an earlier load of the driver. On the host: mknod.")
    text = "Remove this one node and make it again (mknod) with the driver's major, its owner and its mode."
    channel = re.fullmatch(rf"{CHANNELS}/channel([0-9]{{1,4}})", node.path)
    if channel is None or major is None:
        return as_root(text, look=f"grep {MAJOR} /proc/devices")
    mode = 0o600 if node.mode is None else node.mode & 0o777
    run = f"rm {node.path} && mknod -m {mode:04o} {node.path} c {major} {int(channel[1])}"
    if node.uid is not None and node.gid is not None:
        run += f" && chown {node.uid}:{node.gid} {node.path}"
    return as_root(text, look=f"ls -l {CHANNELS}", run=run)


class _Manager(StrEnum):
    """The managers of IMEX on a node of an NVLink domain."""

    SERVICE = "the host's service"
    HOST_MANAGED = "the host's service, for Kubernetes' ComputeDomains"
    DRIVER_MANAGED = "Kubernetes' DRA driver, in pods"
    KUBERNETES = "Kubernetes is here; which of the two is unknown"


def _manager(machine: Machine) -> _Manager:
    imex = (machine.system or System()).imex or Imex()
    if imex.compute_domain_mode == "hostManaged":
        return _Manager.HOST_MANAGED
    if imex.compute_domain_mode == "driverManaged" or "pod" in (imex.runs_in or ()):
        return _Manager.DRIVER_MANAGED
    is_plain = imex.kubelet is False and imex.compute_domains is False
    return _Manager.SERVICE if is_plain else _Manager.KUBERNETES


BOTH = (
    "host-managed ComputeDomains of Kubernetes' DRA driver (0.5 and newer), and nodes without ComputeDomains, need the "
    "host's nvidia-imex on; driver-managed ones, the default, need it off (systemctl disable --now nvidia-imex)"
)
ONE_SESSION = (
    "the GPU driver has one IMEX session: the second daemon to start gets NV_ERR_IN_USE, and pods with a ComputeDomain "
    "hang while they start"
)


FIND = todo(
    "Find the node that is missing or of another version, and start or update its service: the others need nothing.",
    look="nvidia-imex-ctl -N",
)


def _restart(machine: Machine, text: str) -> Remedy:
    """Return a remedy that restarts IMEX, with a command if it is known to be a host service."""
    if _manager(machine) in (_Manager.SERVICE, _Manager.HOST_MANAGED):
        return as_root(text, Need.NO_DOMAIN_JOBS, run="systemctl restart nvidia-imex")
    return todo(f"{text} With driver-managed ComputeDomains IMEX runs in pods: delete these instead.")


def _without_domain(machine: Machine) -> Verdicts:
    """Yield a finding if IMEX is set up for several nodes that no NVLink joins; then end the check."""
    system = machine.system or System()
    nodes = (system.imex or Imex()).configured_nodes or 0
    fabrics = [gpu.nvml.fabric for gpu in machine.gpus or () if gpu.nvml is not None and gpu.nvml.fabric is not None]
    alone = bool(fabrics) and all(info.state == "completed" and not info.has_cluster for info in fabrics)
    if alone and nodes > 1 and "nvidia-imex" in (system.daemons or ()) and not in_domain(machine):
        yield fact("/etc/nvidia-imex/nodes_config.cfg", f"{nodes} nodes")
        summary = f"IMEX is set up for {nodes} nodes, and no multi-node NVLink joins this one to another"
        cause = "fabric handles are imported over NVLink only, within one domain such as an NVL72 rack"
        network = todo("Use the network between these nodes (NCCL_MNNVL_ENABLE=0, RDMA), and turn IMEX off here.")
        end(noted(summary, remedy=network, cause=cause, blocks=BLOCKS))


@check("imex.daemon", Guard.FABRIC, sections=("gpus", "system"), wants=("driver",))
def _daemon(machine: Machine, _scope: Scope) -> Verdicts:
    yield from _without_domain(machine)
    need_domain(machine)
    system = machine.system or System()
    imex, manager = system.imex or Imex(), _manager(machine)
    runs, state = "nvidia-imex" in (system.daemons or ()), imex.daemon_state
    places = ", ".join(imex.runs_in or ()) or "place not read"
    state_text = f"runs ({places})" if runs else "not seen"
    yield fact("/proc/*/comm: nvidia-imex", None if system.daemons is None else state_text)
    yield fact("nvidia-imex-ctl -q", state or gap(imex, "daemon_state"))
    if manager is not _Manager.SERVICE:
        yield fact("managed by", manager)
    restart = _restart(machine, "Read /var/log/nvidia-imex.log, then restart the service of this node.")
    no_answer = state in (None, "UNAVAILABLE")
    if manager is _Manager.DRIVER_MANAGED:
        yield from _driver_managed(imex, runs)
    elif no_answer and not runs and (system.daemons is None or services_hidden(machine)):
        yield unknown("the host's IMEX service is not visible from here")
    elif state != "READY" and imex.session_in_use and (runs or manager is not _Manager.KUBERNETES):
        yield fact("/var/log/nvidia-imex.log", "NV_ERR_IN_USE")
        remedy = as_root(f"Run one of the two: {BOTH}.", Need.NO_DOMAIN_JOBS)
        yield failed("another IMEX daemon holds the GPU driver's session", remedy, cause=ONE_SESSION)
    elif state not in (None, "READY") and runs and _is_of_another_version(machine):
        yield fact("/var/log/nvidia-imex.log: version", imex.version)
        loaded = (machine.driver or Driver()).module_version
        text = "Install IMEX of exactly the driver's version on each node of the domain, and restart its service."
        summary = f"the IMEX service is {imex.version}, and the driver {loaded}: it is not ready ({state})"
        cause = "IMEX works with the driver of its own version"
        yield failed(summary, as_root(text, Need.NO_DOMAIN_JOBS, look="nvidia-imex-ctl -N"), cause=cause)
    elif manager is _Manager.KUBERNETES and (state == "READY" or (no_answer and not runs)):
        remedy = todo(f"Find out who manages IMEX here (docs/kubernetes.md): {BOTH}.")
        off_text = "the IMEX service does not run, and may have to be off"
        yield noted("the IMEX service is ready" if state == "READY" else off_text, remedy=remedy)
    elif state == "READY" and imex.unanswered_unimport:
        yield fact("/var/log/nvidia-imex.log", "no response for an unimport event")
        cause = "memory that this node exported stays allocated until that node answers or leaves the domain"
        summary = (
            "the IMEX service is ready; another node did not answer at least once since the service started, when "
            "memory was released"
        )
        remedy = todo("See whether a node of the domain does not answer now.", look="nvidia-imex-ctl -N")
        yield noted(summary, remedy=remedy, cause=cause)
    elif state == "READY":
        yield passed("the IMEX service is ready")
    elif state is not None and state.startswith("WAITING"):
        cause = "peers of nodes_config.cfg do not answer"
        yield warned(f"the IMEX service is waiting ({state})", FIND, cause=cause)
    elif state is not None and (runs or state != "UNAVAILABLE"):
        yield failed(f"the IMEX service is not ready ({state})", restart)
    elif runs and imex.reason_of("daemon_state") is Reason.TIMED_OUT:
        yield failed("the IMEX service runs but does not answer", restart)
    elif runs:
        yield unknown("the IMEX service runs; its state could not be queried")
    else:
        socket = ", for host-managed ComputeDomains with a command socket (IMEX_CMD_UNIX_DOMAIN_PATH)"
        condition = "" if manager is _Manager.SERVICE else socket
        text = f"Start it, on each node of the domain that lacks it{condition}."
        start = as_root(text, run="systemctl enable --now nvidia-imex")
        yield failed("the IMEX service does not run on a node of an NVLink domain", start)


def _is_of_another_version(machine: Machine) -> bool:
    """Return whether the log of IMEX states another version than the loaded driver's."""
    imex, loaded = (machine.system or System()).imex or Imex(), (machine.driver or Driver()).module_version
    return None not in (imex.version, loaded) and imex.version != loaded


def _driver_managed(imex: Imex, runs: bool) -> Verdicts:
    """Yield the finding on a node where a pod of Kubernetes' DRA driver runs IMEX for each ComputeDomain."""
    locations = known(imex.runs_in, "whether the host's IMEX service runs beside the DRA driver's is unknown")
    if "host" in locations:
        text, run = "Turn it off: the DRA driver starts its own.", "systemctl disable --now nvidia-imex"
        remedy = as_root(text, Need.NO_DOMAIN_JOBS, run=run)
        conflict = "the host's IMEX service runs on a node whose ComputeDomains are driver-managed"
        yield failed(conflict, remedy, cause=ONE_SESSION)
    elif runs:
        yield passed("the DRA driver's IMEX daemon runs", note="its pod's log says its state")
    else:
        yield passed("no ComputeDomain is on this node: the DRA driver starts IMEX with one")


_UNIQUE = "the ids of the nodes must be unique and the same on all nodes"


@check("imex.domain", Guard.FABRIC, Guard.EGM, sections=("gpus", "system"))
def _domain(machine: Machine, _scope: Scope) -> Verdicts:
    need_domain(machine)
    imex = (machine.system or System()).imex or Imex()
    nodes, duplicates, state = imex.configured_nodes, imex.duplicate_nodes, imex.domain_status
    if _manager(machine) is _Manager.DRIVER_MANAGED:
        skip("each ComputeDomain has an IMEX domain of its own: see its pods")
    yield fact("nvidia-imex-ctl -N -j", state or gap(imex, "domain_status"))
    config = "/etc/nvidia-imex/nodes_config.cfg"
    yield fact(config, None if nodes is None else f"{nodes} nodes, {duplicates or 0} of them twice")
    text = f"Correct {config}, the same on all nodes, and restart the service there."
    correct, twice = as_root(text, Need.NO_DOMAIN_JOBS), "nodes_config.cfg lists an address twice"
    if state == "DOWN" and duplicates:
        yield failed(f"the IMEX domain is down: {twice}", correct, cause=_UNIQUE)
    elif state == "DOWN":
        yield failed("the IMEX domain is down", FIND)
    elif state == "DEGRADED" and duplicates:
        yield warned(f"the IMEX domain is degraded: {twice}", correct, cause=_UNIQUE)
    elif state == "DEGRADED":
        yield warned("the IMEX domain is degraded: some nodes are not in it", FIND)
    elif duplicates:
        yield warned(twice, correct, cause=_UNIQUE)
    elif state != "UP":
        yield unknown("the state of the IMEX domain could not be queried")
    else:
        # The file is missing if IMEX is not the host's service and has its own configuration.
        if imex.reason_of("duplicate_nodes") is not Reason.NOT_PRESENT:
            known(duplicates, "whether nodes_config.cfg lists an address twice was not read")
        yield passed("the IMEX domain is up")


@check("imex.recovery", Guard.FABRIC, wants=("system",))
def _recovery(machine: Machine, scope: Scope) -> Verdicts:
    actions = {gpu.bus_id: gpu.nvml.recovery_action for gpu in machine.gpus or () if gpu.nvml}
    if waiting := [gpu for gpu in scope.gpus_of(machine) if actions.get(gpu.bus_id) == "recover-imex-domain"]:
        text = "Restart nvidia-imex on the domain's nodes, after the jobs that share memory have ended."
        disabled = "the driver has disabled fabric allocations until the IMEX domain is recovered"
        yield fact("NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", "recover-imex-domain")
        cause = "an IMEX daemon stopped while memory of other nodes was in use"
        yield failed(disabled, _restart(machine, text), waiting, cause=cause)
        return
    need_domain(machine)
    for gpu in usable_gpus(machine, scope):
        unread = unknown("NVML does not report whether a recovery is pending", gpu)
        yield unread if actions[gpu.bus_id] is None else passed("no IMEX recovery is pending", gpu)
