"""Writes the modelled machines of ``profiles/machines/`` from public facts (docs/machines.md).

A file contains only the facts that its sources state. The loader marks all others as not stated.

    python tools/model_machines.py            write them
    python tools/model_machines.py --check    write nothing; exit 1 if a file is not what would be written

The version of egmctl in a file stays as it is unless something else changes.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from machine_models import derived, dgx_h100, gb200, gh200, vera_rubin
from machine_models.stating import leave_out

from egmctl.data import machines_dir
from egmctl.facts import replay as record
from egmctl.model.machine import Machine


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description="Write the modelled machines of profiles/machines/.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file would change")
    check = parser.parse_args(arguments).check
    stale = [machine for machine in machines() if not _holds(_path(machine), machine)]
    for machine in stale:
        if check:
            sys.stderr.write(f"{_path(machine)} is not what tools/model_machines.py writes\n")
        else:
            _path(machine).write_text(json.dumps(_document(machine), indent=1) + "\n", encoding="ascii")
            sys.stdout.write(f"{_path(machine)}\n")
    return int(check and bool(stale))


def machines() -> tuple[Machine, ...]:
    """Return every modelled machine."""
    models = (gh200.single(), gh200.quad(), gb200.tray(), gb200.nvl72_tray(), dgx_h100.model(), vera_rubin.nvl72_tray())
    return (
        *models,
        derived.gb300_tray(),
        derived.gb200_cdmm(),
        derived.gh200_pair(),
        derived.station(),
        derived.hgx_b200(),
    )


def _path(machine: Machine) -> Path:
    return machines_dir() / f"{machine.origin.name}.json"


def _document(machine: Machine) -> dict[str, Any]:
    """Return the content of a machine's file: the facts that its sources state."""
    document: dict[str, Any] = leave_out(record.document(machine))
    return document


def _holds(path: Path, machine: Machine) -> bool:
    """Return whether a file contains this machine, in any version of egmctl."""
    try:
        document = json.loads(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return False
    wanted = _document(machine)
    return isinstance(document, dict) and {**document, "egmctl": ""} == {**wanted, "egmctl": ""}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
