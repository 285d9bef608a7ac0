"""The machines of ``states.jsonl``: a shipped machine, and what the published thread of the state says of its own.

``machines.json`` has the differences alone, so that a reader sees what makes the incident; ``README.md`` says how they
are written. The form of ``profiles/machines/sick`` would not do: it can neither replace an object nor add to a list.
To have the machines as files for ``egmctl --machine``:

    python -m tests.incidents.machines FOLDER
"""

from __future__ import annotations

import copy
import functools
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from egmctl.files import machines_dir

Document = dict[str, Any]

MACHINES: Mapping[str, Document] = json.loads(Path(__file__).with_name("machines.json").read_text(encoding="utf-8"))


def document(name: str) -> Document:
    """Return the document of a machine of ``machines.json``, or of one that ships."""
    if name not in MACHINES:
        shipped: Document = json.loads((machines_dir() / f"{name}.json").read_text(encoding="utf-8"))
        return shipped
    entry = MACHINES[name]
    base, *layers = entry["like"]
    parts = (*(MACHINES[layer] for layer in layers), entry)
    return functools.reduce(changed, parts, document(base))


def changed(machine: Document, changes: Document) -> Document:
    """Return a machine's document with changes, each the fields of the record at a path, in their order."""
    machine = copy.deepcopy(machine)
    for path, fields in changes.items():
        if path not in ("about", "like"):
            _change(machine, path, fields)
    return machine


def _change(record: Document, path: str, fields: Document | None) -> None:
    if not path:
        record.update(copy.deepcopy(fields or {}))
        return
    head, _, rest = path.partition(".")
    name, bracket, places = head.rstrip("]").partition("[")
    if not bracket:
        record[name] = record.get(name) or {}
        _change(record[name], rest, fields)
        return
    items = record[name]
    chosen = _places(places, len(items))
    if fields is None:
        items[:] = [item for place, item in enumerate(items) if place not in chosen]
        return
    items += [{} for _ in range(max(chosen, default=0) + 1 - len(items))]
    for place in chosen:
        _change(items[place], rest, fields)


def _places(text: str, count: int) -> list[int]:
    """Return the places in a list of so many items that ``*``, ``2``, ``1:``, ``1:3`` or ``0,2`` names."""
    if text == "*":
        return list(range(count))
    places: list[int] = []
    for part in text.split(","):
        first, colon, end = part.partition(":")
        places += range(int(first), int(end or count)) if colon else [int(first)]
    return places


def write(folder: Path) -> None:
    """Write the machine of each state as a document that ``--machine`` takes."""
    states = Path(__file__).with_name("states.jsonl").read_text(encoding="utf-8").splitlines()
    for name in (json.loads(state)["machine"] for state in states):
        (folder / f"{name}.json").write_text(json.dumps(document(name)), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
