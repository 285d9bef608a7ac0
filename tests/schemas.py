"""The schemas of docs/schemas, each compiled once: ``validate(document, "bench")``.

A validator in Rust: one in Python takes longer for a report than the bench on a fake node that wrote it.
"""

from __future__ import annotations

import functools
import json
from typing import Any

import jsonschema_rs

from tests.conftest import ROOT

FOLDER = ROOT / "docs/schemas"
SCHEMAS = {path.name.removesuffix(".schema.json"): json.loads(path.read_text()) for path in FOLDER.glob("*.json")}
InvalidDocument = jsonschema_rs.ValidationError


def validate(document: Any, name: str) -> None:
    """Raise :class:`InvalidDocument` if a document does not fit a schema."""
    _validator(name).validate(document)


def fits(document: Any, name: str) -> bool:
    """Say whether a document fits a schema."""
    return _validator(name).is_valid(document)


@functools.cache
def _validator(name: str) -> jsonschema_rs.Draft202012Validator:
    files = [(f"{other}.schema.json", schema) for other, schema in SCHEMAS.items()]
    registry = jsonschema_rs.Registry(files, draft=jsonschema_rs.Draft202012)
    return jsonschema_rs.Draft202012Validator(SCHEMAS[name], registry=registry)
