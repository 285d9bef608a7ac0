"""``egmctl docs``: the guide that belongs to this version, where there is no internet."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from egmctl.cli.output import emit
from egmctl.errors import ExitCode, UsageError
from egmctl.units import printable

TopicArgument = Annotated[
    str | None,
    typer.Argument(metavar="[TOPIC]", help="A page or an example; without it, list them."),
]


def docs(topic: TopicArgument = None) -> int:
    """Print a page of the guide, or an example to adapt; without a topic, list them."""
    pages = topics()
    if topic is None:
        text = _listed(pages)
    elif topic in pages:
        text = pages[topic].read_text(encoding="utf-8")
    else:
        raise UsageError(f"docs has no topic {printable(topic)!r}{_nearest(topic, pages)}; 'egmctl docs' lists them")
    emit(text)
    return ExitCode.OK


def topics() -> Mapping[str, Path]:
    """Return the files of the guide by topic: pages in the order of the index, then examples and decisions."""
    from egmctl.data import docs_dir

    folder = docs_dir()
    pages = {name: folder / f"{name}.md" for names in _index(folder).values() for name in names}
    # pip compiles examples in Python beside them.
    examples = sorted(path for path in folder.glob("examples/**/*") if path.is_file() and path.suffix != ".pyc")
    decisions = sorted(folder.glob("decisions/*.md"))
    return pages | {path.relative_to(folder).as_posix(): path for path in (*examples, *decisions)}


INDEX = "README.md"
"""The page that lists all others, in groups."""


def _index(folder: Path) -> Mapping[str, Sequence[str]]:
    """Return the pages that the index links to, under its headings."""
    found: dict[str, list[str]] = {}
    for line in (folder / INDEX).read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            found[line[3:]] = []
        elif link := re.match(r"\* \[([a-z-]+)\]\(\1\.md\)", line):
            found[list(found)[-1]].append(link[1])
    return found


def _listed(pages: Mapping[str, Path]) -> str:
    """Return the topics with their titles, under the headings of the index."""
    from egmctl.data import docs_dir

    groups = dict(_index(docs_dir()))
    groups["Examples and decisions"] = [name for name in pages if "/" in name]
    width = {heading: max(map(len, names)) for heading, names in groups.items()}
    return "\n".join(
        f"{heading}\n" + "".join(f"  {name:{width[heading]}}  {_title(pages[name])}".rstrip() + "\n" for name in names)
        for heading, names in groups.items()
    )


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
