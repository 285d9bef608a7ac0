"""``egmctl bringup`` by the ranks of an MPI job on fake nodes: one answer for all nodes and the fabric between them."""

from __future__ import annotations

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.doctor.machines import patched
from tests.fake.plugin import MakeFakeNode
from tests.mpi.nodes import IMPATIENT, RECOVER, Place, egmctl_under_mpi, tray, wait_for
from tests.schemas import validate

pytestmark = pytest.mark.processes


@pytest.mark.long
def test_a_sick_node_of_several_ranks_is_named_and_the_fabric_is_measured(
    fake_node: MakeFakeNode, tmp_path: Path
) -> None:
    sick = patched(tray("rack1-n2"), "gpus[1].nvml.nvlinks[4]", active=False)
    places = [Place(fake_node(machine), 2) for machine in (tray("rack1-n1"), sick)]
    written, page = tmp_path / "rack.json", tmp_path / "rack.html"
    done = egmctl_under_mpi(places, "bringup", "-o", "-", "-o", written, "-o", page, little=True)
    document = json.loads(written.read_text())
    validate(document, "fleet")
    lines = [line for line in done.out.splitlines() if line and not line.startswith("FAKE")]
    assert lines[0].startswith("NO-GO: ")
    # On a busy machine the fake GPUs' times may break more paths, which are then named before it.
    assert "GPU1 of rack1-n2: 17 of 18 NVLinks are active" in " ".join(done.out.split())
    result = document["result"]
    assert [answer["node"] for answer in result["answers"]] == ["rack1-n1", "rack1-n2"]
    assert result["fabric"]["run"]["measurements"]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["dies", "hangs"])
def test_a_node_whose_task_dies_or_hangs_is_named_in_the_answer_and_the_job_ends(
    fake_node: MakeFakeNode, tmp_path: Path, number: int
) -> None:
    written = tmp_path / "rack.json"
    places = [Place(fake_node(tray(f"rack1-n{n}")), 1) for n in (1, 2)]
    arguments = ("bringup", "--gpus", "0", "-o", written)
    with ThreadPoolExecutor() as beside:
        job = beside.submit(egmctl_under_mpi, places, *arguments, options=RECOVER, program=IMPATIENT, timeout_s=200)
        wait_for(lambda: bool(places[1].node.calls("cuEventElapsedTime")), job)
        places[1].signal_commands(number)
        done = job.result()
    result = json.loads(written.read_text())["result"]
    assert [answer["reach"] for answer in result["answers"]] == ["answered", "timed-out"]
    assert result["fabric"]["reason"] == "no answer from rank 1 on rack1-n2"
    assert "rack1-n2 gave no answer (timed-out)" in " ".join(done.out.split())
