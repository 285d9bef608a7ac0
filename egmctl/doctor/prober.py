"""The command's side of a probing process, which may crash or hang: it starts it, sends orders, and says how it ended.

:mod:`egmctl.doctor.probe_orders` is the process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from egmctl import launch
from egmctl.errors import ChildFailed
from egmctl.launch import Message, close_all
from egmctl.model.probes import Probe, ProbeKind, ProbeOutcome

START_TIMEOUT_S = 30.0
"""The timeout for starting CUDA, which takes about a second with 8 GPUs, much longer while the driver resets one."""
PROBE_TIMEOUT_S = 10.0
"""The timeout for an order, which takes milliseconds."""


class Prober:
    """A probing process. The constructor starts it without waiting for CUDA; :meth:`ask` restarts it if it is lost.

    Parameters
    ----------
    options
        The options of :class:`egmctl.launch.Child`.

    Attributes
    ----------
    is_lost
        Whether the process ended or hangs, or its context fails every call. The next order goes to a new process.

    Raises
    ------
    ChildFailed
        The process cannot be started.
    """

    def __init__(self, **options: Any) -> None:
        self._options = options
        self._is_ended = False
        self._start()

    def _start(self) -> None:
        self._child = launch.Child("egmctl.doctor.probe_orders:serve", {}, grace_s=0, **self._options)
        self._answers_due = 1
        self.is_lost = False
        if self._is_ended:
            # Another thread ended it while it was started again.
            self._child.kill_soon()

    def open_context(self, gpu: str) -> None:
        """Tell the process to open a context, without waiting."""
        self._send({"do": "open_context", "gpu": gpu}, ())
        self._answers_due += 1

    def ask(self, order: Message, fds: Sequence[int] = ()) -> tuple[Message, list[int]]:
        """Send an order and return the response and its descriptors, which the caller closes.

        If the order failed, ``failed`` in the response has the outcome as fields of a :class:`Probe`.
        """
        try:
            if self.is_lost:
                self._start()
            while self._answers_due:
                self._child.receive(START_TIMEOUT_S)
                self._answers_due -= 1
            self._send(order, fds)
            answer, received = self._child.receive(PROBE_TIMEOUT_S)
        except ChildFailed as error:
            self._lose()
            return {"failed": end_of(error)}, []
        if "failed" in answer:
            answer["failed"]["outcome"] = ProbeOutcome(answer["failed"]["outcome"])
            if answer["is_broken"]:
                self._lose()
        return answer, received

    def _lose(self) -> None:
        self.is_lost = True
        self.close()

    def kill_soon(self) -> None:
        """Kill the process for good without waiting for its end: :meth:`close` waits. Any thread may call it."""
        self._is_ended = True
        self._child.kill_soon()

    def close(self) -> None:
        """End the process."""
        self._child.close()

    def _send(self, order: Message, fds: Sequence[int]) -> None:
        # If the process is gone, the next receive reports why.
        with contextlib.suppress(launch.ChannelClosed, TimeoutError):
            self._child.channel.send(order, fds, timeout_s=PROBE_TIMEOUT_S)


def attempt_probe(probe: Probe, processes: Sequence[Prober], visible: Sequence[str] = ()) -> Probe:
    """Run a probe and return it with its outcome.

    Parameters
    ----------
    processes
        The process, or those of the owner and the importer.
    visible
        The GPUs for which host memory is mapped.
    """
    steps = _STEPS.get(probe.kind, ("export", "open_exported", "verify"))
    message: Message = {"kind": probe.kind, "gpus": probe.gpus, "node": probe.numa_node, "nic": probe.nic}
    message |= {"visible": list(visible), "registration": probe.registration}
    fds: list[int] = []
    for number, step in enumerate(steps):
        # The owner and the importer take turns.
        gpu = probe.gpus[number % 2]
        answer, received = processes[number % 2].ask({**message, "do": step, "gpu": gpu}, fds)
        close_all(fds)
        if failed := answer.get("failed"):
            return replace(probe, by=gpu, **failed)
        message |= answer
        fds = received
    return replace(probe, outcome=ProbeOutcome.OK)


_STEPS = {
    ProbeKind.HOST_NUMA: ("try_host_memory",),
    ProbeKind.DEVICE_POOL: ("try_device_pool",),
    ProbeKind.LOCATION_POOL: ("try_location_pool",),
    ProbeKind.MANAGED_IPC: ("try_managed",),
    ProbeKind.P2P: ("try_peer",),
    ProbeKind.DMA_BUF: ("register",),
    ProbeKind.PIDFD: ("identify", "take_descriptor"),
}
"""The orders of a probe, which are methods of :class:`egmctl.doctor.probe_orders.Orders`, by kind.

All other kinds share memory or an event.
"""


def end_of(error: ChildFailed) -> Message:
    """Return the fields of a probe whose process failed to start, crashed or timed out."""
    if error.how == "raised":
        return failed_call(**error.details, detail=str(error))
    outcome = ProbeOutcome.TIMED_OUT if error.how == "timed-out" else ProbeOutcome.CRASHED
    return {"outcome": outcome, "call": error.last_call, "detail": str(error)}


def failed_call(
    call: str | None = None, number: int | None = None, name: str | None = None, detail: str = "", **_more: Any
) -> Message:
    """Return the fields of a probe whose call failed with a CUresult or an errno."""
    return {"outcome": ProbeOutcome.ERROR, "call": call, "error_number": number, "error_name": name, "detail": detail}
