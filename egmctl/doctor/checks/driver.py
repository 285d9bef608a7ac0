"""The driver's parts: do they fit together, how are they set, and does nothing else hold the GPUs?"""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.doctor.check import Check, Scope, failed, passed, skipped, unknown, warned
from egmctl.doctor.situation import services_hidden
from egmctl.model.finding import Evidence, Finding, Guard, Remedy, on_gpus
from egmctl.model.machine import Driver, Machine, Process, System


def _versions(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    driver = machine.driver or Driver()
    module, library = driver.module_version, driver.driver_version
    evidence = (
        Evidence(source="/proc/driver/nvidia/version", value=module or "not read"),
        Evidence(source="nvmlSystemGetDriverVersion", value=library or driver.nvml_error or "not read"),
    )
    if driver.nvml_error == "NVML_ERROR_LIB_RM_VERSION_MISMATCH" or (module and library and module != library):
        yield failed(
            f"the kernel module is {module or 'of another version'}, the libraries are {library or 'of another one'}",
            Remedy(text="Reload the kernel module of the installed driver, or reboot.", needs_root=True),
            evidence=evidence,
            cause="the driver was updated while its old kernel module stayed loaded, or a container brings its own "
            "libraries",
        )
    elif module and library:
        yield passed(f"kernel module and libraries are both {module}", evidence=evidence)
    elif module is None and driver.modules is not None and "nvidia" not in driver.modules:
        yield skipped("the NVIDIA kernel module is not loaded", evidence=evidence)
    else:
        yield unknown("one of the two versions was not read", evidence=evidence)


PARAMS = "/proc/driver/nvidia/params"
REGISTRY_KEYS = ("RMDisableP2P", "ForceP2P", "RMForceP2PType", "PeerMappingOverride")
"""Keys of the driver's registry that decide over P2P (open-gpu-kernel-modules, nvrm_registry.h)."""


def _parameters(machine: Machine, scope: Scope) -> Iterator[Finding]:
    parameters = (machine.driver or Driver()).module_parameters
    if parameters is None:
        yield unknown(f"{PARAMS} was not read")
        return
    found = False
    if parameters.get("GrdmaPciTopoCheckOverride") == "2":
        found = True
        yield (failed if scope.asked_purpose(Guard.RDMA) else warned)(
            "a module parameter denies GPUDirect RDMA (GrdmaPciTopoCheckOverride is 2)",
            _take_out("NVreg_GrdmaPciTopoCheckOverride"),
            evidence=(Evidence(source=f"{PARAMS}: GrdmaPciTopoCheckOverride", value="2"),),
        )
    if parameters.get("DmaRemapPeerMmio") == "0":
        found = True
        yield warned(
            "a module parameter keeps the driver from mapping other devices' memory through the IOMMU "
            "(DmaRemapPeerMmio is 0)",
            _take_out("NVreg_DmaRemapPeerMmio"),
            evidence=(Evidence(source=f"{PARAMS}: DmaRemapPeerMmio", value="0"),),
            cause="with a translating IOMMU, P2P and GPUDirect RDMA then use invalid addresses",
        )
    words = parameters.get("RegistryDwords", "").strip('"')
    keys = [key for key in REGISTRY_KEYS if key in words]
    evidence = (Evidence(source=f"{PARAMS}: RegistryDwords", value=words or "empty"),)
    if keys:
        yield passed(
            "registry keys of the driver are set",
            evidence=evidence,
            note=f"{', '.join(keys)} affect P2P; p2p.status shows the result",
        )
    elif not found:
        note = "EnableStreamMemOPs is 0, the default: stream memory operations of the first version are off"
        yield passed(
            "no driver parameter disables a feature",
            evidence=evidence,
            note=note if parameters.get("EnableStreamMemOPs") == "0" and scope.asked_purpose(Guard.RDMA) else "",
        )


def _take_out(option: str) -> Remedy:
    return Remedy(
        text=f"Take {option} out of /etc/modprobe.d and reload the driver.", needs_root=True, needs_reboot=True
    )


def _nouveau(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    driver = machine.driver or Driver()
    if driver.modules is None:
        yield unknown("the loaded modules were not read")
        return
    loaded = "nouveau" in driver.modules
    taken = [gpu for gpu in machine.gpus or () if gpu.pci is not None and gpu.pci.driver == "nouveau"]
    evidence = (Evidence(source="/sys/module/nouveau", value="loaded" if loaded else "not loaded"),)
    remedy = Remedy(
        text="Blacklist nouveau, rebuild the initramfs and reboot.",
        command="echo 'blacklist nouveau' > /etc/modprobe.d/nouveau.conf",
        needs_root=True,
        needs_reboot=True,
    )
    if taken or (loaded and "nvidia" not in driver.modules):
        place = {"place": on_gpus(taken)} if taken else {}
        yield failed(
            "nouveau is bound to the GPUs, so NVIDIA's driver cannot use them", remedy, evidence=evidence, **place
        )
    elif loaded and any(gpu.pci is None or gpu.pci.driver is None for gpu in machine.gpus or ()):
        yield unknown("whether nouveau, which is loaded, is bound to one of these GPUs was not read", evidence=evidence)
    elif loaded:
        yield passed("nouveau is loaded but bound to none of these GPUs", evidence=evidence)
    else:
        yield passed("nouveau is not loaded", evidence=evidence)


def _mps(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    environment = (machine.process or Process()).environment or {}
    daemons = (machine.system or System()).daemons
    named = "CUDA_MPS_PIPE_DIRECTORY" in environment
    runs = "nvidia-cuda-mps-control" in (daemons or ())
    evidence = (
        Evidence(source="environment: CUDA_MPS_PIPE_DIRECTORY", value="set" if named else "not set"),
        Evidence(
            source="/proc/*/comm: nvidia-cuda-mps-*",
            value="not read" if daemons is None else "runs" if runs else "none runs",
        ),
    )
    if runs:
        yield passed(
            "an MPS server runs",
            evidence=evidence,
            note="its clients share the server's context: CUDA_VISIBLE_DEVICES counts among the server's GPUs, and "
            "what the server cannot open, no client has",
        )
    elif named and daemons is not None and not services_hidden(machine):
        yield passed(
            "CUDA_MPS_PIPE_DIRECTORY is set, but no MPS server runs",
            evidence=evidence,
            note="CUDA then works without MPS, as if the variable were not set",
        )
    elif daemons is None or services_hidden(machine):
        yield skipped("whether an MPS server runs: the host's processes are not visible from here", evidence=evidence)
    else:
        yield passed("no MPS server runs", evidence=evidence)


CHECKS = (
    Check("drv.versions", _versions, guards=tuple(Guard), sections=("driver",)),
    Check("drv.params", _parameters, guards=(Guard.RDMA, Guard.P2P, Guard.PERF), sections=("driver",)),
    Check("drv.nouveau", _nouveau, guards=tuple(Guard), sections=("gpus", "driver")),
    Check("mps.env", _mps, guards=(Guard.IPC,), sections=("process", "system")),
)
