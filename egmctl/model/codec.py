"""Convert dataclasses to JSON and back by their type hints. Every document that the tool reads or writes uses this.

Reading is strict about types and words and lenient about keys. A wrong type is an error that names its location
(``gpus[0].nvml.name``). An unknown key, which a newer version may have written, is ignored. A missing key gets the
field's default; in a :class:`egmctl.model.record.Record`, a nullable field without its key is null with the reason that
the document does not state it. Writing omits only empty ``unread`` maps: a null is written, and its reason is in
``unread``.
"""

from __future__ import annotations

import dataclasses
import functools
import marshal
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

from egmctl.model.record import NOT_STATED, Record, Spelling

T = TypeVar("T")

JsonValue = dict[str, "JsonValue"] | list["JsonValue"] | str | int | float | bool | None


ITEMS_LIMIT = 100_000
"""The maximum length of a list: the maximum number of nodes that can be queried. All other lists are far shorter."""


class DecodeError(ValueError):
    """A document does not have the structure of the dataclass. The message names the location and both types."""


def to_json(value: Any) -> Any:
    """Return ``value`` (dataclasses, mappings, tuples, enums, scalars) as JSON data.

    Raises
    ------
    ValueError
        A float is infinite or not a number.
    """
    if value is None or type(value) in (str, int, bool):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            name: to_json(item) for name in _written(type(value)) if (item := getattr(value, name)) or name != "unread"
        }
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (tuple, list)):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} has no place in JSON")
    return value


@functools.cache
def _written(kind: type) -> tuple[str, ...]:
    """Return the names of a dataclass' fields in the order of writing: ``unread`` is last."""
    return tuple(f.name for f in sorted(dataclasses.fields(kind), key=lambda f: f.name == "unread"))


Readers = Mapping[Any, Callable[[Any, str], Any]]
"""Functions that decode certain dataclasses, by class, from the JSON data and its location in the document. One for
:class:`enum.Enum` decodes the words that are no members of their enumeration (:func:`reader_of_new_words`)."""


class Pool:
    """Records that several documents share: equal parts are decoded once and are the same object.

    The machines of a fleet are nearly equal, so this saves most of the time and memory of all but the first. Put it
    into :data:`Readers` by its class.
    """

    def __init__(self) -> None:
        self._records: dict[tuple[type, bytes], Any] = {}

    def __call__(self, key: tuple[type, bytes], _where: str) -> Any:
        """Return the record of a key, or ``None``."""
        return self._records.get(key)

    def keep(self, key: tuple[type, bytes], record: Any) -> None:
        """Remember the record that was decoded from a key's data."""
        self._records[key] = record

    @staticmethod
    def key(kind: type, data: dict[str, Any]) -> tuple[type, bytes]:
        """Return the key of a record: its class and all of its data."""
        # Needed for fleets only, and takes a tenth of the time of --help to import.
        from hashlib import blake2b

        # Version 2 writes equal values as equal bytes; later ones refer to earlier objects by their identity. The
        # digest is cryptographic: a node must not be able to make its data pass for another's.
        return kind, blake2b(marshal.dumps(data, 2), digest_size=32).digest()


def from_json(cls: type[T], data: Any, where: str = "", readers: Readers = types.MappingProxyType({})) -> T:
    """Build ``cls`` (a dataclass) from JSON data.

    Parameters
    ----------
    where
        The location of ``data`` in its document, for error messages.
    readers
        Functions that decode dataclasses with rules of their own.

    Raises
    ------
    DecodeError
        The data does not match the dataclass. The message names the first mismatch.
    """
    value: T = _decode(cls, data, where, readers)
    return value


@functools.cache
def field_types(cls: Any) -> Mapping[str, Any]:
    """Return a dataclass' fields in order, with their types including ``Annotated`` metadata."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


def _decode(kind: Any, data: Any, where: str, readers: Readers) -> Any:
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin is typing.Annotated:
        value = _decode(arguments[0], data, where, readers)
        for spelling in arguments[1:]:
            if isinstance(spelling, Spelling):
                _check_spelling(spelling, value, where)
        return value
    if origin in (typing.Union, types.UnionType):
        if data is None and type(None) in arguments:
            return None
        (only,) = [option for option in arguments if option is not type(None)]
        return _decode(only, data, where, readers)
    if origin is tuple:
        return _decode_tuple(arguments, data, where, readers)
    if origin in (dict, Mapping):
        return _decode_mapping(arguments[1], data, where, readers)
    if kind in readers:
        return readers[kind](data, where)
    if dataclasses.is_dataclass(kind):
        return _decode_dataclass(typing.cast(type, kind), data, where, readers)
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(data)
        except ValueError:
            if Enum in readers and isinstance(data, str) and _WORD.fullmatch(data):
                return readers[Enum]((kind, data), where)
            words = ", ".join(str(member.value) for member in kind)
            raise DecodeError(f"{where}: expected one of {words}, found {_name(data)}") from None
    return _decode_scalar(kind, data, where)


_WORD = re.compile(r"[A-Za-z0-9?][\w ./+-]{0,60}", re.ASCII)
"""What may be a word of an enumeration: it is shown as it is."""


def reader_of_new_words(
    stands_for: Mapping[type[Enum], Enum], met: Callable[[str, str], None]
) -> Callable[[tuple[type[Enum], str], str], Enum]:
    """Return a function for :data:`Readers` that keeps words which a newer version has added to an enumeration.

    An enumeration with a member ``UNKNOWN`` gets that member; so does one of ``stands_for`` the member there. Any other
    gets a value that is no member and equal to none, but prints and is written as the word.

    Parameters
    ----------
    met
        Called with each word and its location.
    """

    def read(found: tuple[type[Enum], str], where: str) -> Enum:
        kind, word = found
        met(word, where)
        known = stands_for.get(kind) or kind.__members__.get("UNKNOWN")
        if known is not None:
            return known
        stranger = str.__new__(typing.cast(Any, kind), word)
        stranger._name_, stranger._value_ = word, word
        return typing.cast(Enum, stranger)

    return read


def _decode_dataclass(cls: type, data: Any, where: str, readers: Readers) -> Any:
    if not isinstance(data, dict):
        raise DecodeError(f"{where or 'the document'}: expected an object, found {_name(data)}")
    pool = readers.get(Pool)
    if not isinstance(pool, Pool):
        return _decode_fields(cls, data, where, readers)
    # The data of a decoded record is the same JSON, so it is valid too.
    key = Pool.key(cls, data)
    record = pool(key, where)
    if record is None:
        record = _decode_fields(cls, data, where, readers)
        pool.keep(key, record)
    return record


def _decode_fields(cls: type, data: dict[str, Any], where: str, readers: Readers) -> Any:
    types_by_name = field_types(cls)
    values: dict[str, Any] = {}
    not_stated = {}
    for f in dataclasses.fields(cls):
        # Derived fields are written but not read.
        if f.init and f.name in data:
            place = f"{where}.{f.name}" if where else f.name
            values[f.name] = _decode(types_by_name[f.name], data[f.name], place, readers)
        elif f.init and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise DecodeError(f"{where or 'the document'}: the key {f.name!r} is missing")
        elif f.default is None:
            not_stated[f.name] = NOT_STATED
    if not_stated and issubclass(cls, Record):
        reasons = not_stated | values.get("unread", {})
        order = list(types_by_name)
        values["unread"] = dict(sorted(reasons.items(), key=lambda reason: _place(order, reason[0])))
    return cls(**values)


def _place(order: list[str], name: str) -> int:
    """Return the index of a field, or of ``field.key``, among a record's fields; unknown names come last."""
    field = name.partition(".")[0]
    return order.index(field) if field in order else len(order)


def _decode_tuple(kinds: tuple[Any, ...], data: Any, where: str, readers: Readers) -> tuple[Any, ...]:
    if not isinstance(data, list):
        raise DecodeError(f"{where}: expected a list, found {_name(data)}")
    if len(data) > ITEMS_LIMIT:
        raise DecodeError(f"{where}: expected at most {ITEMS_LIMIT} items, found {len(data)}")
    if kinds[1:] == (Ellipsis,):
        kinds = kinds[:1] * len(data)
    if len(data) != len(kinds):
        raise DecodeError(f"{where}: expected {len(kinds)} items, found {len(data)}")
    return tuple(_decode(kind, data[i], f"{where}[{i}]", readers) for i, kind in enumerate(kinds))


def _decode_mapping(kind: Any, data: Any, where: str, readers: Readers) -> dict[str, Any]:
    if not isinstance(data, dict):
        raise DecodeError(f"{where}: expected an object, found {_name(data)}")
    return {
        _decode_scalar(str, key, where): _decode(kind, item, f"{where}.{key}", readers) for key, item in data.items()
    }


def _check_spelling(spelling: Spelling, value: str, where: str) -> None:
    try:
        if re.fullmatch(spelling.pattern, value):
            spelling.read(value)
            return
    except ValueError:
        pass
    raise DecodeError(f"{where}: expected a spelling such as {spelling.example}, found {_name(value)}")


def _decode_scalar(kind: Any, data: Any, where: str) -> Any:
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        data = float(data) if abs(data) < 2**1000 else math.inf
    fits = isinstance(data, kind) and (kind is bool or not isinstance(data, bool))
    if not fits or (isinstance(data, float) and not math.isfinite(data)):
        words = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}
        raise DecodeError(f"{where}: expected {words.get(kind, kind)}, found {_name(data)}")
    if isinstance(data, int) and not -(2**63) <= data < 2**64:
        raise DecodeError(f"{where}: expected a whole number of 64 bits, found {_name(data)}")
    # JSON can spell halves of surrogate pairs, but they cannot be encoded for output.
    if isinstance(data, str) and not data.isascii() and any("\ud800" <= letter <= "\udfff" for letter in data):
        raise DecodeError(f"{where}: expected Unicode text, found {_name(data)}")
    return data


def _name(data: Any) -> str:
    if data is None:
        return "null"
    if isinstance(data, bool):
        return str(data).lower()
    if isinstance(data, (dict, list)):
        return "an object" if isinstance(data, dict) else "a list"
    text = repr(data)
    return text if len(text) <= 40 else f"{text[:37]}..."
