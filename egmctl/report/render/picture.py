"""A command's text as a picture: one SVG file that fetches nothing, for READMEs and tickets."""

from __future__ import annotations

import io

from rich.console import Console
from rich.text import Text

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
