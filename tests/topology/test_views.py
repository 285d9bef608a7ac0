"""The text people read, and JSON and CSV for programs; goldens of whole texts are in tests/replay."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from egmctl.facts import replay
from egmctl.model.host import Driver, LibraryFailure, Process
from egmctl.model.machine import Machine, OriginKind
from egmctl.model.record import Reason, Unread
from egmctl.report.document import plain
from egmctl.report.exports.csv import topo_csv
from egmctl.report.exports.json import result_json
from egmctl.report.kinds import Format
from egmctl.report.views.node_text import node_text
from egmctl.topology.topology import topology
from tests.answers import render
from tests.doctor.machines import patched, shipped, with_gpu_denied
from tests.topology import builders
from tests.topology.builders import bus_id, gpu, grace, grace_gpu, hgx, nic, node, out_of_sight, pairs


def text_of(machine: Machine, *, verbose: int = 0) -> str:
    return str(render(topology(machine), Format.TEXT, verbose=verbose))


def block(text: str, title: str) -> list[list[str]]:
    """Return the words of each line below a title."""
    lines = text.split(f"{title}\n", 1)[1].split("\n\n", 1)[0].splitlines()
    return [line.split() for line in lines]


def test_the_first_line_says_how_many_gpus_can_be_used_and_nothing_is_said_of_the_links_of_others() -> None:
    whole = shipped("hgx-h200x4")
    assert "can be used" not in text_of(whole)
    said = {gone: text_of(with_gpu_denied(whole, *range(gone))).split("\n\n")[0] for gone in (1, 2, 3)}
    assert [text.splitlines()[0] for text in said.values()] == [
        f"{left} of 4 GPUs can be used from here." for left in (3, 2, 1)
    ]
    links = "joined by 18 NVLinks through NVLink switches"
    assert f"Pairs of usable GPUs: 3 {links}" in said[1]
    assert f"Pairs of usable GPUs: 1 {links}" in said[2]
    assert "links" not in said[3].lower().replace("nvlink-c2c", "")


def test_a_blocked_route_names_what_blocks_it_in_its_cell_and_the_gpu_in_a_note() -> None:
    text = text_of(builders.machine([grace_gpu(0, node=0), out_of_sight(grace_gpu(1, node=1))], architecture="aarch64"))
    assert "blocked: device-cgroup" in text
    notes = " ".join(text.split("Notes\n")[1].split())
    assert "GPU0 to NUMA 1: blocked; GPU1: denied by the device cgroup (/dev/nvidia1: EPERM)" in notes


def drawn(machine: Machine, width: int = 80) -> str:
    return "\n".join(plain(line) for line in node_text(topology(machine), width))


@pytest.mark.parametrize("name", replay.machine_names())
@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_drawing_of_every_machine_fits_the_width_and_its_boxes_are_closed(name: str, width: int) -> None:
    machine = shipped(name)
    lines = [line.rstrip() for line in drawn(machine, width).splitlines()[:-1]]
    assert bool(lines) == (len(machine.gpus or ()) * 9 <= width)
    assert max(map(len, lines), default=0) <= width
    corners = [sum(line.count(corner) for line in lines) for corner in "╭╮╰╯"]
    assert len(set(corners)) == 1
    assert sorted(re.findall(r"GPU\d+", "".join(lines))) == sorted(f"GPU{g.index}" for g in machine.gpus or () if lines)


def test_the_drawing_crosses_out_missing_links_and_names_what_blocks_a_gpu() -> None:
    gpus = [gpu(i, active=14 if i == 3 else None) for i in range(4)]
    nvlinks = {(a, b): 14 if 3 in (a, b) else 18 for a in range(4) for b in range(4)}
    few = drawn(builders.machine(gpus, nvlinks=nvlinks))
    assert "╳ NV14 of 18" in few  # noqa: RUF001
    assert "14 of 18 NVLinks" in few
    hidden = [grace_gpu(0, node=0), out_of_sight(grace_gpu(1, node=1))]
    blocked = drawn(builders.machine(hidden, architecture="aarch64"))
    assert "╳ blocked" in blocked  # noqa: RUF001
    assert "│ blocked: device-cgroup" in blocked
    denied = drawn(with_gpu_denied(shipped("dgx-h100"), 2))
    assert (denied.count("│blocked│"), "block " in denied, "║ 450 " in denied) == (1, False, True)


def test_fewer_nvlinks_than_the_siblings_are_marked_and_named() -> None:
    gpus = [gpu(i, active=17 if i == 3 else None) for i in range(8)]
    machine = builders.machine(gpus, nvlinks={(a, b): 17 if 3 in (a, b) else 18 for a in range(8) for b in range(8)})
    text = text_of(machine)
    assert "NV17*" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "DEGRADED  GPU3: 17 of 18 NVLinks are active\n" in text
    assert re.search(r"^NV#\* +fewer NVLinks than expected$", text, re.MULTILINE)


def test_p2p_that_is_alike_is_one_line_and_what_differs_is_a_matrix() -> None:
    gpus = [gpu(i) for i in range(3)]
    alike = pairs(gpus, nvlinks=18)
    odd = replace(alike[0], p2p_status={**alike[0].p2p_status, "atomics": "CNS"})
    text = text_of(builders.machine(gpus, pairs=(odd, *alike[1:])))
    assert "NVML  read OK, write OK, nvlink OK, pci NS\n" in text
    assert block(text, "P2P atomics (NVML)")[1:] == [
        ["GPU0", "X", "CNS", "OK"],
        ["GPU1", "OK", "X", "OK"],
        ["GPU2", "OK", "OK", "X"],
    ]
    assert "chipset not supported" in text


@pytest.mark.parametrize(
    ("failure", "note"),
    [
        (
            LibraryFailure(how="error", call="cuInit", name="CUDA_ERROR_SYSTEM_NOT_READY"),
            "CUDA fails (cuInit: CUDA_ERROR_SYSTEM_NOT_READY)",
        ),
        (LibraryFailure(how="missing"), "CUDA is missing: the library cannot be loaded"),
        (LibraryFailure(how="timed-out"), "CUDA did not answer in time"),
    ],
)
def test_cuda_that_fails_is_a_note_beside_the_matrix(failure: LibraryFailure, note: str) -> None:
    text = text_of(hgx(2, driver=Driver(module_version="580", cuda_failure=failure)))
    assert note in text
    assert "NV18" in text


def test_cuda_visible_devices_is_mentioned_without_its_value() -> None:
    text = text_of(hgx(2, process=Process(environment={"CUDA_VISIBLE_DEVICES": "secret"})))
    assert "CUDA_VISIBLE_DEVICES is set" in text
    assert "secret" not in text


def test_it_does_not_depend_on_the_terminals_width() -> None:
    text = render(topology(hgx()), Format.TEXT)
    assert isinstance(text, Text)
    shown = []
    for width in (20, 80, 400):
        console = Console(file=io.StringIO(), width=width, color_system=None)
        with console.capture() as capture:
            console.print(text, soft_wrap=True, end="")
        shown.append(capture.get())
    assert shown == [text.plain] * 3


def test_verbose_tells_ids_links_sources_and_the_gpus_that_a_remote_route_can_lead_over() -> None:
    text = text_of(grace(), verbose=1)
    assert "UUID        GPU-00000000-0000-0000-0000-000000000000\n" in text
    assert "NVLink      18 of 18 active, 53125 MB/s each, 0-17 to switch\n" in text
    assert "known to    pci, node, nvml, cuda\n" in text
    assert "to NUMA 1   nvlink x18 900.0 GB/s, then c2c 450.0 GB/s of GPU2 or GPU3\n" in text


def test_values_that_were_not_read_have_their_reason() -> None:
    lost = replace(out_of_sight(gpu(1)), unread={"nvml": Unread(reason=Reason.NO_PERMISSION)})
    assert "unread     no-permission: nvml\n" in text_of(builders.machine([gpu(0), lost]), verbose=1)


def test_hostile_names_are_shown_escaped_and_never_as_markup() -> None:
    name = "[red]\x1b[31mevil\u202e\n[/red]"
    machine = hgx(2, nics=(replace(nic(0), name=name),), origin=OriginKind.MODELLED)
    machine = patched(machine, "origin", name=name, description=name, sources=(name,))
    text = text_of(patched(machine, "gpus[0].nvml", name=name), verbose=2)
    assert "[red]\\x1b[31mevil\\u202e\\n[/red]" in text
    assert not {"\x1b", "\u202e"} & set(text)


def test_numa_nodes_that_were_not_read_leave_no_routes_and_a_note() -> None:
    text = text_of(hgx(2, nodes=[]))
    assert "EGM routes" not in text
    assert "no NUMA node with CPUs was read, so there are no routes to host memory" in text


def test_many_numa_nodes_are_split_into_blocks_that_fit() -> None:
    text = text_of(hgx(2, nodes=[node(i) for i in range(8)]))
    assert [f"NUMA {i}" in text for i in range(8)] == [True] * 8
    assert max(map(len, text.splitlines())) <= 80


def test_links_are_missing_in_words_and_drawing_only_where_they_join_gpus() -> None:
    """NVML lists links that are all down: of two cards without a bridge, or of two GPUs on switches."""
    down = patched(hgx(2), "gpus[*].nvml.nvlinks[*]", active=False)
    down = patched(down, "pairs[*]", nvlink_count=0, nvlink_through=None)
    bare = patched(down, "gpus[*].nvml.nvlinks[*]", remote_type=None, remote_bus_id=None)
    text = text_of(patched(bare, "gpus[*].nvml", fabric=None))
    assert "no NVLink is active, though these GPUs belong on NVSwitches" in " ".join(text.split())
    assert "No link is degraded" not in text
    assert "of 18" not in text
    assert "GPU0: 0 of 18 NVLinks are active" in text_of(down)
    alone = text_of(patched(hgx(1), "gpus[0].nvml.nvlinks[3]", active=False))
    assert "GPU0: 17 of 18 NVLinks are active" in alone


# --- for programs ----------------------------------------------------------------------------------------------------


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
        machine = patched(grace(2, origin=OriginKind.MODELLED), "origin", name="=cmd\x1b\n,x")
        assert {row["machine"] for row in rows(machine)} == {"'=cmd\\x1b\\n,x"}
