"""``egmctl bench --suite ipc`` as a command on fake nodes: what it shows."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from tests.conftest import RunEgmctl
from tests.fake.plugin import MakeFakeNode
from tests.schemas import validate

CASES = ("--case", "ipc_posix_fd_device_write_ce", "--case", "ipc_socket_round_trip")
SMALL = ("bench", "--gpus", "0-1", "--numa", "1", "--size", "1M", "--samples", "2", "--copies", "2", *CASES)


@pytest.fixture(scope="module")
def run(egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run it once; return the folder with ``run.txt``, ``run.json`` and ``run.csv``."""
    node, folder = fake_node("gb200-tray"), tmp_path_factory.mktemp("run")
    files = [word for form in ("txt", "json", "csv") for word in ("-o", folder / f"run.{form}")]
    ended = egmctl(*SMALL, "-v", *files, env=node.environment(), timeout_s=280)
    assert ended.code == 0, ended.err
    assert node.leaks() == []
    return folder


def test_text_has_the_ratio_and_the_round_trips(run: Path) -> None:
    text = (run / "run.txt").read_text()
    assert "Between processes, beside the same path within one" in text
    assert "round trip of a message over a socket GPU(row) <-> GPU(column) (ns, p50)" in text
    assert "ratio" in text


def test_json_fits_its_schema_and_names_the_ranks(run: Path) -> None:
    document = json.loads((run / "run.json").read_text())
    validate(document, "bench")
    result = document["result"]
    assert [rank["label"] for rank in result["ranks"]] == ["GPU0", "GPU1"]
    copies = [m for m in result["measurements"] if m["case"] == "ipc_posix_fd_device_write_ce"]
    beside = [m for m in result["measurements"] if m["case"] == "device_to_device_memcpy_write_ce"]
    assert [m["in_process"] for m in copies] == [m["bandwidth_gb_s"]["median"] for m in beside]


def test_csv_says_who_opened_what_and_how(run: Path) -> None:
    rows = list(csv.DictReader(io.StringIO((run / "run.csv").read_text())))
    copies = [row for row in rows if row["case"] == "ipc_posix_fd_device_write_ce"]
    columns = ("destination_handle", "source_rank", "destination_rank", "initiator_rank")
    # With -v each sample has a row.
    assert list(dict.fromkeys(tuple(row[f"flow_{column}"] for column in columns) for row in copies)) == [
        ("posix-fd", "0", "1", "0"),
        ("posix-fd", "1", "0", "1"),
    ]
    assert all(float(row["in_process"]) > 0 for row in copies)


def test_ranks_leave_the_driver_alone_until_the_worker_has_measured(egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
    node = fake_node("gb200-tray")
    assert egmctl(*SMALL, env=node.environment(), timeout_s=280).code == 0
    calls = node.calls()
    worker, *ranks = dict.fromkeys(call.pid for call in calls if call.name == "cuDevicePrimaryCtxRetain")
    assert len(ranks) == 2
    copies = [place for place, call in enumerate(calls) if call.name == "cuMemcpyAsync" and call.pid == worker]
    first = next(place for place, call in enumerate(calls) if call.pid in ranks)
    assert first > copies[-1]


@pytest.mark.long
def test_a_process_without_kernels_ends_its_paths_in_all_processes(
    egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path: Path
) -> None:
    node = fake_node("gb200-tray")
    env = node.environment() | {"XDG_CACHE_HOME": str(tmp_path), "EGMCTL_NO_NVRTC": "1"}
    ended = egmctl(*SMALL, "--json", env=env, timeout_s=280)
    found = {(m["case"], m["status"], m["reason"]) for m in json.loads(ended.out)["result"]["measurements"]}
    missing = "kernels for this GPU are not in the cache, and NVRTC is not installed: pip install 'egmctl[cu13]'"
    assert {status for case, status, _ in found if case == "ipc_socket_round_trip"} <= {"ok", "unstable"}
    waived = [(status, why) for case, status, why in found if case != "ipc_socket_round_trip"]
    assert {status for status, _ in waived} == {"waived"}
    assert all(why.endswith(missing) for _, why in waived)
    assert node.leaks() == []


def test_list_and_dry_run_start_nothing(egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
    node = fake_node("gb200-tray")
    listed = egmctl("bench", "--list", "--suite", "ipc", env=node.environment())
    assert listed.code == 0
    assert "ipc_pool_host_numa_read_sm " in listed.out
    assert "mknod" in " ".join(listed.out.split())
    planned = egmctl("bench", "--dry-run", *SMALL[1:], env=node.environment())
    assert planned.code == 0
    assert "device_to_device_memcpy_write_ce" in planned.out
    assert node.calls("cuDevicePrimaryCtxRetain") == ()


@pytest.mark.long
def test_a_soak_measures_in_both_kinds_of_processes_again_and_again(egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
    environment = fake_node("gb200-tray").environment()
    attempts = 0
    # On a busy machine, one round may take longer than a short soak.
    for duration_s in ("1", "10", "60"):
        ended = egmctl(*SMALL, "--duration", duration_s, "--json", env=environment, timeout_s=280)
        result = json.loads(ended.out)["result"]
        assert ended.code == 0, result["problems"]
        assert {m["status"] for m in result["measurements"]} <= {"ok", "unstable"}
        attempts = min(m["attempts"] for m in result["measurements"])
        if attempts > 1:
            break
    assert attempts > 1
