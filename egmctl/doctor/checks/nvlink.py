"""Checks of NVLink and NVLink-C2C: link states, error counters and bandwidth modes."""

from __future__ import annotations

from collections.abc import Iterable

from egmctl.doctor.check import Scope, Verdicts, check, end, findings_on, known, skip
from egmctl.doctor.findings import fact, failed, gap, noted, passed, unknown, warned
from egmctl.doctor.situation import (
    answering_gpus,
    check_gpus,
    coherent,
    driver_parameters,
    fabric,
    usable_coherent_gpus,
    virtual,
)
from egmctl.model.finding import Evidence, Guard
from egmctl.model.gpu import Gpu, NvLink, NvLinkCounters
from egmctl.model.host import Driver
from egmctl.model.machine import Machine
from egmctl.model.remedy import GPUS, Need, Remedy, as_root, remove_option, todo
from egmctl.model.route import LinkKind
from egmctl.topology.links import has_no_nvlink, has_one_bridge, nvlinks_of, without_speed
from egmctl.topology.platform import C2c, c2c
from egmctl.units import format_kernel_list, several

STATE = "nvmlDeviceGetNvLinkState"
NO_NVLINK = "no NVLink on these GPUs"
_SHOW_LINKS = "nvidia-smi nvlink -s"
RESET = as_root(
    "End what uses the GPU and reset it; if that does not help, inspect the hardware.",
    Need.GPU_RESET,
    look=_SHOW_LINKS,
    run=f"nvidia-smi --gpu-reset -i {GPUS}",
)
SWITCHES = as_root(
    "Read the fabric manager's log, then reset all GPUs and switches together.", Need.NO_JOBS, look=_SHOW_LINKS
)
_PLUG_IN = as_root(
    "Power the drained node off, and push the bridge fully into both cards.", Need.REBOOT, look=_SHOW_LINKS
)
_IN_PART = "one bridge joins all links, and makes contact only in part (https://github.com/NVIDIA/nccl/issues/340)"
MAX_EFFECTIVE_BER = 1e-12
"""The maximum effective bit error rate of a healthy link (DCGM 4.6, DcgmHealthWatch.cpp, Blackwell)."""

NO_RATE = "a link that is up has a rate: one of NVML's two answers is wrong"

_CORRECTED = [name for name in NvLinkCounters.__annotations__ if name.endswith(("_packets", "_overruns", "_errors"))]
"""The counters of errors that do not cause retraining; NVLink 5 and newer."""


@check_gpus("nvlink.links", Guard.P2P, Guard.FABRIC, Guard.EGM)
def _links(machine: Machine, _scope: Scope, gpu: Gpu) -> Verdicts:
    if unread := _unread_states(gpu):
        end(unknown(f"the state of the NVLinks was not read ({unread})"))
    # Compare only GPUs of the same product, as the number of links differs.
    most = max(_up(other) for other in machine.gpus or () if other.name == gpu.name)
    if most == 0:
        yield from _all_down(machine, gpu)
        return
    up, wired = _up(gpu), _wired(machine, gpu)
    expected = max(most, wired or 0)
    count = (gpu.nvml.nvlink_count if gpu.nvml else None) or 0
    if up < expected:
        yield _inactive(gpu)
        by_product = f"a {gpu.name} on NVSwitches has {expected}; a switch that is down takes links of every GPU"
        yield failed(
            f"{up} of {expected} NVLinks are active",
            RESET if up < most else SWITCHES,
            cause="other GPUs of this node have more active links" if up < most else by_product,
        )
    elif links := without_speed(gpu).get(LinkKind.NVLINK):
        yield fact(f"NVML_FI_DEV_NVLINK_GET_SPEED(GPU{gpu.index})", f"0 MB/s: {format_kernel_list(set(links))}")
        yield warned("NVML calls NVLinks active at 0 MB/s", RESET, cause=NO_RATE)
    elif silent := _in_state(gpu, "active-traffic-disabled"):
        value = f"active-traffic-disabled: {format_kernel_list(silent)}"
        yield fact(f"NVML_FI_DEV_NVLINK_GET_STATE(GPU{gpu.index})", value)
        yield warned("NVLinks are up, but their traffic is disabled", SWITCHES)
    elif up < count and has_one_bridge(gpu):
        yield _inactive(gpu)
        yield failed(f"{up} of the bridge's {count} NVLinks are active", _PLUG_IN, cause=_IN_PART)
    elif count > up and wired is None and _is_switched(gpu):
        yield _inactive(gpu)
        yield unknown(f"{up} of {count} NVLinks are active on every GPU: whether the board leaves some out is unknown")
    else:
        notes = [f"the GPU has {count}; {count - up} are unused on every GPU"] if count > up else []
        if _in_state(gpu, "sleep"):
            notes.append("some links are asleep to save power; traffic wakes them")
        yield fact(STATE, f"{up} of {count} links active")
        yield passed(f"{up} NVLinks are active", note="; ".join(notes))


def _unread_states(gpu: Gpu) -> str:
    """Return why the states of a GPU's NVLinks are unknown; empty if they are known."""
    if has_no_nvlink(gpu):
        return ""
    if gpu.nvml is not None and gpu.nvml.nvlinks is None:
        return gap(gpu.nvml, "nvlinks") or "the driver is too old to report them"
    reasons = (gap(gpu.nvml, "nvlinks"), *map(_unread_state, nvlinks_of(gpu)))
    return next(filter(None, reasons), "")


def _unread_state(link: NvLink) -> str:
    if link.active is None and link.link_state != "sleep":
        return gap(link, "active") or "no state"
    return gap(link, "link_state", newer=True) or (gap(link, "speed_mb_s", newer=True) if link.active else "")


_PRODUCTS = {
    0x20B0: ("NVIDIA A100-SXM4-40GB", 12),
    0x20B2: ("NVIDIA A100-SXM4-80GB", 12),
    0x2330: ("NVIDIA H100 80GB HBM3", 18),
    0x2335: ("NVIDIA H200", 18),
    0x2901: ("NVIDIA B200", 18),
    0x2941: ("NVIDIA GB200", 18),
    0x31C2: ("NVIDIA GB300", 18),
    0x31C3: ("NVIDIA GB300", 18),
}
"""The PCI device ids of products on boards with switches (https://pci-ids.ucw.cz), with NVML's name of each and its
number of NVLinks (A100's datasheet; the others: https://docs.nvidia.com/health-validation/reference/checks/nvlink).
Other products, and boards with bridges or direct links, leave links unused by design, so their number is unknown."""


def _product_links(gpu: Gpu) -> int | None:
    """Return the number of NVLinks to switches of a GPU's product, by its PCI device id; ``None`` if unknown.

    NVML's names differ between vendors' parts and driver versions. The name counts if the id was not read.
    """
    if gpu.pci is not None and gpu.pci.device_id is not None:
        return _PRODUCTS.get(gpu.pci.device_id, ("", None))[1]
    return dict(_PRODUCTS.values()).get(gpu.name or "")


def _wired(machine: Machine, gpu: Gpu) -> int | None:
    """Return the number of links to switches of a GPU's product; ``None`` if unknown.

    If the bandwidth mode or a module parameter reduces it, return the number that are up.
    """
    driver, nvml = machine.driver or Driver(), gpu.nvml
    mode = (nvml.nvlink_bandwidth_mode if nvml else None) or driver.nvlink_bandwidth_mode
    fewer = (driver.module_parameters or {}).get("RmNvlinkBandwidthLinkCount", "0") not in ("0", "")
    if mode not in (None, "full") or fewer:
        # nvlink.bw-mode reports this.
        return _up(gpu)
    if not _is_switched(gpu) or (nvml and nvml.virtualization == "vgpu"):
        return None
    return _product_links(gpu)


def _is_switched(gpu: Gpu) -> bool:
    return all(link.remote_type == "switch" for link in nvlinks_of(gpu) if link.active)


def _up(gpu: Gpu) -> int:
    """Return the number of a GPU's links that are trained, including sleeping ones."""
    return sum(bool(link.active) or link.link_state == "sleep" for link in nvlinks_of(gpu))


def _in_state(gpu: Gpu, state: str) -> list[int]:
    return [link.link for link in nvlinks_of(gpu) if link.link_state == state and 0 <= link.link < 1 << 10]


def _all_down(machine: Machine, gpu: Gpu) -> Verdicts:
    """Yield the finding on a GPU if no GPU of its product has an active link."""
    siblings = sum(other.name == gpu.name for other in machine.gpus or ())
    # A single GPU with C2C may be in a workstation without switches.
    is_board_gpu = _product_links(gpu) is not None and (siblings > 1 or c2c(machine, gpu) is C2c.ABSENT)
    reason, info, listed = _none_by_design(machine, gpu), fabric(gpu), bool(nvlinks_of(gpu))
    in_fabric = info is not None and info.state in ("not-started", "in-progress", "completed")
    has_switches = listed and (bool(machine.switches) or in_fabric)
    yield _inactive(gpu)
    if not listed and not is_board_gpu:
        skip(NO_NVLINK)
    elif gpu.nvml and gpu.nvml.mig_mode:
        skip("no NVLink is active, and MIG is on: its instances have no peers")
    elif is_board_gpu and reason:
        remedy = todo("Undo the cause, unless it is intended.", look=_SHOW_LINKS)
        yield warned("no NVLink is active", remedy, cause=reason)
    elif is_board_gpu or (has_switches and not reason):
        where = "fabric.state: the rack's" if coherent(machine) else "fabric.manager and fabric.state: the"
        remedy = todo(f"See {where} fabric manager brings the links up.", look=_SHOW_LINKS)
        yield failed("no NVLink is active, though these GPUs belong on NVSwitches", remedy)
    else:
        skip(f"no NVLink is active: {reason}" if reason else "no NVLink is connected")


def _none_by_design(machine: Machine, gpu: Gpu) -> str:
    """Return the known configuration that disables all links of a GPU; empty if there is none."""
    driver = machine.driver or Driver()
    if (driver.module_parameters or {}).get("NvLinkDisable", "0") not in ("0", ""):
        return "a module parameter disables NVLink (nvlink.disabled)"
    if "off" in ((gpu.nvml.nvlink_bandwidth_mode if gpu.nvml else None), driver.nvlink_bandwidth_mode):
        return "NVLink's bandwidth mode is OFF (nvlink.bw-mode)"
    state = info.state if (info := fabric(gpu)) else None
    if virtual(machine) and len(machine.gpus or ()) == 1:
        return "this virtual machine has one GPU, without peers"
    if virtual(machine) and state in (None, "not-supported"):
        return "this virtual machine has a partition without NVLinks"
    # A100 has NVLinks, but no fabric that its driver can probe.
    probed = gpu.nvml is not None and (gpu.nvml.compute_capability or (9, 0)) >= (9, 0)
    if probed and state == "not-supported":
        return "the fabric is disabled: the driver calls it not supported"
    return ""


def _inactive(gpu: Gpu) -> Evidence:
    inactive = _numbers(link for link in nvlinks_of(gpu) if not link.active)
    return fact(f"{STATE}(GPU{gpu.index})", f"inactive: {inactive}" if nvlinks_of(gpu) else "no links")


def _numbers(links: Iterable[NvLink]) -> str:
    return format_kernel_list({link.link for link in links if 0 <= link.link < 1 << 10}) or "none"


@check_gpus("nvlink.errors", Guard.P2P, Guard.PERF)
def _errors(_machine: Machine, _scope: Scope, gpu: Gpu) -> Verdicts:
    links = nvlinks_of(gpu)
    bad = [link for link in links if _is_bad(link)]
    recoveries = sum(map(_recoveries, links))
    counting = [link for link in bad or links if _recoveries(link) or _corrected(link) or _is_bad(link)]
    yield from (fact(f"link {link.link} of GPU{gpu.index}", _words(link)) for link in counting)
    if bad:
        is_lost = any(link.counters and link.counters.failed_recoveries for link in bad)
        state = "could not be recovered" if is_lost else f"have an effective bit error rate above {MAX_EFFECTIVE_BER:g}"
        text, look = "Inspect the links' cables and boards, and reset the GPU.", "nvidia-smi nvlink -e"
        remedy = as_root(text, Need.GPU_RESET, look=look)
        yield failed(f"NVLinks {state} (links {_numbers(bad)})", remedy)
    elif recoveries:
        yield warned(
            f"{recoveries} NVLink retrains since the driver was loaded",
            todo("If the count rises under load, inspect the GPU, its board or cable.", look="nvidia-smi nvlink -e"),
            cause="a link that loses its signal carries no traffic until it is retrained",
        )
    elif has_no_nvlink(gpu):
        skip(NO_NVLINK)
    elif not links or any(map(_lacks_counters, links)):
        yield unknown("NVML does not report all error counters of the NVLinks")
    elif counting:
        note = "the links corrected errors; only a fast rise of a counter matters (DCGM: within a minute)"
        yield passed("no NVLink retrains", note=note)
    else:
        yield passed("no NVLink errors")


def _lacks_counters(link: NvLink) -> bool:
    """Return whether an error counter that the link's generation has was not read."""
    if link.counters is not None:
        names = (*_CORRECTED, "recoveries", "failed_recoveries", "effective_ber")
        return link.counters.recoveries is None or bool(gap(link.counters, *names))
    if gap(link, "counters", newer=True):
        return True
    return link.recovery_errors is None or bool(gap(link, "recovery_errors", "replay_errors", "crc_errors"))


def has_errors(link: NvLink) -> bool:
    """Return whether a link was retrained, failed to recover or has a high bit error rate."""
    return bool(_recoveries(link)) or _is_bad(link)


def _is_bad(link: NvLink) -> bool:
    counters = link.counters or NvLinkCounters()
    return bool(counters.failed_recoveries) or (counters.effective_ber or 0.0) > MAX_EFFECTIVE_BER


def _recoveries(link: NvLink) -> int:
    """Return the number of retrains of a link, from the counter of its generation."""
    return (link.counters.recoveries if link.counters else link.recovery_errors) or 0


def _corrected(link: NvLink) -> dict[str, int]:
    """Return the nonzero counts of errors that caused no retraining, by the counters of the link's generation."""
    names = _CORRECTED if link.counters else ("crc_errors", "replay_errors")
    return {name: count for name in names if (count := getattr(link.counters or link, name))}


def _words(link: NvLink) -> str:
    counters = link.counters or NvLinkCounters()
    counts = {"recoveries": _recoveries(link), "failed recoveries": counters.failed_recoveries or 0, **_corrected(link)}
    rate = "" if counters.effective_ber is None else f", BER {counters.effective_ber:.0e}"
    return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in counts.items()) + rate


FULL = as_root(
    "Set the mode to FULL, unless it is meant to save power.",
    Need.NO_JOBS,
    look="nvidia-smi nvlink -gBwMode",
    run="nvidia-smi nvlink -sBwMode FULL",
)
ALIKE = as_root("Give all GPUs one mode, then reset them.", Need.NO_JOBS, look="nvidia-smi nvlink -gBwMode")


@check("nvlink.bw-mode", Guard.PERF, Guard.P2P, Guard.FABRIC, sections=("gpus", "driver"))
def _bandwidth_mode(machine: Machine, scope: Scope) -> Verdicts:
    gpus = answering_gpus(machine, scope)
    if not any(nvlinks_of(gpu) for gpu in machine.gpus or ()):
        if reasons := [*filter(None, map(_unread_states, gpus))]:
            end(unknown(f"whether these GPUs have NVLinks was not read ({reasons[0]})"))
        skip(NO_NVLINK)
    driver = machine.driver or Driver()
    mode = driver.nvlink_bandwidth_mode
    parameter = (driver.module_parameters or {}).get("RmNvlinkBandwidthLinkCount", "0")
    yield fact("nvmlSystemGetNvlinkBwMode", mode)
    yield fact("NVreg_RmNvlinkBandwidthLinkCount", parameter)
    # From Blackwell on, each GPU has its own mode.
    own = [(gpu, nvml) for gpu in gpus if (nvml := gpu.nvml) and nvml.nvlink_bandwidth_mode]
    unread = [gpu for gpu in gpus if gap(gpu.nvml, "nvlink_bandwidth_mode", newer=True)]
    yield from (fact(f"nvmlDeviceGetNvlinkBwMode(GPU{gpu.index})", nvml.nvlink_bandwidth_mode) for gpu, nvml in own)
    if unread:
        yield unknown("NVML did not report the bandwidth mode of these GPUs", unread)
    if len({nvml.nvlink_bandwidth_mode for _, nvml in own}) > 1:
        cause = "the driver refuses imports between them (open-gpu-kernel-modules, mem_fabric_import_v2.c)"
        gpus = tuple(gpu for gpu, _ in own)
        yield failed("the GPUs' NVLinks are in different bandwidth modes", ALIKE, gpus, cause=cause)
    elif own:
        for gpu, nvml in own:
            yield from findings_on(gpu, _judge_mode(nvml.nvlink_bandwidth_mode, nvml.nvlink_bandwidth_best, ALIKE))
    elif unread and mode in (None, "full"):
        return
    elif mode in (None, "full") and parameter not in ("0", ""):
        fewer = f"the NVLinks are set to less than their bandwidth ({parameter} links)"
        yield warned(fewer, remove_option("NVreg_RmNvlinkBandwidthLinkCount"))
    elif mode is None:
        unsupported, no_mode = not gap(driver, "nvlink_bandwidth_mode"), "NVML does not report a bandwidth mode"
        yield skip(no_mode) if unsupported else unknown(no_mode)
    else:
        if mode == "full":
            known(driver.module_parameters, "the driver's parameters were not read: they may leave out links")
        yield from _judge_mode(mode, False, FULL)


def _judge_mode(mode: str | None, is_best: bool | None, remedy: Remedy) -> Verdicts:
    if mode == "off":
        yield failed("NVLink's bandwidth mode is OFF: these GPUs have no P2P over NVLink", remedy)
    elif mode != "full" and not is_best:
        yield warned(f"the NVLinks are set to less than their bandwidth ({mode})", remedy)
    else:
        note = "" if mode == "full" else f"{mode} is the most that the GPUs and their fabric can do"
        yield passed("the NVLinks run at full bandwidth", note=note)


@check("nvlink.disabled", Guard.P2P, Guard.EGM, Guard.FABRIC, sections=("driver",))
def _disabled(machine: Machine, _scope: Scope) -> Verdicts:
    value = driver_parameters(machine).get("NvLinkDisable", "0")
    yield fact("NVreg_NvLinkDisable", value)
    if value in ("0", ""):
        yield passed("NVLink is not disabled")
    elif len(machine.gpus or ()) == 1:
        yield noted("a module parameter disables NVLink, as virtual machines with one GPU have it")
    else:
        yield failed("a module parameter disables NVLink", remove_option("NVreg_NvLinkDisable=1"))


@check_gpus("c2c.link", Guard.EGM, Guard.PERF, gpus_of=usable_coherent_gpus)
def _c2c(machine: Machine, _scope: Scope, gpu: Gpu) -> Verdicts:
    state, links = c2c(machine, gpu), (gpu.nvml.c2c_links if gpu.nvml else None) or ()
    errors = {link.link: link.errors for link in links if link.errors}
    unread_links = (gap(gpu.nvml, "c2c_links"), *(gap(link, "active", "max_rate_mb_s", "errors") for link in links))
    active = f"{sum(bool(link.active) for link in links)} of {len(links)} links active"
    yield fact(f"NVML_FI_DEV_C2C_LINK_GET_STATUS(GPU{gpu.index})", active)
    yield from (fact(f"NVML_FI_DEV_C2C_LINK_ERROR_INTR, link {link}", count) for link, count in errors.items())
    if state is C2c.DOWN or any(link.active is False for link in links):
        yield failed(
            "NVLink-C2C to the CPU is down" if state is C2c.DOWN else "some links of NVLink-C2C are down",
            as_root(
                "Power-cycle the node; if it persists, replace the superchip.", Need.REBOOT, look="nvidia-smi c2c -s"
            ),
        )
    elif state is C2c.UNKNOWN:
        yield unknown("NVML does not report the state of NVLink-C2C")
    elif errors:
        yield warned(
            f"NVLink-C2C has counted {several(sum(errors.values()), 'error')}",
            todo(
                "Watch whether the count rises; if it does, inspect or replace the superchip.", look="nvidia-smi c2c -s"
            ),
        )
    elif stopped := without_speed(gpu).get(LinkKind.C2C):
        yield fact(f"NVML_FI_DEV_C2C_LINK_GET_MAX_BW(GPU{gpu.index})", f"0 MB/s: {format_kernel_list(set(stopped))}")
        yield warned(
            "NVML calls links of NVLink-C2C active at 0 MB/s",
            as_root(
                "Update the driver; if it persists, replace the superchip.",
                Need.DRIVER_RELOAD,
                look="nvidia-smi c2c -s",
            ),
            cause=NO_RATE,
        )
    elif unread := next(filter(None, unread_links), ""):
        yield unknown(f"NVML did not report all of NVLink-C2C's links ({unread})")
    else:
        saves_power = any(link.power_state for link in links)
        yield passed("NVLink-C2C is up", note="in a low-power state while idle" if saves_power else "")
