"""Writes the manual page ``docs/egmctl.1``, which the wheel installs, from the command line itself.

python tools/man_page.py            write it
python tools/man_page.py --check    write nothing; exit 1 if the file is not what would be written
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from command_line import Command, Option, commands
from generated import ROOT, settle

DOCUMENT = ROOT / "docs" / "egmctl.1"

EXIT_CODES = (
    ("0", "fine"),
    ("1", "something was found to be wrong: a check failed, data was corrupt, a measurement or a result is worse"),
    ("2", "the command was used wrongly"),
    ("3", "nothing could be run or determined here: no driver, no GPU, every case waived"),
    ("4", "the run itself broke: a crash, a timeout or an unknown driver error; outranks 1"),
    ("130", "interrupted by SIGINT, SIGTERM or SIGHUP; outranks all others"),
)
ENVIRONMENT = (
    ("NO_COLOR, FORCE_COLOR", "without colours, or with; NO_COLOR counts first"),
    ("EGMCTL_NO_PROGRESS", "if set, no progress is drawn"),
    ("EGMCTL_DEBUG", "if set, an error shows a traceback, to report it"),
    ("CUDA_VISIBLE_DEVICES", "which GPUs bench may measure; topo and doctor see past it and say what it hides"),
    ("XDG_CONFIG_HOME", "where profiles of the user are, in egmctl/profiles; ~/.config if it is not set"),
)
EXAMPLES = (
    ("egmctl topo", "what is connected to what, and by which link"),
    ("egmctl doctor --for egm --gpus 0-3 --numa 1", "what stops memory of NUMA node 1 from working on four GPUs"),
    ("egmctl bench --quick -o monday.json", "one look at every link, to keep"),
    ("egmctl compare monday.json today.json", "what has changed since"),
    ("egmctl show monday.json -o monday.html", "the same result as a page to hand on"),
)


def main(arguments: list[str]) -> int:
    """Return the exit code."""
    return settle(arguments, DOCUMENT, page(), "tools/man_page.py")


def page() -> str:
    """Return the whole page, without a date, so that it changes only with the command line."""
    known = commands()
    top = known[""]
    lines = [
        '.\\" Written by tools/man_page.py.',
        '.TH EGMCTL 1 "" "egmctl" "User Commands"',
        '.\\" Neither hyphenated nor justified: options stay in one piece.',
        ".nh",
        ".ad l",
        ".SH NAME",
        f"egmctl \\- {_escaped(top.help[:1].lower() + top.help[1:].rstrip('.'))}",
        ".SH SYNOPSIS",
        ".B egmctl",
        _escaped(top.usage),
        *_section("OPTIONS", _options(top.options)),
        ".SH COMMANDS",
    ]
    for command in known.values():
        if command.name:
            lines += _command(command)
    lines += _section("EXIT STATUS", _tagged(EXIT_CODES))
    lines += _section("ENVIRONMENT", _tagged(ENVIRONMENT))
    lines += _section("EXAMPLES", _tagged(EXAMPLES))
    lines += _section("SEE ALSO", [r"nvidia\-smi(1), numactl(8), nvbandwidth"])
    return "\n".join(lines) + "\n"


def _command(command: Command) -> list[str]:
    return [
        f'.SS "egmctl {_escaped(command.name)}"',
        f".B egmctl {_escaped(command.name)}",
        _escaped(command.usage),
        ".PP",
        _escaped(command.help),
        *_options(command.options),
    ]


def _section(title: str, lines: Iterable[str]) -> list[str]:
    return [f".SH {title}", *lines]


def _options(options: Iterable[Option]) -> list[str]:
    return _tagged((option.spelling, option.help) for option in options)


def _tagged(entries: Iterable[tuple[str, str]]) -> list[str]:
    lines = []
    for tag, text in entries:
        lines += [".TP", f".B {_escaped(tag)}", _escaped(text)]
    return lines


def _escaped(text: str) -> str:
    """Return text escaped for troff, which would otherwise turn hyphens into typographic ones."""
    safe = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{safe}" if safe[:1] in (".", "'") else safe


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
