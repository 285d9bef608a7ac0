"""The whole vocabulary on a fake node: each kind of memory, engine and pattern is measured, verified and given back."""

from __future__ import annotations

import pytest

from egmctl.bench.registry import CASES
from egmctl.model.measurement import Engine, Quantity, Verification
from tests.bench.test_run import FEW, Bench, bench

pytest_plugins = ["tests.fake.plugin"]

__all__ = ["bench"]

BANDWIDTHS = [case.name for case in CASES if case.quantity is Quantity.BANDWIDTH and case.engine is not Engine.CPU]
NODE = ("bench", "--numa", "1", "--gpus", "0-2", *FEW)


@pytest.mark.parametrize("family", sorted({case.family for case in CASES if case.name in BANDWIDTHS}))
def test_every_bandwidth_is_measured_and_verified_and_everything_given_back(bench: Bench, family: str) -> None:
    names = [case.name for case in CASES if case.family == family and case.name in BANDWIDTHS]
    run = bench(*NODE, *(word for name in names for word in ("--case", name)))
    assert run.code == 0, run.reasons()
    assert set(run.statuses()) == {"ok"}
    assert {m["case"] for m in run.result["measurements"]} == set(names)
    for m in run.result["measurements"]:
        reading = m["engine"] == Engine.SM_READ
        assert m["verification"] == (Verification.CHECKSUM_EVERY_SAMPLE if reading else Verification.GPU_EVERY_SAMPLE)
        assert len(m["flows_gb_s"]) == len(m["flows"]) == len(m["seeds"])
        pageable = "system" in (end["memory"] for flow in m["flows"] for end in (flow["source"], flow["destination"]))
        assert m["gating"] == ("none" if pageable and m["engine"] == Engine.COPY_ENGINE else "kernel")
    assert run.node.leaks() == []
