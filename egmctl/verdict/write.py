"""Writes a profile as TOML 1.0: the few kinds of values that one has, so that a file that is read is what was meant."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from egmctl.model.codec import to_json
from egmctl.model.profile import Profile


def dump(profile: Profile) -> str:
    """Return the file's text; without keys that say nothing."""
    document: dict[str, Any] = to_json(profile)
    return "\n".join(_table(document, "")).strip("\n") + "\n"


def _table(table: Mapping[str, Any], name: str) -> Iterator[str]:
    """Yield a table's own keys, then those of its tables: TOML has a key belong to the last header above it."""
    for key, value in table.items():
        if value not in (None, []) and not _is_table(value):
            yield f"{_key(key)} = {_value(value)}"
    for key, value in table.items():
        place = f"{name}.{_key(key)}" if name else _key(key)
        if isinstance(value, dict):
            if any(not isinstance(item, dict) for item in value.values()):
                yield f"\n[{place}]"
            yield from _table(value, place)
        elif _is_table(value):
            for item in value:
                yield f"\n[[{place}]]"
                yield from _table(item, place)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, dict) for item in value))


def _key(key: str) -> str:
    bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if bare else _string(key)


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        return _string(value)
    return json.dumps(value)


def _string(text: str) -> str:
    """Return a basic string: JSON's escapes are TOML's, but for the delete character and pairs of surrogates."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")
