"""What the kernel logged while a bench ran, for its views: the device, the number, whose fault, what to do."""

from __future__ import annotations

from collections.abc import Iterator

from egmctl.doctor.kernel_faults import KernelFault, kernel_faults
from egmctl.doctor.xids import Blame
from egmctl.model.finding import Status
from egmctl.model.measurement import RunReport


def faults(report: RunReport) -> list[KernelFault]:
    """Return what was logged, by device and kind, the gravest first."""
    logged = report.kernel_messages
    if logged is None or not logged.events or not report.machines:
        return []
    # Under MPI it is the log of rank 0's node, whose machine is the first.
    return sorted(kernel_faults(report.machines[0], logged.events), key=lambda fault: list(Status).index(fault.status))


def grave(report: RunReport) -> list[KernelFault]:
    """Return what calls for an operator."""
    return [fault for fault in faults(report) if fault.status is not Status.PASS]


def logged(fault: KernelFault) -> str:
    """Return what the kernel logged while the bench ran, for a line of its own."""
    return f"logged by the kernel meanwhile: {_named(fault)}"


def _named(fault: KernelFault) -> str:
    """Return ``GPU2: Xid 79, GPU fell off the bus, 2 times (hardware)``."""
    blame = "" if fault.blame is Blame.UNKNOWN else f" ({fault.blame.value})"
    return f"{fault.title}{fault.times}{blame}"


def kernel_sentences(report: RunReport) -> Iterator[str]:
    """Yield a sentence with what to do for each fault that calls for an operator."""
    for fault in grave(report):
        yield f"{logged(fault)}. {fault.remedy.text}"


def kernel_line(report: RunReport) -> str | None:
    """Say in one sentence what else the log held, or why it was not read; ``None`` where not read."""
    logged = report.kernel_messages
    if logged is None:
        return None
    if logged.unread is not None:
        return f"Kernel log while it ran: unknown ({logged.unread.detail or logged.unread.reason.value})."
    harmless = [_named(fault) for fault in faults(report) if fault.status is Status.PASS]
    more = [f"{logged.left_out} more were not kept"] if logged.left_out else []
    lost = ["lines were overwritten before they were read"] if logged.overwritten else []
    told = "; ".join([*harmless, *more, *lost])
    if told:
        return f"Kernel log while it ran: {told}."
    return None if grave(report) else "Kernel log while it ran: no Xid, SXid, PCIe error or fault of the driver."
