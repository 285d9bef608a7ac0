"""Routes: typed from the plan to the view, the same after JSON, and read from documents that had them as sentences."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from egmctl.comparison import compare
from egmctl.comparison.paths import default_spread
from egmctl.model.codec import from_json, to_json
from egmctl.model.measurement import RunReport
from egmctl.model.profile import Reference, Unit
from egmctl.model.record import Command
from egmctl.model.route import HOST_MEMORY, Carrier, Egm, Hop, LinkClass, LinkKind, MemoryKind, Route, UcxRoute
from egmctl.report.kinds import BENCH, Format
from egmctl.report.views.machine import route_words
from egmctl.saved import Saved
from egmctl.verdict.judge import with_verdict
from egmctl.verdict.profiles import load_profile
from tests.answers import render
from tests.bench.routes import C2C, PCIE, SMP, nv, over, to_host
from tests.saved.documents import measured_report

_PCI = [one for one in LinkClass if one not in (LinkClass.NVLINK, LinkClass.UNKNOWN)]
_RATES = st.none() | st.floats(0.1, 2000)
HOPS = st.one_of(
    st.builds(Hop, link=st.just(LinkKind.NVLINK), nvlinks=st.integers(1, 36), nominal_gb_s=_RATES),
    st.builds(Hop, link=st.just(LinkKind.PCIE), pci=st.none() | st.sampled_from(_PCI), nominal_gb_s=_RATES),
    st.builds(Hop, link=st.sampled_from([LinkKind.C2C, LinkKind.SMP]), nominal_gb_s=_RATES),
    st.builds(Hop, link=st.just(LinkKind.UNKNOWN), reason=st.text(max_size=20)),
)
ROUTES = st.builds(
    Route,
    carrier=st.sampled_from(Carrier),
    memory=st.none() | st.sampled_from(sorted(HOST_MEMORY)),
    hops=st.lists(HOPS, max_size=3).map(tuple),
    across_nodes=st.booleans(),
    egm=st.none() | st.sampled_from(Egm),
    egm_reason=st.text(max_size=20),
    ucx=st.none() | st.sampled_from(UcxRoute),
)


def with_routes(report: RunReport, routes: Sequence[Route]) -> RunReport:
    """Return a run whose measurements took these routes, in turns."""
    taken = cycle(routes)
    return replace(
        report,
        measurements=tuple(
            replace(m, flows=tuple(replace(flow, route=next(taken)) for flow in m.flows)) for m in report.measurements
        ),
    )


HOSTILE = to_host(Hop(link=LinkKind.UNKNOWN, reason="\x1b[31m<b>|"), egm=Egm.UNKNOWN)


@settings(
    max_examples=2, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(routes=st.lists(ROUTES, min_size=10, max_size=40))
@example(routes=[Route(carrier=Carrier.UCX, memory=MemoryKind.HOST_NUMA, egm=Egm.YES, ucx=UcxRoute.RDMA), HOSTILE])
def test_every_route_comes_back_from_json_and_through_every_view(routes: list[Route]) -> None:
    usual = measured_report("hgx-h200x4")
    report = with_routes(usual, routes)
    judged = with_verdict(report, load_profile("hgx-h200"))
    assert from_json(RunReport, json.loads(json.dumps(to_json(judged)))) == judged
    shown = {format: str(render(judged, format)) for format in BENCH.formats}
    assert not any("\x1b" in text for text in shown.values())
    links = {row["flow_route_symbol"] for row in csv.DictReader(io.StringIO(shown[Format.CSV]))}
    assert links == {flow.route.symbol for m in report.measurements for flow in m.flows}
    pair = [
        Saved(path=Path(f"{name}.json"), kind=Command.BENCH, name=name, result=run, tool="egmctl")
        for name, run in (("usual", usual), ("other", judged))
    ]
    found = compare(pair, spread=default_spread)
    assert {path.link for path in found.paths} == links


@given(route=ROUTES)
def test_routes_over_more_or_fewer_nvlinks_are_of_one_kind(route: Route) -> None:
    fewer = replace(route, hops=tuple(replace(h, nvlinks=None if h.nvlinks is None else 1) for h in route.hops))
    assert route.kind == fewer.kind
    as_profiles_have_it = Reference(case="c", link=route.symbol, unit=Unit.GB_S, source="s")
    assert as_profiles_have_it.kind == route.kind


@pytest.mark.parametrize(
    ("route", "symbol", "words"),
    [
        (over(), "local", "local"),
        (over(nv(18)), "NV18", "NV18"),
        (over(Hop(link=LinkKind.PCIE, pci=LinkClass.PHB)), "PHB", "PHB"),
        (over(Hop(link=LinkKind.UNKNOWN, reason="NVML does not list GPU0")), "?", "?"),
        (Route(hops=(nv(18),), across_nodes=True), "NV18 across nodes", "NV18 across nodes"),
        (to_host(C2C, egm=Egm.YES), "C2C", "EGM over C2C"),
        (to_host(nv(18), C2C, egm=Egm.YES), "NV18>C2C", "EGM over NV18>C2C"),
        (to_host(C2C, memory=MemoryKind.HOST_NUMA_POOL, egm=Egm.YES), "C2C", "EGM pool over C2C"),
        (to_host(C2C, SMP), "C2C-sys>SMP", "HOST_NUMA over C2C-sys>SMP, not EGM"),
        (to_host(C2C, memory=MemoryKind.PINNED), "C2C", "pinned over C2C, not EGM"),
        (to_host(PCIE), "PCIe", "HOST_NUMA over PCIe, not EGM"),
        (
            replace(to_host(Hop(link=LinkKind.UNKNOWN), egm=Egm.UNKNOWN), egm_reason="NVML is too old"),
            "?",
            "HOST_NUMA, unknown whether EGM: NVML is too old",
        ),
        (Route(carrier=Carrier.NONE, memory=MemoryKind.PINNED), "blocked", "pinned, blocked"),
        (Route(carrier=Carrier.CPU, memory=MemoryKind.PINNED), "CPU", "the node's own memory"),
        (Route(carrier=Carrier.CPU, memory=MemoryKind.PINNED, hops=(SMP,)), "CPU>SMP", "between NUMA nodes"),
        (Route(carrier=Carrier.SOCKET), "socket", "messages between the processes"),
        (Route(carrier=Carrier.UCX), "UCX", "UCX"),
        (Route(carrier=Carrier.UCX, ucx=UcxRoute.TCP), "UCX, tcp", "UCX, tcp"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_routes_are_called(route: Route, symbol: str, words: str) -> None:
    assert (route.symbol, route_words(route)) == (symbol, words)
