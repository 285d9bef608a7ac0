"""``--pair``: paths picked by hand, in the direction in which the bytes move."""

from __future__ import annotations

import json

import jsonschema
import pytest

from egmctl.bench.plan import Plan
from egmctl.bench.plan.flows import parse_pairs
from egmctl.bench.plan.make import make_plan
from egmctl.bench.suites import select_cases
from egmctl.errors import UsageError
from egmctl.model.measurement import Settings
from egmctl.units import MIB
from tests.conftest import ROOT, RunEgmctl
from tests.doctor.machines import shipped

MACHINE = shipped("gb200-tray")
GPUS, NODES = MACHINE.gpus or (), (0, 1)
SETTINGS = Settings(size_bytes=512 * MIB, copies=None, samples=3, timeout_s=60)


def plan_of(text: str, suite: str = "full") -> Plan:
    """Return the plan of every case for some pairs."""
    pairs = parse_pairs(text, GPUS, NODES)
    return make_plan(MACHINE, GPUS, NODES, select_cases((), (suite,)), SETTINGS, pairs=pairs)


def paths(plan: Plan, case: str) -> list[str]:
    """Return the paths of a case."""
    return [task.path for task in plan.runnable if task.name == case]


def test_between_gpus_only_in_the_direction_that_is_named() -> None:
    plan = plan_of("0:1,gpu3:GPU2")
    assert paths(plan, "device_to_device_memcpy_write_ce") == ["GPU0 -> GPU1", "GPU3 -> GPU2"]
    assert sorted(paths(plan, "device_to_device_memcpy_read_sm")) == ["GPU0 -> GPU1", "GPU3 -> GPU2"]
    assert paths(plan, "device_to_device_bidirectional_memcpy_write_ce") == ["GPU0 <-> GPU1", "GPU2 <-> GPU3"]
    assert paths(plan, "ipc_legacy_device_write_ce") == ["GPU0 -> GPU1", "GPU3 -> GPU2"]
    assert {task.pattern for task in plan.runnable}.isdisjoint({"ring", "all-pairs", "one-to-all", "bisect"})


def test_to_host_memory_and_within_a_gpu() -> None:
    plan = plan_of("0:NUMA1,2:2,NUMA0:3")
    assert paths(plan, "device_to_host_numa_memcpy_ce") == ["GPU0 -> NUMA1"]
    assert paths(plan, "host_numa_to_device_memcpy_ce") == ["NUMA0 -> GPU3"]
    assert paths(plan, "device_local_copy") == ["GPU2 -> GPU2"]
    assert paths(plan, "device_to_device_memcpy_write_ce") == []
    assert any("these cases measure none of the pairs" in note for note in plan.notes)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("0", "expected two ends such as 0:1 or GPU0:NUMA1"),
        ("0:1:2", "expected two ends"),
        ("0:x", "'x' is neither a GPU (0, GPU0) nor a NUMA node (NUMA0)"),
        ("0:9", "GPU9 is not among those measured: GPU0, GPU1, GPU2, GPU3"),
        ("NUMA7:0", "NUMA node 7 is not among those measured: 0, 1"),
        ("", "expected two ends"),
    ],
)
def test_what_is_no_path_is_refused_with_what_is_one(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_pairs(text, GPUS, NODES)
    assert sentence in str(caught.value)


def test_a_pair_that_no_chosen_case_measures_is_refused() -> None:
    with pytest.raises(UsageError, match="none of the chosen cases measures a single path"):
        plan_of("0:1", "host")


def test_a_dry_run_in_json_is_the_plan(egmctl: RunEgmctl) -> None:
    ended = egmctl("bench", "--dry-run", "--machine", "gb200-tray", "--pair", "0:1", "--quick", "--json")
    assert ended.code == 0
    document = json.loads(ended.out)
    schema = json.loads((ROOT / "docs/schemas/plan.schema.json").read_text())
    jsonschema.Draft202012Validator(schema).validate(document)
    result = document["result"]
    assert document["machine"]["name"] == "gb200-tray"
    assert {m["case"]: len(m["flows"]) for m in result["tasks"]} == {
        "device_to_device_memcpy_write_ce": 1,
        "device_to_device_memcpy_read_ce": 1,
        "device_to_device_memcpy_write_sm": 1,
        "device_to_device_bidirectional_memcpy_write_ce": 2,
        "device_to_device_latency_sm": 1,
    }
    assert [step["tasks"] for step in result["steps"]] == [[n] for n in range(5)]
    assert result["memory"] == [{"place": f"GPU{n}", "bytes": 1024 * MIB} for n in (0, 1)]
    assert {gpu["uuid"] for gpu in result["gpus"]} == {None}


def test_a_dry_run_of_many_ranks_has_json_too(egmctl: RunEgmctl) -> None:
    ended = egmctl("bench", "--dry-run", "--suite", "fabric", "--ranks", "8", "--machine", "gb200-nvl72", "--json")
    document = json.loads(ended.out)
    assert (document["schema"], document["result"]["ranks"], document["result"]["nodes"]) == ("egmctl.cost/2", 8, 2)
    assert document["result"]["seconds"] > 0
