"""What doctor --active asks, and machines with its answers."""

from __future__ import annotations

import json
from typing import Any

from egmctl.doctor.checks.active import KINDS
from tests.conftest import RunEgmctl
from tests.fake.node import FakeNode

ONLY_ACTIVE = tuple(word for check in KINDS for word in ("--check", check))


def active(
    egmctl: RunEgmctl, node: FakeNode, *arguments: str, faults: str = "", **variables: str
) -> tuple[int, list[dict[str, Any]]]:
    """Run the command on a fake node; return its exit code and the findings."""
    environment = node.environment(faults) | variables
    done = egmctl("doctor", "--active", "--json", *arguments, env=environment, timeout_s=280)
    assert "Traceback" not in done.err
    findings: list[dict[str, Any]] = json.loads(done.out)["result"]["findings"]
    return done.code, findings
