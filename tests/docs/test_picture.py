"""The README's picture of a failing doctor shows what the command says of that recorded machine.

``EGMCTL_UPDATE_README=1 pytest tests/docs`` has the command draw it anew.
"""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree

from egmctl.facts import record
from tests.conftest import ROOT, RunEgmctl
from tests.doctor.scenes import RECORDED

PICTURE = ROOT / "docs/images/doctor.svg"
SCENE = "h200-v2-cgroup-all-asked-for"


def test_the_picture_shows_what_the_command_says(egmctl: RunEgmctl, tmp_path: Path) -> None:
    recorded = tmp_path / "node.json"
    recorded.write_text(record.text(RECORDED[SCENE].machine()))
    arguments = ("doctor", "--machine", recorded, *RECORDED[SCENE].options, "-q")
    drawn = tmp_path / "doctor.svg"
    assert egmctl(*arguments, "-o", drawn).code == 1
    if os.environ.get("EGMCTL_UPDATE_README"):
        PICTURE.parent.mkdir(exist_ok=True)
        PICTURE.write_text(drawn.read_text())
    # Word by word: another version of rich may draw the same text otherwise.
    assert _words(PICTURE) == _words(drawn)
    said = egmctl(*arguments).out
    assert set(said.split()) <= set(_words(drawn))


def _words(picture: Path) -> list[str]:
    texts = ElementTree.parse(picture).iter("{http://www.w3.org/2000/svg}text")  # noqa: S314
    return [word for text in texts for word in (text.text or "").replace("\xa0", " ").split()]
