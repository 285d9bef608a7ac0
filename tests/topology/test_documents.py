"""JSON and CSV of the topology: contracts for programs."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from typing import Any

from egmctl.model.machine import Machine, OriginKind
from egmctl.report.exports.csv import topo_csv
from egmctl.report.exports.json import result_json
from egmctl.topology.topology import topology
from tests.topology.builders import bus_id, grace, nic


def document(machine: Machine) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(result_json(topology(machine)))
    return read


def rows(machine: Machine) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(topo_csv(topology(machine)))))


class TestJson:
    result = document(grace(nics=(nic(0),)))["result"]

    def test_every_pair_is_one_record(self) -> None:
        ends = [(link["source"], link["target"]) for link in self.result["links"]]
        assert len(ends) == len({frozenset(pair) for pair in ends}) == 5 * 4 // 2

    def test_a_remote_route_names_its_links_and_owners(self) -> None:
        (route,) = (r for r in self.result["routes"] if (r["gpu"], r["numa_node"]) == (bus_id(0), 1))
        assert route["kind"] == "egm-remote"
        assert route["egm"] is True
        assert route["via"] == [bus_id(2), bus_id(3)]
        assert [(hop["link"], hop["nvlinks"]) for hop in route["hops"]] == [("nvlink", 18), ("c2c", None)]


class TestCsv:
    def test_one_row_a_link_a_route_and_a_p2p_capability(self) -> None:
        found = rows(grace(2, nics=(nic(0),)))
        kinds = [row["record"] for row in found]
        assert kinds.count("link") == 3
        assert kinds.count("route") == 2
        assert kinds.count("p2p") == 2
        assert {row["status_read"] for row in found if row["record"] == "p2p"} == {"OK"}

    def test_ids_are_bus_ids_and_words_are_words(self) -> None:
        (route,) = (row for row in rows(grace()) if (row["source"], row["target"]) == ("GPU0", "NUMA1"))
        assert route["source_bus_id"] == bus_id(0)
        assert (route["egm"], route["via"], route["symbol"]) == ("true", f"{bus_id(2)} {bus_id(3)}", "NV18>C2C")

    def test_strings_from_the_machine_are_data(self) -> None:
        machine = grace(2, origin=OriginKind.MODELLED)
        machine = replace(machine, origin=replace(machine.origin, name="=cmd\x1b\n,x"))
        assert {row["machine"] for row in rows(machine)} == {"'=cmd\\x1b\\n,x"}
