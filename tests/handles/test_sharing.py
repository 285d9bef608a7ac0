"""Orders between processes that share memory, on fake nodes; tests/gpu/test_sharing.py gives the same on GPUs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from egmctl.launch import close_all
from egmctl.model.task import HandleKind
from tests import forked
from tests.conftest import ROOT
from tests.fake.machines import nvl4
from tests.fake.node import FakeNode
from tests.fake.plugin import MakeFakeNode
from tests.handles.sharing import Partner, partner

GPUS = ("0008:01:00.0", "0009:01:00.0", "0018:01:00.0", "0019:01:00.0")
MIB = 1 << 20
Start = Callable[..., Partner]


@pytest.fixture
def node(fake_node: MakeFakeNode) -> FakeNode:
    return fake_node(nvl4())


@pytest.fixture
def start(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    for name, value in (node.environment() | {"PYTHONPATH": str(ROOT)}).items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    started: list[Partner] = []

    def on(gpu: int) -> Partner:
        with forked.children():
            started.append(partner(GPUS[gpu]))
        return started[-1]

    yield on
    for each in started:
        each.child.close()


@pytest.mark.parametrize("kind", [HandleKind.LEGACY, HandleKind.POSIX_FD])
def test_one_producer_has_all_other_gpus_as_consumers_at_once(start: Start, kind: HandleKind) -> None:
    owner, consumers = start(0), [start(gpu) for gpu in (1, 2, 3)]
    offer, fds = owner.ask("make", kind=kind, size_bytes=4 * MIB)
    owner.ask("fill", byte=7)
    for consumer in consumers:
        consumer.open(offer, fds)
    close_all(fds)
    assert [consumer.ask("bytes_at", starts=[0, 4 * MIB - 1])[0]["bytes"] for consumer in consumers] == [[7, 7]] * 3
    for number, consumer in enumerate(consumers):
        consumer.ask("fill", byte=20 + number, start=number * MIB, size_bytes=MIB)
    answer, _ = owner.ask("bytes_at", starts=[0, MIB, 2 * MIB, 3 * MIB])
    assert answer["bytes"] == [20, 21, 22, 7], "each has written its part, and no more"
    for each in (*consumers, owner):
        each.close()


@pytest.mark.parametrize("kind", [HandleKind.LEGACY, HandleKind.POSIX_FD, HandleKind.POOL])
@pytest.mark.parametrize("first", ["importer", "owner"])
def test_memory_is_given_back_whoever_closes_first(start: Start, kind: HandleKind, first: str) -> None:
    owner, importer = start(0), start(1)
    before = [each.ask("free_bytes")[0] for each in (owner, importer)]
    offer, fds = owner.ask("make", kind=kind, size_bytes=4 * MIB)
    importer.open(offer, fds)
    close_all(fds)
    assert owner.ask("free_bytes")[0]["bytes"] < before[0]["bytes"]
    for each in (importer, owner) if first == "importer" else (owner, importer):
        each.close()
    assert [each.ask("free_bytes")[0] for each in (owner, importer)] == before


def test_what_an_importer_reads_after_the_event_is_what_was_written_before_it(start: Start, node: FakeNode) -> None:
    owner, importer = start(0), start(1)
    offer, fds = owner.ask("make", kind=HandleKind.POSIX_FD, size_bytes=2 * MIB)
    importer.open(offer, fds)
    close_all(fds)
    importer.ask("open_event", event=owner.ask("share_event")[0]["event"])
    owner.ask("fill", byte=1)
    owner.ask("write_slowly", byte=2)
    importer.begin("bytes_at", starts=[0], wait=True)
    owner.ask("finish_writing")
    assert importer.end()[0]["bytes"] == [2]
    importer.close()
    owner.close()
    assert node.calls("cuStreamWaitEvent")


def test_managed_and_pinned_memory_refuse_a_legacy_handle(start: Start) -> None:
    answer, _ = start(0).ask("legacy_handles")
    assert answer == {"plain": 0, "managed": 1, "pinned": 1}
