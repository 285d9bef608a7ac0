"""Which profile a machine is of: by all of its signature, never by one string alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from egmctl.model.gpu import Gpu
from egmctl.model.machine import Machine
from egmctl.verdict.profiles import choose, load_all, match_profile
from tests.doctor.machines import shipped, with_gpu_denied

PROFILES = [profile for profile, _ in load_all()]
H200 = shipped("hgx-h200x4")


def changed(machine: Machine, changes: dict[str, Any]) -> Machine:
    """Return the machine with something else of every GPU."""

    def other(gpu: Gpu) -> Gpu:
        assert gpu.pci is not None
        assert gpu.nvml is not None
        return replace(
            gpu,
            pci=replace(gpu.pci, **{k: v for k, v in changes.items() if hasattr(gpu.pci, k)}),
            nvml=replace(gpu.nvml, **{k: v for k, v in changes.items() if hasattr(gpu.nvml, k)}),
            cuda=None,
            proc=None,
        )

    return replace(machine, gpus=tuple(map(other, machine.gpus or ())))


@pytest.mark.parametrize(
    ("machine", "profile"),
    [
        ("hgx-h200x4", "hgx-h200"),
        ("dgx-h100", "hgx-h100"),
        ("gh200", "gh200"),
        ("gb200-tray", "gb200-tray"),
        ("gb200-nvl72", "gb200-nvl72"),
    ],
)
def test_each_machine_is_of_one_profile_only(machine: str, profile: str) -> None:
    seen = shipped(machine)
    assert [one.name for one in PROFILES if match_profile(seen, one).fits] == [profile]
    assert choose(seen, PROFILES)[0] is next(one for one in PROFILES if one.name == profile)


def test_a_machine_whose_pci_ids_are_not_known_is_of_none() -> None:
    chosen, why = choose(shipped("gh200x4"), PROFILES)
    assert chosen is None
    assert "PCI device id unknown, not 10de:2342" in why


@pytest.mark.parametrize("machine", ["hgx-h200x4", "dgx-h100", "gb200-tray"])
def test_a_node_of_which_one_gpu_is_denied_is_still_of_its_kind(machine: str) -> None:
    """The profile that fits what is known: NVML says nothing of the denied one."""
    denied = with_gpu_denied(shipped(machine), 1)
    assert [gpu.nvml is None for gpu in denied.gpus or ()].count(True) == 1
    chosen, why = choose(denied, PROFILES)
    assert chosen is not None, why
    assert chosen is choose(shipped(machine), PROFILES)[0]


def test_a_node_of_which_all_gpus_are_denied_is_of_no_known_kind() -> None:
    chosen, why = choose(with_gpu_denied(shipped("hgx-h200x4"), 0, 1, 2, 3), PROFILES)
    assert chosen is None
    assert "NVLinks per GPU unknown, not 18" in why


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"name": "NVIDIA H200 NVL"}, "no profile matches 4 x NVIDIA H200 NVL (10de:2335)"),
        ({"name": "FAKE NVIDIA H200"}, "no profile matches 4 x FAKE NVIDIA H200 (10de:2335)"),
        ({"device_id": 0x233B}, "hgx-h200 does not match: PCI device id 10de:233b, not 10de:2335"),
        ({"nvlink_count": 12}, "hgx-h200 does not match: NVLinks per GPU 12, not 18"),
        ({"c2c_enabled": True}, "hgx-h200 does not match: NVLink-C2C up, not absent"),
    ],
)
def test_no_one_thing_is_enough(changes: dict[str, Any], why: str) -> None:
    chosen, said = choose(changed(H200, changes), PROFILES)
    assert chosen is None
    assert why in said


def test_a_share_of_the_node_is_of_its_kind() -> None:
    chosen, _ = choose(replace(H200, gpus=(H200.gpus or ())[:1], pairs=()), PROFILES)
    assert chosen is not None
    assert chosen.name == "hgx-h200"


def test_a_board_whose_links_are_down_is_still_of_its_kind_to_be_held_against_it() -> None:
    down = replace(H200, pairs=tuple(replace(pair, nvlink_count=0) for pair in H200.pairs or ()))
    chosen, why = choose(down, PROFILES)
    assert chosen is not None
    assert "no NVLink is up" in why


def test_more_links_than_the_platform_has_is_another_platform() -> None:
    more = replace(H200, pairs=tuple(replace(pair, nvlink_count=20) for pair in H200.pairs or ()))
    assert choose(more, PROFILES)[0] is None


def test_two_kinds_of_gpus_are_no_platform() -> None:
    first, *others = H200.gpus or ()
    assert first.nvml is not None
    mixed = replace(H200, gpus=(replace(first, nvml=replace(first.nvml, name="NVIDIA H100 80GB HBM3")), *others))
    assert choose(mixed, PROFILES)[0] is None


def test_without_gpus_there_is_nothing_to_match() -> None:
    assert choose(replace(H200, gpus=()), PROFILES) == (None, "there is no GPU")
