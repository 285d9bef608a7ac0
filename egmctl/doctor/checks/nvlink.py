"""NVLink: are the links up, and do their counters show errors?"""

from __future__ import annotations

from collections.abc import Iterable

from egmctl.doctor.check import Scope, Verdicts, about, check, end, known, skip
from egmctl.doctor.findings import (
    PARAMS,
    as_root,
    fact,
    failed,
    gap,
    passed,
    skipped,
    todo,
    unknown,
    warned,
    without_option,
)
from egmctl.doctor.situation import NO_GPU, usable, virtual
from egmctl.doctor.subject import usable_gpus
from egmctl.model.finding import Evidence, Guard
from egmctl.model.machine import Driver, Gpu, Machine, NvLink, NvLinkCounters
from egmctl.model.route import LinkKind
from egmctl.topology.links import has_no_nvlink, nvlinks_of, without_speed
from egmctl.topology.platform import C2c, c2c
from egmctl.units import format_kernel_list

STATE = "nvmlDeviceGetNvLinkState"
NO_NVLINK = "no GPU has NVLink"
RESET = todo("Drain the node and reset the GPU; if that does not help, inspect the hardware.", "nvidia-smi nvlink -s")
SWITCHES = todo("Read the fabric manager's log, then reset all GPUs and switches together.", "nvidia-smi nvlink -s")
MAX_EFFECTIVE_BER = 1e-12
"""Effective bit error rate of a link from which on it is bad (DCGM 4.6, DcgmHealthWatch.cpp, Blackwell)."""

_PACKET_COUNTERS = (
    "malformed_packets",
    "buffer_overruns",
    "receive_errors",
    "remote_errors",
    "general_receive_errors",
    "integrity_errors",
    "discarded_packets",
)


@check("nvlink.links", Guard.P2P, Guard.FABRIC, Guard.EGM)
def _links(machine: Machine, scope: Scope) -> Verdicts:
    usual: dict[str | None, int] = {}
    for gpu in machine.gpus or ():
        # GPUs of another product have another number of links.
        usual[gpu.name] = max(usual.get(gpu.name, 0), _up(gpu))
    for gpu in usable_gpus(machine, scope):
        yield from about(gpu, _links_of(machine, gpu, usual[gpu.name]))


def _links_of(machine: Machine, gpu: Gpu, most: int) -> Verdicts:
    """Judge a GPU's links.

    Parameters
    ----------
    most
        Links that are up on the GPU of the same product with the most of them.
    """
    if unread := _unread_states(gpu):
        end(unknown(f"the state of the NVLinks was not read ({unread})"))
    if most == 0:
        yield from _all_down(machine, gpu)
        return
    up, wired = _up(gpu), _wired(machine, gpu)
    expected = max(most, wired or 0)
    if up < expected:
        yield _inactive(gpu)
        by_product = (
            f"a {gpu.name} on NVSwitches has {expected} ({_SOURCES[expected]}); a switch that is down takes links of "
            "every GPU"
        )
        yield failed(
            f"{up} of {expected} NVLinks are active",
            RESET if up < most else SWITCHES,
            cause="other GPUs of this node have more active links" if up < most else by_product,
        )
    elif stopped := without_speed(gpu).get(LinkKind.NVLINK):
        yield fact(f"NVML_FI_DEV_NVLINK_GET_SPEED(GPU{gpu.index})", f"0 MB/s: {format_kernel_list(set(stopped))}")
        cause = "a link that is trained has a speed: one of NVML's two answers is wrong"
        yield warned("NVML calls NVLinks active at 0 MB/s", RESET, cause=cause)
    elif silent := _in_state(gpu, "active-traffic-disabled"):
        value = f"active-traffic-disabled: {format_kernel_list(silent)}"
        yield fact(f"NVML_FI_DEV_NVLINK_GET_STATE(GPU{gpu.index})", value)
        yield warned(
            "NVLinks are up, but their traffic is disabled",
            todo("Check these links in the fabric manager's log, then reset the GPU.", "nvidia-smi nvlink -s"),
            cause="NVML_NVLINK_STATE_ACTIVE_TRAFFIC_DISABLED (nvml.h); when the driver does so is not documented",
        )
    else:
        count = (gpu.nvml.nvlink_count if gpu.nvml else None) or 0
        if count > up and wired is None and _is_switched(gpu):
            yield _inactive(gpu)
            unclear = "whether the board leaves some out is unknown"
            end(unknown(f"{up} of {count} NVLinks are active on every GPU: {unclear}"))
        notes = [f"the GPU has {count}; {count - up} are unused on every GPU"] if count > up else []
        if _in_state(gpu, "sleep"):
            notes.append("some links are asleep to save power; traffic wakes them")
        yield fact(STATE, f"{up} of {count} links active")
        yield passed(f"{up} NVLinks are active", note="; ".join(notes))


def _unread_states(gpu: Gpu) -> str:
    """Return why it is not known which of a GPU's links are up; empty where it is."""
    if has_no_nvlink(gpu):
        return ""
    reasons = (gap(gpu.nvml, "nvlinks"), *map(_unread_state, nvlinks_of(gpu)))
    return next(filter(None, reasons), "")


def _unread_state(link: NvLink) -> str:
    if link.active is None and link.link_state != "sleep":
        return gap(link, "active") or "no state"
    return gap(link, "link_state", newer=True) or (gap(link, "speed_mb_s", newer=True) if link.active else "")


_PRODUCTS = {
    "NVIDIA A100-SXM4-40GB": 12,
    "NVIDIA A100-SXM4-80GB": 12,
    "NVIDIA H100 80GB HBM3": 18,
    "NVIDIA H200": 18,
    "NVIDIA B200": 18,
    "NVIDIA GB200": 18,
    "NVIDIA GB300": 18,
}
"""NVLinks that lead to switches, where a product is on a board with switches. Other products, and boards with bridges
or direct links, leave out links by design: theirs are not known."""
_SOURCES = {12: "its datasheet", 18: "https://docs.nvidia.com/health-validation/reference/checks/nvlink"}


def _wired(machine: Machine, gpu: Gpu) -> int | None:
    """Return how many links of a GPU lead to switches by its product; ``None`` where nobody says."""
    driver, nvml = machine.driver or Driver(), gpu.nvml
    mode = (nvml.nvlink_bandwidth_mode if nvml else None) or driver.nvlink_bandwidth_mode
    fewer = (driver.module_parameters or {}).get("RmNvlinkBandwidthLinkCount", "0") not in ("0", "")
    if mode not in (None, "full") or fewer:
        # What nvlink.bw-mode tells.
        return _up(gpu)
    if not _is_switched(gpu) or (nvml and nvml.virtualization == "vgpu"):
        return None
    return _PRODUCTS.get(gpu.name or "")


def _is_switched(gpu: Gpu) -> bool:
    return all(link.remote_type == "switch" for link in nvlinks_of(gpu) if link.active)


def _up(gpu: Gpu) -> int:
    """Return how many of a GPU's links are trained: one that sleeps is."""
    return sum(bool(link.active) or link.link_state == "sleep" for link in nvlinks_of(gpu))


def _in_state(gpu: Gpu, state: str) -> list[int]:
    return [link.link for link in nvlinks_of(gpu) if link.link_state == state and 0 <= link.link < 1 << 10]


def _is_of_board(machine: Machine, gpu: Gpu) -> bool:
    """Say whether a GPU is of a product with links to switches; a Grace GPU alone may be a workstation's, without."""
    siblings = sum(other.name == gpu.name for other in machine.gpus or ())
    return gpu.name in _PRODUCTS and (siblings > 1 or c2c(machine, gpu) is C2c.ABSENT)


def _all_down(machine: Machine, gpu: Gpu) -> Verdicts:
    """Judge a GPU where no GPU of its product has a link that is up."""
    of_board, listed = _is_of_board(machine, gpu), bool(nvlinks_of(gpu))
    others_have_links = any(nvlinks_of(other) for other in machine.gpus or ())
    reason, state = _none_by_design(machine, gpu), _fabric_state(gpu)
    on_switches = listed and (bool(machine.switches) or state in ("not-started", "in-progress", "completed"))
    yield _inactive(gpu)
    if not listed and not of_board:
        if not others_have_links:
            yield skipped(NO_NVLINK)
    elif gpu.nvml and gpu.nvml.mig_mode:
        yield skipped("no NVLink is active, and MIG is on: its instances have no peers")
    elif of_board and reason:
        yield warned(
            "no NVLink is active",
            todo("Undo the cause, unless it is intended.", RESET.command),
            cause=reason,
        )
    elif of_board or (on_switches and not reason):
        yield failed(
            "no NVLink is active, though these GPUs belong on NVSwitches",
            todo("See fabric.manager and fabric.state: the fabric manager brings the links up.", RESET.command),
        )
    else:
        yield skipped(f"no NVLink is active: {reason}" if reason else "no NVLink is connected")


def _fabric_state(gpu: Gpu) -> str | None:
    return gpu.nvml.fabric.state if gpu.nvml and gpu.nvml.fabric else None


def _none_by_design(machine: Machine, gpu: Gpu) -> str:
    """Return what takes away all links of a GPU, where something is known to; empty else."""
    driver = machine.driver or Driver()
    if (driver.module_parameters or {}).get("NvLinkDisable", "0") not in ("0", ""):
        return "a module parameter disables NVLink (nvlink.disabled)"
    if "off" in ((gpu.nvml.nvlink_bandwidth_mode if gpu.nvml else None), driver.nvlink_bandwidth_mode):
        return "NVLink's bandwidth mode is OFF (nvlink.bw-mode)"
    state = _fabric_state(gpu)
    if virtual(machine) and len(machine.gpus or ()) == 1:
        return "this virtual machine has one GPU, without peers"
    if virtual(machine) and state in (None, "not-supported"):
        return "this virtual machine has a partition without NVLinks"
    # A100 has NVLinks and no fabric that its driver could probe.
    probed = gpu.nvml is not None and (gpu.nvml.compute_capability or (9, 0)) >= (9, 0)
    if probed and state == "not-supported":
        return "the fabric is disabled: the driver calls it not supported"
    return ""


def _inactive(gpu: Gpu) -> Evidence:
    if not nvlinks_of(gpu):
        return fact(f"NVML_FI_DEV_NVLINK_LINK_COUNT(GPU{gpu.index})", 0)
    return fact(
        f"{STATE}(GPU{gpu.index})", f"inactive: {_numbers(link for link in nvlinks_of(gpu) if not link.active)}"
    )


def _numbers(links: Iterable[NvLink]) -> str:
    return format_kernel_list({link.link for link in links if 0 <= link.link < 1 << 10}) or "none"


@check("nvlink.errors", Guard.P2P, Guard.PERF)
def _errors(machine: Machine, scope: Scope) -> Verdicts:
    gpus = usable(machine, scope.gpus_of(machine))
    if all(has_no_nvlink(gpu) for gpu in gpus):
        yield skipped(NO_NVLINK if gpus else NO_GPU)
    for gpu in gpus:
        yield from about(gpu, _errors_of(gpu))


def _errors_of(gpu: Gpu) -> Verdicts:
    links = nvlinks_of(gpu)
    bad = [link for link in links if _is_bad(link)]
    recoveries = sum(map(_recoveries, links))
    counting = [link for link in bad or links if _recoveries(link) or _corrected(link) or _is_bad(link)]
    yield from (fact(f"link {link.link} of GPU{gpu.index}", _words(link)) for link in counting)
    if bad:
        lost = any(link.counters and link.counters.failed_recoveries for link in bad)
        state = "could not be recovered" if lost else f"have an effective bit error rate above {MAX_EFFECTIVE_BER:g}"
        yield failed(
            f"NVLinks {state} (links {_numbers(bad)})",
            todo("Drain the node, inspect the links' cables and boards, reset the GPU.", "nvidia-smi nvlink -e"),
            cause="NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS: the link lost its signal for good"
            if lost
            else "DCGM 4.6 fails a link of Blackwell from this rate on (DcgmHealthWatch.cpp)",
        )
    elif recoveries:
        yield warned(
            f"{recoveries} NVLink retrains since the driver was loaded",
            todo("If the count rises under load, inspect the GPU, its board or cable.", "nvidia-smi nvlink -e"),
            cause="a link that loses its signal carries no traffic until it is retrained",
        )
    elif has_no_nvlink(gpu):
        return
    elif not links or any(map(_lacks_counters, links)):
        yield unknown("NVML does not report all error counters of the NVLinks")
    elif counting:
        note = "the links corrected errors; only a fast rise of a counter matters (DCGM: within a minute)"
        yield passed("no NVLink retrains", note=note)
    else:
        yield passed("no NVLink errors")


def _lacks_counters(link: NvLink) -> bool:
    """Say whether an error counter of a link was not read, of those that its generation has."""
    if link.counters is not None:
        names = (*_PACKET_COUNTERS, "recoveries", "failed_recoveries", "effective_errors", "effective_ber")
        return link.counters.recoveries is None or bool(gap(link.counters, *names))
    if gap(link, "counters", newer=True):
        return True
    return link.recovery_errors is None or bool(gap(link, "recovery_errors", "replay_errors", "crc_errors"))


def has_errors(link: NvLink) -> bool:
    """Say whether this check has something against a link."""
    return bool(_recoveries(link)) or _is_bad(link)


def _is_bad(link: NvLink) -> bool:
    counters = link.counters or NvLinkCounters()
    return bool(counters.failed_recoveries) or (counters.effective_ber or 0.0) > MAX_EFFECTIVE_BER


def _recoveries(link: NvLink) -> int:
    """Return how often a link was retrained, by the counter that its generation has."""
    return (link.counters.recoveries if link.counters else link.recovery_errors) or 0


def _corrected(link: NvLink) -> int:
    """Return the errors of a link that cost no retraining."""
    if link.counters is None:
        return (link.crc_errors or 0) + (link.replay_errors or 0)
    names = (*_PACKET_COUNTERS, "effective_errors", "symbol_errors")
    return sum(getattr(link.counters, name) or 0 for name in names)


def _words(link: NvLink) -> str:
    counters = link.counters
    if counters is None:
        return f"{link.crc_errors or 0} CRC, {link.replay_errors or 0} replays, {link.recovery_errors or 0} recoveries"
    names = ("recoveries", "failed_recoveries", "effective_errors", "symbol_errors", *_PACKET_COUNTERS)
    parts = [f"{value} {name.replace('_', ' ')}" for name in names if (value := getattr(counters, name))]
    parts += [f"BER {_rate(counters.effective_ber)}", f"symbol BER {_rate(counters.symbol_ber)}"]
    if worst := [corrected for corrected, codewords in enumerate(counters.fec_history or ()) if codewords]:
        parts.append(f"FEC corrected up to {worst[-1]} symbols of a codeword")
    return ", ".join(parts)


def _rate(value: float | None) -> str:
    return "not read" if value is None else f"{value:.0e}" if value else "<= 1e-254"


FULL = as_root("Set the mode to FULL, unless you want to save power.", "nvidia-smi nvlink -sBwMode FULL")
ALIKE = as_root("Give all GPUs one mode, then reset them.", "nvidia-smi nvlink -gBwMode")
OFF = "NVLink's bandwidth mode is OFF: these GPUs have no P2P over NVLink"


@check("nvlink.bw-mode", Guard.PERF, Guard.P2P, Guard.FABRIC, sections=("gpus", "driver"))
def _bandwidth_mode(machine: Machine, scope: Scope) -> Verdicts:
    if not any(nvlinks_of(gpu) for gpu in machine.gpus or ()):
        skip(NO_NVLINK)
    driver = machine.driver or Driver()
    mode = driver.nvlink_bandwidth_mode
    parameter = (driver.module_parameters or {}).get("RmNvlinkBandwidthLinkCount", "0")
    yield fact("nvmlSystemGetNvlinkBwMode", mode)
    yield fact(f"{PARAMS}: RmNvlinkBandwidthLinkCount", parameter)
    gpus = usable(machine, scope.gpus_of(machine))
    having_own = tuple(gpu for gpu in gpus if gpu.nvml and gpu.nvml.nvlink_bandwidth_mode)
    unread = [gpu for gpu in gpus if gpu not in having_own and gap(gpu.nvml, "nvlink_bandwidth_mode", newer=True)]
    if unread:
        yield unknown("NVML did not report the bandwidth mode of these GPUs", unread)
    if having_own:
        yield from _modes_of(having_own)
    elif unread and mode in (None, "full"):
        return
    elif mode == "off":
        yield failed(OFF, FULL)
    elif mode not in (None, "full"):
        yield warned(f"the NVLinks are set to less than their bandwidth ({mode})", FULL)
    elif parameter not in ("0", ""):
        fewer = f"the NVLinks are set to less than their bandwidth ({parameter} links)"
        yield warned(fewer, without_option("NVreg_RmNvlinkBandwidthLinkCount"))
    elif mode is None:
        unsupported = not gap(driver, "nvlink_bandwidth_mode")
        yield (skipped if unsupported else unknown)("NVML does not report a bandwidth mode")
    else:
        known(driver.module_parameters, f"{PARAMS} was not read: it may leave out links")
        yield passed("the NVLinks run at full bandwidth")


def _modes_of(gpus: tuple[Gpu, ...]) -> Verdicts:
    """Judge the modes that GPUs have each for themselves, from Blackwell on."""
    modes = [(gpu, gpu.nvml.nvlink_bandwidth_mode, gpu.nvml.nvlink_bandwidth_best) for gpu in gpus if gpu.nvml]
    for gpu, mode, is_best in modes:
        yield fact(f"nvmlDeviceGetNvlinkBwMode(GPU{gpu.index})", f"{mode}{', the best it can' if is_best else ''}")
    if len({mode for _, mode, _ in modes}) > 1:
        yield failed(
            "the GPUs' NVLinks are in different bandwidth modes",
            ALIKE,
            gpus,
            cause="between GPUs of different modes the driver refuses imports and multicast ('bwMode does not match', "
            "open-gpu-kernel-modules, mem_fabric_import_v2.c, mem_multicast_fabric.c)",
        )
        return
    for gpu, mode, is_best in modes:
        if mode == "off":
            cause = "P2P is then not supported, and nothing is logged (open-gpu-kernel-modules, kernel_nvlink.c)"
            yield failed(OFF, ALIKE, gpu, cause=cause)
        elif mode == "full" or is_best:
            note = "" if mode == "full" else f"{mode} is the most that the GPUs and their fabric can do"
            yield passed("the NVLinks run at full bandwidth", gpu, note=note)
        else:
            yield warned(f"the NVLinks are set to less than their bandwidth ({mode})", ALIKE, gpu)


@check("nvlink.disabled", Guard.P2P, Guard.EGM, Guard.FABRIC, sections=("driver",))
def _disabled(machine: Machine, _scope: Scope) -> Verdicts:
    parameters = known((machine.driver or Driver()).module_parameters, f"{PARAMS} was not read")
    value = parameters.get("NvLinkDisable", "0")
    yield fact(f"{PARAMS}: NvLinkDisable", value)
    if value in ("0", ""):
        yield passed("NVLink is not disabled")
    else:
        yield failed("a module parameter disables NVLink", without_option("NVreg_NvLinkDisable=1"))
