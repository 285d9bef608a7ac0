"""Writes the files of a machine's section ``system``: kernel, bridges, services, RDMA.

IMEX' control program is a script that answers what the machine says.
"""

from __future__ import annotations

import gzip
import struct
from typing import TYPE_CHECKING

from egmctl.facts import system as services
from egmctl.facts.gpus import DEVICES
from egmctl.facts.services import ENGINES, IMEX_LOG, TOOLKIT
from egmctl.model.host import Bridge, Containers, FirmwareEgm, Imex, System

if TYPE_CHECKING:
    from tests.fake.sysroot import Tree


def write_system(tree: Tree, system: System) -> None:
    """Write all that is stated. The bridges' folders must be there: :func:`tests.fake.sysroot.write_sysroot` makes them
    with the functions below them."""
    tree.write("/proc/uptime", None if system.uptime_s is None else f"{system.uptime_s:.2f} 0.00")
    tree.write("/proc/sys/vm/max_map_count", system.max_map_count)
    if system.kernel_configuration is not None:
        lines = (f"CONFIG_{key}={word}" for key, word in system.kernel_configuration.items() if word != "n")
        tree.write("/proc/config.gz", gzip.compress("\n".join(("CONFIG_64BIT=y", *lines)).encode()))
    if system.acpi_egm is not None:
        tree.write("/sys/firmware/acpi/tables/DSDT", b"DSDT" + b"".join(map(aml, system.firmware_egm or ())))
    for region in system.egm_regions or ():
        tree.folder(f"/sys/class/egm/{region}")
        if (size := (system.egm_region_bytes or {}).get(region)) is not None:
            tree.write(f"/sys/class/egm/{region}/egm_size", f"0x{size:x}\n")
    if system.remove_ipc is not None:
        tree.write("/etc/systemd/logind.conf", f"[Login]\nRemoveIPC={'yes' if system.remove_ipc else 'no'}")
    for number, (bus_id, kind) in enumerate((system.iommu_domains or {}).items()):
        tree.write(f"/sys/kernel/iommu_groups/{number}/type", kind)
        tree.link(f"{DEVICES}/{bus_id}/iommu_group", f"/sys/kernel/iommu_groups/{number}")
    for bridge in system.bridges or ():
        _bridge(tree, bridge)
    for bus_id, has_ats in (system.ats or {}).items():
        tree.write(f"{DEVICES}/{bus_id}/config", bytes(256) + struct.pack("<II", 0x0001000F if has_ats else 0, 0))
    names = {full: comm for comm, full in services.DAEMONS.items()}
    for number, daemon in enumerate(system.daemons or ()):
        tree.write(f"/proc/{1000 + number}/comm", names[daemon])
        if daemon == "nvidia-imex":
            tree.write(f"/proc/{1000 + number}/cgroup", "0::/system.slice/nvidia-imex.service")
    if system.imex is not None:
        _imex(tree, system.imex)
    if system.containers is not None:
        _containers(tree, system.containers)
    for name, version in (system.module_versions or {}).items():
        tree.folder(f"/sys/module/{name}")
        tree.write(f"/sys/module/{name}/version", version or None)
    for client in system.peer_memory_clients or ():
        tree.folder(f"/sys/kernel/mm/memory_peers/{client}")
    for one in system.verbs or ():
        if one.node.exists:
            tree.write(one.node.path, b"")
        if one.nic is not None:
            tree.write(f"/sys/class/infiniband_verbs/{one.node.path.rpartition('/')[2]}/ibdev", one.nic)


def _bridge(tree: Tree, bridge: Bridge) -> None:
    folder = f"{DEVICES}/{bridge.bus_id}"
    if bridge.link is not None:
        for name, speed in (("current", bridge.link.speed_gt_s), ("max", bridge.link.max_speed_gt_s)):
            tree.write(f"{folder}/{name}_link_speed", None if speed is None else f"{speed:.1f} GT/s PCIe")
        tree.write(f"{folder}/current_link_width", bridge.link.width)
        tree.write(f"{folder}/max_link_width", bridge.link.max_width)
    if bridge.acs_control is not None:
        # One extended capability: its id and version, ACS' own capabilities, and its control.
        tree.write(f"{folder}/config", bytes(256) + struct.pack("<IHH", 0x0001000D, 0, bridge.acs_control))


def _containers(tree: Tree, containers: Containers) -> None:
    if containers.toolkit:
        tree.write(TOOLKIT[0], "")
    for specification in containers.specifications or ():
        tree.write(
            specification.path, "".join(f"- libcuda.so.{each}\n" for each in specification.driver_versions or ())
        )
    for number, engine in enumerate(containers.engines or ()):
        process, (file, *_) = ENGINES[engine.name]
        tree.write(f"/proc/{1100 + number}/comm", process)
        tree.write(file, "nvidia-container-runtime" if engine.nvidia_runtime else "")


def _imex(tree: Tree, imex: Imex) -> None:
    if imex.session_in_use is not None:
        tree.write(IMEX_LOG, "NV_ERR_IN_USE" if imex.session_in_use else "READY")
    if imex.configured_nodes is not None:
        addresses = [f"10.0.0.{number}" for number in range(imex.configured_nodes - (imex.duplicate_nodes or 0))]
        tree.write(services.IMEX_NODES, "\n".join(addresses + addresses[: imex.duplicate_nodes or 0]))


def aml(area: FirmwareEgm) -> bytes:
    """Return the properties of an EGM area as a compiled _DSD has them: packages of a name and an integer."""
    values = {"base-pa": 1 << 41, "size": area.size_bytes, "pxm": area.proximity_domain}
    return b"".join(
        b"\x12\x20\x02\x0dnvidia,egm-" + name.encode() + b"\0" + _aml_integer(value)
        for name, value in values.items()
        if value is not None
    )


def _aml_integer(value: int) -> bytes:
    """Return an integer in the shortest form of AML (ACPI specification, 20.2.3)."""
    if value in (0, 1):
        return bytes([value])
    prefix, size = next(
        (prefix, size) for prefix, size in ((0x0A, 1), (0x0B, 2), (0x0C, 4), (0x0E, 8)) if value < 256**size
    )
    return bytes([prefix]) + value.to_bytes(size, "little")
