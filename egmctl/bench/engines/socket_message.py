"""Round trips of one byte over a socket between two processes: what of an event's round trip is not the event."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from egmctl.bench.engines.round_trips import Pair, RoundTripEngine
from egmctl.bench.outcomes import FAILURES
from egmctl.bench.processes.exchange import Item
from egmctl.model.measurement import Sample

SILENCE_S = 5.0
"""How long a process waits for a message that takes microseconds, as kernels wait for a flag."""


class Messages(Pair):
    """One byte over a socket between the two processes, and one back."""

    def make(self) -> Item:
        if not self.serves:
            return Item(None)
        here, there = socket.socketpair()
        self._keep(here)
        self.held.own.append(there)
        return Item(None, (there.fileno(),))

    def open(self, offered: Sequence[Item]) -> None:
        if self.serves:
            # The other side has its own copy of its end, and only so is it seen when it closes that.
            self.held.own.pop().close()
        elif self.takes_part:
            self._keep(socket.socket(fileno=os.dup(offered[self.serving].fds[0])))

    def ready(self) -> None:
        # An answer that came after this side had given up would be taken for that to the next message.
        if self.takes_part:
            self._socket.setblocking(False)
            with suppress(OSError):
                while self._socket.recv(1):
                    pass
            self._socket.settimeout(SILENCE_S)

    def run(self) -> Sequence[float] | None:
        laps_ns = []
        try:
            for _ in range(self.laps):
                started = time.perf_counter_ns()
                self._lap()
                laps_ns.append(float(time.perf_counter_ns() - started))
        except FAILURES:
            # The other side waits no longer.
            self._socket.close()
            raise
        except (OSError, EOFError):
            # It is silent or gone; why, it says in the exchange, or whoever started it does.
            return None
        return laps_ns

    def summed_up(self, sample: Sample) -> Sample:
        # The host takes a process off its CPU now and then, for longer than a hundred laps take.
        return replace(sample, latency_ns=sample.p50_ns)

    def begin(self) -> None:
        """Do what comes before the message, on the side that serves."""

    def answer(self) -> None:
        """Do what comes between the two messages, on the other side."""

    def end(self) -> None:
        """Do what comes after the answer, on the side that serves."""

    def _lap(self) -> None:
        if self.serves:
            self.begin()
            self._socket.sendall(b"x")
            self._hear()
            self.end()
        else:
            self._hear()
            self.answer()
            self._socket.sendall(b"x")

    def _hear(self) -> None:
        if not self._socket.recv(1):
            raise EOFError("the peer has closed its end")

    def _keep(self, end: socket.socket) -> None:
        end.settimeout(SILENCE_S)
        self._socket = end
        self.held.own.append(end)


SOCKET = RoundTripEngine(
    caption="a message over a socket", counted="", needs_kernels=False, timed_by_host=True, pair=Messages
)
