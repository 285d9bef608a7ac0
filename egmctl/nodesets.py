"""Names of nodes in short, by ClusterShell: ``node[01-17]``."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable

from egmctl.errors import UsageError

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,199}")
"""A name can be neither an option of a launcher nor a path, and names of files hold it and some letters more."""


def require_clustershell(what: str) -> None:
    """Say what is missing where ClusterShell is not installed.

    Parameters
    ----------
    what
        What needs it, as the beginning of a sentence.

    Raises
    ------
    UsageError
        With the command that installs it.
    """
    try:
        import ClusterShell  # noqa: F401
    except ImportError as error:
        raise UsageError(f"{what} needs ClusterShell: pip install 'egmctl[fleet]'") from error


def fold(names: Iterable[str]) -> str:
    """Return names as a short node set, ``node[01-17,19]``; one that no node set may hold stands beside it."""
    return _fold(tuple(dict.fromkeys(names)))


@functools.lru_cache(maxsize=16)
def _fold(known: tuple[str, ...]) -> str:
    # Kept, as tens of thousands of names with two numbers each take ClusterShell many seconds.
    if len(known) < 2:
        return "".join(known)
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

    plain = [name for name in known if NAME.fullmatch(name)]
    others = [name for name in known if not NAME.fullmatch(name)]
    return ",".join(filter(None, (str(NodeSet.fromlist(plain, resolver=RESOLVER_NOGROUP)), *others)))
