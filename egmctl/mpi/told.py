"""What other ranks say of themselves, read as documents are: a job may have another version of egmctl on some node."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

from egmctl import __version__
from egmctl.errors import UsageError
from egmctl.model.codec import from_json

T = TypeVar("T")


def read_told(cls: type[T], told: Sequence[bytes], *, key: str | None = None, optional: bool = False) -> list[T]:
    """Return what each rank says, the first one rank 0.

    Parameters
    ----------
    key
        The member of an object that is it.
    optional
        Whether ranks that say something else are left out.

    Raises
    ------
    UsageError
        If it is not what this version says: the sentence names the rank.
    """
    found = []
    for rank, part in enumerate(told):
        data = _json(rank, part)
        if optional and key not in data:
            continue
        try:
            found.append(from_json(cls, data if key is None else data.get(key)))
        except ValueError:
            raise _foreign(rank) from None
    return found


def _json(rank: int, text: bytes) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise _foreign(rank) from None
    if not isinstance(data, dict):
        raise _foreign(rank)
    return data


def _foreign(rank: int) -> UsageError:
    return UsageError(f"rank {rank} does not speak as egmctl {__version__} does: install one version on all nodes")
