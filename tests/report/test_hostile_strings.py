"""Whatever text a document holds, no view lets a control character out, and no cell of CSV is a formula."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import types
import typing
from collections.abc import Iterable, Mapping
from enum import Enum
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from egmctl import saved
from egmctl.comparison import compare
from egmctl.model.codec import field_types, to_json
from egmctl.model.record import Spelling
from egmctl.report.kinds import BENCH, BRINGUP, COMPARISON, DOCTOR, FLEET, TOPO, Format, Kind
from tests.answers import render
from tests.fuzz.documents import original

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


def poisoned_file(kind: str, folder: Path) -> Path:
    """Write a document of a command, every string in its result hostile."""
    path = folder / f"{kind}.json"
    path.write_bytes(original(kind, folder))
    document = json.loads(path.read_text())
    result = saved.load(path).result
    bad = to_json(poisoned(type(result), result)) | {"machines": document["result"]["machines"]}
    path.write_text(json.dumps({**document, "result": bad}))
    return path


def examine(format: Format, shown: str) -> None:
    assert not [char for char in shown if not char.isprintable() and char != "\n"], format
    assert "<script>" not in shown or format not in (Format.HTML, Format.SVG, Format.JUNIT)
    if format is Format.CSV:
        rows = list(csv.reader(io.StringIO(shown)))
        assert rows
        for cell in (cell for row in rows for cell in row):
            assert not cell.startswith(("=", "+", "@")), cell
            assert not cell.startswith("-") or float(cell) < 0, cell


def examine_all(result: object, formats: Iterable[Format]) -> None:
    for format, verbose in product(formats, (0, 2)):
        examine(format, str(render(result, format, verbose=verbose)))


@pytest.mark.parametrize("kind", [BENCH, TOPO, DOCTOR], ids=lambda kind: kind.name)
def test_a_result_and_its_comparison_with_another(tmp_path: Path, kind: Kind) -> None:
    path, other = poisoned_file(kind.name, tmp_path), tmp_path / "other.json"
    examine_all(saved.viewed(saved.load(path)), kind.formats)
    document = json.loads(path.read_text())
    if kind is BENCH:
        fewer = document["result"]["measurements"][1:]
        document["result"] |= {"measurements": fewer, "verdict": None, "doubts": [], "causes": []}
    other.write_text(json.dumps(document))
    examine_all(compare([saved.load(path), saved.load(other)]), COMPARISON.formats)


@pytest.mark.parametrize(("name", "kind"), [("bringup", BRINGUP), ("fleet", FLEET), ("comparison", COMPARISON)])
def test_what_is_made_of_several_results(tmp_path: Path, name: str, kind: Kind) -> None:
    path = tmp_path / "it.json"
    path.write_bytes(original(name, tmp_path))
    result = saved.viewed(saved.load_any(path))
    bad = poisoned(type(result), result)
    assert json.dumps(to_json(bad)).count(json.dumps(HOSTILE)) > 5
    examine_all(bad, kind.formats)
