"""Who decides which devices this process may use, and how to ask that manager for all GPUs of the node.

Paths and names: Slurm writes ``job_42/step_0/user/task_3`` below ``slurmstepd.scope`` (version 2) or ``slurm/uid_1000``
(version 1) and names its program ``Slurm_Cgroup_v2`` (src/plugins/cgroup/v2); systemd names its own ``sd_devices``;
container runtimes put the container's id in the last part of the path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from egmctl.doctor.access import lost
from egmctl.model.finding import Confidence, Evidence, Remedy
from egmctl.model.machine import Confinement, DeviceUnit, Driver, Machine, Process
from egmctl.topology.access import Block

SLURM_PROGRAM, SYSTEMD_PROGRAM = "Slurm_Cgroup_v2", "sd_devices"

_ALL_DEVICES = "a *:* rwm"
_CHOOSE = "and choose among them with CUDA_VISIBLE_DEVICES"
_LOST_RULES = (
    "Re-create the container. To keep its device rules across a systemd daemon-reload: "
    "nvidia-ctk system create-dev-char-symlinks --create-all on the host, CDI, or the cgroupfs driver."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manager:
    """Who it is, by what sign, and what to ask of it."""

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
    own, limited = device_path(process, confinement), limited_cgroup(confinement)
    if limited is not None and limited != own:
        return f"{words}; the limit is on {limited}, an ancestor of this process' cgroup {own}"
    return f"{words}; the cgroup is {own}" if own.strip("/") and not by.name else words


def limited_cgroup(confinement: Confinement) -> str | None:
    """Return the cgroup that carries the limit, as far as that can be read; ``None`` where it cannot.

    Of version 2 it is the lowest with a device program. Of version 1 it is the highest whose list is no longer that of
    all devices; a list of denials prints that of all devices too, so it tells nothing.
    """
    programs = [one.cgroup for one in confinement.device_programs or () if one.cgroup is not None]
    if programs:
        return max(programs, key=len)
    return next((one.cgroup for one in confinement.device_lists if one.rules and one.rules != (_ALL_DEVICES,)), None)


def manager(machine: Machine, *, of_container: bool = False) -> Manager:
    """Return who decides over the devices of the process: the surest sign first.

    Parameters
    ----------
    of_container
        Whether it can only have been who started the container, as for device nodes that are not in it. A cgroup below
        the top one that is seen is somebody else's.
    """
    seen = _signs(machine)
    if of_container:
        seen = replace(seen, is_containers=True)
    for recognise in (_slurm_program, _kubernetes, _runtime, _slurm_job, _lsf, _systemd):
        if (found := recognise(seen)) is not None:
            return found
    return Manager(name="", sign=seen.by_path if seen.path else None, remedy=_ANYBODY, confidence=Confidence.LOW)


def rules_lost(machine: Machine) -> bool:
    """Say whether a container was given nvidiactl's node and its cgroup denies it: it has lost its rules."""
    nodes = (machine.driver or Driver()).nodes or ()
    in_container = bool((machine.process or Process()).container_signs)
    return in_container and any(node.path == "/dev/nvidiactl" and node.access == "EPERM" for node in nodes)


def lost_rules() -> Remedy:
    """Return what to do where a container has nvidiactl and may not use it: it was given the GPUs and lost them."""
    return Remedy(text=_LOST_RULES, needs_root=True)


def device_path(process: Process, confinement: Confinement) -> str:
    """Return the path of the cgroup that decides over the process' devices; ``""`` where none is known.

    Where both versions are mounted it is that of version 1 if it leads anywhere: managers that use BPF programs use
    version 2 alone, unless a program is seen.
    """
    groups = process.cgroups or ()
    second = next((group.path for group in groups if group.version == 2), "")
    first = next((group.path for group in groups if "devices" in group.controllers), "")
    return first if first.strip("/") and not confinement.device_programs else second or first


@dataclass(frozen=True, slots=True, kw_only=True)
class _Signs:
    """What managers leave behind."""

    path: str
    by_path: Evidence
    programs: Mapping[str, str]
    """Names of the device programs to the cgroups that they are attached to."""
    is_containers: bool
    """Whether it may be the container's own cgroup: the top one that is seen, and no program is attached below it."""
    environment: Mapping[str, str]
    container: tuple[str, ...]
    units: tuple[DeviceUnit, ...]
    """Units in the path whose files limit devices."""
    gpus: int
    allowed: int
    """How many of the GPUs the device cgroup does not deny."""


def _signs(machine: Machine) -> _Signs:
    process, confinement = machine.process or Process(), machine.confinement or Confinement()
    path = device_path(process, confinement)
    return _Signs(
        path=path,
        by_path=Evidence(source=f"/proc/{process.pid or 'self'}/cgroup", value=path),
        programs={one.name: one.cgroup or path for one in confinement.device_programs or () if one.name},
        is_containers=path in ("", "/") and all(one.cgroup in (None, "/") for one in confinement.device_programs or ()),
        environment=process.environment or {},
        container=process.container_signs or (),
        units=tuple(one for one in confinement.device_units if any(map(_limits, one.settings))),
        gpus=len(machine.gpus or ()),
        allowed=len(machine.gpus or ()) - len(lost(machine, Block.DEVICE_CGROUP)),
    )


def _limits(setting: str) -> bool:
    """Say whether a setting of a unit keeps devices away: ``DevicePolicy=auto`` does so only with a DeviceAllow."""
    return setting.startswith("DeviceAllow=") or setting in ("DevicePolicy=closed", "DevicePolicy=strict")


def _slurm_program(seen: _Signs) -> Manager | None:
    if SLURM_PROGRAM not in seen.programs:
        return None
    where = seen.programs[SLURM_PROGRAM]
    return _slurm(seen, Evidence(source=_PROGRAMS, value=f"{SLURM_PROGRAM} on {where}"), where, Confidence.HIGH)


def _kubernetes(seen: _Signs) -> Manager | None:
    if "kubepods" in seen.path:
        return Manager(name="Kubernetes", sign=seen.by_path, remedy=_POD)
    if "KUBERNETES_SERVICE_HOST" in seen.container:
        sign = Evidence(source="environment", value="KUBERNETES_SERVICE_HOST is set")
        return Manager(name="Kubernetes", sign=sign, remedy=_POD)
    return None


def _runtime(seen: _Signs) -> Manager | None:
    for name, pattern in _RUNTIMES:
        if re.search(pattern, seen.path):
            return Manager(name=name, sign=seen.by_path, remedy=_CONTAINER)
    for file, name in _RUNTIME_FILES:
        if file in seen.container and seen.is_containers:
            sign = Evidence(source=file, value="is there")
            return Manager(name=name, sign=sign, remedy=_CONTAINER, confidence=Confidence.MEDIUM)
    return None


def _slurm_job(seen: _Signs) -> Manager | None:
    if re.search(r"/job_[0-9]+(/|$)", seen.path):
        return _slurm(seen, seen.by_path, "", Confidence.MEDIUM)
    if "SLURM_JOB_ID" in seen.environment:
        return _slurm(seen, Evidence(source="environment", value="SLURM_JOB_ID is set"), "", Confidence.MEDIUM)
    return None


def _slurm(seen: _Signs, sign: Evidence, where: str, confidence: Confidence) -> Manager:
    """Return Slurm, which denies devices for a whole job, or for each of its tasks where GPUs are bound to tasks.

    SLURM_GPUS_ON_NODE counts the GPUs of the step here. Where they are bound to tasks, SLURM_STEP_GPUS names those of
    the task alone, and no variable need name the option that did it (seen with Slurm 22.05).
    """
    has = seen.environment.get("SLURM_GPUS_ON_NODE", "")
    options = (seen.environment.get(name) for name in ("SLURM_GPUS_PER_TASK", "SLURM_GPU_BIND"))
    by_task = "/task_" in where or any(option not in (None, "", "none") for option in options)
    if re.fullmatch("[0-9]{1,4}", has, re.ASCII):
        by_task = int(has) > seen.allowed
    elif "SLURM_JOB_ID" in seen.environment and not seen.allowed:
        by_task = False
    if by_task:
        text = (
            "Give every task all GPUs of the job (srun --gpu-bind=none, --gpus-per-node for --gpus-per-task) "
            f"{_CHOOSE}."
        )
    elif seen.allowed:
        text = f"Ask Slurm for all GPUs of the node (--gres=gpu:{seen.gpus}) {_CHOOSE}."
    else:
        text = f"Ask Slurm for GPUs (--gres=gpu:N, this node has {seen.gpus}): this step has none."
    name = "Slurm for this task" if by_task else "Slurm for this job"
    return Manager(name=name, sign=sign, remedy=Remedy(text=text), confidence=confidence)


def _lsf(seen: _Signs) -> Manager | None:
    if re.search(r"(^|/)lsf(/|$)", seen.path):
        return Manager(name="LSF", sign=seen.by_path, remedy=_LSF_JOB)
    if "LSB_JOBID" in seen.environment:
        sign = Evidence(source="environment", value="LSB_JOBID is set")
        return Manager(name="LSF", sign=sign, remedy=_LSF_JOB, confidence=Confidence.MEDIUM)
    return None


def _systemd(seen: _Signs) -> Manager | None:
    units = [part for part in seen.path.split("/") if re.fullmatch(r".+\.(service|scope|slice)", part)]
    unit = units[-1] if units else ""
    name = f"systemd for {unit}" if unit else "systemd"
    remedy = Remedy(
        text="In the unit, set DevicePolicy=auto and drop DeviceAllow=, or add DeviceAllow=char-nvidia* rw.",
        # A name that is not one word for a shell is not put into a command.
        command=f"systemctl show -p DevicePolicy,DeviceAllow {unit}"
        if re.fullmatch(r"[A-Za-z0-9@_.:-]+", unit)
        else None,
        needs_root=True,
    )
    if SYSTEMD_PROGRAM in seen.programs:
        sign = Evidence(source=_PROGRAMS, value=f"{SYSTEMD_PROGRAM} on {seen.programs[SYSTEMD_PROGRAM]}")
        return Manager(name=name, sign=sign, remedy=remedy)
    if seen.units:
        # systemd puts everything into some unit: only its files show that it limits the devices of this one.
        last = seen.units[-1]
        sign = Evidence(source=last.file, value=", ".join(last.settings[:4]))
        return Manager(name=f"systemd for {last.unit}", sign=sign, remedy=remedy)
    return None


_RUNTIMES = (
    ("Docker", r"/docker[-/][0-9a-f]{12,}"),
    ("CRI-O", r"/crio-"),
    ("containerd", r"/cri-containerd-"),
    ("Podman", r"/libpod-|/libpod_parent/"),
    ("LXC", r"/lxc(\.payload)?[./]"),
)
_RUNTIME_FILES = (("/.dockerenv", "Docker"), ("/run/.containerenv", "Podman"), ("/.singularity.d", "Apptainer"))
_PROGRAMS = "bpf(BPF_PROG_QUERY)"

MAKE_NODES = Remedy(
    text="Create the device nodes with nvidia-modprobe; nvidia-persistenced does so at boot.",
    command="nvidia-modprobe -c 0",
    needs_root=True,
)

_POD = Remedy(text=f"Request all GPUs of the node (or a DRA claim for all) {_CHOOSE}.")
_CONTAINER = Remedy(
    text=f"Start the container with all GPUs (--gpus all, or the CDI device nvidia.com/gpu=all) {_CHOOSE}."
)
_LSF_JOB = Remedy(text=f"Request all GPUs of the host (-gpu num=all of them, mode=shared) {_CHOOSE}.")
_ANYBODY = Remedy(
    text=f"Start the process in a cgroup that allows all GPUs {_CHOOSE}; ask who created the cgroup named here."
)
