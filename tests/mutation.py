"""Random changes to a machine that its types allow, and to a tree of files that nothing forbids: fast, for many."""

from __future__ import annotations

import dataclasses
import os
import random
import types
import typing
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from egmctl.model.codec import field_types
from egmctl.model.record import Spelling

T = TypeVar("T")

NUMBERS = (0, 1, -1, 2, 7, 18, 255, 1 << 16, 1 << 31, (1 << 63) - 1, -(1 << 63))
TEXTS = (
    *("", "ok", "EPERM", "ENOENT", "none", "y", "0", "0-3", "all"),
    *("x" * 5000, "\x1b[31m", "\u202e", '"driver"', "é\n"),
)
SPELLED = ("", "0", "0-3,8", "71")


def mutated(value: T, choice: random.Random) -> T:
    """Return a dataclass with one to six values replaced by others of their types, taken away, or repeated."""
    for _ in range(choice.randint(1, 6)):
        value = _mutated(type(value), value, choice)
    return value


def _mutated(kind: Any, value: Any, choice: random.Random) -> Any:
    kind = _plain(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        if choice.random() < 0.1:
            return None
        return _mutated(next(option for option in arguments if option is not type(None)), value, choice)
    deeper = value is not None and choice.random() < 0.95
    if deeper and dataclasses.is_dataclass(value) and not isinstance(value, type):
        name, hint = choice.choice([item for item in _given(type(value)) if item[0] != "unread"])
        return dataclasses.replace(value, **{name: _mutated(hint, getattr(value, name), choice)})
    if deeper and isinstance(value, tuple) and value and arguments[1:] == (Ellipsis,):
        place = choice.randrange(len(value))
        changed = () if choice.random() < 0.1 else (_mutated(arguments[0], value[place], choice),)
        return (*value[:place], *changed, *value[place + 1 :])
    if deeper and isinstance(value, Mapping) and value:
        key = choice.choice(list(value))
        return {**value, key: _mutated(arguments[1], value[key], choice)}
    return _anything(kind, choice)


def _anything(kind: Any, choice: random.Random) -> Any:
    spelled = typing.get_origin(kind) is typing.Annotated and any(isinstance(m, Spelling) for m in kind.__metadata__)
    if spelled:
        return choice.choice(SPELLED)
    kind = _plain(kind)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        options = [option for option in arguments if option is not type(None)]
        return None if choice.random() < 0.3 else _anything(options[0], choice)
    if origin is tuple and arguments[1:] == (Ellipsis,):
        return tuple(_anything(arguments[0], choice) for _ in range(choice.randint(0, 2)))
    if origin is tuple:
        return tuple(_anything(argument, choice) for argument in arguments)
    if origin is Mapping:
        keys = (_anything(arguments[0], choice) for _ in range(choice.randint(0, 2)))
        return {key: _anything(arguments[1], choice) for key in keys}
    if dataclasses.is_dataclass(kind):
        values = {name: _anything(hint, choice) for name, hint in _given(kind)}
        return typing.cast(Any, kind)(**values)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return choice.choice(list(kind))
    simple = {bool: (True, False), int: NUMBERS, float: (0.0, -1.0, 2.5, 1e300), str: TEXTS}
    return choice.choice(simple[kind])


def _given(kind: Any) -> list[tuple[str, Any]]:
    """Return the fields that a dataclass is made of, with their types; others follow from them."""
    given = {field.name for field in dataclasses.fields(kind) if field.init}
    return [(name, hint) for name, hint in field_types(kind).items() if name in given]


def _plain(kind: Any) -> Any:
    """Return a type without its marks; one with a spelling keeps them."""
    if typing.get_origin(kind) is typing.Annotated and not any(isinstance(m, Spelling) for m in kind.__metadata__):
        return typing.get_args(kind)[0]
    return kind


def spoil(files: list[Path], choice: random.Random) -> list[tuple[Path, bytes]]:
    """Spoil one to four files of a tree; return what they held, for :func:`mend`."""
    held = []
    for path in choice.sample(files, choice.randint(1, 4)):
        content = path.read_bytes()
        held.append((path, content))
        path.unlink()
        match choice.randrange(8):
            case 0:
                path.write_bytes(content[: choice.randint(0, len(content))])
            case 1:
                path.write_bytes(bytes(choice.randrange(256) for _ in range(200)))
            case 2:
                path.write_bytes(content * 50)
            case 3:
                path.mkdir()
            case 4:
                path.symlink_to(path)
            case 5:
                path.write_bytes(content.replace(b"0", b"99999999999999999999"))
            case 6:
                os.mkfifo(path)
            case _:
                pass
    return held


def mend(held: list[tuple[Path, bytes]]) -> None:
    """Undo :func:`spoil`."""
    for path, content in held:
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
        path.write_bytes(content)


EXTREMES: dict[type, tuple[Any, ...]] = {
    bool: (True, False),
    int: (-1, 0, 1, 300, 2**63, -(2**63), 2**64),
    float: (0.0, -0.5, 1e-300, 1e308),
    str: ("", "\x1b[31m", "[bold]x[/]", "\u202e", "a\nb", "," * 300, "0-3,8", "0000:ff:1f.7"),
}


def mutate(document: Any, choice: random.Random, value: Any) -> None:
    """Remove something at a random depth, or put in its place an extreme of its type, or any value."""
    while True:
        keys = list(document) if isinstance(document, dict) else range(len(document))
        if not keys:
            return
        key = choice.choice(keys)
        if isinstance(document[key], (dict, list)) and choice.random() < 0.8:
            document = document[key]
            continue
        if choice.random() < 0.2:
            del document[key]
        else:
            document[key] = choice.choice((value, None, *EXTREMES.get(type(document[key]), ())))
        return
