"""Reads JSON files that come from anywhere: an object, or one sentence that names the file and what is wrong."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from egmctl.errors import UsageError
from egmctl.files import read_bounded
from egmctl.units import format_size

FILE_LIMIT = 64 << 20
"""Bytes of the largest file that is read; a machine with 8 GPUs has some 300 KiB, a full run of the bench 10 MiB."""


ELEMENT_LIMIT = 2_000_000
"""Objects, lists and their members in the largest file that is read. Our own documents have one in some 28 bytes; of
the smallest ones, ``{}``, Python makes 30 times the file's size in memory."""


def read_content(path: Path, source: str) -> bytes:
    """Return a file's content, unpacked where gzip packed it; of more than the limit one byte more.

    A pipe can be read only once.

    Parameters
    ----------
    source
        How to call the file in a sentence, e.g. ``machine file node7.json``.

    Raises
    ------
    UsageError
        If it cannot be read.
    """
    try:
        content = read_bounded(path, FILE_LIMIT)
    except OSError as error:
        refuse(source, f"cannot be read: {error.strerror}")
    if not content.startswith(_GZIP):
        return content
    try:
        # A small file can hold any amount.
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            return file.read(FILE_LIMIT + 1)
    except (OSError, EOFError, zlib.error) as error:
        refuse(source, f"is packed by gzip and cannot be unpacked: {error}")


_GZIP = b"\x1f\x8b"
"""The first bytes of a file that gzip made: https://www.rfc-editor.org/rfc/rfc1952#section-2.3.1."""


def stem(path: Path) -> str:
    """Return what a file is called: ``node7`` of ``node7.json`` and of ``node7.json.gz``."""
    return Path(path.stem).stem if path.suffix == ".gz" else path.stem


def ascii_text(content: bytes) -> str:
    """Return a JSON text that :func:`parse_object` takes as ASCII: itself, where it is that already.

    Raises
    ------
    ValueError
        For a number that JSON spells and no float holds, where the text has to be written anew.
    """
    text = content.decode()
    if text.isascii() and all(map(str.isprintable, text.split("\n"))):
        return text
    return json.dumps(json.loads(text), indent=2, allow_nan=False)


def parse_object(content: bytes, source: str, what: str) -> dict[str, Any]:
    """Return the object that a JSON text holds.

    Parameters
    ----------
    source
        As for :func:`read_content`.
    what
        What it should hold, e.g. ``machine``.

    Raises
    ------
    UsageError
        If it is no JSON object, or holds more than any such file does.
    """
    if len(content) > FILE_LIMIT:
        refuse(source, f"is larger than {format_size(FILE_LIMIT)}, which no {what} is")
    if sum(map(content.count, (b",", b"[", b"{"))) > ELEMENT_LIMIT:
        refuse(source, f"holds more than {ELEMENT_LIMIT} values, which no {what} does")

    def refuse_constant(word: str) -> NoReturn:
        refuse(source, f"is not JSON: it holds {word}, which JSON has no number for")

    try:
        document = json.loads(content.decode(), parse_constant=refuse_constant)
    except UnicodeDecodeError as error:
        refuse(source, f"is not UTF-8 text: byte {error.start} is {content[error.start]:#04x}")
    except json.JSONDecodeError as error:
        what_and_where = f"{error.msg.removesuffix(' at')} at line {error.lineno} column {error.colno}"
        refuse(source, f"is not JSON, or is truncated: {what_and_where}")
    except RecursionError:
        refuse(source, f"is nested more deeply than any {what}")
    except ValueError:
        # Python refuses to read whole numbers of more than 4300 digits.
        refuse(source, "holds a whole number of thousands of digits")
    if not isinstance(document, dict):
        refuse(source, f"is not a {what}: expected an object")
    return document


def check_schema(document: dict[str, Any], known: Sequence[str], source: str, what: str) -> str:
    """Return the schema that a document states, one of those that this tool reads.

    Parameters
    ----------
    known
        Such as ``egmctl.machine/1``.
    source, what
        As for :func:`parse_object`.

    Raises
    ------
    UsageError
        If it states another one, another version, or none.
    """
    schema = document.get("schema")
    if not isinstance(schema, str):
        refuse(source, f"is not a {what}: it states no schema, expected {', '.join(known)}")
    if schema in known:
        return schema
    name = schema.partition("/")[0]
    if expected := next((each for each in known if each.partition("/")[0] == name), None):
        refuse(source, f"has the schema {short(schema)!r}, of another version of egmctl: this one reads {expected}")
    refuse(source, f"is not a {what}: its schema is {short(schema)!r}, expected {', '.join(known)}")


def refuse(source: str, sentence: str) -> NoReturn:
    """Raise the sentence about a file.

    Raises
    ------
    UsageError
        Always.
    """
    raise UsageError(f"{short(source)} {sentence}")


def short(text: str) -> str:
    """Return a text from outside, cut to what a sentence bears."""
    return text if len(text) <= 200 else f"{text[:197]}..."
