"""A picture as data: boxes, lines and words at their places, with what each of them means; renderers draw it.

Coordinates are pixels of the picture at its natural size, from its upper left corner.
"""

from __future__ import annotations

from dataclasses import dataclass

from egmctl.compat import StrEnum


class Look(StrEnum):
    """What a shape stands for; a renderer has a style for each."""

    SHEET = "sheet"
    FRAME = "box"
    """A NUMA node."""
    HOST = "host"
    NIC = "nic"
    GPU = "card"
    GPU_DEGRADED = "card degraded"
    GPU_BLOCKED = "card blocked"
    PCIE_SWITCH = "pcie-switch"
    NVSWITCH = "switch"
    LINK = "link"
    C2C = "link c2c"
    NVLINK = "link nvlink"
    DOWN = "link down"
    """A link of which a part or all is down, or a blocked way."""
    TEXT = ""
    STRONG = "strong"
    DIM = "dim"
    MONO = "dim mono"
    BAD = "bad"
    WARN = "warn"


class Anchor(StrEnum):
    """Which part of the words stands at their place."""

    START = "start"
    MIDDLE = "middle"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Box:
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float
    look: Look
    radius: float = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Straight pieces from point to point."""

    points: tuple[tuple[float, float], ...]
    look: Look


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """A line of words; ``y`` is where the letters stand on."""

    text: str
    x: float
    y: float
    look: Look = Look.TEXT
    anchor: Anchor = Anchor.START
    halo: bool = False
    """It lies over lines."""


Shape = Box | Line | Label


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """A picture."""

    title: str
    sentences: tuple[str, ...]
    """What it shows, for who does not see it."""
    width: float
    height: float
    shapes: tuple[Shape, ...]
