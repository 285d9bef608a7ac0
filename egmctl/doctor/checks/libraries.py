"""Checks of the driver's libraries and modules, and of environment variables, limits and containers of the process."""

from __future__ import annotations

import re

from egmctl.doctor.check import Scope, Verdicts, check, known, skip
from egmctl.doctor.checks.starting import HOST_LIBRARIES, RELOAD
from egmctl.doctor.findings import daemon_fact, fact, failed, noted, passed, unknown, warned
from egmctl.doctor.situation import driver_parameters, in_container, loss, services_hidden
from egmctl.model.finding import Finding, Guard
from egmctl.model.gpu import Gpu
from egmctl.model.host import Confinement, Driver, Process, System
from egmctl.model.machine import Machine
from egmctl.model.record import Reason
from egmctl.model.remedy import Need, as_root, remove_option, todo
from egmctl.topology.access import Block
from egmctl.units import GIB, MIB, format_size, several

VISIBLE = "CUDA_VISIBLE_DEVICES"
_NO_GPU = ("", "-1", "NoDevFiles")
"""The values that hide every GPU; the last one is Slurm's, for a job without GPUs."""
_SHOWN = "VISIBLE_DEVICES|DEVICE_ORD|SLURM_.*GPU"
"""A pattern for the names of variables that select or number GPUs."""

_HARMFUL = {
    "CUDA_LAUNCH_BLOCKING": ("1", "every launch waits for the one before, so nothing overlaps"),
    "CUDA_INJECTION64_PATH": (None, "a tool is loaded into every CUDA process"),
    "NCCL_P2P_DISABLE": ("1", "NCCL uses neither NVLink nor PCIe between GPUs"),
    "NCCL_SHM_DISABLE": ("1", "NCCL goes over the network within a node where it has no P2P"),
    "NCCL_CUMEM_ENABLE": ("0", "NCCL allocates without cuMem: no fabric handles, no multi-node NVLink"),
    "NCCL_CUMEM_HOST_ENABLE": ("0", "NCCL's host buffers are not HOST_NUMA memory"),
    "NCCL_DMABUF_ENABLE": ("0", "NCCL registers GPU memory through nvidia_peermem only"),
    "NCCL_NET_GDR_C2C": ("0", "NCCL does not use GPUDirect RDMA between a NIC at the CPU and a GPU on its NVLink-C2C"),
    "NCCL_MNNVL_ENABLE": ("0", "NCCL does not use NVLink between nodes"),
}
"""By variable: the harmful value (``None``: any) and its effect. CUDA C++ Programming Guide, "CUDA Environment
Variables"; NCCL user guide, "Environment Variables"."""


NO_ENVIRONMENT = "the environment of that process could not be read"


@check("env.visible-devices", Guard.EGM, Guard.P2P, Guard.IPC, sections=("process",))
def _visible_devices(machine: Machine, _scope: Scope) -> Verdicts:
    environment = known((machine.process or Process()).environment, NO_ENVIRONMENT)
    yield from (fact("environment", f"{name}={text}") for name, text in environment.items() if re.search(_SHOWN, name))
    text, gpus = environment.get(VISIBLE), machine.gpus or ()
    if text is None:
        yield passed(f"{VISIBLE} is not set: CUDA shows every accessible GPU")
        return
    usable = _usable(machine)
    wrong = _first_wrong(text, usable) if usable else None
    if wrong is not None:
        clause, none_left = wrong
        others = "; numbers count those only, not the node's" if len(usable) < len(gpus) else ""
        cause = f"{several(len(usable), 'GPU')} can be used from here{others}"
        remedy = todo(
            "Name GPUs by UUIDs, or by numbers from 0 among those that can be opened.", run=f"unset {VISIBLE}"
        )
        if none_left:
            yield failed(f"{VISIBLE}: {clause}, so CUDA shows no GPU", remedy, cause=cause)
        else:
            yield warned(f"{VISIBLE}: {clause}; CUDA ignores it and everything after it", remedy, cause=cause)
    elif text.strip() in _NO_GPU:
        hides = f"{VISIBLE} hides every GPU from CUDA"
        blocks = (Guard.EGM, Guard.P2P, Guard.IPC)
        yield passed(hides, remedy=todo("Unset it.", run=f"unset {VISIBLE}"), blocks=blocks)
    else:
        entries = [part for part in text.split(",") if part.strip()]
        note = "use it to choose GPUs where EGM matters: hidden GPUs stay accessible, for imports and EGM routes too"
        yield passed(f"{VISIBLE} chooses {len(entries)} of {len(usable)} usable GPUs", note=note)


def _usable(machine: Machine) -> list[Gpu]:
    """Return the GPUs that CUDA can show here, as far as it is known."""
    return [gpu for gpu in machine.gpus or () if loss(machine, gpu) in (None, Block.UNKNOWN)]


def _first_wrong(text: str, usable: list[Gpu]) -> tuple[str, bool] | None:
    """Return the first invalid entry: a clause with its position (from 1) and fault, and whether CUDA shows no GPU."""
    earlier: set[str] = set()
    for position, part in enumerate((part.strip() for part in text.split(",")), start=1):
        is_first = position == 1
        if re.fullmatch("[0-9]{1,9}", part, re.ASCII):
            if int(part) >= len(usable):
                return f"entry {position} is {int(part)}, the last GPU is {len(usable) - 1}", is_first
        elif part.startswith("GPU-"):
            uuids = [gpu.uuid for gpu in usable]
            if None not in uuids and sum(uuid.startswith(part) for uuid in uuids if uuid) != 1:
                return f"entry {position} is the UUID of none, or the start of several", is_first
        elif part.startswith("MIG-"):
            continue
        elif text.strip() not in _NO_GPU:
            return f"entry {position} is neither a number nor a UUID", is_first
        if part in earlier:
            return f"entry {position} is listed twice", True
        earlier.add(part)
    return None


@check("env.bad-cuda-env", Guard.PERF, Guard.P2P, Guard.FABRIC, sections=("process",))
def _bad_environment(machine: Machine, _scope: Scope) -> Verdicts:
    environment = known((machine.process or Process()).environment, NO_ENVIRONMENT)
    harmful = [name for name, (bad, _) in _HARMFUL.items() if name in environment and bad in (None, environment[name])]
    for name in harmful:
        bad, effect = _HARMFUL[name]
        remedy = todo("Unset it, unless it is intended.", run=f"unset {name}")
        # The output must not contain the path of a tool.
        yield warned(f"{name} is set: {effect}", remedy, evidence=(fact("environment", f"{name}={bad or '(set)'}"),))
    if not harmful:
        yield passed("no environment variable slows down or disables CUDA or NCCL")


_LIMITS = {
    "nofile": ("open files are limited to {}", "-n", "--ulimit nofile=65536", "LimitNOFILE=", 64, 32),
    "nproc": ("processes of this user are limited to {}", "-u", "--ulimit nproc=65536", "LimitNPROC=", 64, 16),
    "pids": ("the cgroup allows {} more processes and threads", "", "--pids-limit=-1", "TasksMax=", 16, 4),
}
"""By limit: the text for output, the option of ulimit, the settings of docker and systemd, and the minimum for CUDA,
as a constant and per GPU. Our choice: on two H200, 48 descriptors were too few and 32 processes enough."""


_LEAST_MEMORY, _MEMORY_PER_GPU = GIB, 256 * MIB
"""The memory of a cgroup below which it is noted. Our choice, which nobody measured: a process maps its libraries, and
for each GPU a context and pinned buffers."""


@check("env.limits", *Guard, sections=("confinement", "gpus"))
def _limits(machine: Machine, _scope: Scope) -> Verdicts:
    confinement, gpus = machine.confinement or Confinement(), machine.gpus or ()
    limits = {**known(confinement.limits, "the limits were not read"), "pids": confinement.pids_left}
    # RLIMIT_NPROC does not apply to privileged processes (setrlimit(2)).
    root = confinement.capable("SYS_ADMIN") or confinement.capable("SYS_RESOURCE")
    sources = {"nofile": "RLIMIT_NOFILE", "nproc": "RLIMIT_NPROC", "pids": "pids.max - pids.current", "as": "RLIMIT_AS"}
    for name, source in sources.items():
        value = limits.get(name)
        yield fact(source, "unlimited" if value is not None and value < 0 else value)
    faults: list[Finding] = []
    for name, (title, letter, docker, unit, least, per_gpu) in _LIMITS.items():
        value, needed = limits.get(name), least + per_gpu * len(gpus)
        if value is not None and 0 <= value < needed and not (name == "nproc" and root):
            low = f"{title.format(value)}, too few for CUDA on {several(len(gpus), 'GPU')}"
            by = f"{f'ulimit {letter}' if letter else 'pids.max'}, docker run {docker}, or {unit} of the systemd unit"
            command = f"ulimit {letter} {max(needed, 1024)}" if letter else None
            faults.append(warned(low, todo(f"Raise the limit to {needed} or more ({by}).", run=command)))
    space, memory = limits.get("as"), sum((gpu.nvml and gpu.nvml.memory_total_bytes) or 0 for gpu in gpus)
    if space is not None and 0 <= space < memory:
        low = f"the address space is limited to {format_size(space)}, less than the memory of the GPUs"
        remedy = todo("Lift the limit: CUDA reserves addresses for all memory.", run="ulimit -v unlimited")
        faults.append(warned(low, remedy))
    allowed = confinement.memory_limit_bytes
    yield fact("memory.max", "unlimited" if allowed is not None and allowed < 0 else allowed)
    count = len(_usable(machine))
    needed = _LEAST_MEMORY + _MEMORY_PER_GPU * count
    if allowed is not None and 0 <= allowed < needed:
        low = f"the memory cgroup allows {format_size(allowed)}, little for CUDA on {several(count, 'GPU')}"
        cause = "a process that exceeds it is killed, or its allocations of host memory fail; /dev/shm counts too"
        remedy = todo(
            f"Ask for {format_size(needed)} or more (Slurm: --mem; Kubernetes: resources.limits.memory; docker run "
            "--memory; MemoryMax= of the systemd unit)."
        )
        faults.append(noted(low, remedy=remedy, cause=cause))
    yield from faults
    # Older recordings do not state the limit of memory.
    is_unread = allowed is None and confinement.reason_of("memory_limit_bytes") not in (None, Reason.NOT_STATED)
    if not faults and (is_unread or any(limits.get(name) is None for name in sources)):
        yield unknown("a limit of descriptors, processes, address space or memory was not read")
    elif not faults:
        words = "descriptors, processes and address space" if allowed is None else "descriptors, processes and memory"
        yield passed(f"{words} are enough for CUDA")


@check("ns.container", Guard.IPC, sections=("process",))
def _container(machine: Machine, _scope: Scope) -> Verdicts:
    process, confinement = machine.process or Process(), machine.confinement or Confinement()
    signs, capabilities = process.container_signs or (), confinement.capabilities
    yield from (fact("signs of a container", sign) for sign in signs)
    yield fact("/proc/self/status Seccomp", confinement.seccomp)
    yield fact("/proc/self/status CapEff", None if capabilities is None else f"{capabilities:#x}")
    limits = []
    if confinement.uid_map is not None and confinement.uid_map != ((0, 0, 2**32 - 1),):
        limits.append("a user namespace")
    if confinement.seccomp == "filter":
        limits.append("a system call filter")
    if not signs and not limits:
        yield passed("this process is not in a container")
    else:
        if not signs:
            kind = "no container"
        elif confinement.seccomp == "none" and confinement.capable("SYS_ADMIN"):
            kind = "a privileged container"
        else:
            kind = "a container"
        yield passed(f"this process is in {kind}" + (f", with {' and '.join(limits)}" if limits else ""))


REGISTRY_KEYS = ("RMDisableP2P", "ForceP2P", "RMForceP2PType", "PeerMappingOverride")
"""The driver registry keys that control P2P (open-gpu-kernel-modules, nvrm_registry.h)."""


@check("drv.versions", *Guard, sections=("driver",))
def _versions(machine: Machine, _scope: Scope) -> Verdicts:
    driver = machine.driver or Driver()
    module, library = driver.module_version, driver.driver_version
    yield fact("/proc/driver/nvidia/version", module)
    yield fact("nvmlSystemGetDriverVersion", library or driver.nvml_error)
    if driver.libcuda_version is not None:
        yield fact("libcuda", f"{driver.libcuda_version}{' of a compat folder' if driver.libcuda_compat else ''}")
    if driver.nvml_error == "NVML_ERROR_LIB_RM_VERSION_MISMATCH" or (module and library and module != library):
        yield failed(
            f"the kernel module is {module or 'of another version'}, the libraries are {library or 'of another one'}",
            HOST_LIBRARIES if in_container(machine) else RELOAD,
            cause="the driver was updated while its old module stayed loaded, or a container brings its own libraries",
        )
    elif module and library:
        other = driver.libcuda_version if driver.libcuda_version != module else None
        package = "CUDA's compat package" if driver.libcuda_compat else "another folder than the driver's"
        note = f"the libcuda that is loaded is {other}, of {package}" if other else ""
        yield passed(f"kernel module and libraries are both {module}", note=note)
    elif module is None and driver.modules is not None and "nvidia" not in driver.modules:
        skip("the NVIDIA kernel module is not loaded")
    else:
        yield unknown("one of the two versions was not read")


@check("drv.params", Guard.RDMA, Guard.P2P, Guard.PERF, sections=("driver",))
def _parameters(machine: Machine, _scope: Scope) -> Verdicts:
    parameters = driver_parameters(machine)
    registry_keys = parameters.get("RegistryDwords", "").strip('"')
    keys = [key for key in REGISTRY_KEYS if key in registry_keys]
    yield fact("NVreg_RegistryDwords", registry_keys or "empty")
    denies_rdma = parameters.get("GrdmaPciTopoCheckOverride") == "2"
    maps_no_peers = parameters.get("DmaRemapPeerMmio") == "0"
    if denies_rdma:
        remedy = remove_option("NVreg_GrdmaPciTopoCheckOverride")
        yield warned("a module parameter denies GPUDirect RDMA", remedy, blocks=(Guard.RDMA,))
    if maps_no_peers:
        yield warned(
            "a module parameter stops mapping of peers' memory through the IOMMU",
            remove_option("NVreg_DmaRemapPeerMmio"),
            cause="with a translating IOMMU, P2P and GPUDirect RDMA then use invalid addresses",
        )
    if keys:
        note = f"{', '.join(keys)} affect P2P; p2p.status shows the result"
        yield passed("registry keys of the driver are set", note=note)
    elif not denies_rdma and not maps_no_peers:
        note = "EnableStreamMemOPs is 0, the default: stream memory operations of the first version are off"
        is_off = parameters.get("EnableStreamMemOPs") == "0"
        yield passed("no driver parameter disables a feature", note=note if is_off else "")


_BLACKLIST_NOUVEAU = as_root(
    "Blacklist nouveau, rebuild the initramfs, which loads it too, and reboot.",
    Need.REBOOT,
    run=r"printf 'blacklist nouveau\noptions nouveau modeset=0\n' > /etc/modprobe.d/blacklist-nouveau.conf && "
    "{ update-initramfs -u || dracut --force; }",
)


@check("drv.nouveau", *Guard, sections=("gpus", "driver"))
def _nouveau(machine: Machine, _scope: Scope) -> Verdicts:
    modules = known((machine.driver or Driver()).modules, "the loaded modules were not read")
    loaded, gpus = "nouveau" in modules, machine.gpus or ()
    nouveau_gpus = [gpu for gpu in gpus if gpu.pci is not None and gpu.pci.driver == "nouveau"]
    yield fact("/sys/module/nouveau", "loaded" if loaded else "not loaded")
    if nouveau_gpus or (loaded and "nvidia" not in modules):
        yield failed(
            "nouveau is bound to the GPUs, so NVIDIA's driver cannot use them",
            _BLACKLIST_NOUVEAU,
            nouveau_gpus,
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
        note = "its clients see only GPUs that the server can open; CUDA_VISIBLE_DEVICES counts among these"
        yield passed("an MPS server runs", note=note)
    elif daemons is None or services_hidden(machine):
        skip("whether an MPS server runs: the host's processes are not visible from here")
    elif is_set:
        note = "CUDA then works without MPS, as if the variable were not set"
        yield passed("CUDA_MPS_PIPE_DIRECTORY is set, but no MPS server runs", note=note)
    else:
        yield passed("no MPS server runs")
