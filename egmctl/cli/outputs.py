"""Where a result goes: to standard output, or to as many files as ``-o`` names, the answer still on the screen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from egmctl.cli import output
from egmctl.cli.output import Color, check_output, choose_format, emit, file_of, leaves_the_node, terminal_width
from egmctl.errors import EgmctlError, UsageError
from egmctl.report.formats import Format
from egmctl.report.kinds import Kind
from egmctl.units import printable

if TYPE_CHECKING:
    from rich.text import Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One place and the format in which a result goes there."""

    format: Format
    file: Path | None
    """``None`` is standard output."""
    brief: bool = False
    """Only the answer: what a terminal shows beside files."""

    @property
    def leaves_the_node(self) -> bool:
        """Whether the result is a document there, which may leave the site."""
        return not self.brief and leaves_the_node(self.format, self.file)

    @property
    def width(self) -> int | None:
        """Characters of a line of the terminal that shows it; ``None`` where none does."""
        return terminal_width(self.file)


Draw = Callable[[Target], "Text | str"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """All places that a result goes to."""

    targets: tuple[Target, ...]
    force: bool
    color: Color
    quiet: bool = False

    @classmethod
    def chosen(
        cls,
        kind: Kind,
        files: Sequence[Path] | None,
        *,
        json: bool = False,
        csv: bool = False,
        format: Format | None = None,
        force: bool = False,
        color: Color = Color.AUTO,
        quiet: bool = False,
    ) -> Outputs:
        """Return what the options ask for.

        Parameters
        ----------
        kind
            Of the result.
        json, csv, format
            As for :func:`egmctl.cli.output.choose_format`.
        files
            What ``-o`` names, each with its format by its suffix; standard output where there is none.

        Raises
        ------
        UsageError
            As :func:`egmctl.cli.output.choose_format`, and where a file is named twice.
        """
        asked: list[Path | None] = [*files] if files else [None]
        for path in asked:
            if asked.count(path) > 1:
                raise UsageError(f"-o {printable(str(path))} is given {asked.count(path)} times; give it once")
        targets = [
            Target(format=choose_format(kind.formats, path, json=json, csv=csv, format=format), file=file_of(path))
            for path in asked
        ]
        return cls(targets=tuple(targets), force=force, color=color, quiet=quiet)

    @property
    def files(self) -> tuple[Path, ...]:
        """The files."""
        return tuple(target.file for target in self.targets if target.file is not None)

    def of_node(self, host: str) -> Outputs:
        """Return the same with the name of a node in that of each file: ``topo-node02.json``."""

        def renamed(file: Path | None) -> Path | None:
            return None if file is None else file.with_name(f"{file.stem}-{host}{file.suffix}")

        return replace(self, targets=tuple(replace(target, file=renamed(target.file)) for target in self.targets))

    def all_in(self, valid: Sequence[Format], what: str) -> None:
        """Refuse what has fewer formats than the command's result.

        Raises
        ------
        UsageError
            If the user chose another format; ``what`` begins the sentence.
        """
        for target in self.targets:
            if target.format not in valid:
                raise UsageError(f"{what} has no format {target.format}; valid are {', '.join(valid)}")

    def check(self) -> None:
        """Refuse, before any work is done, to write where :meth:`write` could not or must not.

        Raises
        ------
        EgmctlError
            As :func:`egmctl.cli.output.check_output`.
        """
        for target in self.targets:
            check_output(target.file, self.force)

    def write(self, draw: Draw, *, answers: bool = True) -> None:
        """Write a result everywhere; a file that cannot be written keeps it from no other.

        Parameters
        ----------
        draw
            Makes the content for one place.
        answers
            Where only files are written, the answer and their names go to standard output; not with ``--quiet``.

        Raises
        ------
        EgmctlError
            As :func:`egmctl.cli.output.emit`, once all others are written.
        """
        failed: list[EgmctlError] = []
        for target in self.targets:
            try:
                emit(draw(target), output=target.file, force=self.force, color=self.color)
            except EgmctlError as error:
                failed.append(error)
        if failed:
            raise failed[0]
        if answers and len(self.files) == len(self.targets) and not self.quiet and output.has_stdout():
            told = draw(Target(format=Format.TEXT, file=None, brief=True))
            emit(_with_files(told, self.files), output=None, force=False, color=self.color)


def _with_files(told: Text | str, files: Sequence[Path]) -> Text | str:
    names = f"written: {', '.join(printable(str(path)) for path in files)}\n"
    if isinstance(told, str):
        return f"{told.rstrip()}\n{names}"
    told.rstrip()
    return told.append("\n").append(names, "dim")
