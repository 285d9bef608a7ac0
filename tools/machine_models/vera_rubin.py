"""Vera Rubin NVL72: one compute tray of a rack, from NVIDIA's own ``nvidia-smi -q -x`` of pre-release hardware."""

from __future__ import annotations

from typing import NamedTuple

from egmctl.facts.cuda import ATTRIBUTES
from egmctl.facts.nvml import decode_health
from egmctl.model.gpu import Fabric, Gpu, GpuCuda, GpuNvml, GpuProc, Platform
from egmctl.model.host import Driver, Host, NumaKind, PcieLink, PciFunction
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from machine_models.gb200 import MODELLED_CLUSTER_UUID
from machine_models.stating import CLASS_3D, MIB, NVIDIA, among, gpu_device_node, machine, numa_node, stated

CAPTURE = (
    "https://github.com/NVIDIA/k8s-test-infra/blob/a43e193ac0ea33b840a525db7ef694fb0540b563/"
    "tests/e2e/go/assertions/nvidiasmi/testdata/hardware/qx-vrnvl72.xml"
)
SOURCES = (
    "GPUs, PCI ids, memory, clocks, fabric, cliques, EGM, driver (nvidia-smi -q -x of a tray of pre-release hardware, "
    f"identifiers made up there): {CAPTURE}",
    "two Vera CPUs, each with two of the GPUs, by PCI domain, in a profile made from that output: "
    "https://github.com/NVIDIA/k8s-test-infra/blob/f707629c8d065296ec3af2716f5ee007eaf4bd85/"
    "deployments/nvml-mock/helm/nvml-mock/profiles/vr200.yaml",
    "compute capability 10.7: CUDA 13.4 release notes, "
    "https://docs.nvidia.com/cuda/developer-preview/13.4/cuda-toolkit-release-notes/",
    "88 cores per Vera CPU, their numbers: NVIDIA Vera Performance Tuning Guide, "
    "https://docs.nvidia.com/dccpu/vera-perf-tuning-guide/os-settings.html",
    "kernel with pages of 64 KiB: https://docs.nvidia.com/dccpu/vera-perf-tuning-guide/basic-system-health-checks.html",
)

CORES = 88
CLIQUE = 32766
"""The clique id of the capture, for each type of clique."""
EGM_CAPABLE = 1
HEALTH = 0x51AA
"""The mask that says what the output spells out: no degradation, no recovery, a partition, the manager connected."""


class Place(NamedTuple):
    """One GPU of the capture."""

    bus_id: str
    minor: int
    socket: int


PLACES = (
    Place("0002:81:00.0", 0, 0),
    Place("0002:c1:00.0", 3, 0),
    Place("000a:81:00.0", 1, 1),
    Place("000a:e1:00.0", 2, 1),
)

NVLINK_6 = Unread(reason=Reason.NOT_STATED, detail="links and rates of NVLink 6 are not in the output")
"""NVIDIA publishes 3.6 TB/s a GPU in one article and 3.0 on its product page, and no number of links (vr200.yaml)."""


def nvl72_tray() -> Machine:
    """Return ``vr-nvl72``: one compute tray of a Vera Rubin NVL72 rack whose NVLink domain is up."""
    return machine(
        "vr-nvl72",
        "One compute tray of a Vera Rubin NVL72 rack (two Vera CPUs, four Rubin GPUs) in its NVLink domain, EGM on. "
        "The GPUs are those of an nvidia-smi -q -x that NVIDIA published of pre-release hardware, whose driver does "
        "not know the product's name. NVLinks, NVLink-C2C links, NUMA nodes of GPUs and NICs are not stated. The "
        "cluster UUID is made up; that SMT is off is the model's assumption.",
        SOURCES,
        host=_host(),
        gpus=tuple(_gpu(index, place) for index, place in enumerate(PLACES)),
        pairs=Unread(reason=Reason.NOT_STATED, detail="no public nvidia-smi topo of a Vera Rubin tray"),
        switches=(),
        nics=Unread(reason=Reason.NOT_STATED, detail="no public output names them"),
        driver=stated(
            Driver,
            driver_version="615.23",
            module_version="615.23",
            cuda_driver_version=13040,
            cuda_error=None,
            nvml_error=None,
        ),
    )


def _cpus(socket: int) -> str:
    return f"{socket * CORES}-{(socket + 1) * CORES - 1}"


def _host() -> Host:
    return stated(
        Host,
        architecture="aarch64",
        cpu_model="Olympus",
        cpu_count=2 * CORES,
        smt="off",
        page_size_bytes=64 << 10,
        numa_nodes=tuple(numa_node(socket, NumaKind.CPU, cpus=_cpus(socket)) for socket in range(2)),
        allowed_cpus=f"0-{2 * CORES - 1}",
        allowed_numa_nodes="0-1",
    )


def _gpu(index: int, place: Place) -> Gpu:
    name = "NVIDIA Graphics Device"
    # The output shows x2 of x16: an idle link of PCIe 6 saves power with fewer lanes (L0p).
    link = stated(PcieLink, speed_gt_s=64.0, width=2, max_speed_gt_s=64.0, max_width=16)
    return stated(
        Gpu,
        bus_id=place.bus_id,
        index=index,
        pci=stated(
            PciFunction,
            bus_id=place.bus_id,
            vendor_id=NVIDIA,
            device_id=0x307F,
            subsystem_vendor_id=NVIDIA,
            subsystem_device_id=0x221A,
            class_code=CLASS_3D,
            numa_node=place.socket,
            local_cpus=_cpus(place.socket),
            link=link,
            driver="nvidia",
            responds=True,
        ),
        proc=stated(GpuProc, model=name, minor=place.minor, excluded=False),
        node=gpu_device_node(place.minor),
        nvml=stated(
            GpuNvml,
            index=index,
            name=name,
            minor=place.minor,
            vbios="99.00.1B.00.00",
            board_part_number="699-2G558-3201-TS3",
            compute_capability=(10, 7),
            memory_total_bytes=286524 * MIB,
            memory_used_bytes=0,
            link=link,
            cpu_affinity=_cpus(place.socket),
            capabilities=EGM_CAPABLE,
            c2c_enabled=True,
            addressing_mode="ats",
            nvlinks=NVLINK_6,
            nvlink_count=NVLINK_6,
            power_profiles=Unread(reason=Reason.NOT_SUPPORTED, detail="N/A in the output"),
            persistence_mode=True,
            mig_mode=False,
            mig_mode_pending=False,
            virtualization="none",
            compute_mode="default",
            ecc_mode=True,
            ecc_uncorrected_volatile=0,
            remapped_rows_correctable=0,
            remapped_rows_uncorrectable=0,
            remapped_rows_pending=False,
            remapped_rows_failure=False,
            recovery_action="none",
            performance_state=5,
            throttle_reasons=("idle",),
            sm_clock_max_mhz=2424,
            memory_clock_max_mhz=4752,
            processes=(),
            fabric=_fabric(),
            platform=stated(Platform, slot=2, tray=1, host_id=1, peer_type="switch", module_id=index + 1),
        ),
        cuda=stated(
            GpuCuda,
            ordinal=index,
            name=name,
            attributes=among(
                ATTRIBUTES,
                {"COMPUTE_CAPABILITY_MAJOR": 10, "COMPUTE_CAPABILITY_MINOR": 7, "HOST_NUMA_ID": place.socket},
            ),
        ),
    )


def _fabric() -> Fabric:
    types = ("unicast-pointer", "multicast-pointer", "unicast-logical-endpoint", "multicast-logical-endpoint")
    return stated(
        Fabric,
        state="completed",
        status=0,
        cluster_uuid=MODELLED_CLUSTER_UUID,
        clique_id=CLIQUE,
        cliques=dict.fromkeys(types, (CLIQUE,)),
        health_mask=HEALTH,
        health=decode_health(HEALTH),
        health_summary="healthy",
    )
