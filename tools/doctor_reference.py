"""Writes the reference of the checks in ``docs/doctor.md`` from the registry: what ``--explain`` says of each.

python tools/doctor_reference.py            write it
python tools/doctor_reference.py --check    write nothing; exit 1 if the file is not what would be written
"""

from __future__ import annotations

import sys

from generated import ROOT, below, settle, wrap

from egmctl.doctor.check import Check
from egmctl.doctor.runner import CHECKS, anchor

DOCUMENT = ROOT / "docs" / "doctor.md"
MARK = "<!-- What follows is written by tools/doctor_reference.py. -->\n"


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    return settle(arguments, DOCUMENT, below(DOCUMENT, MARK, reference()), "tools/doctor_reference.py")


def reference() -> str:
    """Return the table of the checks and a chapter for each."""
    rows = [f"| [{check.id}](#{anchor(check.id)}) | {check.title} | {', '.join(check.guards)} |" for check in CHECKS]
    table = "\n".join(["| check | what is checked | guards |", "|---|---|---|", *rows])
    return f"## The checks\n\n{table}\n\n" + "\n".join(_chapter(check) for check in CHECKS)


def _chapter(check: Check) -> str:
    parts = (("Why it matters", check.why), ("How it is read", check.read), ("How to fix it", check.fix))
    body = "\n".join(f"{wrap(f'**{title}.** {words}')}\n" for title, words in parts)
    return f"### {check.id}\n\n{wrap(f'{check.title[:1].upper()}{check.title[1:]}.')}\n\n{body}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
