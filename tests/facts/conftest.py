"""Collect facts on fake nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from egmctl.facts.collect import collect
from egmctl.model.machine import Machine
from tests.fake.node import FakeNode

Collect = Callable[..., Machine]


@pytest.fixture
def on(monkeypatch: pytest.MonkeyPatch) -> Collect:
    """Collect this process' facts on a fake node: ``on(node, faults="cuInit=error:100")``."""

    def run(
        node: FakeNode,
        faults: str = "",
        sections: Sequence[str] = ("gpus", "pairs", "driver", "process"),
        **environment: str,
    ) -> Machine:
        for name, value in {**node.environment(faults), **environment}.items():
            if value is None:
                monkeypatch.delenv(name, raising=False)
            else:
                monkeypatch.setenv(name, value)
        return collect(sections)

    return run
