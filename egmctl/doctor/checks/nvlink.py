"""NVLink: are the links up, and do their counters show errors?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from egmctl.doctor.check import Check, Scope, failed, gap, needing, passed, skipped, unknown, warned
from egmctl.doctor.situation import NO_GPU, by_value, judged, needs_gpu, usable, virtual
from egmctl.model.finding import Evidence, Finding, Guard, Remedy, on_gpus
from egmctl.model.machine import Driver, Gpu, Machine, NvLink, NvLinkCounters
from egmctl.model.route import LinkKind
from egmctl.topology.links import has_no_nvlink, nvlinks_of, without_speed
from egmctl.topology.platform import C2c, c2c
from egmctl.units import format_kernel_list

STATE = "nvmlDeviceGetNvLinkState"
NO_NVLINK = "no GPU has NVLink"
RESET = Remedy(
    text="Drain the node and reset the GPU; if the link stays down, inspect or replace the GPU, board or cable.",
    command="nvidia-smi nvlink -s",
)
SWITCHES = Remedy(
    text="Check the NVSwitches in the fabric manager's log, then reset all GPUs and switches together.",
    command="nvidia-smi nvlink -s",
)
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


@needing(needs_gpu)
def _links(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus = usable(machine, scope.gpus_of(machine))
    for why, group in by_value(gpus, _unread_states):
        if why:
            yield unknown(f"the state of the NVLinks was not read ({why})", place=on_gpus(group))
    told = [gpu for gpu in gpus if not _unread_states(gpu)]
    usual: dict[str | None, int] = {}
    for gpu in machine.gpus or ():
        # GPUs of another product have another number of links.
        usual[gpu.name] = max(usual.get(gpu.name, 0), _up(gpu))
    if unconnected := tuple(gpu for gpu in told if usual[gpu.name] == 0):
        alone = not any(nvlinks_of(gpu) for gpu in machine.gpus or ())
        yield from _all_down(machine, tuple(gpu for gpu in unconnected if alone or _is_to_have(machine, gpu)))
    connected = (gpu for gpu in told if usual[gpu.name] > 0)
    for (count, most, wired), group in by_value(
        connected, lambda gpu: (_up(gpu), usual[gpu.name], _wired(machine, gpu))
    ):
        expected = max(most, wired or 0)
        if count < expected:
            by_product = (
                f"a {group[0].name} on NVSwitches has {expected} ({_SOURCES[expected]}); a switch that is down takes "
                "links of every GPU"
            )
            yield failed(
                f"{count} of {expected} NVLinks are active",
                RESET if count < most else SWITCHES,
                place=on_gpus(group),
                evidence=tuple(_inactive(gpu) for gpu in group),
                cause="other GPUs of this node have more active links" if count < most else by_product,
            )
        else:
            yield from _as_usual(count, group, lacking=wired is None and _is_switched(group[0]))


def _unread_states(gpu: Gpu) -> str:
    """Return why it is not known which of a GPU's links are up; empty where it is."""
    if has_no_nvlink(gpu):
        return ""
    listed = gap(gpu.nvml, "nvlinks")
    return listed or next((why for link in nvlinks_of(gpu) if (why := _unread_state(link))), "")


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


def _as_usual(count: int, gpus: tuple[Gpu, ...], *, lacking: bool) -> Iterator[Finding]:
    """Judge GPUs with as many links up as their siblings.

    Parameters
    ----------
    lacking
        That some are unused may be a fault: they lead to switches, and nobody says how many should.
    """
    stopped = tuple(gpu for gpu in gpus if LinkKind.NVLINK in without_speed(gpu))
    if stopped:
        yield warned(
            "NVML calls NVLinks active at 0 MB/s",
            RESET,
            place=on_gpus(stopped),
            evidence=tuple(
                Evidence(
                    source=f"NVML_FI_DEV_NVLINK_GET_SPEED(GPU{gpu.index})",
                    value=f"0 MB/s: {format_kernel_list(set(without_speed(gpu)[LinkKind.NVLINK]))}",
                )
                for gpu in stopped
            ),
            cause="a link that is trained has a speed: one of NVML's two answers is wrong",
        )
    silent = tuple(gpu for gpu in gpus if gpu not in stopped and _in_state(gpu, "active-traffic-disabled"))
    if silent:
        yield warned(
            "NVLinks are up, but their traffic is disabled",
            Remedy(
                text="Check these links in the fabric manager's log, then reset the GPU.",
                command="nvidia-smi nvlink -s",
            ),
            place=on_gpus(silent),
            evidence=tuple(_state_evidence(gpu, "active-traffic-disabled") for gpu in silent),
            cause="NVML_NVLINK_STATE_ACTIVE_TRAFFIC_DISABLED (nvml.h); when the driver does so is not documented",
        )
    well = tuple(gpu for gpu in gpus if gpu not in (*silent, *stopped))
    if not well:
        return
    part = max((gpu.nvml.nvlink_count or 0) for gpu in well if gpu.nvml)
    if lacking and part > count:
        yield unknown(
            f"{count} of {part} NVLinks are active on every GPU: whether the board leaves some out is unknown",
            place=on_gpus(well),
            evidence=tuple(_inactive(gpu) for gpu in well),
        )
        return
    notes = [f"the GPU has {part}; {part - count} are unused on every GPU"] if part > count else []
    if asleep := [gpu for gpu in well if _in_state(gpu, "sleep")]:
        notes.append(f"{on_gpus(asleep).label}: links asleep to save power, they wake by traffic")
    yield passed(
        f"{count} NVLinks are active",
        place=on_gpus(well),
        evidence=(Evidence(source=STATE, value=f"{count} of {part} links active"),),
        note="; ".join(notes),
    )


def _up(gpu: Gpu) -> int:
    """Return how many of a GPU's links are trained: one that sleeps is."""
    return sum(bool(link.active) or link.link_state == "sleep" for link in nvlinks_of(gpu))


def _in_state(gpu: Gpu, state: str) -> list[int]:
    return [link.link for link in nvlinks_of(gpu) if link.link_state == state and 0 <= link.link < 1 << 10]


def _state_evidence(gpu: Gpu, state: str) -> Evidence:
    links = format_kernel_list(set(_in_state(gpu, state)))
    return Evidence(source=f"NVML_FI_DEV_NVLINK_GET_STATE(GPU{gpu.index})", value=f"{state}: {links}")


def _is_to_have(machine: Machine, gpu: Gpu) -> bool:
    """Say whether links of a GPU are to be up: it has some, or is of a board that never goes without."""
    return bool(nvlinks_of(gpu)) or _is_of_board(machine, gpu)


def _is_of_board(machine: Machine, gpu: Gpu) -> bool:
    """Say whether a GPU is of a product with links to switches; a Grace GPU alone may be a workstation's, without."""
    siblings = sum(other.name == gpu.name for other in machine.gpus or ())
    return gpu.name in _PRODUCTS and (siblings > 1 or c2c(machine, gpu) is C2c.ABSENT)


def _all_down(machine: Machine, gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    """Judge GPUs of which none of a product has a link that is up."""
    groups = by_value(
        gpus, lambda gpu: (_is_of_board(machine, gpu), bool(nvlinks_of(gpu)), _none_by_design(machine, gpu))
    )
    for (known, listed, why), group in groups:
        place, evidence = on_gpus(group), tuple(_inactive(gpu) for gpu in group)
        states = {gpu.nvml.fabric.state for gpu in group if gpu.nvml and gpu.nvml.fabric}
        switched = listed and bool(machine.switches or states & {"not-started", "in-progress", "completed"})
        if all(gpu.nvml and gpu.nvml.mig_mode for gpu in group):
            yield skipped("no NVLink is active, and MIG is on: its instances have no peers", place=place)
        elif known and why:
            yield warned(
                "no NVLink is active",
                Remedy(
                    text="Where that is not meant, undo it: the module's parameters, the bandwidth mode, or the fabric "
                    "manager's partition of the virtual machine.",
                    command=RESET.command,
                ),
                place=place,
                evidence=evidence,
                cause=why,
            )
        elif known or (switched and not why):
            yield failed(
                "no NVLink is active, though these GPUs belong on NVSwitches",
                Remedy(
                    text="See fabric.manager and fabric.state: the fabric manager brings the links up.",
                    command=RESET.command,
                ),
                place=place,
                evidence=evidence,
            )
        elif listed:
            yield skipped(f"no NVLink is active: {why}" if why else "no NVLink is connected", place=place)
        else:
            yield skipped(NO_NVLINK)


def _none_by_design(machine: Machine, gpu: Gpu) -> str:
    """Return what takes away all links of a GPU, where something is known to; empty else."""
    driver = machine.driver or Driver()
    if (driver.module_parameters or {}).get("NvLinkDisable", "0") not in ("0", ""):
        return "a module parameter disables NVLink (nvlink.disabled)"
    if "off" in ((gpu.nvml.nvlink_bandwidth_mode if gpu.nvml else None), driver.nvlink_bandwidth_mode):
        return "NVLink's bandwidth mode is OFF (nvlink.bw-mode)"
    if virtual(machine):
        one = len(machine.gpus or ()) == 1
        state = gpu.nvml.fabric.state if gpu.nvml and gpu.nvml.fabric else None
        if one or state in (None, "not-supported"):
            return f"this virtual machine has {'one GPU, without peers' if one else 'a partition without NVLinks'}"
    # A100 has NVLinks and no fabric that its driver could probe.
    probed = gpu.nvml is not None and (gpu.nvml.compute_capability or (9, 0)) >= (9, 0)
    if probed and gpu.nvml and gpu.nvml.fabric and gpu.nvml.fabric.state == "not-supported":
        return "the fabric is disabled: the driver calls it not supported"
    return ""


def _inactive(gpu: Gpu) -> Evidence:
    if not nvlinks_of(gpu):
        return Evidence(source=f"NVML_FI_DEV_NVLINK_LINK_COUNT(GPU{gpu.index})", value="0")
    down = format_kernel_list({link.link for link in nvlinks_of(gpu) if not link.active and 0 <= link.link < 1 << 10})
    return Evidence(source=f"{STATE}(GPU{gpu.index})", value=f"inactive: {down or 'none'}")


def _errors(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus = usable(machine, scope.gpus_of(machine))
    if all(has_no_nvlink(gpu) for gpu in gpus):
        yield skipped(NO_NVLINK if gpus else NO_GPU)
    yield from judged(gpus, _errors_of, on_gpus)


def _errors_of(gpu: Gpu) -> Finding | None:
    links = nvlinks_of(gpu)
    if bad := [link for link in links if _is_bad(link)]:
        return _bad_signal(gpu, bad)
    if recoveries := sum(_recoveries(link) or 0 for link in links):
        return _retrained(gpu, recoveries)
    if has_no_nvlink(gpu):
        return None
    if not links or any(map(_lacks_counters, links)):
        return unknown("NVML does not report all error counters of the NVLinks")
    if not any(_corrected(link) for link in links):
        return passed("no NVLink errors")
    return passed(
        "no NVLink retrains",
        evidence=_counters(gpu, links),
        note="only a fast rise matters: DCGM fails a Blackwell link whose effective or symbol errors rise within a "
        "minute"
        if any(link.counters for link in links)
        else "the link corrected CRC errors and replays; only a fast rise matters",
    )


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
    counted = link.counters or NvLinkCounters()
    return bool(counted.failed_recoveries) or (counted.effective_ber or 0.0) > MAX_EFFECTIVE_BER


def _bad_signal(gpu: Gpu, links: list[NvLink]) -> Finding:
    numbers = format_kernel_list({link.link for link in links if 0 <= link.link < 1 << 10})
    lost = any(link.counters and link.counters.failed_recoveries for link in links)
    what = "could not be recovered" if lost else f"have an effective bit error rate above {MAX_EFFECTIVE_BER:g}"
    return failed(
        f"NVLinks {what} (links {numbers})",
        Remedy(
            text="Drain the node, inspect or replace the cable, cartridge or board of these links, and reset the GPU.",
            command="nvidia-smi nvlink -e",
        ),
        evidence=_counters(gpu, links),
        cause="NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS: the link lost its signal for good"
        if lost
        else "DCGM 4.6 fails a link of Blackwell from this rate on (DcgmHealthWatch.cpp)",
    )


def _retrained(gpu: Gpu, recoveries: int) -> Finding:
    return warned(
        f"{recoveries} NVLink retrains since the driver was loaded",
        Remedy(
            text="Watch whether the count rises under load; if it does, inspect or replace the GPU, its board or the "
            "cable.",
            command="nvidia-smi nvlink -e",
        ),
        evidence=_counters(gpu, [link for link in nvlinks_of(gpu) if _recoveries(link) or _corrected(link)]),
        cause="a link that loses its signal carries no traffic until it is retrained",
    )


def _recoveries(link: NvLink) -> int | None:
    """Return how often a link was retrained, by the counter that its generation has."""
    if link.counters is not None:
        return link.counters.recoveries
    return link.recovery_errors


def _corrected(link: NvLink) -> int | None:
    """Return the errors of a link that cost no retraining."""
    counted = link.counters
    if counted is not None:
        names = (*_PACKET_COUNTERS, "effective_errors", "symbol_errors")
        values: Iterable[int | None] = (getattr(counted, name) for name in names)
    else:
        values = (link.crc_errors, link.replay_errors)
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _counters(gpu: Gpu, links: Iterable[NvLink]) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(source=f"link {link.link} of GPU{gpu.index}", value=_words(link))
        for link in links
        if _recoveries(link) or _corrected(link) or _is_bad(link)
    )


def _words(link: NvLink) -> str:
    counted = link.counters
    if counted is None:
        return f"{link.crc_errors or 0} CRC, {link.replay_errors or 0} replays, {link.recovery_errors or 0} recoveries"
    parts = [f"{counted.recoveries or 0} recoveries", f"{counted.failed_recoveries or 0} failed"]
    parts += [f"{counted.effective_errors or 0} effective errors", f"BER {_rate(counted.effective_ber)}"]
    parts += [f"{counted.symbol_errors or 0} symbol errors", f"symbol BER {_rate(counted.symbol_ber)}"]
    parts += [f"{value} {name.replace('_', ' ')}" for name in _PACKET_COUNTERS if (value := getattr(counted, name))]
    if worst := [corrected for corrected, codewords in enumerate(counted.fec_history or ()) if codewords]:
        parts.append(f"FEC corrected up to {worst[-1]} symbols of a codeword")
    return ", ".join(parts)


def _rate(value: float | None) -> str:
    return "not read" if value is None else f"{value:.0e}" if value else "<= 1e-254"


FULL = Remedy(
    text="Set the mode to FULL, unless you want to save power.",
    command="nvidia-smi nvlink -sBwMode FULL",
    needs_root=True,
)
ALIKE = Remedy(
    text="Give all GPUs one mode (the fabric manager's, or NVreg_RmNvlinkBandwidth and "
    "NVreg_RmNvlinkBandwidthLinkCount in /etc/modprobe.d), then reset them.",
    command="nvidia-smi nvlink -gBwMode",
    needs_root=True,
)
OFF = "off"


def _bandwidth_mode(machine: Machine, scope: Scope) -> Iterator[Finding]:
    driver = machine.driver or Driver()
    mode = driver.nvlink_bandwidth_mode
    parameter = (driver.module_parameters or {}).get("RmNvlinkBandwidthLinkCount", "0")
    evidence = (
        Evidence(source="nvmlSystemGetNvlinkBwMode", value=mode or "not read"),
        Evidence(source="/proc/driver/nvidia/params: RmNvlinkBandwidthLinkCount", value=parameter),
    )
    if not any(nvlinks_of(gpu) for gpu in machine.gpus or ()):
        yield skipped(NO_NVLINK)
        return
    gpus = usable(machine, scope.gpus_of(machine))
    told = tuple(gpu for gpu in gpus if gpu.nvml and gpu.nvml.nvlink_bandwidth_mode)
    unread = [gpu for gpu in gpus if gpu not in told and gap(gpu.nvml, "nvlink_bandwidth_mode", newer=True)]
    if unread:
        yield unknown("NVML did not report the bandwidth mode of these GPUs", place=on_gpus(unread), evidence=evidence)
    if told:
        yield from _of_gpus(told, evidence)
    elif unread and mode in (None, "full"):
        return
    elif mode == OFF:
        yield failed("NVLink's bandwidth mode is OFF: GPUs have no P2P over NVLink", FULL, evidence=evidence)
    elif mode not in (None, "full") or parameter not in ("0", ""):
        yield warned(
            f"the NVLinks are set to less than their bandwidth ({mode or f'{parameter} links'})",
            FULL
            if mode not in (None, "full")
            else Remedy(
                text="Take NVreg_RmNvlinkBandwidthLinkCount out of /etc/modprobe.d and reload the driver.",
                needs_root=True,
            ),
            evidence=evidence,
        )
    elif mode is None:
        why = driver.unread.get("nvlink_bandwidth_mode")
        tell = skipped if why and why.reason.value in ("not-supported", "driver-too-old") else unknown
        yield tell("NVML does not report a bandwidth mode", evidence=evidence)
    elif driver.module_parameters is None:
        yield unknown("/proc/driver/nvidia/params was not read: it may leave out links", evidence=evidence)
    else:
        yield passed("the NVLinks run at full bandwidth", evidence=evidence)


def _of_gpus(gpus: tuple[Gpu, ...], evidence: tuple[Evidence, ...]) -> Iterator[Finding]:
    """Judge the modes that GPUs have each for themselves, from Blackwell on."""
    modes = [(gpu, gpu.nvml.nvlink_bandwidth_mode or "") for gpu in gpus if gpu.nvml]
    best = {gpu.bus_id: gpu.nvml.nvlink_bandwidth_best for gpu in gpus if gpu.nvml}
    found = (
        *evidence,
        *(
            Evidence(
                source=f"nvmlDeviceGetNvlinkBwMode(GPU{gpu.index})",
                value=f"{mode}{', the best it can' if best[gpu.bus_id] else ''}",
            )
            for gpu, mode in modes
        ),
    )
    if len({mode for _, mode in modes}) > 1:
        yield failed(
            "the GPUs' NVLinks are in different bandwidth modes",
            ALIKE,
            place=on_gpus(gpus),
            evidence=found,
            cause="between GPUs of different modes the driver refuses imports and multicast ('bwMode does not match', "
            "open-gpu-kernel-modules, mem_fabric_import_v2.c, mem_multicast_fabric.c)",
        )
        return
    mode_of = {gpu.bus_id: mode for gpu, mode in modes}
    for (mode, is_best), group in by_value(gpus, lambda gpu: (mode_of[gpu.bus_id], best[gpu.bus_id])):
        if mode == OFF:
            yield failed(
                "NVLink's bandwidth mode is OFF: these GPUs have no P2P over NVLink",
                ALIKE,
                place=on_gpus(group),
                evidence=found,
                cause="the driver reports that P2P is not supported, and logs nothing (open-gpu-kernel-modules, "
                "kernel_nvlink.c)",
            )
        elif mode == "full" or is_best:
            note = "" if mode == "full" else f"{mode} is the most that the GPUs and their fabric can do"
            yield passed("the NVLinks run at full bandwidth", place=on_gpus(group), evidence=found, note=note)
        else:
            yield warned(
                f"the NVLinks are set to less than their bandwidth ({mode})",
                ALIKE,
                place=on_gpus(group),
                evidence=found,
            )


def _disabled(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    parameters = (machine.driver or Driver()).module_parameters
    if parameters is None:
        yield unknown("/proc/driver/nvidia/params was not read")
        return
    value = parameters.get("NvLinkDisable", "0")
    evidence = (Evidence(source="/proc/driver/nvidia/params: NvLinkDisable", value=value),)
    if value not in ("0", ""):
        yield failed(
            "a module parameter disables NVLink",
            Remedy(
                text="Take NVreg_NvLinkDisable=1 out of /etc/modprobe.d and reload the driver.",
                needs_root=True,
                needs_reboot=True,
            ),
            evidence=evidence,
        )
    else:
        yield passed("NVLink is not disabled", evidence=evidence)


CHECKS = (
    Check("nvlink.links", _links, guards=(Guard.P2P, Guard.FABRIC, Guard.EGM), sections=("gpus",)),
    Check("nvlink.errors", _errors, guards=(Guard.P2P, Guard.PERF), sections=("gpus",)),
    Check("nvlink.bw-mode", _bandwidth_mode, guards=(Guard.PERF, Guard.P2P, Guard.FABRIC), sections=("gpus", "driver")),
    Check("nvlink.disabled", _disabled, guards=(Guard.P2P, Guard.EGM, Guard.FABRIC), sections=("driver",)),
)
