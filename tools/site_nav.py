"""The navigation of the site (mkdocs.yml): the groups and pages of docs/README.md, and what they do not list."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

INDEX = "README.md"


def on_config(config: Any) -> Any:
    """Set the navigation; mkdocs calls this."""
    config["nav"] = navigation(Path(config["docs_dir"]))
    return config


def navigation(docs: Path) -> list[dict[str, Any]]:
    """Return mkdocs' ``nav``: a section for each heading of the index, the decisions last."""
    sections: dict[str, list[Any]] = {}
    for line in (docs / INDEX).read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            sections[line[3:].partition(":")[0]] = []
        elif page := re.match(r"\* \[([a-z-]+)\]\(\1\.md\)", line):
            sections[list(sections)[-1]].append({page[1]: f"{page[1]}.md"})
    decisions = [f"decisions/{path.name}" for path in sorted(docs.glob("decisions/*.md"))]
    return [{"egmctl": INDEX}, *({name: pages} for name, pages in sections.items()), {"Decisions": decisions}]
