"""A command's text as a picture: one SVG file that fetches nothing, for READMEs and tickets."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from xml.etree.ElementTree import Element

from rich.console import Console
from rich.text import Text

from egmctl.report.document import Block, Chart, Diagram, Document, Level, Matrix, Section, body_of, shown
from egmctl.report.render.figures import DRAWN_CELLS, cells_of, heat_map, plot
from egmctl.report.render.page import element, raw, style, xml

_TEMPLATE = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">
  <style>
    .{unique_id}-matrix {{
      font-family: ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace;
      font-size: {char_height}px;
      line-height: {line_height}px;
    }}
    .{unique_id}-title {{ font-family: sans-serif; font-size: 18px; }}
    {styles}
  </style>
  <defs>
    <clipPath id="{unique_id}-clip-terminal">
      <rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
    </clipPath>
    {lines}
  </defs>
  {chrome}
  <g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
    {backgrounds}
    <g class="{unique_id}-matrix">
      {matrix}
    </g>
  </g>
</svg>
"""
"""What rich fills in, without the fonts that its own template loads from elsewhere: every letter has its place and
width, whatever the font."""


def picture(text: Text, title: str) -> str:
    """Return coloured text as an SVG document, as wide as its longest line."""
    lines = text.split("\n", allow_blank=True)
    width = max((line.cell_len for line in lines), default=1)
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(text, end="", no_wrap=True, overflow="ignore")
    return console.export_svg(title=title, code_format=_TEMPLATE, unique_id="egmctl")


_PAD, _BANNER = 16.0, 30.0


def svg(document: Document) -> str:
    """Return a document's drawings, heat maps and curves below each other, its banners above them."""
    figures = list(_figures(shown(document.body, Level.PAGE)))
    width = max((float(figure.get("width", "0")) for figure in figures), default=320.0) + 2 * _PAD
    y = _PAD
    parts: list[Element] = []
    for text in document.banners:
        parts.append(element("text", text, x=_PAD, y=y + 16, class_="warn"))
        y += _BANNER
    for figure in figures:
        figure.set("x", f"{_PAD:g}")
        figure.set("y", f"{y:g}")
        parts.append(figure)
        y += float(figure.get("height", "0")) + _PAD
    return xml(
        element(
            "svg",
            element("title", f"{document.command}: {document.subject}"),
            raw("style", style("colors", "figure")),
            element("rect", width=width, height=y, class_="sheet"),
            parts,
            xmlns="http://www.w3.org/2000/svg",
            class_="figure",
            viewBox=f"0 0 {width:g} {y:g}",
            width=width,
            height=y,
        )
    )


def _figures(blocks: Iterable[Block]) -> Iterator[Element]:
    for block in blocks:
        match block:
            case Diagram():
                yield block.draw()
            case Matrix() if block.better is not None and cells_of(block) <= DRAWN_CELLS:
                yield heat_map(block)
            case Chart() if any(curve for _, curve in block.curves):
                yield plot(block)
            case Section():
                yield from _figures(body_of(block))
            case _:
                continue
