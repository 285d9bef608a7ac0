"""Causes are upstream of their effects: device, module, access, platform, mode, fabric, start, log, feature.

The tables of causes are in that order too, so that a row in the wrong place is seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from egmctl.doctor import causes
from egmctl.doctor.causes import ON_FINDINGS, Rule
from egmctl.doctor.runner import CHECKS

TIERS: Mapping[str, tuple[str, ...]] = {
    "device": ("dev.fell-off-bus", "kernel.aer"),
    "module": ("drv.nouveau", "drv.flavour", "drv.versions", "dev.driver-binding", "dev.excluded"),
    "access": (
        *("env.limits", "dev.cgroup-restricted", "dev.nodes-missing", "dev.permissions", "dev.control-nodes"),
        "env.visible-devices",
    ),
    "platform": (
        *("numa.cmdline", "uvm.addressing-mode", "numa.auto-online", "numa.mode", "c2c.link", "numa.memory"),
        *("numa.cpuset-mems", "numa.mempolicy-syscalls"),
    ),
    "mode": ("gpu.mig", "gpu.cc-mode", "gpu.vgpu", "gpu.compute-mode"),
    "fabric": (
        *("fabric.management", "fabric.manager", "fabric.state", "fabric.domain"),
        *("nvlink.disabled", "nvlink.bw-mode", "nvlink.links", "nvlink.errors"),
    ),
    "start": ("drv.libraries", "dev.count-consistency", "pcie.link"),
    "log": ("kernel.xid", "kernel.driver-messages", "gpu.health"),
    "feature": tuple(
        check.id
        for check in CHECKS
        if check.id.startswith(("egm.", "p2p.", "imex.", "ipc.", "rdma.", "peers."))
        or check.id in ("fabric.alloc-active", "fabric.same-node-isolation")
    ),
}
"""The checks by tier, the most upstream first: what a device is, what drives it, who may open it, the platform and
the modes that it works in, the fabric, whether the libraries start on all that, what the driver logs, and features."""

AGAINST = {
    ("drv.libraries", "drv.versions"): "a library that does not start states no version",
    ("drv.libraries", "gpu.cc-mode"): "NVML states the mode",
    ("drv.libraries", "nvlink.bw-mode"): "NVML states the mode",
    ("drv.libraries", "fabric.domain"): "NVML states the domain",
    ("kernel.xid", "dev.count-consistency"): "the driver logs why it gave a GPU up",
    ("kernel.driver-messages", "dev.count-consistency"): "the driver logs why it could not start a GPU",
    ("kernel.driver-messages", "dev.driver-binding"): "the driver logs why it refused a GPU at its probe",
    ("p2p.status", "kernel.driver-messages"): "the driver logs what it refuses",
    ("imex.recovery", "kernel.driver-messages"): "the driver logs what IMEX does",
    ("imex.recovery", "gpu.health"): "the recovery that NVML reports of a GPU is that of its IMEX domain",
}
"""By cause and effect, why a cause is downstream of its effect."""

Pair = tuple[str, str]


def tier(check: str) -> int:
    (number,) = [number for number, checks in enumerate(TIERS.values()) if check in checks]
    return number


def pairs(rules: Iterable[Rule]) -> set[Pair]:
    return {(cause, effect) for rule in rules for cause in rule.causes for effect in rule.effects if cause != effect}


def upward(rules: Iterable[Rule]) -> set[Pair]:
    """Return the pairs of rules whose cause is downstream of its effect."""
    return {(cause, effect) for cause, effect in pairs(rules) if tier(cause) > tier(effect)}


def test_each_cause_is_upstream_of_its_effect_or_says_why_not() -> None:
    assert upward(ON_FINDINGS) == set(AGAINST)


def test_each_pair_that_is_turned_round_is_noticed() -> None:
    """Else two rows of different tiers could be swapped."""
    known = pairs(ON_FINDINGS)
    for cause, effect in known:
        if tier(cause) < tier(effect) and (effect, cause) not in known:
            turned = Rule((effect,), (cause,), lambda *_: True)
            assert upward([*ON_FINDINGS, turned]) != set(AGAINST), (cause, effect)


def tables() -> dict[str, list[tuple[str, ...]]]:
    """Return the causes of the rows of each table, in their order."""
    related, logged = (list(table) for table in (causes._RELATED, causes._LOGGED))
    single = ON_FINDINGS[len(related) + len(logged) :]
    return {
        "_RELATED": [(cause,) for cause in related],
        "_LOGGED": [(cause,) for cause in logged],
        "ON_FINDINGS": [rule.causes for rule in single],
    }


@pytest.mark.parametrize("table", tables())
def test_the_rows_of_a_table_go_upstream_to_downstream(table: str) -> None:
    order = [min(map(tier, row)) for row in tables()[table]]
    assert order == sorted(order)
    assert len(set(order)) > 3
