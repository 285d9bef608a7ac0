"""Files of a newer egmctl: words and schemas that this version does not know cost nothing but themselves."""

from __future__ import annotations

import dataclasses
import enum
import json
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from egmctl import saved
from egmctl.errors import ExitCode, UsageError
from egmctl.model.codec import field_types
from egmctl.model.finding import Status
from egmctl.model.measurement import RunReport
from egmctl.report.kinds import Format, kind_of, render
from egmctl.verdict.answers import answered
from tests.fuzz.documents import original
from tests.in_process import run

KINDS = ("machine", "bench", "doctor", "topo", "fleet", "comparison")
NEW = "from-the-future"
NEWER = "9.0.0"
Place = tuple[str | int, ...]


def places(kind: Any, value: Any, where: Place) -> Iterator[Place]:
    """Yield where a value, as JSON data of a type, has the words of enumerations."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        yield from places(arguments[0], value, where)
    elif origin in (typing.Union, types.UnionType):
        if value is not None:
            yield from places(next(each for each in arguments if each is not type(None)), value, where)
    elif origin is tuple:
        kinds = arguments[:1] * len(value) if arguments[1:] == (Ellipsis,) else arguments
        for number, (item_kind, item) in enumerate(zip(kinds, value, strict=True)):
            yield from places(item_kind, item, (*where, number))
    elif origin is not None:
        for key, item in value.items():
            yield from places(arguments[1], item, (*where, key))
    elif isinstance(kind, type) and issubclass(kind, enum.Enum):
        yield where
    elif dataclasses.is_dataclass(kind):
        for name, hint in field_types(typing.cast(Any, kind)).items():
            if name in value:
                yield from places(hint, value[name], (*where, name))


def documents(kind: str, folder: Path) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield the document of a kind with one word changed, for each field that holds one, as of a newer egmctl."""
    text = original(kind, folder)
    result = saved.load_text(text, "node7").result
    document = json.loads(text)
    base: Place = ("result",) if "result" in document else ()
    body = document["result"] if base else document
    seen: set[Place] = set()
    # Parts that are documents of their own kind are tried as such.
    elsewhere = {"machines", "diagnosis", "run"} if base else set()
    for place in places(type(result), body, base):
        fields = tuple(part for part in place if isinstance(part, str))
        if fields not in seen and not elsewhere & {*fields[1:]}:
            seen.add(fields)
            changed = of_newer(json.loads(text))
            parent: Any = changed
            for part in place[:-1]:
                parent = parent[part]
            parent[place[-1]] = NEW
            yield place, changed


def of_newer(document: dict[str, Any]) -> dict[str, Any]:
    return document | ({"egmctl": NEWER} if "egmctl" in document else {"tool": f"egmctl {NEWER}"})


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_word_anywhere_is_kept_and_said_and_the_rest_is_shown(kind: str, tmp_path: Path) -> None:
    count = 0
    for place, document in documents(kind, tmp_path):
        count += 1
        text = json.dumps(document).encode()
        loaded = saved.load_text(text, "node7")
        assert f"of a newer egmctl (egmctl {NEWER}): this version does not know '{NEW}' (" in loaded.newer
        shown = saved.viewed(loaded)
        # Pages and pictures are made of the document that the text shows.
        for format in (Format.TEXT, *kind_of(shown).data):
            assert render(shown, format, verbose=2), place
    assert count >= 3


@pytest.mark.parametrize("kind", KINDS)
def test_in_a_file_of_this_version_such_a_word_is_damage(kind: str, tmp_path: Path) -> None:
    _, document = next(documents(kind, tmp_path))
    own = json.loads(original(kind, tmp_path))
    document |= {key: own[key] for key in ("tool", "egmctl") if key in own}
    with pytest.raises(UsageError, match=f"expected one of .*, found '{NEW}'"):
        saved.load_text(json.dumps(document).encode(), "node7")


def test_a_new_word_passes_nowhere(tmp_path: Path) -> None:
    """A measurement with an outcome that is not known, and a finding with such a status."""
    document = of_newer(json.loads(original("bench", tmp_path)))
    for measurement in document["result"]["measurements"]:
        measurement["status"] = NEW
    document["result"] |= {"causes": [], "verdict": None}
    report = saved.load_text(json.dumps(document).encode(), "node7").result
    assert isinstance(report, RunReport)
    assert answered(report).exit_code is ExitCode.CRASHED
    document = of_newer(json.loads(original("doctor", tmp_path)))
    document["result"]["findings"][0]["status"] = NEW
    diagnosis: Any = saved.load_text(json.dumps(document).encode(), "node7").result
    assert diagnosis.findings[0].status is Status.UNKNOWN


def test_a_word_is_no_way_to_the_terminal(tmp_path: Path) -> None:
    for word in ("\x1b[31m", "a" * 99, "", "a\nb", "\u202e"):
        document = of_newer(json.loads(original("doctor", tmp_path)))
        document["result"]["findings"][0]["status"] = word
        with pytest.raises(UsageError, match="expected one of"):
            saved.load_text(json.dumps(document).encode(), "node7")


def test_a_later_schema_is_said_once_and_the_rest_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "node7.json"
    document = of_newer(json.loads(original("doctor", tmp_path)))
    path.write_text(json.dumps(document | {"schema": "egmctl.doctor/9"}))
    done = run("show", path)
    assert (done.code, done.err.count("\n")) == (0, 1)
    assert f"of a newer egmctl (egmctl {NEWER}): it has the schema egmctl.doctor/9, read as egmctl.doctor/" in done.err
    same = tmp_path / "same.json"
    same.write_bytes(original("doctor", tmp_path))
    assert done.out.splitlines()[2:] == run("show", same).out.splitlines()[2:]
    path.write_text(json.dumps(document | {"schema": "egmctl.doctor/9", "result": {"findings": 7}}))
    refused = run("show", path)
    assert (refused.code, refused.out) == (2, "")
    assert (
        "has the schema 'egmctl.doctor/9', of a newer version of egmctl: this one reads egmctl.doctor/" in refused.err
    )
