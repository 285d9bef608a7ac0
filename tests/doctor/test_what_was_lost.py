"""Facts that once passed for want of a look at them, and healthy machines that were once called ill.

Each pair is a machine where the fault is, and one where it is not.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pynvml
import pytest

from egmctl.doctor.check import EVERYTHING, Scope
from egmctl.driver.reading import Unreadable
from egmctl.facts import gpus as driver_facts
from egmctl.facts import nvml, system
from egmctl.facts.host import host
from egmctl.facts.root import Root
from egmctl.model.finding import Guard, Status
from egmctl.model.host import CpuFrequencies, DeviceNode, System
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from tests.doctor.faults import healthy
from tests.doctor.machines import patched, run, run_one, shipped
from tests.fake.sysroot import Tree
from tests.known import known

HGX = shipped("hgx-h200x4")
RDMA, FABRIC = Scope(purposes=(Guard.RDMA,)), Scope(purposes=(Guard.FABRIC,))


def status_of(check: str, machine: Machine, scope: Scope = EVERYTHING) -> list[Status]:
    return [finding.status for finding in run(check, machine, scope)]


# --- nvidia_peermem --------------------------------------------------------------------------------------------------


def with_peermem(clients: tuple[str, ...] | None, *, linked: bool | None = None, dma_buf: int = 0) -> Machine:
    attributes = {"DMA_BUF_SUPPORTED": dma_buf}
    machine = patched(healthy(), "gpus[*].cuda", attributes=attributes)
    modules = {"nvidia_peermem": "580.126.16", "mlx5_core": ""}
    return patched(machine, "system", module_versions=modules, peer_memory_clients=clients, peermem_linked=linked)


@pytest.mark.parametrize(
    ("machine", "scope", "statuses", "words"),
    [
        (with_peermem(("nv_mem",)), RDMA, [Status.PASS], "through nvidia_peermem"),
        (with_peermem(()), RDMA, [Status.FAIL], "nvidia_peermem is loaded and not registered"),
        (with_peermem((), linked=False), EVERYTHING, [Status.WARN], "not registered"),
        (with_peermem((), linked=True), RDMA, [Status.UNKNOWN], "whether nvidia_peermem is registered"),
        (with_peermem((), linked=False, dma_buf=1), RDMA, [Status.NOTE, Status.PASS], "not registered"),
        (with_peermem((), dma_buf=1), EVERYTHING, [Status.NOTE, Status.PASS], "through dma-buf"),
        (with_peermem((), linked=True, dma_buf=1), RDMA, [Status.PASS], "through dma-buf"),
        (with_peermem(None), RDMA, [Status.UNKNOWN], "whether nvidia_peermem is registered"),
    ],
)
def test_peermem_that_is_loaded_and_not_registered_is_no_path(
    machine: Machine, scope: Scope, statuses: list[Status], words: str
) -> None:
    findings = run("rdma.gdr-path", machine, scope)
    assert [finding.status for finding in findings] == statuses
    assert any(words in finding.summary for finding in findings)


@pytest.mark.parametrize(("holder", "linked"), [("ib_core", True), ("ib_uverbs", True), (None, False)])
def test_whether_peermem_uses_the_rdma_stack_is_read(tmp_path: Path, holder: str | None, linked: bool) -> None:
    tree = Tree(tmp_path)
    tree.folder("/sys/module/nvidia_peermem")
    if holder:
        tree.folder(f"/sys/module/{holder}/holders/nvidia_peermem")
    facts: System = system.system(Root(str(tmp_path)))
    assert facts.peermem_linked is linked


# --- the fabric and IMEX ---------------------------------------------------------------------------------------------


def test_a_fabric_whose_health_is_not_supported_is_registered_and_not_called_healthy() -> None:
    unsupported = dict.fromkeys(("degraded_bandwidth", "route_recovery", "route_unhealthy"), "not-supported")
    machine = patched(healthy(), "gpus[*].nvml.fabric", health=unsupported, health_summary="not-supported")
    assert run_one("fabric.state", machine).summary == "registered in the fabric"
    assert run_one("fabric.state", healthy()).summary == "registered in the fabric, and healthy"


def test_no_channel_is_right_outside_of_a_job_and_wrong_in_one() -> None:
    machine = patched(healthy(), "driver", imex_channels=())
    assert run_one("imex.channel", machine).status is Status.NOTE
    in_job = patched(machine, "process", environment={"SLURM_JOB_ID": "7"})
    assert run_one("imex.channel", in_job).status is Status.WARN
    in_container = patched(machine, "process", container_signs=("/.dockerenv",))
    assert run_one("imex.channel", in_container).status is Status.WARN
    assert run_one("imex.channel", machine, FABRIC).status is Status.FAIL


@pytest.mark.parametrize(("version", "advice"), [("535.230.02", "branch 550"), ("580.126.16", "nv-caps-imex")])
def test_a_driver_that_is_new_enough_is_not_told_to_be_newer(version: str, advice: str) -> None:
    machine = patched(healthy(), "driver", majors={"nvidia": 195}, driver_version=version, module_version=version)
    finding = run_one("imex.module", machine)
    assert (finding.status, advice in known(finding.remedy).text) == (Status.FAIL, True)


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (Reason.NOT_SUPPORTED, "this driver does not report it for this GPU"),
        (Reason.DRIVER_TOO_OLD, "the driver is too old to report it"),
        (Reason.FAILED, "999"),
    ],
)
def test_why_egm_is_unknown_is_the_driver_s_own_reason(reason: Reason, words: str) -> None:
    unread = {"capabilities": Unread(reason=reason, detail="nvmlDeviceGetCapabilities: 999 (Unknown Error)")}
    machine = patched(healthy(), "gpus[*].nvml", capabilities=None, unread=unread)
    finding = run_one("egm.capability", machine)
    assert (finding.status, words in finding.summary) == (Status.UNKNOWN, True)


# --- device nodes ----------------------------------------------------------------------------------------------------


def cap(minor: int, **more: object) -> DeviceNode:
    path = f"/dev/nvidia-caps/nvidia-cap{minor}"
    node = DeviceNode(path=path, exists=True, kind="character", major=236, minor=minor, mode=0o444, access="ok")
    return patched(node, "", **more)


def with_caps(*caps: DeviceNode, mig: bool = True) -> Machine:
    machine = patched(healthy(), "gpus[0].nvml", mig_mode=mig)
    nodes = [node for node in known(known(machine.driver).nodes) if "nvidia-caps" not in node.path]
    return patched(machine, "driver", nodes=(*nodes, *caps))


@pytest.mark.parametrize(
    ("machine", "status"),
    [
        (with_caps(cap(1, access="EACCES", mode=0o400), cap(2, access="EACCES"), cap(3, access="EACCES")), Status.PASS),
        (with_caps(cap(2), cap(3, access="EACCES", mode=0o400)), Status.FAIL),
        (with_caps(cap(3, access="EPERM")), Status.FAIL),
        (with_caps(cap(1, exists=False, access="ENOENT"), cap(2, exists=False, access="ENOENT")), Status.FAIL),
        (with_caps(), Status.FAIL),
        (with_caps(mig=False), Status.PASS),
    ],
)
def test_the_nodes_of_mig_instances_are_judged_where_mig_is_on(machine: Machine, status: Status) -> None:
    assert status_of("dev.control-nodes", machine)[0] is status


@pytest.mark.parametrize(("helper", "status"), [(True, Status.PASS), (False, Status.FAIL), (None, Status.UNKNOWN)])
def test_nvidia_uvm_that_nothing_loads_is_a_fault_though_cuda_was_not_asked(
    helper: bool | None, status: Status
) -> None:
    machine = patched(HGX, "gpus[*]", cuda=None, unread={"cuda": Unread(reason=Reason.NOT_ASKED)})
    machine = patched(patched(machine, "process", container_signs=()), "confinement", mounts=())
    machine = patched(machine, "driver", modules=("nvidia",), modprobe_setuid=helper)
    finding = run("dev.control-nodes", machine)[0]
    assert (finding.status, "nvidia_uvm is not loaded" in finding.summary) == (status, status is not Status.PASS)


def test_whether_nvidia_modprobe_runs_as_root_is_read(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    assert driver_facts.driver(Root(str(tmp_path))).modprobe_setuid is False
    tree.write("/usr/bin/nvidia-modprobe", "")
    for mode, setuid in ((0o755, False), (0o4755, True)):
        (tmp_path / "usr/bin/nvidia-modprobe").chmod(mode)
        assert driver_facts.driver(Root(str(tmp_path))).modprobe_setuid is setuid


# --- NVLink and the GPU's own word ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["NVIDIA H200 141GB HBM3e", "FAKE NVIDIA H200"])
def test_the_links_of_a_product_go_by_its_pci_id_and_not_by_its_name(name: str) -> None:
    machine = patched(HGX, "gpus[*].nvml", name=name)
    for link in range(17, 18):
        machine = patched(machine, f"gpus[*].nvml.nvlinks[{link}]", active=False, link_state="inactive")
    assert {finding.status for finding in run("nvlink.links", machine)} == {Status.FAIL}
    other = patched(machine, "gpus[*].pci", device_id=0x233B)
    assert Status.FAIL not in {finding.status for finding in run("nvlink.links", other)}


def test_links_that_a_driver_cannot_report_are_not_called_inactive() -> None:
    reason = Unread(reason=Reason.DRIVER_TOO_OLD, detail="nvmlDeviceGetFieldValues: 13 (Function Not Found)")
    unread = {"nvlinks": reason, "nvlink_count": reason}
    machine = patched(HGX, "gpus[*].nvml", nvlinks=None, nvlink_count=None, unread=unread)
    assert status_of("nvlink.links", machine) == [Status.UNKNOWN]
    unread = {name: Unread(reason=Reason.NOT_SUPPORTED, detail="3") for name in unread}
    machine = patched(HGX, "gpus[*].nvml", nvlinks=None, nvlink_count=None, unread=unread)
    assert status_of("nvlink.links", machine) == [Status.FAIL]


@pytest.mark.parametrize(
    ("states", "count", "links", "further"),
    [
        # All active: not one call more.
        ([1] * 18, 18, 18, 0),
        # A driver that counts all links: it ends at the first that the GPU lacks.
        ([1] * 17 + [0], 18, 18, 1),
        # A driver that counts active links: one is down, and the last one is behind the count.
        ([1] * 5 + [0] + [1] * 12, 17, 18, 1),
        ([1, 0, 0, 1, 0, 1], 3, 6, 3),
        ([0, 0], 0, 0, 0),
    ],
)
def test_links_are_read_to_the_last_active_one(
    monkeypatch: pytest.MonkeyPatch, states: list[int], count: int, links: int, further: int
) -> None:
    asked: list[int] = []

    def state(_function: str, _handle: object, link: int) -> int:
        asked.append(link)
        if link >= len(states):
            raise Unreadable(Reason.FAILED, "2 (Invalid Argument)", number=pynvml.NVML_ERROR_INVALID_ARGUMENT)
        return states[link]

    def read(_handle: object, number: int) -> list[dict[str, bool]]:
        return [{"active": bool(states[link])} for link in range(number)]

    monkeypatch.setattr(nvml, "ask", state)
    monkeypatch.setattr(nvml, "_nvlinks", read)
    assert (len(nvml._all_nvlinks(None, count)), len(asked)) == (links, further)


def test_the_driver_s_own_request_for_service_is_a_failure() -> None:
    finding = run("gpu.health", patched(healthy(), "gpus[1].nvml", sram_threshold_exceeded=True))[0]
    assert (finding.status, finding.place.label) == (Status.FAIL, "GPU1")
    assert "asks to have the GPU serviced" in finding.summary


def test_a_repair_that_waits_for_a_reset_is_warned_of() -> None:
    machine = patched(healthy(), "gpus[1].nvml", tpc_repair_pending=True, channel_repair_pending=False)
    finding = run("gpu.health", machine)[0]
    assert (finding.status, finding.place.label) == (Status.WARN, "GPU1")
    assert finding.summary == "a TPC (a part with SMs) will be repaired at the next reset"


@pytest.mark.parametrize(
    ("reason", "status"),
    [
        (Reason.NO_PERMISSION, Status.PASS),
        (Reason.NOT_SUPPORTED, Status.PASS),
        (Reason.NOT_STATED, Status.PASS),
        (Reason.FAILED, Status.UNKNOWN),
    ],
)
def test_a_flag_that_only_root_may_read_is_not_missed(reason: Reason, status: Status) -> None:
    unread = {"sram_threshold_exceeded": Unread(reason=reason, detail="nvmlDeviceGetSramEccErrorStatus")}
    machine = patched(healthy(), "gpus[*].nvml", sram_threshold_exceeded=None, unread=unread)
    finding = run_one("gpu.health", machine)
    assert (finding.status, "SRAM" in finding.summary) == (status, status is Status.UNKNOWN)


# --- CPUs ------------------------------------------------------------------------------------------------------------

FAST = CpuFrequencies(cpus="0-143", governor="powersave", driver="intel_pstate", limit_khz=3_800_000, max_khz=3_800_000)


@pytest.mark.parametrize(
    ("cpus", "status"),
    [
        (FAST, Status.PASS),
        (replace(FAST, driver="amd-pstate-epp"), Status.PASS),
        (replace(FAST, driver="intel_cpufreq"), Status.WARN),
        (replace(FAST, driver="acpi-cpufreq"), Status.WARN),
        (replace(FAST, driver=None), Status.WARN),
        (replace(FAST, limit_khz=1_000_000), Status.WARN),
    ],
)
def test_powersave_is_slow_only_where_the_kernel_chooses_the_frequency(cpus: CpuFrequencies, status: Status) -> None:
    assert run_one("cpu.governor", patched(healthy(), "host", cpu_frequencies=(cpus,))).status is status


@pytest.mark.parametrize(
    ("cpus", "run", "look"),
    [
        (replace(FAST, driver="acpi-cpufreq"), "cpupower frequency-set --governor performance", None),
        (replace(FAST, limit_khz=1_000_000), None, "cpupower frequency-info"),
        (replace(FAST, governor="performance", limit_khz=1_000_000), None, "cpupower frequency-info"),
    ],
)
def test_no_governor_is_set_against_a_limit(cpus: CpuFrequencies, run: str | None, look: str | None) -> None:
    remedy = known(run_one("cpu.governor", patched(healthy(), "host", cpu_frequencies=(cpus,))).remedy)
    assert (remedy.run, remedy.look) == (run, look)


def test_the_driver_of_the_frequencies_is_read(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.write("/sys/devices/system/cpu/online", "0-1\n")
    for cpu in ("cpu0", "cpu1"):
        tree.write(f"/sys/devices/system/cpu/{cpu}/cpufreq/scaling_governor", "powersave\n")
        tree.write(f"/sys/devices/system/cpu/{cpu}/cpufreq/scaling_driver", "intel_pstate\n")
    (cpus,) = known(host(Root(str(tmp_path))).cpu_frequencies)
    assert (cpus.cpus, cpus.driver) == ("0-1", "intel_pstate")


# --- advice that applies ----------------------------------------------------------------------------------------------


def test_where_cuda_does_not_list_a_gpu_only_modes_that_it_is_in_are_named() -> None:
    gone = {"cuda": Unread(reason=Reason.NOT_PRESENT, detail="CUDA lists 3 GPUs, not this one")}
    machine = patched(HGX, "gpus[1]", cuda=None, unread=gone)
    remedy = known(run("dev.count-consistency", machine)[0].remedy)
    assert not any(name in remedy.text for name in ("gpu.mig", "fabric.state", "drv.versions"))
    prohibited = patched(machine, "gpus[1].nvml", compute_mode="prohibited")
    assert known(run("dev.count-consistency", prohibited)[0].remedy).text == "See gpu.compute-mode."
