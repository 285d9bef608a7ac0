"""What a change of a fact is worth, and runs that are no equals: interrupted, or beside other processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from egmctl.comparison import compare
from egmctl.comparison.facts import Fact, MachineFacts, Subject
from egmctl.comparison.worth import WORTH, Good, More, outcome_of
from egmctl.doctor.check import EVERYTHING
from egmctl.doctor.runner import CHECKS, diagnose
from egmctl.facts import replay
from egmctl.model.answer import GapKind, State
from egmctl.model.comparison import Comparison, Outcome
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.machine import Machine
from egmctl.model.record import Command
from egmctl.saved import Saved
from egmctl.verdict.answers import answered
from tests.comparison.runs import run, saved
from tests.doctor.machines import patched, shipped

H200 = shipped("hgx-h200x4")
OPPOSITE = {Outcome.WORSE: Outcome.BETTER, Outcome.BETTER: Outcome.WORSE, Outcome.DIFFERENT: Outcome.DIFFERENT}


def of(*files: Saved) -> Comparison:
    return answered(compare(files))


def kept(name: str, result: Diagnosis | Machine) -> Saved:
    kind = Command.SNAPSHOT if isinstance(result, Machine) else Command.DOCTOR
    return Saved(path=Path(f"{name}.json"), kind=kind, name=name, result=result, tool="egmctl 0.1.0")


def snapshots(before: Machine, after: Machine) -> Comparison:
    return of(kept("before", before), kept("after", after))


SIBLINGS: Mapping[str, tuple[dict[str, Any], Outcome]] = {
    "ECC off": ({"ecc_mode": False}, Outcome.WORSE),
    "1200 MHz at most": ({"sm_clock_max_mhz": 1200}, Outcome.WORSE),
    "4.4 GiB less": ({"memory_total_bytes": 136 << 30}, Outcome.WORSE),
    "a little less, as another driver keeps it": ({"memory_total_bytes": 150_000_000_000}, Outcome.DIFFERENT),
    "another VBIOS": ({"vbios": "96.00"}, Outcome.DIFFERENT),
}


@pytest.mark.parametrize(("changes", "outcome"), SIBLINGS.values(), ids=SIBLINGS)
def test_a_gpu_that_is_less_is_worse_and_the_other_way_round_better(changes: dict[str, Any], outcome: Outcome) -> None:
    changed = patched(H200, "gpus[1].nvml", **changes)
    there, back = snapshots(H200, changed), snapshots(changed, H200)
    assert {difference.outcome for difference in there.words} == {outcome}
    assert {difference.outcome for difference in back.words} == {OPPOSITE[outcome]}
    states = {Outcome.WORSE: State.BAD, Outcome.DIFFERENT: State.WARN}
    assert there.answer.state is states[outcome]


def test_another_layout_and_older_software_are_only_different() -> None:
    older = patched(patched(H200, "driver", driver_version="570.1"), "host", numa_nodes=())
    assert {difference.outcome for difference in snapshots(H200, older).words} == {Outcome.DIFFERENT}
    assert {difference.outcome for difference in snapshots(older, H200).words} == {Outcome.DIFFERENT}


@pytest.mark.parametrize("what", WORTH)
def test_swapped_files_swap_worse_and_better(what: str) -> None:
    worth = WORTH[what]
    subject = Subject("NIC" if what == "port state" else "GPU", "1", "ports 1 state" if what == "port state" else what)
    values = (worth.value, "otherwise") if isinstance(worth, Good) else (Fact.of(8, what), Fact.of(4, what))
    outcomes = [outcome_of(subject, *pair) for pair in (values, values[::-1])]
    assert outcomes[1] is OPPOSITE[outcomes[0]]
    assert Outcome.WORSE in outcomes
    if isinstance(worth, More):
        assert (outcomes[0] is Outcome.WORSE) is worth.better


def test_every_fact_of_the_table_is_one_that_a_machine_has() -> None:
    stated: set[str] = set()
    for name in (*replay.machine_names(), *replay.sick()):
        machine = shipped(name)
        for subject in (subject for parts in MachineFacts().of(machine).values() for part in parts for subject in part):
            words = subject.what.split(" ")
            stated |= {words[-1], " ".join(words[-2:])} | (
                {"port state"} if subject.what.endswith("1 state") else set()
            )
    assert set(WORTH) <= stated


def test_sizes_are_compared_as_numbers_and_not_as_their_texts() -> None:
    small, large = Fact.of(900 << 20, "memory_total_bytes"), Fact.of(1 << 40, "memory_total_bytes")
    assert outcome_of(Subject("GPU", "0", "nvml memory_total_bytes"), large, small) is Outcome.WORSE


def test_a_worse_machine_counts_for_results_of_doctor_too() -> None:
    def doctor(machine: Machine) -> Saved:
        return kept("doctor", diagnose(machine, EVERYTHING, CHECKS))

    worse = of(doctor(H200), doctor(patched(H200, "gpus[1].nvml", sm_clock_max_mhz=1200)))
    assert (worse.answer.state, worse.answer.word) == (State.BAD, "WORSE")
    assert worse.answer.sentence.startswith("GPU1 gpu.uniform: pass -> warn: maximum SM clock is 1200 MHz")
    older = of(doctor(H200), doctor(patched(H200, "gpus[*].nvml", vbios="96.00")))
    assert older.answer.state is State.GOOD, "what is only different between two results is told beside them"


# --- runs that are no equals -----------------------------------------------------------------------------------------


def test_an_interrupted_run_is_not_the_same() -> None:
    whole, part = run(), replace(run(), interrupted=True)
    for files in ((whole, part), (part, whole)):
        comparison = of(saved("one", files[0]), saved("other", files[1]))
        assert comparison.answer.state is State.INCOMPLETE
        assert GapKind.NOT_MEASURED in [gap.kind for gap in comparison.answer.gaps]
        assert "interrupted" in comparison.answer.sentence
    assert of(saved("one", whole), saved("other", whole)).answer.state is State.GOOD


def test_a_run_beside_which_others_used_a_gpu_is_not_the_same() -> None:
    idle = compare([saved("one", run()), saved("other", run())])
    one, other = idle.nodes
    busy = answered(replace(idle, nodes=(one, replace(other, busy=("GPU1",)))))
    assert (busy.answer.state, busy.answer.word) == (State.INCOMPLETE, "NOT COMPARED")
    assert "GPU1 in other" in busy.answer.sentence
    both = answered(replace(idle, nodes=tuple(replace(node, busy=("GPU1",)) for node in idle.nodes)))
    assert both.answer.state is State.GOOD
