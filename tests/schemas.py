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
FILES = {path.name: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
"""All schemas by the names of their files: those of documents, and those of the records in them."""
SCHEMAS = {name.removesuffix(".schema.json"): schema for name, schema in FILES.items() if name.endswith(".schema.json")}
"""The schemas of documents by name."""
InvalidDocument = jsonschema_rs.ValidationError


def validate(document: Any, name: str) -> None:
    """Raise :class:`InvalidDocument` if a document does not fit a schema."""
    _validator(name).validate(document)


def fits(document: Any, name: str) -> bool:
    """Say whether a document fits a schema."""
    return _validator(name).is_valid(document)


@functools.cache
def _validator(name: str) -> jsonschema_rs.Draft202012Validator:
    return jsonschema_rs.Draft202012Validator(SCHEMAS[name], registry=_registry())


@functools.cache
def _registry() -> jsonschema_rs.Registry:
    schemas = [(schema["$id"], schema) for schema in FILES.values()]
    return jsonschema_rs.Registry(schemas, draft=jsonschema_rs.Draft202012)
