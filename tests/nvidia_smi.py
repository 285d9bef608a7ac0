"""Reads the tables that ``nvidia-smi topo`` prints."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A printed matrix: its cells by row and column label, and for GPU rows what stands behind them."""

    cells: dict[tuple[str, str], str]
    affinities: dict[str, list[str]]
    """Of ``topo -m``: CPU affinity, NUMA affinity, GPU NUMA id."""

    @property
    def labels(self) -> list[str]:
        """Of the rows, in order."""
        return list(dict.fromkeys(row for row, _ in self.cells))


def parse(printed: str) -> Table:
    """Read a matrix of ``nvidia-smi topo -m`` or ``-p2p``; the legend below it is passed over.

    The header is underlined where standard output is a terminal, and some columns are two tabs apart.
    """
    plain = re.sub(r"\x1b\[[0-9;]*m", "", printed)
    header, *lines = plain.split("\n\n", 1)[0].splitlines()
    columns = [name for name in map(str.strip, header.split("\t")) if re.fullmatch(r"(GPU|NIC)[0-9]+", name)]
    cells: dict[tuple[str, str], str] = {}
    affinities: dict[str, list[str]] = {}
    for line in lines:
        row, *values = [cell.strip() for cell in line.split("\t")]
        values = [value for value in values if value]
        cells |= {(row, column): value for column, value in zip(columns, values, strict=False)}
        affinities[row] = values[len(columns) :]
    return Table(cells, affinities)
