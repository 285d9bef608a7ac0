"""What schema 1 called otherwise than schema 2 does, beside its routes (:mod:`tests.bench.test_routes`)."""

from __future__ import annotations

import pytest

from egmctl.bench.schema1 import upgraded


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("host_numa_to_all_memcpy_ce", "host_numa_one_node_to_all_memcpy_ce"),
        ("all_to_host_memcpy_sm", "all_to_host_one_node_memcpy_sm"),
    ],
)
def test_all_gpus_with_one_node_have_a_name_of_their_own(then: str, now: str) -> None:
    old = {"measurements": [{"case": then, "pattern": "everyone-to-one-node"}, {"case": then, "pattern": "pair"}]}
    assert [one["case"] for one in upgraded(old)["measurements"]] == [now, then]
