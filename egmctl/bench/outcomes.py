"""Measurements of tasks that a failure ended early."""

from __future__ import annotations

from egmctl.driver.signatures import known_cause
from egmctl.errors import DriverCallError, DriverTooOld, EgmctlError
from egmctl.facts.host import NoPages
from egmctl.gpu.context import ImpossibleTime
from egmctl.gpu.program import NoKernels
from egmctl.model.finding import WaiverKind
from egmctl.model.measurement import Measurement, Status, Task, finish, waived

EXPIRED_LIMIT = 3
"""How often a sample whose gate gave up is taken again."""


class GateExpired(EgmctlError):
    """The gate gave up again and again before the host had queued the work."""

    def __init__(self) -> None:
        super().__init__(f"the host failed {EXPIRED_LIMIT} times to queue the work in time: it is overloaded")


FAILURES = (DriverCallError, NoKernels, NoPages, GateExpired, ImpossibleTime)
"""The errors that end a measurement and not the worker."""


def failure(task: Task, error: Exception) -> Measurement:
    """Return the outcome of a task that one of :data:`FAILURES` ended.

    It is waived where the driver, or this machine, says that it has no such thing.
    """
    if isinstance(error, NoKernels):
        return waived(task, WaiverKind.UNSUPPORTED_ENGINE, str(error))
    if isinstance(error, NoPages):
        return waived(task, WaiverKind.NO_PAGES, str(error))
    if isinstance(error, ImpossibleTime):
        return finish(task, Status.FAILED, reason=str(error), last_call=error.call)
    if not isinstance(error, DriverCallError):
        return finish(task, Status.FAILED, reason=str(error), known_cause=True)
    if isinstance(error, DriverTooOld) or error.name == "CUDA_ERROR_NOT_SUPPORTED":
        return waived(task, WaiverKind.REFUSED, str(error), last_call=error.call)
    if (error.call, error.name) == ("cuDeviceGetByPCIBusId", "CUDA_ERROR_INVALID_DEVICE"):
        return waived(task, WaiverKind.GPU_UNUSABLE, f"CUDA does not see a GPU of this path: {error}")
    cause = known_cause(error)
    return finish(
        task,
        Status.FAILED,
        reason=f"{error}; {cause}" if cause else str(error),
        known_cause=cause is not None,
        last_call=error.call,
    )
