"""The program with which docs/measurement.md begins measures one path, and believes no wrong byte."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, ended
from tests.fake.plugin import MakeFakeNode

pytestmark = pytest.mark.processes


def program() -> str:
    (first, *_) = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "docs/measurement.md").read_text(), re.MULTILINE | re.DOTALL
    )
    return str(first)


@pytest.mark.parametrize(
    ("faults", "code", "words"),
    [("", 0, r"NUMA0 -> 0000:00:06\.0: [0-9]+\.[0-9]{2} GB/s\n"), ("cuMemcpyAsync@16=corrupt:3", 1, "")],
)
def test_it_prints_a_rate_or_says_that_it_is_not_to_be_believed(
    fake_node: MakeFakeNode, tmp_path: Path, faults: str, code: int, words: str
) -> None:
    script = tmp_path / "one_number.py"
    script.write_text(program())
    node = fake_node("hgx-h200x4")
    done = ended(
        [sys.executable, str(script), "0000:00:06.0", "0"], env=node.environment(faults) | {"PYTHONPATH": str(ROOT)}
    )
    assert done.code == code, done.err
    assert re.fullmatch(words, done.out)
    assert ("is not to be believed" in done.err) == bool(faults)
