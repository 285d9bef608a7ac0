"""NVLink and P2P: links, counters, thresholds, bandwidth modes, and why the driver refuses P2P over links that are up.

A GPU without links is judged by its siblings, and where they have none either by its board.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from egmctl.doctor.checks.nvlink import MAX_EFFECTIVE_BER
from egmctl.facts.kernel_log import event
from egmctl.facts.nvml import ber
from egmctl.model.finding import Guard
from egmctl.model.gpu import Gpu, GpuNvml
from egmctl.model.host import PcieLink
from egmctl.model.kernel_log import KernelLog
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from tests.doctor.cases import Case, asked, case, rows_of
from tests.doctor.faults import HEALTHY_FABRIC, healthy
from tests.doctor.machines import patched, run, shipped, with_card

links, errors, p2p = rows_of("nvlink.links"), rows_of("nvlink.errors"), rows_of("p2p.status")
HGX, TRAY = shipped("hgx-h200x4"), healthy()
FIRST: tuple[Gpu, ...] = (HGX.gpus or ())[:1]
DISABLED = {"module_parameters": {"NvLinkDisable": "1"}}


def hgx(path: str, /, **changes: Any) -> Machine:
    return patched(HGX, path, **changes)


def tray(path: str, /, **changes: Any) -> Machine:
    return patched(TRAY, path, **changes)


def one_less(path: str, /, **changes: Any) -> Machine:
    """An HGX H200 on which the same link is down on every GPU."""
    return patched(hgx("gpus[*].nvml.nvlinks[17]", active=False), path, **changes)


def no_links(path: str, /, **changes: Any) -> Machine:
    """A virtual machine whose GPUs show no links."""
    machine = patched(hgx(path, **changes), "gpus[*].nvml", nvlinks=(), nvlink_count=0)
    return patched(machine, "gpus[*].nvml", virtualization="passthrough")


def counted(**changes: Any) -> Machine:
    return tray("gpus[2].nvml.nvlinks[7].counters", **changes)


ALL_DOWN = hgx("gpus[*].nvml.nvlinks[*]", active=False)
STATION = patched(with_card(TRAY), "gpus[4].nvml", nvlinks=(), nvlink_count=0)
C2C_DOWN = patched(tray("gpus[0].nvml.c2c_links[0]", active=False), "gpus[1].nvml.c2c_links[0]", errors=7)
UNSUPPORTED = {"nvlinks": Unread(reason=Reason.NOT_SUPPORTED)}
COUNTED = "link 7 of GPU2"


def bridged(count: int, up: int, capability: tuple[int, int] = (8, 6)) -> Machine:
    """Cards with ``count`` NVLinks to another card, of which ``up`` are active."""
    to_the_other = tuple(
        dataclasses.replace(link, active=link.link < up, remote_type="gpu" if link.link < up else None)
        for link in ((HGX.gpus or ())[0].nvml or GpuNvml(index=0)).nvlinks or ()
    )[:count]
    changes = {
        "nvlinks": to_the_other,
        "nvlink_count": count,
        "compute_capability": capability,
        "name": "NVIDIA RTX A6000",
    }
    return patched(hgx("gpus[*].nvml", **changes), "gpus[*].pci", device_id=0x2230)


LINKS = [
    links(
        "a bridge that is not fully plugged in",
        bridged(4, 2),
        "fail GPU0-3",
        "2 of the bridge's 4 NVLinks are active",
        "push the bridge fully into both cards",
    ),
    links("a bridge that is", bridged(4, 4), "pass GPU0-3"),
    links("one of an A100's three bridges", bridged(12, 4, (8, 0)), "pass GPU0-3"),
    links("one of a GV100's two bridges", bridged(4, 2, (7, 0)), "pass GPU0-3"),
    links(
        "an NVSwitch that is down takes the same links from every GPU",
        one_less("gpus[*].nvml.nvlinks[16]", active=False),
        "fail GPU0-3",
        "16 of 18 NVLinks are active",
        "NVIDIA H200 on NVSwitches has 18",
    ),
    *(
        links(f"fewer links by design: {name}", machine, "pass GPU0-3", "17 NVLinks are active")
        for name, machine in {
            "bridges and direct links": one_less("gpus[*].nvml.nvlinks[*]", remote_type="gpu"),
            "a mode of the GPU": one_less("gpus[*].nvml", nvlink_bandwidth_mode="half"),
            "a mode of the node": one_less("driver", nvlink_bandwidth_mode="3quarter"),
            "a parameter": one_less("driver", module_parameters={"RmNvlinkBandwidthLinkCount": "17"}),
        }.items()
    ),
    links("H800", one_less("gpus[*].pci", device_id=0x2324), "unknown GPU0-3", "17 of 18 NVLinks"),
    links("vGPU", one_less("gpus[*].nvml", virtualization="vgpu"), "unknown GPU0-3"),
    links("H800 with all links", hgx("gpus[*].pci", device_id=0x2324), "pass GPU0-3"),
    links("vGPU with all links", hgx("gpus[*].nvml", virtualization="vgpu"), "pass GPU0-3"),
    links("no link is up in a fabric", ALL_DOWN, "fail GPU0-3"),
    links(
        "no link is up in a partition without links",
        patched(ALL_DOWN, "gpus[*].nvml.fabric", state="not-supported"),
        "warn GPU0-3",
        "a partition without NVLinks",
    ),
    links(
        "a link that sleeps is up",
        tray("gpus[1].nvml.nvlinks[*]", active=False, link_state="sleep"),
        "pass GPU0,2-3; pass GPU1",
        "asleep",
        at="GPU1",
    ),
    links(
        "a link without traffic is useless",
        tray("gpus[1].nvml.nvlinks[3]", link_state="active-traffic-disabled"),
        "warn GPU1; pass GPU0,2-3",
    ),
    links("no speed", tray("gpus[1].nvml.nvlinks[3]", speed_mb_s=0), "warn GPU1; pass GPU0,2-3"),
    case("C2C down and errors of another", "c2c.link", C2C_DOWN, "fail GPU0; warn GPU1; pass GPU2-3"),
    case("C2C at no speed", "c2c.link", tray("gpus[1].nvml.c2c_links[0]", max_rate_mb_s=0), "warn GPU1; pass GPU0,2-3"),
    links("a GPU is measured by its own product", STATION, "pass GPU0-3; skip GPU4"),
    links(
        "no links beside siblings that have them",
        hgx("gpus[1].nvml", nvlinks=(), nvlink_count=0),
        "fail GPU1; pass GPU0,2-3",
        "0 of 18 NVLinks are active",
    ),
    links("a board that shows none", hgx("gpus[*].nvml", nvlinks=(), nvlink_count=0), "fail GPU0-3"),
    links(
        "a board whose NVML has none",
        hgx("gpus[*].nvml", nvlinks=None, nvlink_count=0, unread=UNSUPPORTED),
        "fail GPU0-3",
    ),
    links(
        "another product without links",
        patched(hgx("gpus[*].nvml", nvlinks=(), nvlink_count=0), "gpus[*].pci", device_id=0x2331),
        "skip GPU0-3",
    ),
    *(
        links(f"taken away: {reason}", machine, verdict, reason)
        for machine, verdict, reason in (
            (no_links("driver", **DISABLED), "warn GPU0-3", "a module parameter disables NVLink"),
            (no_links("driver", nvlink_bandwidth_mode="off"), "warn GPU0-3", "bandwidth mode is OFF"),
            (no_links("gpus[*].nvml.fabric", state="not-supported"), "warn GPU0-3", "partition without NVLinks"),
            (no_links("", gpus=FIRST), "warn GPU0", "one GPU, without peers"),
        )
    ),
    case("disabled for one GPU", "nvlink.disabled", patched(hgx("driver", **DISABLED), "", gpus=FIRST), "note"),
    case("disabled", "nvlink.disabled", hgx("driver", **DISABLED), "fail"),
]

ERRORS = [
    errors("the limit of the error rate", counted(effective_ber=MAX_EFFECTIVE_BER), "pass GPU0-3"),
    errors("above it", counted(effective_ber=2e-12), "fail GPU2; pass GPU0-1,3", COUNTED),
    errors("a failed recovery", counted(failed_recoveries=1, recoveries=1), "fail GPU2; pass GPU0-1,3", COUNTED),
    errors("recoveries", counted(recoveries=3, successful_recoveries=3), "warn GPU2; pass GPU0-1,3"),
    *(
        errors(f"corrected: {name}", counted(**{name: 4}), "pass GPU0-1,3; pass GPU2", COUNTED, at="GPU2")
        for name in ("effective_errors", "symbol_errors", "integrity_errors")
    ),
    errors("corrected up to NVLink 4", hgx("gpus[2].nvml.nvlinks[0]", crc_errors=3), "pass GPU0-1,3; pass GPU2"),
    errors(
        "forward error correction at work is no error",
        counted(fec_history=(10**12, 10**9, 10**6, 4, *[0] * 12)),
        "pass GPU0-3",
    ),
    *(
        errors(
            f"two counters of three are not enough for no errors: {name} not read",
            hgx(
                "gpus[3].nvml.nvlinks[0]",
                **{name: None},
                unread={"counters": Unread(reason=Reason.NOT_SUPPORTED), name: Unread(reason=Reason.FAILED)},
            ),
            "unknown GPU3; pass GPU0-2",
        )
        for name in ("replay_errors", "recovery_errors", "crc_errors")
    ),
]

MODES = [
    *(
        case(f"NVML hangs: {check}", check, shipped("h200-nvml-hangs"), "unknown", "NVML did not answer in time")
        for check in ("nvlink.bw-mode", "fabric.domain")
    ),
    *(
        case(
            f"NVML does not answer for one fact: {check}",
            check,
            hgx("gpus[*].nvml", **{fact: None}, unread={fact: Unread(reason=Reason.TIMED_OUT, detail="no answer")}),
            "unknown" if fact == "nvlinks" else "unknown GPU0-3",
            "no answer",
        )
        for check, fact in (("nvlink.bw-mode", "nvlinks"), ("fabric.domain", "fabric"))
    ),
    case(
        "a GPU without NVLinks has no mode of them",
        "nvlink.bw-mode",
        hgx("gpus[*].nvml", nvlinks=()),
        "skip",
        "no NVLink on these GPUs",
    ),
    *(
        case(
            f"all GPUs in {mode}, best: {best}",
            "nvlink.bw-mode",
            tray("gpus[*].nvml", nvlink_bandwidth_mode=mode, nvlink_bandwidth_best=best),
            verdict,
        )
        for mode, best, verdict in (
            ("12-links", True, "pass GPU0-3"),
            ("12-links", False, "warn GPU0-3"),
            ("half", None, "warn GPU0-3"),
            ("off", False, "fail GPU0-3"),
        )
    ),
    *(
        case(
            f"before Blackwell the system has one: {mode}",
            "nvlink.bw-mode",
            patched(tray("gpus[*].nvml", nvlink_bandwidth_mode=None), "driver", nvlink_bandwidth_mode=mode),
            verdict,
        )
        for mode, verdict in (("full", "pass"), ("half", "warn"), ("off", "fail"))
    ),
]


def refused(machine: Machine = TRAY) -> Machine:
    """A machine whose driver refuses P2P between all GPUs."""
    return patched(machine, "pairs[*]", p2p_status={"read": "NS", "write": "NS", "nvlink": "NS"})


LOGGED = event(12.0, "NVRM: knvlinkCheckNvswitchP2pConfig_IMPL: GPU 1 doesn't have a EGM fabric address")
assert LOGGED is not None
ADDRESS_LOG = KernelLog(source="/dev/kmsg", now_s=60.0, first_s=0.0, events=(LOGGED,))
BOTH_BITS = {"HANDLE_TYPE_FABRIC_SUPPORTED": 1, "HOST_NUMA_MULTINODE_IPC_SUPPORTED": 1}
SICK = {"health": HEALTHY_FABRIC, "health_summary": "unhealthy"}
OVER_PCIE = hgx("pairs[*]", nvlink_count=0, p2p_status={"read": "CNS", "write": "CNS", "nvlink": "NS"})
TRANSLATED = patched(
    patched(OVER_PCIE, "pairs[*]", p2p_status={"read": "OK", "write": "OK"}),
    "system",
    iommu_domains={FIRST[0].bus_id: "DMA-FQ"},
)
REFUSED_OVER_PCIE = tray("pairs[*]", nvlink_count=0, can_access_peer=False)
OVERRIDDEN = tray("process", environment={"CUDA_DISABLE_IOMMU_ACS_P2P_CAPABILITY_CHECK": "1"})
SLOW = hgx("gpus[*].pci", link=PcieLink(speed_gt_s=2.5, width=16, max_speed_gt_s=32.0, max_width=16))

P2P = [
    p2p(
        "the kernel's log proves that the EGM fabric address is missing",
        patched(refused(), "", kernel_log=ADDRESS_LOG),
        "fail GPU0-3",
        "EGM fabric address",
        "high confidence",
        "kernel log: ",
    ),
    p2p(
        "without it that is a guess, and says so",
        patched(refused(), "gpus[*]", cuda=None),
        "fail GPU0-3",
        "possibly: ",
        "low confidence",
    ),
    p2p(
        "host memory has an address",
        patched(refused(), "gpus[*].cuda", attributes=BOTH_BITS),
        "fail GPU0-3",
        without="EGM",
    ),
    p2p("EGM off", patched(refused(), "gpus[*].nvml", capabilities=0), "fail GPU0-3", without="EGM"),
    p2p("no switches", refused(shipped("gh200x4")), "fail GPU0-3", without="EGM fabric"),
    p2p("mode OFF", patched(refused(), "gpus[*].nvml", nvlink_bandwidth_mode="off"), "fail GPU0-3", "OFF"),
    p2p("what NVLink does not join it does not explain", patched(refused(), "pairs[*]", nvlink_count=0), "skip GPU0-3"),
    p2p(
        "what NVML does not report excuses nothing",
        tray("pairs[*]", p2p_status={"read": "CNS"}),
        "fail GPU0-3",
        "no P2P read: the chipset does not support it",
    ),
    p2p(
        "CUDA alone refuses",
        tray("pairs[0]", can_access_peer=False),
        "fail GPU0>GPU1; pass GPU0>GPU2, GPU0>GPU3, GPU1>GPU0 and 8 more",
        "CUDA refuses P2P that NVML allows: copies are staged in host memory",
        "cuDeviceCanAccessPeer: 0",
    ),
    p2p(
        "CUDA alone refuses in a sick fabric",
        patched(tray("gpus[*].nvml.fabric", health_summary="unhealthy"), "pairs[*]", can_access_peer=False),
        "fail GPU0-3",
        "unhealthy",
    ),
    p2p("CUDA alone refuses over PCIe", tray("pairs[*]", nvlink_count=0, can_access_peer=False), "warn GPU0-3"),
    p2p(
        "CUDA 13.5 refuses over PCIe for what IOMMU and ACS are",
        patched(REFUSED_OVER_PCIE, "driver", cuda_driver_version=13050),
        "warn GPU0-3",
        "since CUDA 13.5",
        "See pcie.iommu and pcie.acs",
    ),
    p2p(
        "CUDA 13.5 refuses where NVLinks are unknown, which may not be over PCIe",
        patched(patched(REFUSED_OVER_PCIE, "pairs[*]", nvlink_count=None), "driver", cuda_driver_version=13050),
        "warn GPU0-3",
        "low confidence",
        "possibly: since CUDA 13.5",
        "whether NVLink joins these GPUs was not read",
        "nvidia-smi topo -m",
        without="=1",
    ),
    p2p(
        "a pair of unknown NVLinks is not joined by those of other pairs",
        patched(tray("pairs[*]", can_access_peer=False), "pairs[0]", nvlink_count=None),
        "fail GPU0>GPU2, GPU0>GPU3, GPU1>GPU0 and 8 more; warn GPU0>GPU1",
        at="GPU0>GPU1",
    ),
    p2p(
        "no P2P where NVLinks are unknown is not that of PCIe",
        patched(OVER_PCIE, "pairs[*]", nvlink_count=None),
        "unknown GPU0-3",
        "the chipset does not support it",
        without="over PCIe",
    ),
    p2p("an older CUDA has not asked for them", REFUSED_OVER_PCIE, "warn GPU0-3", without="13.5"),
    p2p(
        "an override of CUDA's check hides that bytes may be lost",
        patched(patched(OVERRIDDEN, "pairs[*]", nvlink_count=0), "driver", cuda_driver_version=13050),
        "note GPU0-3",
        "CUDA was told not to check IOMMU and ACS",
    ),
    *(
        p2p("an override that nothing asks for is nothing", machine, "pass GPU0-3")
        for machine in (
            patched(OVERRIDDEN, "driver", cuda_driver_version=13050),
            patched(OVERRIDDEN, "pairs[*]", nvlink_count=0),
            patched(tray("pairs[*]", nvlink_count=0), "driver", cuda_driver_version=13050),
        )
    ),
    p2p("CUDA was not read", tray("pairs[*]", can_access_peer=None), "pass GPU0-3"),
    p2p("none over PCIe", OVER_PCIE, "skip GPU0-3"),
    p2p("none over PCIe, asked for", OVER_PCIE, "fail GPU0-3", scope=asked(Guard.P2P)),
    case("an idle GPU slows its link down", "pcie.link", SLOW, "pass GPU0-3"),
    case(
        "a busy one does not",
        "pcie.link",
        patched(SLOW, "gpus[1].nvml", performance_state=0, throttle_reasons=()),
        "warn GPU1; pass GPU0,2-3",
    ),
    *(
        case(
            f"an idle link of PCIe 6 sheds lanes: {verdict}",
            "pcie.link",
            patched(patched(SLOW, "gpus[0].pci.link", width=2, speed_gt_s=speed), "gpus[0].nvml", **state),
            f"{verdict} GPU0; pass GPU1-3",
        )
        for speed, state, verdict in (
            (64.0, {"performance_state": 5, "throttle_reasons": ("idle",)}, "note"),
            (64.0, {"performance_state": 0, "throttle_reasons": ()}, "fail"),
            (32.0, {"performance_state": 5, "throttle_reasons": ("idle",)}, "fail"),
        )
    ),
    case("a guest's IOMMU is its host's matter", "pcie.iommu", TRANSLATED, "pass"),
    case("an IOMMU", "pcie.iommu", patched(TRANSLATED, "gpus[*].nvml", virtualization="none"), "warn"),
]


@pytest.mark.parametrize("case", [*LINKS, *ERRORS, *MODES, *P2P])
def test_what_is_told(case: Case) -> None:
    case.holds()


@pytest.mark.parametrize(
    ("packed", "rate"), [(0xFFF, 0.0), (0x10C, 1e-12), (0x20C, 2e-12), (0x30F, 3e-15), (0xF00, 15.0), (0, 0.0)]
)
def test_nvml_packs_mantissa_and_exponent(packed: int, rate: float) -> None:
    assert math.isclose(ber(packed), rate, abs_tol=1e-300)


@pytest.mark.parametrize(
    ("path", "changes", "words"),
    [
        ("gpus[0].nvml", {"nvlink_bandwidth_mode": "half"}, "different bandwidth modes (full and half)"),
        ("gpus[2].nvml.fabric", SICK, "unhealthy"),
        ("gpus[2].nvml.fabric", {"clique_id": 9}, "different cliques"),
    ],
)
def test_pairs_of_a_gpu_that_differs_are_refused_for_another_reason(
    path: str, changes: dict[str, Any], words: str
) -> None:
    causes = [finding.cause for finding in run("p2p.status", patched(refused(), path, **changes))]
    assert [words in cause for cause in causes].count(True) == 1
    assert len(causes) == 2
