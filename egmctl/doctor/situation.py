"""Where doctor runs: on the host, in a container, in a job; whose restrictions apply, and what this process may use."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from egmctl.doctor.check import Check, Scope, Verdicts, about, check, known, skip
from egmctl.doctor.findings import as_root, fact, todo
from egmctl.model.finding import Confidence, Evidence, Guard, Remedy, on_gpus
from egmctl.model.gpu import Fabric, Gpu, GpuNvml, Pair
from egmctl.model.host import INITIAL_NAMESPACES, Confinement, DeviceNode, DeviceUnit, Driver, Host, Process
from egmctl.model.kernel_log import DriverMessage
from egmctl.model.machine import Machine
from egmctl.model.record import Reason
from egmctl.topology.access import Block, Step, classify, elsewhere, obstacle
from egmctl.topology.platform import C2c, c2c, egm, multi_node
from egmctl.topology.routes import owners
from egmctl.units import grouped

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

_NVLINK_5, _BLACKWELL = 7, 10
"""``NVML_NVLINK_VERSION_5_0`` of nvml.h, and the compute capability's major number."""

NOT_EGM = "not an EGM platform: no GPU has NVLink-C2C"
NO_GPU = "no required GPU can be used from here; the dev.* checks say why"
NOT_COHERENT = "no GPU has NVLink-C2C"
NO_NVIDIA_GPU = "there is no NVIDIA GPU"
NO_DOMAIN = "the GPUs are in no multi-node NVLink domain"
NO_COHERENT_GPU = "none of these GPUs has NVLink-C2C, though others of this node have"


def coherent(machine: Machine) -> bool | None:
    """Say whether GPUs reach the CPUs' memory over NVLink-C2C; ``None`` where no GPU's link was told."""
    states = [c2c(machine, gpu) for gpu in machine.gpus or ()]
    if any(state in (C2c.UP, C2c.DOWN) for state in states):
        return True
    return None if C2c.UNKNOWN in states else False


def coherent_gpus(machine: Machine, gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs that have NVLink-C2C, or of which it is unknown.

    Coherence belongs to a GPU: a DGX Station has a GB300 on its Grace CPU and may have another card on PCIe
    (https://github.com/NVIDIA/dgx-spark-playbooks).
    """
    return tuple(gpu for gpu in gpus if c2c(machine, gpu) is not C2c.ABSENT)


def usable(machine: Machine, gpus: Iterable[Gpu]) -> tuple[Gpu, ...]:
    """Return the GPUs that NVML lists: what is lost is told by the checks of access."""
    return tuple(gpu for gpu in gpus if gpu.nvml is not None and obstacle(machine, gpu) is None)


def fabric(gpu: Gpu) -> Fabric | None:
    """Return what NVML says of a GPU's fabric, ``None`` where that is nothing."""
    return gpu.nvml.fabric if gpu.nvml else None


def in_domain(machine: Machine) -> bool:
    """Say whether a GPU of this node is in a multi-node NVLink domain."""
    return any(multi_node(machine, gpu) for gpu in machine.gpus or ())


def manages_nvlink5(machine: Machine) -> bool:
    """Say whether this node's own services run an NVLink 5 fabric: HGX B200 and newer, whose switches are on the board.

    A tray with NVLink-C2C has its switches in the rack. NVLink 5 is told by NVML's version of a link, or, where no link
    is up, by the GPU's architecture (compute capability 10.x).
    """
    return any(
        gpu.nvml is not None and _has_nvlink5(gpu.nvml) and c2c(machine, gpu) is C2c.ABSENT
        for gpu in machine.gpus or ()
    )


def _has_nvlink5(nvml: GpuNvml) -> bool:
    links = nvml.nvlinks or ()
    versions = (link.version for link in links if link.version is not None)
    is_blackwell = (nvml.compute_capability or (0, 0))[0] == _BLACKWELL
    return bool(links) and (is_blackwell or any(version >= _NVLINK_5 for version in versions))


def in_container(machine: Machine) -> bool:
    """Say whether there are signs of a container."""
    return bool(machine.process and machine.process.container_signs)


def services_hidden(machine: Machine) -> bool:
    """Say whether a service of the host may run unseen, because this process sees those of its PID namespace only."""
    namespaces = (machine.confinement or Confinement()).namespaces or {}
    number = namespaces.get("pid")
    return in_container(machine) if number is None else number != INITIAL_NAMESPACES["pid"]


def driver_parameters(machine: Machine) -> Mapping[str, str]:
    """Return the parameters of the driver's module; end the check where they were not read."""
    return known((machine.driver or Driver()).module_parameters, "the driver's parameters were not read")


def virtual(machine: Machine) -> bool:
    """Say whether the GPUs are handed into a virtual machine."""
    modes = {gpu.nvml.virtualization for gpu in machine.gpus or () if gpu.nvml}
    return bool(modes & {"passthrough", "vgpu"})


def by_value(things: Iterable[T], value: Callable[[T], K]) -> Iterator[tuple[K, tuple[T, ...]]]:
    """Return the things with equal values together, in the order of the first of each."""
    for key, members in grouped((value(thing), thing) for thing in things).items():
        yield key, tuple(members)


def loss(machine: Machine, gpu: Gpu) -> Block | None:
    """Return what keeps a GPU from this process, ``None`` where nothing does."""
    stopped = classify(machine, gpu)
    return None if stopped is None else stopped.block


def lost(machine: Machine, *blocks: Block) -> list[Gpu]:
    """Return the GPUs that are lost in one of these ways."""
    return [gpu for gpu in machine.gpus or () if loss(machine, gpu) in blocks]


def funnel(machine: Machine, gpus: Iterable[Gpu]) -> dict[Step, int | None]:
    """Return how many GPUs get how far; ``None`` for a library that was not asked or did not answer."""
    obstacles = [classify(machine, gpu) for gpu in gpus]
    reached = [Step.WHOLE if stopped is None else stopped.block.step for stopped in obstacles]
    counts: dict[Step, int | None] = {
        step: sum(lost > step or step is Step.PCI for lost in reached)
        for step in (Step.PCI, Step.DRIVER, Step.NODE, Step.ACCESS)
    }
    for step, library in ((Step.NVML, "nvml"), (Step.CUDA, "cuda")):
        listed = sum(getattr(gpu, library) is not None for gpu in gpus)
        unread = [gpu.unread[library] for gpu in gpus if library in gpu.unread]
        # A library that was asked and lists none of these GPUs says so of each.
        asked = listed or any(reason.reason is Reason.NOT_PRESENT for reason in unread)
        counts[step] = listed if asked and not elsewhere(machine) else None
    return counts


def requested(machine: Machine, scope: Scope, gpu: Gpu) -> bool:
    """Say whether the user wants this GPU: by ``--gpus``, or by ``--expect``."""
    if scope.asked_for(gpu):
        return True
    expected = scope.expectation
    if expected is None:
        return False
    if expected.reference is not None:
        usable_there = (other for other in expected.reference.gpus or () if loss(expected.reference, other) is None)
        return any(other.bus_id == gpu.bus_id for other in usable_there)
    return expected.gpus is not None and expected.gpus > sum(loss(machine, gpu) is None for gpu in machine.gpus or ())


def routers(machine: Machine, scope: Scope) -> dict[int, tuple[Gpu, ...]]:
    """Return the GPUs that EGM traffic to each CPU NUMA node in scope can be routed through: those that sit on it."""
    return {node: gpus for node in scope.numa_of(machine) if (gpus := owners(machine, node))}


def may_have_egm(machine: Machine) -> bool:
    """Say whether EGM is or may be on: a GPU says so, or only GPUs that cannot be asked sit on a Grace CPU."""
    listed = [gpu for gpu in machine.gpus or () if gpu.nvml is not None]
    bits = [gpu.nvml.egm_capable for gpu in listed if gpu.nvml is not None and gpu.nvml.egm_capable is not None]
    if bits:
        return any(bits)
    if any(c2c(machine, gpu) is C2c.UP for gpu in listed):
        return True
    return not listed and "Grace" in ((machine.host and machine.host.cpu_model) or "")


SLURM_PROGRAM, SYSTEMD_PROGRAM = "Slurm_Cgroup_v2", "sd_devices"
_PROGRAMS = "bpf(BPF_PROG_QUERY)"
_ALL_DEVICES = "a *:* rwm"
_CHOOSE = "and choose among them with CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manager:
    """The program that decides over the devices of a process, by what sign, and what to ask of it."""

    name: str
    """As it follows "set by": ``Slurm for this task``, ``Docker``."""
    sign: Evidence | None
    remedy: Remedy
    confidence: Confidence = Confidence.HIGH


def policy(machine: Machine, by: Manager) -> str:
    """Return who set a restriction, by what sign, and on which cgroup: a clause for a finding's cause."""
    words = "owner unknown"
    if by.name:
        words = f"set by {by.name}" + (f" ({by.sign.source}: {by.sign.value})" if by.sign else "")
    process, confinement = machine.process or Process(), machine.confinement or Confinement()
    own = device_path(process, confinement)
    # Of version 2 the limit is on the lowest cgroup with a device program. Of version 1 it is on the highest one whose
    # list is no longer that of all devices; a list of denials prints that of all devices too, so it tells nothing.
    programs = [program.cgroup for program in confinement.device_programs or () if program.cgroup is not None]
    lists = [entry.cgroup for entry in confinement.device_lists if entry.rules and entry.rules != (_ALL_DEVICES,)]
    limited = max(programs, key=len) if programs else next(iter(lists), None)
    if limited is not None and limited != own:
        return f"{words}; the limit is on {limited}, an ancestor of this process' cgroup {own}"
    return f"{words}; the cgroup is {own}" if own.strip("/") and not by.name else words


def manager(machine: Machine, *, of_container: bool = False) -> Manager:
    """Return who decides over the devices of the process: the surest sign first.

    Parameters
    ----------
    of_container
        Whether it can only have been who started the container, as for device nodes that are not in it. A cgroup below
        the top one that is seen is somebody else's.
    """
    process, confinement = machine.process or Process(), machine.confinement or Confinement()
    path = device_path(process, confinement)
    by_path = Evidence(source=f"/proc/{process.pid or 'self'}/cgroup", value=path)
    programs = {program.name: program.cgroup or path for program in confinement.device_programs or () if program.name}
    # The container's own cgroup is the top one that is seen, with no program attached below it.
    is_top = all(program.cgroup in (None, "/") for program in confinement.device_programs or ())
    of_container = of_container or (path in ("", "/") and is_top)
    variables = {*(process.environment or {}), *(process.container_signs or ())}
    if SLURM_PROGRAM in programs:
        cgroup = programs[SLURM_PROGRAM]
        return _slurm(machine, Evidence(source=_PROGRAMS, value=f"{SLURM_PROGRAM} on {cgroup}"), cgroup)
    for name, kind, pattern, confidence in _SIGNS:
        matches, sign = {
            "path": (re.search(pattern, path) is not None, by_path),
            "variable": (pattern in variables, fact("environment", f"{pattern} is set")),
            "file": (of_container and pattern in (process.container_signs or ()), fact(pattern, "is there")),
        }[kind]
        if matches and name == "Slurm":
            return replace(_slurm(machine, sign), confidence=confidence)
        if matches:
            return Manager(name=name, sign=sign, remedy=_REMEDIES.get(name, _CONTAINER), confidence=confidence)
    return _systemd(path, programs, confinement.device_units) or Manager(
        name="", sign=by_path if path else None, remedy=_ANYBODY, confidence=Confidence.LOW
    )


_SIGNS: tuple[tuple[str, Literal["path", "variable", "file"], str, Confidence], ...] = (
    ("Kubernetes", "path", "kubepods", Confidence.HIGH),
    ("Kubernetes", "variable", "KUBERNETES_SERVICE_HOST", Confidence.HIGH),
    ("Docker", "path", r"/docker[-/][0-9a-f]{12,}", Confidence.HIGH),
    ("CRI-O", "path", "/crio-", Confidence.HIGH),
    ("containerd", "path", "/cri-containerd-", Confidence.HIGH),
    ("Podman", "path", "/libpod-|/libpod_parent/", Confidence.HIGH),
    ("LXC", "path", r"/lxc(\.payload)?[./]", Confidence.HIGH),
    ("Docker", "file", "/.dockerenv", Confidence.MEDIUM),
    ("Podman", "file", "/run/.containerenv", Confidence.MEDIUM),
    ("Apptainer", "file", "/.singularity.d", Confidence.MEDIUM),
    ("Slurm", "path", "/job_[0-9]+(/|$)", Confidence.MEDIUM),
    ("Slurm", "variable", "SLURM_JOB_ID", Confidence.MEDIUM),
    ("LSF", "path", "(^|/)lsf(/|$)", Confidence.HIGH),
    ("LSF", "variable", "LSB_JOBID", Confidence.MEDIUM),
)
"""Signs of managers in the cgroup's path, in the environment or in the root folder, the surest first."""
_CONTAINER = todo(f"Start the container with all GPUs (--gpus all, or the CDI device nvidia.com/gpu=all) {_CHOOSE}.")
_ANYBODY = todo(f"Start the process in a cgroup that allows all GPUs {_CHOOSE}; ask who created the cgroup named here.")
_REMEDIES = {
    "Kubernetes": todo(f"Request all GPUs of the node (or a DRA claim for all) {_CHOOSE}."),
    "LSF": todo(f"Request all GPUs of the host (-gpu num=all of them, mode=shared) {_CHOOSE}."),
}


def _slurm(machine: Machine, sign: Evidence, cgroup: str = "") -> Manager:
    """Return Slurm, which denies devices for a whole job, or for each of its tasks where GPUs are bound to tasks.

    SLURM_GPUS_ON_NODE counts the GPUs of the step here. Where they are bound to tasks, SLURM_STEP_GPUS names those of
    the task alone, and no variable need name the option that did it (seen with Slurm 22.05).
    """
    environment = (machine.process or Process()).environment or {}
    gpus = len(machine.gpus or ())
    allowed = gpus - len(lost(machine, Block.DEVICE_CGROUP))
    on_node = environment.get("SLURM_GPUS_ON_NODE", "")
    options = (environment.get(name) for name in ("SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND"))
    by_task = "/task_" in cgroup or any(option not in (None, "", "none") for option in options)
    if re.fullmatch("[0-9]{1,4}", on_node, re.ASCII):
        by_task = int(on_node) > allowed
    elif "SLURM_JOB_ID" in environment and not allowed:
        by_task = False
    if by_task:
        text = (
            "Give every task all GPUs of the job (srun --gpu-bind=none, --gpus-per-node for --gpus-per-task) "
            f"{_CHOOSE}."
        )
    elif allowed:
        text = f"Ask Slurm for all GPUs of the node (--gres=gpu:{gpus}) {_CHOOSE}."
    else:
        text = f"Ask Slurm for GPUs (--gres=gpu:N, this node has {gpus}): this step has none."
    return Manager(name=f"Slurm for this {'task' if by_task else 'job'}", sign=sign, remedy=todo(text))


def _systemd(path: str, programs: Mapping[str, str], units: Sequence[DeviceUnit]) -> Manager | None:
    """Return systemd, where its program or a unit's file shows that it limits devices: it puts everything in a unit."""
    in_path = [part for part in path.split("/") if re.fullmatch(r".+\.(service|scope|slice)", part)]
    last = in_path[-1] if in_path else ""
    limiting = [unit for unit in units if any(map(_limits, unit.settings))]
    if SYSTEMD_PROGRAM in programs:
        name, sign = last, fact(_PROGRAMS, f"{SYSTEMD_PROGRAM} on {programs[SYSTEMD_PROGRAM]}")
    elif limiting:
        name, sign = limiting[-1].unit, fact(limiting[-1].file, ", ".join(limiting[-1].settings[:4]))
    else:
        return None
    # A name that is not one word for a shell is not put into a command.
    one_word = re.fullmatch(r"[A-Za-z0-9@_.:-]+", last)
    remedy = as_root(
        "In the unit, set DevicePolicy=auto and drop DeviceAllow=, or add DeviceAllow=char-nvidia* rw.",
        f"systemctl show -p DevicePolicy,DeviceAllow {last}" if one_word else None,
    )
    return Manager(name=f"systemd for {name}" if name else "systemd", sign=sign, remedy=remedy)


def _limits(setting: str) -> bool:
    """Say whether a setting of a unit keeps devices away: ``DevicePolicy=auto`` does so only with a DeviceAllow."""
    return setting.startswith("DeviceAllow=") or setting in ("DevicePolicy=closed", "DevicePolicy=strict")


def denies_control_node(machine: Machine) -> bool:
    """Say whether the cgroup denies nvidiactl: then nothing of NVIDIA's can be used, whatever else it allows."""
    nodes = (machine.driver or Driver()).nodes or ()
    return any(node.path == "/dev/nvidiactl" and access_of(node) == "EPERM" for node in nodes)


LOST_RULES = as_root(
    "Re-create the container. To keep its device rules across a systemd daemon-reload: nvidia-ctk system "
    "create-dev-char-symlinks --create-all on the host, CDI, or the cgroupfs driver."
)
"""What to do where a container has nvidiactl and may not use it: it was given the GPUs and lost them."""


def device_path(process: Process, confinement: Confinement) -> str:
    """Return the path of the cgroup that decides over the process' devices; ``""`` where none is known.

    Where both versions are mounted it is that of version 1 if it leads anywhere: managers that use BPF programs use
    version 2 alone, unless a program is seen.
    """
    groups = process.cgroups or ()
    second = next((group.path for group in groups if group.version == 2), "")
    first = next((group.path for group in groups if "devices" in group.controllers), "")
    return first if first.strip("/") and not confinement.device_programs else second or first


MAKE_NODES = as_root(
    "Create the device nodes with nvidia-modprobe; nvidia-persistenced does so at boot.", "nvidia-modprobe -c 0"
)


def accesses(gpus: Iterable[Gpu]) -> tuple[Evidence, ...]:
    """Return what access(2) said of these GPUs' device nodes."""
    return node_evidence(gpu.node for gpu in gpus if gpu.node is not None)


def node_evidence(nodes: Iterable[DeviceNode]) -> tuple[Evidence, ...]:
    """Return what access(2) said of device nodes."""
    answers = [(node.path, access_of(node)) for node in nodes]
    return tuple(
        fact(f"access({path})", answer or "not asked", None if answer == "ok" else answer) for path, answer in answers
    )


def cgroup_evidence(machine: Machine) -> tuple[Evidence, ...]:
    """Return the cgroup that decides over devices, its BPF programs and its rules."""
    process, confinement = machine.process or Process(), machine.confinement or Confinement()
    evidence = []
    if path := device_path(process, confinement):
        evidence.append(fact(f"/proc/{process.pid or 'self'}/cgroup", path))
    for program in confinement.device_programs or ():
        name, cgroup = program.name or "a program without a name", program.cgroup or "a cgroup further up"
        evidence.append(fact(_PROGRAMS, f"{name} on {cgroup}"))
    if confinement.device_rules:
        # A list of denials prints the same as none at all, so it is shown and nothing is concluded from it.
        evidence.append(fact("devices.list (a hint only)", "; ".join(confinement.device_rules)))
    return tuple(evidence)


def route_evidence(machine: Machine, scope: Scope) -> tuple[Evidence, ...]:
    """Show for each CPU NUMA node which GPUs could route to it, and which of them are lost."""
    words = []
    for node, attached in routers(machine, scope).items():
        left = [gpu for gpu in attached if loss(machine, gpu) is None]
        gone = [gpu for gpu in attached if gpu not in left]
        parts = [on_gpus(left).label] if left else []
        parts += [f"{on_gpus(gone).label} blocked"] if gone else []
        words.append(f"NUMA {node}: {', '.join(parts)}")
    return (Evidence(source="GPUs of each NUMA node", value="; ".join(words)),) if words else ()


def minor_of(gpu: Gpu) -> int | None:
    """Return the minor of a GPU's device node, ``None`` where it is unknown."""
    if gpu.proc is not None and gpu.proc.minor is not None:
        return gpu.proc.minor
    return gpu.node.minor if gpu.node is not None else None


def node_names(gpus: Iterable[Gpu]) -> str:
    """Return the paths of GPUs' device nodes; of a GPU whose minor is not known, its bus id."""
    numbers = ((gpu, minor_of(gpu)) for gpu in gpus)
    return ", ".join(gpu.bus_id if minor is None else f"/dev/nvidia{minor}" for gpu, minor in numbers)


def access_of(node: DeviceNode) -> str | None:
    """Return what access(2) said of a node: ``ok``, an error number's name, ``None`` where it was not asked."""
    return node.access if node.exists or node.access is None else "ENOENT"


_NOT_TRIED = "(open-gpu-kernel-modules, kernel_nvlink.c)"
_EGM_ADDRESS = as_root(
    "Turn EGM on in the fabric manager (NMX-C) of the NVLink domain, or off in the firmware of this node, then "
    "reset the GPUs.",
    "dmesg | grep 'EGM fabric address'",
)


@dataclass(frozen=True, slots=True)
class P2pRefusal:
    """The reason that fits what was read."""

    cause: str
    remedy: Remedy
    confidence: Confidence = Confidence.HIGH
    evidence: tuple[Evidence, ...] = ()
    chosen: bool = False
    """A mode that somebody set says so too: as grave as that is by itself."""


def refusal(machine: Machine, gpu: Gpu, other: Gpu, pair: Pair) -> P2pRefusal | None:
    """Return why P2P between two GPUs with NVLink is refused; ``None`` where nothing that was read explains it."""
    if pair.nvlink_count == 0:
        return None
    gpus = gpu, other
    if (mode := mode_without_peers(machine, gpus)) is not None:
        return P2pRefusal(mode, todo("See gpu.mig, gpu.cc-mode and gpu.vgpu."), chosen=True)
    system = (machine.driver or Driver()).nvlink_bandwidth_mode
    modes = {(gpu.nvml.nvlink_bandwidth_mode if gpu.nvml else None) or system for gpu in gpus}
    remedy = todo("See nvlink.bw-mode: give all GPUs one mode that is not OFF, then reset them.")
    if "off" in modes:
        return P2pRefusal(f"NVLink's bandwidth mode is OFF {_NOT_TRIED}", remedy)
    if None not in modes and len(modes) == 2:
        cause = f"their NVLinks are in different bandwidth modes ({' and '.join(sorted(map(str, modes)))})"
        return P2pRefusal(cause, remedy, Confidence.MEDIUM)
    fabrics = [info for gpu in gpus if (info := fabric(gpu)) is not None]
    remedy = todo("See fabric.state and fabric.consistency.")
    if any(info.state in ("not-started", "in-progress") for info in fabrics):
        return P2pRefusal("the fabric has not registered them yet", remedy)
    if any(info.health_summary == "unhealthy" for info in fabrics):
        return P2pRefusal(f"the fabric calls one of them unhealthy {_NOT_TRIED}", remedy)
    if len({(info.cluster_uuid, info.clique_id) for info in fabrics}) == 2:
        return P2pRefusal(f"they are in different cliques {_NOT_TRIED}", remedy)
    return _egm_address(machine, gpus, pair)


def mode_without_peers(machine: Machine, gpus: Iterable[Gpu]) -> str | None:
    """Return the mode in which somebody runs one of these GPUs and in which it has no peers; ``None`` for none."""
    listed = [gpu.nvml for gpu in gpus if gpu.nvml is not None]
    if any(nvml.mig_mode for nvml in listed):
        return "MIG is on, and its instances have no peers"
    if (machine.driver or Driver()).confidential_compute == "on":
        return "confidential computing is on for single GPUs, which have no peers"
    if any(nvml.virtualization == "vgpu" for nvml in listed):
        return "a vGPU has peers with some profiles only"
    return None


def _egm_address(machine: Machine, gpus: tuple[Gpu, Gpu], pair: Pair) -> P2pRefusal | None:
    """Judge the EGM fabric address, which every GPU with EGM on NVSwitches needs for all of its P2P.

    It is given only where the fabric manager has EGM on too (gpu_fabric_probe.c). Neither NVML nor CUDA shows it: the
    kernel's log does, and CUDA by HOST_NUMA memory that cannot be shared across the domain.
    """
    if pair.nvlink_through != "switch" or not any(egm(machine, gpu).able for gpu in gpus):
        return None
    events = () if machine.kernel_log is None else machine.kernel_log.events
    cause = "a GPU on NVSwitches with EGM on and without an EGM fabric address has no P2P at all " + _NOT_TRIED
    if any(event.message is DriverMessage.EGM_NO_FABRIC_ADDRESS for event in events):
        evidence = fact("kernel log", DriverMessage.EGM_NO_FABRIC_ADDRESS.value)
        return P2pRefusal(cause, _EGM_ADDRESS, evidence=(evidence,))
    names = ("HANDLE_TYPE_FABRIC_SUPPORTED", "HOST_NUMA_MULTINODE_IPC_SUPPORTED")
    bits = [tuple(gpu.cuda.attributes.get(name) for name in names) for gpu in gpus if gpu.cuda]
    if (1, 0) in bits:
        evidence = fact("cuDeviceGetAttribute", f"{names[0]} 1, {names[1]} 0")
        return P2pRefusal(cause, _EGM_ADDRESS, Confidence.MEDIUM, (evidence,))
    if (1, 1) in bits:
        return None
    return P2pRefusal(f"possibly: {cause}; whether these GPUs have one was not read", _EGM_ADDRESS, Confidence.LOW)


Version = tuple[int, ...]


def numbers(text: str | None) -> Version | None:
    """Return ``570.86.15`` as numbers, ``None`` for what is no such version."""
    if text is None or not re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4}){1,3}", text, re.ASCII):
        return None
    return tuple(map(int, text.split(".")))


def kernel(machine: Machine) -> Version | None:
    """Return the first two numbers of the kernel's release."""
    match = re.match(r"([0-9]{1,3})\.([0-9]{1,3})", (machine.host or Host()).kernel or "", re.ASCII)
    return (int(match[1]), int(match[2])) if match else None


def dotted(version: Version | None) -> str:
    """Return a version for people."""
    return "not read" if version is None else ".".join(map(str, version))


GpuRule = Callable[[Machine, Scope, Gpu], Verdicts]


def usable_gpus(machine: Machine, scope: Scope) -> tuple[Gpu, ...]:
    """Return the GPUs in scope that this process can use; skip the check without one."""
    return usable(machine, scope.gpus_of(machine)) or skip(NO_GPU)


def usable_coherent_gpus(machine: Machine, scope: Scope) -> tuple[Gpu, ...]:
    """Return the usable GPUs in scope that have NVLink-C2C, or may have it; skip the check without one."""
    if coherent(machine) is False:
        skip(NOT_COHERENT)
    return coherent_gpus(machine, usable_gpus(machine, scope)) or skip(NO_COHERENT_GPU)


def check_gpus(
    check_id: str,
    *guards: Guard,
    sections: tuple[str, ...] = ("gpus",),
    gpus_of: Callable[[Machine, Scope], Iterable[Gpu]] = usable_gpus,
) -> Callable[[GpuRule], Check]:
    """Make a check of a rule for one GPU.

    Parameters
    ----------
    gpus_of
        Returns the GPUs to judge, or ends the check.
    """

    def decorate(rule: GpuRule) -> Check:
        @check(check_id, *guards, sections=sections)
        def judge(machine: Machine, scope: Scope) -> Verdicts:
            for gpu in gpus_of(machine, scope):
                yield from about(gpu, rule(machine, scope, gpu))

        return judge

    return decorate


def need_c2c(machine: Machine, reason: str = NOT_COHERENT) -> None:
    """Skip the check on a machine none of whose GPUs has NVLink-C2C."""
    if not coherent(machine):
        skip(reason)


def need_domain(machine: Machine) -> None:
    """Skip the check on a machine outside of a multi-node NVLink domain."""
    if not in_domain(machine):
        skip(NO_DOMAIN)
