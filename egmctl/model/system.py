"""The operating system around the GPUs: how the kernel was built and set up, PCIe bridges, services, RDMA."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from egmctl.model.devices import DeviceNode, Nic, PcieLink, PciFunction
from egmctl.model.record import BusId, Plain, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Bridge(Record):
    """A PCIe bridge above a GPU or a NIC: a root port, or a port of a switch."""

    bus_id: BusId
    vendor_id: int | None = None
    device_id: int | None = None
    link: PcieLink | None = None
    """Of the link below it."""
    acs_control: int | None = None
    """The control register of Access Control Services: bit 0 source validation, 2 request redirect, 3 completion
    redirect, 4 upstream forwarding, 6 direct translated P2P. Only root may read it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imex(Record):
    """The IMEX service, which lets nodes of one NVLink domain import each other's memory."""

    configured_nodes: int | None = None
    """Addresses in ``/etc/nvidia-imex/nodes_config.cfg``; the addresses themselves stay there."""
    duplicate_nodes: int | None = None
    """How many of them are there twice."""
    daemon_state: Plain | None = None
    """The word of ``nvidia-imex-ctl -q``: ``READY``, ``WAITING_FOR_PEERS``, ..."""
    domain_status: Plain | None = None
    """``UP``, ``DOWN`` or ``DEGRADED``, from ``nvidia-imex-ctl -N -j``."""
    runs_in: tuple[Plain, ...] | None = None
    """Where each nvidia-imex runs: ``host`` (its systemd service), ``pod`` (of Kubernetes) or ``elsewhere``."""
    kubelet: bool | None = None
    """Whether Kubernetes' agent runs on this node."""
    compute_domains: bool | None = None
    """Whether Kubernetes' DRA driver for ComputeDomains, which manages IMEX, runs here or has left its files."""
    compute_domain_mode: Plain | None = None
    """``driverManaged`` or ``hostManaged``, from the environment of that driver. Only root may read it."""
    session_in_use: bool | None = None
    """Whether the service's log ends with the refusal of a second daemon (``NV_ERR_IN_USE``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerbsNode(Record):
    """The device node through which programs use a NIC's RDMA."""

    nic: Plain | None = None
    """``mlx5_0``; of ``rdma_cm``, which belongs to no NIC, not supported."""
    node: DeviceNode


@dataclass(frozen=True, slots=True, kw_only=True)
class System(Record):
    """All of it. Everything is read from files, but for IMEX' own state."""

    uptime_s: float | None = None
    kernel_configuration: Mapping[Plain, Plain] | None = None
    """``y``, ``m`` or ``n`` of each of ``egmctl.facts.system.CONFIGURATION_KEYS``."""
    acpi_egm: bool | None = None
    """Whether the firmware's tables name EGM memory (``nvidia,egm-base-pa``). Only root may read them."""
    egm_regions: tuple[Plain, ...] | None = None
    """Devices in ``/sys/class/egm``, by which virtual machines get the EGM memory; empty where there are none."""
    max_map_count: int | None = None
    """``vm.max_map_count``."""
    remove_ipc: bool | None = None
    """logind's ``RemoveIPC``: whether a user's shared memory goes when the last session ends. ``None`` where no file
    sets it: then it is as the distribution built it."""
    iommu_domains: Mapping[Plain, Plain] | None = None
    """Type of the IOMMU group (``DMA``, ``DMA-FQ``, ``identity``) of each GPU and NIC that has one, by bus id."""
    bridges: tuple[Bridge, ...] | None = None
    """Above GPUs, NICs and Data Direct functions, in the order of their bus ids."""
    data_direct: tuple[PciFunction, ...] | None = None
    """Functions by which a ConnectX-8 reaches the GPU beside it (Data Direct); empty where there are none."""
    ats: Mapping[Plain, bool] | None = None
    """Whether each NIC has address translation (ATS), by bus id. Only root may read it."""
    daemons: tuple[Plain, ...] | None = None
    """Of ``egmctl.facts.services.DAEMONS``: those running; in a container, those of its own PID namespace only."""
    imex: Imex | None = None
    module_versions: Mapping[Plain, Plain] | None = None
    """Of ``egmctl.facts.system.RDMA_MODULES``: those loaded; ``""`` where a module has no version of its own."""
    peer_memory_clients: tuple[Plain, ...] | None = None
    """Names in ``/sys/kernel/mm/memory_peers``; empty where the kernel has no such folder."""
    verbs: tuple[VerbsNode, ...] | None = None
    """Nodes in ``/dev/infiniband`` that the kernel has devices for; empty where it has none."""
    nvlink_management: tuple[Nic, ...] | None = None
    """InfiniBand devices that lead to NVLink switches of this node, and are no NICs. Only root can tell them."""
