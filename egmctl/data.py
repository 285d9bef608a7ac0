"""The files that ship with egmctl: the directories of profiles, recorded machines and the guide; the TOML reader."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

_PACKAGE = Path(__file__).resolve().parent


def _shipped(name: str) -> Path:
    """Return a shipped directory: inside the package if installed from a wheel, beside it in a checkout."""
    packaged = _PACKAGE / f"_{name}"
    return packaged if packaged.is_dir() else _PACKAGE.parent / name


def profiles_dir() -> Path:
    """Return the directory of the platform profiles."""
    return _shipped("profiles")


def machines_dir() -> Path:
    """Return the directory of the recorded machines (``NAME.json``)."""
    return profiles_dir() / "machines"


def docs_dir() -> Path:
    """Return the directory of the guide."""
    return _shipped("docs")


def read_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text, by Python's own reader or, in Python 3.10, by tomli, its origin.

    Raises
    ------
    ValueError
        The text is not TOML.
    """
    if sys.version_info >= (3, 11):
        from tomllib import loads
    else:
        from tomli import loads
    tables: dict[str, Any] = loads(text)
    return tables
