"""Writes the JSON Schemas of ``docs/schemas/`` from the model's types and the docstrings of their fields.

``NAME.schema.json`` is of a document. It refers to records that several documents may hold, in ``MODULE.records.json``.

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
from collections.abc import Mapping, Sequence, Set
from enum import Enum
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from generated import ROOT, settle

from egmctl.errors import ERROR_SCHEMA
from egmctl.journal import events
from egmctl.journal.events import JOURNAL_SCHEMA
from egmctl.model.answer import Answer
from egmctl.model.codec import field_types
from egmctl.model.kernel_log import KernelEvent
from egmctl.model.machine import MACHINE_SCHEMA, Machine, Origin
from egmctl.model.measurement import Measurement, RunReport
from egmctl.model.profile import PROFILE_SCHEMA, Profile
from egmctl.model.record import Command, Shown, Spelling
from egmctl.report.kinds import CASES, COST, EVIDENCE, KINDS, MATCH, PLAN, WATCH

SCHEMAS = ROOT / "docs" / "schemas"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
ADDRESS = "https://egmctl.invalid/schemas/"
"""What ``$id`` begins with. It names a file and is never fetched: no host can be called so (RFC 6761, section 6.4)."""


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    records = Records()
    documents = {
        "machine": machine_schema(records),
        "profile": profile_schema(),
        "error": command_schema(ERROR_SCHEMA, None, records),
        "journal": journal_schema(records),
    }
    for kind in KINDS:
        record = resolve_name(kind.record)
        name = record.SCHEMA.removeprefix("egmctl.").partition("/")[0]
        documents[name] = command_schema(
            record.SCHEMA,
            record,
            records,
            one_machine=kind.name in list(Command) or kind in (EVIDENCE, MATCH, CASES, PLAN, COST, WATCH),
        )
    schemas = {f"{name}.schema.json": schema for name, schema in documents.items()}
    schemas[ENVELOPE] = envelope_schema(records)
    for file, definitions in records.files.items():
        schemas[file] = {
            "description": "Records that the schemas of documents refer to.",
            "$defs": dict(sorted(definitions.items())),
        }
    made = {SCHEMAS / name: _text(name, schema) for name, schema in schemas.items()}
    settled = [settle(arguments, path, text, "tools/make_schemas.py") for path, text in made.items()]
    return max(*settled, _leave_only(set(made), arguments))


def _text(name: str, schema: Mapping[str, Any]) -> str:
    return json.dumps({"$schema": DIALECT, "$id": f"{ADDRESS}{name}", **schema}, indent=1) + "\n"


def _leave_only(made: Set[Path], arguments: list[str]) -> int:
    """Remove the files of records that are no more, or with ``--check`` report them; return the exit code."""
    left_over = sorted(set(SCHEMAS.iterdir()) - made)
    if arguments != ["--check"]:
        for path in left_over:
            path.unlink()
        return 0
    for path in left_over:
        sys.stderr.write(f"{path} is nothing that tools/make_schemas.py writes\n")
    return 1 if left_over else 0


class Records:
    """The schemas of dataclasses, each once, in the file of the module that has the class.

    So one more field changes one file, whichever documents hold the record.

    Parameters
    ----------
    file
        The one file of all of them instead; ``""`` is the file that refers to them.
    """

    def __init__(self, file: str | None = None) -> None:
        self.files: dict[str, dict[str, Any]] = {}
        """The definitions of each file, by the names of their classes."""
        self._file = file
        self._classes: dict[str, type] = {}

    def reference(self, record: type) -> dict[str, str]:
        """Return a reference to the schema of a dataclass.

        Raises
        ------
        ValueError
            Another class has its place: of the same name, in a module of the same name.
        """
        name = record.__name__
        file = f"{record.__module__.rpartition('.')[2]}.records.json" if self._file is None else self._file
        place = f"{file}#/$defs/{name}"
        if place not in self._classes:
            self._classes[place] = record
            self.files.setdefault(file, {})[name] = _record(record, self)
        if self._classes[place] is not record:
            raise ValueError(f"{record} and {self._classes[place]} would both be {place}")
        return {"$ref": place}


def machine_schema(records: Records) -> dict[str, Any]:
    """Return the schema of the documents of ``egmctl snapshot``.

    It requires only the keys that a reader needs, and allows unknown keys, as readers do.
    """
    return {
        "title": MACHINE_SCHEMA,
        **records.reference(Machine),
        "properties": {
            "schema": {"const": MACHINE_SCHEMA},
            "egmctl": {"type": "string", "description": "Version of the tool that wrote the document."},
        },
        "required": ["schema"],
    }


def profile_schema() -> dict[str, Any]:
    """Return the schema of a profile, applied to the parsed TOML.

    Unknown keys are errors, as for egmctl. They are none in results, so this schema has its own definitions.
    """
    records = Records("")
    profile = _record(Profile, records)
    profile["properties"]["schema"] = {"const": PROFILE_SCHEMA}
    definitions = dict(sorted(records.files[""].items()))
    for record in (profile, *definitions.values()):
        record["additionalProperties"] = False
    return {"title": PROFILE_SCHEMA, **profile, "$defs": definitions}


def journal_schema(records: Records) -> dict[str, Any]:
    """Return the schema of one line of a journal."""
    number, text = {"type": "integer"}, {"type": "string"}

    def event(word: str, **properties: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "object",
            "properties": {"line": number, "event": {"const": word}, **properties, "crc32": text},
            "required": ["line", "event", *properties, "crc32"],
        }

    task = {
        "type": "object",
        "properties": {"number": number, "task": {"type": "object"}},
        "required": ["number", "task"],
    }
    first = {"schema": {"const": JOURNAL_SCHEMA}, "egmctl": text, "bench": {"const": RunReport.SCHEMA}, "steps": number}
    return {
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
            event(events.BEGIN, **first, result=records.reference(RunReport)),
            event("step", tasks={"type": "array", "items": task}),
            event("measurement", number=number, measurement=records.reference(Measurement)),
            event("kernel", events={"type": "array", "items": records.reference(KernelEvent)}),
            event("note", text=text),
            event("problem", text=text),
        ],
    }


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "null"}]}


def command_schema(
    name: str, result_type: type | None, records: Records, *, one_machine: bool = True
) -> dict[str, Any]:
    """Return the schema of the documents that a command writes with ``--json``: the envelope, and what is in it.

    Parameters
    ----------
    name
        The value of the document's key ``schema``.
    result_type
        The dataclass of the key ``result``; ``None``: the key is null, because the command had no result.
    records
        Gets the schema of the result's dataclass.
    one_machine
        Whether the result is about one machine. If not, the key ``machine`` is null.
    """
    properties: dict[str, Any] = {"schema": {"const": name}}
    if result_type is None or not issubclass(result_type, Shown):
        properties["answer"] = {"type": "null"}
    if result_type is not None:
        properties["machine"] = {"type": "object" if one_machine else "null"}
    properties["result"] = {"type": "null"} if result_type is None else records.reference(result_type)
    return {"title": name, "$ref": ENVELOPE, "properties": properties}


ENVELOPE = "envelope.records.json"


def envelope_schema(records: Records) -> dict[str, Any]:
    """Return the schema of what the documents of all commands have in common."""
    text = {"type": "string"}
    error = {
        "type": "object",
        "properties": {"code": text, "message": text, "details": {"type": "object"}},
        "required": ["code", "message", "details"],
    }
    properties = {
        "schema": text,
        "tool": text,
        "exit_code": {"type": "integer"},
        "answer": _or_null(records.reference(Answer)),
        "machine": _or_null(records.reference(Origin)),
        "errors": {"type": "array", "items": error},
        "result": {"type": ["object", "null"]},
    }
    return {
        "description": "docs/json.md says what the keys of the envelope mean.",
        "type": "object",
        "properties": properties,
        "required": list(properties),
    }


def _record(cls: Any, records: Records) -> dict[str, Any]:
    """Return the schema of a dataclass, and add those of its fields' dataclasses to ``records``."""
    descriptions = {name: text for base in reversed(cls.__mro__) for name, text in _field_docstrings(base).items()}
    properties = {}
    for name, kind in field_types(cls).items():
        properties[name] = _schema(kind, records)
        if name in descriptions:
            properties[name]["description"] = descriptions[name]
    missing = dataclasses.MISSING
    return {
        "description": inspect.cleandoc(cls.__doc__),
        "type": "object",
        "properties": properties,
        "required": [f.name for f in dataclasses.fields(cls) if f.default is missing and f.default_factory is missing],
    }


def _schema(kind: Any, records: Records) -> dict[str, Any]:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        schema = _schema(arguments[0], records)
        for mark in arguments[1:]:
            if isinstance(mark, Spelling):
                schema |= {"pattern": f"^({mark.pattern})$", "examples": [mark.example]}
        return schema
    if origin in (typing.Union, types.UnionType):
        (only,) = [option for option in arguments if option is not type(None)]
        schema = _schema(only, records)
        if "type" in schema and "enum" not in schema:
            return schema | {"type": [schema["type"], "null"]}
        return {"anyOf": [schema, {"type": "null"}]}
    if origin is Sequence or (origin is tuple and arguments[1:] == (Ellipsis,)):
        return {"type": "array", "items": _schema(arguments[0], records)}
    if origin is tuple:
        items = [_schema(argument, records) for argument in arguments]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
    if origin is Mapping:
        return {"type": "object", "additionalProperties": _schema(arguments[1], records)}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return dict(records.reference(kind))
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
