"""The text of ``egmctl topo`` for each shipped machine, compared with the file beside it, byte for byte.

After a change that is meant, ``EGMCTL_WRITE_GOLDEN=1 pytest tests/replay/test_golden.py`` writes the files anew; look
at the difference before committing it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from egmctl.facts import replay
from tests.conftest import RunEgmctl
from tests.fake.plugin import MakeFakeNode
from tests.golden import compare
from tests.in_process import run

FOLDER = Path(__file__).parent


@pytest.mark.parametrize("machine", replay.machine_names())
def test_text_and_that_it_fits_80_columns(machine: str) -> None:
    done = run("topo", "--machine", machine)
    assert done.code == 0
    compare(done.out, FOLDER / machine / "topo.txt")
    for line in (*done.out.splitlines(), *run("topo", "-v", "--machine", machine).out.splitlines()):
        assert len(line) <= 80 or "https://" in line, line
        assert line == line.rstrip(), line


def test_verbose_text() -> None:
    done = run("topo", "--machine", "gb200-tray", "-v", "--gpus", "0")
    assert done.code == 0
    compare(done.out, FOLDER / "gb200-tray" / "topo-v-gpu0.txt")


# --- on a live node: real bindings and real processes over the fake driver --------------------------------------------


def blocks(text: str) -> dict[str, str]:
    """Return the blocks of a text by their titles."""
    return {block.partition("\n")[0]: block for block in text.strip().split("\n\n")}


@pytest.mark.long
@pytest.mark.parametrize("name", ["gb200-tray", "gb200-nvl72", "gh200x4"])
def test_a_live_node_looks_like_its_model(egmctl: RunEgmctl, fake_node: MakeFakeNode, name: str) -> None:
    done = egmctl("topo", env=fake_node(name).environment())
    assert (done.code, done.err) == (0, "")
    live, modelled = blocks(done.out), blocks((FOLDER / name / "topo.txt").read_text())
    titles = [title for title in modelled if not title.startswith(("MODEL of", "4 NVIDIA", "╭"))]
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


def test_without_the_libraries_topo_says_what_the_container_needs(egmctl: RunEgmctl, fake_node: MakeFakeNode) -> None:
    done = egmctl("topo", env=fake_node("gb200-tray", libraries=()).environment())
    assert done.code == 3
    assert " ".join(done.out.split()).startswith(
        "NOT DETERMINED: 4 NVIDIA GPUs are on the PCI bus and the driver is loaded, but its library NVML "
    )
    assert "NVIDIA_DRIVER_CAPABILITIES=compute,utility" in done.out
