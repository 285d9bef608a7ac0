"""The commands, arguments and options of the real command line, with the text of ``--help``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import typer

from egmctl.cli.app import app


@dataclass(frozen=True, slots=True)
class Option:
    """One argument or option."""

    spelling: str
    """The spelling in ``--help``: ``-o, --output FILE``."""
    help: str


@dataclass(frozen=True, slots=True)
class Command:
    """One command."""

    name: str
    """The name with its parents: ``profile show``; empty for ``egmctl`` itself."""
    usage: str
    """The arguments: ``[OPTIONS] FILE``."""
    help: str
    options: tuple[Option, ...]
    """The options; those of subcommands without ``--help``, which all have."""


def commands() -> Mapping[str, Command]:
    """Return all commands by their names, in the order of ``--help``; the first is ``egmctl`` itself."""
    return {command.name: command for command in _commands(typer.main.get_command(app), None, "")}


def _commands(command: Any, parent: Any, name: str) -> list[Command]:
    word = name.rpartition(" ")[2] or "egmctl"
    context = command.context_class(command, info_name=word, parent=parent, **command.context_settings)
    records = [parameter.get_help_record(context) for parameter in command.get_params(context)]
    own = Command(
        name=name,
        usage=" ".join(command.collect_usage_pieces(context)),
        help=" ".join((command.help or "").split()),
        options=tuple(
            Option(record[0], " ".join(record[1].split()))
            for record in records
            if record is not None and not (name and record[0].endswith("--help"))
        ),
    )
    below = getattr(command, "commands", {}).items()
    return [own, *(each for word, child in below for each in _commands(child, context, f"{name} {word}".strip()))]
