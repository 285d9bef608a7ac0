"""Nothing that was not read passes: of every check, each fact that it reads, taken away from healthy machines.

**The rule.** A fact *decides* over a check where some value of it makes the check fail or warn on a machine that is
healthy otherwise. Where such a fact could not be read, of one thing, of the last one, of all of them at once, and
where all of them could not, the check says something else than a pass of that thing: unknown, a fault, or a skip with
the reason. What a check reads only to show it, or to name a thing, decides over nothing.

The values that are tried are those that any machine of these tests has at that place, the faulty ones among them,
plus the ends of each type and the words that the checks' source knows. Facts that another source makes up for stand
in :data:`SUFFICES`.
"""

from __future__ import annotations

import functools
from collections import defaultdict

import pytest

from egmctl.doctor.check import EVERYTHING, Check
from egmctl.doctor.runner import CHECKS, _findings
from egmctl.model.finding import Status
from egmctl.model.machine import Machine
from egmctl.model.record import Reason, Unread
from tests.doctor.faults import PASSES, healthy
from tests.doctor.machines import patched, run_one, shipped
from tests.doctor.unread import Path, Readings, decides, is_told, shape, suffices, without

MACHINES = ("healthy", "hgx-h200x4", "dgx-h100", "gb200-tray")


@functools.cache
def machine_of(name: str, check: str) -> Machine:
    if name != "healthy":
        return shipped(name)
    return PASSES[check]() if check in PASSES else healthy()


@pytest.mark.parametrize("name", MACHINES)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: str(check.id))
def test_what_decides_and_was_not_read_does_not_pass(check: Check, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = machine_of(name, check.id)
    well = tuple(_findings(check, machine, EVERYTHING))
    if not any(finding.status is Status.PASS for finding in well):
        return
    places: dict[str, list[Path]] = defaultdict(list)
    with monkeypatch.context() as patch:
        for path in Readings(patch).of(machine, lambda read: tuple(_findings(check, read, EVERYTHING))):
            places[shape(path)].append(path)
    deciding = {place for place, paths in places.items() if decides(check, machine, paths, well)}
    silent = []
    for place, paths in places.items():
        if not any(one == place or one.startswith(f"{place}.") for one in deciding):
            continue
        for taken in dict.fromkeys((tuple(paths[:1]), tuple(paths[-1:]), tuple(paths))):
            findings = tuple(_findings(check, without(machine, taken), EVERYTHING))
            if not is_told(machine, taken[0], well, findings) and not suffices(check, place, len(taken)):
                silent.append(
                    (
                        place,
                        len(taken),
                        [(finding.status.value, finding.place.label, finding.summary) for finding in findings],
                    )
                )
    assert silent == []
    if any(not suffices(check, place, 2) for place in deciding):
        everything = [path for place in deciding if not suffices(check, place, 2) for path in places[place]]
        findings = tuple(_findings(check, without(machine, everything), EVERYTHING))
        assert not all(finding.status is Status.PASS for finding in findings), "all at once"


class TestHealth:
    """``gpu.health`` claims what was read, and no more."""

    def test_what_a_gpu_does_not_have_is_not_claimed(self) -> None:
        unread = dict.fromkeys(("remapped_rows_pending", "remapped_rows_failure"), Unread(reason=Reason.NOT_SUPPORTED))
        machine = patched(healthy(), "gpus[*].nvml", **dict.fromkeys(unread), unread=unread)
        assert run_one("gpu.health", machine).summary == "no uncorrected errors, no recovery action"


def test_a_gpu_that_cuda_lists_and_nvml_does_not_is_no_pass() -> None:
    finding = run_one("dev.count-consistency", without(healthy(), [("gpus", 1, "nvml")]))
    assert (finding.status, finding.place.label) == (Status.FAIL, "GPU1")
