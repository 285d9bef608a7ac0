"""The breadcrumb names the calls under way, whatever becomes of the child, and costs next to nothing."""

from __future__ import annotations

import os

import pytest

from egmctl.driver import breadcrumb
from egmctl.launch.channel import memory_file
from tests.launch.start import run, spawn

pytestmark = pytest.mark.processes


def test_outside_a_child_it_does_nothing() -> None:
    breadcrumb.enter("cuInit")
    breadcrumb.leave()


def test_the_call_under_way_can_be_read_at_any_time_and_after_the_end() -> None:
    with spawn("hang") as child:
        child.receive(timeout_s=60)
        assert child.last_call() == "cuCtxCreate"
        os.kill(child.pid, 9)
        assert child.kill()
        assert child.last_call() == "cuCtxCreate"
    assert child.last_call() == "cuCtxCreate"


def test_each_thread_has_its_own_call() -> None:
    with spawn("hang_in_two_threads") as child:
        child.receive(timeout_s=60)
        assert child.last_call() == "cuMemCreate, cuDevicePrimaryCtxRetain"


def test_there_is_no_call_before_the_first_and_after_the_last() -> None:
    with spawn("converse") as child:
        assert child.last_call() is None


def test_a_long_name_is_cut() -> None:
    with memory_file("test") as file:
        trail = breadcrumb.Trail(file.fileno())
        name = b"cu" + b"x" * 100
        os.pwrite(file.fileno(), name[: breadcrumb.SLOT_SIZE - 1], breadcrumb.SLOT_SIZE)
        assert trail.calls() == (name[: breadcrumb.SLOT_SIZE - 1].decode(),)
        trail.close()


def test_it_costs_a_driver_call_less_than_a_few_microseconds() -> None:
    # 0.3 us for the pair where it was written. The bound leaves room for a busy machine.
    assert run("time_breadcrumbs", {"times": 10000}) < 5e-6
