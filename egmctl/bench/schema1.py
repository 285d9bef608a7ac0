"""Reads ``egmctl.bench/1``, whose flows say in a sentence which way their bytes took: the one place that reads those.

Schema 2 has a route in each flow, and links and peers where schema 1 had wires and siblings. Documents of schema 1 are
brought into the shape of schema 2 before they are decoded; a profile that was learnt from them may name links in their
words (:data:`egmctl.model.route.FORMER_SYMBOLS`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from egmctl.model.codec import to_json
from egmctl.model.machine import Gpu, Machine
from egmctl.model.measurement import Flow, Pattern, RunReport
from egmctl.model.memory import HOST_MEMORY, HOST_NAMES, NUMA_MEMORY, MemoryKind
from egmctl.model.route import FORMER_SYMBOLS, Carrier, Egm, Hop, LinkClass, LinkKind, Route
from egmctl.model.ucx import UcxRoute
from egmctl.topology import rates
from egmctl.topology.routes import RouteKind, route

BENCH_SCHEMA_1 = "egmctl.bench/1"

_ACROSS = " across nodes"
_UNKNOWN_EGM = re.compile(r", not known whether EGM(?:: (?P<why>.*))?$", re.DOTALL)
_OVER = re.compile(r"^(?P<memory>.+?) over (?P<links>\S+)(?P<across> across nodes)?$", re.DOTALL)
_ONE_NODE = re.compile(r"^(all_to_)?(.+?)(_to_all_memcpy_.+|_memcpy_.+)$")
_NVLINKS = re.compile(r"^NV([0-9]{1,6})$")
_PCI = {one.value: one for one in LinkClass if one not in (LinkClass.NVLINK, LinkClass.UNKNOWN)}
_MEMORY = {name: kind for kind, name in HOST_NAMES.items()} | {
    "EGM": MemoryKind.HOST_NUMA,
    "EGM pool": MemoryKind.HOST_NUMA_POOL,
}
_HOPS = {
    "C2C": Hop(link=LinkKind.C2C),
    "C2C-sys": Hop(link=LinkKind.C2C),
    "PCIe": Hop(link=LinkKind.PCIE),
    "SMP": Hop(link=LinkKind.SMP),
}


def upgraded(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a document of schema 1 in the shape of schema 2.

    Nominal rates are not in it: :func:`with_rates` adds those of the machine. What has not the shape of schema 1 is
    left as it is, for the decoder to name.
    """
    found = dict(result)
    measurements = found.get("measurements")
    if isinstance(measurements, list):
        found["measurements"] = [_measurement(one) if isinstance(one, dict) else one for one in measurements]
    if isinstance(verdict := found.get("verdict"), dict):
        found["verdict"] = _verdict(verdict)
    return found


def with_rates(report: RunReport) -> RunReport:
    """Return a report of schema 1 with the nominal rates of its links, by the machine that is in it.

    Of a run over several nodes the rates stay unknown: bus ids do not say on which node a GPU is.
    """
    if len(report.machines) != 1:
        return report
    machine = report.machines[0]
    gpus = {gpu.bus_id: gpu for gpu in machine.gpus or ()}
    return replace(
        report,
        measurements=tuple(
            replace(one, flows=tuple(_rated(flow, machine, gpus.get(flow.initiator or "")) for flow in one.flows))
            for one in report.measurements
        ),
    )


def route_of(words: str, memory: MemoryKind | None, *, egm: bool | None) -> Route:
    """Return the route that a sentence of schema 1 told of.

    Parameters
    ----------
    memory
        Of the host's end, by the flow; ``None`` without one.
    egm
        What the flow says beside its sentence.
    """
    if words == "between the processes, over a socket":
        return Route(carrier=Carrier.SOCKET)
    if words == "the node's own memory":
        return Route(carrier=Carrier.CPU, memory=memory)
    if words == "between NUMA nodes":
        return Route(carrier=Carrier.CPU, memory=memory, hops=(_HOPS["SMP"],))
    known = _EGM[egm] if memory is not None else None
    if words == "UCX" or words.startswith("UCX, "):
        found = next((one for one in UcxRoute if words == f"UCX, {one.value}"), None)
        return Route(carrier=Carrier.UCX, memory=memory, egm=known, ucx=found)
    if words == "no NVLink" or words.endswith(", blocked"):
        return Route(carrier=Carrier.NONE, memory=memory, egm=known, across_nodes=words == "no NVLink")
    if memory is None:
        across = words.endswith(_ACROSS)
        return Route(hops=_hops(words.removesuffix(_ACROSS)), across_nodes=across)
    unknown = _UNKNOWN_EGM.search(words)
    why = (unknown["why"] or "") if unknown else ""
    told = words[: unknown.start()] if unknown else words.removesuffix(", not EGM")
    over = _OVER.match(told)
    if over is None or over["memory"] not in _MEMORY:
        hops: tuple[Hop, ...] = (Hop(link=LinkKind.UNKNOWN, reason=why or words),)
        across = False
    else:
        hops, across = _hops(over["links"]), over["across"] is not None
    if memory not in NUMA_MEMORY:
        # Schema 1 did not know it where NVML lists no GPU: such memory is no EGM anywhere.
        known, why = Egm.NO, ""
    return Route(memory=memory, hops=hops, across_nodes=across, egm=known, egm_reason=why)


_EGM = {True: Egm.YES, False: Egm.NO, None: Egm.UNKNOWN}


def _hops(links: str) -> tuple[Hop, ...]:
    return () if links == "local" else tuple(map(_hop, links.split(">")))


def _hop(link: str) -> Hop:
    if (nvlinks := _NVLINKS.match(link)) is not None:
        return Hop(link=LinkKind.NVLINK, nvlinks=int(nvlinks[1]))
    if link in _PCI:
        return Hop(link=LinkKind.PCIE, pci=_PCI[link])
    return _HOPS.get(link) or Hop(link=LinkKind.UNKNOWN, reason="" if link == "?" else link)


def _measurement(measurement: dict[str, Any]) -> dict[str, Any]:
    found = dict(measurement)
    if found.get("pattern") == Pattern.ONE_NODE and isinstance(name := found.get("case"), str):
        # Schema 2 calls each GPU with its own node what schema 1 called all GPUs with one node.
        found["case"] = _ONE_NODE.sub(r"\1\2_one_node\3", name)
    if isinstance(chase := found.get("chase"), dict) and "_footprint_" in str(found.get("case")):
        found["chase"] = chase | {"by_footprint": True}
    if isinstance(flows := found.get("flows"), list):
        found["flows"] = [_flow(flow) if isinstance(flow, dict) else flow for flow in flows]
    evidence = found.get("evidence")
    if isinstance(evidence, dict) and isinstance(seen := evidence.get("route"), dict):
        found["evidence"] = evidence | {"route": _renamed(seen, {"wire": "link"})}
    return found


def _flow(flow: dict[str, Any]) -> dict[str, Any]:
    words, egm = flow.get("wire"), flow.get("egm")
    if not isinstance(words, str) or not (egm is None or isinstance(egm, bool)):
        return flow
    kinds = {kind.value: kind for kind in HOST_MEMORY}
    ends = (flow.get("source"), flow.get("destination"))
    told = [end.get("memory") for end in ends if isinstance(end, dict)]
    memory = next((kinds[kind] for kind in told if isinstance(kind, str) and kind in kinds), None)
    found = route_of(words, memory, egm=egm)
    kept = {key: value for key, value in flow.items() if key not in ("wire", "egm")}
    return kept | {"route": to_json(found)}


def _verdict(verdict: dict[str, Any]) -> dict[str, Any]:
    found = dict(verdict)
    if isinstance(classes := found.get("classes"), list):
        found["classes"] = list(map(_class, classes))
    if isinstance(judged := found.get("judged"), list):
        found["judged"] = [
            one | {"judgements": list(map(_judgement, one["judgements"]))}
            if isinstance(one, dict) and isinstance(one.get("judgements"), list)
            else one
            for one in judged
        ]
    return found


def _class(one: Any) -> Any:
    if not isinstance(one, dict):
        return one
    names = {"wire": "link", "profile": "by_profile", "wires": "by_link", "siblings": "by_peers"}
    found = _renamed(one, names)
    if isinstance(link := found.get("link"), str):
        found["link"] = FORMER_SYMBOLS.get(link, link)
    case, reason = found.get("case"), found.get("reason")
    if isinstance(case, str) and isinstance(reason, str):
        # Of several cases the same is said once.
        found["reason"] = reason.replace(f"says nothing of {case}", "does not have this case")
    return found


def _judgement(one: Any) -> Any:
    yardsticks = {"wire": "link", "siblings": "peers"}
    if isinstance(one, dict) and isinstance(yardstick := one.get("yardstick"), str):
        return one | {"yardstick": yardsticks.get(yardstick, yardstick)}
    return one


def _renamed(record: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {names.get(key, key): value for key, value in record.items()}


def _rated(flow: Flow, machine: Machine, initiator: Gpu | None) -> Flow:
    """Return a flow of which each link has its nominal rate, where the machine tells of the GPU."""
    if initiator is None or flow.route.carrier is not Carrier.LINKS or flow.route.across_nodes:
        return flow
    hops = tuple(_rated_hops(flow, machine, initiator))
    return replace(flow, route=replace(flow.route, hops=hops))


def _rated_hops(flow: Flow, machine: Machine, initiator: Gpu) -> Iterator[Hop]:
    owner = initiator
    for hop in flow.route.hops:
        if hop.link is LinkKind.NVLINK:
            yield rates.nvlink(initiator, hop.nvlinks or 1)
            owner = _owner(flow, machine, initiator)
        elif hop.link is LinkKind.C2C:
            yield rates.c2c(owner)
        elif hop.link is LinkKind.PCIE:
            yield rates.pcie(initiator, hop.pci)
        else:
            yield hop


def _owner(flow: Flow, machine: Machine, initiator: Gpu) -> Gpu:
    """Return a GPU over whose C2C a remote EGM route ends."""
    node = next((end.numa_node for end in (flow.source, flow.destination) if end.numa_node is not None), None)
    if node is None:
        return initiator
    found = route(machine, initiator, node)
    return machine.gpu(found.via[0]) if found.kind is RouteKind.REMOTE else initiator
