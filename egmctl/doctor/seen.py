"""What was seen of a GPU's device node, of the cgroup and of the routes: the evidence of the checks of access."""

from __future__ import annotations

from collections.abc import Iterable

from egmctl.doctor.access import loss, routers
from egmctl.doctor.manager import device_path
from egmctl.doctor.scope import Scope
from egmctl.model.finding import Evidence, on_gpus
from egmctl.model.machine import Confinement, DeviceNode, Gpu, Machine, Process


def accesses(gpus: Iterable[Gpu]) -> tuple[Evidence, ...]:
    """What access(2) said of these GPUs' device nodes."""
    return node_evidence(gpu.node for gpu in gpus if gpu.node is not None)


def node_evidence(nodes: Iterable[DeviceNode]) -> tuple[Evidence, ...]:
    """What it said of device nodes."""
    answers = ((node, access_of(node)) for node in nodes)
    return tuple(
        Evidence(
            source=f"access({node.path})", value=answer or "not asked", errno=None if answer in (None, "ok") else answer
        )
        for node, answer in answers
    )


def cgroup_evidence(machine: Machine) -> tuple[Evidence, ...]:
    """The cgroup that decides over devices, its BPF programs and its rules."""
    process, confinement = machine.process or Process(), machine.confinement or Confinement()
    found = []
    if path := device_path(process, confinement):
        found.append(Evidence(source=f"/proc/{process.pid or 'self'}/cgroup", value=path))
    found += (
        Evidence(
            source="bpf(BPF_PROG_QUERY)",
            value=f"{program.name or 'a program without a name'} on {program.cgroup or 'a cgroup further up'}",
        )
        for program in confinement.device_programs or ()
    )
    if confinement.device_rules:
        # A list of denials prints the same as none at all, so it is shown and nothing is concluded from it.
        found.append(Evidence(source="devices.list (a hint only)", value="; ".join(confinement.device_rules)))
    return tuple(found)


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
