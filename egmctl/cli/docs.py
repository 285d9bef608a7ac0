"""``egmctl docs``: the guide that belongs to this version, where there is no internet."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from egmctl.cli.output import emit
from egmctl.errors import ExitCode, UsageError
from egmctl.units import printable

TopicArgument = Annotated[
    str | None,
    typer.Argument(metavar="[TOPIC]", help="A page or an example; without it, which there are."),
]


def docs(topic: TopicArgument = None) -> int:
    """Print a page of the guide, or an example to adapt; without a topic, list them."""
    pages = topics()
    if topic is None:
        text = "".join(f"{name:{max(map(len, pages))}}  {_title(path)}".rstrip() + "\n" for name, path in pages.items())
    elif topic in pages:
        text = pages[topic].read_text(encoding="utf-8")
    else:
        raise UsageError(f"docs has no topic {printable(topic)!r}{_nearest(topic, pages)}; 'egmctl docs' lists them")
    emit(text, output=None, force=False)
    return ExitCode.OK


def topics() -> Mapping[str, Path]:
    """Return the files of the guide under the names by which they are asked for: pages first, then examples."""
    from egmctl.data import docs_dir

    folder = docs_dir()
    pages = {path.stem: path for path in sorted(folder.glob("*.md"))}
    examples = sorted(path for path in folder.glob("examples/**/*") if path.is_file())
    decisions = sorted(folder.glob("decisions/*.md"))
    return pages | {path.relative_to(folder).as_posix(): path for path in (*examples, *decisions)}


def _title(path: Path) -> str:
    """Return what a page calls itself, ``""`` for an example."""
    if path.suffix != ".md":
        return ""
    with path.open(encoding="utf-8") as lines:
        return next((line[2:].strip() for line in lines if line.startswith("# ")), "")


def _nearest(topic: str, pages: Mapping[str, Path]) -> str:
    import difflib

    near = difflib.get_close_matches(topic, pages, n=1)
    return f"; did you mean {near[0]}?" if near else ""
