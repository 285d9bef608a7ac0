"""Checks of EGM: whether it is enabled, and whether each GPU has a route to the memory of each CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from egmctl.doctor import situation
from egmctl.doctor.check import Scope, Verdicts, check, skip
from egmctl.doctor.expected import wants_egm
from egmctl.doctor.findings import fact, failed, gap, noted, passed, skipped, unknown, warned
from egmctl.model.finding import Finding, Guard, Status, on_gpus, on_numa
from egmctl.model.gpu import Gpu
from egmctl.model.host import Driver, Process, System
from egmctl.model.machine import Machine
from egmctl.model.record import Reason
from egmctl.model.remedy import Need, Remedy, as_root, remove_option, todo
from egmctl.topology.access import DENIED, Block, obstacle
from egmctl.topology.egm_mode import EgmMode, egm_mode
from egmctl.topology.links import active_nvlinks
from egmctl.topology.platform import C2c, PlatformKind, c2c, platform
from egmctl.topology.routes import RouteKind, possible_owners, route

_NO_EGM_HERE = todo("Use a node with NVIDIA Grace or Vera CPUs whose GPUs have NVLink-C2C (docs/egm.md).")
FIRMWARE = as_root(
    "Turn EGM on in the system firmware setup ('EGM'; Redfish: EGM in /Bios/Attributes; your vendor may name it "
    "otherwise). Mind what it takes: GPUs on NVSwitches then have P2P only if the fabric "
    "manager gives them EGM addresses, and a carve-out for virtual machines takes memory from the host.",
    Need.REBOOT,
    look="nvidia-smi -q | grep -A1 Capabilities",
)
_KERNEL_LOG = as_root("Look for driver messages about EGM in the kernel log.", look="dmesg | grep -iE 'EGM|HSHUB'")
_READ_TABLES = as_root(
    "Run egmctl as root on the host first: the firmware's tables say whether EGM is off in the firmware setup, on, or "
    "carved out for virtual machines."
)
_SEE_MODE = todo("See egm.mode: the firmware has EGM on, but not for this system.")


ACPI_NUMA, FLAVOUR = "CONFIG_ACPI_NUMA", "flavour of the kernel modules"
"""The sources of the evidence for what the kernel or its modules lack for EGM."""


@check("egm.platform", Guard.EGM)
def _platform(machine: Machine, scope: Scope) -> Verdicts:
    gpus = machine.gpus or skip(situation.NO_NVIDIA_GPU)
    yield from (fact(f"NVLink-C2C of GPU{gpu.index}", c2c(machine, gpu)) for gpu in gpus)
    is_coherent = situation.coherent(machine)
    if is_coherent is None:
        yield unknown("whether this is an EGM platform: NVML does not report the state of NVLink-C2C")
    elif not is_coherent and wants_egm(scope):
        yield failed(f"{situation.NOT_EGM}, and EGM is expected (--expect)", _NO_EGM_HERE)
    elif not is_coherent:
        yield skipped(situation.NOT_EGM, remedy=_NO_EGM_HERE, blocks=(Guard.EGM,))
    else:
        detected = platform(machine)
        is_known = detected.kind not in (PlatformKind.NO_EGM, PlatformKind.UNKNOWN)
        yield passed(detected.line if is_known else "a platform that can have EGM: its GPUs have NVLink-C2C")


@check("egm.capability", Guard.EGM)
def _capability(machine: Machine, scope: Scope) -> Verdicts:
    situation.need_c2c(machine, situation.NOT_EGM)
    gpus = [gpu for gpu in situation.usable(machine, scope.gpus_of(machine)) if c2c(machine, gpu) is C2c.UP]
    if not gpus:
        skip("NVLink-C2C of no GPU that can be used from here is up; c2c.link and dev.* say why")
    capable = [gpu for gpu in gpus if gpu.nvml and gpu.nvml.egm_capable]
    for gpu in gpus:
        bits = gpu.nvml.capabilities if gpu.nvml else None
        yield fact(f"nvmlDeviceGetCapabilities(GPU{gpu.index})", None if bits is None else f"capMask {bits:#x}")
    if incapable := [gpu for gpu in gpus if gpu.nvml and gpu.nvml.egm_capable is False]:
        remedy, cause = _turn_on(machine)
        if capable:
            yield failed(f"EGM is off, but on for {on_gpus(capable).label}", remedy, incapable, cause=cause)
        elif wants_egm(scope):
            yield failed("EGM is off, and expected (--expect)", remedy, incapable, cause=cause)
        else:
            yield noted("EGM is off", incapable, remedy=remedy, cause=cause, blocks=(Guard.EGM,))
    elif capable:
        yield passed("EGM is on", capable)
    for gpu in gpus:
        if gpu not in capable and gpu not in incapable:
            yield unknown(f"whether EGM is on: {_no_capabilities(gpu)}", gpu)


def _turn_on(machine: Machine) -> tuple[Remedy, str]:
    """Return the remedy and cause of a clear capability bit. Where firmware has EGM on, nobody is to turn it on."""
    if egm_mode(machine).mode is EgmMode.CARVED_OUT:
        return _SEE_MODE, "the firmware carves out EGM memory for virtual machines"
    if (machine.system or System()).acpi_egm:
        return _KERNEL_LOG, "the firmware has EGM on, so the driver could not set it up: see egm.preconditions"
    if (machine.system or System()).acpi_egm is None:
        return _READ_TABLES, "whether the firmware has EGM on was not read"
    return FIRMWARE, "firmware reserved no memory, NVLink-C2C is down or routes are missing: see egm.preconditions"


def _no_capabilities(gpu: Gpu) -> str:
    """Return why NVML does not report whether EGM is on."""
    reason = gpu.nvml.reason_of("capabilities") if gpu.nvml else None
    if reason is Reason.DRIVER_TOO_OLD:
        return "the driver is too old to report it"
    if reason is Reason.NOT_SUPPORTED:
        return "this driver does not report it for this GPU"
    return gap(gpu.nvml, "capabilities") or "NVML does not report it"


@check("egm.preconditions", Guard.EGM, sections=("gpus", "system"))
def _preconditions(machine: Machine, scope: Scope) -> Verdicts:
    situation.need_c2c(machine, situation.NOT_EGM)
    gpus = situation.usable_coherent_gpus(machine, scope)
    reserved = {True: "nvidia,egm-base-pa is there", False: "no nvidia,egm-base-pa", None: "not read (only root may)"}
    yield fact("/sys/firmware/acpi/tables/DSDT, SSDT*", reserved[(machine.system or System()).acpi_egm])
    if all(gpu.nvml and gpu.nvml.egm_capable and c2c(machine, gpu) is C2c.UP for gpu in gpus):
        yield passed("all are met: EGM is on", gpus)
        return
    missing = list(_missing(machine, gpus))
    if wants_egm(scope):
        missing = [replace(each, status=Status.FAIL) if Guard.EGM in each.blocks else each for each in missing]
    yield from missing
    if not missing:
        all_met = "every precondition that was read is met; the kernel log may say more"
        if all(gpu.nvml and gpu.nvml.egm_capable is False for gpu in gpus):
            yield noted(all_met, remedy=_KERNEL_LOG)
        else:
            yield unknown(all_met, remedy=_KERNEL_LOG)


def _missing(machine: Machine, gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    """Yield the unmet preconditions of the driver (open-gpu-kernel-modules, memmgrIsLocalEgmEnabled)."""
    system, driver = machine.system or System(), machine.driver or Driver()
    if down := [gpu for gpu in gpus if c2c(machine, gpu) is C2c.DOWN]:
        yield failed("NVLink-C2C is down, and EGM goes over it", todo("See c2c.link."), down)
    # Where nobody asks for EGM, that it is off is a setting, and so is what turns it off.
    if (system.kernel_configuration or {}).get("ACPI_NUMA") == "n":
        boot = as_root("Boot a kernel with CONFIG_ACPI_NUMA=y.", Need.REBOOT)
        without = "the kernel is built without CONFIG_ACPI_NUMA: the driver cannot find EGM memory's node"
        built = fact(ACPI_NUMA, "n")
        yield noted(without, remedy=boot, evidence=(built,), blocks=(Guard.EGM,))
    if system.acpi_egm is False:
        cause = "EGM is off in the firmware setup, or the firmware has none"
        none_reserved = "the firmware reserved no memory for EGM"
        yield noted(none_reserved, remedy=FIRMWARE, cause=cause, blocks=(Guard.EGM,))
    if driver.module_flavour == "proprietary":
        install = as_root("Install the driver's open kernel modules.", Need.REBOOT)
        loaded = fact(FLAVOUR, "proprietary")
        yield failed("the proprietary kernel modules do not support GPUs with NVLink-C2C", install, evidence=(loaded,))
    if without_node := [gpu for gpu in gpus if gpu.pci is not None and (gpu.pci.numa_node or 0) < 0]:
        update = as_root("Update the system firmware.", Need.REBOOT)
        yield failed("the firmware does not report the NUMA node of these GPUs", update, without_node)


def _gpus_in_domain(machine: Machine, scope: Scope) -> tuple[Gpu, ...]:
    situation.need_c2c(machine, situation.NOT_EGM)
    situation.need_domain(machine)
    return situation.usable_coherent_gpus(machine, scope)


@situation.check_gpus("egm.fabric-address", Guard.EGM, Guard.FABRIC, gpus_of=_gpus_in_domain)
def _fabric_address(_machine: Machine, _scope: Scope, gpu: Gpu) -> Verdicts:
    names = ("HANDLE_TYPE_FABRIC_SUPPORTED", "HOST_NUMA_MULTINODE_IPC_SUPPORTED")
    bits = [gpu.cuda.attributes.get(name) for name in names] if gpu.cuda else []
    for name, bit in zip(names, bits, strict=False):
        yield fact(f"cuDeviceGetAttribute(GPU{gpu.index}, {name})", bit)
    if bits == [1, 0]:
        yield warned(
            "device memory can be shared across nodes, host memory cannot: the fabric manager has EGM off",
            as_root(
                "Turn EGM on in the fabric manager (NMX-C) of the NVLink domain, then reset the nodes' GPUs.",
                Need.GPU_RESET,
                Need.NO_DOMAIN_JOBS,
            ),
            cause="the driver got no EGM address from the fabric (NVLINK_INBAND_FM_CAPS_EGM_ENABLED)",
        )
    elif bits == [1, 1]:
        yield passed("host memory can be shared across the NVLink domain")
    else:
        reason = "CUDA does not report it" if gpu.cuda else "CUDA was not queried (--active)"
        yield unknown(f"whether host memory can be shared across the domain: {reason}")


@check("egm.override-key", Guard.EGM, sections=("driver",))
def _override_key(machine: Machine, _scope: Scope) -> Verdicts:
    registry_keys = situation.driver_parameters(machine).get("RegistryDwords", "")
    yield fact("NVreg_RegistryDwords", registry_keys or "empty")
    if "RMEnableLocalEgmPeerId" in registry_keys:
        yield warned(
            "RMEnableLocalEgmPeerId, a hardware verification key, forces EGM's peer id",
            remove_option("RMEnableLocalEgmPeerId (in NVreg_RegistryDwords)"),
        )
    else:
        yield passed("no registry key overrides EGM")


@check("egm.cgroup-route", Guard.EGM, sections=("host", "gpus", "process"))
def _cgroup_route(machine: Machine, scope: Scope) -> Verdicts:
    situation.need_c2c(machine, situation.NOT_EGM)
    attached = situation.routers(machine, scope)
    if not attached:
        yield unknown("no GPU is known to be on any of these NUMA nodes")
    hidden = "CUDA_VISIBLE_DEVICES" in ((machine.process or Process()).environment or {})
    note = "CUDA_VISIBLE_DEVICES hides GPUs from CUDA; EGM routes over them stay" if hidden else ""
    for node, gpus in attached.items():
        place = on_numa([node])
        lost = [(gpu, stopped) for gpu in gpus if (stopped := obstacle(machine, gpu)) is not None]
        if any(situation.loss(machine, gpu) is Block.UNKNOWN for gpu in gpus):
            yield unknown("whether that process can use the GPUs of this node", place)
            continue
        if not lost or _all_local(machine, scope, node):
            evidence = (fact(f"GPUs of NUMA {node}", on_gpus(gpus).label),)
            yield passed("all GPUs on EGM routes are accessible", place, evidence=evidence, note=note)
            continue
        names, left = on_gpus(gpu for gpu, _ in lost).label, situation.usable(machine, gpus)
        required = any(scope.names_gpu(gpu) for gpu, _ in lost)
        if len(lost) == len(gpus):
            summary = f"no GPU here can route EGM to this memory ({names} cannot be used)"
        elif required:
            summary = f"{names} is required (--gpus, --expect) and cannot route EGM to this memory"
        else:
            summary = f"{names} cannot be used, so only {on_gpus(left).label} can own EGM memory of this node"
        remedy = todo("Bring the GPU back: the dev.* checks say what is wrong with it.")
        withheld = all(stopped.block in DENIED for _, stopped in lost)
        if withheld:
            remedy = todo("Give this process all of the node's GPUs: see dev.cgroup-restricted.")
        # A partial allocation is no fault of the node.
        yield (failed if required or (len(lost) == len(gpus) and not withheld) else warned)(
            summary,
            remedy,
            place,
            evidence=tuple(fact(f"GPU{gpu.index}", stopped.cause) for gpu, stopped in lost),
            cause="EGM memory belongs to one GPU of its node, the owner, which this process has to open; other GPUs "
            "reach it over NVLink",
            blocks=(Guard.EGM,),
        )


def _all_local(machine: Machine, scope: Scope, node: int) -> bool:
    """Return whether all GPUs that the user named are on the node and usable, so that each has its own route."""
    return scope.gpus is not None and all(
        gpu.host_numa_id == node and obstacle(machine, gpu) is None for gpu in scope.gpus_of(machine)
    )


@check("egm.peer-route", Guard.EGM, Guard.P2P, sections=("host", "gpus", "pairs"))
def _peer_route(machine: Machine, scope: Scope) -> Verdicts:
    situation.need_c2c(machine, situation.NOT_EGM)
    gpus = situation.usable(machine, scope.gpus_of(machine))
    remote = [(gpu, node) for gpu in gpus for node in scope.numa_of(machine) if gpu.host_numa_id != node]
    if not remote:
        skip("no other NUMA node to reach")
    if not any(active_nvlinks(gpu) or situation.fabric(gpu) for gpu in machine.gpus or ()):
        skip("no NVLink joins these GPUs: another node's memory is ordinary system memory to them")
    reaches: list[Gpu] = []
    faulty: list[Gpu] = []
    for gpu, node in remote:
        path = route(machine, gpu, node)
        if path.kind is RouteKind.REMOTE:
            reaches.append(gpu)
        elif path.kind is RouteKind.UNKNOWN:
            faulty.append(gpu)
            yield unknown(f"the EGM route to NUMA {node}: {path.reason}", gpu)
        elif path.blocked_by in (Block.NVLINK_DOWN, Block.NO_P2P):
            faulty.append(gpu)
            mode = situation.mode_without_peers(machine, (gpu, *possible_owners(machine, node)))
            # A deliberately set mode disables it.
            yield (failed if mode is None else noted)(
                f"no EGM route to NUMA {node}: {path.reason}",
                remedy=todo("See p2p.status and nvlink.links for the GPUs that are named."),
                place=gpu,
                cause=f"remote EGM goes over NVLink to a GPU of that node, as its peer{f'; {mode}' if mode else ''}",
                blocks=(Guard.EGM, Guard.P2P),
            )
    if reaching := [gpu for gpu in gpus if gpu in reaches and gpu not in faulty]:
        yield passed("reaches the other NUMA nodes over NVLink and a peer's C2C", reaching)
    elif not faulty:
        skip("no remote EGM route to judge; other checks say why")
