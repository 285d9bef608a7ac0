"""Groups of ranks on fake nodes: ``launch(node)`` starts one, and ends it after the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from egmctl.bench.processes.group import Group
from tests import forked
from tests.conftest import ROOT
from tests.fake.node import FakeNode
from tests.handles.ranks import finish, ranks_on, start

RANKS = ranks_on(["0008:01:00.0", "0009:01:00.0"])
Launch = Callable[..., Group]


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launch]:
    """Start ranks on a node, of which the last one sees the GPUs ``visible`` only; ends them."""
    groups: list[Group] = []

    def start_on(node: FakeNode, faults: str = "", count: int = 2, visible: str | None = None) -> Group:
        for name, value in (node.environment(faults) | {"PYTHONPATH": str(ROOT)}).items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)
        last = {"environment": {"CUDA_VISIBLE_DEVICES": visible}} if visible else None
        with forked.children():
            groups.append(start(count, last))
        return groups[-1]

    yield start_on
    for group in groups:
        group.close()


@contextmanager
def nothing_left(node: FakeNode, group: Group) -> Iterator[None]:
    """Expect that every rank ends by itself and has given back all that it took of the driver."""
    yield
    finish(group)
    assert node.leaks() == []
