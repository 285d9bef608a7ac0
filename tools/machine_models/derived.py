"""Machines derived from another model by their known differences: GB300, B200, two GH200, a DGX Station, CDMM."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from egmctl.model.gpu import Gpu, GpuCuda, GpuNvml, GpuPair, GpuProc
from egmctl.model.host import NumaKind, PciFunction
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from machine_models import dgx_h100, gb200, gh200
from machine_models.stating import CLASS_3D, NOT_STATED, NVIDIA, NVLINK_5, NVLINK_MB_S, gpu_device_node, stated

T = TypeVar("T")

OPEN_MODULES = "https://github.com/NVIDIA/open-gpu-kernel-modules/blob/main"
PCI_IDS = f"GPU names and PCI device ids: {OPEN_MODULES}/README.md"
OCI = (
    "GB300: name and memory (nvidia-smi): https://github.com/oracle-quickstart/oci-gpu-quickstarts/blob/6a0abdc/"
    "nvidia/GB300/README-GB300.md"
)


class _Part(NamedTuple):
    """The name of a part, and the known facts about it."""

    name: str
    capability: tuple[int, int]
    memory_mib: int | None = None
    device_id: int | None = None


GB300 = _Part("NVIDIA GB300", (10, 3), 284208, 0x31C2)
STATION_GB300 = GB300._replace(device_id=None)
B200 = _Part("NVIDIA B200", (10, 0), None, 0x2901)


_OF_PEERS = {"ACCESS_SUPPORTED", "NATIVE_ATOMIC_SUPPORTED"}
"""CUDA's attributes of a pair that are 0 without peer access."""


def gb300_tray() -> Machine:
    """Return ``gb300-nvl72``: one compute tray of a GB300 NVL72 rack."""
    machine = _of(gb200.nvl72_tray(), GB300)
    return _called(
        machine,
        "gb300-nvl72",
        "One compute tray of a GB300 NVL72 rack in its NVLink domain. Names, PCI device id and GPU memory are a "
        "GB300's; all else is the GB200 tray's (gb200-nvl72), as no public output of a GB300 tray states it.",
        PCI_IDS,
        OCI,
    )


def gb200_cdmm() -> Machine:
    """Return ``gb200-nvl72-cdmm``: the same tray whose driver manages the GPUs' memory itself."""
    machine = gb200.nvl72_tray()
    none = Unread(reason=Reason.NOT_SUPPORTED, detail="CDMM: the GPU's memory is no NUMA node")
    gpus = tuple(
        replace(
            gpu,
            nvml=_without(gpu.nvml, none, "numa_node"),
            proc=_without(gpu.proc, none, "numa_status", "numa_node"),
            cuda=gpu.cuda and replace(gpu.cuda, attributes={**gpu.cuda.attributes, "NUMA_ID": -1}),
        )
        for gpu in machine.gpus or ()
    )
    host = _known(machine.host)
    cpus = tuple(node for node in host.numa_nodes or () if node.kind is NumaKind.CPU)
    machine = replace(
        machine, gpus=gpus, host=replace(host, numa_nodes=cpus, allowed_numa_nodes=",".join(str(n.id) for n in cpus))
    )
    driver = _known(machine.driver)
    parameters = {"CoherentGPUMemoryMode": "driver"}
    unread = {name: reason for name, reason in driver.unread.items() if name != "module_parameters"}
    return _called(
        replace(machine, driver=replace(driver, module_parameters=parameters, unread=unread)),
        "gb200-nvl72-cdmm",
        "The tray of gb200-nvl72 in Coherent Driver-based Memory Management (CDMM): the GPUs' memory is no NUMA node. "
        "That nothing else differs is the model's assumption.",
        f"CDMM by NVreg_CoherentGPUMemoryMode=driver: {OPEN_MODULES}/src/nvidia/arch/nvalloc/unix/src/os-registry.c",
    )


def gh200_pair() -> Machine:
    """Return ``gh200x2``: two GH200 in one node without NVLink between them."""
    machine = gh200.quad()
    own, host = (machine.gpus or ())[:2], _known(machine.host)
    kept = {0, 1, *range(4, 20)}
    nodes = tuple(node for node in host.numa_nodes or () if node.id in kept)
    gpus = tuple(replace(gpu, nvml=gpu.nvml and replace(gpu.nvml, nvlinks=(), nvlink_count=0)) for gpu in own)
    ends = {gpu.bus_id for gpu in gpus}
    refused = dict.fromkeys(("read", "write", "nvlink", "atomics", "pci"), "NS")
    pairs = tuple(
        replace(
            pair,
            nvlink_count=0,
            nvlink_through=None,
            p2p_status=refused,
            can_access_peer=False,
            cuda_attributes={**pair.cuda_attributes, **dict.fromkeys(_OF_PEERS & pair.cuda_attributes.keys(), 0)},
            unread={**pair.unread, "nvlink_through": NOT_STATED},
        )
        for pair in machine.pairs or ()
        if {pair.source, pair.target} == ends
    )
    host = replace(host, numa_nodes=nodes, allowed_numa_nodes="0-1,4,12", allowed_cpus="0-143", cpu_count=144)
    return _called(
        replace(machine, gpus=gpus, pairs=pairs, host=host),
        "gh200x2",
        "Two GH200 superchips in one node without NVLink between them: P2P is not supported, and memory of the other "
        "CPU is reached over the CPUs' own link. Places and NUMA nodes are those of two of gh200x4's four.",
        "two GH200 in one workstation, GPU-GPU is SYS, nvidia-smi topo -p2p n says NS: https://dnhkng.github.io",
    )


def station() -> Machine:
    """Return ``dgx-station-gb300``: one GB300 on its Grace CPU, and a card on PCIe."""
    machine = _of(gh200.single(), STATION_GB300)
    (gpu,) = machine.gpus or ()
    card = _card(gpu)
    nvml = _known(gpu.nvml)
    unread = {name: reason for name, reason in nvml.unread.items() if name not in ("nvlinks", "nvlink_count")}
    gpu = replace(gpu, nvml=replace(nvml, nvlinks=(), nvlink_count=0, unread=unread))
    none = {"read": "CNS", "write": "CNS", "nvlink": "NS", "atomics": "CNS", "pci": "CNS"}
    pairs = tuple(
        stated(
            GpuPair,
            source=one,
            target=other,
            common_ancestor="node",
            p2p_status=none,
            nvlink_count=0,
            can_access_peer=False,
        )
        for one, other in ((gpu.bus_id, card.bus_id), (card.bus_id, gpu.bus_id))
    )
    return _called(
        replace(machine, gpus=(gpu, card), pairs=pairs),
        "dgx-station-gb300",
        "A DGX Station: one GB300 on its Grace CPU over NVLink-C2C, and an RTX PRO 6000 card in a PCIe slot, which has "
        "neither NVLink-C2C nor EGM. The GB300's place is the GH200's (gh200); the card's bus id is made up. That "
        "neither has an NVLink is the model's assumption.",
        "a GB300 and an RTX PRO 6000 in one machine: https://github.com/NVIDIA/dgx-spark-playbooks",
        PCI_IDS,
        OCI,
    )


def hgx_b200() -> Machine:
    """Return ``hgx-b200``: eight B200 on NVLink 5 switches that are no PCI devices."""
    machine = _of(dgx_h100.model(), B200)
    gpus = tuple(
        replace(
            gpu,
            nvml=gpu.nvml
            and replace(
                gpu.nvml,
                nvlinks=tuple(
                    replace(link, version=NVLINK_5, speed_mb_s=NVLINK_MB_S[NVLINK_5]) for link in gpu.nvml.nvlinks or ()
                ),
            ),
        )
        for gpu in machine.gpus or ()
    )
    sections = {**machine.sections, "switches": replace(machine.sections["switches"], unread=None)}
    driver = _without(_known(machine.driver), NOT_STATED, "driver_version", "module_version", "cuda_driver_version")
    return _called(
        replace(machine, gpus=gpus, driver=driver, switches=(), sections=sections),
        "hgx-b200",
        "HGX B200: eight B200 on NVLink 5, whose switches are no PCI devices of the node. Names, PCI device id and "
        "links are a B200's; the places of GPUs and NICs, and all else, are those of dgx-h100. No EGM.",
        PCI_IDS,
        "NVLinks of a GPU and their speed: NVIDIA Health Validation, "
        "https://docs.nvidia.com/health-validation/reference/checks/nvlink",
        "the switches of NVLink 5 are managed by nvlsm over InfiniBand devices: "
        "https://github.com/NVIDIA/gpu-driver-container",
    )


def _called(machine: Machine, name: str, description: str, *sources: str) -> Machine:
    """Return a model with a name, a description and more sources of its own."""
    origin = machine.origin
    known = tuple(dict.fromkeys((*sources, *origin.sources)))
    return replace(machine, origin=replace(origin, name=name, description=description, sources=known))


def _of(machine: Machine, part: _Part) -> Machine:
    """Return a machine with GPUs of another part."""
    return replace(machine, gpus=tuple(_gpu(gpu, part) for gpu in machine.gpus or ()))


def _gpu(gpu: Gpu, part: _Part) -> Gpu:
    name, capability, memory_mib, device_id = part
    nvml, cuda, pci = _known(gpu.nvml), _known(gpu.cuda), _known(gpu.pci)
    nvml = replace(nvml, name=name, compute_capability=capability)
    nvml = _without(nvml, NOT_STATED, "sm_clock_max_mhz", "memory_clock_max_mhz", "memory_total_bytes")
    if memory_mib is not None:
        known = {key: reason for key, reason in nvml.unread.items() if key != "memory_total_bytes"}
        nvml = replace(nvml, memory_total_bytes=memory_mib << 20, unread=known)
    parts = {"COMPUTE_CAPABILITY_MAJOR": capability[0], "COMPUTE_CAPABILITY_MINOR": capability[1]}
    others = ("MULTIPROCESSOR_COUNT", "L2_CACHE_SIZE", "ASYNC_ENGINE_COUNT")
    gone = {key: None for key in others if key in cuda.attributes}
    cuda = replace(
        cuda,
        name=name,
        attributes={**cuda.attributes, **parts, **gone},
        unread={**cuda.unread, **{f"attributes.{key}": NOT_STATED for key in gone}},
    )
    cuda = _without(cuda, NOT_STATED, "memory_total_bytes")
    pci = replace(pci, device_id=device_id) if device_id is not None else _without(pci, NOT_STATED, "device_id")
    return replace(gpu, nvml=nvml, cuda=cuda, pci=pci, proc=gpu.proc and replace(gpu.proc, model=name))


def _known(value: T | None) -> T:
    """Return a value that every base model states; raise ValueError if it is ``None``."""
    if value is None:
        raise ValueError("the model does not state it")
    return value


def _without(record: Any, why: Unread, *names: str) -> Any:
    """Return a record in which some values are null for a reason."""
    return replace(record, **dict.fromkeys(names), unread={**record.unread, **dict.fromkeys(names, why)})


def _card(beside: Gpu) -> Gpu:
    """Return an RTX PRO 6000 on PCIe, beside a GPU of the same CPU."""
    name, bus_id, index = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "000a:01:00.0", 1
    node = beside.host_numa_id
    absent = Unread(reason=Reason.NOT_SUPPORTED, detail="the card has none")
    return stated(
        Gpu,
        bus_id=bus_id,
        index=index,
        pci=stated(
            PciFunction,
            bus_id=bus_id,
            vendor_id=NVIDIA,
            class_code=CLASS_3D,
            path=("pci000a:00", "000a:00:00.0"),
            numa_node=node,
            driver="nvidia",
            responds=True,
        ),
        proc=stated(GpuProc, model=name, minor=index, excluded=False),
        node=gpu_device_node(index),
        nvml=stated(
            GpuNvml,
            index=index,
            name=name,
            capabilities=0,
            addressing_mode="hmm",
            cpu_affinity=beside.nvml.cpu_affinity if beside.nvml else NOT_STATED,
            nvlinks=(),
            nvlink_count=0,
            **dict.fromkeys(("c2c_enabled", "c2c_links", "numa_node", "fabric"), absent),
        ),
        cuda=stated(GpuCuda, ordinal=index, name=name, attributes={"HOST_NUMA_ID": node}),
    )
