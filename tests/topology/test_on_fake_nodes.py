"""``egmctl topo`` as on a live node: real bindings and real processes over the fake driver."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from egmctl.facts import replay
from egmctl.model.machine import Machine
from tests.conftest import RunEgmctl
from tests.fake.plugin import MakeFakeNode

GOLDEN = Path(__file__).resolve().parents[1] / "replay"


def blocks(text: str) -> dict[str, str]:
    """Return the blocks of a text by their titles."""
    return {block.partition("\n")[0]: block for block in text.strip().split("\n\n")}


@pytest.mark.long
@pytest.mark.parametrize("name", ["gb200-tray", "gb200-nvl72", "gh200x4"])
def test_a_live_node_looks_like_its_model(egmctl: RunEgmctl, fake_node: MakeFakeNode, name: str) -> None:
    done = egmctl("topo", env=fake_node(name).environment())
    assert (done.code, done.err) == (0, "")
    live, modelled = blocks(done.out), blocks((GOLDEN / name / "topo.txt").read_text())
    titles = [title for title in modelled if not title.startswith(("MODEL of", "4 NVIDIA"))]
    assert [live[title] for title in titles] == [modelled[title] for title in titles]
    assert "FAKE" in done.out.partition("\n\n")[0]
    assert "MODEL of" not in done.out


@pytest.mark.long
def test_a_recording_of_it_gives_the_same_text(egmctl: RunEgmctl, fake_node: MakeFakeNode, tmp_path: Path) -> None:
    environment = fake_node("gb200-nvl72").environment()
    assert egmctl("snapshot", "-o", tmp_path / "node.json", env=environment).code == 0
    live = egmctl("topo", env=environment)
    replayed = egmctl("topo", "--machine", tmp_path / "node.json")
    assert live.out == replayed.out


def owner_that_no_library_lists() -> Machine:
    whole = replay.load("gh200x4")
    *listed, last = whole.gpus or ()
    pairs = tuple(pair for pair in whole.pairs or () if last.bus_id not in (pair.source, pair.target))
    return replace(whole, gpus=(*listed, replace(last, nvml=None, cuda=None)), pairs=pairs)


@pytest.mark.long
@pytest.mark.parametrize(
    ("machine", "faults", "code", "words"),
    [
        ("gb200-tray", "nvmlInit=error:9", 3, ("NVML_ERROR_DRIVER_NOT_LOADED", "GPU3 ")),
        ("gb200-tray", "cuInit=error:100", 0, ("CUDA fails (cuInit: CUDA_ERROR_NO_DEVICE", "NV18>C2C")),
        (
            "gb200-tray",
            "nvmlDeviceGetCapabilities=missing",
            0,
            ("4 FAKE NVIDIA GB200 on aarch64, EGM unknown: NVML is too old",),
        ),
        (owner_that_no_library_lists(), "", 0, ("GPU0-2 to NUMA 3: blocked; GPU3: NVML does not list it",)),
    ],
    ids=["no driver", "no CUDA device", "NVML too old for the EGM bit", "an owner that no library lists"],
)
def test_what_is_missing_costs_only_what_it_would_have_said(
    egmctl: RunEgmctl, fake_node: MakeFakeNode, machine: Machine | str, faults: str, code: int, words: tuple[str, ...]
) -> None:
    done = egmctl("topo", env=fake_node(machine).environment(faults))
    assert done.code == code
    said = " ".join(done.out.split())
    assert [each for each in words if each not in said] == []


def test_without_the_libraries_topo_says_what_the_container_needs(egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
    done = egmctl("topo", env=fake_node("gb200-tray", libraries=()).environment())
    assert done.code == 3
    assert " ".join(done.out.split()).startswith(
        "NOT DETERMINED: 4 NVIDIA GPUs are on the PCI bus and the driver is loaded, but its library NVML "
    )
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in done.out
