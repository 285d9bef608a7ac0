"""GPUs: memory errors, Xids, PCIe, power, clocks and modes."""

from tests.incidents.makers.healthy import cards, hgx, shipped
from tests.incidents.makers.parts import (
    CONTAINED,
    DOUBLE_BIT_ERROR,
    Machine,
    busy,
    cuda_fails,
    event,
    gpu_lost,
    kernel_log,
    machine,
    no_peer_access,
    version,
    xid,
)


@machine
def row_remap_pending() -> Machine:
    node = hgx()
    node["gpus"][2]["nvml"].update(remapped_rows_uncorrectable=4, remapped_rows_pending=True)
    return node


@machine
def memory_degrading() -> Machine:
    """Uncorrectable errors in one region again and again: each reset activates a remap, and a new row fails."""
    node = hgx()
    gpu = node["gpus"][2]
    bus_id = gpu["bus_id"]
    gpu["nvml"].update(remapped_rows_uncorrectable=12, remapped_rows_pending=True, recovery_action="drain-and-reset")
    gpu["nvml"].update(ecc_uncorrected_volatile=2)
    log = []
    for time_s in (13860.0, 20220.0, 55020.0, 56220.0):
        log.append(xid(time_s, bus_id, 48, DOUBLE_BIT_ERROR))
        log.append(xid(time_s + 0.1, bus_id, 63, "Row Remapper: New row marked for remapping, reset gpu to activate."))
        contained = {"pid": 4242, "process": "python3"}
        log.append(xid(time_s + 0.2, bus_id, 94, CONTAINED, **contained))
        asked_for = "GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)"
        log.append(xid(time_s + 0.3, bus_id, 154, asked_for))
    kernel_log(node, log)
    return node


@machine
def contained_memory_error() -> Machine:
    """One contained error; the GPU goes on with other programs, and a row waits for the next reset."""
    node = hgx()
    gpu = node["gpus"][1]
    gpu["nvml"].update(remapped_rows_uncorrectable=1, remapped_rows_pending=True)
    kernel_log(node, [xid(40000.0, gpu["bus_id"], 94, CONTAINED, pid=4242, process="python3")])
    return node


@machine
def reset_required_counters_zero() -> Machine:
    """The Xid came before the log that is left; the counters say nothing, but the driver still asks for a reset."""
    node = hgx()
    node["gpus"][3]["nvml"]["recovery_action"] = "gpu-reset"
    node["kernel_log"]["first_s"] = 70000.0
    return node


@machine
def mig_disable_pending() -> Machine:
    """MIG mode was turned off while a monitor held the GPU: it stays on until a reset."""
    node = hgx()
    node["gpus"][1]["nvml"].update(mig_mode=True, mig_mode_pending=False)
    return node


@machine
def mig_without_instances() -> Machine:
    """After a repair GPU 0 has MIG off and the others have it on, without an instance."""
    node = hgx()
    for gpu in node["gpus"][1:]:
        gpu["nvml"].update(mig_mode=True, mig_mode_pending=True)
    cuda_fails(node, 100, "CUDA_ERROR_NO_DEVICE")
    return node


@machine
def mig_on_all() -> Machine:
    """Partitioned GPUs: no peer access, and a program sees one instance."""
    node = hgx()
    for gpu in node["gpus"]:
        gpu["nvml"].update(mig_mode=True, mig_mode_pending=True)
    no_peer_access(node, "NS")
    node["gpus"][0]["cuda"].update(name="NVIDIA H200 MIG 1g.18gb", memory_total_bytes=17448304640)
    for gpu in node["gpus"][1:]:
        gpu_lost(gpu, "CUDA lists one instance", "cuda")
    return node


@machine
def exclusive_process() -> Machine:
    node = hgx()
    gpu = node["gpus"][0]
    gpu["nvml"].update(
        compute_mode="exclusive-process",
        memory_used_bytes=9437184000,
        processes=[{"pid": 4242, "name": "python3", "used_memory_bytes": 9437184000}],
    )
    gpu["cuda"]["attributes"]["COMPUTE_MODE"] = 3
    return node


@machine
def one_gpu_power_capped() -> Machine:
    """Under the same load three GPUs run at full clock; one is held down by its power cap."""
    node = hgx()
    for gpu in node["gpus"]:
        busy = {"pid": 4242 + gpu["index"], "name": "burn", "used_memory_bytes": 120000000000}
        gpu["nvml"].update(sm_clock_mhz=1965, performance_state=0, temperature_c=52, processes=[busy])
        gpu["nvml"].update(throttle_reasons=[], memory_used_bytes=120000000000)
    node["gpus"][2]["nvml"].update(sm_clock_mhz=705, throttle_reasons=["sw-power-cap"], temperature_c=41)
    return node


@machine
def power_brake() -> Machine:
    """The power supply holds all GPUs down; none is hot."""
    node = hgx()
    for gpu in node["gpus"]:
        gpu["nvml"].update(throttle_reasons=["hw-slowdown", "hw-power-brake-slowdown"], sm_clock_mhz=345)
        gpu["nvml"].update(temperature_c=38, performance_state=0)
    return node


@machine
def idle_link_at_gen1() -> Machine:
    """Cards that lower their link while idle: nothing is wrong."""
    node = cards("NVIDIA RTX A6000", 0x2230, [8, 6], 51527024640, 2)
    slow = {"speed_gt_s": 2.5, "width": 16, "max_speed_gt_s": 16.0, "max_width": 16}
    for gpu in node["gpus"]:
        gpu["pci"]["link"] = dict(slow)
        gpu["nvml"].update(link=dict(slow), performance_state=8, sm_clock_mhz=210, throttle_reasons=["idle"])
    return node


@machine
def persistence_off() -> Machine:
    node = hgx()
    for gpu in node["gpus"]:
        gpu["nvml"]["persistence_mode"] = False
    node["system"]["daemons"] = ["nv-fabricmanager"]
    return node


@machine
def persistence_without_the_daemon() -> Machine:
    """nvidia-smi -pm 1 on the host: the mode is on, and nvidia-persistenced does not run."""
    node = hgx()
    node["system"]["daemons"] = ["nv-fabricmanager"]
    return node


@machine
def fell_off_at_probe() -> Machine:
    """The driver's probe met a GPU that did not answer; it logged no Xid."""
    node = shipped("hgx-b200")
    gpu = node["gpus"][5]
    bus_id = gpu["bus_id"]
    gpu["pci"].update(driver="", responds=False)
    gpu_lost(gpu, "the probe failed", "proc", "node", "nvml", "cuda")
    node["pairs"] = [pair for pair in node["pairs"] if bus_id not in (pair["source"], pair["target"])]
    kernel_log(node, [event("driver", 21.3, bus_id, message="fallen off the bus")])
    node["driver"].update(module_version="580.95.05", driver_version="580.95.05", module_flavour="open")
    node["driver"].update(cuda_driver_version=13000, modules=["nvidia", "nvidia_uvm"])
    node["system"].update(daemons=["nv-fabricmanager", "nvidia-persistenced"], uptime_s=90000.0)
    return node


@machine
def gsp_timeout() -> Machine:
    """GSP RPC timeouts came with the first 525 driver and were fixed in 525.105.17."""
    node = version(cards("NVIDIA A10", 0x2236, [8, 6], 24159191040, 4), "525.60.13", 12000)
    node["driver"]["module_flavour"] = "proprietary"
    text = "Timeout waiting for RPC from GSP! Expected function 76 (GSP_RM_CONTROL) (0x2080a0a7 0x1c)."
    bus_id = node["gpus"][1]["bus_id"]
    kernel_log(node, [xid(time_s, bus_id, 119, text, pid=4242, process="python3") for time_s in (50000.0, 50060.0)])
    return node


@machine
def one_mmu_fault() -> Machine:
    """One Xid 31 of one program, nothing else."""
    node = hgx()
    text = (
        "Ch 00000023, intr 00000000. MMU Fault: ENGINE GRAPHICS GPCCLIENT_T1_3 faulted @ 0x7f2b_c0000000."
        " Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"
    )
    kernel_log(node, [xid(40000.0, node["gpus"][1]["bus_id"], 31, text, pid=4242, process="python3")])
    return node


@machine
def rows_remapped_long_ago() -> Machine:
    """The driver has remapped two rows; no remapping waits and none failed."""
    node = hgx()
    node["gpus"][1]["nvml"].update(remapped_rows_uncorrectable=2)
    return node


@machine
def uncorrectable_errors_on_l40s() -> Machine:
    """Each job on that node ends in cuCtxCreate 214, and Slurm still hands it out."""
    node = cards("NVIDIA L40S", 0x26B9, [8, 9], 48305799168, 2)
    gpu = node["gpus"][0]
    gpu["nvml"].update(ecc_uncorrected_volatile=105, recovery_action=None)
    gpu["nvml"]["unread"]["recovery_action"] = {"reason": "not-supported", "detail": "field 230: 3 (Not Supported)"}
    return node


@machine
def surprise_down() -> Machine:
    """A hot card: the link replays, goes down, and the GPU is off the bus."""
    node = cards("Tesla P100-PCIE-16GB", 0x15F8, [6, 0], 17179869184, 2)
    version(node, "580.159.04", 13000)["driver"]["module_flavour"] = "proprietary"
    gpu = node["gpus"][0]
    port = "0000:00:02.0"
    gpu["pci"].update(path=["pci0000:00", port], responds=False)
    gpu_lost(gpu, "GPU is lost", "nvml", "cuda")
    node["pairs"] = []
    kernel_log(
        node,
        [
            event("aer", 74785.66, port, corrected=True, fatal=False, text="Replay Timer Timeout"),
            event("aer", 74889.54, port, fatal=True, text="Surprise Down Error"),
            xid(74889.64, gpu["bus_id"], 79, "GPU has fallen off the bus.", fatal=None),
        ],
    )
    return node


@machine
def gen2_under_load() -> Machine:
    """One of four training GPUs has stayed at 5 GT/s since a rule forbade its link to change speed."""
    name = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    node = cards(name, 0x2BB5, [12, 0], 102641958912, 4)
    for gpu in node["gpus"]:
        busy(gpu, 2400, [])
        gpu["nvml"].update(sm_clock_max_mhz=2430)
    slow = {"speed_gt_s": 5.0, "width": 16, "max_speed_gt_s": 32.0, "max_width": 16}
    node["gpus"][2]["pci"]["link"] = dict(slow)
    node["gpus"][2]["nvml"]["link"] = dict(slow)
    return node


@machine
def power_limit_by_the_controller() -> Machine:
    """nvidia-smi -q: current limit 500 W, requested and default limit 700 W."""
    node = hgx()
    for gpu in node["gpus"]:
        gpu["nvml"].update(power_limit_mw=500_000, power_limit_default_mw=700_000)
    return node


@machine
def power_cap_at_full_load() -> Machine:
    """All GPUs work hard and reach their default limit: that is what the limit is for."""
    node = hgx()
    for gpu in node["gpus"]:
        busy(gpu, 1755, ["sw-power-cap"])
        gpu["nvml"].update(power_limit_mw=700_000, power_limit_default_mw=700_000)
    return node


@machine
def one_gpu_with_a_locked_clock() -> Machine:
    """A program locked the clock of one GPU and left it so: no throttle reason, 1200 MHz under load."""
    node = hgx()
    for gpu in node["gpus"]:
        busy(gpu, 1965, [])
        gpu["nvml"].update(power_limit_mw=700_000, power_limit_default_mw=700_000)
    node["gpus"][2]["nvml"].update(sm_clock_mhz=1200)
    return node
