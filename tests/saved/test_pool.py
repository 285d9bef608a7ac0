"""What results of a fleet have in common is decoded once, and nothing else of them is changed by that."""

from __future__ import annotations

import json
from pathlib import Path

from egmctl.comparison.facts import MachineFacts, joined_statements
from egmctl.model.codec import Pool
from egmctl.model.diagnosis import Diagnosis
from egmctl.model.record import Reason, Unread
from egmctl.saved import load
from tests.doctor.machines import patched, shipped
from tests.fuzz.documents import original


def test_a_file_is_loaded_as_without_a_pool_and_shares_what_is_equal(tmp_path: Path) -> None:
    text = original("doctor", tmp_path)
    document = json.loads(text)
    document["result"]["findings"][0]["summary"] = "another node says otherwise"
    document["result"]["machines"][0]["gpus"][0]["pci"]["current_width"] = 8
    one, other = tmp_path / "one.json", tmp_path / "other.json"
    one.write_bytes(text)
    other.write_text(json.dumps(document))
    pool = Pool()
    pooled = [load(path, pool) for path in (one, other)]
    assert pooled == [load(path) for path in (one, other)]
    first, second = (saved.result for saved in pooled)
    assert isinstance(first, Diagnosis)
    assert isinstance(second, Diagnosis)
    assert first.findings[0] is not second.findings[0]
    assert first.findings[1] is second.findings[1]
    assert first.machines[0].host is second.machines[0].host
    gpus, others = first.machines[0].gpus or (), second.machines[0].gpus or ()
    assert [gpu.pci is other.pci for gpu, other in zip(gpus, others, strict=True)] == [False, *[True] * (len(gpus) - 1)]


def test_numbers_that_are_equal_and_not_the_same_are_not_shared() -> None:
    assert len({Pool.key(Diagnosis, {"value": value}) for value in (1, 1.0, True, "1", None, 0.0, -0.0)}) == 7
    assert Pool.key(Diagnosis, {"value": 1}) != Pool.key(dict, {"value": 1})


def test_records_of_many_documents_stay_and_others_are_forgotten() -> None:
    pool, usual = Pool(), Pool.key(Diagnosis, {"value": "usual"})
    pool.keep(usual, "usual")
    for number in range(3 * Pool.LIMIT):
        pool.keep(Pool.key(Diagnosis, {"value": str(number)}), number)
        assert pool(usual, "") == "usual"
    assert pool(Pool.key(Diagnosis, {"value": "0"}), "") is None


def test_statements_about_equal_parts_are_one_object_and_those_about_others_are_their_own() -> None:
    machine = shipped("dgx-h100")
    width, uuid = patched(machine, "gpus[0].nvml.link", width=8), patched(machine, "gpus[0].nvml", uuid="GPU-1")
    unread = patched(machine, "host", unread={"hostname": Unread(reason=Reason.NO_PERMISSION)})
    facts = MachineFacts()
    first, other, same, denied = (facts.of(node) for node in (machine, width, uuid, unread))
    for node, stated in ((machine, first), (width, other), (uuid, same), (unread, denied)):
        alone = MachineFacts().of(node)
        assert {section: joined_statements(parts) for section, parts in stated.items()} == {
            section: joined_statements(parts) for section, parts in alone.items()
        }
    assert all(
        part is again for section, parts in first.items() for part, again in zip(parts, same[section], strict=True)
    )
    assert [part is again for part, again in zip(first["gpus"], other["gpus"], strict=True)] == [
        True,
        False,
        *[True] * 7,
    ]
    assert joined_statements(denied["host"]) != joined_statements(first["host"])
