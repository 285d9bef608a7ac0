"""Builds the release files: a folder with its own Python, and deb and rpm of it; see tools/make_dist.py."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence


def words(valid: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a parser for an option's value: words separated by commas."""

    def read(text: str) -> list[str]:
        for word in text.split(","):
            if word not in valid:
                raise argparse.ArgumentTypeError(f"{word!r} is none of {', '.join(valid)}")
        return text.split(",")

    return read
