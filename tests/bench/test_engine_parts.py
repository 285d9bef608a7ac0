"""An engine has all its parts, or the type checker refuses it; what is asked about an engine its own file answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from egmctl.bench.case import End
from egmctl.bench.engines import engine_for
from egmctl.bench.engines.transfer import TransferEngine
from egmctl.bench.suites import CASES, FABRIC_CASES
from egmctl.model.measurement import Engine, MemoryKind, Quantity
from tests.conftest import ROOT

ALL_CASES = (*CASES, *FABRIC_CASES)

HEAD = """
from dataclasses import dataclass
from egmctl.bench.case import End
from egmctl.bench.engines.transfer import COMPARE_DESTINATION, Move, Mover, TransferEngine
from egmctl.gpu.timing import FlowParts
"""
WHOLE = """
@dataclass(frozen=True, kw_only=True)
class Bulk(TransferEngine):
    def launch(self, mover: Mover, move: Move) -> FlowParts:
        return mover.by_kernel("bulk_copy", move.destination, move.source, move.vectors, move.passes, move.slots)

BULK = Bulk(
    caption="bulk SM",
    counted="each byte copied, once",
    needs_kernels=True,
    carries=frozenset({End.SOURCE, End.DESTINATION}),
    verified_by=COMPARE_DESTINATION,
)
"""
LAUNCH = WHOLE[WHOLE.index("    def launch") : WHOLE.index("BULK =")]
PARTS = {
    "launch": (LAUNCH, "    pass\n\n", 'abstract class "Bulk" with abstract attribute "launch"'),
    "verification": ("    verified_by=COMPARE_DESTINATION,\n", "", 'Missing named argument "verified_by"'),
    "what it counts": ('    counted="each byte copied, once",\n', "", 'Missing named argument "counted"'),
    "its caption": ('    caption="bulk SM",\n', "", 'Missing named argument "caption"'),
    "its kernels": ("    needs_kernels=True,\n", "", 'Missing named argument "needs_kernels"'),
    "its ends": ("    carries=frozenset({End.SOURCE, End.DESTINATION}),\n", "", 'Missing named argument "carries"'),
}
MEMBER = """
from egmctl.compat import assert_never
from egmctl.model.task import Engine

def engine_for(engine: Engine) -> str:
    match engine:
        case Engine.COPY_ENGINE:
            return ""
        case _:
            assert_never(engine)
"""


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.processes
def test_an_engine_that_lacks_a_part_is_refused_by_the_type_checker(tmp_path: Path) -> None:
    files = {"whole": HEAD + WHOLE, "member": MEMBER}
    files |= {what: HEAD + WHOLE.replace(part, rest) for what, (part, rest, _) in PARTS.items()}
    paths = {what: tmp_path / f"{what.replace(' ', '_')}.py" for what in files}
    for what, text in files.items():
        paths[what].write_text(text)
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--follow-imports=silent",
        "--cache-dir",
        str(tmp_path / "cache"),
    ]
    ended = subprocess.run(
        [*command, *map(str, paths.values())], cwd=ROOT, env={"MYPYPATH": str(ROOT)}, capture_output=True, text=True
    )
    said = {what: [line for line in ended.stdout.splitlines() if path.name in line] for what, path in paths.items()}
    assert said["whole"] == [], ended.stdout + ended.stderr
    for what, (_, _, error) in PARTS.items():
        assert any(error in line for line in said[what]), (what, ended.stdout, ended.stderr)
    assert any("assert_never" in line for line in said["member"]), ended.stdout


@pytest.mark.parametrize("engine", Engine)
def test_every_engine_is_there_and_says_what_it_counts_if_it_measures_a_bandwidth(engine: Engine) -> None:
    found = engine_for(engine)
    assert found.caption
    bandwidths = [case.name for case in ALL_CASES if case.engine is engine and case.quantity is Quantity.BANDWIDTH]
    assert bool(found.counted) == bool(bandwidths)


def test_the_cases_have_memory_where_their_engine_moves_bytes() -> None:
    for case in ALL_CASES:
        engine = engine_for(case.engine)
        if isinstance(engine, TransferEngine):
            kinds = {End.SOURCE: case.source, End.DESTINATION: case.destination}
            assert {end for end, kind in kinds.items() if kind is not MemoryKind.REGISTERS} == engine.carries, case.name
