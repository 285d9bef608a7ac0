"""Whatever loads can be shown: no document that is accepted makes a view fail or lets control characters out."""

from __future__ import annotations

import copy
import csv
import functools
import io
import itertools
import json
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from egmctl.errors import UsageError
from egmctl.facts import replay
from egmctl.model.machine import Machine
from egmctl.report.kinds import TOPO, Format
from egmctl.topology.topology import topology
from tests.answers import render
from tests.mutation import mutate
from tests.random_machines import machines
from tests.schemas import validate

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
shipped = functools.cache(lambda name: replay.document(replay.load_machine(name)))


def show(machine: Machine) -> None:
    judged = topology(machine)
    for format, verbose in itertools.product(TOPO.formats, (0, 2)):
        text = str(render(judged, format, verbose=verbose))
        assert all(line.isprintable() for line in text.split("\n"))
        match format:
            case Format.TEXT:
                assert all(line == line.rstrip() for line in text.splitlines())
            case Format.CSV:
                assert len({len(row) for row in csv.reader(io.StringIO(text))}) == 1
            case Format.JSON:
                validate(json.loads(text), "topo")


@pytest.mark.long
@settings(suppress_health_check=list(HealthCheck))
@given(machines())
def test_any_machine_can_be_shown_and_its_document_fits_the_schema(machine: Machine) -> None:
    show(machine)


@pytest.mark.long
@settings(suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(replay.machine_names()),
    choice=st.randoms(use_true_random=False),
    values=st.lists(JSON, min_size=1, max_size=4),
)
def test_a_shipped_machine_with_anything_in_it_is_refused_or_shown(
    tmp_path_factory: pytest.TempPathFactory, name: str, choice: random.Random, values: list[Any]
) -> None:
    document = copy.deepcopy(shipped(name))
    for value in values:
        mutate(document, choice, value)
    path = tmp_path_factory.getbasetemp() / "hostile.json"
    path.write_text(json.dumps(document))
    try:
        machine = replay.load_machine(str(path))
    except UsageError:
        return
    show(machine)
