"""Whatever loads can be shown: no document that is accepted makes a view fail or lets control characters out."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from egmctl.errors import UsageError
from egmctl.facts import record, replay
from egmctl.model.machine import Machine
from egmctl.report.exports.json import dump
from egmctl.report.topo_csv import topo_csv
from egmctl.report.topo_json import topo_result
from egmctl.report.topo_missing import missing_text
from egmctl.report.topo_text import topo_text
from egmctl.topology.missing import missing
from egmctl.topology.topology import topology
from tests.random_machines import machines
from tests.replay.test_load import JSON, mutate

SHIPPED = {name: record.document(replay.load(name)) for name in replay.names()}


def show(machine: Machine) -> None:
    lacking = missing(machine)
    judged = topology(machine, machine.gpus or (), None)
    dump(topo_result(judged, lacking))
    topo_csv(judged)
    texts = [topo_text(judged, verbose=verbose) for verbose in (0, 1, 2)]
    if lacking is not None:
        texts.append(missing_text(machine, lacking))
    for text in texts:
        assert all(line.isprintable() for line in text.plain.split("\n"))


@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(machines())
def test_any_machine_can_be_shown(machine: Machine) -> None:
    show(machine)


@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(
    name=st.sampled_from(sorted(SHIPPED)),
    choice=st.randoms(use_true_random=False),
    values=st.lists(JSON, min_size=1, max_size=4),
)
def test_a_shipped_machine_with_anything_in_it_is_refused_or_shown(
    tmp_path_factory: pytest.TempPathFactory, name: str, choice: random.Random, values: list[Any]
) -> None:
    document = copy.deepcopy(SHIPPED[name])
    for value in values:
        mutate(document, choice, value)
    path = tmp_path_factory.getbasetemp() / "hostile.json"
    path.write_text(json.dumps(document))
    try:
        machine = replay.load(str(path))
    except UsageError:
        return
    show(machine)
