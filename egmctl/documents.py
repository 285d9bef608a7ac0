"""Reads JSON objects from untrusted files, and writes JSON. An error is one sentence with the file and the problem."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import zlib
from collections.abc import Sequence
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any, NoReturn

from egmctl.errors import UsageError
from egmctl.files import read_bounded
from egmctl.units import format_size

ENCODING = "EGMCTL_ENCODING"
"""The environment variable that says how a document is written to standard output: :data:`GZIP`, or as it is. An
egmctl that does not know it writes the document as it is."""
GZIP = "gzip+base64"
"""As :func:`packed` does."""

FILE_LIMIT = 64 << 20
"""The size limit of a file in bytes. A machine with 8 GPUs takes some 300 KiB, a full run of the bench 10 MiB."""


ELEMENT_LIMIT = 2_000_000
"""The limit of objects, lists and their members in a file. Documents of egmctl have one per some 28 bytes. The smallest
ones, ``{}``, take 30 times the file's size in Python's memory."""


def read_content(path: Path, source: str) -> bytes:
    """Return a file's content, decompressed if it is gzip; at most :data:`FILE_LIMIT` + 1 bytes.

    The file is read once, so it may be a pipe.

    Parameters
    ----------
    source
        The name of the file in messages, e.g. ``machine file node7.json``.

    Raises
    ------
    UsageError
        If the file cannot be read or decompressed.
    """
    try:
        content = read_bounded(path, FILE_LIMIT)
    except OSError as error:
        refuse(source, f"cannot be read: {error.strerror}")
    if not content.startswith(_GZIP):
        return content
    try:
        # A small gzip file can expand to any size.
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            return file.read(FILE_LIMIT + 1)
    except (OSError, EOFError, zlib.error) as error:
        refuse(source, f"is packed by gzip and cannot be unpacked: {error}")


encode = json.JSONEncoder(allow_nan=False).encode
"""Return a JSON value as text in one line; NaN and infinity, which JSON cannot represent, are a ValueError."""


def indented(value: Any, step: str, margin: str = "\n") -> str:
    """Return what ``json.dumps(value, indent=step)`` returns, in half the time: with an indent, it is not written in C.

    Keys of objects must be strings, as those of :func:`egmctl.model.codec.to_json` are; another key is a TypeError.

    Parameters
    ----------
    margin
        The line feed and the indent of the line on which the value ends.
    """
    kind = type(value)
    if kind is str:
        return encode_basestring_ascii(value)
    if not value or kind not in (dict, list, tuple):
        return encode(value)
    inner = margin + step
    if kind is not dict:
        return f"[{inner}{f',{inner}'.join([indented(item, step, inner) for item in value])}{margin}]"
    items = [f"{encode_basestring_ascii(key)}: {indented(item, step, inner)}" for key, item in value.items()]
    return f"{{{inner}{f',{inner}'.join(items)}{margin}}}"


def packed(text: str) -> str:
    """Return a document as a launcher carries it: compressed by gzip, in base64.

    Base64 because some launchers change bytes that are not text, e.g. ``srun --pty`` the ends of lines. A document of
    600 kB takes 40 kB.
    """
    return base64.encodebytes(gzip.compress(text.encode(), mtime=0)).decode("ascii")


def unpacked(sent: bytes, source: str) -> tuple[bytes, bytes]:
    """Return a document that was sent by :func:`packed` or as it is, and the same as a gzip file.

    Parameters
    ----------
    source
        As for :func:`read_content`.

    Raises
    ------
    UsageError
        If it is packed and cannot be unpacked.
    """
    if not sent.startswith(_PACKED):
        return sent, gzip.compress(sent + b"\n", mtime=0)
    try:
        file = base64.b64decode(sent)
        # A small gzip file can expand to any size.
        reader = zlib.decompressobj(wbits=_GZIP_WBITS)
        content = reader.decompress(file, FILE_LIMIT + 1)
    except (ValueError, zlib.error) as error:
        refuse(source, f"is packed by gzip and cannot be unpacked: {error}")
    if not reader.eof and len(content) <= FILE_LIMIT:
        refuse(source, "is packed by gzip and is truncated")
    return content, file[: len(file) - len(reader.unused_data)]


_GZIP_WBITS = 31
"""What tells zlib that the data is a gzip file: https://docs.python.org/3/library/zlib.html#zlib.decompressobj."""

_GZIP = b"\x1f\x8b"
"""The first bytes of a gzip file: https://www.rfc-editor.org/rfc/rfc1952#section-2.3.1."""

_PACKED = base64.b64encode(b"\x1f\x8b\x08")
"""The first characters of a gzip file in base64; no JSON text begins with them."""


def stem(path: Path) -> str:
    """Return a file's name without its suffixes: ``node7`` for ``node7.json`` and ``node7.json.gz``."""
    return Path(path.stem).stem if path.suffix == ".gz" else path.stem


def ascii_text(content: bytes) -> str:
    """Return a JSON text that :func:`parse_object` accepts as printable ASCII, unchanged if it already is.

    Raises
    ------
    ValueError
        If the text has to be rewritten and has a number beyond the range of floats.
    """
    text = content.decode()
    if text.isascii() and all(map(str.isprintable, text.split("\n"))):
        return text
    return json.dumps(json.loads(text), indent=2, allow_nan=False)


def parse_object(content: bytes, source: str, what: str) -> dict[str, Any]:
    """Return the object of a JSON text.

    Parameters
    ----------
    source
        As for :func:`read_content`.
    what
        The expected kind of document in messages, e.g. ``machine``.

    Raises
    ------
    UsageError
        If the text is not a JSON object or exceeds a limit.
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
        # Python rejects integers of more than 4300 digits.
        refuse(source, "holds a whole number of thousands of digits")
    if not isinstance(document, dict):
        refuse(source, f"is not a {what}: expected an object")
    return document


def check_schema(document: dict[str, Any], known: Sequence[str], source: str, what: str) -> str:
    """Return the schema of a document, if it is one of the known ones.

    Parameters
    ----------
    known
        The valid schemas, e.g. ``egmctl.machine/1``.
    source, what
        As for :func:`parse_object`.

    Raises
    ------
    UsageError
        If the document has another schema, another version, or none.
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


def newer_schema(document: dict[str, Any], known: Sequence[str]) -> str | None:
    """Return the known schema of which the document states a later version, ``egmctl.doctor/1`` for
    ``egmctl.doctor/2``; ``None`` if it states none."""
    name, _, version = str(document.get("schema")).partition("/")
    own_versions = [int(own) for own_name, _, own in (schema.partition("/") for schema in known) if own_name == name]
    if own_versions and re.fullmatch(r"[1-9][0-9]{0,3}", version, re.ASCII) and int(version) > max(own_versions):
        return f"{name}/{max(own_versions)}"
    return None


def refuse(source: str, sentence: str) -> NoReturn:
    """Raise an error about a file.

    Raises
    ------
    UsageError
        Always.
    """
    raise UsageError(f"{short(source)} {sentence}")


def short(text: str) -> str:
    """Return an external text, cut to 200 characters."""
    return text if len(text) <= 200 else f"{text[:197]}..."
