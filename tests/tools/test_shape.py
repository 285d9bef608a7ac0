"""``tools/shape.py`` sees what runs: its figures are worth nothing where a name that it looks for has gone."""

from __future__ import annotations

import pytest
import shape

from tests.conftest import ROOT


@pytest.mark.long
@pytest.mark.processes
def test_the_functions_of_a_bench_are_those_of_its_processes() -> None:
    names = {
        kind: {line.split()[1].rpartition(".")[2] for line in lines} for kind, lines in shape.one_bench(ROOT).items()
    }
    assert {"main", "bench", "make_plan", "supervise"} <= names["command"]
    assert names["worker"]
    assert not {"bench", "make_plan"} & names["worker"]
