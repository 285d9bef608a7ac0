"""Every driver call that doctor makes for facts, failing with each of two errors: no check passes for want of it.

The rule is that of ``test_unread.py``: what the failing call took away, and could make a check fail, that check tells.
Each case is one child on a fake node; the calls are taken from a run without faults.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path as File
from typing import Any

import pytest

from egmctl.doctor.check import EVERYTHING, Check
from egmctl.doctor.runner import CHECKS, _findings
from egmctl.facts import replay
from egmctl.facts.collect import collect
from egmctl.model.codec import JsonValue
from egmctl.model.finding import Finding, Status
from egmctl.model.machine import Machine
from tests.doctor.machines import of_two_gpus
from tests.doctor.nvml_faults import here, joined, outcomes
from tests.doctor.unread import Path, Readings, decides, is_told, shape, suffices, value_at
from tests.fake.node import FakeNode

pytestmark = [pytest.mark.long, pytest.mark.processes, pytest.mark.needs("cc")]

ERRORS = {"nvml": (999, 15), "cuda": (999, 46)}
"""Unknown Error and GPU is lost; CUDA_ERROR_UNKNOWN and CUDA_ERROR_DEVICE_UNAVAILABLE."""
SECTIONS = ("host", "gpus", "pairs", "switches", "nics", "driver", "process", "confinement", "system", "kernel_log")
HARMLESS = ("nvmlErrorString", "nvmlShutdown", "cuGetErrorName", "cuGetErrorString", "cuGetProcAddress")


class Node:
    """A fake node of two GPUs of a machine, and what is known of it without a fault."""

    def __init__(self, name: str, directory: File, patch: pytest.MonkeyPatch) -> None:
        self.fake = FakeNode(of_two_gpus(replay.load_machine(name)), directory)
        with here(self.fake):
            self._files = collect(SECTIONS, cuda=False)
        self.answers: dict[str, JsonValue] = {}
        self.calls: dict[str, list[str]] = {}
        for library in ERRORS:
            before = len(self.fake.calls())
            ((_, answer),) = outcomes(self.fake, [""], target=f"egmctl.facts.{library}:read")
            assert not isinstance(answer, Exception)
            self.answers[library] = answer
            made = (call.name for call in self.fake.calls()[before:])
            self.calls[library] = [call for call in dict.fromkeys(made) if call not in HARMLESS]
        self.machine = self.joined({})
        self.well = {check.id: _judged(check, self.machine) for check in CHECKS}
        self.deciding = dict(self._deciding(patch))

    def joined(self, failed: dict[str, Any]) -> Machine:
        """Return the machine where a library has answered so, and the other one well."""
        answers = self.answers | failed
        return joined(self._files, answers["nvml"], answers["cuda"])

    def _deciding(self, patch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[Path]]]:
        """Yield the facts that decide over each check that passes."""
        for check in CHECKS:
            well = self.well[check.id]
            if not any(finding.status is Status.PASS for finding in well):
                continue
            places: dict[str, list[Path]] = defaultdict(list)
            with patch.context() as noting:
                for path in Readings(noting).of(self.machine, functools.partial(_judged, check)):
                    places[shape(path)].append(path)
            yield check.id, [p for paths in places.values() if decides(check, self.machine, paths, well) for p in paths]

    def silent(self, machine: Machine) -> list[str]:
        """Return the checks that pass all the same without a fact that decides over them."""
        found = []
        for check in CHECKS:
            lost = [path for path in self.deciding.get(check.id, ()) if _is_gone(machine, path)]
            now = _judged(check, machine) if lost else ()
            many = _by_shape(lost)
            found += [
                f"{check.id}: {shape(path)}"
                for path in lost
                if not is_told(self.machine, path, self.well[check.id], now)
                and not suffices(check, shape(path), many[shape(path)])
            ]
        return sorted(set(found))


def _judged(check: Check, machine: Machine) -> tuple[Finding, ...]:
    return tuple(_findings(check, machine, EVERYTHING))


def _is_gone(machine: Machine, path: Path) -> bool:
    """Say whether a fact is null, in a record that is there: a GPU that is lost is told once."""
    try:
        return value_at(machine, path[:-1]) is not None and value_at(machine, path) is None
    except (AttributeError, IndexError, KeyError, TypeError):
        return False


def _by_shape(paths: Iterable[Path]) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for path in paths:
        counts[shape(path)] += 1
    return counts


@pytest.fixture(scope="module", params=["hgx-h200x4", "gb200-tray"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Node:
    with pytest.MonkeyPatch.context() as patch:
        return Node(request.param, tmp_path_factory.mktemp("node"), patch)


@pytest.mark.parametrize("library", ERRORS)
def test_a_call_that_fails_makes_nothing_pass(node: Node, library: str) -> None:
    plans = [f"{call}=error:{number}" for call in node.calls[library] for number in ERRORS[library]]
    assert len(plans) > 10, "the calls were not found"
    silent = {}
    for plan, outcome in outcomes(node.fake, plans, target=f"egmctl.facts.{library}:read"):
        if found := node.silent(node.joined({library: outcome})):
            silent[plan] = found
    assert silent == {}
