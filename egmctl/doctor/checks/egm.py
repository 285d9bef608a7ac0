"""Is EGM enabled, and does each GPU have a route to the memory of each CPU?"""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.doctor.check import Check, Scope, failed, needing, passed, skipped, unknown, warned
from egmctl.doctor.situation import (
    NOT_EGM,
    coherent,
    coherent_gpus,
    fabric,
    loss,
    mode_without_peers,
    needs_any_gpu,
    needs_coherent_gpu,
    needs_domain,
    needs_egm_platform,
    usable,
)
from egmctl.model.finding import Evidence, Finding, Guard, Remedy, on_gpus, on_numa
from egmctl.model.machine import Driver, Gpu, Machine, Process, Reason, System
from egmctl.topology.access import DENIED, Block, obstacle
from egmctl.topology.links import active_nvlinks
from egmctl.topology.platform import C2c, PlatformKind, c2c, platform
from egmctl.topology.routes import RouteKind, owners, route

BIT = "nvmlDeviceGetCapabilities"
FIRMWARE = Remedy(
    text="Turn EGM on in the system firmware setup (the vendor names the entry), then look again.",
    command="nvidia-smi -q | grep -A1 Capabilities",
    needs_root=True,
    needs_reboot=True,
)


@needing(needs_any_gpu)
def _platform(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    able = coherent(machine)
    states = tuple(
        Evidence(source=f"NVLink-C2C of GPU{gpu.index}", value=c2c(machine, gpu).value) for gpu in machine.gpus or ()
    )
    if able:
        found = platform(machine)
        has = found.kind not in (PlatformKind.NO_EGM, PlatformKind.UNKNOWN)
        yield passed(found.line if has else "a platform that can have EGM: its GPUs have NVLink-C2C", evidence=states)
    elif able is None:
        yield unknown("whether this is an EGM platform: NVML does not report the state of NVLink-C2C", evidence=states)
    else:
        yield skipped(NOT_EGM, evidence=states)


@needing(needs_egm_platform)
def _capability(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus = [gpu for gpu in usable(machine, scope.gpus_of(machine)) if c2c(machine, gpu) is C2c.UP]
    if not gpus:
        yield skipped("NVLink-C2C of no GPU that can be used from here is up; c2c.link and dev.* say why")
        return
    on = [gpu for gpu in gpus if gpu.nvml and gpu.nvml.egm_capable]
    off = [gpu for gpu in gpus if gpu.nvml and gpu.nvml.egm_capable is False]
    untold = [gpu for gpu in gpus if gpu not in on and gpu not in off]
    if on and not off:
        yield passed("EGM is on", place=on_gpus(on), evidence=_bits(on))
    if off:
        yield failed(
            "EGM is off" if not on else f"EGM is off, but on for {on_gpus(on).label}",
            FIRMWARE,
            place=on_gpus(off),
            evidence=_bits(gpus),
            cause="the driver turns EGM on if the firmware reserved memory, NVLink-C2C is up and the routes were "
            "programmed; egm.preconditions says which is missing",
        )
    for gpu in untold:
        why = gpu.nvml.unread.get("capabilities") if gpu.nvml else None
        if why is not None and why.reason is Reason.DRIVER_TOO_OLD:
            yield unknown("the driver is too old to report whether EGM is on", place=on_gpus([gpu]))
        else:
            said = f"NVML did not report it ({why.reason.value})" if why else "NVML did not report it"
            yield unknown(f"whether EGM is on: {said}", place=on_gpus([gpu]))


def _bits(gpus: list[Gpu]) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(source=f"{BIT}(GPU{gpu.index})", value=f"capMask {gpu.nvml.capabilities:#x}")
        for gpu in gpus
        if gpu.nvml and gpu.nvml.capabilities is not None
    )


@needing(needs_egm_platform, needs_coherent_gpu)
def _preconditions(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus = coherent_gpus(machine, usable(machine, scope.gpus_of(machine)))
    if all(gpu.nvml and gpu.nvml.egm_capable and c2c(machine, gpu) is C2c.UP for gpu in gpus):
        yield passed("all are met: EGM is on", place=on_gpus(gpus))
        return
    broken = list(_broken_links(machine, gpus))
    yield from broken or [
        unknown(
            "every precondition that was read is met; the kernel log may say more",
            remedy=Remedy(
                text="Look for driver messages about EGM in the kernel log.",
                command="dmesg | grep -iE 'EGM|HSHUB'",
                needs_root=True,
            ),
            evidence=tuple(_firmware_evidence(machine)),
        )
    ]


def _broken_links(machine: Machine, gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    """Name what is missing of what the driver asks for (open-gpu-kernel-modules, memmgrIsLocalEgmEnabled)."""
    system, driver = machine.system or System(), machine.driver or Driver()
    down = [gpu for gpu in gpus if c2c(machine, gpu) is C2c.DOWN]
    if down:
        yield failed(
            "NVLink-C2C is down, and EGM goes over it",
            Remedy(text="See c2c.link."),
            place=on_gpus(down),
            evidence=(Evidence(source="NVML_FI_DEV_C2C_LINK_GET_STATUS", value="no link is active"),),
        )
    if (system.kernel_configuration or {}).get("ACPI_NUMA") == "n":
        yield failed(
            "the kernel is built without CONFIG_ACPI_NUMA, by which the driver finds the NUMA node of EGM memory",
            Remedy(text="Boot a kernel with CONFIG_ACPI_NUMA=y.", needs_root=True, needs_reboot=True),
            evidence=(Evidence(source="kernel configuration", value="CONFIG_ACPI_NUMA=n"),),
        )
    if system.acpi_egm is False:
        yield failed(
            "the firmware reserved no memory for EGM",
            FIRMWARE,
            evidence=tuple(_firmware_evidence(machine)),
            cause="EGM is off in the firmware setup, or the firmware has none",
        )
    if driver.module_flavour == "proprietary":
        yield failed(
            "the proprietary kernel modules do not support GPUs with NVLink-C2C",
            Remedy(text="Install the driver's open kernel modules.", needs_root=True, needs_reboot=True),
            evidence=(Evidence(source="/proc/driver/nvidia/version", value="proprietary"),),
        )
    nowhere = [gpu for gpu in gpus if gpu.pci is not None and gpu.pci.numa_node is not None and gpu.pci.numa_node < 0]
    if nowhere:
        yield failed(
            "the firmware does not report the NUMA node of these GPUs",
            Remedy(text="Update the system firmware.", needs_root=True, needs_reboot=True),
            place=on_gpus(nowhere),
            evidence=(Evidence(source="/sys/bus/pci/devices/*/numa_node", value="-1"),),
        )


def _firmware_evidence(machine: Machine) -> Iterator[Evidence]:
    system = machine.system or System()
    words = {True: "nvidia,egm-base-pa is there", False: "no nvidia,egm-base-pa", None: "not read (only root may)"}
    yield Evidence(source="/sys/firmware/acpi/tables/DSDT, SSDT*", value=words[system.acpi_egm])


@needing(needs_egm_platform, needs_domain, needs_coherent_gpu)
def _fabric_address(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus = coherent_gpus(machine, usable(machine, scope.gpus_of(machine)))
    names = ("HANDLE_TYPE_FABRIC_SUPPORTED", "HOST_NUMA_MULTINODE_IPC_SUPPORTED")
    told = [(gpu, tuple(gpu.cuda.attributes.get(name) for name in names)) for gpu in gpus if gpu.cuda]
    without = [gpu for gpu, bits in told if bits == (1, 0)]
    evidence = tuple(
        Evidence(
            source=f"cuDeviceGetAttribute(GPU{gpu.index})",
            value=", ".join(f"{name} {bit}" for name, bit in zip(names, bits, strict=True)),
        )
        for gpu, bits in told
    )
    if without:
        yield warned(
            "device memory can be shared across nodes, host memory cannot: the fabric manager has EGM off",
            Remedy(
                text="Turn EGM on in the fabric manager (NMX-C) of the NVLink domain, then restart the nodes' GPUs."
            ),
            place=on_gpus(without),
            evidence=evidence,
            cause="the driver got no EGM address from the fabric (NVLINK_INBAND_FM_CAPS_EGM_ENABLED)",
        )
        return
    able = [gpu for gpu, bits in told if bits == (1, 1)]
    if able:
        yield passed("host memory can be shared across the NVLink domain", place=on_gpus(able), evidence=evidence)
    if unread := [gpu for gpu in gpus if gpu not in able]:
        why = "it did not" if told else "it was not queried (--active)"
        yield unknown(
            f"whether host memory can be shared across the domain is unknown: only CUDA reports it, and {why}",
            place=on_gpus(unread),
        )


@needing(needs_egm_platform)
def _hypervisor_mode(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    system, driver = machine.system or System(), machine.driver or Driver()
    modules = [name for name in driver.modules or () if name == "nvgrace_egm"]
    evidence = (
        Evidence(source="/sys/module/nvgrace_egm", value="loaded" if modules else "not loaded"),
        Evidence(source="/sys/class/egm", value=" ".join(system.egm_regions or ()) or "empty"),
    )
    if modules or system.egm_regions:
        yield warned(
            "EGM memory is reserved for virtual machines, so the host has less memory than installed",
            Remedy(
                text="If this node runs no virtual machines, turn EGM's hypervisor mode off in the firmware setup and "
                "unload nvgrace_egm.",
                needs_root=True,
                needs_reboot=True,
            ),
            evidence=evidence,
            cause="in this mode the firmware hides the EGM regions from the kernel, and nvgrace_egm hands them to "
            "guests",
        )
    elif driver.modules is None or system.egm_regions is None:
        unread = "the loaded modules were" if driver.modules is None else "/sys/class/egm was"
        yield unknown(f"{unread} not read", evidence=evidence)
    else:
        yield passed("no EGM memory is reserved for virtual machines", evidence=evidence)


def _override_key(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    parameters = (machine.driver or Driver()).module_parameters
    if parameters is None:
        yield unknown("/proc/driver/nvidia/params could not be read")
        return
    words = parameters.get("RegistryDwords", "")
    evidence = (Evidence(source="/proc/driver/nvidia/params: RegistryDwords", value=words or "empty"),)
    if "RMEnableLocalEgmPeerId" in words:
        yield warned(
            "RMEnableLocalEgmPeerId, a hardware verification key, forces EGM's peer id",
            Remedy(
                text="Take RMEnableLocalEgmPeerId out of NVreg_RegistryDwords in /etc/modprobe.d and reload the "
                "driver.",
                needs_root=True,
                needs_reboot=True,
            ),
            evidence=evidence,
        )
    else:
        yield passed("no registry key overrides EGM", evidence=evidence)


@needing(needs_egm_platform)
def _cgroup_route(machine: Machine, scope: Scope) -> Iterator[Finding]:
    nodes = [node for node in scope.numa_of(machine) if owners(machine, node)]
    if not nodes:
        yield unknown("no GPU is known to be on any of these NUMA nodes")
        return
    whole: list[int] = []
    for node in nodes:
        attached = owners(machine, node)
        if any(loss(machine, gpu) is Block.UNKNOWN for gpu in attached):
            yield unknown("whether that process can use the GPUs of this node", place=on_numa([node]))
            continue
        lost = [(gpu, stopped) for gpu in attached if (stopped := obstacle(machine, gpu)) is not None]
        if not lost or _all_local(machine, scope, node):
            whole.append(node)
            continue
        evidence = tuple(Evidence(source=f"GPU{gpu.index}", value=stopped.cause) for gpu, stopped in lost)
        names = on_gpus(gpu for gpu, _ in lost).label
        cause = "EGM memory belongs to one GPU of its node, the owner; other GPUs reach it over NVLink. A GPU that "
        cause += "this process cannot open cannot be an owner; one hidden by CUDA_VISIBLE_DEVICES can"
        denied = all(stopped.block in DENIED for _, stopped in lost)
        remedy = Remedy(
            text="Give this process all of the node's GPUs and choose among them with CUDA_VISIBLE_DEVICES; "
            "dev.cgroup-restricted says how for this manager."
            if denied
            else "Bring the GPU back: the dev.* checks say what is wrong with it."
        )
        if len(lost) == len(attached) or any(scope.asked_for(gpu) for gpu, _ in lost):
            yield failed(
                f"no GPU here can route EGM to this memory ({names} cannot be used)"
                if len(lost) == len(attached)
                else f"{names} is required (--gpus, --expect) and cannot route EGM to this memory",
                remedy,
                place=on_numa([node]),
                evidence=evidence,
                cause=cause,
            )
        else:
            left = on_gpus(usable(machine, attached)).label
            yield warned(
                f"{names} cannot be used, so only {left} can own EGM memory of this node, and its NVLink-C2C carries "
                "all of it",
                remedy,
                place=on_numa([node]),
                evidence=evidence,
                cause=cause,
            )
    if whole:
        table = ", ".join(f"NUMA {node}: {on_gpus(owners(machine, node)).label}" for node in whole)
        hidden = "CUDA_VISIBLE_DEVICES" in ((machine.process or Process()).environment or {})
        yield passed(
            "all GPUs on EGM routes are accessible",
            place=on_numa(whole),
            evidence=(Evidence(source="GPUs of each NUMA node", value=table),),
            note="CUDA_VISIBLE_DEVICES hides GPUs from CUDA; EGM routes over them stay" if hidden else "",
        )


def _all_local(machine: Machine, scope: Scope, node: int) -> bool:
    """Say whether the GPUs that the user named all sit on the node, each with a route of its own."""
    return scope.gpus is not None and all(
        gpu.host_numa_id == node and obstacle(machine, gpu) is None for gpu in scope.gpus_of(machine)
    )


@needing(needs_egm_platform)
def _peer_route(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus = usable(machine, scope.gpus_of(machine))
    far = [(gpu, node) for gpu in gpus for node in scope.numa_of(machine) if gpu.host_numa_id != node]
    if not far:
        yield skipped("no other NUMA node to reach")
        return
    if not any(active_nvlinks(gpu) for gpu in machine.gpus or ()) and not any(map(fabric, machine.gpus or ())):
        yield skipped("no NVLink joins these GPUs: another node's memory is ordinary system memory to them")
        return
    good: dict[str, Gpu] = {}
    bad: set[str] = set()
    for gpu, node in far:
        found = route(machine, gpu, node)
        place = on_gpus([gpu])
        if found.kind is RouteKind.REMOTE:
            good[gpu.bus_id] = gpu
        elif found.kind is RouteKind.UNKNOWN:
            bad.add(gpu.bus_id)
            yield unknown(f"the EGM route to NUMA {node}: {found.reason}", place=place)
        elif found.blocked_by in (Block.NVLINK_DOWN, Block.NO_P2P):
            bad.add(gpu.bus_id)
            mode = mode_without_peers(machine, (gpu, *owners(machine, node)))
            asked = scope.asked_purpose(Guard.EGM) or scope.asked_purpose(Guard.P2P)
            yield (failed if mode is None or asked else warned)(
                f"no EGM route to NUMA {node}: {found.reason}",
                Remedy(text="See p2p.status and nvlink.links for the GPUs that are named."),
                place=place,
                evidence=(Evidence(source="nvmlDeviceGetP2PStatus, nvmlDeviceGetNvLinkState", value=found.reason),),
                cause=f"remote EGM goes over NVLink to a GPU of that node, as its peer{f'; {mode}' if mode else ''}",
            )
    if well := [gpu for gpu in good.values() if gpu.bus_id not in bad]:
        yield passed("reaches the other NUMA nodes over NVLink and a peer's C2C", place=on_gpus(well))
    elif not bad:
        yield skipped("no remote EGM route to judge; other checks say why")


CHECKS = (
    Check("egm.platform", _platform, guards=(Guard.EGM,), sections=("gpus",)),
    Check("egm.capability", _capability, guards=(Guard.EGM,), sections=("gpus",)),
    Check("egm.preconditions", _preconditions, guards=(Guard.EGM,), sections=("gpus", "system")),
    Check("egm.fabric-address", _fabric_address, guards=(Guard.EGM, Guard.FABRIC), sections=("gpus",)),
    Check("egm.hypervisor-mode", _hypervisor_mode, guards=(Guard.EGM,), sections=("driver", "system")),
    Check("egm.override-key", _override_key, guards=(Guard.EGM,), sections=("driver",)),
    Check("egm.cgroup-route", _cgroup_route, guards=(Guard.EGM,), sections=("host", "gpus", "process")),
    Check("egm.peer-route", _peer_route, guards=(Guard.EGM, Guard.P2P), sections=("host", "gpus", "pairs")),
)
