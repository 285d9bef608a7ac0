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
from collections.abc import Callable, Hashable, Mapping, Sequence
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
    kind: Any = type(value)
    if value is None or kind in (str, int, bool):
        return value
    if names := _written(kind):
        return {name: to_json(item) for name in names if (item := getattr(value, name)) or name != "unread"}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_json(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} has no place in JSON")
    return value


@functools.cache
def _written(kind: type) -> tuple[str, ...]:
    """Return the names of a dataclass' fields in the order of writing: ``unread`` is last. Other types have none."""
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    return tuple(f.name for f in sorted(fields, key=lambda f: f.name == "unread"))


Readers = Mapping[Any, Callable[[Any, str], Any]]
"""Functions that decode certain dataclasses, by class, from the JSON data and its location in the document. One for
:class:`enum.Enum` decodes the words that are no members of their enumeration (:func:`reader_of_new_words`)."""


PoolKey = tuple[type, Hashable]
"""A class, and what stands for all data of one of its records."""


class Pool:
    """Records that several documents share: equal parts are decoded once and are the same object.

    The machines of a fleet are nearly equal, so this saves most of the time and memory of all but the first. Put it
    into :data:`Readers` by its class. A record that no recent document has is forgotten, so that those which one
    document has alone do not add up.
    """

    LIMIT = 16384
    """The number of other records after which one is forgotten. A doctor's document of 8 GPUs has some 400 different
    ones, and each further node 35 of its own."""

    def __init__(self) -> None:
        self._recent: dict[PoolKey, Any] = {}
        self._earlier: dict[PoolKey, Any] = {}

    def __call__(self, key: PoolKey, _where: str) -> Any:
        """Return the record of a key, or ``None``."""
        record = self._recent.get(key)
        if record is None and (record := self._earlier.get(key)) is not None:
            self.keep(key, record)
        return record

    def keep(self, key: PoolKey, record: Any) -> None:
        """Remember the record that was decoded from a key's data."""
        if len(self._recent) >= self.LIMIT:
            self._recent, self._earlier = {}, self._recent
        self._recent[key] = record

    @staticmethod
    def key(kind: type, data: dict[str, Any]) -> PoolKey:
        """Return the key of a record: its class and all of its data."""
        if len(data) <= 2 and all(type(value) is str for value in data.values()):
            return kind, tuple(data.items())
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
    value: T = _reading(typing.cast(Any, cls))(data, (None, where), readers)
    return value


@functools.cache
def field_types(cls: Any) -> Mapping[str, Any]:
    """Return a dataclass' fields in order, with their types including ``Annotated`` metadata."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls)}


Where = tuple[Any, "str | int"]
"""The location of a value: that of what holds it, or ``None``, and its key or index there. Only errors spell it out."""
_Reading = Callable[[Any, Where, Readers], Any]
"""A function that decodes the JSON data of one type, which is at a location."""


@functools.cache
def _reading(kind: Any) -> _Reading:
    """Return the function that decodes a type, made once: type hints are not looked at again for each value."""
    origin = typing.get_origin(kind)
    arguments = typing.get_args(kind)
    if origin is typing.Annotated:
        spellings = [spelling for spelling in arguments[1:] if isinstance(spelling, Spelling)]
        return _reading_of_spellings(_reading(arguments[0]), spellings) if spellings else _reading(arguments[0])
    if origin in (typing.Union, types.UnionType):
        (only,) = [option for option in arguments if option is not type(None)]
        return _reading_of_nullable(_reading(only)) if type(None) in arguments else _reading(only)
    if origin is tuple:
        return _reading_of_tuple(arguments)
    if origin is Sequence:
        return _reading_of_tuple((*arguments, ...))
    if origin in (dict, Mapping):
        return _reading_of_mapping(_reading(arguments[1]))
    if dataclasses.is_dataclass(kind):
        return _reading_of_dataclass(typing.cast(type, kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _reading_of_enum(kind)
    return _reading_of_scalar(kind)


def _reading_of_nullable(read: _Reading) -> _Reading:
    return lambda data, where, readers: None if data is None else read(data, where, readers)


def _reading_of_spellings(read: _Reading, spellings: Sequence[Spelling]) -> _Reading:
    def spelled(data: Any, where: Where, readers: Readers) -> Any:
        value = read(data, where, readers)
        for spelling in spellings:
            _check_spelling(spelling, value, where)
        return value

    return spelled


def _reading_of_enum(kind: type[Enum]) -> _Reading:
    members = {member.value: member for member in kind}

    def member(data: Any, where: Where, readers: Readers) -> Any:
        if kind in readers:
            return readers[kind](data, _place(where))
        if isinstance(data, str) and data in members:
            return members[data]
        try:
            return kind(data)
        except ValueError:
            if Enum in readers and isinstance(data, str) and _WORD.fullmatch(data):
                return readers[Enum]((kind, data), _place(where))
            words = ", ".join(str(member.value) for member in kind)
            raise DecodeError(f"{_place(where)}: expected one of {words}, found {_name(data)}") from None

    return member


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


def _reading_of_dataclass(cls: type) -> _Reading:
    fields: list[_Field] | None = None

    def record(data: Any, where: Where, readers: Readers) -> Any:
        nonlocal fields
        if cls in readers:
            return readers[cls](data, _place(where))
        if not isinstance(data, dict):
            raise DecodeError(f"{_place(where) or 'the document'}: expected an object, found {_name(data)}")
        if fields is None:
            # Not before: a dataclass may hold others of its own type.
            fields = _fields(cls)
        pool = readers.get(Pool)
        # A whole document, or its machine, is equal to no other one.
        if not isinstance(pool, Pool) or where[0] is None:
            return _record(cls, fields, data, where, readers)
        # The data of a decoded record is the same JSON, so it is valid too.
        key = Pool.key(cls, data)
        known = pool(key, "")
        if known is None:
            known = _record(cls, fields, data, where, readers)
            pool.keep(key, known)
        return known

    return record


class _Field(typing.NamedTuple):
    """A field that is read: derived fields are written but not read."""

    name: str
    read: _Reading
    required: bool
    null_by_default: bool


def _fields(cls: type) -> list[_Field]:
    types_by_name = field_types(cls)
    return [
        _Field(
            name=f.name,
            read=_reading(types_by_name[f.name]),
            required=f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING,
            null_by_default=f.default is None,
        )
        for f in dataclasses.fields(cls)
        if f.init
    ]


def _record(cls: type, fields: list[_Field], data: dict[str, Any], where: Where, readers: Readers) -> Any:
    values: dict[str, Any] = {}
    not_stated = {}
    for name, read, required, null_by_default in fields:
        if name in data:
            values[name] = read(data[name], (where, name), readers)
        elif required:
            raise DecodeError(f"{_place(where) or 'the document'}: the key {name!r} is missing")
        elif null_by_default:
            not_stated[name] = NOT_STATED
    if not_stated and issubclass(cls, Record):
        reasons = not_stated | values.get("unread", {})
        order = list(field_types(typing.cast(Any, cls)))
        values["unread"] = dict(sorted(reasons.items(), key=lambda reason: _order(order, reason[0])))
    return cls(**values)


def _order(order: list[str], name: str) -> int:
    """Return the index of a field, or of ``field.key``, among a record's fields; unknown names come last."""
    field = name.partition(".")[0]
    return order.index(field) if field in order else len(order)


def _reading_of_tuple(kinds: tuple[Any, ...]) -> _Reading:
    repeated = _reading(kinds[0]) if kinds[1:] == (Ellipsis,) else None
    each = [] if repeated is not None else [_reading(kind) for kind in kinds]

    def items(data: Any, where: Where, readers: Readers) -> tuple[Any, ...]:
        if not isinstance(data, list):
            raise DecodeError(f"{_place(where)}: expected a list, found {_name(data)}")
        if len(data) > ITEMS_LIMIT:
            raise DecodeError(f"{_place(where)}: expected at most {ITEMS_LIMIT} items, found {len(data)}")
        if repeated is not None:
            return tuple([repeated(item, (where, index), readers) for index, item in enumerate(data)])
        if len(data) != len(each):
            raise DecodeError(f"{_place(where)}: expected {len(each)} items, found {len(data)}")
        return tuple([read(data[index], (where, index), readers) for index, read in enumerate(each)])

    return items


def _reading_of_mapping(read: _Reading) -> _Reading:
    def mapping(data: Any, where: Where, readers: Readers) -> dict[str, Any]:
        if not isinstance(data, dict):
            raise DecodeError(f"{_place(where)}: expected an object, found {_name(data)}")
        return {_checked_scalar(str, key, where): read(item, (where, str(key)), readers) for key, item in data.items()}

    return mapping


def _place(where: Where) -> str:
    """Return a location as text: ``gpus[0].nvml.name``."""
    holder, step = where
    if holder is None:
        return str(step)
    outer = _place(holder)
    if isinstance(step, int):
        return f"{outer}[{step}]"
    return f"{outer}.{step}" if outer else step


def _check_spelling(spelling: Spelling, value: str, where: Where) -> None:
    if not _is_spelled(spelling, value):
        raise DecodeError(f"{_place(where)}: expected a spelling such as {spelling.example}, found {_name(value)}")


@functools.lru_cache(maxsize=4096)
def _is_spelled(spelling: Spelling, value: str) -> bool:
    # A document of a node has the same few bus ids and lists thousands of times.
    try:
        if re.fullmatch(spelling.pattern, value):
            spelling.read(value)
            return True
    except ValueError:
        pass
    return False


_OBVIOUS: dict[type, Callable[[Any], bool]] = {
    bool: lambda _data: True,
    str: str.isascii,
    int: lambda data: -(2**63) <= data < 2**64,
    float: math.isfinite,
}
"""By type, whether a value of exactly this type is valid at first sight, as nearly all are."""


def _reading_of_scalar(kind: Any) -> _Reading:
    is_obvious = _OBVIOUS.get(kind)

    def scalar(data: Any, where: Where, readers: Readers) -> Any:
        if kind in readers:
            return readers[kind](data, _place(where))
        if type(data) is kind and is_obvious is not None and is_obvious(data):
            return data
        return _checked_scalar(kind, data, where)

    return scalar


def _checked_scalar(kind: Any, data: Any, where: Where) -> Any:
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        data = float(data) if abs(data) < 2**1000 else math.inf
    fits = isinstance(data, kind) and (kind is bool or not isinstance(data, bool))
    if not fits or (isinstance(data, float) and not math.isfinite(data)):
        words = {str: "a string", int: "a whole number", float: "a number", bool: "true or false"}
        raise DecodeError(f"{_place(where)}: expected {words.get(kind, kind)}, found {_name(data)}")
    if isinstance(data, int) and not -(2**63) <= data < 2**64:
        raise DecodeError(f"{_place(where)}: expected a whole number of 64 bits, found {_name(data)}")
    # JSON can spell halves of surrogate pairs, but they cannot be encoded for output.
    if isinstance(data, str) and not data.isascii() and any("\ud800" <= letter <= "\udfff" for letter in data):
        raise DecodeError(f"{_place(where)}: expected Unicode text, found {_name(data)}")
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
