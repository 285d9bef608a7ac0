"""Whatever a snapshot or a node's files hold, the doctor answers: no traceback, no check that breaks.

``EGMCTL_FUZZ=100000`` makes more of them than the usual 10,000.
"""

from __future__ import annotations

import copy
import json
import os
import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from egmctl import launch
from egmctl.doctor.check import Expectation, Scope
from egmctl.doctor.runner import CHECKS
from egmctl.errors import ChildFailed, UsageError
from egmctl.facts import replay
from egmctl.facts import replay as record
from egmctl.facts.collect import collect
from egmctl.facts.root import SYSROOT_VARIABLE
from egmctl.model.machine import SECTION_VERSIONS, Machine
from egmctl.report.kinds import DOCTOR
from tests.answers import diagnose, render
from tests.conftest import RunEgmctl
from tests.doctor.machines import shipped
from tests.doctor.scenes import scenes
from tests.facts.sysroot import grace_hopper
from tests.fake.sysroot import write_sysroot
from tests.invariants import broken_diagnosis
from tests.mutation import mend, mutate, mutated, spoil
from tests.tiers import seeds

COUNT = int(os.environ.get("EGMCTL_FUZZ", "10000"))
ROUNDS = 40
"""The mutations are spread over this many tests, so that each is short and they can run side by side."""
SEEDS = seeds(ROUNDS)


@pytest.mark.parametrize("seed", SEEDS)
def test_machines_with_any_values_of_their_types(seed: int) -> None:
    choice = random.Random(seed)  # noqa: S311
    originals = [scene.machine() for scene in scenes().values()]
    for _ in range(COUNT * 8 // 10 // ROUNDS):
        machine = mutated(choice.choice(originals), choice)
        # What does not fit together is never loaded. A probe made twice may both pass and fail.
        tried = Counter((probe.kind, probe.gpus, probe.numa_node, probe.nic) for probe in machine.probes or ())
        if not any(replay._faults(machine)) and max(tried.values(), default=1) == 1:
            examine(machine, choice)


@pytest.mark.parametrize("seed", SEEDS)
def test_documents_with_anything_in_them(tmp_path: Path, seed: int) -> None:
    choice = random.Random(seed)  # noqa: S311
    original = record.document(replay.load_machine("gh200"))
    path = tmp_path / "hostile.json"
    for _ in range(COUNT // 10 // ROUNDS):
        document = copy.deepcopy(original)
        for _ in range(choice.randint(1, 6)):
            mutate(document, choice, choice.choice(("", "\x1b[31m", 10**30, -1, 2.5, True, [], {}, None)))
        path.write_text(json.dumps(document))
        try:
            machine = replay.load_machine(str(path))
        except UsageError:
            continue
        examine(machine, choice)


@pytest.mark.parametrize("seed", SEEDS)
def test_files_with_anything_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    def no_child(*_arguments: Any, **_options: Any) -> Any:
        raise ChildFailed("no children here", how="crashed")

    monkeypatch.setattr(launch, "Child", no_child)
    monkeypatch.setattr(launch, "run", no_child)
    monkeypatch.setenv(SYSROOT_VARIABLE, str(tmp_path))
    choice = random.Random(seed)  # noqa: S311
    files = _tree(tmp_path, seed)
    for _ in range(COUNT // 10 // ROUNDS):
        held = spoil(files, choice)
        examine(collect(SECTION_VERSIONS, cuda=False), choice)
        mend(held)


@pytest.mark.long
@pytest.mark.parametrize("seed", seeds(12))
def test_real_processes(egmctl: RunEgmctl, tmp_path: Path, seed: int) -> None:
    choice = random.Random(seed)  # noqa: S311
    tree = tmp_path / "root"
    files = _tree(tree, seed)
    path = tmp_path / "hostile.json"
    formats = ("-v", "--brief", "--json", "--format=prom", "--format=nagios", "--format=junit", "--strict")
    for number in range(8):
        format = choice.choice(formats)
        if number % 2:
            held = spoil(files, choice)
            done = egmctl("doctor", format, env={SYSROOT_VARIABLE: str(tree)})
            mend(held)
        else:
            path.write_text(record.machine_text(mutated(shipped(choice.choice(replay.machine_names())), choice)))
            done = egmctl("doctor", format, "--machine", path)
        assert 0 <= done.code <= 4, done
        assert "Traceback" not in done.err + done.out, done
        assert "the check itself failed" not in done.out, done


def examine(machine: Machine, choice: random.Random) -> None:
    """Run every check over a machine and show what they find in one of the formats."""
    try:
        diagnosis = diagnose(machine, _scope(machine, choice), CHECKS)
        broken = [finding for finding in diagnosis.findings if finding.summary.startswith("the check itself failed")]
        assert broken == []
        assert broken_diagnosis(diagnosis) == []
        shown = str(render(diagnosis, choice.choice(DOCTOR.formats), verbose=choice.randint(0, 2)))
        assert all(line.isprintable() for line in shown.split("\n"))
    except BaseException:
        sys.stdout.write(record.machine_text(machine))
        raise


def _scope(machine: Machine, choice: random.Random) -> Scope:
    gpus = [gpu.bus_id for gpu in machine.gpus or ()]
    return Scope(
        gpus=tuple(choice.sample(gpus, choice.randint(0, len(gpus)))) if choice.random() < 0.3 else None,
        numa=(choice.randint(0, 2),) if choice.random() < 0.3 else None,
        expectation=choice.choice(
            (Expectation(), Expectation(gpus=8, nics=4, numa_nodes=2), Expectation(reference=machine))
        ),
    )


def _tree(directory: Path, seed: int) -> list[Path]:
    """Write the files of a node, a different one for each seed, and return them."""
    names = replay.machine_names()
    if seed % 4 == 0:
        grace_hopper(directory)
    else:
        write_sysroot(shipped(names[seed % len(names)]), directory)
    return sorted(path for path in directory.rglob("*") if path.is_file() and not path.is_symlink())
