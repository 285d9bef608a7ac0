"""Writes a machine as the document that ``egmctl snapshot`` makes and :mod:`egmctl.facts.replay` reads."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from egmctl import __version__
from egmctl.model.codec import to_json
from egmctl.model.machine import MACHINE_SCHEMA, Machine, OriginKind


def document(machine: Machine) -> dict[str, Any]:
    """Return the document as JSON data; a live machine is a recorded one from then on."""
    origin = machine.origin
    if origin.kind is OriginKind.LIVE:
        origin = dataclasses.replace(origin, kind=OriginKind.RECORDED)
    body = to_json(dataclasses.replace(machine, origin=origin))
    return {"schema": MACHINE_SCHEMA, "egmctl": __version__, **body}


def text(machine: Machine) -> str:
    """Return the document as ASCII text, so that no string from the machine can play tricks on who looks at it."""
    return json.dumps(document(machine), indent=1, allow_nan=False) + "\n"
