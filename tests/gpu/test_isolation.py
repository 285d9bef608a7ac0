"""``doctor --isolation`` on real GPUs: what kernels may read, the Xids that it leaves, and no trial on busy GPUs."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from tests.conftest import RunEgmctl
from tests.gpu.traffic import copying
from tests.gpu.usage import used_memory_mib

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpus")]


def values(finding: dict[str, Any]) -> dict[str, str]:
    return {evidence["source"]: evidence["value"] for evidence in finding["evidence"]}


def test_what_was_not_shared_is_closed_to_kernels_and_a_legacy_handle_opens_its_block(egmctl: RunEgmctl) -> None:
    before = used_memory_mib()
    ended = egmctl("doctor", "--isolation", "--json", timeout_s=240)
    result = json.loads(ended.out)["result"]
    found = [(finding["check"], finding["status"], finding["summary"]) for finding in result["findings"]]
    print(found, [values(finding) for finding in result["findings"]])  # noqa: T201 - with -s: what was seen
    assert "end with error 700" in ended.err
    *unshared, legacy = result["findings"]
    assert {finding["status"] for finding in unshared} == {"pass"}, found
    assert {values(finding)["kernel"] for finding in unshared} == {"700"}
    assert legacy["status"] in ("pass", "warn"), found
    if os.access("/dev/kmsg", os.R_OK):
        assert all("from this trial" in values(finding)["kernel log"] for finding in unshared)
    assert all(now <= then + 8 for now, then in zip(used_memory_mib(), before, strict=True))
    after = egmctl("bench", "--quick", "--no-verdict", "--json", timeout_s=120)
    assert after.code == 0, "the GPUs work as before"


def test_busy_gpus_are_refused(egmctl: RunEgmctl) -> None:
    with copying("to-host", seconds=20):
        ended = egmctl("doctor", "--isolation", timeout_s=60)
    assert ended.code == 3
    assert "needs idle GPUs" in ended.err
