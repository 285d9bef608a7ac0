"""Expands node sets with ClusterShell's syntax and groups to names of nodes.

ClusterShell inserts the name of a group into a shell command (the *upcall* of its source), and expands ranges before it
counts them. So names of groups and sizes of sets are checked here first.
"""

from __future__ import annotations

import configparser
import contextlib
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ClusterShell.NodeSet import DEF_GROUPS_CONFIGS, ILLEGAL_GROUP_CHARS, NodeSet, NodeSetException
from ClusterShell.NodeUtils import (
    GroupResolverConfig,
    GroupResolverError,
    GroupResolverSourceError,
    GroupSourceError,
    GroupSourceNoUpcall,
)

from egmctl.documents import short
from egmctl.errors import UsageError
from egmctl.units import NAME, printable

NODES_LIMIT = 100_000

GROUP = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,99}", re.ASCII)
"""The name of a group or of a source of groups: a single word for a shell that no command takes for an option."""

_RANGE = re.compile(r"\s*([0-9]{1,18})(?:\s*-\s*([0-9]{1,18})(?:/[0-9]{1,9})?)?\s*", re.ASCII)
_BRACKETS = re.compile(r"([0-9]*)\[([^\]]*)\]", re.ASCII)


def select_nodes(wanted: Sequence[str], excluded: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes of sets such as ``node[01-72]``, ``node[1-9]!node5`` or ``@gpu`` that are not excluded.

    Raises
    ------
    UsageError
        If a set cannot be read, names too many nodes or a group that the site has not defined, or no node is left.
    """
    chosen = _expand("-w", wanted)
    left_out = set(_expand("-x", excluded))
    nodes = tuple(node for node in chosen if node not in left_out)
    if not nodes:
        reason = "-w names none, or -x excludes all of them" if wanted else "name them, as in -w node[01-72]"
        raise UsageError(f"no nodes: {reason}")
    check_names(nodes)
    return nodes


def check_names(nodes: Sequence[str]) -> None:
    """Check that node names are unique, not too many, and safe as arguments of a launcher and as file names.

    Raises
    ------
    UsageError
        If a name is invalid or occurs twice, or there are more than :data:`NODES_LIMIT`.
    """
    _check_count(len(nodes), "the nodes")
    for node, times in Counter(nodes).items():
        if not NAME.fullmatch(node):
            raise UsageError(
                f"{printable(node[:60])!r} is no name of a node: at most 200 letters, digits and any of . _ : - are"
            )
        if times > 1:
            raise UsageError(f"node {node} is named twice")


def _expand(option: str, sets: Sequence[str]) -> list[str]:
    groups = _SiteGroups()
    nodes = NodeSet()
    try:
        for text in sets:
            _check_set(text)
            nodes.update(NodeSet(text, resolver=groups))
            _check_count(len(nodes), "the sets together")
        return list(nodes)
    except UsageError as error:
        raise UsageError(f"{option}: {error}") from error
    except GroupResolverSourceError as error:
        if not groups.sources():
            raise UsageError(f"{option}: no groups of nodes are configured for ClusterShell here") from error
        raise UsageError(f"{option}: there is no source of groups {_quoted(str(error))}") from error
    except (NodeSetException, GroupResolverError, GroupSourceError, configparser.Error) as error:
        raise UsageError(f"{option} cannot be read: {printable(str(error)[:200])}") from error
    except (AttributeError, TypeError, ValueError, OSError) as error:
        # The configuration of the groups is malformed in a way that ClusterShell does not handle.
        raise UsageError(f"{option}: the groups cannot be read: {printable(str(error)[:200])}") from error


class _SiteGroups(GroupResolverConfig):  # type: ignore[misc]
    """The groups in the site's ClusterShell configuration, looked up only by valid names."""

    def __init__(self) -> None:
        super().__init__(DEF_GROUPS_CONFIGS, ILLEGAL_GROUP_CHARS)

    def group_nodes(self, group: str, namespace: str | None = None) -> list[str]:
        """Return the node sets of a group, which may name other groups."""
        for name in filter(None, (namespace, group)):
            if not GROUP.fullmatch(name):
                raise UsageError(f"{_quoted(name)} is no name of a group: letters, digits and any of . _ + - are")
        nodes = self._checked(super().group_nodes(group, namespace))
        known: list[str] = []
        with contextlib.suppress(GroupSourceNoUpcall):
            known += [] if nodes else self.grouplist(namespace)
        if not nodes and group not in known:
            source = f"{namespace}:" if namespace else ""
            others = short(", ".join(f"@{source}{name}" for name in known if GROUP.fullmatch(name)))
            known_words = f"there are {others}" if others else "none is defined"
            raise UsageError(f"there is no group @{source}{group}; {known_words}")
        return nodes

    def all_nodes(self, namespace: str | None = None) -> list[str]:
        """Return the node sets of all nodes."""
        return self._checked(super().all_nodes(namespace))

    @staticmethod
    def _checked(sets: list[Any]) -> list[str]:
        texts = [*map(str, sets)]
        for text in texts:
            _check_set(text)
        return texts


def _check_set(nodes: str) -> None:
    """Check, before expansion, that a node set has not too many nodes and does not name groups instead of nodes."""
    if "@@" in nodes:
        raise UsageError(f"{_quoted(nodes)} names groups, not nodes: write @GROUP, or @SOURCE:* for all of a source")
    count = 0
    for pattern in re.split(r"[,!&^](?![^\[]*\])", nodes):
        product = 1
        for digits, inner in _BRACKETS.findall(pattern):
            product *= _size(digits, inner)
            _check_count(product, _quoted(pattern))
        count += product
        _check_count(count, _quoted(nodes))


def _size(digits: str, inner: str) -> int:
    """Return an upper bound for the count of numbers in a pair of brackets.

    Parameters
    ----------
    digits
        The digits directly before the brackets. ClusterShell prepends them to both ends of each range, so that
        ``1[8-12]`` is 18 to 112.
    """
    bounds: list[tuple[str, str]] = []
    for part in inner.split(","):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise UsageError(f"{_quoted(part)} is no range of numbers such as 1-72 or 01-17")
        bounds.append((match[1], match[2] or match[1]))
    count = sum(max(int(last) - int(first), 0) + 1 for first, last in bounds)
    if digits:
        numbers = [int(end) for ends in bounds for end in ends]
        count = max(count, int(f"{digits[-18:]}{max(numbers)}") - int(f"{digits[-18:]}{min(numbers)}") + 1)
    return count


def _check_count(count: int, what: str) -> None:
    if count > NODES_LIMIT:
        raise UsageError(f"{what}: at most {NODES_LIMIT} nodes can be queried at once")


def _quoted(text: str) -> str:
    return repr(printable(text[:60]))
