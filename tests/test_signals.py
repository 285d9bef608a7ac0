"""SIGTERM and SIGHUP unwind a command as Ctrl-C does."""

from __future__ import annotations

import os
import signal

import pytest

from egmctl.signals import stopping


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_is_an_interrupt_inside_the_block_only(number: signal.Signals) -> None:
    usual = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), stopping():
        os.kill(os.getpid(), number)
    assert signal.getsignal(number) == usual


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    usual = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopping():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, usual)
