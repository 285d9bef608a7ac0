"""The directories of the files that ship with egmctl: platform profiles, recorded machines and the guide."""

from __future__ import annotations

from pathlib import Path

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
