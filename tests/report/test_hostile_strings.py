"""Whatever text a document holds, no view lets a control character out, and no cell of CSV is a formula."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import types
import typing
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from egmctl import saved
from egmctl.comparison import compare
from egmctl.model.codec import field_types, to_json
from egmctl.model.record import Spelling
from egmctl.report.kinds import BENCH, BRINGUP, COMPARISON, DOCTOR, FLEET, TOPO, Format, render
from tests.conftest import RunEgmctl
from tests.fuzz.documents import original
from tests.saved.documents import bench_document, measured_report

HOSTILE = '=cmd|"/c calc"!A1 \x1b]0;title\x07\x1b[31m\x9b1m\x90\x00\r\u202e\u2028<script>alert(1)</script>'


def poisoned(kind: Any, value: Any) -> Any:
    """Return a value with every string in it, that has no spelling of its own, replaced by a hostile one."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if value is None:
        return None
    if origin is typing.Annotated:
        return value if any(isinstance(mark, Spelling) for mark in arguments) else poisoned(arguments[0], value)
    if origin in (typing.Union, types.UnionType):
        return poisoned(next(one for one in arguments if one is not types.NoneType), value)
    if origin is tuple:
        kinds = [arguments[0]] * len(value) if arguments[1:] == (Ellipsis,) else arguments
        return tuple(poisoned(one, item) for one, item in zip(kinds, value, strict=True))
    if origin is Mapping:
        return {key: poisoned(arguments[1], item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = field_types(type(value))
        changed = {name: poisoned(hint, getattr(value, name)) for name, hint in hints.items() if name != "machines"}
        made = {
            field.name: changed[field.name]
            for field in dataclasses.fields(value)
            if field.init and field.name in changed
        }
        return dataclasses.replace(value, **made)
    return HOSTILE if isinstance(value, str) and not isinstance(value, Enum) else value


@pytest.fixture
def files(egmctl: RunEgmctl, tmp_path: Path) -> dict[str, Path]:
    """Documents of every command, every string in their results hostile."""
    documents = {"bench": bench_document(measured_report("hgx-h200x4"))}
    for name in ("topo", "doctor"):
        documents[name] = json.loads(egmctl(name, "--machine", "hgx-h200x4", "--json").out)
    paths = {}
    for name, document in documents.items():
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(document))
        whole = saved.load(path)
        bad = to_json(poisoned(type(whole.result), whole.result))
        path.write_text(json.dumps({**document, "result": bad | {"machines": document["result"]["machines"]}}))
        paths[name] = path
    return paths


def examine(format: Format, shown: str) -> None:
    assert not [char for char in shown if not char.isprintable() and char != "\n"], format
    assert "<script>" not in shown or format not in (Format.HTML, Format.SVG, Format.JUNIT)
    if format is Format.CSV:
        rows = list(csv.reader(io.StringIO(shown)))
        assert rows
        for cell in (cell for row in rows for cell in row):
            assert not cell.startswith(("=", "+", "@")), cell
            assert not cell.startswith("-") or float(cell) < 0, cell


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "formats"), [("bench", BENCH.formats), ("topo", TOPO.formats), ("doctor", DOCTOR.formats)]
)
def test_results(files: dict[str, Path], name: str, formats: tuple[Format, ...]) -> None:
    result = saved.viewed(saved.load(files[name]))
    for format in formats:
        for verbose in (0, 2):
            examine(format, str(render(result, format, verbose=verbose)))


@pytest.mark.long
@pytest.mark.parametrize("name", ["bench", "topo", "doctor"])
def test_comparisons(files: dict[str, Path], tmp_path: Path, name: str) -> None:
    other = tmp_path / "other.json"
    document = json.loads(files[name].read_text())
    if name == "bench":
        document["result"]["measurements"] = document["result"]["measurements"][1:]
    other.write_text(json.dumps(document))
    found = compare([saved.load(files[name]), saved.load(other)])
    for format in COMPARISON.formats:
        examine(format, str(render(found, format)))


@pytest.mark.parametrize(
    ("kind", "formats"),
    [("bringup", BRINGUP.formats), ("fleet", FLEET.formats), ("comparison", COMPARISON.formats)],
    ids=lambda value: str(value)[:9],
)
def test_what_is_made_of_several_results(tmp_path: Path, kind: str, formats: tuple[Format, ...]) -> None:
    path = tmp_path / "it.json"
    path.write_bytes(original(kind, tmp_path))
    result = saved.viewed(saved.load_any(path))
    bad = poisoned(type(result), result)
    assert json.dumps(to_json(bad)).count(json.dumps(HOSTILE)) > 5
    for format in formats:
        for verbose in (0, 2):
            examine(format, str(render(bad, format, verbose=verbose)))
