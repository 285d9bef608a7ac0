"""The registry: every check is complete, and choosing among them says what it cannot find."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

from egmctl.doctor import checks
from egmctl.doctor import runner as registry
from egmctl.doctor.check import Check
from egmctl.doctor.runner import CHECKS
from egmctl.errors import UsageError
from egmctl.model.finding import Guard
from egmctl.model.machine import SECTION_VERSIONS
from tests.doctor.builders import check


def test_every_file_of_checks_has_some() -> None:
    files = {path.stem for path in Path(checks.__path__[0]).glob("*.py")} - {"__init__"}
    assert set(registry._ORDER) <= files == {path.stem for path in Path(checks.__path__[0]).glob("*.toml")}
    assert all(importlib.import_module(f"egmctl.doctor.checks.{name}") for name in files)
    assert all(isinstance(check, Check) for check in CHECKS)


def test_ids_are_unique() -> None:
    assert len({check.id for check in CHECKS}) == len(CHECKS)


def test_every_check_has_an_id_of_area_and_name_reads_sections_that_exist_and_guards_something() -> None:
    for one in CHECKS:
        assert re.fullmatch(r"[a-z0-9]+\.[a-z0-9-]+", one.id)
        assert set(one.sections) <= set(SECTION_VERSIONS), one.id
        assert one.guards, one.id


def test_every_check_has_its_texts_and_no_text_is_left_over() -> None:
    assert set(registry.texts()) == {check.id for check in CHECKS}
    for entry in registry.check_list(CHECKS).checks:
        assert len(entry.title) <= 60, entry.id
        assert not entry.title.endswith("."), entry.id
        for text in (entry.why, entry.read, entry.fix):
            assert text.endswith("."), text
            assert not re.match(r"(Of|Who|Whose|What)\b", text), text


class TestSelect:
    @pytest.fixture(autouse=True)
    def _three(self, monkeypatch: pytest.MonkeyPatch) -> None:
        three = (check("b.one", guards=[Guard.EGM]), check("b.two", guards=[Guard.RDMA, Guard.EGM]), check("a.one"))
        monkeypatch.setattr(registry, "CHECKS", three)

    @pytest.mark.parametrize(
        ("options", "chosen"),
        [
            ({}, ["b.one", "b.two", "a.one"]),
            ({"only": ["a.one", "b.two"]}, ["b.two", "a.one"]),
            ({"only": ["b.*"]}, ["b.one", "b.two"]),
            ({"without": ["b.one"]}, ["b.two", "a.one"]),
            ({"only": ["*.one"], "without": ["a.*"]}, ["b.one"]),
            ({"purposes": [Guard.RDMA]}, ["b.two", "a.one"]),
        ],
    )
    def test_in_the_order_of_the_registry(self, options: dict[str, Any], chosen: list[str]) -> None:
        assert [check.id for check in registry.select(**options)] == chosen

    @pytest.mark.parametrize(
        ("options", "sentence"),
        [
            ({"only": ["b.tow"]}, "--check 'b.tow': there is no such check; did you mean b.two"),
            ({"without": ["zzz"]}, "--skip 'zzz': there is no such check; 'egmctl doctor --list' shows all"),
            ({"without": ["*"]}, "--for, --check and --skip together leave no check"),
            ({"purposes": [Guard.RDMA], "only": ["b.one"]}, "leave no check"),
        ],
    )
    def test_what_cannot_be_chosen_is_one_sentence(self, options: dict[str, Any], sentence: str) -> None:
        with pytest.raises(UsageError, match=re.escape(sentence)):
            registry.select(**options)

    def test_one_to_explain(self) -> None:
        assert registry.find("a.one").id == "a.one"
        with pytest.raises(UsageError, match=re.escape("--explain 'a.on': there is no such check")):
            registry.find("a.on")
