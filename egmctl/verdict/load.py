"""Finds and reads profiles: a site's own before those that ship. Whatever is wrong is named by file, line and key."""

from __future__ import annotations

import dataclasses
import os
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from egmctl import toml
from egmctl.data import profiles_dir
from egmctl.documents import short
from egmctl.errors import UsageError
from egmctl.files import read_bounded
from egmctl.model.codec import DecodeError, field_types, from_json
from egmctl.model.profile import PROFILE_SCHEMA, Profile, Unit
from egmctl.units import printable

"""The keys of schema 1 in its text, in which the line of a fault is looked for."""
FILE_LIMIT = 1 << 20
"""Bytes of the largest file that is read; ``hgx-h200.toml`` has some 20 KiB."""

SYSTEM_FOLDER = Path("/etc/egmctl/profiles")


def folders() -> tuple[Path, ...]:
    """Return where profiles are looked for, the first one first: the user's, the system's, those that ship.

    The user's is that of the XDG Base Directory Specification: ``$XDG_CONFIG_HOME/egmctl/profiles``, and
    ``~/.config/egmctl/profiles`` where the variable is not set or not absolute.
    """
    stated = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    user = stated if stated.is_absolute() else Path(os.path.expanduser("~/.config"))
    return user / "egmctl" / "profiles", SYSTEM_FOLDER, profiles_dir()


def load_all(on_broken: Callable[[UsageError], None] | None = None) -> tuple[tuple[Profile, Path], ...]:
    """Return every profile and its file, in the order in which they are asked; of two of one name the first.

    Parameters
    ----------
    on_broken
        Told of a broken one, which is passed over then: for what was measured already and must not be lost.

    Raises
    ------
    UsageError
        For a broken one, without ``on_broken``: what it says must not be passed over in silence.
    """
    found: dict[str, tuple[Profile, Path]] = {}
    for folder in folders():
        for path in sorted(folder.glob("*.toml")):
            if path.stem in found:
                continue
            try:
                found[path.stem] = read(path), path
            except UsageError as error:
                if on_broken is None:
                    raise
                on_broken(error)
    return tuple(found.values())


def load(name_or_path: str) -> Profile:
    """Return one profile by its name, or from a file.

    Raises
    ------
    UsageError
        If there is none, or it is broken.
    """
    return read(find(name_or_path))


def find(name_or_path: str) -> Path:
    """Return the file of a profile.

    Raises
    ------
    UsageError
        If there is none of that name.
    """
    if os.sep in name_or_path or name_or_path.endswith(".toml"):
        return Path(name_or_path)
    for folder in folders():
        path = folder / f"{name_or_path}.toml"
        # A name may be longer than any file's.
        if os.path.isfile(path):
            return path
    names = ", ".join(dict.fromkeys(path.stem for folder in folders() for path in sorted(folder.glob("*.toml"))))
    raise UsageError(
        f"there is no profile {short(printable(name_or_path))!r}; there are {names}, or give a file NAME.toml"
    )


def read(path: Path) -> Profile:
    """Return the profile that a file holds.

    Raises
    ------
    UsageError
        Naming file, line and key.
    """
    try:
        content = read_bounded(path, FILE_LIMIT)
        text = content.decode()
    except OSError as error:
        raise UsageError(f"profile {printable(str(path))} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        _refuse(path, content[: error.start].count(b"\n") + 1, "not UTF-8 text")
    if len(content) > FILE_LIMIT:
        _refuse(path, 1, f"larger than {FILE_LIMIT} bytes, which no profile is")
    return parse(text, path)


def parse(text: str, path: Path) -> Profile:
    """Return the profile that a text spells.

    Parameters
    ----------
    path
        The file that the text is of: its stem is the profile's name.

    Raises
    ------
    UsageError
        As :func:`read`.
    """
    try:
        document = toml.loads(text)
    except (toml.TOMLDecodeError, RecursionError, ValueError) as error:
        at = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)$", str(error))
        line = int(at[1]) if at and at[1] else text.count("\n") + 1
        _refuse(path, line, f"not TOML: {str(error)[: at.start()] if at else type(error).__name__}")
    if document.get("schema") != PROFILE_SCHEMA:
        _refuse_key(path, text, "schema", f"expected {PROFILE_SCHEMA!r}, found {document.get('schema')!r}")
    for place in _unknown(Profile, document, ""):
        _refuse_key(path, text, place, "there is no such key")
    try:
        profile = from_json(Profile, document)
    except DecodeError as error:
        place, _, what = str(error).partition(": ")
        _refuse_key(path, text, place if what else "", what or place)
    if profile.name != path.stem:
        _refuse_key(path, text, "name", f"expected {path.stem!r}, the file's name, found {profile.name!r}")
    for place, what in _faults(profile):
        _refuse_key(path, text, place, what)
    return profile


def _faults(profile: Profile) -> Iterator[tuple[str, str]]:
    """Yield the place and the sentence of each thing that the types do not say."""
    cited = [("match.source", profile.match.source)]
    cited += [(f"links[{i}].source", link.source) for i, link in enumerate(profile.links)]
    seen: set[tuple[str, str, int | None]] = set()
    for i, reference in enumerate(profile.references):
        cited.append((f"references[{i}].source", reference.source))
        if reference.bounds_source is not None:
            cited.append((f"references[{i}].bounds_source", reference.bounds_source))
        path = reference.case, reference.link, reference.flows
        if path in seen:
            yield f"references[{i}].case", f"{reference.case} over {reference.link} is there already"
        seen.add(path)
        values = (reference.fail, reference.warn, reference.typical)
        if not any(values):
            yield f"references[{i}].case", "it has neither a typical value nor a bound"
        for key, value in zip(("fail", "warn", "typical"), values, strict=True):
            if value is not None and not value > 0:
                yield f"references[{i}].{key}", "expected a number above 0"
        sign = 1 if reference.unit is Unit.GB_S else -1
        order = [sign * value for value in values if value is not None]
        if order != sorted(order):
            better = "fail <= warn <= typical" if sign > 0 else "typical <= warn <= fail"
            yield f"references[{i}].case", f"the bounds have to be {better}"
    for place, source in cited:
        if source not in profile.sources:
            known = ", ".join(profile.sources) or "none"
            yield place, f"{source!r} is none of the sources: {known}"


def _unknown(kind: Any, data: Any, where: str) -> Iterator[str]:
    """Yield the place of each key that the type does not have: a misspelt one would do nothing, silently."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType, typing.Annotated):
        yield from _unknown(arguments[0], data, where)
    elif origin is tuple and isinstance(data, list):
        for i, item in enumerate(data):
            yield from _unknown(arguments[0], item, f"{where}[{i}]")
    elif origin is Mapping and isinstance(data, dict):
        for key, item in data.items():
            yield from _unknown(arguments[1], item, f"{where}.{key}")
    elif dataclasses.is_dataclass(kind) and isinstance(data, dict):
        fields = field_types(typing.cast(type, kind))
        for key, item in data.items():
            place = f"{where}.{key}" if where else key
            if key in fields:
                yield from _unknown(fields[key], item, place)
            else:
                yield place


def _refuse_key(path: Path, text: str, place: str, what: str) -> NoReturn:
    _refuse(path, line_of(text, place), f"{place}: {what}" if place else what)


def _refuse(path: Path, line: int, what: str) -> NoReturn:
    raise UsageError(f"profile {printable(str(path))}, line {line}: {short(printable(what))}")


def line_of(text: str, place: str) -> int:
    """Return the line, from 1, of a place such as ``references[2].warn``: of its table where the key is not there."""
    table, _, key = place.rpartition(".")
    if not table:
        table = key
    name, _, number = table.partition("[")
    nth = int(number.rstrip("]")) if number else 0
    key = key.partition("[")[0]
    inside, count, found = table == key, -1, 1
    for line, content in enumerate(text.splitlines(), 1):
        if header := re.match(r"\s*\[\[?\s*([^\[\]]+?)\s*\]\]?\s*(#.*)?$", content):
            count += header[1] == name
            inside = header[1] == name and count == nth
            found = line if inside else found
        elif inside and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", content):
            return line
    return found
