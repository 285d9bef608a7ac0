"""Shipped machines with one thing changed, for tests of several areas."""

from __future__ import annotations

import dataclasses
from dataclasses import replace

from egmctl.model.host import Bridge, FirmwareEgm, LibraryFailure, NumaKind, NumaNode, PciFunction
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from egmctl.units import GIB
from tests.doctor.machines import patched, shipped, with_gpu_denied

CARVE_OUT = 414 * GIB


def _healthy() -> Machine:
    """Return the healthy tray, whose module reads the tests of all areas, which import this one."""
    from tests.doctor.faults import healthy

    return healthy()


def declaring(machine: Machine, *domains: int, size: int | None = CARVE_OUT) -> Machine:
    """The machine whose firmware declares EGM areas of these proximity domains."""
    areas = tuple(FirmwareEgm(proximity_domain=domain, size_bytes=size) for domain in domains)
    return patched(machine, "system", acpi_egm=bool(areas), firmware_egm=areas)


def with_carve_out(capabilities: int = 0) -> Machine:
    """A tray with the driver nvidia whose firmware keeps all but 64 GiB of each CPU's memory for virtual machines."""
    machine = declaring(_healthy(), 4, 5)
    for node in (0, 1):
        sizes = {"memory_total_bytes": 64 * GIB, "memory_free_bytes": 60 * GIB}
        machine = patched(machine, f"host.numa_nodes[{node}]", **sizes)
    return patched(machine, "gpus[*].nvml", capabilities=capabilities)


def virtualization_host() -> Machine:
    """The same tray with the drivers of a hypervisor: it gives its GPUs and their EGM away, and NVML does not start."""
    machine = with_carve_out()
    why = Unread(reason=Reason.NOT_PRESENT, detail="the nvidia driver is not bound to it")
    sources = ("proc", "node", "nvml", "cuda")
    machine = patched(machine, "gpus[*]", **dict.fromkeys(sources), unread=dict.fromkeys(sources, why))
    machine = patched(machine, "gpus[*].pci", driver="nvgrace_gpu_vfio_pci")
    failure = LibraryFailure(how="error", call="nvmlInit", name="NVML_ERROR_DRIVER_NOT_LOADED")
    machine = patched(
        machine,
        "driver",
        modules=("nvgrace_gpu_vfio_pci", "nvgrace_egm"),
        majors={},
        nodes=(),
        imex_channels=(),
        **dict.fromkeys(("module_version", "module_flavour", "module_parameters", "driver_version", "nvml_version")),
        nvml_error=failure.name,
        nvml_failure=failure,
    )
    sizes = {"egm4": CARVE_OUT, "egm5": CARVE_OUT}
    machine = patched(machine, "system", egm_regions=tuple(sizes), egm_region_bytes=sizes, daemons=())
    return dataclasses.replace(machine, pairs=(), probes=None)


def node1(**changes: object) -> Machine:
    """The healthy machine with something about NUMA 1 changed."""
    return patched(_healthy(), "host.numa_nodes[1]", **changes)


def with_node(number: int, kind: NumaKind = NumaKind.MEMORY_ONLY) -> Machine:
    """The healthy machine with one more NUMA node."""
    machine = _healthy()
    assert machine.host is not None
    extra = NumaNode(id=number, kind=kind, memory_total_bytes=256 * GIB, memory_free_bytes=256 * GIB)
    nodes = tuple(node for node in machine.host.numa_nodes or () if node.id != number)
    return patched(machine, "host", numa_nodes=(*nodes, extra))


NVIDIA, MELLANOX = 0x10DE, 0x15B3
GRACE, VERA, CONNECTX_SWITCH = (NVIDIA, 0x22B1), (NVIDIA, 0x2F95), (MELLANOX, 0x197C)
DEFAULT = 0b0011101
"""Upstream forwarding, both redirects and source validation: what Linux sets where an IOMMU is on."""


def gb200(acs_control: int = DEFAULT, root_port: tuple[int, int] = GRACE) -> Machine:
    """GB200 with ConnectX-7: GPUs and NICs below root ports of the CPU."""
    from tests.doctor.faults import bridges

    return patched(_healthy(), "system", bridges=bridges(_healthy(), acs_control, *root_port), data_direct=())


def gb300(root_port: int = 0x1C, nic_side: int = 0x19, gpu_side: int = 0x15) -> Machine:
    """GB300 with ConnectX-8: below each root port a switch of the NIC, with its Data Direct function and a GPU."""
    machine = _healthy()
    gpus, ports, functions = [], [], []
    for number, gpu in enumerate(machine.gpus or ()):
        segment = f"{0x08 + number:04x}"
        path = tuple(f"{segment}:{bus:02x}:00.0" for bus in range(5))
        beside = f"{segment}:02:01.0"
        assert gpu.pci is not None
        gpus.append(replace(gpu, pci=replace(gpu.pci, path=(f"pci{segment}:00", *path))))
        functions.append(
            PciFunction(
                bus_id=f"{segment}:06:00.0",
                vendor_id=MELLANOX,
                device_id=0x2100,
                path=(f"pci{segment}:00", *path[:2], beside),
            )
        )
        controls = dict.fromkeys(path, DEFAULT) | {path[0]: root_port, path[2]: gpu_side, beside: nic_side}
        for port, control in controls.items():
            vendor_id, device_id = GRACE if port == path[0] else CONNECTX_SWITCH
            ports.append(Bridge(bus_id=port, vendor_id=vendor_id, device_id=device_id, acs_control=control))
    return patched(
        patched(machine, "", gpus=tuple(gpus)), "system", bridges=tuple(ports), data_direct=tuple(functions), ats={}
    )


def b300(ats: bool, nic_side: int, others: int) -> Machine:
    """HGX B300: each GPU is below the switch of a ConnectX-8."""
    machine = shipped("dgx-h100")
    gpus, nics, ports = [], [], []
    for number, (gpu, nic) in enumerate(zip(machine.gpus or (), machine.nics or (), strict=False)):
        path = tuple(f"{number:04x}:{bus:02x}:00.0" for bus in range(5))
        beside = f"{number:04x}:02:01.0"
        assert gpu.pci is not None
        assert nic.pci is not None
        gpus.append(replace(gpu, pci=replace(gpu.pci, path=(f"pci{number:04x}:00", *path))))
        nics.append(
            replace(nic, pci=replace(nic.pci, device_id=0x1023, path=(f"pci{number:04x}:00", *path[:2], beside)))
        )
        for port in (*path, beside):
            vendor_id, device_id = (0x8086, 0x352A) if port == path[0] else CONNECTX_SWITCH
            control = nic_side if port == beside else others
            ports.append(Bridge(bus_id=port, vendor_id=vendor_id, device_id=device_id, acs_control=control))
    machine = patched(machine, "gpus[*].nvml", virtualization="none")
    machine = patched(machine, "", gpus=tuple(gpus), nics=tuple(nics))
    has_ats = {nic.pci.bus_id: ats for nic in nics if nic.pci}
    return patched(machine, "system", bridges=tuple(ports), data_direct=(), ats=has_ats)


def error(call: str, number: int) -> LibraryFailure:
    names = {18: "NVML_ERROR_LIB_RM_VERSION_MISMATCH", 100: "CUDA_ERROR_NO_DEVICE", 802: "CUDA_ERROR_SYSTEM_NOT_READY"}
    return LibraryFailure(how="error", call=call, number=number, name=names.get(number, "UNKNOWN"))


def unlisted(machine: Machine, nvml: Reason = Reason.FAILED) -> Machine:
    """NVML and CUDA say nothing of any GPU."""
    why = {"nvml": Unread(reason=nvml, detail=""), "cuda": Unread(reason=Reason.FAILED, detail="")}
    return patched(machine, "gpus[*]", nvml=None, cuda=None, unread=why)


def blind(machine: Machine, failure: LibraryFailure | None = None) -> Machine:
    """NVML does not work."""
    return patched(unlisted(machine), "driver", nvml_failure=failure or error("nvmlInit", 999))


def without_cuda(machine: Machine, number: int) -> Machine:
    """CUDA does not start."""
    return patched(machine, "driver", cuda_failure=error("cuInit", number))


def all_denied(access: str = "EPERM") -> Machine:
    return with_gpu_denied(_healthy(), 0, 1, 2, 3, access=access)


def container(*, gpus: bool) -> Machine:
    """A container that was started with all GPUs, or with none, and whose runtime left out the nodes of all GPUs."""
    machine = without_cuda(blind(_healthy() if gpus else all_denied("ENOENT")), 100)
    machine = patched(machine, "driver.nodes[*]", exists=False, access="ENOENT")
    return patched(machine, "process", container_signs=("/run/.containerenv",), environment={})
