"""Folds the outputs of one command on many machines into one file that shows each part once.

Most machines of the corpus differ from another in one thing. An output is cut into parts that have names (a finding, a
link, the steps of a case); a part that is the same on several machines stands in the file once, with their names below
it. A change then shows once, and with it where it happens.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from typing import Any

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


def readable(value: Any, width: int = WIDTH) -> str:
    """Return JSON in few lines that can be compared: what fits a line stands on one."""
    return "\n".join(_lines(value, "", width))


def _lines(value: Any, indent: str, width: int) -> list[str]:
    whole = json.dumps(value)
    if len(indent) + len(whole) <= width or not isinstance(value, dict | list):
        return [indent + whole]
    keys = [f"{json.dumps(key)}: " for key in value] if isinstance(value, dict) else [""] * len(value)
    lines = []
    for key, item in zip(keys, value.values() if isinstance(value, dict) else value, strict=True):
        first, *rest = _lines(item, indent + " ", width)
        lines += [f"{indent} {key}{first.lstrip()}", *rest]
    brackets = "{}" if isinstance(value, dict) else "[]"
    return [indent + brackets[0], *lines, indent + brackets[1]]


def parts_of(document: dict[str, Any]) -> dict[str, str]:
    """Return a command's JSON in parts: each key of the result, each item of a list in it; not the machine itself."""
    parts = {"schema, exit code": f"{document['schema']} {document['exit_code']} {readable(document['errors'])}"}
    for key, value in (document["result"] or {}).items():
        if key in ("machines", "counts"):
            # The first is what was given to the command; the second counts what follows.
            continue
        if isinstance(value, list) and value and isinstance(value[0], dict):
            seen: dict[str, int] = {}
            for item in value:
                name = _name(key, item)
                seen[name] = seen.get(name, -1) + 1
                parts[f"{name} {seen[name]}" if seen[name] or name == key else name] = readable(item)
        else:
            parts[key] = readable(value)
    return parts


def _name(key: str, item: dict[str, Any]) -> str:
    known = ("check", "profile", "case", "label", "id", "source", "target", "gpu", "numa_node")
    return " ".join([key, *(str(item[name]) for name in known if isinstance(item.get(name), str | int))])
