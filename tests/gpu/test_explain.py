"""``egmctl explain -- PROGRAM`` on real GPUs: calls that fail are named, with the driver's own words and causes."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.conftest import Ended, ended
from tests.gpu.commands import started
from tests.gpu.failing import CALLS

pytestmark = pytest.mark.gpu

PROGRAM = Path(__file__).with_name("failing.py")
FAILED = 3
"""What the program ends with after a failed call."""


def explained(name: str) -> Ended:
    return started("explain", "--", sys.executable, PROGRAM, name)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_fails_is_named_and_its_causes_are(name: str) -> None:
    call, number, *_ = name.split()
    done = explained(name)
    assert done.code == FAILED, done.err
    assert re.search(rf"\b{call}\w*\b", done.err), done.err
    assert re.search(rf"\({number}\)", done.err), done.err
    assert "no cause of this error is known" not in done.err


def test_a_program_that_succeeds_says_nothing() -> None:
    done = explained("none")
    assert (done.code, done.out, done.err) == (0, "", "")


def test_without_an_imex_channel_the_first_cause_is_the_channel() -> None:
    if list(Path("/dev/nvidia-caps-imex-channels").glob("channel*")):
        pytest.skip("this node has an IMEX channel")
    assert "no IMEX channel" in explained("cuMemCreate 800").err


def test_a_failed_call_of_egmctl_carries_the_drivers_own_reason() -> None:
    done = ended([sys.executable, "-m", "tests.gpu.programs", "unaligned"])
    assert "cuMemCreate failed: CUDA_ERROR_INVALID_VALUE (1: Requested size not aligned to minimum" in done.err
