"""A rack of 18 model trays, asked in process: ``rack(faults, ...)`` returns the report of the fleet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path

import pytest

from egmctl.api.doctor import Doctor
from egmctl.doctor.check import expectation
from egmctl.fleet import session
from egmctl.fleet.folder import new_folder
from egmctl.model.answer import State
from egmctl.model.bringup import Bringup
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.fleet import FleetReport, Launcher, NodeCommand, NodeResult, Reach, reach_counts
from egmctl.model.machine import Machine
from egmctl.model.record import Command
from egmctl.report.exports.json import result_json
from egmctl.saved import load
from egmctl.units import fold
from egmctl.verdict.bringup import bringup_answer
from tests.doctor.faults import healthy

TRAYS = tuple(f"tray{number:02}" for number in range(1, 19))


WELL = healthy()


Faults = Mapping[str, Machine | Reach]


_documents: dict[object, tuple[Machine, State, str]] = {}
"""Each with its machine, which is kept: what is deleted gives its id to another one."""


def document(machine: Machine, arguments: tuple[str, ...], command: Command) -> tuple[State, str]:
    """Return the state and the document of doctor or bringup on a node; each is made once."""
    key = id(machine), arguments, command
    if key not in _documents:
        expect = arguments[1] if "--expect" in arguments else None
        found = Doctor(expect=expect, strict="--strict" in arguments).diagnose(machine)
        result: Diagnosis | Bringup = (
            bringup_answer(found, None, not_measured="busy") if command is Command.BRINGUP else found
        )
        _documents[key] = machine, result.answer.state, result_json(result)
    _, state, text = _documents[key]
    return state, text


Ask = Callable[..., FleetReport]


@pytest.fixture
def rack(tmp_path: Path) -> Ask:
    """Return the report of a fleet of trays, healthy but for these, that were asked with these arguments."""

    def ask(
        faults: Faults, *arguments: str, nodes: tuple[str, ...] = TRAYS, command: Command = Command.DOCTOR
    ) -> FleetReport:
        folder = new_folder(tmp_path / "out", command, datetime.now(timezone.utc))
        answers = []
        for node in nodes:
            machine = faults.get(node, WELL)
            if isinstance(machine, Reach):
                answers.append(NodeResult(node=node, reach=machine, state=State.BROKE, reason="ssh: timed out"))
                continue
            state, text = document(machine, arguments, command)
            file = f"nodes/{node}.json"
            (folder.path / file).write_text(text)
            answers.append(NodeResult(node=node, reach=Reach.ANSWERED, state=state, file=file))
        asked = NodeCommand(
            command=command,
            arguments=arguments,
            nodes=nodes,
            remote_command="egmctl",
            version="",
            domain_gpus=expectation(arguments[1]).domain_gpus if "--expect" in arguments else None,
        )
        report = FleetReport(
            asked=asked,
            folded=fold(nodes),
            launcher=Launcher.SSH,
            folder="results",
            started_at="2026-11-20T22:00:00Z",
            finished=True,
            counts=reach_counts(answers),
            answers=tuple(answers),
        )
        return session.folded(report, lambda answer: load(folder.path / answer.file), lambda _sentence: None)

    return ask
