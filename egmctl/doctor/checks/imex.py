"""IMEX: the channel that fabric handles need, and the service that lets nodes import each other's memory."""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.compat import StrEnum
from egmctl.doctor.check import Check, Scope, failed, needing, noted, passed, skipped, unknown, warned
from egmctl.doctor.situation import NO_GPU, in_domain, needs_any_gpu, needs_domain, services_hidden, usable
from egmctl.model.finding import Evidence, Finding, Guard, Remedy, on_gpus
from egmctl.model.machine import DeviceNode, Driver, Imex, Machine, Reason, System

MAJOR = "nvidia-caps-imex-channels"
CHANNELS = f"/dev/{MAJOR}"
UNUSED = "not needed: the node is in no multi-node NVLink domain and --for fabric was not given"

CREATE = Remedy(
    text="Make a channel: on a host with nvidia-modprobe (or NVreg_CreateImexChannel0=1), in a container by asking "
    "for it (NVIDIA_IMEX_CHANNELS=0, a ComputeDomain claim in Kubernetes, switch/nvidia_imex in Slurm).",
    command="nvidia-modprobe -c 0",
    needs_root=True,
)


def _wanted(machine: Machine, scope: Scope) -> bool:
    """Say whether fabric handles are what this node or this user is about."""
    return in_domain(machine) or scope.asked_purpose(Guard.FABRIC)


@needing(needs_any_gpu)
def _module(machine: Machine, scope: Scope) -> Iterator[Finding]:
    driver = machine.driver or Driver()
    if not _wanted(machine, scope):
        yield skipped(UNUSED)
        return
    count = (driver.module_parameters or {}).get("ImexChannelCount")
    evidence = (
        Evidence(source=f"/proc/devices: {MAJOR}", value=str((driver.majors or {}).get(MAJOR, "not there"))),
        Evidence(source="/proc/driver/nvidia/params: ImexChannelCount", value=count or "not read"),
    )
    if count == "0":
        yield failed(
            "the driver was loaded without IMEX channels (NVreg_ImexChannelCount=0)",
            Remedy(
                text="Take NVreg_ImexChannelCount=0 out of /etc/modprobe.d, on all nodes of the domain, and reload "
                "the driver.",
                needs_root=True,
                needs_reboot=True,
            ),
            evidence=evidence,
        )
    elif driver.majors is None:
        yield unknown("/proc/devices was not read", evidence=evidence)
    elif MAJOR in driver.majors and driver.module_parameters is None:
        yield unknown("whether the driver was loaded without channels: its parameters were not read", evidence=evidence)
    elif MAJOR in driver.majors:
        yield passed("the driver has IMEX channels", evidence=evidence)
    else:
        yield failed(
            "the driver has no IMEX channels",
            Remedy(text="Use a driver of branch 550 or newer, with open kernel modules.", needs_root=True),
            evidence=evidence,
        )


@needing(needs_any_gpu)
def _channel(machine: Machine, scope: Scope) -> Iterator[Finding]:
    driver = machine.driver or Driver()
    channels = driver.imex_channels
    if channels is None:
        yield unknown(f"{CHANNELS} was not read")
        return
    major = (driver.majors or {}).get(MAJOR)
    good = [node for node in channels if node.access == "ok" and not _stale(node, major)]
    bad = [node for node in channels if node not in good]
    evidence = tuple(_node_evidence(node) for node in (good or bad)[:4]) or (
        Evidence(source=CHANNELS, value="empty or not there"),
    )
    if good and (good[0].major is None or major is None):
        yield unknown(
            f"whether IMEX {_name(good[0])} is stale: its major, or the driver's, was not read", evidence=evidence
        )
    elif good:
        others = f"{len(bad)} other channels are not accessible" if bad else ""
        yield passed(f"an IMEX channel is accessible ({_name(good[0])})", evidence=evidence, note=others)
    elif bad:
        tell = failed if _wanted(machine, scope) else warned
        yield tell(_why_not(bad[0], major), _remedy(bad[0], major), evidence=evidence, cause=REFUSED)
    elif scope.asked_purpose(Guard.FABRIC):
        yield failed("no IMEX channel: fabric handles fail", CREATE, evidence=evidence, cause=REFUSED)
    elif in_domain(machine) and ((machine.system or System()).imex or Imex()).compute_domains:
        yield skipped("Kubernetes' DRA driver gives each pod with a ComputeDomain an IMEX channel; the host needs none")
    elif in_domain(machine):
        yield warned("no IMEX channel on a node of an NVLink domain", CREATE, evidence=evidence, cause=REFUSED)
    else:
        yield skipped(
            "no IMEX channel, so fabric handles would fail; --for fabric makes that a fault", evidence=evidence
        )


REFUSED = "cuMemCreate and imports with a fabric handle end with CUDA_ERROR_NOT_PERMITTED (800) without a channel"


def _stale(node: DeviceNode, major: int | None) -> bool:
    return None not in (node.major, major) and node.major != major


def _name(node: DeviceNode) -> str:
    return node.path.rpartition("/")[2]


def _why_not(node: DeviceNode, major: int | None) -> str:
    if _stale(node, major):
        return f"the node of IMEX {_name(node)} is stale: its major is {node.major}, the driver's is {major}"
    words = {"EPERM": "the device cgroup denies it", "EACCES": "mode bits or a security module deny it"}
    return f"IMEX {_name(node)} cannot be used: {words.get(node.access or '', node.access or 'unknown reason')}"


def _remedy(node: DeviceNode, major: int | None) -> Remedy:
    if _stale(node, major):
        return Remedy(
            text="Remove the node and create it again: its major can change when the driver is reloaded.",
            command="rm -r /dev/nvidia-caps-imex-channels && nvidia-modprobe -c 0",
            needs_root=True,
        )
    if node.access == "EPERM":
        return Remedy(text="Assign the channel to this job or container: see the IMEX guide and the resource manager.")
    return Remedy(
        text="Make the channel readable and writable for its users.", command=f"chmod 0666 {node.path}", needs_root=True
    )


def _node_evidence(node: DeviceNode) -> Evidence:
    numbers = f"{'?' if node.major is None else node.major}:{'?' if node.minor is None else node.minor}"
    mode = "" if node.mode is None else f", mode {node.mode:04o}"
    errno = None if node.access == "ok" else node.access
    return Evidence(source=f"access({node.path})", value=f"{node.access or 'not read'}, {numbers}{mode}", errno=errno)


class _Manager(StrEnum):
    """Who runs IMEX on a node of an NVLink domain."""

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
    known = imex.kubelet is not None and imex.compute_domains is not None
    return _Manager.SERVICE if known and not (imex.kubelet or imex.compute_domains) else _Manager.KUBERNETES


BOTH = (
    "host-managed ComputeDomains of Kubernetes' DRA driver (0.5 and newer), and nodes without ComputeDomains, need the "
    "host's nvidia-imex on; driver-managed ones, the default, need it off (systemctl disable --now nvidia-imex)"
)
ONE_SESSION = (
    "the GPU driver has one IMEX session: the second daemon to start gets NV_ERR_IN_USE, and pods with a ComputeDomain "
    "hang while they start"
)


def _restart(machine: Machine, text: str) -> Remedy:
    """Return a remedy that restarts IMEX: as a service only where it certainly is one."""
    if _manager(machine) in (_Manager.SERVICE, _Manager.HOST_MANAGED):
        return Remedy(text=text, command="systemctl restart nvidia-imex", needs_root=True)
    return Remedy(text=f"{text} With driver-managed ComputeDomains IMEX runs in pods: delete these instead.")


def _daemon(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    system = machine.system or System()
    imex = system.imex or Imex()
    if not in_domain(machine):
        yield skipped("the GPUs are in no multi-node NVLink domain: within a node a channel is enough")
        return
    runs = "nvidia-imex" in (system.daemons or ())
    state = imex.daemon_state
    why = imex.unread.get("daemon_state")
    manager = _manager(machine)
    hidden = system.daemons is None or services_hidden(machine)
    evidence = (
        Evidence(
            source="/proc/*/comm: nvidia-imex",
            value="not read"
            if system.daemons is None
            else f"runs ({', '.join(imex.runs_in) if imex.runs_in else 'place not read'})"
            if runs
            else "not seen",
        ),
        Evidence(source="nvidia-imex-ctl -q", value=state or (why.detail or why.reason.value if why else "not asked")),
        *(() if manager is _Manager.SERVICE else (Evidence(source="managed by", value=manager),)),
    )
    restart = _restart(machine, "Restart the service on every node of the domain, and read /var/log/nvidia-imex.log.")
    if manager is _Manager.DRIVER_MANAGED:
        yield _driver_managed(imex, runs, evidence)
    elif state in (None, "UNAVAILABLE") and not runs and hidden:
        yield unknown("the host's IMEX service is not visible from here", evidence=evidence)
    elif state != "READY" and imex.session_in_use and (runs or manager is not _Manager.KUBERNETES):
        yield failed(
            "another IMEX daemon holds the GPU driver's session",
            Remedy(text=f"Run one of the two: {BOTH}.", needs_root=True),
            evidence=(*evidence, Evidence(source="/var/log/nvidia-imex.log", value="NV_ERR_IN_USE")),
            cause=ONE_SESSION,
        )
    elif manager is _Manager.KUBERNETES and (state == "READY" or (state in (None, "UNAVAILABLE") and not runs)):
        yield noted(
            "the IMEX service is ready"
            if state == "READY"
            else "the IMEX service does not run, and may have to be off",
            evidence=evidence,
            remedy=Remedy(text=f"Find out who manages IMEX here (docs/kubernetes.md): {BOTH}."),
        )
    elif state == "READY":
        yield passed("the IMEX service is ready", evidence=evidence)
    elif state is not None and state.startswith("WAITING"):
        yield warned(
            f"the IMEX service is waiting ({state})",
            restart,
            evidence=evidence,
            cause="peers of nodes_config.cfg do not answer",
        )
    elif state is not None and (runs or state != "UNAVAILABLE"):
        yield failed(f"the IMEX service is not ready ({state})", restart, evidence=evidence)
    elif runs and why is not None and why.reason.value == "timed-out":
        yield failed("the IMEX service runs but does not answer", restart, evidence=evidence)
    elif runs:
        yield unknown("the IMEX service runs; its state could not be queried", evidence=evidence)
    else:
        yield failed(
            "the IMEX service does not run on a node of an NVLink domain",
            Remedy(
                text="Start it on every node of the domain."
                if manager is _Manager.SERVICE
                else "Start it on every node of the domain, with a command socket (IMEX_CMD_UNIX_DOMAIN_PATH): its "
                "ComputeDomains are host-managed.",
                command="systemctl enable --now nvidia-imex",
                needs_root=True,
            ),
            evidence=evidence,
            cause="no memory of other nodes can be imported",
        )


def _driver_managed(imex: Imex, runs: bool, evidence: tuple[Evidence, ...]) -> Finding:
    """Judge a node on which a pod of Kubernetes' DRA driver runs IMEX while a ComputeDomain is there."""
    if imex.runs_in is None:
        return unknown("whether the host's IMEX service runs beside the DRA driver's is unknown", evidence=evidence)
    if "host" in imex.runs_in:
        return failed(
            "the host's IMEX service runs on a node whose ComputeDomains are driver-managed",
            Remedy(
                text="Turn the host's service off: Kubernetes' DRA driver starts its own.",
                command="systemctl disable --now nvidia-imex",
                needs_root=True,
            ),
            evidence=evidence,
            cause=ONE_SESSION,
        )
    if runs:
        return passed("the DRA driver's IMEX daemon runs", evidence=evidence, note="its pod's log says its state")
    return passed("no ComputeDomain is on this node: the DRA driver starts IMEX with one", evidence=evidence)


@needing(needs_domain)
def _domain(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    imex = (machine.system or System()).imex or Imex()
    if _manager(machine) is _Manager.DRIVER_MANAGED:
        yield skipped("each ComputeDomain has an IMEX domain of its own, which its pods tell")
        return
    why = imex.unread.get("domain_status")
    evidence = (
        Evidence(
            source="nvidia-imex-ctl -N -j",
            value=imex.domain_status or (why.detail or why.reason.value if why else "not asked"),
        ),
        Evidence(
            source="/etc/nvidia-imex/nodes_config.cfg",
            value="not read"
            if imex.configured_nodes is None
            else f"{imex.configured_nodes} nodes, {imex.duplicate_nodes or 0} of them twice",
        ),
    )
    remedy = Remedy(
        text="Find the node that is missing or of another version, and restart its service.",
        command="nvidia-imex-ctl -N",
    )
    if imex.domain_status == "DOWN":
        yield failed("the IMEX domain is down", remedy, evidence=evidence)
    elif imex.domain_status == "DEGRADED":
        yield warned("the IMEX domain is degraded: some nodes are not in it", remedy, evidence=evidence)
    elif imex.duplicate_nodes:
        yield warned(
            "nodes_config.cfg lists an address twice",
            Remedy(
                text="Correct /etc/nvidia-imex/nodes_config.cfg, the same on all nodes, and restart the service.",
                needs_root=True,
            ),
            evidence=evidence,
        )
    elif imex.domain_status == "UP" and imex.duplicate_nodes is None and not _has_no_file(imex):
        yield unknown("whether nodes_config.cfg lists an address twice was not read", evidence=evidence)
    elif imex.domain_status == "UP":
        yield passed("the IMEX domain is up", evidence=evidence)
    else:
        yield unknown("the state of the IMEX domain could not be queried", evidence=evidence)


def _has_no_file(imex: Imex) -> bool:
    """Say whether there is no nodes_config.cfg, as where something else than the host's service has its own."""
    why = imex.unread.get("duplicate_nodes")
    return why is not None and why.reason is Reason.NOT_PRESENT


def _recovery(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus = usable(machine, scope.gpus_of(machine))
    told = [gpu for gpu in gpus if gpu.nvml and gpu.nvml.recovery_action is not None]
    waiting = [gpu for gpu in told if gpu.nvml and gpu.nvml.recovery_action == "recover-imex-domain"]
    source = "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION"
    if waiting:
        yield failed(
            "the driver has disabled fabric allocations until the IMEX domain is recovered",
            _restart(
                machine, "Restart nvidia-imex on the domain's nodes, after the jobs that share memory have ended."
            ),
            place=on_gpus(waiting),
            evidence=(Evidence(source=source, value="recover-imex-domain"),),
            cause="an IMEX daemon stopped while memory of other nodes was in use",
        )
        return
    if not in_domain(machine) or not gpus:
        yield skipped(NO_GPU if in_domain(machine) else "the GPUs are in no multi-node NVLink domain")
        return
    if told:
        yield passed("no IMEX recovery is pending", place=on_gpus(told))
    if unread := [gpu for gpu in gpus if gpu not in told]:
        yield unknown("NVML does not report whether a recovery is pending", place=on_gpus(unread))


CHECKS = (
    Check("imex.module", _module, guards=(Guard.FABRIC,), sections=("gpus", "driver")),
    Check("imex.channel", _channel, guards=(Guard.FABRIC,), sections=("gpus", "driver"), wants=("system",)),
    Check("imex.daemon", _daemon, guards=(Guard.FABRIC,), sections=("gpus", "system")),
    Check("imex.domain", _domain, guards=(Guard.FABRIC, Guard.EGM), sections=("gpus", "system")),
    Check("imex.recovery", _recovery, guards=(Guard.FABRIC,), sections=("gpus",), wants=("system",)),
)
