"""Fit remedies to where they are shown: the GPUs in their commands, what must be idle, and what works in this process.

The runner does it for the findings of every check, so that no check states it itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from egmctl.doctor.commands import on_host_only
from egmctl.model.finding import Finding, Place, on_gpus
from egmctl.model.gpu import Gpu
from egmctl.model.host import Process
from egmctl.model.machine import Machine
from egmctl.model.remedy import GPUS, IN_CONTAINER, ON_HOST, Need, Remedy, Site, for_host
from egmctl.topology.resets import reset_together

_POD, _JOBS = "KUBERNETES_SERVICE_HOST", ("SLURM_JOB_ID", "LSB_JOBID")
_WHOLE_NODE = {Need.NO_JOBS, Need.NO_DOMAIN_JOBS, Need.DRIVER_RELOAD, Need.REBOOT}
"""The needs that concern every GPU of the node."""


def site(machine: Machine) -> Site:
    """Return where the process runs."""
    process = machine.process or Process()
    if process.container_signs:
        return Site.POD if _POD in process.container_signs else Site.CONTAINER
    return Site.JOB if any(name in (process.environment or {}) for name in _JOBS) else Site.HOST


def with_fitted_remedy(machine: Machine, finding: Finding) -> Finding:
    """Return a finding whose remedy names its GPUs, and can be carried out where the process runs."""
    if finding.remedy is None:
        return finding
    return replace(finding, remedy=fitted_remedy(machine, finding.place, finding.remedy))


def fitted_remedy(machine: Machine, place: Place, remedy: Remedy) -> Remedy:
    """Return a remedy for what is wrong at a place of the machine, as :func:`with_fitted_remedy` has it."""
    return _for_site(site(machine), _scoped(machine, place, remedy))


def fitted_anywhere(remedy: Remedy) -> Remedy:
    """Return a remedy as it is said where neither the GPUs nor the place of the process are known, as for a text.

    Commands that name GPUs are left out, and a text that is for the host says so.
    """
    idle = {Need.NO_JOBS: "the node", Need.IDLE_GPUS: "the GPU", Need.GPU_RESET: "the GPU"}
    is_for_host = set(remedy.works_in) <= set(ON_HOST)
    return replace(
        for_host(remedy, remedy.text) if is_for_host else remedy,
        look=_naming(remedy.look, ()),
        run=_naming(remedy.run, ()),
        idle=next((words for need, words in idle.items() if need in remedy.needs), ""),
    )


def _scoped(machine: Machine, place: Place, remedy: Remedy) -> Remedy:
    """Return a remedy that names the GPUs of a place, and states which others it interrupts."""
    own = [gpu for gpu in machine.gpus or () if gpu.bus_id in (place.gpus or ())]
    affected = _affected(machine, own, remedy)
    named = affected if own and Need.GPU_RESET in remedy.needs else own
    return replace(
        remedy,
        look=_naming(remedy.look, own),
        run=_naming(remedy.run, named),
        idle=on_gpus(affected).label if affected else "",
        touches=() if place.gpus is None else tuple(gpu.bus_id for gpu in affected if gpu not in own),
    )


def _affected(machine: Machine, own: list[Gpu], remedy: Remedy) -> list[Gpu]:
    """Return the GPUs that must be idle; for a remedy of no GPU in particular, those of the node."""
    gpus = list(machine.gpus or ())
    if _WHOLE_NODE.intersection(remedy.needs):
        return gpus
    if Need.GPU_RESET in remedy.needs:
        return list(reset_together(machine, own or gpus))
    return own or gpus if Need.IDLE_GPUS in remedy.needs else []


def _naming(command: str | None, gpus: Iterable[Gpu]) -> str | None:
    """Return a command with the bus ids of GPUs; ``None`` if it asks for some and there are none."""
    if command is None or GPUS not in command:
        return command
    bus_ids = ",".join(gpu.bus_id for gpu in gpus)
    return command.replace(GPUS, bus_ids) if bus_ids else None


def _for_site(here: Site, remedy: Remedy) -> Remedy:
    """Return a remedy as it can be carried out here: what only the host's administrator can do is for them."""
    look, host_look = remedy.look, None
    if here in IN_CONTAINER and look is not None and on_host_only(look):
        look, host_look = None, remedy.look
    text = remedy.text.removesuffix(".")
    if here not in remedy.works_in:
        command = remedy.run or host_look
        text += f" ({command})" if command else ""
        return replace(for_host(remedy, f"{text}."), look=look, run=None)
    if host_look:
        text = f"{text}. On the host {host_look!r} shows more"
    return replace(remedy, text=f"{text}.", look=look)
