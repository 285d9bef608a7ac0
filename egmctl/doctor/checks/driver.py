"""The driver's parts: do they fit together, how are they set, and does nothing else hold the GPUs?"""

from __future__ import annotations

from egmctl.doctor.check import Scope, Verdicts, check, known
from egmctl.doctor.findings import (
    PARAMS,
    as_root,
    daemon_fact,
    fact,
    failed,
    passed,
    skipped,
    unknown,
    warned,
    without_option,
)
from egmctl.doctor.situation import services_hidden
from egmctl.model.finding import Guard
from egmctl.model.machine import Driver, Machine, Process, System

REGISTRY_KEYS = ("RMDisableP2P", "ForceP2P", "RMForceP2PType", "PeerMappingOverride")
"""Keys of the driver's registry that decide over P2P (open-gpu-kernel-modules, nvrm_registry.h)."""


@check("drv.versions", *Guard, sections=("driver",))
def _versions(machine: Machine, _scope: Scope) -> Verdicts:
    driver = machine.driver or Driver()
    module, library = driver.module_version, driver.driver_version
    yield fact("/proc/driver/nvidia/version", module)
    yield fact("nvmlSystemGetDriverVersion", library or driver.nvml_error)
    if driver.nvml_error == "NVML_ERROR_LIB_RM_VERSION_MISMATCH" or (module and library and module != library):
        yield failed(
            f"the kernel module is {module or 'of another version'}, the libraries are {library or 'of another one'}",
            as_root("Reload the kernel module of the installed driver, or reboot."),
            cause="the driver was updated while its old module stayed loaded, or a container brings its own libraries",
        )
    elif module and library:
        yield passed(f"kernel module and libraries are both {module}")
    elif module is None and driver.modules is not None and "nvidia" not in driver.modules:
        yield skipped("the NVIDIA kernel module is not loaded")
    else:
        yield unknown("one of the two versions was not read")


@check("drv.params", Guard.RDMA, Guard.P2P, Guard.PERF, sections=("driver",))
def _parameters(machine: Machine, scope: Scope) -> Verdicts:
    parameters = known((machine.driver or Driver()).module_parameters, f"{PARAMS} was not read")
    rdma = scope.asked_purpose(Guard.RDMA)
    denies_rdma = parameters.get("GrdmaPciTopoCheckOverride") == "2"
    maps_no_peers = parameters.get("DmaRemapPeerMmio") == "0"
    if denies_rdma:
        yield (failed if rdma else warned)(
            "a module parameter denies GPUDirect RDMA (GrdmaPciTopoCheckOverride is 2)",
            without_option("NVreg_GrdmaPciTopoCheckOverride"),
        )
    if maps_no_peers:
        yield warned(
            "a module parameter stops mapping of peers' memory through the IOMMU (DmaRemapPeerMmio is 0)",
            without_option("NVreg_DmaRemapPeerMmio"),
            cause="with a translating IOMMU, P2P and GPUDirect RDMA then use invalid addresses",
        )
    words = parameters.get("RegistryDwords", "").strip('"')
    keys = [key for key in REGISTRY_KEYS if key in words]
    yield fact(f"{PARAMS}: RegistryDwords", words or "empty")
    if keys:
        note = f"{', '.join(keys)} affect P2P; p2p.status shows the result"
        yield passed("registry keys of the driver are set", note=note)
    elif not denies_rdma and not maps_no_peers:
        note = "EnableStreamMemOPs is 0, the default: stream memory operations of the first version are off"
        is_off = rdma and parameters.get("EnableStreamMemOPs") == "0"
        yield passed("no driver parameter disables a feature", note=note if is_off else "")


@check("drv.nouveau", *Guard, sections=("gpus", "driver"))
def _nouveau(machine: Machine, _scope: Scope) -> Verdicts:
    modules = known((machine.driver or Driver()).modules, "the loaded modules were not read")
    loaded, gpus = "nouveau" in modules, machine.gpus or ()
    taken = [gpu for gpu in gpus if gpu.pci is not None and gpu.pci.driver == "nouveau"]
    yield fact("/sys/module/nouveau", "loaded" if loaded else "not loaded")
    if taken or (loaded and "nvidia" not in modules):
        yield failed(
            "nouveau is bound to the GPUs, so NVIDIA's driver cannot use them",
            as_root("Blacklist nouveau.", "echo 'blacklist nouveau' > /etc/modprobe.d/nouveau.conf", reboot=True),
            taken,
        )
    elif loaded and any(gpu.pci is None or gpu.pci.driver is None for gpu in gpus):
        yield unknown("whether nouveau, which is loaded, is bound to one of these GPUs was not read")
    else:
        yield passed("nouveau is loaded but bound to none of these GPUs" if loaded else "nouveau is not loaded")


@check("mps.env", Guard.IPC, sections=("process", "system"))
def _mps(machine: Machine, _scope: Scope) -> Verdicts:
    daemons = (machine.system or System()).daemons
    is_set = "CUDA_MPS_PIPE_DIRECTORY" in ((machine.process or Process()).environment or {})
    yield fact("environment: CUDA_MPS_PIPE_DIRECTORY", "set" if is_set else "not set")
    yield daemon_fact(daemons, "nvidia-cuda-mps-control")
    if "nvidia-cuda-mps-control" in (daemons or ()):
        yield passed(
            "an MPS server runs",
            note="its clients share the server's context: CUDA_VISIBLE_DEVICES counts among the server's GPUs, and "
            "what the server cannot open, no client has",
        )
    elif daemons is None or services_hidden(machine):
        yield skipped("whether an MPS server runs: the host's processes are not visible from here")
    elif is_set:
        note = "CUDA then works without MPS, as if the variable were not set"
        yield passed("CUDA_MPS_PIPE_DIRECTORY is set, but no MPS server runs", note=note)
    else:
        yield passed("no MPS server runs")
