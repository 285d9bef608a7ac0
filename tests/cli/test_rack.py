"""What rank 0 of a job makes of the answers of its nodes, in process: one answer, whoever is sick or silent."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from egmctl.api import rack
from egmctl.api.doctor import Doctor
from egmctl.api.options import BringupOptions
from egmctl.cli.output import OutputOptions, Outputs, say
from egmctl.cli.progress import show_progress
from egmctl.errors import ExitCode, NothingToDo
from egmctl.model.answer import Answer, State
from egmctl.model.bringup import Bringup
from egmctl.model.codec import to_json
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.fleet import FabricRun
from egmctl.model.gpu import FAKE
from egmctl.model.machine import Machine
from egmctl.mpi.world import RanksMissing, World
from egmctl.report.kinds import BRINGUP
from egmctl.saved import load_any
from egmctl.verdict.bringup import bringup_answer
from tests.doctor.faults import OUTSIDE, healthy
from tests.doctor.machines import patched, shipped
from tests.report.texts import text_of
from tests.saved.documents import measured_report
from tests.schemas import validate

WELL = healthy()
HOSTS = ("tray01", "tray01", "tray02", "tray02", "tray03", "tray03")
SLOW = patched(WELL, "gpus[2].nvml.nvlinks[4]", active=False)
OUT = patched(WELL, "gpus[*].nvml", fabric=OUTSIDE)
BOARD = shipped("hgx-h200x4")
RUN = replace(measured_report("gb200-tray"), machines=(), answer=Answer(state=State.GOOD, word="PASS"))
MEASURED = FabricRun(run=RUN)
BAD = FabricRun(run=replace(RUN, answer=Answer(state=State.BAD, word="FAIL")))
GONE = FabricRun()
"""Stands for a fabric during which a rank dies."""
Message = tuple[Any, str] | None


def go(machine: Machine) -> Bringup:
    """Return the answer for a node on which nothing was left out."""
    return Bringup(answer=Answer(state=State.GOOD, word="GO"), diagnosis=diagnosed(machine), run=None)


def diagnosed(machine: Machine) -> Diagnosis:
    """Return the diagnosis of one of this file's machines, made once."""
    if id(machine) not in _DIAGNOSES:
        _DIAGNOSES[id(machine)] = Doctor().diagnose(machine, redacted=True)
    return _DIAGNOSES[id(machine)]


_DIAGNOSES: dict[int, Diagnosis] = {}


def sent(rank: int, machine: Machine | Callable[[], Bringup]) -> Message:
    """Return what the first rank of a node sends."""

    def node() -> Bringup:
        answer = bringup_answer(diagnosed(cast(Machine, machine)), None, not_measured="busy")
        return answer if answer.answer.state is State.BAD else go(cast(Machine, machine))

    message = rack._answer_of(HOSTS[rank], node if isinstance(machine, Machine) else machine)
    return cast(Message, json.loads(json.dumps(to_json(message))))


class Job:
    """Rank 0's connection to a job of three nodes with two ranks each, of which some send nothing."""

    rank, size, broken = 0, len(HOSTS), False

    def __init__(self, messages: dict[int, Message], *, interrupted: bool = False) -> None:
        self.messages, self.interrupted = messages, interrupted

    def share(self, _kind: object, read: Callable[[], str], *_: object) -> tuple[str, list[str]]:
        read()
        return HOSTS[0], [*HOSTS]

    def gather(self, own: Any, _timeout_s: float) -> dict[int, Any]:
        if self.interrupted:
            self.interrupted = False
            raise KeyboardInterrupt
        self.broken = len(self.messages) < len(HOSTS) - 1
        return {0: json.loads(json.dumps(own)), **self.messages}

    def all_gather(self, *_: object) -> list[None]:
        assert not self.broken, "nobody would come"
        return []


def hooks(outputs: Outputs) -> rack.Hooks:
    """Return what a job does with these outputs."""
    return rack.Hooks(ready=outputs.check, say=say, progress=lambda: show_progress(quiet=True))


Ask = Callable[..., tuple[ExitCode, dict[str, Any], str]]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Ask:
    """Return the exit code, the result and the text of a job's answer."""

    def ask(
        job: Job, own: Machine = WELL, fabric: FabricRun = MEASURED, file: str = "rack.json", **options: Any
    ) -> Any:

        def measured(*_: object) -> FabricRun:
            if fabric is GONE:
                raise RanksMissing((3,))
            return fabric

        monkeypatch.setattr(rack, "_fabric", measured)
        written = tmp_path / file
        outputs = OutputOptions(output=(written,), quiet=True).chosen(BRINGUP.formats)
        report = rack.bring_up_job(cast(World, job), lambda: go(own), BringupOptions(**options), hooks(outputs))
        assert report is not None
        outputs.show(report)
        code = report.exit_code
        document = json.loads(written.read_text())
        validate(document, "fleet")
        assert document["exit_code"] == code
        return code, document["result"], " ".join(text_of(load_any(written).result).split())

    return ask


def three(second: Machine | None = WELL, third: Machine | Callable[[], Bringup] | None = WELL) -> dict[int, Message]:
    """Return what the other five ranks send; without a node, its first rank sends nothing."""
    first = {2: second, 4: third}
    return {rank: sent(rank, m) if (m := first.get(rank)) else None for rank in range(1, 6) if first.get(rank, WELL)}


def broken() -> Bringup:
    raise NothingToDo("the driver is gone")


@pytest.mark.parametrize(
    ("messages", "code", "words"),
    [
        (three, 0, "GO: 12 of 12 GPUs are ready in 1 NVLink domain; fabric "),
        (
            lambda: three(SLOW),
            1,
            "NO-GO: 11 of 12 GPUs are ready, 1 is not: GPU2 of tray02: 17 of 18 NVLinks are active; fabric ",
        ),
        (
            lambda: three(SLOW, SLOW),
            1,
            "NO-GO: 10 of 12 GPUs are ready, 2 are not: GPU2 of tray[02-03]: 17 of 18 NVLinks are active;",
        ),
        (
            lambda: three(third=OUT),
            3,
            "INCOMPLETE: 8 of 12 GPUs are ready, 4 are not: tray03 is outside the NVLink domain (clique 0); fabric ",
        ),
        (lambda: three(third=broken), 4, "tray03 gave no answer (failed) (4 GPUs assumed); fabric "),
        (
            lambda: three(third=None),
            4,
            "tray03 gave no answer (timed-out) (4 GPUs assumed); fabric not measured: no answer from rank 4 on tray03",
        ),
        (
            lambda: {rank: part for rank, part in three().items() if rank != 3},
            3,
            "no answer from rank 3 on tray02; 12 of 12 GPUs are ready in 1 NVLink domain Next: ",
        ),
    ],
)
def test_who_is_not_ready_is_named_in_the_first_sentence(
    answer: Ask, messages: Callable[[], dict[int, Message]], code: int, words: str
) -> None:
    ended, result, text = answer(Job(messages()))
    assert (ended, words in text) == (code, True), text[:500]
    assert [node["node"] for node in result["answers"]] == ["tray01", "tray02", "tray03"]


@pytest.mark.parametrize(
    ("fabric", "code", "words"),
    [
        (
            FabricRun(run=replace(RUN, answer=Answer(state=State.BAD, word="FAIL"))),
            1,
            "NO-GO: fabric FAIL; 3 of 3 nodes are ready",
        ),
        (GONE, 3, "INCOMPLETE: fabric not measured: no answer from rank 3 on tray02; 3 of 3 nodes are ready"),
        (
            FabricRun(run=replace(RUN, answer=Answer(state=State.INCOMPLETE, word="INCOMPLETE"))),
            3,
            "INCOMPLETE: fabric INCOMPLETE; 3 of 3 nodes are ready",
        ),
        (FabricRun(reason="no channel"), 3, "INCOMPLETE: fabric not measured: no channel; 3 of 3 nodes are ready"),
    ],
)
def test_a_bad_or_an_unmeasured_fabric_between_good_nodes_is_the_answer_and_comes_first(
    answer: Ask, fabric: FabricRun, code: int, words: str
) -> None:
    ended, _, text = answer(Job(three(BOARD, BOARD)), BOARD, fabric)
    assert (ended, words in text) == (code, True), text[:500]


def test_a_board_beside_trays_that_is_bad_is_not_hidden_behind_the_fabric(answer: Ask) -> None:
    bad = patched(BOARD, "gpus[2].nvml.nvlinks[4]", active=False)
    fabric = FabricRun(run=replace(RUN, answer=Answer(state=State.INCOMPLETE, word="INCOMPLETE")))
    code, _, text = answer(Job(three(WELL, bad)), fabric=fabric)
    assert code == 1
    assert "NO-GO: 8 of 8 GPUs are ready in 1 NVLink domain; fabric INCOMPLETE" in text


def test_a_rack_has_as_many_gpus_as_were_expected(answer: Ask) -> None:
    code, _, text = answer(Job(three()), expect="domain-gpus=16")
    assert code == 1
    assert "NO-GO: 12 of 16 GPUs are ready: these nodes have 12; fabric " in text


def test_an_interruption_gives_the_answers_that_there_are(answer: Ask) -> None:
    job = Job(three(SLOW, None), interrupted=True)
    code, result, text = answer(job)
    assert (code, result["finished"], job.broken) == (1, False, True), "what is proven comes before the interruption"
    assert [node["reach"] for node in result["answers"]] == ["answered", "answered", "interrupted"]
    assert "GPU2 of tray02: 17 of 18 NVLinks are active" in text
    assert "fabric not measured: interrupted" in text
    job = Job(three(), interrupted=True)
    assert answer(job, file="all.json")[0] is ExitCode.NOTHING
    assert job.broken, "the other ranks wait, and are aborted"


def test_a_rank_that_is_not_the_first_of_its_node_brings_up_nothing_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Second(Job):
        rank = 1

        def share(self, *_: object) -> tuple[str, list[str]]:
            return HOSTS[1], [*HOSTS]

        def gather(self, own: Any, _timeout_s: float) -> dict[int, Any]:
            assert own is None
            return {}

    def node() -> Bringup:
        raise AssertionError("brought up twice")

    monkeypatch.setattr(rack, "_fabric", lambda *_: MEASURED)
    outputs = OutputOptions(output=(tmp_path / "rack.json",)).chosen(BRINGUP.formats)
    assert rack.bring_up_job(cast(World, Second({})), node, BringupOptions(), hooks(outputs)) is None
    assert not list(tmp_path.iterdir())


def test_a_document_that_is_none_costs_its_own_node_only(answer: Ask) -> None:
    messages = three()
    packed = base64.b64encode(zlib.compress(b'{"schema": "no"}')).decode()
    messages[2] = ((messages[2] or ({},))[0], packed)
    code, result, text = answer(Job(messages))
    assert (code, [node["reach"] for node in result["answers"]]) == (4, ["answered", "garbage", "answered"])
    assert "tray02 gave no answer (garbage)" in text


def test_a_job_on_one_node_of_fake_gpus_says_that_they_are(answer: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a second node there is no comparison, which has this banner elsewhere."""
    monkeypatch.setattr(Job, "share", lambda *_: (HOSTS[0], [HOSTS[0]] * 6))
    fake = replace(RUN, gpus=tuple(replace(gpu, name=f"FAKE {gpu.name}") for gpu in RUN.gpus))
    _, result, text = answer(Job(dict.fromkeys(range(1, 6))), fabric=replace(MEASURED, run=fake))
    assert (len(result["answers"]), text.startswith(FAKE)) == (1, True)
