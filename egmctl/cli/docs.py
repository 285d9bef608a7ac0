"""``egmctl docs``: print the guide of this version, without internet access."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from egmctl.cli.output import emit
from egmctl.errors import ExitCode, UsageError
from egmctl.units import did_you_mean, printable

TopicArgument = Annotated[
    str | None, typer.Argument(metavar="[TOPIC]", help="A page or an example; without it, list them.")
]


def docs(topic: TopicArgument = None) -> int:
    """Print a page of the guide, or an example to adapt; without a topic, list them."""
    groups = topics()
    pages = {name: path for group in groups.values() for name, path in group.items()}
    if topic is None:
        text = "\n".join(f"{heading}\n{_listed(group)}" for heading, group in groups.items())
    elif topic in pages:
        text = pages[topic].read_text(encoding="utf-8")
    else:
        hint = did_you_mean(topic, pages, "'egmctl docs' lists them", most=1)
        raise UsageError(f"docs has no topic {printable(topic)!r}; {hint}")
    emit(text)
    return ExitCode.OK


INDEX = "README.md"
"""The page that lists all others, in groups."""


def topics() -> Mapping[str, Mapping[str, Path]]:
    """Return the files of the guide by topic, under the headings of the index; examples and decisions come last."""
    from egmctl.files import docs_dir

    folder = docs_dir()
    groups: dict[str, dict[str, Path]] = {}
    for line in (folder / INDEX).read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            groups[line[3:]] = {}
        elif link := re.match(r"\* \[([a-z-]+)\]\(\1\.md\)", line):
            groups[list(groups)[-1]][link[1]] = folder / f"{link[1]}.md"
    # pip compiles Python examples to .pyc files beside them.
    examples = sorted(path for path in folder.glob("examples/**/*") if path.is_file() and path.suffix != ".pyc")
    decisions = sorted(folder.glob("decisions/*.md"))
    groups["Examples and decisions"] = {path.relative_to(folder).as_posix(): path for path in (*examples, *decisions)}
    return groups


def _listed(pages: Mapping[str, Path]) -> str:
    """Return topics with their titles, one per line; examples have no title."""
    width = max(map(len, pages))
    lines = []
    for name, path in pages.items():
        text = path.read_text(encoding="utf-8") if path.suffix == ".md" else ""
        title = next((line[2:].strip() for line in text.splitlines() if line.startswith("# ")), "")
        lines.append(f"  {name:{width}}  {title}".rstrip() + "\n")
    return "".join(lines)
