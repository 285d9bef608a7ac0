"""Which profile a machine is of: by all of its signature, never by one string alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from egmctl.model.machine import Machine
from egmctl.verdict.profiles import all_profiles, choose, match_profile
from tests.doctor.machines import patched, shipped, with_gpu_denied

PROFILES = [profile for profile, _ in all_profiles()]
H200 = shipped("hgx-h200x4")


@pytest.mark.parametrize(
    ("machine", "profile"),
    [
        ("hgx-h200x4", "hgx-h200"),
        ("dgx-h100", "hgx-h100"),
        ("gh200", "gh200-480gb"),
        ("gb200-tray", "gb200-tray"),
        ("gb200-nvl72", "gb200-nvl72"),
    ],
)
def test_each_machine_is_of_one_profile_only(machine: str, profile: str) -> None:
    seen = shipped(machine)
    assert [one.name for one in PROFILES if match_profile(seen, one).fits] == [profile]
    assert choose(seen, PROFILES)[0] is next(one for one in PROFILES if one.name == profile)


@pytest.mark.parametrize(
    ("model", "name", "device_id", "profile"),
    [
        ("gh200", "NVIDIA GH200 120GB", 0x2342, "gh200-120gb"),
        ("gh200", "NVIDIA GH200 144G HBM3e", 0x2348, "gh200-144g"),
        ("gh200x2", "NVIDIA GH200 480GB", 0x2342, "gh200x2-480gb"),
    ],
)
def test_boards_of_one_kind_with_other_memory_are_of_another_profile(
    model: str, name: str, device_id: int, profile: str
) -> None:
    machine = patched(shipped(model), "gpus[*]", pci=(shipped("gh200").gpus or ())[0].pci)
    machine = patched(patched(machine, "gpus[*].pci", device_id=device_id), "gpus[*].nvml", name=name)
    assert [one.name for one in PROFILES if match_profile(machine, one).fits] == [profile]


@pytest.mark.parametrize("machine", ["hgx-h200x4", "dgx-h100", "gb200-tray"])
def test_a_node_of_which_one_gpu_is_denied_is_still_of_its_kind(machine: str) -> None:
    """The profile that fits what is known: NVML says nothing of the denied one."""
    denied = with_gpu_denied(shipped(machine), 1)
    assert [gpu.nvml is None for gpu in denied.gpus or ()].count(True) == 1
    chosen, why = choose(denied, PROFILES)
    assert chosen is not None, why
    assert chosen is choose(shipped(machine), PROFILES)[0]


def other_nvml(**changes: object) -> Machine:
    """HGX H200 with something else of every GPU: NVML's word is the last source of a name."""
    return patched(patched(H200, "gpus[*]", cuda=None, proc=None), "gpus[*].nvml", **changes)


def joined(nvlinks: int) -> Machine:
    """HGX H200 with so many NVLinks up between each pair."""
    return patched(H200, "pairs[*]", nvlink_count=nvlinks)


@pytest.mark.parametrize(
    ("machine", "why"),
    [
        (other_nvml(name="NVIDIA H200 NVL"), "no profile matches 4 x NVIDIA H200 NVL (10de:2335)"),
        (other_nvml(name="FAKE NVIDIA H200"), "no profile matches 4 x FAKE NVIDIA H200 (10de:2335)"),
        (other_nvml(nvlink_count=12), "hgx-h200 does not match: NVLinks per GPU 12, not 18"),
        (other_nvml(c2c_enabled=True), "hgx-h200 does not match: NVLink-C2C up, not absent"),
        (
            patched(H200, "gpus[*].pci", device_id=0x233B),
            "hgx-h200 does not match: PCI device id 10de:233b, not 10de:2335",
        ),
        (
            patched(H200, "gpus[0].nvml", name="NVIDIA H100 80GB HBM3"),
            "no profile matches 1 x NVIDIA H100 80GB HBM3 (10de:2335), 3 x NVIDIA H200 (10de:2335)",
        ),
        (joined(20), "hgx-h200 does not match: link NV20, not NV18"),
        (shipped("gh200x4"), "PCI device id unknown, not 10de:2342"),
        (with_gpu_denied(H200, 0, 1, 2, 3), "NVLinks per GPU unknown, not 18"),
        (patched(H200, "", gpus=()), "there is no GPU"),
    ],
)
def test_no_one_thing_is_enough(machine: Machine, why: str) -> None:
    chosen, said = choose(machine, PROFILES)
    assert chosen is None
    assert why in said


def test_a_share_of_the_node_is_of_its_kind() -> None:
    chosen, _ = choose(replace(H200, gpus=(H200.gpus or ())[:1], pairs=()), PROFILES)
    assert chosen is not None
    assert chosen.name == "hgx-h200"


def test_a_board_whose_links_are_down_is_still_of_its_kind_to_be_held_against_it() -> None:
    chosen, why = choose(joined(0), PROFILES)
    assert chosen is not None
    assert "no NVLink is up" in why
