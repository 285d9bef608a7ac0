"""GH200: one superchip, and four that are fully connected (the EGM guide's single-node, multi-GPU platform)."""

from __future__ import annotations

from egmctl.model.host import Driver, PcieLink
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from machine_models import grace, nvlink
from machine_models.stating import NOT_STATED, NVLINK_4, machine, stated

CUDA_GUIDE = (
    "CUDA attributes; EGM platforms: CUDA Programming Guide, Extended GPU Memory, "
    "https://docs.nvidia.com/cuda/cuda-c-programming-guide/egm.html"
)
COHERENCE = (
    "CUDA attributes of hardware-coherent systems: CUDA Programming Guide, Unified Memory, "
    "https://docs.nvidia.com/cuda/cuda-programming-guide/04-special-topics/unified-memory.html"
)
C2C = (
    "NVLink-C2C of a GH200, 10 links of 44.712 GB/s (nvidia-smi c2c -s): "
    "https://github.com/dmlc/xgboost/blob/ab1e531d288f59136d8f4cac8469e2fdd457bf47/tests/cpp/common/test_cuda_dr_utils.cc"
)
ROOT_PORT = (
    "PCI path of a Grace system's GPUs, pciDDDD:00/DDDD:00:00.0/DDDD:01:00.0 (shown for GB200): "
    "https://lore.kernel.org/all/20250904040828.319452-15-ankita@nvidia.com/"
)

ATTRIBUTES = (
    ("MULTIPROCESSOR_COUNT", 132),
    ("L2_CACHE_SIZE", 62914560),
    ("INTEGRATED", 0),
    ("ECC_ENABLED", 1),
    ("CAN_MAP_HOST_MEMORY", 1),
)
"""deviceQuery of a GH200 480GB."""


def single() -> Machine:
    """Return ``gh200``: one GH200 480GB with 96 GB of HBM3."""
    place = grace.Place(bus_id="0009:01:00.0", host_node=0, own_node=1, numa_affinity="0")
    part = grace.Part(
        name="NVIDIA GH200 480GB",
        compute_capability=(9, 0),
        memory_mib=97871,
        cuda_memory_bytes=101468602368,
        device_id=0x2342,
        subsystem_device_id=0x1809,
        link=stated(PcieLink, speed_gt_s=16.0, width=1, max_speed_gt_s=16.0, max_width=1),
        c2c_links=10,
        attributes=(*ATTRIBUTES, ("ASYNC_ENGINE_COUNT", 2), ("COMPUTE_MODE", 0)),
    )
    no_nvlink_output = Unread(reason=Reason.NOT_STATED, detail="no public nvidia-smi nvlink output of a single GH200")
    gpu = grace.gpu(
        0,
        place,
        part,
        no_nvlink_output,
        mig_mode=False,
        mig_mode_pending=False,
        persistence_mode=True,
        compute_mode="default",
        ecc_mode=True,
        sm_clock_max_mhz=1980,
        memory_clock_max_mhz=2619,
    )
    return machine(
        "gh200",
        "One GH200 480GB superchip (72-core Grace, H100 with 96 GB), EGM on: the single-node, single-GPU platform of "
        "the EGM guide. The EGM bit is the model's assumption; the outputs it is made from are of several machines.",
        (
            "NUMA nodes, memory, distances: Linux commit 63db8170bf34 (numactl --hardware of a GH200), "
            "https://lkml.kernel.org/r/20250106120659.359610-2-bfaccini@nvidia.com",
            "9 NUMA nodes, CPUs on node 0: https://github.com/bytedance/xpu-perf/issues/129",
            "CPU and NUMA affinity, GPU NUMA ID, NICs: https://github.com/NVIDIA/nvbandwidth/issues/23",
            "bus id, addressing mode (01_what_is_a_gpu/README.md): "
            "https://github.com/PrincetonUniversity/gpu_programming_intro",
            "kernel with 64K pages, driver version: https://github.com/vllm-project/vllm/issues/14636",
            "PCI ids and link, memory, modes, clocks (nvidia-smi -q, in a virtual machine): "
            "https://github.com/thamada/gls/blob/b2f1cedeb098383fb647ea9bc7b51e3fec596989/gls/GH200_smi.py",
            "CUDA memory, SMs, L2 (deviceQuery): "
            "https://github.com/thamada/gls/blob/b2f1cedeb098383fb647ea9bc7b51e3fec596989/gls/GH200_deviceQuery.py",
            C2C,
            ROOT_PORT,
            COHERENCE,
            CUDA_GUIDE,
        ),
        host=grace.host(
            1,
            1,
            cpu_memory_mib=(490037,),
            gpu_memory_mib=97280,
            distances=_star(9),
            kernel="6.8.0-1022-nvidia-64k",
        ),
        gpus=(gpu,),
        pairs=(),
        switches=(),
        nics=Unread(reason=Reason.NOT_STATED, detail="published outputs differ from site to site"),
        driver=stated(
            Driver,
            driver_version="550.120",
            module_version="550.120",
            module_flavour="open",
            cuda_driver_version=12040,
            cuda_error=None,
            nvml_error=None,
        ),
    )


def quad() -> Machine:
    """Return ``gh200x4``: four GH200 120GB in one node, six NVLinks between each two."""
    places = tuple(
        grace.Place(bus_id=f"00{index}9:01:00.0", host_node=index, own_node=own, numa_affinity=affinity)
        for index, (own, affinity) in enumerate(((4, "0,5-11"), (12, "1,13-19"), (20, "2,21-27"), (28, "3,29-35")))
    )
    part = grace.Part(
        name="NVIDIA GH200 120GB",
        compute_capability=(9, 0),
        memory_mib=97871,
        c2c_links=10,
        attributes=ATTRIBUTES,
    )
    bus_ids = tuple(place.bus_id for place in places)
    gpus = tuple(
        grace.gpu(
            index,
            place,
            part,
            nvlink.links_to_peers(NVLINK_4, tuple(bus_id for bus_id in bus_ids if bus_id != place.bus_id)),
        )
        for index, place in enumerate(places)
    )
    return machine(
        "gh200x4",
        "Four fully connected GH200 120GB superchips in one node, EGM on: the single-node, multi-GPU platform of the "
        "EGM guide, as in Alps (CSCS), DeltaAI (NCSA) and JUPITER (JSC). The EGM bit is the model's assumption, and "
        "so is which NVLink leads to which GPU.",
        (
            "NV6 between all GPUs, CPU affinity, GPU NUMA IDs: NCSA DeltaAI, "
            "https://docs.ncsa.illinois.edu/systems/deltaai/en/latest/user-guide/architecture.html",
            "36 NUMA nodes, 4 of CPUs and 8 of each GPU: https://github.com/NVIDIA/mlperf-common/pull/16",
            "bus ids, GPU memory (nvidia-smi): CSCS, "
            "https://github.com/eth-cscs/cscs-docs/blob/main/docs/software/container-engine/resource-hook.md",
            "150 GB/s each way between two GPUs, node design: JSC JUPITER, "
            "https://apps.fz-juelich.de/jsc/hps/jupiter/configuration.html",
            "kernel with 64K pages: https://github.com/vllm-project/vllm/issues/30044",
            "NVLinks of a GPU and their speed: NVIDIA Health Validation, "
            "https://docs.nvidia.com/health-validation/reference/checks/nvlink",
            "SMs, L2 (deviceQuery of a GH200 480GB): "
            "https://github.com/thamada/gls/blob/b2f1cedeb098383fb647ea9bc7b51e3fec596989/gls/GH200_deviceQuery.py",
            C2C,
            ROOT_PORT,
            COHERENCE,
            CUDA_GUIDE,
        ),
        host=grace.host(
            4,
            4,
            cpu_memory_mib=(None,) * 4,
            gpu_memory_mib=None,
            kernel="5.14.21-150500.55.65_13.0.74-cray_shasta_c_64k",
        ),
        gpus=gpus,
        pairs=nvlink.pairs(bus_ids, nvlinks=6, through="direct"),
        switches=(),
        nics=Unread(reason=Reason.NOT_STATED, detail="Slingshot or InfiniBand, by site"),
        driver=stated(Driver, driver_version=NOT_STATED, module_flavour="open", cuda_error=None, nvml_error=None),
    )


def _star(nodes: int) -> tuple[tuple[int, ...], ...]:
    """Return the distances that numactl prints: 10 to itself, 80 between the CPU's node and any other, else 255."""
    every = range(nodes)
    return tuple(tuple(10 if node == other else 80 if 0 in (node, other) else 255 for other in every) for node in every)
