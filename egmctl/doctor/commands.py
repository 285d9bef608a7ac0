"""The documented programs and options of remedies' commands: ``commands.toml``. What is not in it is no remedy."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from egmctl.dataclass import dataclass
from egmctl.files import read_toml
from egmctl.model.remedy import Need


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option of a program."""

    value: str | None = None
    """The pattern of its value; ``None`` if it has none."""
    changes: bool = False
    """Whether it changes something."""
    needs: tuple[Need, ...] = ()
    """What a change needs."""
    scope: bool = False
    """Whether its value names the GPUs that the program is about."""
    of_gpus: bool = False
    """Whether the change affects all GPUs unless an option names some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program, with its subcommand if it has some."""

    source: str
    """Where its options are documented."""
    on_host: bool = False
    """Whether it shows or changes the host, so that it does not work in a container."""
    changes: bool = False
    """Whether it changes something, whatever its options."""
    needs: tuple[Need, ...] = ()
    """What a change needs."""
    arguments: str | None = None
    """The pattern of each argument that is no option; ``None`` if it has none."""
    options: Mapping[str, Option]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramCall:
    """One program of a command line, as it is called."""

    name: str
    program: Program
    options: Mapping[str, str | None]
    """The options, each with its value."""

    @property
    def changing(self) -> tuple[Program | Option, ...]:
        """The program, if it changes something by itself, and its options that do."""
        parts: list[Program | Option] = [self.program, *(self.program.options[name] for name in self.options)]
        return tuple(part for part in parts if part.changes)

    @property
    def names_gpus(self) -> str | None:
        """The GPUs that an option names; ``None`` if none does."""
        return next((value for name, value in self.options.items() if self.program.options[name].scope), None)


class UndocumentedError(ValueError):
    """A command has a program, an option or an argument that the table lacks."""


@cache
def programs() -> Mapping[str, Program]:
    """Return the table, which is read on the first call."""
    tables = read_toml(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

    def typed(entry: dict[str, Any]) -> dict[str, Any]:
        return {**entry, "needs": tuple(map(Need, entry.get("needs", ())))}

    return {
        name: Program(**typed({**entry, "options": {key: Option(**typed(each)) for key, each in options.items()}}))
        for name, entry in tables.items()
        for options in [entry["options"]]
    }


def steps(command: str) -> tuple[ProgramCall, ...]:
    """Return the programs that a command line calls.

    Raises
    ------
    UndocumentedError
        A program, an option or an argument is not in the table.
    """
    words: list[str] = []
    called: list[ProgramCall] = []
    for word in [*_words(command), ";"]:
        if set(word) <= set("|&;(){}"):
            if words:
                called.append(_step(words))
            words = []
        else:
            words.append(word)
    return tuple(called)


def on_host_only(command: str) -> bool:
    """Return whether a command line shows or changes the host, so that it does not work in a container.

    Of one that is not documented, that is assumed.
    """
    try:
        return any(step.program.on_host for step in steps(command))
    except UndocumentedError:
        return True


def _words(command: str) -> Iterator[str]:
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    try:
        yield from lexer
    except ValueError as error:
        raise UndocumentedError(f"{command!r}: {error}") from error


def _step(words: list[str]) -> ProgramCall:
    name, rest = " ".join(words[:2]), words[2:]
    if name not in programs():
        name, rest = words[0], words[1:]
    if name not in programs():
        raise UndocumentedError(f"{words[0]!r} is not in the table of programs")
    program = programs()[name]
    options: dict[str, str | None] = {}
    while rest:
        word = rest.pop(0)
        key, equals, value = word.partition("=")
        if word in program.options and program.options[word].value is not None:
            options[word] = _fitting(name, program.options[word].value, rest.pop(0) if rest else "")
        elif word in program.options:
            options[word] = None
        elif equals and key in program.options:
            options[key] = _fitting(name, program.options[key].value, value)
        else:
            _fitting(name, program.arguments, word)
    return ProgramCall(name=name, program=program, options=options)


def _fitting(name: str, pattern: str | None, value: str) -> str:
    if pattern is None or not re.fullmatch(pattern, value):
        raise UndocumentedError(f"{name}: {value!r} is not documented")
    return value
