"""The whole vocabulary on a fake node: each kind of memory, engine and pattern is measured, verified and given back."""

from __future__ import annotations

import pytest

from egmctl.bench.case import End, Processes
from egmctl.bench.engine import ENGINES
from egmctl.bench.processes.worker import engine_for
from egmctl.bench.suites import CASES, FABRIC_CASES
from egmctl.model.measurement import Verification
from egmctl.model.route import MemoryKind
from egmctl.model.task import CPU_ENGINES, Engine, Quantity
from tests.bench.conftest import FEW, Bench
from tests.bench.four import cases

BANDWIDTHS = [
    case.name
    for case in CASES
    if case.quantity is Quantity.BANDWIDTH
    and case.engine not in CPU_ENGINES
    and case.processes is Processes.ONE
    and MemoryKind.HUGETLB not in (case.source, case.destination)
]
"""Of one process: those of several have their own tests. Huge pages are the kernel's: ``test_pages.py``."""
NODE = ("bench", "--numa", "1", "--gpus", "1-3", *FEW)
"""Two of these GPUs have that node as their own."""


@pytest.mark.long
@pytest.mark.parametrize("family", sorted({case.family for case in CASES if case.name in BANDWIDTHS}))
def test_every_bandwidth_is_measured_and_verified_and_everything_given_back(bench: Bench, family: str) -> None:
    names = [case.name for case in CASES if case.family == family and case.name in BANDWIDTHS]
    run = bench(*NODE, *cases(*names))
    assert run.code == 0, run.reasons()
    assert set(run.statuses()) == {"ok"}
    assert {m["case"] for m in run.measurements} == set(names)
    for m in run.measurements:
        reading = m["engine"] == Engine.SM_READ
        assert m["verification"] == (Verification.CHECKSUM_EVERY_SAMPLE if reading else Verification.GPU_EVERY_SAMPLE)
        assert len(m["flows_gb_s"]) == len(m["flows"]) == len(m["seeds"])
        kinds = {end["memory"] for flow in m["flows"] for end in (flow["source"], flow["destination"])}
        # Copies of pageable memory, from host memory to host memory, and staged ones may come back when they are done.
        staged = any(flow["route"]["staged"] for flow in m["flows"])
        blocking = bool({"system", "managed"} & kinds) or kinds == {"host-numa"} or staged
        assert m["gating"] == ("none" if blocking and m["engine"] == Engine.COPY_ENGINE else "kernel")
    assert run.node.leaks() == []


ALL_CASES = (*CASES, *FABRIC_CASES)


@pytest.mark.parametrize("engine", Engine)
def test_every_engine_is_there_and_says_what_it_counts_if_it_measures_a_bandwidth(engine: Engine) -> None:
    assert ENGINES[engine].caption
    assert callable(engine_for(engine))
    bandwidths = [case.name for case in ALL_CASES if case.engine is engine and case.quantity is Quantity.BANDWIDTH]
    assert bool(ENGINES[engine].counted) == bool(bandwidths)


def test_every_case_says_what_it_does() -> None:
    assert all(case.description for case in ALL_CASES)


@pytest.mark.parametrize(
    ("engines", "ends"),
    [
        ((Engine.COPY_ENGINE, Engine.SM_COPY, Engine.BULK), {End.SOURCE, End.DESTINATION}),
        ((Engine.SM_READ,), {End.SOURCE}),
        ((Engine.SM_WRITE, Engine.ATOMIC), {End.DESTINATION}),
    ],
)
def test_the_cases_have_memory_where_their_engine_moves_bytes(engines: tuple[Engine, ...], ends: set[End]) -> None:
    for case in (case for case in ALL_CASES if case.engine in engines):
        kinds = {End.SOURCE: case.source, End.DESTINATION: case.destination}
        assert {end for end, kind in kinds.items() if kind is not MemoryKind.REGISTERS} == ends, case.name
