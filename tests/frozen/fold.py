"""Folds the outputs of one command on many machines into one file that shows each part once.

Most machines of the corpus differ from another in one thing. An output is cut into parts that have names (a finding, a
link, the steps of a case); a part that is the same on several machines stands in the file once, with their names below
it. A change then shows once, and with it where it happens.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

WIDTH = 120

Parts = Mapping[str, str]
"""The text of each part of an output, by its name."""


def fold(outputs: Mapping[str, Parts]) -> str:
    """Return the parts of all outputs, in the order of the outputs, each with the names of those that have it."""
    groups: dict[str, dict[str, list[str]]] = {}
    for name, parts in outputs.items():
        for part, text in parts.items():
            groups.setdefault(part, {}).setdefault(text, []).append(name)
    lines: list[str] = []
    for part in _in_order(outputs):
        lines.append(f"== {part}")
        for text, names in groups[part].items():
            lines += [*text.splitlines(), *_named(names, list(outputs))]
    return "".join(f"{line}\n" for line in lines)


def _in_order(outputs: Mapping[str, Parts]) -> list[str]:
    """Return the names of all parts, each after those that stand before it in every output that has both."""
    following: dict[str, str] = {"": ""}
    """A ring from ``""`` to ``""``: dry runs have thousands of parts, too many to look for each in a list."""
    for parts in outputs.values():
        before = ""
        for part in parts:
            if part not in following:
                following[before], following[part] = part, following[before]
            before = part
    ordered: list[str] = []
    part = ""
    while part := following[part]:
        ordered.append(part)
    return ordered


def _named(names: list[str], everywhere: list[str]) -> list[str]:
    had = set(names)
    others = [name for name in everywhere if name not in had]
    if not others:
        said = "everywhere" if len(everywhere) > 1 else ""
    elif len(others) < len(names):
        said = f"everywhere but {' '.join(others)}"
    else:
        said = " ".join(names)
    return textwrap.wrap(said, WIDTH, initial_indent="    # ", subsequent_indent="    # ", break_on_hyphens=False)
