"""NVLink-C2C between a Grace CPU and its GPUs: is it up, and does it count errors?"""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.doctor.check import Check, Scope, failed, gap, passed, skipped, unknown, warned
from egmctl.doctor.situation import NO_COHERENT_GPU, NO_GPU, NOT_COHERENT, by_value, coherent, coherent_gpus, usable
from egmctl.model.finding import Evidence, Finding, Guard, Remedy, on_gpus
from egmctl.model.machine import Gpu, Machine
from egmctl.model.route import LinkKind
from egmctl.topology.links import without_speed
from egmctl.topology.platform import C2c, c2c
from egmctl.units import format_kernel_list, several


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
                    text="Power-cycle the node; if it persists, replace the superchip.",
                    command="nvidia-smi c2c -s",
                ),
                place=on_gpus(down),
                evidence=tuple(_c2c_evidence(gpu) for gpu in down),
            )
            yield from _c2c_up(tuple(gpu for gpu in gpus if gpu not in down))
        elif state is C2c.UP:
            yield from _c2c_up(gpus)
        elif state is C2c.UNKNOWN:
            yield unknown("NVML does not report the state of NVLink-C2C", place=on_gpus(gpus))


def _c2c_inactive(gpu: Gpu) -> bool:
    return any(link.active is False for link in (gpu.nvml.c2c_links if gpu.nvml else None) or ())


def _c2c_up(gpus: tuple[Gpu, ...]) -> Iterator[Finding]:
    good = []
    for gpu in gpus:
        links = (gpu.nvml.c2c_links if gpu.nvml else None) or ()
        errors = sum(link.errors or 0 for link in links)
        if errors:
            yield warned(
                f"NVLink-C2C has counted {several(errors, 'error')}",
                Remedy(
                    text="Watch whether the count rises; if it does, inspect or replace the superchip.",
                    command="nvidia-smi c2c -s",
                ),
                place=on_gpus([gpu]),
                evidence=tuple(
                    Evidence(source=f"NVML_FI_DEV_C2C_LINK_ERROR_INTR, link {link.link}", value=str(link.errors))
                    for link in links
                    if link.errors
                ),
            )
        elif stopped := without_speed(gpu).get(LinkKind.C2C):
            yield warned(
                "NVML calls links of NVLink-C2C active at 0 MB/s",
                Remedy(text="Update the driver; if it persists, replace the superchip.", command="nvidia-smi c2c -s"),
                place=on_gpus([gpu]),
                evidence=(
                    Evidence(
                        source=f"NVML_FI_DEV_C2C_LINK_GET_MAX_BW(GPU{gpu.index})",
                        value=f"0 MB/s: {format_kernel_list(set(stopped))}",
                    ),
                ),
                cause="a link that is up has a rate: one of NVML's two answers is wrong",
            )
        elif unread := _unread(gpu):
            yield unknown(f"NVML did not report {unread}", place=on_gpus([gpu]))
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


def _unread(gpu: Gpu) -> str:
    """Return what was not read of a GPU's links, and why; empty where all was."""
    if why := gap(gpu.nvml, "c2c_links"):
        return f"the links of NVLink-C2C ({why})"
    names = {"active": "the state", "max_rate_mb_s": "the rate", "errors": "the errors"}
    links = (gpu.nvml.c2c_links if gpu.nvml else None) or ()
    found = ((what, gap(link, name)) for name, what in names.items() for link in links)
    return next((f"{what} of NVLink-C2C's links ({why})" for what, why in found if why), "")


def _c2c_evidence(gpu: Gpu) -> Evidence:
    links = (gpu.nvml.c2c_links if gpu.nvml else None) or ()
    return Evidence(
        source=f"NVML_FI_DEV_C2C_LINK_GET_STATUS(GPU{gpu.index})",
        value=f"{sum(bool(link.active) for link in links)} of {len(links)} links active",
    )


CHECKS = (Check("c2c.link", _c2c, guards=(Guard.EGM, Guard.PERF), sections=("gpus",)),)
