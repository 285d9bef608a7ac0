"""How NICs and the GPUs whose memory they register are connected: link layer, distance on PCIe, the NICs' driver."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from egmctl.doctor.findings import fact
from egmctl.model.finding import Evidence, on_gpus
from egmctl.model.host import Nic, System
from egmctl.model.machine import Machine
from egmctl.model.probes import Probe
from egmctl.model.route import LinkClass
from egmctl.topology.links import device_link
from egmctl.units import grouped

_LINK_LAYERS = {"Ethernet": "RoCE"}
"""What RDMA over a link layer is called, where the kernel's name of the layer is another."""


def link_layers(nic: Nic) -> tuple[str, ...]:
    """Return ``InfiniBand`` or ``RoCE`` for a NIC's active ports, both if they differ; empty if no port is active."""
    layers = [port.link_layer for port in nic.ports if port.state == "ACTIVE" and port.link_layer]
    return tuple(sorted({_LINK_LAYERS.get(layer, layer) for layer in layers}))


def summary_of(machine: Machine, probes: Iterable[Probe]) -> str:
    """Return the link layers and distances of some registrations in words: ``InfiniBand; GPU to NIC: PIX, SYS``.

    Host memory has no distance to a NIC here. What was not read is left out.
    """
    tried = list(probes)
    nics = _nics(machine, tried)
    layers = sorted({layer for nic in nics for layer in link_layers(nic)})
    classes = {kind for nic in nics for kind in _by_distance(machine, nic, tried)} - {LinkClass.UNKNOWN}
    distances = [kind.value for kind in LinkClass if kind in classes]
    parts = [" and ".join(layers), f"GPU to NIC: {', '.join(distances)}" if distances else ""]
    return "; ".join(filter(None, parts))


def evidence_of(machine: Machine, probes: Iterable[Probe]) -> tuple[Evidence, ...]:
    """Return each NIC's link layer and distance to the GPUs that it was tried with, and the version of its driver."""
    tried = list(probes)
    nics = _nics(machine, tried)
    if not nics:
        return ()
    version = (machine.system or System()).ofed_version
    driver = () if version is None else (fact("/sys/module/mlx5_core/version", version or "none of its own"),)
    return *(fact(nic.name, "; ".join(_facts(machine, nic, tried))) for nic in nics), *driver


def _facts(machine: Machine, nic: Nic, probes: Sequence[Probe]) -> Iterator[str]:
    is_read = any(port.state for port in nic.ports)
    yield " and ".join(link_layers(nic)) or ("no active port" if is_read else "ports not read")
    for kind, gpus in _by_distance(machine, nic, probes).items():
        yield f"{kind.value}: {gpus}"


def _by_distance(machine: Machine, nic: Nic, probes: Sequence[Probe]) -> dict[LinkClass, str]:
    """Return the GPUs whose own memory a NIC was tried with, by their distance on PCIe."""
    tried = {probe.gpus[0] for probe in probes if probe.nic == nic.name and probe.numa_node is None}
    gpus = [gpu for gpu in machine.gpus or () if gpu.bus_id in tried]
    groups = grouped((device_link(machine, gpu, nic).kind, gpu) for gpu in gpus)
    return {kind: on_gpus(same).label for kind, same in groups.items()}


def _nics(machine: Machine, probes: Sequence[Probe]) -> list[Nic]:
    names = {probe.nic for probe in probes}
    return [nic for nic in machine.nics or () if nic.name in names]
