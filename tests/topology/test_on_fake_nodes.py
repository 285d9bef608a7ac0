"""``egmctl topo`` as on a live node: real bindings and real processes over the fake driver."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from egmctl.facts import replay
from egmctl.facts.collect import collect
from egmctl.model.machine import Machine
from egmctl.report.kinds import Format, render
from egmctl.topology.topology import topology
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


class TestWhatIsMissing:
    def test_nvml_finds_no_driver(self, egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
        done = egmctl("topo", env=fake_node("gb200-tray").environment(faults="nvmlInit=error:9"))
        assert done.code == 3
        assert "NVML_ERROR_DRIVER_NOT_LOADED" in done.out
        assert "GPU3  " in done.out

    def test_the_libraries_are_not_there(self, egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
        done = egmctl("topo", env=fake_node("gb200-tray", libraries=()).environment())
        assert done.code == 3
        assert " ".join(done.out.split()).startswith(
            "NOT DETERMINED: 4 NVIDIA GPUs are on the PCI bus and the driver is loaded, but its library NVML "
        )
        assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in done.out

    @pytest.mark.long
    def test_cuda_has_no_device(self, egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
        done = egmctl("topo", env=fake_node("gb200-tray").environment(faults="cuInit=error:100"))
        assert done.code == 0
        assert "CUDA fails (cuInit: CUDA_ERROR_NO_DEVICE" in done.out
        assert "NV18>C2C" in done.out

    @pytest.mark.long
    def test_nvml_is_too_old_for_the_egm_bit(self, egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
        done = egmctl("topo", env=fake_node("gb200-tray").environment(faults="nvmlDeviceGetCapabilities=missing"))
        assert done.code == 0
        words = " ".join(done.out.split())
        assert "4 FAKE NVIDIA GB200 on aarch64, EGM unknown: NVML is too old" in words

    @pytest.mark.long
    def test_a_call_that_hangs_costs_only_what_it_would_have_said(
        self, fake_node: MakeFakeNode, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name, value in fake_node("gb200-tray").environment(faults="cuInit=hang").items():
            monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
        monkeypatch.setattr("egmctl.facts.collect.DEADLINE_S", 12)
        seen: Machine = collect(("host", "gpus", "pairs", "driver"))
        words = " ".join(str(render(topology(seen), Format.TEXT)).split())
        assert "NV18>C2C" in words
        assert "CUDA did not answer in time" in words

    @pytest.mark.long
    def test_an_owner_that_no_library_lists_blocks_the_routes_over_it(
        self, egmctl: RunEgmctl, fake_node: MakeFakeNode
    ) -> None:
        whole = replay.load("gh200x4")
        gpus = whole.gpus or ()
        seen = {gpu.bus_id for gpu in gpus[:3]}
        pairs = tuple(pair for pair in whole.pairs or () if {pair.source, pair.target} <= seen)
        machine = replace(whole, gpus=(*gpus[:3], replace(gpus[3], nvml=None, cuda=None)), pairs=pairs)
        done = egmctl("topo", env=fake_node(machine).environment())
        assert done.code == 0
        assert "GPU0-2 to NUMA 3: blocked; GPU3: NVML does not list it" in done.out
