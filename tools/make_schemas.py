"""Writes the JSON Schemas of ``docs/schemas/`` from the model's types and the docstrings of their fields.

python tools/make_schemas.py            write them
python tools/make_schemas.py --check    write nothing; exit 1 if a file is not what would be written
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import json
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from enum import Enum
from pkgutil import resolve_name
from typing import Any

from generated import ROOT, settle

from egmctl.errors import ERROR_SCHEMA
from egmctl.journal import events
from egmctl.journal.events import JOURNAL_SCHEMA
from egmctl.model.answer import Answer
from egmctl.model.codec import field_types
from egmctl.model.machine import MACHINE_SCHEMA, Machine, Origin
from egmctl.model.measurement import RunReport
from egmctl.model.profile import PROFILE_SCHEMA, Profile
from egmctl.model.record import Command, Shown, Spelling
from egmctl.report.kinds import CASES, COST, EVIDENCE, KINDS, MATCH, PLAN, WATCH

SCHEMAS = ROOT / "docs" / "schemas"


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    made = {
        "machine": machine_schema(),
        "profile": profile_schema(),
        "error": command_schema(ERROR_SCHEMA, None),
        "journal": journal_schema(),
    }
    for kind in KINDS:
        record = resolve_name(kind.record)
        name = record.SCHEMA.removeprefix("egmctl.").partition("/")[0]
        made[name] = command_schema(
            record.SCHEMA,
            record,
            one_machine=kind.name in list(Command) or kind in (EVIDENCE, MATCH, CASES, PLAN, COST, WATCH),
        )
    texts = {SCHEMAS / f"{name}.schema.json": json.dumps(schema, indent=1) + "\n" for name, schema in made.items()}
    return max([settle(arguments, path, text, "tools/make_schemas.py") for path, text in texts.items()])


class Definitions(dict[str, Any]):
    """The schemas of dataclasses by name. A second class of the same name gets its module's: ``evidence.Evidence``."""

    def __init__(self) -> None:
        super().__init__()
        self._classes: dict[str, type] = {}

    def name_of(self, kind: type) -> str:
        """Return the name of a class in the definitions."""
        name = kind.__name__
        if self._classes.setdefault(name, kind) is not kind:
            name = f"{kind.__module__.rpartition('.')[2]}.{name}"
        return name


def machine_schema() -> dict[str, Any]:
    """Return the schema of the documents of ``egmctl snapshot``.

    It requires only the keys that a reader needs, and allows unknown keys, as readers do.
    """
    definitions = Definitions()
    machine = _record(Machine, definitions)
    properties = {
        "schema": {"const": MACHINE_SCHEMA},
        "egmctl": {"type": "string", "description": "Version of the tool that wrote the document."},
        **machine["properties"],
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": MACHINE_SCHEMA,
        "description": machine["description"],
        "type": "object",
        "properties": properties,
        "required": ["schema", *machine["required"]],
        "$defs": definitions,
    }


def profile_schema() -> dict[str, Any]:
    """Return the schema of a profile, applied to the parsed TOML. Unknown keys are errors, as for egmctl."""
    definitions = Definitions()
    profile = _record(Profile, definitions)
    profile["properties"]["schema"] = {"const": PROFILE_SCHEMA}
    for record in (profile, *definitions.values()):
        record["additionalProperties"] = False
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": PROFILE_SCHEMA,
        **profile,
        "$defs": definitions,
    }


def journal_schema() -> dict[str, Any]:
    """Return the schema of one line of a journal; parts of a bench result refer to the schema of the bench."""
    number, text = {"type": "integer"}, {"type": "string"}

    def event(word: str, **properties: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"line": number, "event": {"const": word}, **properties, "crc32": text},
            "required": ["line", "event", *properties, "crc32"],
        }

    def of_bench(name: str) -> dict[str, Any]:
        return {"$ref": f"bench.schema.json#/$defs/{name}"}

    task = {
        "type": "object",
        "properties": {"number": number, "task": {"type": "object"}},
        "required": ["number", "task"],
    }
    first = {"schema": {"const": JOURNAL_SCHEMA}, "egmctl": text, "bench": {"const": RunReport.SCHEMA}, "steps": number}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": JOURNAL_SCHEMA,
        "description": "One line of the journal of a bench: docs/bench.md. The first line, number 0, is the event "
        "state, which is written again at the run's end; the next two are the event begin, whose result is a report "
        "without measurements. crc32 is the checksum, 8 hexadecimal digits, of the line's bytes before it.",
        "oneOf": [
            event(
                events.STATE,
                exit_code=_or_null(number),
                lines=_or_null(number),
                cut=_or_null(text),
                mentioned={"type": "boolean"},
            ),
            event(events.BEGIN, **first, result=of_bench("RunReport")),
            event("step", tasks={"type": "array", "items": task}),
            event("measurement", number=number, measurement=of_bench("Measurement")),
            event("kernel", events={"type": "array", "items": of_bench("KernelEvent")}),
            event("note", text=text),
            event("problem", text=text),
        ],
    }


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def command_schema(name: str, result_type: type | None, *, one_machine: bool = True) -> dict[str, Any]:
    """Return the schema of the documents that a command writes with ``--json``: the envelope and the result in it.

    Parameters
    ----------
    name
        The value of the document's key ``schema``.
    result_type
        The dataclass of the key ``result``; ``None``: the key is null, because the command had no result.
    one_machine
        Whether the result is about one machine. If not, the key ``machine`` is null.
    """
    definitions = Definitions()
    origin = _schema(Origin, definitions) if one_machine else {"type": "null"}
    result = {"type": "null"} if result_type is None else _schema(result_type, definitions)
    has_answer = result_type is not None and issubclass(result_type, Shown)
    answer = _or_null(_schema(Answer, definitions)) if has_answer else {"type": "null"}
    if result_type is None:
        origin = {"anyOf": [origin, {"type": "null"}]}
    error = {
        "type": "object",
        "properties": {"code": {"type": "string"}, "message": {"type": "string"}, "details": {"type": "object"}},
        "required": ["code", "message", "details"],
    }
    properties = {
        "schema": {"const": name},
        "tool": {"type": "string"},
        "exit_code": {"type": "integer"},
        "answer": answer,
        "machine": origin,
        "errors": {"type": "array", "items": error},
        "result": result,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": name,
        "description": "docs/json.md says what the keys of the envelope mean.",
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "$defs": definitions,
    }


def _record(cls: Any, definitions: Definitions) -> dict[str, Any]:
    """Return the schema of a dataclass, and add those of its fields' dataclasses to ``definitions``."""
    descriptions = {name: text for base in reversed(cls.__mro__) for name, text in _field_docstrings(base).items()}
    properties = {}
    for name, kind in field_types(cls).items():
        properties[name] = _schema(kind, definitions)
        if name in descriptions:
            properties[name]["description"] = descriptions[name]
    missing = dataclasses.MISSING
    return {
        "description": inspect.cleandoc(cls.__doc__),
        "type": "object",
        "properties": properties,
        "required": [f.name for f in dataclasses.fields(cls) if f.default is missing and f.default_factory is missing],
    }


def _schema(kind: Any, definitions: Definitions) -> dict[str, Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        schema = _schema(arguments[0], definitions)
        for mark in arguments[1:]:
            if isinstance(mark, Spelling):
                schema |= {"pattern": f"^({mark.pattern})$", "examples": [mark.example]}
        return schema
    if origin in (typing.Union, types.UnionType):
        (only,) = [option for option in arguments if option is not type(None)]
        schema = _schema(only, definitions)
        if "type" in schema and "enum" not in schema:
            return schema | {"type": [schema["type"], "null"]}
        return {"anyOf": [schema, {"type": "null"}]}
    if origin is Sequence or (origin is tuple and arguments[1:] == (Ellipsis,)):
        return {"type": "array", "items": _schema(arguments[0], definitions)}
    if origin is tuple:
        items = [_schema(argument, definitions) for argument in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _schema(arguments[1], definitions)}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        name = definitions.name_of(kind)
        if name not in definitions:
            definitions[name] = {}
            definitions[name] = _record(kind, definitions)
        return {"$ref": f"#/$defs/{name}"}
    if issubclass(kind, Enum):
        return {"type": "string", "enum": [member.value for member in kind]}
    return {"type": {str: "string", int: "integer", float: "number", bool: "boolean"}[kind]}


def _field_docstrings(cls: type) -> dict[str, str]:
    """Return the docstrings below the fields of a class, read from its source because Python drops them."""
    if cls is object:
        return {}
    (definition,) = ast.parse(inspect.getsource(cls)).body
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    descriptions = {}
    for field, below in itertools.pairwise(body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                descriptions[name] = inspect.cleandoc(text)
    return descriptions


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
