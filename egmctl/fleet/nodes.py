"""Node sets: ClusterShell's syntax and groups in, names out."""

from __future__ import annotations

from collections.abc import Sequence

from egmctl.errors import UsageError
from egmctl.nodesets import NAME
from egmctl.units import printable

NODES_LIMIT = 100_000


def select_nodes(wanted: Sequence[str], excluded: Sequence[str]) -> tuple[str, ...]:
    """Return the nodes of node sets such as ``node[01-72]``, ``node[1-9]!node5`` or ``@gpu``, without others.

    Raises
    ------
    UsageError
        If a set cannot be read, a group is not known, or no node is left.
    """
    chosen = _expand("-w", wanted)
    left_out = set(_expand("-x", excluded))
    nodes = tuple(node for node in chosen if node not in left_out)
    if not nodes:
        raise UsageError("there is no node to ask: -w names none, or -x excludes all of them")
    if len(nodes) > NODES_LIMIT:
        raise UsageError(f"-w names {len(nodes)} nodes; at most {NODES_LIMIT} can be asked at once")
    check_names(nodes)
    return nodes


def check_names(nodes: Sequence[str]) -> None:
    """Refuse what a launcher or the folder of results would take for something else than a name.

    Raises
    ------
    UsageError
        If one is no name of a node.
    """
    for node in nodes:
        if not NAME.fullmatch(node):
            raise UsageError(
                f"{printable(node[:60])!r} is no name of a node: at most 200 letters, digits and any of . _ : - are"
            )


def _expand(option: str, sets: Sequence[str]) -> list[str]:
    from ClusterShell.NodeSet import NodeSet, NodeSetException
    from ClusterShell.NodeUtils import GroupResolverError

    try:
        found = NodeSet()
        for one in sets:
            found.update(NodeSet(one))
        return list(found)
    except (NodeSetException, GroupResolverError) as error:
        raise UsageError(f"{option} cannot be read: {printable(str(error)[:200])}") from error
