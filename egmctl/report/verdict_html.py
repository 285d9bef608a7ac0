"""A run's verdict as HTML: the word and its reason on top, then who is out of line and what is not as it should be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.etree.ElementTree import Element

from egmctl.model.verdict import ClassVerdict, Culprit, Grade, RunVerdict
from egmctl.report.markup import Child, element
from egmctl.report.page import rows

_LOOKS = {Grade.FAIL: "fail", Grade.WARN: "warn", Grade.PASS: "pass", Grade.NO_REFERENCE: "plain"}
_WORDS = {Grade.FAIL: "Fail", Grade.WARN: "Warning", Grade.PASS: "Pass", Grade.NO_REFERENCE: "No reference"}
_SIGNS = {
    "pass": ("M12 2.5a9.5 9.5 0 1 0 0 19a9.5 9.5 0 1 0 0 -19", "M7.5 12.5l3 3l6 -6.5"),
    "warn": ("M12 3L22 20.5H2Z", "M12 9.5v5", "M12 17.6v.01"),
    "fail": ("M8 2.5h8l5.5 5.5v8l-5.5 5.5h-8l-5.5 -5.5v-8Z", "M8.5 8.5l7 7", "M15.5 8.5l-7 7"),
    "plain": ("M12 2.5a9.5 9.5 0 1 0 0 19a9.5 9.5 0 1 0 0 -19", "M8 12h8"),
}
"""Circle and tick, triangle, octagon and cross, circle and bar: told apart without colour."""


def verdict_html(verdict: RunVerdict) -> Iterator[Element]:
    """Yield the parts of the section."""
    yield call(_LOOKS[verdict.grade], _WORDS[verdict.grade], verdict.reason)
    profile = f"Held against the profile {verdict.profile}" if verdict.profile else "Held against no profile"
    yield element("p", f"{profile}: {verdict.profile_reason}")
    if verdict.culprits:
        yield element("h3", "Out of line")
        head = ("what", "of", "reaches", "verdict", "why")
        yield rows(head, [_culprit(culprit) for culprit in verdict.culprits], _NUMBERS)
    if verdict.warnings:
        yield element("h3", "Warnings of the run")
        yield element("ul", (element("li", line) for line in verdict.warnings), class_="sentences")
    if bad := [one for one in verdict.classes if one.grade in (Grade.FAIL, Grade.WARN)]:
        yield element("h3", "Not as it should be")
        yield _classes(bad, _sources(verdict))


def classes_html(verdict: RunVerdict) -> Iterator[Element]:
    """Yield what was judged of each class, the three judgements apart and their sum, and where references come from."""
    told = "Held against the profile, the wire and the siblings, each for itself; none: nothing to judge by."
    yield element("p", told, class_="dim")
    sources = _sources(verdict)
    yield _classes(verdict.classes, sources)
    if sources:
        yield element("h3", "References")
        yield element("ol" if len(sources) > 1 else "ul", (element("li", one) for one in sources), class_="sentences")


def call(look: str, word: str, why: str) -> Element:
    """Return a verdict's box: ``look`` is ``pass``, ``warn``, ``fail`` or ``plain``."""
    sign = element("svg", (element("path", d=path) for path in _SIGNS[look]), viewBox="0 0 24 24", aria_hidden="true")
    return element(
        "div",
        sign,
        element("div", element("p", word, class_="word"), element("p", why, class_="why")),
        class_=f"verdict {look}",
    )


def word(grade: Grade) -> Element:
    """Return a grade as a small label; none where there was no reference."""
    if grade is Grade.NO_REFERENCE:
        return element("span", "none", class_="dim")
    return element("span", _WORDS[grade].lower(), class_=f"word-{_LOOKS[grade]}")


def _sources(verdict: RunVerdict) -> list[str]:
    return list(dict.fromkeys(one.source for one in verdict.classes if one.source is not None))


def _classes(classes: Sequence[ClassVerdict], sources: Sequence[str]) -> Element:
    head = ("class", "paths", "median", "worst", "expected", "verdict", "profile", "wire", "siblings")
    return rows(head, [_class(one, sources) for one in classes], _NUMBERS)


_NUMBERS = frozenset({"paths", "median", "worst", "expected", "reaches"})


def _culprit(culprit: Culprit) -> tuple[Child, ...]:
    what = f"{culprit.label} {culprit.direction}" if culprit.direction else culprit.label
    return what, culprit.path_class, f"{100 * culprit.ratio:.0f} %", word(culprit.grade), culprit.reason


def _class(one: ClassVerdict, sources: Sequence[str]) -> tuple[Child, ...]:
    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f} {one.unit}"

    told = f"{one.reason}."
    if one.source is not None and len(sources) > 1:
        told += f" Reference {sources.index(one.source) + 1}."
    return (
        (one.path_class, element("span", told, class_="source")),
        str(len(one.measurements)),
        number(one.median),
        number(one.worst),
        number(one.expected),
        *map(word, (one.grade, one.by_profile, one.by_link, one.by_peers)),
    )
