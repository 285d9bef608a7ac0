"""The folders of the files that ship with the tool: platform profiles and machines to replay."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def _shipped(name: str) -> Path:
    """Return a shipped folder: inside the package in a wheel, beside it in a checkout."""
    packaged = _PACKAGE / f"_{name}"
    return packaged if packaged.is_dir() else _PACKAGE.parent / name


def profiles_dir() -> Path:
    """Return the folder of shipped profiles."""
    return _shipped("profiles")


def machines_dir() -> Path:
    """Return the folder of shipped machines (``NAME.json``)."""
    return profiles_dir() / "machines"


def docs_dir() -> Path:
    """Return the folder of the guide."""
    return _shipped("docs")
