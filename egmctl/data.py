"""Where the files that ship with the tool are: platform profiles and machines to replay."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def profiles_dir() -> Path:
    """Return the folder of shipped profiles: inside the package in a wheel, beside it in a checkout."""
    packaged = _PACKAGE / "_profiles"
    return packaged if packaged.is_dir() else _PACKAGE.parent / "profiles"


def machines_dir() -> Path:
    """Return the folder of shipped machines (``NAME.json``)."""
    return profiles_dir() / "machines"


def docs_dir() -> Path:
    """Return the folder of the guide: inside the package in a wheel, beside it in a checkout."""
    packaged = _PACKAGE / "_docs"
    return packaged if packaged.is_dir() else _PACKAGE.parent / "docs"
