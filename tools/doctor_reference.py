"""Writes the reference of the checks in ``docs/doctor.md`` from the registry: the texts of ``--explain``.

python tools/doctor_reference.py            write it
python tools/doctor_reference.py --check    write nothing; exit 1 if the file is not what would be written
"""

from __future__ import annotations

import sys

from generated import ROOT, below, settle, wrap

from egmctl.doctor.runner import DOCUMENTED, check_list
from egmctl.model.finding import Guard
from egmctl.model.listing import CheckEntry

DOCUMENT = ROOT / "docs" / "doctor.md"
MARK = "<!-- What follows is written by tools/doctor_reference.py. -->\n"


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    return settle(arguments, DOCUMENT, below(DOCUMENT, MARK, reference()), "tools/doctor_reference.py")


def reference() -> str:
    """Return a chapter for each check."""
    return "## The checks\n\n" + "\n\n".join(_chapter(check) for check in check_list(DOCUMENTED).checks) + "\n"


def _chapter(check: CheckEntry) -> str:
    guards = "everything" if len(check.guards) == len(Guard) else ", ".join(check.guards)
    narrower = f", a failure blocks {', '.join(check.blocks)}" if check.blocks != check.guards else ""
    title = f"**{check.title[:1].upper()}{check.title[1:]}**; guards {guards}{narrower}."
    parts = (title, check.why, f"**Read:** {check.read}", f"**Fix:** {check.fix}")
    return "\n\n".join((f"### {check.id}", *map(wrap, parts)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
