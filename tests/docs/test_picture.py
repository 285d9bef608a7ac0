"""The README's pictures show what the commands say of recorded machines and saved runs.

``EGMCTL_UPDATE_README=1 pytest tests/docs`` has the command draw it anew.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from xml.etree import ElementTree

from egmctl.facts import record
from tests.conftest import ROOT, RunEgmctl
from tests.doctor.scenes import RECORDED

IMAGES = ROOT / "docs/images"
SCENE = "h200-v2-cgroup-all-asked-for"


def test_doctor(egmctl: RunEgmctl, tmp_path: Path) -> None:
    recorded = tmp_path / "node.json"
    recorded.write_text(record.text(RECORDED[SCENE].machine()))
    _shows(egmctl, tmp_path, "doctor", "--machine", recorded, *RECORDED[SCENE].options, "-q")


def test_compare(egmctl: RunEgmctl, tmp_path: Path) -> None:
    for name in ("idle", "beside-traffic"):
        content = gzip.decompress((ROOT / f"tests/data/runs/{name}.json.gz").read_bytes())
        (tmp_path / f"{name}.json").write_bytes(content)
    _shows(egmctl, tmp_path, "compare", tmp_path / "idle.json", tmp_path / "beside-traffic.json", "--tolerance", "50")


def _shows(egmctl: RunEgmctl, folder: Path, command: str, *arguments: str | Path) -> None:
    """Fail unless the picture shows what the command says, which finds something wrong."""
    drawn, picture = folder / f"{command}.svg", IMAGES / f"{command}.svg"
    assert egmctl(command, *arguments, "-o", drawn).code == 1
    if os.environ.get("EGMCTL_UPDATE_README"):
        picture.write_text(drawn.read_text())
    # Word by word: another version of rich may draw the same text otherwise.
    assert _words(picture) == _words(drawn)
    said = egmctl(command, *arguments).out
    assert set(said.split()) <= set(_words(drawn))


def _words(picture: Path) -> list[str]:
    texts = ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")  # noqa: S314
    return [word for text in texts for word in (text.text or "").replace("\xa0", " ").split()]
