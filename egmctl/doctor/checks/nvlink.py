"""NVLink and NVLink-C2C: are the links up, and do they carry what they should?"""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.doctor.check import Check, failed, passed, skipped, unknown, warned
from egmctl.doctor.scope import Scope
from egmctl.doctor.situation import (
    NO_COHERENT_GPU,
    NO_GPU,
    NOT_COHERENT,
    by_value,
    coherent,
    coherent_gpus,
    usable,
)
from egmctl.model.finding import Evidence, Finding, Guard, Remedy, on_gpus
from egmctl.model.machine import Driver, Gpu, Machine, NvLink
from egmctl.topology.health import C2c, c2c
from egmctl.topology.links import active_nvlinks
from egmctl.units import format_kernel_list

STATE = "nvmlDeviceGetNvLinkState"
NO_NVLINK = "no GPU has NVLink"
RESET = Remedy(
    text="Drain the node and reset the GPU; if the link stays down, have the GPU, its board or the cable looked at.",
    command="nvidia-smi nvlink -s",
)


def _links(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus = usable(machine, scope.gpus_of(machine))
    told = tuple(gpu for gpu in gpus if active_nvlinks(gpu) is not None)
    all_counts = [active_nvlinks(gpu) or 0 for gpu in machine.gpus or ()]
    if not told:
        yield _nothing_told(gpus)
        return
    if not any(_links_of(gpu) for gpu in told):
        yield skipped(NO_NVLINK)
        return
    usual = max(all_counts)
    if usual == 0:
        yield _all_down(machine, told)
        return
    # Fewer links than the part has are no fault where it is so on every GPU: boards leave some out by design.
    for count, group in by_value(told, lambda gpu: active_nvlinks(gpu) or 0):
        if count < usual:
            yield failed(
                f"{count} of {usual} NVLinks are active",
                RESET,
                place=on_gpus(group),
                evidence=tuple(_inactive(gpu) for gpu in group),
                cause="other GPUs of this node have more",
            )
        else:
            part = max((gpu.nvml.nvlink_count or 0) for gpu in group if gpu.nvml)
            yield passed(
                f"{count} NVLinks are active",
                place=on_gpus(group),
                evidence=(Evidence(source=STATE, value=f"{count} of {part} links active"),),
                note=f"the part has {part}, on all GPUs alike {part - count} are not used" if part > count else "",
            )


def _nothing_told(gpus: tuple[Gpu, ...]) -> Finding:
    if not gpus:
        return skipped(NO_GPU)
    whys = [why for gpu in gpus if gpu.nvml and (why := gpu.nvml.unread.get("nvlinks"))]
    if whys and all(why.reason.value == "not-supported" for why in whys):
        return skipped(NO_NVLINK)
    return unknown("NVML does not report the NVLinks" + (f" ({whys[0].reason.value})" if whys else ""))


def _all_down(machine: Machine, gpus: tuple[Gpu, ...]) -> Finding:
    states = {gpu.nvml.fabric.state for gpu in gpus if gpu.nvml and gpu.nvml.fabric}
    if machine.switches or states & {"not-started", "in-progress", "completed"}:
        return failed(
            "no NVLink is active, and these GPUs are made for a fabric of NVSwitches",
            Remedy(
                text="See fabric.manager and fabric.state: the fabric manager brings the links up.",
                command=RESET.command,
            ),
            place=on_gpus(gpus),
            evidence=tuple(_inactive(gpu) for gpu in gpus),
        )
    return skipped("no NVLink is connected", place=on_gpus(gpus))


def _links_of(gpu: Gpu) -> tuple[NvLink, ...]:
    return (gpu.nvml.nvlinks if gpu.nvml else None) or ()


def _inactive(gpu: Gpu) -> Evidence:
    down = format_kernel_list({link.link for link in _links_of(gpu) if not link.active and 0 <= link.link < 1 << 10})
    return Evidence(source=f"{STATE}(GPU{gpu.index})", value=f"inactive: {down or 'none'}")


def _errors(machine: Machine, scope: Scope) -> Iterator[Finding]:
    gpus = [gpu for gpu in usable(machine, scope.gpus_of(machine)) if _links_of(gpu)]
    if not gpus:
        yield skipped(NO_NVLINK)
        return
    clean: list[Gpu] = []
    noted: list[Gpu] = []
    untold: list[Gpu] = []
    for gpu in gpus:
        recoveries, others = _sum(gpu, "recovery_errors"), _sum(gpu, "crc_errors", "replay_errors")
        if recoveries is None and others is None:
            untold.append(gpu)
        elif recoveries:
            yield warned(
                f"NVLinks were trained anew {recoveries} times since the driver was loaded",
                Remedy(
                    text="Watch whether the count rises under load; if it does, have the GPU, its board or the cable "
                    "looked at.",
                    command="nvidia-smi nvlink -e",
                ),
                place=on_gpus([gpu]),
                evidence=_counters(gpu),
                cause="a link that loses its signal stops all traffic on it until it is trained again",
            )
        else:
            (noted if others else clean).append(gpu)
    if untold:
        yield unknown("NVML does not report the NVLinks' error counters", place=on_gpus(untold))
    if clean:
        yield passed("no NVLink has counted an error", place=on_gpus(clean))
    for gpu in noted:
        yield passed(
            "no NVLink had to be trained anew",
            place=on_gpus([gpu]),
            evidence=_counters(gpu),
            note="CRC errors and replays were corrected by the link; what counts is whether they rise quickly",
        )


def _sum(gpu: Gpu, *names: str) -> int | None:
    values = [value for link in _links_of(gpu) for name in names if (value := getattr(link, name)) is not None]
    return sum(values) if values else None


def _counters(gpu: Gpu) -> tuple[Evidence, ...]:
    return tuple(
        Evidence(
            source=f"link {link.link} of GPU{gpu.index}",
            value=f"{link.crc_errors or 0} CRC, {link.replay_errors or 0} replays, {link.recovery_errors or 0} "
            f"recoveries",
        )
        for link in _links_of(gpu)
        if link.crc_errors or link.replay_errors or link.recovery_errors
    )


def _bandwidth_mode(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    driver = machine.driver or Driver()
    mode = driver.nvlink_bandwidth_mode
    parameter = (driver.module_parameters or {}).get("RmNvlinkBandwidthLinkCount", "0")
    evidence = (
        Evidence(source="nvmlSystemGetNvlinkBwMode", value=mode or "not read"),
        Evidence(source="/proc/driver/nvidia/params: RmNvlinkBandwidthLinkCount", value=parameter),
    )
    if not any(_links_of(gpu) for gpu in machine.gpus or ()):
        yield skipped(NO_NVLINK)
    elif mode not in (None, "full") or parameter not in ("0", ""):
        yield warned(
            f"the NVLinks are set to less than their bandwidth ({mode or f'{parameter} links'})",
            Remedy(
                text="Set the mode back to FULL, unless saving power was meant.",
                command="nvidia-smi nvlink -sBwMode FULL",
                needs_root=True,
            )
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
        yield tell("NVML does not tell a bandwidth mode", evidence=evidence)
    else:
        yield passed("the NVLinks have their full bandwidth", evidence=evidence)


def _disabled(machine: Machine, _scope: Scope) -> Iterator[Finding]:
    parameters = (machine.driver or Driver()).module_parameters
    if parameters is None:
        yield unknown("/proc/driver/nvidia/params was not read")
        return
    value = parameters.get("NvLinkDisable", "0")
    evidence = (Evidence(source="/proc/driver/nvidia/params: NvLinkDisable", value=value),)
    if value not in ("0", ""):
        yield failed(
            "NVLink is turned off by a module parameter",
            Remedy(
                text="Take NVreg_NvLinkDisable=1 out of /etc/modprobe.d and reload the driver.",
                needs_root=True,
                needs_reboot=True,
            ),
            evidence=evidence,
        )
    else:
        yield passed("NVLink is not turned off", evidence=evidence)


def _c2c(machine: Machine, scope: Scope) -> Iterator[Finding]:
    if coherent(machine) is False:
        yield skipped(NOT_COHERENT)
        return
    usable_gpus = usable(machine, scope.gpus_of(machine))
    with_c2c = coherent_gpus(machine, usable_gpus)
    if not with_c2c:
        yield skipped(NO_COHERENT_GPU if usable_gpus else NO_GPU)
    for state, gpus in by_value(with_c2c, lambda gpu: c2c(machine, gpu)):
        if state is C2c.DOWN or any(_c2c_inactive(gpu) for gpu in gpus):
            down = [gpu for gpu in gpus if state is C2c.DOWN or _c2c_inactive(gpu)]
            yield failed(
                "NVLink-C2C to the CPU is down" if state is C2c.DOWN else "some links of NVLink-C2C are down",
                Remedy(
                    text="Power the node off and on; if it stays so, have the superchip replaced.",
                    command="nvidia-smi c2c -s",
                ),
                place=on_gpus(down),
                evidence=tuple(_c2c_evidence(gpu) for gpu in down),
            )
        elif state is C2c.UP:
            yield from _c2c_up(gpus)
        elif state is C2c.UNKNOWN:
            yield unknown("NVML does not tell the state of NVLink-C2C", place=on_gpus(gpus))


def _c2c_inactive(gpu: Gpu) -> bool:
    return any(link.active is False for link in (gpu.nvml.c2c_links if gpu.nvml else None) or ())


def _c2c_up(gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    good = []
    for gpu in gpus:
        links = (gpu.nvml.c2c_links if gpu.nvml else None) or ()
        errors = sum(link.errors or 0 for link in links)
        if errors:
            yield warned(
                f"NVLink-C2C has counted {errors} errors",
                Remedy(
                    text="Watch whether the count rises; if it does, have the superchip looked at.",
                    command="nvidia-smi c2c -s",
                ),
                place=on_gpus([gpu]),
                evidence=tuple(
                    Evidence(source=f"NVML_FI_DEV_C2C_LINK_ERROR_INTR, link {link.link}", value=str(link.errors))
                    for link in links
                    if link.errors
                ),
            )
        else:
            good.append(gpu)
    if good:
        low = [
            gpu for gpu in good if any(link.power_state for link in (gpu.nvml.c2c_links if gpu.nvml else None) or ())
        ]
        yield passed(
            "NVLink-C2C is up",
            place=on_gpus(good),
            evidence=tuple(_c2c_evidence(gpu) for gpu in good),
            note=f"{on_gpus(low).label}: in a low-power state while idle" if low else "",
        )


def _c2c_evidence(gpu: Gpu) -> Evidence:
    links = (gpu.nvml.c2c_links if gpu.nvml else None) or ()
    return Evidence(
        source=f"NVML_FI_DEV_C2C_LINK_GET_STATUS(GPU{gpu.index})",
        value=f"{sum(bool(link.active) for link in links)} of {len(links)} links active",
    )


CHECKS = (
    Check(
        id="nvlink.links",
        title="all NVLinks are up",
        guards=(Guard.P2P, Guard.FABRIC, Guard.EGM),
        sections=("gpus",),
        judge=_links,
        why="Remote EGM, P2P and fabric handles go over NVLink. A GPU with fewer links than its siblings slows every "
        "collective down to its own speed, and its fabric may refuse to register it.",
        read="nvmlDeviceGetNvLinkState of each link, against the GPU of the node that has the most. Links that no GPU "
        "uses are left out by the board's design.",
        fix="Drain the node, reset the GPU; if that does not help it is the hardware.",
    ),
    Check(
        id="nvlink.errors",
        title="NVLink error counters",
        guards=(Guard.P2P, Guard.PERF),
        sections=("gpus",),
        judge=_errors,
        why="A link that is trained anew (a recovery) stops its traffic for that long, and a rising count is a link "
        "about to be lost. Single CRC errors and replays are corrected by the link.",
        read="NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY, _CRC and _REPLAY of each link, counted since the driver was "
        "loaded: one look tells no rate. Xids are in the kernel log, which is not read.",
        fix="Compare two looks some minutes apart; where recoveries rise, the hardware wants attention.",
    ),
    Check(
        id="nvlink.bw-mode",
        title="NVLink bandwidth mode",
        guards=(Guard.PERF,),
        sections=("gpus", "driver"),
        judge=_bandwidth_mode,
        why="From Hopper on the NVLinks of a system can be set to half of their bandwidth or less, to save power.",
        read="nvmlSystemGetNvlinkBwMode and the module parameter NVreg_RmNvlinkBandwidthLinkCount.",
        fix="nvidia-smi nvlink -sBwMode FULL as root, while no GPU is used.",
    ),
    Check(
        id="nvlink.disabled",
        title="NVLink is not turned off",
        guards=(Guard.P2P, Guard.EGM, Guard.FABRIC),
        sections=("driver",),
        judge=_disabled,
        why="With the module parameter NVreg_NvLinkDisable=1 the driver brings up no NVLink at all.",
        read="NvLinkDisable in /proc/driver/nvidia/params.",
        fix="Take the option out of /etc/modprobe.d and reload the driver.",
    ),
    Check(
        id="c2c.link",
        title="NVLink-C2C is up",
        guards=(Guard.EGM, Guard.PERF),
        sections=("gpus",),
        judge=_c2c,
        why="Everything between a Grace CPU and its GPU goes over NVLink-C2C, EGM of all other GPUs too.",
        read="NVML: C2C mode, and state, errors and power state of each link (fields 170 to 172 and 231 to 234).",
        fix="Power the node off and on. If it stays so, the superchip has to be replaced.",
    ),
)
