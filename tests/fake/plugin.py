"""Fixtures for tests on fake nodes: ``pytest_plugins = ["tests.fake.plugin"]``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from egmctl.model.machine import Machine
from tests.fake.build import NoCompiler, build
from tests.fake.node import FakeNode
from tests.tiers import why_not

MakeFakeNode = Callable[..., FakeNode]


@pytest.fixture(scope="session")
def fake_node(tmp_path_factory: pytest.TempPathFactory) -> MakeFakeNode:
    """Make a :class:`FakeNode`: ``fake_node("gb200-tray")``. Skips the test where there is no C compiler."""
    try:
        build()
    except NoCompiler:
        pytest.skip(str(why_not(["cc"])))

    def make(machine: Machine | Path | str, **options: tuple[str, ...]) -> FakeNode:
        return FakeNode(machine, tmp_path_factory.mktemp("fake-node"), **options)

    return make
