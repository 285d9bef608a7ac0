"""Restrictions on a process' access to devices: the manager of its cgroup, and access(2) of the device nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from egmctl.dataclass import dataclass
from egmctl.doctor.check import Scope
from egmctl.doctor.findings import fact
from egmctl.doctor.situation import loss, lost, routers
from egmctl.model.finding import Confidence, Evidence, on_gpus
from egmctl.model.gpu import Gpu
from egmctl.model.host import Confinement, DeviceNode, DeviceUnit, Driver, Process
from egmctl.model.machine import Machine
from egmctl.model.remedy import Remedy, as_root, todo
from egmctl.topology.access import Block

SLURM_PROGRAM, SYSTEMD_PROGRAM = "Slurm_Cgroup_v2", "sd_devices"
_PROGRAMS = "bpf(BPF_PROG_QUERY)"
_ALL_DEVICES = "a *:* rwm"
_CHOOSE = "and choose among them with CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True, slots=True, kw_only=True)
class Manager:
    """The program that controls a process' access to devices, the evidence for that, and the remedy."""

    name: str
    """The name as it follows "set by", e.g. ``Slurm for this task``; empty if unknown."""
    sign: Evidence | None
    remedy: Remedy
    confidence: Confidence = Confidence.HIGH


def policy(machine: Machine, owner: Manager) -> str:
    """Return a clause for a finding's cause: the manager that set a restriction, its evidence, and the cgroup."""
    text = "owner unknown"
    if owner.name:
        text = f"set by {owner.name}" + (f" ({owner.sign.source}: {owner.sign.value})" if owner.sign else "")
    process, confinement = machine.process or Process(), machine.confinement or Confinement()
    own_path = device_cgroup_path(process, confinement)
    # In cgroup v2, the limit is on the lowest cgroup with a device program. In v1, it is on the highest cgroup whose
    # list is not "all devices"; a list of denials also prints "all devices", so it cannot be recognised.
    programs = [program.cgroup for program in confinement.device_programs or () if program.cgroup is not None]
    lists = [entry.cgroup for entry in confinement.device_lists if entry.rules and entry.rules != (_ALL_DEVICES,)]
    limited = max(programs, key=len) if programs else next(iter(lists), None)
    if limited is not None and limited != own_path:
        return f"{text}; the limit is on {limited}, an ancestor of this process' cgroup {own_path}"
    return f"{text}; the cgroup is {own_path}" if own_path.strip("/") and not owner.name else text


def manager(machine: Machine, *, is_container: bool = False) -> Manager:
    """Return the manager that controls the process' access to devices, by the most reliable sign.

    Parameters
    ----------
    is_container
        Whether it must be the container runtime, e.g. because device nodes are missing. Otherwise files of runtimes
        count only in the topmost visible cgroup.
    """
    process, confinement = machine.process or Process(), machine.confinement or Confinement()
    path = device_cgroup_path(process, confinement)
    path_evidence = Evidence(source=f"/proc/{process.pid or 'self'}/cgroup", value=path)
    programs = {program.name: program.cgroup or path for program in confinement.device_programs or () if program.name}
    # The container's own cgroup is the topmost visible one, with no program attached below it.
    is_top = all(program.cgroup in (None, "/") for program in confinement.device_programs or ())
    is_container = is_container or (path in ("", "/") and is_top)
    variables = {*(process.environment or {}), *(process.container_signs or ())}
    if SLURM_PROGRAM in programs:
        cgroup = programs[SLURM_PROGRAM]
        return _slurm(machine, Evidence(source=_PROGRAMS, value=f"{SLURM_PROGRAM} on {cgroup}"), cgroup)
    for name, kind, pattern, confidence in _SIGNS:
        matches, sign = {
            "path": (re.search(pattern, path) is not None, path_evidence),
            "variable": (pattern in variables, fact("environment", f"{pattern} is set")),
            "file": (is_container and pattern in (process.container_signs or ()), fact(pattern, "is there")),
        }[kind]
        if matches and name == "Slurm":
            return replace(_slurm(machine, sign), confidence=confidence)
        if matches:
            return Manager(name=name, sign=sign, remedy=_REMEDIES.get(name, _CONTAINER), confidence=confidence)
    return _systemd(path, programs, confinement.device_units) or Manager(
        name="", sign=path_evidence if path else None, remedy=_ANYBODY, confidence=Confidence.LOW
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
"""The signs of managers in the cgroup path, the environment or the root directory, the most reliable first."""
_CONTAINER = todo(f"Start the container with all GPUs (--gpus all, or the CDI device nvidia.com/gpu=all) {_CHOOSE}.")
_ANYBODY = todo(f"Start the process in a cgroup that allows all GPUs {_CHOOSE}; ask who created the cgroup named here.")
_REMEDIES = {
    "Kubernetes": todo(f"Request all GPUs of the node (or a DRA claim for all) {_CHOOSE}."),
    "LSF": todo(f"Request all GPUs of the host (-gpu num=all of them, mode=shared) {_CHOOSE}."),
}


def _slurm(machine: Machine, sign: Evidence, cgroup: str = "") -> Manager:
    """Return Slurm as the manager. It restricts devices per job, or per task if GPUs are bound to tasks.

    SLURM_GPUS_ON_NODE is the number of GPUs of the step on this node. If GPUs are bound to tasks, SLURM_STEP_GPUS
    lists only those of the task, and the option may appear in no variable (observed with Slurm 22.05).
    """
    environment = (machine.process or Process()).environment or {}
    gpus = len(machine.gpus or ())
    allowed = gpus - len(lost(machine, Block.DEVICE_CGROUP))
    gpu_count = environment.get("SLURM_GPUS_ON_NODE", "")
    options = (environment.get(name) for name in ("SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND"))
    of_job = len(gpu_numbers(environment.get("SLURM_JOB_GPUS", "")))
    by_task = "/task_" in cgroup or any(option not in (None, "", "none") for option in options)
    if re.fullmatch("[0-9]{1,4}", gpu_count, re.ASCII):
        by_task = int(gpu_count) > allowed
    elif "SLURM_JOB_ID" in environment and not allowed:
        by_task = False
    if by_task:
        text = (
            "Give every task all GPUs of the job (srun --gpu-bind=none, --gpus-per-node for --gpus-per-task; or, where "
            f"'srun --help' has it, --gres-flags=allow-task-sharing) {_CHOOSE}."
        )
    elif of_job > allowed:
        text = f"Give the step all GPUs of the job (srun --gres=gpu:{of_job}, this one got {allowed}) {_CHOOSE}."
    elif allowed:
        text = f"Ask Slurm for all GPUs of the node (--gres=gpu:{gpus}) {_CHOOSE}."
    else:
        text = f"Ask Slurm for GPUs (--gres=gpu:N, this node has {gpus}): this step has none."
    return Manager(name=f"Slurm for this {'task' if by_task else 'job'}", sign=sign, remedy=todo(text))


def gpu_numbers(text: str) -> set[int | None]:
    """Return the numbers of ``0,2`` or ``0-3``, in any order; none if the text is anything else."""
    spans = [re.fullmatch(r"([0-9]{1,4})(?:-([0-9]{1,4}))?", part.strip(), re.ASCII) for part in text.split(",")]
    return {number for span in spans if span for number in range(int(span[1]), int(span[2] or span[1]) + 1)}


def _systemd(path: str, programs: Mapping[str, str], units: Sequence[DeviceUnit]) -> Manager | None:
    """Return systemd if its BPF program or a unit file restricts devices; a unit in the cgroup path is not enough."""
    units_in_path = [part for part in path.split("/") if re.fullmatch(r".+\.(service|scope|slice)", part)]
    last_unit = units_in_path[-1] if units_in_path else ""
    limiting = [unit for unit in units if any(map(_limits, unit.settings))]
    if SYSTEMD_PROGRAM in programs:
        name, sign = last_unit, fact(_PROGRAMS, f"{SYSTEMD_PROGRAM} on {programs[SYSTEMD_PROGRAM]}")
    elif limiting:
        name, sign = limiting[-1].unit, fact(limiting[-1].file, ", ".join(limiting[-1].settings[:4]))
    else:
        return None
    # Put the unit into the command only if a shell does not need to quote it.
    one_word = re.fullmatch(r"[A-Za-z0-9@_.:-]+", last_unit)
    remedy = as_root(
        "In the unit, set DevicePolicy=auto and drop DeviceAllow=, or add DeviceAllow=char-nvidia* rw.",
        look=f"systemctl show -p DevicePolicy,DeviceAllow {last_unit}" if one_word else None,
    )
    return Manager(name=f"systemd for {name}" if name else "systemd", sign=sign, remedy=remedy)


def _limits(setting: str) -> bool:
    """Return whether a unit setting restricts devices; ``DevicePolicy=auto`` does so only with a DeviceAllow."""
    return setting.startswith("DeviceAllow=") or setting in ("DevicePolicy=closed", "DevicePolicy=strict")


def denies_control_node(machine: Machine) -> bool:
    """Return whether the device cgroup denies nvidiactl, without which no NVIDIA GPU can be used."""
    nodes = (machine.driver or Driver()).nodes or ()
    return any(node.path == "/dev/nvidiactl" and access_of(node) == "EPERM" for node in nodes)


LOST_RULES = todo(
    "Re-create the container. To keep its device rules across a systemd daemon-reload: nvidia-ctk system "
    "create-dev-char-symlinks --create-all on the host, CDI, or the cgroupfs driver."
)
"""The remedy if a container has nvidiactl but may not open it: it had access to the GPUs and lost it."""


def device_cgroup_path(process: Process, confinement: Confinement) -> str:
    """Return the path of the cgroup that controls the process' access to devices; ``""`` if unknown.

    If both cgroup versions are mounted, it is the path in v1, unless that is the root or a BPF program was found:
    managers that use BPF programs use v2 only.
    """
    groups = process.cgroups or ()
    second = next((group.path for group in groups if group.version == 2), "")
    first = next((group.path for group in groups if "devices" in group.controllers), "")
    return first if first.strip("/") and not confinement.device_programs else second or first


MAKE_NODES = "Create the device nodes with nvidia-modprobe; nvidia-persistenced does so at boot."
"""The text of the remedy for device nodes that are missing on the host."""


def accesses(gpus: Iterable[Gpu]) -> tuple[Evidence, ...]:
    """Return the results of access(2) for the device nodes of some GPUs."""
    return node_evidence(gpu.node for gpu in gpus if gpu.node is not None)


def node_evidence(nodes: Iterable[DeviceNode]) -> tuple[Evidence, ...]:
    """Return the results of access(2) for device nodes."""
    answers = [(node.path, access_of(node)) for node in nodes]
    return tuple(
        fact(f"access({path})", answer or "not asked", None if answer == "ok" else answer) for path, answer in answers
    )


def cgroup_evidence(machine: Machine) -> tuple[Evidence, ...]:
    """Return the cgroup that controls access to devices, its BPF programs and its rules."""
    process, confinement = machine.process or Process(), machine.confinement or Confinement()
    evidence = []
    if path := device_cgroup_path(process, confinement):
        evidence.append(fact(f"/proc/{process.pid or 'self'}/cgroup", path))
    for program in confinement.device_programs or ():
        name, cgroup = program.name or "a program without a name", program.cgroup or "a cgroup further up"
        evidence.append(fact(_PROGRAMS, f"{name} on {cgroup}"))
    if confinement.device_rules:
        # A list of denials prints the same as an empty one, so it is shown but not evaluated.
        evidence.append(fact("devices.list (a hint only)", "; ".join(confinement.device_rules)))
    return tuple(evidence)


def route_evidence(machine: Machine, scope: Scope) -> tuple[Evidence, ...]:
    """Return the usable and lost GPUs that EGM can be routed through, by CPU NUMA node."""
    texts = []
    for node, attached in routers(machine, scope).items():
        left = [gpu for gpu in attached if loss(machine, gpu) is None]
        lost_gpus = [gpu for gpu in attached if gpu not in left]
        parts = [on_gpus(left).label] if left else []
        parts += [f"{on_gpus(lost_gpus).label} blocked"] if lost_gpus else []
        texts.append(f"NUMA {node}: {', '.join(parts)}")
    return (Evidence(source="GPUs of each NUMA node", value="; ".join(texts)),) if texts else ()


def minor_of(gpu: Gpu) -> int | None:
    """Return the minor number of a GPU's device node; ``None`` if unknown."""
    if gpu.proc is not None and gpu.proc.minor is not None:
        return gpu.proc.minor
    return gpu.node.minor if gpu.node is not None else None


def device_node_names(gpus: Iterable[Gpu]) -> str:
    """Return the paths of the device nodes of GPUs; the bus id for a GPU whose minor number is unknown."""
    numbers = ((gpu, minor_of(gpu)) for gpu in gpus)
    return ", ".join(gpu.bus_id if minor is None else f"/dev/nvidia{minor}" for gpu, minor in numbers)


def access_of(node: DeviceNode) -> str | None:
    """Return the result of access(2) for a node: ``ok``, the name of the error, or ``None`` if it was not called."""
    return node.access if node.exists or node.access is None else "ENOENT"
