"""Writes the reference of the checks in ``docs/doctor.md`` from the registry: what ``--explain`` says of each.

python tools/doctor_reference.py            write it
python tools/doctor_reference.py --check    write nothing; exit 1 if the file is not what would be written
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

from egmctl.doctor.check import Check
from egmctl.doctor.registry import CHECKS
from egmctl.doctor.runner import anchor

DOCUMENT = Path(__file__).resolve().parents[1] / "docs" / "doctor.md"
MARK = "<!-- What follows is written by tools/doctor_reference.py. -->\n"


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    text = DOCUMENT.read_text(encoding="utf-8")
    head, mark, _ = text.partition(MARK)
    if not mark:
        sys.stderr.write(f"{DOCUMENT} has no line {MARK}")
        return 1
    wanted = f"{head}{MARK}\n{reference()}"
    if arguments == ["--check"]:
        if text != wanted:
            sys.stderr.write(f"{DOCUMENT} is not what tools/doctor_reference.py writes\n")
        return int(text != wanted)
    DOCUMENT.write_text(wanted, encoding="utf-8")
    return 0


def reference() -> str:
    """Return the table of the checks and a chapter for each."""
    rows = [f"| [{check.id}](#{anchor(check.id)}) | {check.title} | {', '.join(check.guards)} |" for check in CHECKS]
    table = "\n".join(["| check | what is checked | guards |", "|---|---|---|", *rows])
    return f"## The checks\n\n{table}\n\n" + "\n".join(_chapter(check) for check in CHECKS)


def _chapter(check: Check) -> str:
    parts = (("Why it matters", check.why), ("How it is read", check.read), ("How to fix it", check.fix))
    body = "\n".join(f"{_wrap(f'**{title}.** {words}')}\n" for title, words in parts)
    return f"### {check.id}\n\n{_wrap(f'{check.title[:1].upper()}{check.title[1:]}.')}\n\n{body}"


def _wrap(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
