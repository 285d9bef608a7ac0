"""NVLink-C2C between a Grace CPU and its GPUs: is it up, and does it count errors?"""

from __future__ import annotations

from egmctl.doctor.check import Scope, Verdicts, about, check, skip
from egmctl.doctor.findings import fact, failed, gap, passed, todo, unknown, warned
from egmctl.doctor.situation import NOT_COHERENT, coherent
from egmctl.doctor.subject import usable_coherent_gpus
from egmctl.model.finding import Guard
from egmctl.model.machine import Gpu, Machine
from egmctl.model.route import LinkKind
from egmctl.topology.links import without_speed
from egmctl.topology.platform import C2c, c2c
from egmctl.units import format_kernel_list, several


@check("c2c.link", Guard.EGM, Guard.PERF)
def _c2c(machine: Machine, scope: Scope) -> Verdicts:
    if coherent(machine) is False:
        skip(NOT_COHERENT)
    for gpu in usable_coherent_gpus(machine, scope):
        yield from about(gpu, _judge(machine, gpu))


def _judge(machine: Machine, gpu: Gpu) -> Verdicts:
    state, links = c2c(machine, gpu), (gpu.nvml.c2c_links if gpu.nvml else None) or ()
    errors = {link.link: link.errors for link in links if link.errors}
    active = f"{sum(bool(link.active) for link in links)} of {len(links)} links active"
    yield fact(f"NVML_FI_DEV_C2C_LINK_GET_STATUS(GPU{gpu.index})", active)
    yield from (fact(f"NVML_FI_DEV_C2C_LINK_ERROR_INTR, link {link}", count) for link, count in errors.items())
    if state is C2c.DOWN or any(link.active is False for link in links):
        yield failed(
            "NVLink-C2C to the CPU is down" if state is C2c.DOWN else "some links of NVLink-C2C are down",
            todo("Power-cycle the node; if it persists, replace the superchip.", "nvidia-smi c2c -s"),
        )
    elif state is C2c.UNKNOWN:
        yield unknown("NVML does not report the state of NVLink-C2C")
    elif errors:
        yield warned(
            f"NVLink-C2C has counted {several(sum(errors.values()), 'error')}",
            todo("Watch whether the count rises; if it does, inspect or replace the superchip.", "nvidia-smi c2c -s"),
        )
    elif stopped := without_speed(gpu).get(LinkKind.C2C):
        yield fact(f"NVML_FI_DEV_C2C_LINK_GET_MAX_BW(GPU{gpu.index})", f"0 MB/s: {format_kernel_list(set(stopped))}")
        yield warned(
            "NVML calls links of NVLink-C2C active at 0 MB/s",
            todo("Update the driver; if it persists, replace the superchip.", "nvidia-smi c2c -s"),
            cause="a link that is up has a rate: one of NVML's two answers is wrong",
        )
    elif unread := _unread(gpu):
        yield unknown(f"NVML did not report {unread}")
    else:
        saves_power = any(link.power_state for link in links)
        yield passed("NVLink-C2C is up", note="in a low-power state while idle" if saves_power else "")


def _unread(gpu: Gpu) -> str:
    """Return what was not read of a GPU's links, and the reason; empty where all was."""
    if reason := gap(gpu.nvml, "c2c_links"):
        return f"the links of NVLink-C2C ({reason})"
    for name, label in {"active": "the state", "max_rate_mb_s": "the rate", "errors": "the errors"}.items():
        for link in (gpu.nvml.c2c_links if gpu.nvml else None) or ():
            if reason := gap(link, name):
                return f"{label} of NVLink-C2C's links ({reason})"
    return ""
