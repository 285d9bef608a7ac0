"""What leaves the site: no document of any command, in any format, holds a name, an identifier or path of the node."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from egmctl.report.kinds import BENCH, DOCTOR, SUFFIXES, TOPO, Format, Kind
from tests.bench.four import OPTIONS
from tests.cli.private import CLUSTER, SECRET, check, planted, uuid_of
from tests.conftest import RunEgmctl
from tests.fake.node import FakeNode
from tests.fake.plugin import MakeFakeNode


@pytest.fixture
def node(fake_node: MakeFakeNode) -> FakeNode:
    return fake_node(planted())


def environment(node: FakeNode) -> dict[str, str | None]:
    """The node's own, without the private path that the libraries of the test lie in."""
    known = node.environment()
    return {**known, "LD_LIBRARY_PATH": f"{known['LD_LIBRARY_PATH']}:/home/{SECRET}/lib"}


BENCH_RUN = ("bench", "--numa", "1", "--gpus", "0-1", "--size", "1M", "--samples", "2", "--copies", "2", "-q", *OPTIONS)


def test_the_secrets_are_there_to_be_found(egmctl: RunEgmctl, node: FakeNode) -> None:
    whole = egmctl("snapshot", "--full", env=environment(node)).out
    for part in (
        f"node-{SECRET}",
        f"6.8.0-{SECRET}-acme",
        f"{SECRET}.service",
        f"/srv/{SECRET}/lib.so",
        f"--token={SECRET}",
        f"/srv/{SECRET},realloc",
        f"x=/home/{SECRET}/y",
        f"/boot/config-6.8.0-{SECRET}-acme: ENOENT",
        uuid_of(0),
        CLUSTER,
    ):
        assert part in whole, part
    assert "TemporaryFilePath" not in whole
    assert "RmMsg" not in whole


@pytest.mark.long
@pytest.mark.parametrize("kind", [TOPO, DOCTOR, BENCH], ids=lambda kind: kind.name)
def test_no_form_of_a_document_holds_one(egmctl: RunEgmctl, node: FakeNode, tmp_path: Path, kind: Kind) -> None:
    command = BENCH_RUN if kind is BENCH else (kind.name,)
    files = {format: tmp_path / f"result{suffix}" for suffix, format in SUFFIXES.items() if format in kind.formats}
    written = [word for file in files.values() for word in ("-o", file)]
    ended = egmctl(*command, *written, "-o", "-", env=environment(node))
    assert ended.code in (0, 1, 3), ended.err
    for format, file in files.items():
        check(file.read_text(), what=format)
    check(ended.out, what="text on standard output")
    check(ended.err, what="standard error")
    document = json.loads(files[Format.JSON].read_text())
    assert document["result"]["machines"][0]["origin"]["redacted"] is True
    if kind is BENCH:
        assert "GPU1: in use by process 4711," in ended.out
    if Format.NAGIOS in kind.formats:
        check(egmctl(*command, "--format", "nagios", env=environment(node)).out, what="nagios")


def test_a_snapshot_holds_none(egmctl: RunEgmctl, node: FakeNode) -> None:
    whole = egmctl("snapshot", env=environment(node)).out
    check(whole, what="snapshot")
    document = json.loads(whole)
    assert document["host"]["kernel"] == "6.8.0"
    assert document["host"]["kernel_command_line"] == {"iommu": "pt", "pci": "kernel_command_line-1"}


@pytest.mark.long
def test_uuids_of_two_documents_of_one_node_still_join(egmctl: RunEgmctl, node: FakeNode) -> None:
    topo = json.loads(egmctl("topo", "--json", env=environment(node)).out)
    doctor = json.loads(egmctl("doctor", "--json", env=environment(node)).out)
    uuids = [gpu["nvml"]["uuid"] for gpu in topo["result"]["machines"][0]["gpus"]]
    assert uuids == [gpu["nvml"]["uuid"] for gpu in doctor["result"]["machines"][0]["gpus"]]
    assert len(set(uuids)) == 4
