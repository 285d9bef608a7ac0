"""Which huge pages are free, by what the facts say: each NUMA node's, or where those are not known the host's. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from egmctl.model.host import HugePages
from egmctl.model.machine import Machine


def pools_of(machine: Machine, node: int | None) -> tuple[HugePages, ...] | None:
    """Return the pools of huge pages of a NUMA node; ``None`` where nobody knows them.

    Parameters
    ----------
    node
        ``None``: of the host, where those of no node are known: else each node's count, which is where they are taken.
    """
    if machine.host is None:
        return None
    of_nodes = {one.id: one.huge_pages for one in machine.host.numa_nodes or () if one.huge_pages is not None}
    if node is not None:
        return of_nodes.get(node)
    return None if of_nodes else machine.host.huge_pages


def huge_page_sizes(machine: Machine) -> dict[int, int]:
    """Return the size of the huge pages that memory of each NUMA node is counted in, where it is known."""
    nodes = [node.id for node in (machine.host.numa_nodes if machine.host else None) or ()]
    pools = {node: largest_pool(pools_of(machine, node) or pools_of(machine, None)) for node in nodes}
    return {node: pool.page_size_bytes for node, pool in pools.items() if pool is not None}


def largest_pool(pools: Sequence[HugePages] | None) -> HugePages | None:
    """Return the pool with the most bytes free; ``None`` where nobody knows of any.

    A buffer is made of the smallest pages of which there are enough (:func:`egmctl.facts.pages.huge_page_bytes`), so
    what fits into this pool alone can be had.
    """
    return max(pools or (), key=pool_bytes, default=None)


def pool_bytes(pool: HugePages) -> int:
    """Return how much is free in a pool of huge pages, 0 where it was not read."""
    return pool.page_size_bytes * (pool.free or 0)
